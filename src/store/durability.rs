//! How far the log is durable, and who waits for it.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use super::{DurableCallback, StoreError, commit_log::CommitLog, health::Health};
use crate::{env::Directory, model::PhysicalOffset, mutation::Mutation};

/// The durable position and those who wait for it. Positions only grow.
#[derive(Default)]
pub(super) struct Durability {
    durable: AtomicU64,
    waiters: Mutex<Vec<(PhysicalOffset, DurableCallback)>>,
    syncing: Mutex<()>,
    idle: AtomicBool,
}

impl Durability {
    /// Says during recovery how far the log has been found sound; recovery syncs it before anything is appended.
    pub(super) fn recovered_to(&self, position: PhysicalOffset) {
        self.durable.store(position.0, Ordering::SeqCst);
    }

    /// Everything before this position is durable.
    pub(super) fn durable(&self) -> PhysicalOffset {
        PhysicalOffset(self.durable.load(Ordering::SeqCst))
    }

    /// Calls back when `end` is durable, or when it is known never to be.
    pub(super) fn wait(&self, end: PhysicalOffset, callback: DurableCallback, health: &Health) {
        {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            if end > self.durable() && !Mutation::AnswerBeforeDurable.is_on() && health.failure().is_none() {
                waiters.push((end, callback));
                return;
            }
        }
        callback(outcome(health));
    }

    /// Whether the flushing thread sleeps, or is about to, until it is woken.
    pub(super) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::SeqCst)
    }

    /// Lets the flushing thread sleep until it is woken, unless `all_synced` no longer holds. Whoever appends looks at [`Durability::is_idle`]
    /// after it has published what it wrote: one of the two sees the other.
    pub(super) fn park_idle(&self, all_synced: impl Fn() -> bool) {
        self.idle.store(true, Ordering::SeqCst);
        if all_synced() && !self.is_awaited() {
            thread::park();
        }
        self.idle.store(false, Ordering::SeqCst);
    }

    /// Whether somebody waits.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiters.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Syncs what is written now and releases those who waited for it: one sync for all of them.
    pub(super) fn sync(&self, log: &CommitLog, directory: &dyn Directory, health: &Health) -> Result<(), StoreError> {
        let result = {
            let _one_at_a_time = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
            self.sync_written(log, directory, health)
        };
        let released: Vec<DurableCallback> = {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            let durable = self.durable();
            let all = health.failure().is_some();
            waiters.extract_if(.., |(end, _)| all || *end <= durable).map(|(_, callback)| callback).collect()
        };
        for callback in released {
            callback(outcome(health));
        }
        result
    }

    fn sync_written(&self, log: &CommitLog, directory: &dyn Directory, health: &Health) -> Result<(), StoreError> {
        if let Some(reason) = health.failure() {
            return Err(StoreError::Failed { reason: reason.to_owned() });
        }
        let (from, to) = (self.durable(), log.written());
        if to <= from {
            return Ok(());
        }
        for segment in log.segments().iter().filter(|segment| segment.base < to && segment.end() > from) {
            if let Err(error) = segment.file.sync()
                && !Mutation::TrustFailedSync.is_on()
            {
                // A later sync may succeed while the pages are gone: nothing may be trusted from here on.
                let reason = format!("cannot sync {}: {error}", directory.display(&segment.path));
                health.fail(&reason);
                return Err(StoreError::Failed { reason });
            }
        }
        self.durable.store(to.0, Ordering::SeqCst);
        Ok(())
    }
}

fn outcome(health: &Health) -> Result<(), StoreError> {
    health.failure().map_or(Ok(()), |reason| Err(StoreError::Failed { reason: reason.to_owned() }))
}
