//! What readers saw. Every queue is read as it grows, the schedule topic too, and what must hold at every moment is checked at each record.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use latermq::{
    model::{PhysicalOffset, QueueId, SCHEDULE_TOPIC, Timestamp, names},
    record::{Record, Records},
    store::{MessageStore, PullQuery},
};

use crate::{
    ledger::{Id, Ledger},
    machine::Machine,
};

/// A queue, by topic and id.
pub(crate) type Queue = (String, u32);

/// A record that a reader saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) id: Id,
    pub(crate) position: PhysicalOffset,
    pub(crate) end: PhysicalOffset,
    pub(crate) stored_at: Timestamp,
    /// Real time, and sum of forward steps, when it was first seen.
    pub(crate) seen_at: (Duration, Duration),
    bytes_crc: u32,
}

/// All readers together.
#[derive(Default)]
pub(crate) struct Reader {
    /// What was seen in each queue, from offset 0 on.
    pub(crate) queues: BTreeMap<Queue, Vec<Sighting>>,
}

impl Reader {
    /// Reads what is new in every queue.
    pub(crate) fn read(&mut self, machine: &Machine, ledger: &Ledger) {
        let store = &machine.process().store;
        let mut names: Vec<Queue> =
            store.queues().into_iter().map(|(topic, queue_id, _)| (topic.as_str().to_owned(), queue_id.0)).collect();
        names.sort();
        for (queue, seen) in &self.queues {
            let max = store.queue_range(&queue.0, QueueId(queue.1)).map_or(0, |range| range.max.0);
            assert!(max >= seen.len() as u64, "{queue:?} ends at {max}, but {} were seen", seen.len());
        }
        for queue in names {
            let seen = self.queues.entry(queue.clone()).or_default();
            for record in pull_from(store, &queue, seen.len() as u64) {
                let sighting = sighting(&record, machine);
                check(&queue, seen.len() as u64, &record, &sighting, machine, ledger);
                seen.push(sighting);
            }
        }
    }

    /// Reads every queue from its start again and compares with what was seen before.
    pub(crate) fn read_again(&mut self, machine: &Machine, ledger: &Ledger) {
        self.read(machine, ledger);
        let store = &machine.process().store;
        for (queue, seen) in &self.queues {
            let Some(range) = store.queue_range(&queue.0, QueueId(queue.1)) else {
                assert!(seen.is_empty(), "{queue:?} is gone");
                continue;
            };
            let records = pull_from(store, queue, range.min.0);
            assert_eq!(records.len() as u64, range.max.0 - range.min.0, "records of {queue:?}");
            for (at, record) in (range.min.0..).zip(records) {
                let before = &seen[usize::try_from(at).unwrap()];
                let now = sighting(&record, machine);
                assert!(
                    (before.id, before.position, before.bytes_crc) == (now.id, now.position, now.bytes_crc),
                    "{queue:?} {at} was {before:?} and is {now:?}"
                );
            }
        }
    }

    /// The power went: what was not durable may be gone.
    pub(crate) fn forget_unsynced(&mut self, durable: PhysicalOffset) {
        for seen in self.queues.values_mut() {
            seen.retain(|sighting| sighting.end <= durable);
        }
    }

    /// Waiting records, by message.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&Queue, u64, &Sighting)> {
        self.all().filter(|(queue, ..)| queue.0 == SCHEDULE_TOPIC)
    }

    /// Records of real topics.
    pub(crate) fn delivered(&self) -> impl Iterator<Item = (&Queue, u64, &Sighting)> {
        self.all().filter(|(queue, ..)| queue.0 != SCHEDULE_TOPIC)
    }

    fn all(&self) -> impl Iterator<Item = (&Queue, u64, &Sighting)> {
        self.queues.iter().flat_map(|(queue, seen)| (0..).zip(seen).map(move |(at, sighting)| (queue, at, sighting)))
    }
}

/// All records of a queue from an offset on, which must be there without a gap.
fn pull_from(store: &MessageStore, queue: &Queue, from: u64) -> Vec<Record> {
    let mut records = Vec::new();
    let mut at = i64::try_from(from).unwrap();
    loop {
        let query =
            PullQuery { topic: &queue.0, queue_id: QueueId(queue.1), offset: at, count_max: 1_000, bytes_max: 1 << 20 };
        let pulled = store.pull(&query, &|_| true);
        let max = i64::try_from(pulled.range.max.0).unwrap();
        if at >= max {
            return records;
        }
        let count = records.len();
        for slice in pulled.records {
            records.extend(Records::new(slice).map(|record| record.expect("a pulled record can be read")));
        }
        let expected = pulled.next_offset - at;
        assert!(
            expected > 0 && (records.len() - count) as i64 == expected,
            "a pull of {queue:?} at {at} of {:?} gave {} records: {:?}",
            pulled.range,
            records.len() - count,
            pulled.status
        );
        at = pulled.next_offset;
    }
}

fn sighting(record: &Record, machine: &Machine) -> Sighting {
    let view = record.view();
    let id = view.properties().get(names::KEYS).and_then(|id| id.parse().ok()).expect("every record has its number");
    Sighting {
        id,
        position: view.physical_offset(),
        end: view.end(),
        stored_at: view.stored_at(),
        seen_at: (machine.elapsed, machine.forward),
        bytes_crc: crc(record.bytes()),
    }
}

fn crc(bytes: &Bytes) -> u32 {
    crc32fast::hash(bytes)
}

/// What must hold for each record by itself.
fn check(queue: &Queue, at: u64, record: &Record, sighting: &Sighting, machine: &Machine, ledger: &Ledger) {
    let view = record.view();
    let store = &machine.process().store;
    let message = ledger.messages.get(&sighting.id).expect("it was sent");
    let what = || format!("message {} in {queue:?} at {at}: {message:?}, {sighting:?}", sighting.id);
    assert_eq!(view.queue_offset().0, at, "queue offset of {}", what());
    assert!(view.body() == &message.body()[..], "body of {}", what());
    if store.waits_for_sync() {
        assert!(sighting.end <= store.durable(), "not durable, but read: {}", what());
    }
    if queue.0 == SCHEDULE_TOPIC {
        assert_eq!(queue.1 + 1, message.level, "level of {}", what());
        return;
    }
    assert_eq!(queue.0, message.topic, "topic of {}", what());
    assert_eq!(queue.1, message.queue_id, "queue of {}", what());
    let (seen, seen_forward) = sighting.seen_at;
    let (sent, sent_forward) = message.sent_at;
    // A step forward of the wall clock counts as time.
    let waited = (seen - sent) + (seen_forward - sent_forward);
    assert!(waited >= message.delay, "read after {waited:?}: {}", what());
}
