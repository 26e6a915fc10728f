//! Deleting old segments: by age, and by disk use; never what a plugin pins, never the newest.
//!
//! | disk use | what happens |
//! | --- | --- |
//! | any | in the hours of `deleteWhen`, segments older than `fileReservedTime` go |
//! | above `diskMaxUsedSpaceRatio` | expired segments go at any hour |
//! | above `diskSpaceCleanForciblyRatio` | the oldest segments go whatever their age |
//! | above `diskSpaceWarningLevelRatio` | also, sends are refused until there is room again |
//!
//! Age is the time since a segment's file was last changed, by the wall clock, as in RocketMQ.

use std::{
    sync::{PoisonError, atomic::Ordering},
    time::Duration,
};

use super::{MessageStore, StoreError, dispatch::first_error};
use crate::{
    model::{PhysicalOffset, Timestamp},
    mutation::Mutation,
};

impl MessageStore {
    /// Looks at the disk and deletes what retention allows; gives the number of deleted segments.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn retain_once(&self) -> Result<usize, StoreError> {
        self.room.look(self);
        let folder = &self.options.commit_log_folder;
        let space = self.env.directory.space_of(folder);
        let space = space.map_err(|source| self.io_error("ask for the free space of", folder, source))?;
        let used = space.used_percent();

        let forced = used > self.options.disk_clean_percent;
        if !forced && used <= self.options.disk_used_max_percent && !self.is_delete_hour() {
            return Ok(0);
        }
        let expired = self.expired_segments(forced)?;
        if expired == 0 {
            return Ok(0);
        }

        // What pins a segment is judged by what was dispatched. Once that is durable, and the checkpoint knows of it, it stays true.
        let pins = self.pinned();
        let pinned = pins.map(|(_, pinned)| pinned).filter(|_| !Mutation::NoPin.is_on());
        let durable = if Mutation::PinEndsBeforeSync.is_on() {
            PhysicalOffset(u64::MAX)
        } else {
            self.checkpoint_once()?;
            self.checkpoint_needs_from()
        };
        let keep_from = durable.min(pinned.unwrap_or(PhysicalOffset(u64::MAX)));
        let mut deleted = 0;
        while deleted < expired && self.log.segments().first().is_some_and(|oldest| oldest.end() <= keep_from) {
            let removed = self.log.remove_oldest();
            let Some(segment) = removed
                .map_err(|source| self.io_error("remove a segment of", &self.options.commit_log_folder, source))?
            else {
                break;
            };
            deleted += 1;
            tracing::info!(segment = %segment.base, used_percent = used, forced, "segment deleted");
        }
        if deleted < expired {
            let (plugin, pinned) = pins.map_or(("", PhysicalOffset::ZERO), |(plugin, pinned)| (plugin, pinned));
            // Once for each state of things, not once for each look.
            if self.pin_logged.swap(pinned.0 + 1, Ordering::Relaxed) != pinned.0 + 1 {
                let bytes = self.log.written().since(pinned);
                let kept = expired - deleted;
                tracing::info!(
                    by = plugin,
                    physical_offset = pinned.0,
                    bytes,
                    kept,
                    "old segments are kept: undelivered messages pin them"
                );
            }
        }
        if deleted > 0 {
            self.room.look(self);
            first_error(self.dispatcher.queues.set_min_position(self.log.first())).map_or(Ok(()), Err)?;
            if let Some(index) = &self.dispatcher.index {
                index.set_min_position(self.log.first())?;
            }
            // What is missing from now on was deleted, not lost.
            self.checkpoint_once()?;
        }
        Ok(deleted)
    }

    /// From where on the last checkpoint needs the log: from the record at its end, by which the next start knows that it belongs to this log.
    fn checkpoint_needs_from(&self) -> PhysicalOffset {
        let checkpoint = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        let last = checkpoint.as_ref().and_then(|checkpoint| checkpoint.last_record);
        last.map_or(PhysicalOffset(self.checkpointed.load(Ordering::Acquire)), |last| PhysicalOffset(last.position))
    }

    /// From where on what must be delivered keeps the log, and for which plugin.
    pub(super) fn pinned(&self) -> Option<(&'static str, PhysicalOffset)> {
        let pins = self.dispatcher.plugins.iter().filter_map(|plugin| Some((plugin.name(), plugin.pinned_from()?)));
        pins.min_by_key(|(_, pinned)| *pinned)
    }

    /// How many of the oldest segments retention could delete now, whatever their age: those that hold nothing that waits, and not the record at the
    /// end of a checkpoint.
    pub(super) fn deletable_segments(&self) -> u64 {
        let pinned = self.pinned().map(|(_, pinned)| pinned);
        let dispatched = PhysicalOffset(self.dispatched.load(Ordering::Acquire));
        let segments = self.log.segments();
        let is_free = |end: PhysicalOffset| end < dispatched && pinned.is_none_or(|pinned| end <= pinned);
        let old = segments[..segments.len().saturating_sub(1)].iter().take_while(|segment| is_free(segment.end()));
        old.count() as u64
    }

    /// How many of the oldest segments may be deleted by age, or by number if `forced`. The newest never is.
    fn expired_segments(&self, forced: bool) -> Result<usize, StoreError> {
        let segments = self.log.segments();
        let candidates = segments.len().saturating_sub(1).min(self.options.delete_batch_max);
        if forced {
            return Ok(candidates);
        }
        let folder = &self.options.commit_log_folder;
        let entries = self.env.directory.list(folder).map_err(|source| self.io_error("list", folder, source))?;
        let now = self.env.clock.wall();
        let is_expired = |base: PhysicalOffset| {
            let name = super::segment::Segment::name(base);
            let changed = entries.iter().find(|entry| entry.name == name).map(|entry| Timestamp(entry.modified_ms));
            changed.is_some_and(|changed| now.since(changed) >= self.options.reserved_time)
        };
        Ok(segments[..candidates].iter().take_while(|segment| is_expired(segment.base)).count())
    }

    /// Whether this is one of the hours in which expired segments go, in the machine's local time.
    fn is_delete_hour(&self) -> bool {
        let day = Duration::from_secs(24 * 3600).as_millis() as i64;
        let local = self.env.clock.wall().0 + i64::from(self.env.clock.utc_offset_seconds()) * 1000;
        let hour = local.rem_euclid(day) / 3_600_000;
        self.options.delete_when.iter().any(|&wanted| i64::from(wanted) == hour)
    }
}
