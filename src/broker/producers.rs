//! Connected producers by group.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::clients::{Client, Clients, Member};

/// Longest name of a producer group in bytes, as in RocketMQ.
const GROUP_BYTES_MAX: usize = 255;

/// Who is connected as a producer.
#[derive(Debug, Default)]
pub(crate) struct Producers {
    clients: Mutex<Clients>,
}

impl Producers {
    /// Notes a heartbeat of a producer. False if its group is new and there are `groups_max` already, or if its name is too long for one.
    pub(crate) fn heard(&self, group: &str, client: &Client, now: Duration, groups_max: usize) -> bool {
        let mut clients = self.clients();
        if group.len() > GROUP_BYTES_MAX || (!clients.has(group) && clients.len() >= groups_max) {
            return false;
        }
        clients.heard(group, client, now);
        true
    }

    /// A producer leaves one group.
    pub(crate) fn unregister(&self, group: &str, connection: u64) {
        self.clients().remove(group, connection);
    }

    /// A connection is gone.
    pub(crate) fn closed(&self, connection: u64) {
        self.clients().closed(connection);
    }

    /// Forgets producers that were not heard of for `expiry`.
    pub(crate) fn expire(&self, now: Duration, expiry: Duration) {
        self.clients().expire(now, expiry);
    }

    /// The producers of a group.
    pub(crate) fn members(&self, group: &str) -> Vec<Member> {
        self.clients().members(group).cloned().collect()
    }

    /// The groups that have producers.
    pub(crate) fn groups(&self) -> Vec<Arc<str>> {
        self.clients().groups().cloned().collect()
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
