//! Feeding what is derived from the log: queues, index, plugins and those who wait for messages.
//!
//! One round takes records in log order. First their queue and index entries are written, then plugins and listeners hear of them: whoever is
//! told of a message can read it.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::{
    ArrivalListener, Dispatched, FailureRow, Plugin, QueueEntry, StoreError,
    checkpoint::Derived,
    consume_queue::ConsumeQueue,
    consume_queues::{ConsumeQueues, QueueFault},
    deletions::Deletions,
    index::Index,
    scan::Located,
};
use crate::{
    env::Clock,
    model::{PhysicalOffset, java_hash_on, names, pieces},
    record::RecordView,
};

/// Shows the records of the log from a position on to somebody, and says how far it came.
pub(super) type Walk<'a> =
    &'a dyn Fn(PhysicalOffset, &mut dyn FnMut(&Located<'_>)) -> Result<PhysicalOffset, StoreError>;

/// Where records are dispatched to.
pub(super) struct Dispatcher {
    pub(super) queues: ConsumeQueues,
    pub(super) index: Option<Index>,
    pub(super) plugins: Vec<Arc<dyn Plugin>>,
    pub(super) listener: OnceLock<Arc<dyn ArrivalListener>>,
    pub(super) deletions: Deletions,
    /// Something could not be written; it is tried again with the next round.
    failing: AtomicBool,
    /// Perhaps a queue or the index misses records that came while it could not be written.
    aside: AtomicBool,
    failures: AtomicU64,
    rebuilt: AtomicU64,
    row: FailureRow,
    clock: Arc<dyn Clock>,
}

impl Dispatcher {
    pub(super) fn new(
        queues: ConsumeQueues,
        index: Option<Index>,
        plugins: Vec<Arc<dyn Plugin>>,
        deletions: Deletions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            queues,
            index,
            plugins,
            listener: OnceLock::new(),
            deletions,
            failing: AtomicBool::new(false),
            aside: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            rebuilt: AtomicU64::new(0),
            row: FailureRow::new("write a queue or an index"),
            clock,
        }
    }

    /// Dispatches one round. A queue or an index that cannot be written does not hold up the others: it keeps what it could not write, and no
    /// checkpoint passes that.
    pub(super) fn round(&self, records: &[Located<'_>], replay: bool) {
        let mut tag_codes = Vec::with_capacity(records.len());
        let (mut failure, mut last) = (None, None);
        for located in records {
            let names = Names::of(&located.record);
            let tag_code = self.tag_code_of(located, replay, &names);
            tag_codes.push(tag_code);
            failure = self.put(located, &names, tag_code, &mut last).err().or(failure);
        }
        failure = first_error(self.queues.write_round()).or(failure);
        failure = self.index.as_ref().and_then(|index| index.write_round().err()).or(failure);
        self.report(failure.as_ref());

        if !self.plugins.is_empty() {
            let dispatched: Vec<Dispatched<'_>> = records
                .iter()
                .map(|Located { position, record }| Dispatched { position: *position, record, replay })
                .collect();
            for plugin in &self.plugins {
                plugin.dispatched(&dispatched);
            }
        }
        for plugin in &self.plugins {
            plugin.round_ended();
        }
        if let Some(listener) = self.listener.get() {
            for (located, tag_code) in records.iter().zip(tag_codes) {
                let record = &located.record;
                if self.is_queued(located) {
                    listener.arrived(record.topic(), record.queue_id(), record.queue_offset().plus(1), tag_code);
                }
            }
        }
    }

    /// Whether a record has an entry in a queue.
    fn is_queued(&self, Located { position, record }: &Located<'_>) -> bool {
        record.sys_flag().is_queued() && !self.deletions.covers(record.topic(), *position)
    }

    /// How much there is in queues and index now.
    pub(super) fn derived(&self) -> Derived {
        let (index_end, index_files) =
            self.index.as_ref().map_or((0, 0), |index| (index.end().1.0, index.file_count()));
        let mut derived = Derived { index_end, index_files, ..Derived::default() };
        for queue in self.queues.all() {
            let end = queue.range().max.0;
            derived.queues += u64::from(end > 0);
            derived.entries += end;
            if queue.end().is_some() {
                derived.first_entries += queue.first_stored().0;
            }
        }
        derived
    }

    /// Whether something waits to be written again.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed) || self.has_aside()
    }

    /// Whether a queue or the index may miss records.
    pub(super) fn has_aside(&self) -> bool {
        self.aside.load(Ordering::Relaxed)
    }

    /// Since the start: how often queues or index began to fail, how many were given what they missed, and how many are behind now.
    pub(super) fn faults(&self) -> [u64; 3] {
        let queues = self.queues.all().iter().filter(|queue| queue.unwritten_from().is_some()).count() as u64;
        let index = self.index.as_ref().is_some_and(|index| index.unwritten_from().is_some());
        [self.failures.load(Ordering::Relaxed), self.rebuilt.load(Ordering::Relaxed), queues + u64::from(index)]
    }

    /// Gives queues and index that were set aside, and can be written again, what they missed before `to`: `walk` shows the records from a
    /// position on and says how far it came. The caller keeps new records away meanwhile.
    pub(super) fn catch_up(&self, to: PhysicalOffset, walk: Walk<'_>) -> Result<(), StoreError> {
        let mut waits = false;
        let step = |came: PhysicalOffset| (came < to).then_some(came);
        for queue in self.queues.all() {
            let Some(from) = queue.missed_from() else {
                waits |= queue.unwritten_from().is_some();
                continue;
            };
            let mut outcome = Ok(());
            let came = walk(from, &mut |located: &Located<'_>| {
                let Located { position, record } = located;
                let is_its = record.topic() == &**queue.topic() && record.queue_id() == queue.queue_id();
                if is_its && self.is_queued(located) && outcome.is_ok() {
                    let entry = QueueEntry {
                        position: *position,
                        bytes: record.total_bytes(),
                        tag_code: self.tag_code(located, false),
                    };
                    outcome = queue.put_missed(record.queue_offset(), entry).map_err(|error| (*position, error));
                }
            })?;
            let next = outcome.as_ref().map_or_else(|(position, _)| Some(*position), |()| step(came));
            let written = queue.write_round();
            queue.caught_up(next);
            waits |= next.is_some() || written.is_err();
            if next.is_none() {
                self.rebuilt.fetch_add(1, Ordering::Relaxed);
                let (topic, queue_id) = (queue.topic(), queue.queue_id().0);
                tracing::info!(%topic, queue_id, physical_offset = from.0, "a queue that could not be written has all its entries again");
            }
        }
        if let Some(index) = &self.index {
            if let Some(from) = index.missed_from() {
                index.caught_up(None);
                let mut outcome = Ok(());
                let came = walk(from, &mut |located: &Located<'_>| {
                    outcome = std::mem::replace(&mut outcome, Ok(()))
                        .and_then(|()| Names::of(&located.record).put(index, located));
                });
                let next = came.as_ref().map_or(Some(from), |came| step(*came));
                // If it was set aside anew that stands.
                if outcome.is_ok() {
                    index.caught_up(next);
                }
                waits |= next.is_some() || index.write_round().is_err();
                came?;
            } else {
                waits |= index.unwritten_from().is_some();
            }
        }
        self.aside.store(waits, Ordering::Relaxed);
        Ok(())
    }

    /// The first record that a queue or the index misses since it cannot be written, and the folder of that.
    pub(super) fn unwritten_from(&self) -> Option<(PhysicalOffset, String)> {
        let by_index = self.index.as_ref().and_then(|index| Some((index.unwritten_from()?, index.display_folder())));
        self.queues.unwritten_from().into_iter().chain(by_index).min()
    }

    /// Takes note of what became of writing, and says it when it is time to.
    pub(super) fn report(&self, failure: Option<&StoreError>) {
        let was_failing = self.failing.swap(failure.is_some(), Ordering::Relaxed);
        if failure.is_some() && !was_failing {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        let outcome = failure.map_or(Ok(()), |error| Err(error as &dyn std::error::Error));
        self.row.attempted(outcome, self.clock.since_boot(), || {
            self.unwritten_from().map_or_else(|| "consumequeue".to_owned(), |(_, path)| path)
        });
    }

    /// What stands in the last field of a record's queue entry.
    pub(super) fn tag_code(&self, located: &Located<'_>, replay: bool) -> i64 {
        self.tag_code_of(located, replay, &Names::of(&located.record))
    }

    fn tag_code_of(&self, Located { position, record }: &Located<'_>, replay: bool, names: &Names<'_>) -> i64 {
        let existing = || {
            let queue = self.queues.get(record.topic(), record.queue_id())?;
            queue.existing(record.queue_offset(), *position, record.total_bytes())
        };
        let existing = if replay && !self.plugins.is_empty() { existing() } else { None };
        let by_plugin = self.plugins.iter().find_map(|plugin| plugin.tag_code(record, existing));
        by_plugin.unwrap_or_else(|| names.tag.and_then(|tag| java_hash_on(0, tag)).unwrap_or(0).into())
    }

    /// Prepares the entries of one record.
    fn put(
        &self,
        located: &Located<'_>,
        names: &Names<'_>,
        tag_code: i64,
        last: &mut Option<Arc<ConsumeQueue>>,
    ) -> Result<(), StoreError> {
        let Located { position, record } = located;
        let mut queued = Ok(());
        if self.is_queued(located) {
            let entry = QueueEntry { position: *position, bytes: record.total_bytes(), tag_code };
            queued = self.queues.put(last, record.topic(), record.queue_id(), record.queue_offset(), entry);
        }
        let indexed = self.index.as_ref().map_or(Ok(()), |index| names.put(index, located));
        let put = queued.and(indexed);
        if put.is_err() {
            self.aside.store(true, Ordering::Relaxed);
        }
        put
    }
}

/// What the properties of a record say of where it is found.
struct Names<'a> {
    tag: Option<&'a [u8]>,
    unique_key: Option<&'a [u8]>,
    keys: Option<&'a [u8]>,
}

impl<'a> Names<'a> {
    fn of(record: &RecordView<'a>) -> Self {
        let wanted = [names::TAGS, names::UNIQ_KEY, names::KEYS];
        let [tag, unique_key, keys] = pieces::values(record.properties().as_bytes(), wanted);
        Self { tag, unique_key, keys }
    }

    /// Prepares the index entries of its record.
    fn put(&self, index: &Index, Located { position, record }: &Located<'_>) -> Result<(), StoreError> {
        if self.unique_key.is_none() && self.keys.is_none() {
            return Ok(());
        }
        let is_text = |text: &&[u8]| text.is_ascii() || str::from_utf8(text).is_ok();
        let keys = self.keys.filter(is_text).into_iter().flat_map(|keys| keys.split(|&byte| byte == b' '));
        let keys = self.unique_key.filter(is_text).into_iter().chain(keys).filter(|key| !key.is_empty());
        index.put(record.topic(), keys, *position, record.stored_at())
    }
}

/// The first of several faults of queues.
pub(super) fn first_error(faults: Vec<QueueFault>) -> Option<StoreError> {
    faults.into_iter().next().map(|fault| fault.error)
}
