//! Feeding what is derived from the log: queues, index, plugins and those who wait for messages.
//!
//! One round takes records in log order. First their queue and index entries are written, then plugins and listeners hear of them: whoever is
//! told of a message can read it.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use super::{
    ArrivalListener, Dispatched, Plugin, QueueEntry, StoreError,
    checkpoint::Derived,
    consume_queues::{ConsumeQueues, QueueFault},
    deletions::Deletions,
    index::Index,
    scan::Located,
};
use crate::model::{java_hash, names};

/// Where records are dispatched to.
pub(super) struct Dispatcher {
    pub(super) queues: ConsumeQueues,
    pub(super) index: Option<Index>,
    pub(super) plugins: Vec<Arc<dyn Plugin>>,
    pub(super) listener: OnceLock<Arc<dyn ArrivalListener>>,
    pub(super) deletions: Deletions,
    /// Something could not be written; it is tried again with the next round.
    failing: AtomicBool,
}

impl Dispatcher {
    pub(super) fn new(
        queues: ConsumeQueues,
        index: Option<Index>,
        plugins: Vec<Arc<dyn Plugin>>,
        deletions: Deletions,
    ) -> Self {
        Self { queues, index, plugins, listener: OnceLock::new(), deletions, failing: AtomicBool::new(false) }
    }

    /// Dispatches one round. A queue or an index that cannot be written does not hold up the others: it keeps what it could not write, and no
    /// checkpoint passes that.
    pub(super) fn round(&self, records: &[Located<'_>], replay: bool) {
        let mut tag_codes = Vec::with_capacity(records.len());
        let mut failure = None;
        for located in records {
            let tag_code = self.tag_code(located, replay);
            tag_codes.push(tag_code);
            failure = self.put(located, tag_code).err().or(failure);
        }
        failure = first_error(self.queues.write_round()).or(failure);
        failure = self.index.as_ref().and_then(|index| index.write_round().err()).or(failure);
        self.report(failure);

        for Located { position, record } in records {
            for plugin in &self.plugins {
                plugin.dispatched(&Dispatched { position: *position, record, replay });
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
        self.failing.load(Ordering::Relaxed)
    }

    /// Logs the first failure of a row, and its end.
    fn report(&self, failure: Option<StoreError>) {
        let was_failing = self.failing.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(error) if !was_failing => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot write a queue or an index; trying again"
                );
            }
            None if was_failing => tracing::info!("queues and index can be written again"),
            _ => {}
        }
    }

    /// What stands in the last field of a record's queue entry.
    pub(super) fn tag_code(&self, Located { position, record }: &Located<'_>, replay: bool) -> i64 {
        let existing = || {
            let queue = self.queues.get(record.topic(), record.queue_id())?;
            queue.existing(record.queue_offset(), *position, record.total_bytes())
        };
        let existing = if replay && !self.plugins.is_empty() { existing() } else { None };
        let by_plugin = self.plugins.iter().find_map(|plugin| plugin.tag_code(record, existing));
        by_plugin.unwrap_or_else(|| record.properties().get(names::TAGS).map_or(0, |tag| java_hash(tag).into()))
    }

    /// Prepares the entries of one record.
    fn put(&self, located: &Located<'_>, tag_code: i64) -> Result<(), StoreError> {
        let Located { position, record } = located;
        if self.is_queued(located) {
            let entry = QueueEntry { position: *position, bytes: record.total_bytes(), tag_code };
            self.queues.put(record.topic(), record.queue_id(), record.queue_offset(), entry)?;
        }
        let Some(index) = &self.index else { return Ok(()) };
        let properties = record.properties();
        let keys = properties.get(names::KEYS).into_iter().flat_map(|keys| keys.split(' '));
        for key in properties.get(names::UNIQ_KEY).into_iter().chain(keys).filter(|key| !key.is_empty()) {
            index.put(record.topic(), key, *position, record.stored_at())?;
        }
        Ok(())
    }
}

/// The first of several faults of queues.
pub(super) fn first_error(faults: Vec<QueueFault>) -> Option<StoreError> {
    faults.into_iter().next().map(|fault| fault.error)
}
