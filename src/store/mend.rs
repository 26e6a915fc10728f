//! Building again single queue entries that disagree with the log.
//!
//! Entries have no checksum. Whoever finds one that does not lead to the record of its queue and offset asks here: the record must lie between
//! those of the nearest good neighbours, so only that part of the log is looked through. What is found is written into the queue. What is not
//! (the record itself is damaged, or gone) is remembered, so that nobody looks for it again.

use std::{
    collections::HashSet,
    io,
    sync::{Mutex, PoisonError, atomic::Ordering},
    thread,
    time::Duration,
};

use super::{
    MessageStore, QueueEntry,
    consume_queue::ConsumeQueue,
    scan::{Found, Located, look, next_sound},
};
use crate::{
    model::{PhysicalOffset, QueueId, QueueOffset, Topic},
    record::RecordView,
};

/// Most neighbours looked at on each side for a good one.
const NEIGHBOURS_MAX: u64 = 4096;
/// Most bytes of log looked through for one entry.
pub const MEND_BYTES_MAX: u64 = 4 << 30;
/// How often, and after which pauses, it is tried to be the one who writes queues.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_micros(100);
/// Most entries remembered as beyond repair.
const HOPELESS_MAX: usize = 1 << 16;

/// Entries that cannot be built again.
#[derive(Default)]
pub(super) struct Hopeless(Mutex<HashSet<(Topic, QueueId, u64)>>);

/// What became of an entry that disagrees with the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mended {
    /// It was written anew; the entry is the right one now.
    Entry(QueueEntry),
    /// The log has no such record.
    Hopeless,
    /// Nobody could write now: a later try may succeed.
    Later,
}

/// Whether an entry leads to the record of its queue and offset.
pub(super) fn leads_to(record: RecordView<'_>, queue: &ConsumeQueue, at: QueueOffset, entry: &QueueEntry) -> bool {
    record.total_bytes() == entry.bytes
        && record.physical_offset() == entry.position
        && record.queue_offset() == at
        && record.queue_id() == queue.queue_id()
        && record.topic() == queue.topic().as_str()
}

impl MessageStore {
    /// Builds the entry of a queue offset again, which was found not to lead to its record.
    ///
    /// # Errors
    /// As the directory gives them: a later try may succeed.
    pub fn mend_entry(&self, topic: &str, queue_id: QueueId, at: QueueOffset) -> io::Result<Mended> {
        let queue = self.dispatcher.queues.get(topic, queue_id);
        queue.map_or(Ok(Mended::Hopeless), |queue| self.mend(&queue, at))
    }

    pub(super) fn mend(&self, queue: &ConsumeQueue, at: QueueOffset) -> io::Result<Mended> {
        let name = (queue.topic().clone(), queue.queue_id(), at.0);
        if self.hopeless.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&name) {
            return Ok(Mended::Hopeless);
        }
        // Only the dispatcher writes queues; and it may be the dispatching thread itself that asks.
        let mut tries = (0..TRIES).map(|_| self.dispatching.try_lock());
        let Some(_dispatching) = tries.find_map(|tried| tried.map_err(|_| thread::sleep(PAUSE)).ok()) else {
            return Ok(Mended::Later);
        };
        let found = self.find(queue, at)?;
        let Some(entry) = found else {
            let mut hopeless = self.hopeless.0.lock().unwrap_or_else(PoisonError::into_inner);
            if hopeless.len() < HOPELESS_MAX && hopeless.insert(name) {
                tracing::error!(
                    topic = %queue.topic(), queue_id = queue.queue_id().0, queue_offset = at.0,
                    "a queue entry leads to no record, and the log has none for it"
                );
            }
            return Ok(Mended::Hopeless);
        };
        if queue.put(at, entry).and_then(|()| queue.write_round()).is_err() {
            return Ok(Mended::Later);
        }
        self.mended_entries.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            topic = %queue.topic(), queue_id = queue.queue_id().0, queue_offset = at.0, physical_offset = entry.position.0,
            "a queue entry that did not lead to its record was built again from the log"
        );
        Ok(Mended::Entry(entry))
    }

    /// Looks for the record of a queue offset between those of its good neighbours.
    fn find(&self, queue: &ConsumeQueue, at: QueueOffset) -> io::Result<Option<QueueEntry>> {
        let range = queue.range();
        let good = |offset: u64| -> io::Result<Option<QueueEntry>> {
            let Some(entry) = queue.entry(QueueOffset(offset))?.filter(|entry| !entry.is_blank()) else {
                return Ok(None);
            };
            let record = self.log.record_at(entry.position, self.readable())?;
            Ok(record.filter(|record| leads_to(record.view(), queue, QueueOffset(offset), &entry)).map(|_| entry))
        };
        let mut from = self.log.first();
        for offset in (range.min.0.max(at.0.saturating_sub(NEIGHBOURS_MAX))..at.0).rev() {
            if let Some(before) = good(offset)? {
                from = before.end();
                break;
            }
        }
        let mut to = PhysicalOffset(self.dispatched.load(Ordering::Acquire));
        for offset in at.0 + 1..range.max.0.min(at.0 + NEIGHBOURS_MAX) {
            if let Some(behind) = good(offset)? {
                to = behind.position;
                break;
            }
        }
        let to = to.min(from.plus(MEND_BYTES_MAX));
        let is_it = |record: RecordView<'_>| {
            record.topic() == queue.topic().as_str()
                && record.queue_id() == queue.queue_id()
                && record.queue_offset() == at
                && record.sys_flag().is_queued()
        };
        while from < to {
            let Some(segment) = self.log.segment_at(from) else { return Ok(None) };
            let visible = usize::try_from(to.min(segment.end()).since(from)).unwrap_or(usize::MAX);
            let sight = segment.sight(from, visible)?;
            let bytes = &sight.bytes;
            let mut start = 0;
            while start < visible {
                let position = from.plus(start as u64);
                match look(&bytes[start..], position, segment.end().since(position), false) {
                    Found::Record(record) if is_it(record) && record.body_is_sound() => {
                        sight.check()?;
                        let located = Located { position, record };
                        let tag_code = self.dispatcher.tag_code(&located, false);
                        return Ok(Some(QueueEntry { position, bytes: record.total_bytes(), tag_code }));
                    }
                    Found::Record(record) => start += record.total_bytes() as usize,
                    Found::SegmentEnd => start = visible,
                    Found::Bad => start += next_sound(&bytes[start..], position).unwrap_or(visible - start),
                }
            }
            sight.check()?;
            from = from.plus(visible as u64);
        }
        Ok(None)
    }
}
