//! Queues locked by orderly consumers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    Broker,
    failure::{Answer, check_client_id, read_json, success},
};
use crate::{
    model::{RETRY_TOPIC_BYTES_MAX, Topic},
    protocol::{
        Command,
        body::{LockBatchReply, LockBatchRequest, MessageQueue},
        json::{self, Dialect},
    },
};

/// Most locks at once; beyond them no further one is granted.
const LOCKS_MAX: usize = 1_000_000;

/// Which client may consume which queue in order.
///
/// A lock belongs to one client of a group and ends when it was not renewed for [`super::BrokerOptions::lock_expiry`]. Locks live in memory
/// only: after a restart clients take them again. Times are boot time.
pub(crate) struct QueueLocks {
    expiry: Duration,
    groups: Mutex<HashMap<Arc<str>, Locks>>,
}

type Locks = HashMap<(Topic, i32), Lock>;

struct Lock {
    client_id: Arc<str>,
    renewed_at: Duration,
}

impl QueueLocks {
    /// No locks yet.
    pub(crate) fn new(expiry: Duration) -> Self {
        Self { expiry, groups: Mutex::default() }
    }

    /// Takes or renews locks for a client; gives back, in order, those it has now.
    pub(crate) fn lock(
        &self,
        group: &str,
        client_id: &str,
        queues: Vec<(Topic, i32)>,
        now: Duration,
    ) -> Vec<(Topic, i32)> {
        let mut groups = self.groups();
        let mut room = LOCKS_MAX.saturating_sub(groups.values().map(HashMap::len).sum());
        let locks = match groups.get_mut(group) {
            Some(locks) => locks,
            None => groups.entry(group.into()).or_default(),
        };
        let client_id: Arc<str> = client_id.into();
        queues
            .into_iter()
            .filter(|queue| match locks.get_mut(queue) {
                Some(lock) if lock.client_id != client_id && !lock.is_over(now, self.expiry) => false,
                Some(lock) => {
                    *lock = Lock { client_id: Arc::clone(&client_id), renewed_at: now };
                    true
                }
                None if room == 0 || is_no_queue(group, queue) => false,
                None => {
                    room -= 1;
                    locks.insert(queue.clone(), Lock { client_id: Arc::clone(&client_id), renewed_at: now });
                    true
                }
            })
            .collect()
    }

    /// Gives back locks, if this client has them.
    pub(crate) fn unlock(&self, group: &str, client_id: &str, queues: &[(Topic, i32)]) {
        let mut groups = self.groups();
        if let Some(locks) = groups.get_mut(group) {
            for queue in queues {
                if locks.get(queue).is_some_and(|lock| *lock.client_id == *client_id) {
                    locks.remove(queue);
                }
            }
            if locks.is_empty() {
                groups.remove(group);
            }
        }
    }

    /// Whether any client of the group holds a lock: the group consumes in order.
    pub(crate) fn any(&self, group: &str, now: Duration) -> bool {
        self.groups().get(group).is_some_and(|locks| locks.values().any(|lock| !lock.is_over(now, self.expiry)))
    }

    /// Forgets locks that are over.
    pub(crate) fn tick(&self, now: Duration) {
        let mut groups = self.groups();
        for locks in groups.values_mut() {
            locks.retain(|_, lock| !lock.is_over(now, self.expiry));
        }
        groups.retain(|_, locks| !locks.is_empty());
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<Arc<str>, Locks>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Code 41: a client takes or renews locks; the answer holds the queues that are its own now.
pub(super) fn lock(broker: &Broker, request: &Command) -> Answer {
    let asked: LockBatchRequest = read_json(request)?;
    check_client_id(&asked.client_id)?;
    let granted = broker.locks.lock(&asked.consumer_group, &asked.client_id, queues(&asked), broker.now());
    let lock_ok_mq_set = granted.into_iter().map(|(topic, queue_id)| MessageQueue {
        broker_name: broker.options().name.clone(),
        queue_id,
        topic: topic.as_str().into(),
    });
    let reply = LockBatchReply { lock_ok_mq_set: lock_ok_mq_set.collect() };
    Ok(success().with_body(json::to_vec(Dialect::Fastjson, &reply)))
}

/// Code 42: a client gives locks back.
pub(super) fn unlock(broker: &Broker, request: &Command) -> Answer {
    let asked: LockBatchRequest = read_json(request)?;
    broker.locks.unlock(&asked.consumer_group, &asked.client_id, &queues(&asked));
    Ok(success())
}

fn queues(asked: &LockBatchRequest) -> Vec<(Topic, i32)> {
    asked.mq_set.iter().map(|queue| (Topic::new(queue.topic.as_str()), queue.queue_id)).collect()
}

/// Whether group or topic are longer than names are.
fn is_no_queue(group: &str, (topic, _): &(Topic, i32)) -> bool {
    group.len() > RETRY_TOPIC_BYTES_MAX || topic.len() > RETRY_TOPIC_BYTES_MAX
}

impl Lock {
    fn is_over(&self, now: Duration, expiry: Duration) -> bool {
        now.saturating_sub(self.renewed_at) >= expiry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn queue(id: i32) -> (Topic, i32) {
        ("T".into(), id)
    }

    #[test]
    fn remoting_70_a_queue_is_granted_to_one_client_only() {
        let locks = QueueLocks::new(MINUTE);
        locks.lock("g", "a", vec![queue(0)], Duration::ZERO);

        let granted = locks.lock("g", "b", vec![queue(0), queue(1)], Duration::from_secs(59));

        assert_eq!(granted, [queue(1)]);
        assert_eq!(locks.lock("other", "b", vec![queue(0)], Duration::ZERO), [queue(0)]);
    }

    #[test]
    fn remoting_70_a_lock_that_is_not_renewed_for_a_minute_goes_to_the_next_client() {
        let locks = QueueLocks::new(MINUTE);
        locks.lock("g", "a", vec![queue(0)], Duration::ZERO);
        locks.lock("g", "a", vec![queue(0)], Duration::from_secs(20));

        assert_eq!(locks.lock("g", "b", vec![queue(0)], Duration::from_secs(79)), []);
        assert_eq!(locks.lock("g", "b", vec![queue(0)], Duration::from_secs(80)), [queue(0)]);
    }

    #[test]
    fn remoting_70_an_unlocked_queue_is_free_at_once_but_only_its_owner_can_unlock_it() {
        let locks = QueueLocks::new(MINUTE);
        locks.lock("g", "a", vec![queue(0)], Duration::ZERO);

        locks.unlock("g", "b", &[queue(0)]);
        assert!(locks.any("g", Duration::ZERO));
        locks.unlock("g", "a", &[queue(0)]);

        assert!(!locks.any("g", Duration::ZERO));
        assert_eq!(locks.lock("g", "b", vec![queue(0)], Duration::ZERO), [queue(0)]);
    }

    #[test]
    fn locks_that_are_over_are_forgotten() {
        let locks = QueueLocks::new(MINUTE);
        locks.lock("g", "a", vec![queue(0)], Duration::ZERO);

        locks.tick(MINUTE);

        assert!(locks.groups().is_empty());
    }
}
