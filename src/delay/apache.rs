//! What Apache RocketMQ delivered from a store of ours, or from its own before it became ours.
//!
//! The records that Apache restores carry no origin: they are the waiting records with the real topic and queue, nothing else differs. They are
//! matched with what waits, by all fields that both have: level, real topic and queue, unique key, born time and host, reconsume times, flag,
//! body checksum. Of several waiting records that are alike the first counts. Wherever in the log they lie, for a store may have changed hands
//! more than once; this broker itself stores nothing that looks like them, whatever producers send. Without a unique key nothing matches: that
//! is left to `delayOffset.json`, which is believed for nothing else: a restored record that is not in the log was not delivered, whatever the
//! file says.
//!
//! The store time of the restored record does not count: Apache delivers by the table it runs with, so that what was stored under another one may have come
//! early.
//!
//! Only recovery matches, from the first such record on, which costs about 100 bytes for each message that waits then.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    ops::Range,
};

use super::{
    DelayLevel,
    entries::{self, end_of},
    restore::DelayProperties,
};
use crate::{
    model::{PhysicalOffset, SCHEDULE_TOPIC, names},
    record::RecordView,
    store::MessageStore,
};

/// A waiting record that may have been delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) level: DelayLevel,
    pub(super) queue_offset: u64,
    pub(super) bytes: u32,
    /// Where the record ends.
    pub(super) end: PhysicalOffset,
}

/// What waits, by what a restored record has of it.
#[derive(Debug, Default)]
pub(super) struct Matching {
    /// Two seeds, so that nobody can make two messages look alike.
    hashers: [RandomState; 2],
    waiting: HashMap<[u64; 2], VecDeque<Candidate>>,
}

/// Waiting records without a unique key, level by level: only `delayOffset.json` can say whether they were delivered.
pub(super) type WithoutKey = BTreeMap<DelayLevel, Vec<Candidate>>;

impl Matching {
    /// All of the given parts of the levels' queues that can be read.
    pub(super) fn of(store: &MessageStore, waiting: &[(DelayLevel, Range<u64>)]) -> Self {
        let mut matching = Self::default();
        for (level, range) in waiting {
            let mut at = range.start;
            while at < range.end {
                let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
                let entries = entries::read(store, *level, at, left);
                if entries.is_empty() {
                    tracing::error!(
                        delay_level = %level,
                        queue_offset = at,
                        "cannot read what waits: if Apache RocketMQ delivered it, it is delivered again"
                    );
                    break;
                }
                for entry in entries {
                    if let Some(record) = store.record_at(entry.position) {
                        let candidate =
                            Candidate { level: *level, queue_offset: at, bytes: entry.bytes, end: end_of(&entry) };
                        matching.add(&record.view(), candidate);
                    }
                    at += 1;
                }
            }
        }
        matching
    }

    /// Takes note of a waiting record, in the order of the log.
    pub(super) fn add(&mut self, record: &RecordView<'_>, candidate: Candidate) {
        if record.topic() == SCHEDULE_TOPIC
            && let Some(key) = self.key(record)
        {
            self.waiting.entry(key).or_default().push_back(candidate);
        }
    }

    /// The waiting record that a restored one comes from.
    pub(super) fn take(&mut self, restored: &RecordView<'_>) -> Option<Candidate> {
        let key = self.key(restored)?;
        let alike = self.waiting.get_mut(&key)?;
        let first = alike.pop_front();
        if alike.is_empty() {
            self.waiting.remove(&key);
        }
        first
    }

    /// Forgets what waits on a level.
    pub(super) fn forget(&mut self, level: DelayLevel) {
        self.waiting.retain(|_, alike| {
            alike.retain(|candidate| candidate.level != level);
            !alike.is_empty()
        });
    }

    /// About how many waiting records it holds: those that are alike count once.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// What a waiting record and the restored one have in common.
    fn key(&self, record: &RecordView<'_>) -> Option<[u64; 2]> {
        let properties = record.properties();
        let delay = DelayProperties::of(properties);
        let real = (delay.level?, delay.real_topic?, delay.real_queue?);
        let unique_key = properties.get(names::UNIQ_KEY).filter(|key| !key.is_empty())?;
        let born = (record.born_at(), record.born_host());
        let key = (real, unique_key, born, record.reconsume_times(), record.flag(), record.body_crc());
        Some([0, 1].map(|at| self.hashers[at].hash_one(key)))
    }
}

/// Whether a record has a unique key, so that the one restored from it can be told.
pub(super) fn has_unique_key(record: &RecordView<'_>) -> bool {
    record.properties().get(names::UNIQ_KEY).is_some_and(|key| !key.is_empty())
}

/// Whether a record may be one that Apache RocketMQ restored.
pub(super) fn may_be_restored(record: &RecordView<'_>) -> bool {
    if record.prepared_offset() != 0 || !record.sys_flag().is_queued() {
        return false;
    }
    let delay = DelayProperties::of(record.properties());
    delay.level.is_some() && delay.real_topic == Some(record.topic()) && delay.real_queue == Some(record.queue_id().0)
}
