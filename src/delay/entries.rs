//! The queue entries of waiting records, read in blocks: to find which of them a restored record names.
//!
//! Restores come in queue order, so nearly every look-up is answered by the block at hand. Belongs to the dispatching thread.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    ops::Range,
};

use super::{DelayLevel, stamp::Generation};
use crate::{
    model::{PhysicalOffset, QueueOffset, SCHEDULE_TOPIC},
    store::{MessageStore, QueueEntry},
};

/// Entries read at once.
const BLOCK_ENTRIES: usize = 512;

/// Blocks of entries, one for each level.
#[derive(Debug, Default)]
pub(super) struct Entries {
    blocks: BTreeMap<DelayLevel, Block>,
    /// Restored records whose entries could not be read yet, in the order of the log.
    pub(super) unresolved: VecDeque<Origin>,
}

/// What a restored record says of the waiting one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    pub(super) level: DelayLevel,
    pub(super) generation: Generation,
    /// Where the waiting record ends.
    pub(super) end: PhysicalOffset,
    /// Where the restored record begins.
    pub(super) restored_at: PhysicalOffset,
    /// Whether it was found during recovery.
    pub(super) replay: bool,
}

#[derive(Debug, Default)]
struct Block {
    first: u64,
    entries: Vec<QueueEntry>,
}

impl Block {
    fn at(&self, queue_offset: u64) -> Option<QueueEntry> {
        self.entries.get(usize::try_from(queue_offset.checked_sub(self.first)?).ok()?).copied()
    }
}

impl Entries {
    /// The entry at a queue offset, if it was read already.
    pub(super) fn known(&self, level: DelayLevel, queue_offset: u64) -> Option<QueueEntry> {
        self.blocks.get(&level)?.at(queue_offset)
    }

    /// The entry at a queue offset, if the queue has it.
    ///
    /// # Errors
    /// As the directory gives them: a later try may succeed.
    pub(super) fn at(
        &mut self,
        store: &MessageStore,
        level: DelayLevel,
        queue_offset: u64,
    ) -> io::Result<Option<QueueEntry>> {
        let block = self.blocks.entry(level).or_default();
        if let Some(entry) = block.at(queue_offset) {
            return Ok(Some(entry));
        }
        let entries = try_read(store, level, queue_offset, BLOCK_ENTRIES)?;
        *block = Block { first: queue_offset, entries };
        Ok(block.entries.first().copied())
    }

    /// The entry within `range` whose record ends at `end`: positions ascend within a queue.
    ///
    /// # Errors
    /// As the directory gives them: a later try may succeed.
    pub(super) fn ending_at(
        store: &MessageStore,
        level: DelayLevel,
        range: Range<u64>,
        end: PhysicalOffset,
    ) -> io::Result<Option<(u64, QueueEntry)>> {
        let Range { start: mut low, end: mut high } = range;
        while low < high {
            let middle = low + (high - low) / 2;
            let Some(entry) = try_read(store, level, middle, 1)?.first().copied() else { return Ok(None) };
            match end_of(&entry).cmp(&end) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(Some((middle, entry))),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    /// Forgets what was read of a level: its queue changed.
    pub(super) fn forget(&mut self, level: DelayLevel) {
        self.blocks.remove(&level);
    }
}

/// The position behind the record of an entry.
pub(super) fn end_of(entry: &QueueEntry) -> PhysicalOffset {
    entry.position.plus(u64::from(entry.bytes))
}

/// The entries of a level's queue; fewer at the end of the queue or of a file.
///
/// # Errors
/// As the directory gives them: a later try may succeed.
pub(super) fn try_read(
    store: &MessageStore,
    level: DelayLevel,
    from: u64,
    count_max: usize,
) -> io::Result<Vec<QueueEntry>> {
    store.try_queue_entries(SCHEDULE_TOPIC, level.queue_id(), QueueOffset(from), count_max)
}

/// As [`try_read`]; none if they cannot be read.
pub(super) fn read(store: &MessageStore, level: DelayLevel, from: u64, count_max: usize) -> Vec<QueueEntry> {
    store.queue_entries(SCHEDULE_TOPIC, level.queue_id(), QueueOffset(from), count_max)
}
