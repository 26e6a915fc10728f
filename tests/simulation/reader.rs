//! What readers saw. Every queue is read as it grows, the schedule topic too, and what must hold at every moment is checked at each record.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use bytes::Bytes;
use latermq::{
    model::{PARKING_TOPIC, PhysicalOffset, QueueId, QueueOffset, SCHEDULE_TOPIC, Timestamp, names},
    record::{Record, RecordView, Records},
    store::{MessageStore, PullQuery, QueueRange},
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
    pub(crate) reconsume_times: i32,
    /// The generation of its level, if it waits.
    pub(crate) generation: u16,
    /// The number that the first message of its kind has as its key.
    pub(crate) keys: Id,
    /// Real time when it was first seen, and how much the wall clock had seemed to go on.
    pub(crate) seen_at: (Duration, Duration),
    pub(crate) bytes_crc: u32,
}

/// All readers together.
#[derive(Default, Clone)]
pub(crate) struct Reader {
    /// What was seen in each queue, from offset 0 on; nothing where a record was damaged.
    pub(crate) queues: BTreeMap<Queue, Vec<Option<Sighting>>>,
    /// What was seen in queues that are gone with their topics.
    past: Vec<(Queue, u64, Sighting)>,
    /// Bytes of the log that are damaged, or cannot be read.
    hits: Vec<Range<u64>>,
    /// Topics whose deletion was not answered: their queues may be gone.
    unsure: BTreeSet<String>,
    /// Queues that lost their files since they were read last.
    pub(crate) queues_lost: bool,
    /// A process began on a full disk: what queues lost with the power, or to a fault, is written again when there is room.
    pub(crate) queues_wait: bool,
}

impl Reader {
    /// Reads what is new in every queue.
    pub(crate) fn read(&mut self, machine: &Machine, ledger: &Ledger) {
        let store = &machine.process().store;
        let mut names: Vec<Queue> =
            store.queues().into_iter().map(|(topic, queue_id, _)| (topic.as_str().to_owned(), queue_id.0)).collect();
        // What waits is read before what comes from it.
        names.sort_by_key(|queue| (queue.0 != SCHEDULE_TOPIC, queue.clone()));
        self.note_ends(store);
        for queue in names {
            // A damaged topic or queue id may look like one of its own.
            let is_unsure = self.unsure.contains(&queue.0) || self.has_damage();
            if !self.queues.contains_key(&queue) && is_unsure {
                let min = store.queue_range(&queue.0, QueueId(queue.1)).unwrap_or_default().min.0;
                self.queues.insert(queue.clone(), vec![None; usize::try_from(min).unwrap()]);
            }
            let from = self.queues.get(&queue).map_or(0, Vec::len) as u64;
            let records = self.pull_from(store, &queue, from);
            for (at, record) in (from..).zip(records) {
                let sighting = record.and_then(|record| self.look(&queue, at, &record, machine, ledger));
                self.queues.entry(queue.clone()).or_default().push(sighting);
            }
        }
        // As long as queues wait for room their ends were not looked at.
        self.queues_lost &= self.queues_wait;
    }

    /// No queue ends before what was seen of it, but for reasons.
    fn note_ends(&mut self, store: &MessageStore) {
        let mut gone = Vec::new();
        let first = store.log_range().0;
        for (queue, seen) in &mut self.queues {
            let range = store.queue_range(&queue.0, QueueId(queue.1)).unwrap_or_default();
            let max = range.max.0;
            if self.queues_wait && max < seen.len() as u64 {
                continue;
            }
            // A rebuild of a queue does not bring back damaged records; at its end their offsets are given again, perhaps at once.
            let is_gone = |at: u64, sighting: &Option<Sighting>| {
                sighting.as_ref().is_none_or(|seen| is_hit(&self.hits, seen))
                    && is_given_again(store, queue, range, at, sighting.as_ref(), &self.hits)
            };
            while let Some(at) = (seen.len() as u64).checked_sub(1)
                && let Some(last) = seen.pop_if(|sighting| is_gone(at, sighting))
            {
                self.past.extend(last.map(|last| (queue.clone(), at, last)));
            }
            let is_other = |seen: &[Option<Sighting>]| {
                let len = seen.len() as u64;
                max < len || range.min.0 > len || !is_same(store, queue, range, seen)
            };
            let all_deleted = seen.iter().flatten().all(|seen| seen.position < first);
            let is_begun_anew = self.unsure.contains(&queue.0) && is_other(seen)
                || self.queues_lost && all_deleted && max < seen.len() as u64;
            if is_begun_anew {
                gone.push((queue.clone(), range.min.0));
            } else {
                assert!(max >= seen.len() as u64, "{queue:?} ends at {max}, but {} were seen: {seen:?}", seen.len());
            }
        }
        for (queue, from) in gone {
            self.end_queue(&queue);
            self.queues.insert(queue, vec![None; usize::try_from(from).unwrap()]);
        }
    }

    /// Reads every queue from its start again and compares with what was seen before.
    pub(crate) fn read_again(&mut self, machine: &Machine, ledger: &Ledger) {
        self.read(machine, ledger);
        let store = &machine.process().store;
        for (queue, seen) in &self.queues {
            let Some(range) = store.queue_range(&queue.0, QueueId(queue.1)) else {
                assert!(seen.iter().all(Option::is_none), "{queue:?} is gone");
                continue;
            };
            let records = self.pull_from(store, queue, range.min.0);
            assert_eq!(records.len() as u64, range.max.0 - range.min.0, "records of {queue:?}");
            for (at, record) in (range.min.0..).zip(records) {
                let Some(before) = &seen[usize::try_from(at).unwrap()] else { continue };
                if is_hit(&self.hits, before) {
                    continue;
                }
                let record = record.expect("a record that is not damaged is there");
                let now = (record.view().physical_offset(), crc(record.bytes()));
                assert!((before.position, before.bytes_crc) == now, "{queue:?} {at} was {before:?} and is {now:?}");
            }
        }
    }

    /// The power went: what was not durable may be gone.
    pub(crate) fn forget_unsynced(&mut self, durable: PhysicalOffset) {
        let is_durable = |sighting: &Sighting| sighting.end <= durable;
        for seen in self.queues.values_mut() {
            while seen.pop_if(|last| last.as_ref().is_some_and(|last| !is_durable(last))).is_some() {}
            assert!(seen.iter().flatten().all(is_durable));
        }
        self.past.retain(|(_, _, sighting)| is_durable(sighting));
    }

    /// A topic was deleted.
    pub(crate) fn topic_deleted(&mut self, topic: &str) {
        let queues: Vec<Queue> = self.queues.keys().filter(|queue| queue.0 == topic).cloned().collect();
        for queue in queues {
            self.end_queue(&queue);
        }
        self.unsure.remove(topic);
    }

    /// A topic was perhaps deleted.
    pub(crate) fn topic_perhaps_deleted(&mut self, topic: &str) {
        self.unsure.insert(topic.to_owned());
    }

    /// Nobody knows any more which topics were deleted: their queues may come back.
    pub(crate) fn deletions_lost(&mut self) {
        self.unsure.extend(self.past.iter().map(|(queue, ..)| queue.0.clone()));
    }

    /// Behind the last record of a queue that was seen.
    pub(crate) fn seen_to(&self, queue: &Queue) -> i64 {
        i64::try_from(self.queues.get(queue).map_or(0, Vec::len)).unwrap()
    }

    /// Whether a topic was perhaps deleted, or was and nobody knows of it any more.
    pub(crate) fn is_unsure(&self, topic: &str) -> bool {
        self.unsure.contains(topic)
    }

    fn end_queue(&mut self, queue: &Queue) {
        let seen = self.queues.remove(queue).unwrap_or_default();
        let seen = (0..).zip(seen).filter_map(|(at, sighting)| Some((queue.clone(), at, sighting?)));
        self.past.extend(seen);
    }

    /// Bytes of the log were damaged. Gives the messages that have a record there, each with whether it is one that waits.
    pub(crate) fn damaged(&mut self, range: Range<u64>) -> Vec<(Id, bool)> {
        let hit = [range.clone()];
        let sightings = self.all().filter(|(_, _, sighting)| is_hit(&hit, sighting));
        let found = sightings.map(|(queue, _, sighting)| (sighting.id, queue.0 == SCHEDULE_TOPIC)).collect();
        self.hits.push(range);
        found
    }

    /// Where the records begin that were seen.
    pub(crate) fn positions(&self) -> impl Iterator<Item = u64> {
        self.all().map(|(_, _, sighting)| sighting.position.0)
    }

    /// Whether a record lies where bytes were damaged.
    pub(crate) fn is_damaged(&self, sighting: &Sighting) -> bool {
        is_hit(&self.hits, sighting)
    }

    /// Whether bytes of a range were damaged.
    pub(crate) fn is_hit(&self, range: &Range<u64>) -> bool {
        self.hits.iter().any(|hit| hit.start < range.end && hit.end > range.start)
    }

    /// Whether anything is damaged.
    pub(crate) fn has_damage(&self) -> bool {
        !self.hits.is_empty()
    }

    /// Waiting records.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (&Queue, u64, &Sighting)> {
        self.all().filter(|(queue, ..)| queue.0 == SCHEDULE_TOPIC)
    }

    /// Markers of parked messages.
    pub(crate) fn parked(&self) -> impl Iterator<Item = (&Queue, u64, &Sighting)> {
        self.all().filter(|(queue, ..)| queue.0 == PARKING_TOPIC)
    }

    /// Records of real topics.
    pub(crate) fn delivered(&self) -> impl Iterator<Item = (&Queue, u64, &Sighting)> {
        self.all().filter(|(queue, ..)| !is_internal(&queue.0))
    }

    fn all(&self) -> impl Iterator<Item = (&Queue, u64, &Sighting)> {
        let past = self.past.iter().map(|(queue, at, sighting)| (queue, *at, sighting));
        let now = self.queues.iter().flat_map(|(queue, seen)| (0..).zip(seen).map(move |(at, seen)| (queue, at, seen)));
        past.chain(now.filter_map(|(queue, at, seen)| Some((queue, at, seen.as_ref()?))))
    }

    /// All records of a queue from an offset on, which must be there without a gap, unless damaged.
    fn pull_from(&self, store: &MessageStore, queue: &Queue, from: u64) -> Vec<Option<Record>> {
        let mut records = Vec::new();
        let mut at = from;
        loop {
            let (topic, queue_id) = (queue.0.as_str(), QueueId(queue.1));
            let offset = i64::try_from(at).unwrap();
            let pulled =
                store.pull(&PullQuery { topic, queue_id, offset, count_max: 1_000, bytes_max: 1 << 20 }, &|_| true);
            if at >= pulled.range.max.0 {
                return records;
            }
            let next = u64::try_from(pulled.next_offset).unwrap();
            if next == at && self.is_entry_hit(store, queue, at) {
                // Whoever pulls is held up by a page that cannot be read.
                records.push(None);
                at += 1;
                continue;
            }
            assert!(
                at >= pulled.range.min.0 && next > at,
                "a pull of {queue:?} at {at} of {:?}: {pulled:?}",
                pulled.range
            );
            let mut found: BTreeMap<u64, Record> = BTreeMap::new();
            for slice in pulled.records {
                let pulled = Records::new(slice).map(|record| record.expect("a pulled record can be read"));
                found.extend(pulled.map(|record| (record.view().physical_offset().0, record)));
            }
            while at < next {
                let entries =
                    store.queue_entries(topic, queue_id, QueueOffset(at), usize::try_from(next - at).unwrap());
                assert!(!entries.is_empty(), "{queue:?} has no entries from {at} on");
                for entry in entries {
                    let record = found.remove(&entry.position.0);
                    let excused = entry.is_blank() && self.has_damage() || {
                        let damaged = entry.position.0..entry.end().0;
                        self.hits.iter().any(|hit| hit.start < damaged.end && hit.end > damaged.start)
                    };
                    assert!(record.is_some() || excused, "a pull of {queue:?} gave nothing at {at}: {entry:?}");
                    records.push(record);
                    at += 1;
                }
            }
            assert!(found.is_empty(), "a pull of {queue:?} gave what is not in it: {found:?}");
        }
    }

    fn is_entry_hit(&self, store: &MessageStore, queue: &Queue, at: u64) -> bool {
        let entries = store.queue_entries(&queue.0, QueueId(queue.1), QueueOffset(at), 1);
        let is_hit = |range: Range<u64>| self.hits.iter().any(|hit| hit.start < range.end && hit.end > range.start);
        entries.first().is_some_and(|entry| is_hit(entry.position.0..entry.end().0))
    }

    /// What must hold for each record by itself; nothing is known of a damaged one.
    fn look(&self, queue: &Queue, at: u64, record: &Record, machine: &Machine, ledger: &Ledger) -> Option<Sighting> {
        let view = record.view();
        let number = view.properties().get(names::KEYS).and_then(|id| id.parse().ok());
        let id = number.and_then(|number| ledger.id_of(number, view.reconsume_times()));
        let mut sighting = Sighting {
            id: id.unwrap_or_default(),
            position: view.physical_offset(),
            end: view.end(),
            stored_at: view.stored_at(),
            reconsume_times: view.reconsume_times(),
            generation: generation(&view),
            keys: number.unwrap_or_default(),
            seen_at: (machine.elapsed, machine.forward),
            bytes_crc: crc(record.bytes()),
        };
        if is_hit(&self.hits, &sighting) {
            return None;
        }
        let source = origin_end(&view).map(|end| self.waiting().find(|(_, _, waits)| waits.end == end));
        if let Some(found) = source {
            let Some((_, _, waits)) = found else {
                panic!("{queue:?} {at} comes from nothing that waits: {sighting:?}")
            };
            sighting.id = waits.id;
            if queue.0 == PARKING_TOPIC {
                return Some(sighting);
            }
            if is_hit(&self.hits, waits) {
                // Only the body has a checksum.
                let body = ledger.message(sighting.id).body();
                assert!(view.body() == &body[..], "message {} was restored with a damaged body", sighting.id);
                return Some(sighting);
            }
        }
        assert!(id == Some(sighting.id), "{queue:?} {at} is no message that was sent: {sighting:?}");
        let message = ledger.message(sighting.id);
        let what = || format!("message {} in {queue:?} at {at}: {message:?}, {sighting:?}", sighting.id);
        assert_eq!(view.queue_offset().0, at, "queue offset of {}", what());
        assert!(view.body() == &message.body()[..], "body of {}", what());
        let store = &machine.process().store;
        if store.waits_for_sync() {
            assert!(sighting.end <= store.durable(), "not durable, but read: {}", what());
        }
        if queue.0 == SCHEDULE_TOPIC {
            assert_eq!(queue.1 + 1, message.level, "level of {}", what());
            return Some(sighting);
        }
        assert!(source.is_some() == (message.level > 0), "origin of {}", what());
        assert_eq!((&queue.0, queue.1), (&message.topic, message.queue_id), "queue of {}", what());
        let (seen, seen_forward) = sighting.seen_at;
        let (sent, sent_forward) = message.sent_at;
        // Where only the wall clock is left, a step of it counts as time.
        let waited = (seen - sent) + (seen_forward - sent_forward);
        assert!(waited >= message.delay, "read after {waited:?}: {}", what());
        Some(sighting)
    }
}

/// Whether a queue still holds what was seen of it, judged by the first record that both have.
fn is_same(store: &MessageStore, queue: &Queue, range: QueueRange, seen: &[Option<Sighting>]) -> bool {
    let both = (range.min.0..range.max.0).zip(seen.iter().skip(usize::try_from(range.min.0).unwrap()));
    let Some((at, before)) = both.filter_map(|(at, seen)| Some((at, seen.as_ref()?))).next() else { return true };
    let entries = store.queue_entries(&queue.0, QueueId(queue.1), QueueOffset(at), 1);
    entries.first().is_some_and(|entry| entry.position == before.position)
}

/// Whether the offset of a record that is damaged or was never seen belongs to no record any more, or to another one.
fn is_given_again(
    store: &MessageStore,
    queue: &Queue,
    range: QueueRange,
    at: u64,
    before: Option<&Sighting>,
    hits: &[Range<u64>],
) -> bool {
    if at < range.min.0 || at >= range.max.0 {
        return at >= range.max.0;
    }
    let entries = store.queue_entries(&queue.0, QueueId(queue.1), QueueOffset(at), 1);
    let Some(entry) = entries.first().filter(|entry| !entry.is_blank()) else { return false };
    match before {
        Some(before) => entry.position != before.position,
        None => !hits.iter().any(|hit| hit.start < entry.end().0 && hit.end > entry.position.0),
    }
}

/// Whether a topic is one of the broker's own.
pub(crate) fn is_internal(topic: &str) -> bool {
    [SCHEDULE_TOPIC, PARKING_TOPIC].contains(&topic)
}

/// Tells waiting records of a level that were stored while it had one delay from those before and after.
fn generation(view: &RecordView<'_>) -> u16 {
    u16::try_from(u64::try_from(view.prepared_offset()).unwrap_or(0) >> 48).unwrap()
}

/// Where the waiting record ends that a record was restored from.
fn origin_end(view: &RecordView<'_>) -> Option<PhysicalOffset> {
    let end = u64::try_from(view.prepared_offset()).unwrap_or(0) & ((1 << 48) - 1);
    (view.topic() != SCHEDULE_TOPIC && end > 0).then_some(PhysicalOffset(end))
}

fn is_hit(hits: &[Range<u64>], sighting: &Sighting) -> bool {
    hits.iter().any(|hit| hit.start < sighting.end.0 && hit.end > sighting.position.0)
}

fn crc(bytes: &Bytes) -> u32 {
    crc32fast::hash(bytes)
}
