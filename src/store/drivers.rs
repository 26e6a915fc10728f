//! The threads of a store: loops around its single steps.
//!
//! - **dispatch** runs [`MessageStore::dispatch_round`] while there is something to read.
//! - **flush** syncs: at once when somebody waits or under SYNC_FLUSH, else in intervals; it sleeps without wake-ups while all is synced.
//! - **upkeep** writes checkpoints, follows the wall clock, makes the next segment ahead of time, and runs the retention.
//!
//! Each sleeps by parking and is woken by unparking, which costs next to nothing while it is awake.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use super::{FailureRow, FlushPolicy, MessageStore, StoreError, threads::spawn};
use crate::model::PhysicalOffset;

/// Bytes of log that one dispatch round takes at most.
const ROUND_BYTES: u64 = 1 << 20;
/// Longest time between two looks at the wall clock.
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);
/// First pause after a failed round or sync; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Pause between two rounds of upkeep while there is no room, or something cannot be written.
const PAUSE_PRESSED: Duration = Duration::from_secs(1);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The threads of a store.
#[derive(Default)]
pub(super) struct Drivers {
    stopping: AtomicBool,
    dispatcher: OnceLock<Thread>,
    flusher: OnceLock<Thread>,
    upkeep: OnceLock<Thread>,
    spare_for: AtomicU64,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Drivers {
    /// Starts the threads.
    pub(super) fn start(&self, store: &Arc<MessageStore>) -> Result<(), StoreError> {
        self.spawn("latermq-dispatch", store, &self.dispatcher, dispatch)?;
        self.spawn("latermq-flush", store, &self.flusher, flush)?;
        self.spawn("latermq-upkeep", store, &self.upkeep, upkeep)
    }

    fn spawn(
        &self,
        name: &'static str,
        store: &Arc<MessageStore>,
        slot: &OnceLock<Thread>,
        body: fn(&MessageStore),
    ) -> Result<(), StoreError> {
        let weak: Weak<MessageStore> = Arc::downgrade(store);
        let handle = spawn(name, store.env.fatal.clone(), move || {
            if let Some(store) = weak.upgrade() {
                body(&store);
            }
        });
        let handle =
            handle.map_err(|source| StoreError::Io { action: "start the thread", path: name.into(), source })?;
        // A store is started once; a second start would leave the first threads without a waker.
        let _ = slot.set(handle.thread().clone());
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Ok(())
    }

    /// Ends the threads after the step in hand.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for thread in [&self.dispatcher, &self.flusher, &self.upkeep] {
            wake(thread);
        }
        for handle in self.handles.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A panic in it has already stopped the broker.
            let _ = handle.join();
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Something was appended.
    pub(super) fn appended(&self, store: &MessageStore) {
        if store.options.flush_policy == FlushPolicy::Sync {
            wake(&self.flusher);
            return;
        }
        wake(&self.dispatcher);
        if store.durability.is_idle() {
            wake(&self.flusher);
        }
    }

    /// Somebody waits for a sync.
    pub(super) fn wake_flusher(&self) {
        wake(&self.flusher);
    }

    /// More can be read.
    pub(super) fn wake_dispatcher(&self) {
        wake(&self.dispatcher);
    }
}

fn wake(thread: &OnceLock<Thread>) {
    if let Some(thread) = thread.get() {
        thread.unpark();
    }
}

/// Pauses that grow with each failure in a row.
struct Pause(Duration);

impl Pause {
    fn new() -> Self {
        Self(PAUSE_MIN)
    }

    fn after_failure(&mut self) {
        thread::park_timeout(self.0);
        self.0 = (self.0 * 2).min(PAUSE_MAX);
    }
}

fn dispatch(store: &MessageStore) {
    let mut pause = Pause::new();
    let failures = FailureRow::new("dispatch");
    while !store.drivers.is_stopping() {
        let round = store.dispatch_round(ROUND_BYTES);
        tell(store, &failures, &round);
        match round {
            Ok(more) => {
                if !store.dispatcher.is_failing() {
                    pause = Pause::new();
                }
                let dispatched = PhysicalOffset(store.dispatched.load(Ordering::Acquire));
                let checkpointed = PhysicalOffset(store.checkpointed.load(Ordering::Acquire));
                if dispatched.since(checkpointed) >= store.options.checkpoint_bytes || spare_is_due(store, dispatched) {
                    wake(&store.drivers.upkeep);
                }
                if more {
                    continue;
                }
                if store.dispatcher.is_failing() {
                    pause.after_failure();
                } else {
                    thread::park();
                }
            }
            Err(_) => pause.after_failure(),
        }
    }
}

/// Whether the newest segment has begun and the one after it was not asked for.
fn spare_is_due(store: &MessageStore, dispatched: PhysicalOffset) -> bool {
    let segment = dispatched.0 / store.options.segment_bytes + 1;
    store.drivers.spare_for.swap(segment, Ordering::Relaxed) != segment
}

fn flush(store: &MessageStore) {
    let mut last_sync = Instant::now();
    while !store.drivers.is_stopping() {
        let unsynced = store.log.written().since(store.durable());
        if unsynced == 0 {
            // A waiter may have come for what was synced just now; it is released by the next sync of nothing.
            if store.durability.is_awaited() && store.sync_once().is_err() {
                return;
            }
            store.durability.park_idle(|| store.log.written() == store.durable());
            last_sync = Instant::now();
            continue;
        }
        let at_once = store.waits_for_sync() || store.durability.is_awaited();
        let thorough = last_sync.elapsed() >= store.options.flush_thorough_interval;
        if at_once
            || thorough
            || (unsynced >= store.options.flush_bytes_min && last_sync.elapsed() >= store.options.flush_interval)
        {
            if store.sync_once().is_err() {
                return;
            }
            last_sync = Instant::now();
        } else {
            thread::park_timeout(store.options.flush_interval);
        }
    }
}

fn upkeep(store: &MessageStore) {
    let mut last_checkpoint = Instant::now();
    let mut last_retention: Option<Instant> = None;
    let (spares, clock) = (
        FailureRow::new("make the next segment of the commit log ahead of time"),
        FailureRow::new("follow the wall clock"),
    );
    let (checkpoints, retention) = (FailureRow::new("write a checkpoint"), FailureRow::new("go on with retention"));
    while !store.drivers.is_stopping() {
        let spare = store.log.prepare_spare(store.room.kept());
        tell(store, &spares, &spare);
        tell(store, &clock, &store.follow_clock());
        let dispatched = PhysicalOffset(store.dispatched.load(Ordering::Acquire));
        let ahead = dispatched.since(PhysicalOffset(store.checkpointed.load(Ordering::Acquire)));
        let is_old = last_checkpoint.elapsed() >= store.options.checkpoint_interval;
        if ahead >= store.options.checkpoint_bytes || (ahead > 0 && is_old) {
            tell(store, &checkpoints, &store.checkpoint_once());
            // As long as it fails it is tried again with each round.
            if !checkpoints.is_failing() {
                last_checkpoint = Instant::now();
            }
        }
        // While there is no room, or something fails, whatever may make an end of it is not long in coming.
        let is_pressed =
            store.room.is_refusing() || spare.is_err() || checkpoints.is_failing() || store.dispatcher.is_failing();
        let pause = store.options.retention_interval.min(store.options.checkpoint_interval);
        let pause = if is_pressed { pause.min(PAUSE_PRESSED) } else { pause };
        if last_retention.is_none_or(|last| last.elapsed() >= store.options.retention_interval.min(pause)) {
            tell(store, &retention, &store.retain_once());
            last_retention = Some(Instant::now());
        }
        thread::park_timeout(pause.min(CLOCK_INTERVAL));
    }
}

/// Logs what became of an attempt, if it is time to.
fn tell<T, E: std::error::Error + 'static>(store: &MessageStore, row: &FailureRow, outcome: &Result<T, E>) {
    let outcome = outcome.as_ref().map_err(|error| error as &dyn std::error::Error);
    row.attempted(outcome, store.env.clock.since_boot(), || store.env.directory.display("".as_ref()));
}
