//! Pulls that found nothing and wait for a message.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::Subscription;
use crate::model::{QueueId, Topic};

/// Deadlines are rounded up to multiples of this, so that many held pulls cost few wake-ups of the timer.
const DEADLINE_STEP: Duration = Duration::from_millis(500);

/// Held pulls by the queue they wait for.
///
/// A core without threads and without knowledge of what a held pull `W` is: [`PullHold::arrived`], [`PullHold::expired`] and
/// [`PullHold::closed`] give the pulls that are to be answered or dropped, each pull exactly once. Times are boot time.
///
/// A pull is not lost to a message that arrives while it is parked, as long as the one who parks it looks at the queue once more afterwards
/// and takes it back with [`PullHold::take`] if there is something.
pub(crate) struct PullHold<W> {
    held_max: usize,
    state: Mutex<State<W>>,
}

/// What a held pull waits for.
#[derive(Debug, Clone)]
pub(crate) struct Wait {
    /// The queue's topic.
    pub(crate) topic: Topic,
    /// The queue.
    pub(crate) queue_id: QueueId,
    /// The queue offset it wants; it wakes when the queue's maximum is above.
    pub(crate) offset: i64,
    /// What it wants to be woken for.
    pub(crate) subscription: Arc<Subscription>,
    /// The connection that asked.
    pub(crate) connection: u64,
    /// When it is to be answered at latest.
    pub(crate) deadline: Duration,
}

/// Names a held pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HoldId(u64);

struct State<W> {
    next: u64,
    held: HashMap<u64, Held<W>>,
    queues: HashMap<Topic, HashMap<QueueId, HashSet<u64>>>,
    connections: HashMap<u64, HashSet<u64>>,
    /// Pulls by the step of their deadline; those answered earlier stay in it until then.
    deadlines: BTreeMap<Duration, Vec<u64>>,
}

struct Held<W> {
    wait: Wait,
    pull: W,
}

impl<W> PullHold<W> {
    /// Holds nothing yet, and never more than `held_max`.
    pub(crate) fn new(held_max: usize) -> Self {
        let state = State {
            next: 0,
            held: HashMap::new(),
            queues: HashMap::new(),
            connections: HashMap::new(),
            deadlines: BTreeMap::new(),
        };
        Self { held_max, state: Mutex::new(state) }
    }

    /// Holds a pull. The flag says whether its deadline is now the earliest: the timer has to be told.
    ///
    /// # Errors
    /// Gives the pull back if too many are held.
    pub(crate) fn park(&self, wait: Wait, pull: W) -> Result<(HoldId, bool), W> {
        let mut state = self.state();
        if state.held.len() >= self.held_max {
            return Err(pull);
        }
        let id = state.next;
        state.next += 1;
        let step = round_up(wait.deadline);
        let is_earliest = state.deadlines.first_key_value().is_none_or(|(first, _)| step < *first);
        state.deadlines.entry(step).or_default().push(id);
        match state.queues.get_mut(&wait.topic) {
            Some(queues) => queues.entry(wait.queue_id).or_default().insert(id),
            None => state.queues.entry(wait.topic.clone()).or_default().entry(wait.queue_id).or_default().insert(id),
        };
        state.connections.entry(wait.connection).or_default().insert(id);
        state.held.insert(id, Held { wait, pull });
        Ok((HoldId(id), is_earliest))
    }

    /// Takes one pull back, if it is still held.
    pub(crate) fn take(&self, id: HoldId) -> Option<W> {
        self.state().remove(id.0).map(|held| held.pull)
    }

    /// The pulls that a message wakes. Cheap when nobody waits for the queue.
    pub(crate) fn arrived(&self, topic: &str, queue_id: QueueId, max: u64, tag_code: i64) -> Vec<W> {
        let mut state = self.state();
        let Some(waiting) = state.queues.get(topic).and_then(|queues| queues.get(&queue_id)) else {
            return Vec::new();
        };
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let woken: Vec<u64> = waiting
            .iter()
            .copied()
            .filter(|id| {
                state.held.get(id).is_some_and(|held| max > held.wait.offset && held.wait.subscription.wants(tag_code))
            })
            .collect();
        state.remove_all(woken)
    }

    /// The pulls whose time is over.
    pub(crate) fn expired(&self, now: Duration) -> Vec<W> {
        let mut state = self.state();
        let mut over = Vec::new();
        while let Some(entry) = state.deadlines.first_entry().filter(|entry| *entry.key() <= now) {
            over.extend(entry.remove());
        }
        state.remove_all(over)
    }

    /// The pulls of a queue, or of all queues of a topic, whatever they wait for: the topic is gone.
    pub(crate) fn topic_gone(&self, topic: &str) -> Vec<W> {
        let mut state = self.state();
        let ids =
            state.queues.get(topic).map(|queues| queues.values().flatten().copied().collect()).unwrap_or_default();
        state.remove_all(ids)
    }

    /// Drops the pulls of a connection that is gone; says how many.
    pub(crate) fn closed(&self, connection: u64) -> usize {
        let mut state = self.state();
        let ids = state.connections.remove(&connection).unwrap_or_default();
        state.remove_all(ids.into_iter().collect()).len()
    }

    /// Every pull, to be answered because the broker stops.
    pub(crate) fn drain(&self) -> Vec<W> {
        let mut state = self.state();
        let ids = state.held.keys().copied().collect();
        state.deadlines.clear();
        state.remove_all(ids)
    }

    /// When [`PullHold::expired`] is to be called next.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.state().deadlines.first_key_value().map(|(first, _)| *first)
    }

    /// How many pulls are held.
    pub(crate) fn len(&self) -> usize {
        self.state().held.len()
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W> State<W> {
    fn remove_all(&mut self, ids: Vec<u64>) -> Vec<W> {
        ids.into_iter().filter_map(|id| self.remove(id)).map(|held| held.pull).collect()
    }

    fn remove(&mut self, id: u64) -> Option<Held<W>> {
        let held = self.held.remove(&id)?;
        let wait = &held.wait;
        if let Some(queues) = self.queues.get_mut(&wait.topic) {
            if let Some(ids) = queues.get_mut(&wait.queue_id) {
                ids.remove(&id);
                if ids.is_empty() {
                    queues.remove(&wait.queue_id);
                }
            }
            if queues.is_empty() {
                self.queues.remove(&wait.topic);
            }
        }
        if let Some(ids) = self.connections.get_mut(&wait.connection) {
            ids.remove(&id);
            if ids.is_empty() {
                self.connections.remove(&wait.connection);
            }
        }
        Some(held)
    }
}

fn round_up(deadline: Duration) -> Duration {
    let step = DEADLINE_STEP.as_millis();
    let millis = deadline.as_millis().div_ceil(step).saturating_mul(step);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::java_hash;

    const Q: QueueId = QueueId(0);

    fn wait(offset: i64, tags: &str, deadline_ms: u64) -> Wait {
        Wait {
            topic: "T".into(),
            queue_id: Q,
            offset,
            subscription: Arc::new(Subscription::parse("T".into(), tags, 0).unwrap()),
            connection: 1,
            deadline: Duration::from_millis(deadline_ms),
        }
    }

    #[test]
    fn a_held_pull_wakes_once_when_a_message_beyond_its_offset_arrives() {
        let hold = PullHold::new(10);
        hold.park(wait(5, "*", 1), "pull").unwrap();

        assert!(hold.arrived("T", Q, 5, 0).is_empty());
        assert!(hold.arrived("T", QueueId(1), 6, 0).is_empty());
        assert_eq!(hold.arrived("T", Q, 6, 0), ["pull"]);
        assert!(hold.arrived("T", Q, 7, 0).is_empty() && hold.len() == 0);
    }

    #[test]
    fn remoting_56_only_a_message_whose_tag_matches_wakes() {
        let hold = PullHold::new(10);
        hold.park(wait(0, "A", 1), "a").unwrap();
        hold.park(wait(0, "*", 1), "all").unwrap();

        assert_eq!(hold.arrived("T", Q, 1, i64::from(java_hash("B"))), ["all"]);
        assert_eq!(hold.arrived("T", Q, 2, i64::from(java_hash("A"))), ["a"]);
    }

    #[test]
    fn remoting_57_a_held_pull_is_answered_at_most_half_a_second_after_its_deadline_and_never_before() {
        let hold = PullHold::new(10);
        let (_, earliest) = hold.park(wait(0, "*", 15_100), "pull").unwrap();

        assert!(earliest);
        assert_eq!(hold.next_deadline(), Some(Duration::from_millis(15_500)));
        assert!(hold.expired(Duration::from_millis(15_499)).is_empty());
        assert_eq!(hold.expired(Duration::from_millis(15_500)), ["pull"]);
        assert_eq!(hold.next_deadline(), None);
    }

    #[test]
    fn only_an_earlier_deadline_asks_for_the_timer() {
        let hold = PullHold::new(10);
        hold.park(wait(0, "*", 2000), 1).unwrap();

        assert!(!hold.park(wait(0, "*", 1900), 2).unwrap().1);
        assert!(hold.park(wait(0, "*", 1500), 3).unwrap().1);
    }

    #[test]
    fn the_pulls_of_a_closed_connection_are_dropped_and_nothing_of_them_stays() {
        let hold = PullHold::new(10);
        for _ in 0..3 {
            hold.park(wait(0, "*", 1), "pull").unwrap();
        }

        assert_eq!(hold.closed(1), 3);

        let state = hold.state();
        assert!(state.held.is_empty() && state.queues.is_empty() && state.connections.is_empty());
    }

    #[test]
    fn a_pull_beyond_the_limit_is_given_back() {
        let hold = PullHold::new(1);
        let (first, _) = hold.park(wait(0, "*", 1), "first").unwrap();

        assert_eq!(hold.park(wait(0, "*", 1), "second").unwrap_err(), "second");
        assert_eq!(hold.take(first), Some("first"));
        assert_eq!(hold.take(first), None);
        assert!(hold.park(wait(0, "*", 1), "third").is_ok());
    }

    #[test]
    fn fifty_thousand_held_pulls_of_one_queue_wake_together() {
        let hold = PullHold::new(100_000);
        for pull in 0..50_000 {
            hold.park(Wait { connection: pull, ..wait(0, "*", 15_000 + pull) }, pull).unwrap();
        }

        assert_eq!(hold.arrived("T", Q, 1, 0).len(), 50_000);
        assert!(hold.state().deadlines.len() <= 101, "deadlines share their steps");
    }
}
