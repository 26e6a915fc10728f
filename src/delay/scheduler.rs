//! The scheduler without its thread: told what was dispatched and what time it is, it restores what is due.
//!
//! [`Scheduler::dispatched`] folds the log into [`Progress`]; [`Scheduler::tick`] restores one batch of one run. A batch is read, verified and
//! built outside of every lock, then appended; the cursor of its run moves just before the append, and back if that fails. Progress itself
//! moves only when the restored records come back through dispatch.
//!
//! Of the runs that are due, the one that was served the fewest bytes comes next: a backlog of one level never starves another that is on
//! time. A run waits for those before it of its generation: see [`LevelProgress::servable`]. A run whose batch cannot be appended, or whose next record the directory cannot read, pauses, longer with each failure, and goes on at
//! the same record, so that order is kept; the others go on meanwhile. A record that still cannot be read after [`READ_PATIENCE`], or at once one
//! that can be read, but is damaged, is set aside: those behind it go on, and it is tried again for a while, and then parked. As long as a record
//! that was set aside by failed reads waits, its level has no more patience with others: many unreadable records hold it up but once.
//!
//! There are two locks, around the entries read and around the state, taken in this order. The second is never held across a call into the store, into [`RealTopics`], or while a record is built.

use std::{
    collections::BTreeMap,
    io, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;

use super::{
    DelayLevel, DelayOptions, RealTopics,
    apache::{Candidate, Matching, WithoutKey, has_unique_key, may_be_restored},
    delay_offset::{DELAY_OFFSET_FILE, DelayOffset, VERSION_STEP},
    entries::{self, Entries, Origin, end_of},
    park::marker,
    progress::{LevelProgress, Pause, Progress, Taken, Waiting},
    restore::{Address, DelayProperties, Look, Source, TopicNames, Unrestorable, deliver_at, due, look},
    stamp::{Generation, Stamp},
};
use crate::{
    model::{MessageDraft, PhysicalOffset, QueueOffset, SCHEDULE_TOPIC, Timestamp, names},
    mutation::Mutation,
    record::{Record, RecordView},
    store::{
        AppendError, Appended, ClockJumps, Dispatched, Loaded, Mended, MessageStore, NewRecords, Owed, StoreHandle,
    },
};

/// Most records of a batch. A batch is bounded so that it holds the append lock for about a millisecond at most.
pub const BATCH_RECORDS_MAX: usize = 512;
/// Most bytes of waiting records in a batch, besides its first record.
pub const BATCH_BYTES_MAX: u64 = 1 << 20;
/// Most bytes that may be written, but not dispatched (under SYNC_FLUSH: not synced) before the scheduler waits.
pub const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// The first pause after a failure.
pub const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause after a failure.
pub const PAUSE_MAX: Duration = Duration::from_secs(10);

/// How long the messages behind a record that the directory cannot read wait for it, so that a fault that passes changes no order.
pub const READ_PATIENCE: Duration = Duration::from_secs(10);

/// The scheduler; see the module.
pub(super) struct Scheduler {
    /// Replaced when the table changes; locked only to be read or replaced.
    options: Mutex<Arc<DelayOptions>>,
    topics: Arc<dyn RealTopics>,
    handle: OnceLock<StoreHandle>,
    state: Mutex<State>,
    /// Nearly always the dispatching thread's.
    entries: Mutex<Entries>,
    /// Belongs to the tick in hand.
    names: Mutex<TopicNames>,
}

#[derive(Default)]
struct State {
    progress: Progress,
    /// During recovery: how far each level is delivered, as `delayOffset.json` says, and whether that counts where nothing better is known.
    said: BTreeMap<DelayLevel, u64>,
    believes_said: bool,
    /// During recovery, since a record was found that Apache RocketMQ may have restored.
    matching: Option<Matching>,
    without_key: WithoutKey,
    sleep: Sleep,
    /// Somebody should wake the sleeping driver at the end of this round.
    wake: bool,
    /// The scheduler waits until dispatch has caught up.
    blocked: bool,
    /// There are restored records whose entries could not be read: nothing is restored until they are; then they are tried again.
    unresolved_until: Option<Timestamp>,
    /// What the run that was served last had been served before: a run that was idle starts from here.
    served_floor: u64,
    counts: Counts,
    level_counts: BTreeMap<DelayLevel, LevelCounts>,
    exported: DelayOffset,
    version: Version,
}

/// What the driver does.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Sleep {
    #[default]
    Awake,
    /// Until this deadline; for ever without one.
    Until(Option<Timestamp>),
}

#[derive(Debug, Default)]
struct Version {
    base: u64,
    delivered: u64,
}

/// What happened since the start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// Entries that a restored record skipped: they are restored again.
    pub(super) skipped: u64,
    /// Restored records that named an entry that does not wait.
    pub(super) not_waiting: u64,
    /// Messages that Apache RocketMQ had delivered, found during recovery.
    pub(super) by_apache: u64,
    /// Appends that failed.
    pub(super) append_failures: u64,
    /// Reads of a waiting record that failed.
    pub(super) read_failures: u64,
}

/// What happened to one level since the start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct LevelCounts {
    pub(super) restored: u64,
    pub(super) parked: u64,
    /// From the deliver time to the store time of the restored record.
    pub(super) late_total: Duration,
    pub(super) late_max: Duration,
}

/// One level, as tools see it.
#[derive(Debug, Clone)]
pub(super) struct LevelView {
    pub(super) level: DelayLevel,
    pub(super) pending: u64,
    pub(super) pending_bytes: u64,
    pub(super) undelivered_from: u64,
    pub(super) max: u64,
    pub(super) next_deadline: Option<Timestamp>,
    pub(super) paused: u64,
    /// The generations that wait, in order.
    pub(super) generations: Vec<GenerationView>,
    pub(super) counts: LevelCounts,
}

/// What waits of one generation, as tools see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct GenerationView {
    pub(super) generation: Generation,
    /// Zero for what Apache RocketMQ wrote.
    pub(super) duration: Duration,
    pub(super) pending: u64,
    pub(super) next_deadline: Option<Timestamp>,
}

/// What one [`LevelScheduler::tick`](super::LevelScheduler::tick) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tick {
    /// Messages restored.
    pub restored: usize,
    /// Messages parked.
    pub parked: usize,
    /// When there is something to do next; not later than now if there is more to do at once. `None` if nothing waits, or if dispatch must
    /// catch up first.
    pub next_deadline: Option<Timestamp>,
    /// The store takes no more appends: there will be nothing to do any more.
    pub closed: bool,
}

/// A batch to build: where, and what is known.
#[derive(Debug, Clone, Copy)]
struct Job {
    level: DelayLevel,
    generation: Generation,
    cursor: u64,
    to: u64,
    longest: Duration,
    pause: Option<Pause>,
    unread_since: Option<Timestamp>,
    has_patience: bool,
    aside: bool,
    alone: bool,
    at_most: Option<usize>,
    refused: bool,
}

/// A record that waits, found by where it ends.
struct Waits {
    level: DelayLevel,
    queue_offset: u64,
    bytes: u32,
    /// Where the record of the entry behind it begins, at the latest.
    next_position: PhysicalOffset,
}

/// What the scheduler makes of a record; nothing of most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Waiting,
    /// Its field may be an origin.
    Restored,
    /// Perhaps.
    RestoredByApache,
}

impl Kind {
    fn of(dispatched: &Dispatched<'_>) -> Option<Self> {
        let record = dispatched.record;
        if record.topic() == SCHEDULE_TOPIC {
            return record.sys_flag().is_queued().then_some(Self::Waiting);
        }
        if record.prepared_offset() > 0 && !(dispatched.replay && Mutation::ProgressFromCheckpoint.is_on()) {
            return Some(Self::Restored);
        }
        (dispatched.replay && may_be_restored(record)).then_some(Self::RestoredByApache)
    }
}

/// Restored records and markers, ready to append.
#[derive(Default)]
struct Batch {
    records: NewRecords,
    /// For each record when it was due, and whether it is a marker.
    origins: Vec<(Timestamp, bool)>,
    bytes: u64,
    end: u64,
}

/// Why a batch ended.
#[derive(Debug, Clone, Copy)]
enum BatchEnd {
    /// It is full, or the run is at its end; or it must be looked at again what comes next.
    Full,
    /// The next record is due then.
    NotDue(Timestamp),
    /// The first record cannot be read now; it is waited for.
    ReadFailed,
    /// The first record cannot be read, and is not waited for.
    Unreadable {
        /// Where it begins.
        position: PhysicalOffset,
        /// Where the one behind it begins, at the latest.
        next_position: PhysicalOffset,
        /// Reading failed, and may not fail later; else it is damaged.
        failed: bool,
    },
    /// The times of the first record are damaged; it is due then.
    InDoubt {
        /// Where it begins.
        position: PhysicalOffset,
        /// Where it ends.
        next_position: PhysicalOffset,
        /// When it is due at the latest.
        due: Timestamp,
    },
    /// The queue does not have the entries that it should have.
    NoEntries,
}

impl Scheduler {
    pub(super) fn new(options: DelayOptions, topics: Arc<dyn RealTopics>) -> Self {
        Self {
            options: Mutex::new(Arc::new(options)),
            topics,
            handle: OnceLock::new(),
            state: Mutex::default(),
            entries: Mutex::default(),
            names: Mutex::default(),
        }
    }

    pub(super) fn attach(&self, handle: StoreHandle) {
        if self.handle.set(handle).is_err() {
            tracing::warn!("the level scheduler is attached to a store already");
        }
    }

    /// The store, as long as it lives.
    pub(super) fn store(&self) -> Option<Arc<MessageStore>> {
        self.handle.get().and_then(StoreHandle::store)
    }

    /// The options in force.
    pub(super) fn options(&self) -> Arc<DelayOptions> {
        Arc::clone(&self.options.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts other options in force. Deadlines of what waits stand in its records: none of them moves.
    pub(super) fn set_options(&self, options: DelayOptions) {
        *self.options.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(options);
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The fold.

    /// Begins from the state of a checkpoint, or from nothing; whether the state could be read.
    pub(super) fn recover(&self, state: Option<&[u8]>) -> bool {
        let progress = match state {
            None => Some(Progress::default()),
            Some(state) => Progress::from_state(state),
        };
        let Some(progress) = progress else {
            tracing::warn!("the delay progress in the checkpoint cannot be read");
            return false;
        };
        let file = self.store().map_or_else(DelayOffset::default, |store| load_delay_offset(&store));
        let recovered = State {
            progress,
            version: Version { base: file.counter, delivered: 0 },
            exported: file.clone(),
            said: file.offsets,
            believes_said: state.is_none(),
            ..State::default()
        };
        *self.entries() = Entries::default();
        *self.state() = recovered;
        true
    }

    /// The last generation of each level and its duration.
    pub(super) fn generations(&self) -> Vec<(DelayLevel, Generation, Duration)> {
        self.state().progress.generations().collect()
    }

    /// Takes note of the records of a round. Says of waiting ones that recovery found which level, generation and duration they have.
    pub(super) fn dispatched(&self, records: &[Dispatched<'_>]) -> Vec<(DelayLevel, Generation, Duration)> {
        let mut found = Vec::new();
        let mut rest = records.iter().filter_map(|dispatched| Some((dispatched, Kind::of(dispatched)?))).peekable();
        while let Some((dispatched, kind)) = rest.next() {
            match kind {
                Kind::Waiting => {
                    // What senders lock, too, is locked once for all that follow one another.
                    let jumps = self.store().map(|store| store.clock_jumps()).unwrap_or_default();
                    let options = self.options();
                    let mut entries = self.entries();
                    let mut state = self.state();
                    let mut next = Some((dispatched, kind));
                    while let Some((dispatched, _)) = next {
                        let of_level = state.waits(dispatched, &jumps, &options, &mut entries);
                        if dispatched.replay && found.last() != Some(&of_level) {
                            found.push(of_level);
                        }
                        next = rest.next_if(|(_, kind)| *kind == Kind::Waiting);
                    }
                }
                Kind::Restored => {
                    self.restored(dispatched);
                    if rest.peek().is_none_or(|(_, kind)| *kind != Kind::Restored) {
                        self.resolve();
                    }
                }
                Kind::RestoredByApache => self.restored_by_apache(dispatched),
            }
        }
        found
    }

    /// A record that Apache RocketMQ may have restored.
    fn restored_by_apache(&self, dispatched: &Dispatched<'_>) {
        let Some(store) = self.store() else { return };
        let waiting = {
            let state = self.state();
            let waiting = state
                .progress
                .levels
                .iter()
                .flat_map(|(level, progress)| progress.runs.iter().map(move |run| (*level, run.from..run.to)));
            state.matching.is_none().then(|| waiting.collect::<Vec<_>>())
        };
        let matching = waiting.map(|waiting| Matching::of(&store, &waiting));
        let mut state = self.state();
        let state = &mut *state;
        let matching = state.matching.get_or_insert_with(|| matching.unwrap_or_default());
        while let Some(Candidate { level, queue_offset, bytes, end }) = matching.take(dispatched.record) {
            let Some(progress) = state.progress.levels.get_mut(&level) else { continue };
            match progress.take(queue_offset, bytes, end) {
                // One that is alike may still wait.
                Taken::NotWaiting => {}
                Taken::TooManyRuns => return,
                Taken::InOrder | Taken::Skipping(_) => {
                    state.counts.by_apache += 1;
                    return;
                }
            }
        }
    }

    /// Recovery is over: what `delayOffset.json` says counts where nothing better is known, and within the queue.
    pub(super) fn recovered(&self) {
        let mut state = self.state();
        let state = &mut *state;
        state.matching = None;
        let without_key = mem::take(&mut state.without_key);
        for (level, said) in mem::take(&mut state.said) {
            let nothing = LevelProgress::default();
            if said <= state.progress.levels.get(&level).unwrap_or(&nothing).next {
                for candidate in without_key.get(&level).into_iter().flatten() {
                    if let Some(progress) = state.progress.levels.get_mut(&level) {
                        progress.take(candidate.queue_offset, candidate.bytes, candidate.end);
                    }
                }
            }
            let used = state.progress.levels.get(&level).unwrap_or(&nothing).undelivered_from();
            if said > used {
                tracing::warn!(
                    delay_level = %level,
                    found = said,
                    used,
                    "delayOffset.json says that more was delivered than was; it is not used"
                );
            } else if said < used {
                tracing::info!(delay_level = %level, found = said, used, "delayOffset.json is behind; it is not used");
            }
        }
        if state.counts.by_apache > 0 {
            tracing::info!(messages = state.counts.by_apache, "Apache RocketMQ delivered some of what waited");
        }
    }

    /// A record whose field may be an origin. It counts only if it names an entry that waits.
    fn restored(&self, dispatched: &Dispatched<'_>) {
        let Some(origin) = origin_of(dispatched) else { return };
        if dispatched.replay
            && let Some(matching) = &mut self.state().matching
        {
            // What was restored is no candidate any more. Of those that are alike the first one waited longest.
            matching.take(dispatched.record);
        }
        self.entries().unresolved.push_back(origin);
    }

    /// Finds the entries of restored records; whether all were found that can be. What cannot be read now is kept, and all behind it: taken for
    /// "does not wait", a message would be restored again.
    fn resolve(&self) -> bool {
        let mut entries = self.entries();
        loop {
            self.state().take_known(&mut entries);
            let Some(origin) = entries.unresolved.front().copied() else { break };
            let Some(store) = self.store() else { return false };
            if let Err(error) = self.take(&store, &origin, &mut entries)
                && !Mutation::OriginForgotten.is_on()
            {
                let until = store.now().plus(PAUSE_MIN);
                if self.state().unresolved_until.replace(until).is_none() {
                    let physical_offset = origin.restored_at.0;
                    tracing::error!(delay_level = %origin.level, physical_offset, %error, "cannot read what a restored record comes from; trying again");
                }
                return false;
            }
            entries.unresolved.pop_front();
        }
        drop(entries);
        self.state().unresolved_until = None;
        true
    }

    /// Takes the entry of a restored record out of what waits.
    fn take(&self, store: &MessageStore, origin: &Origin, entries: &mut Entries) -> io::Result<()> {
        let mut found = self.find(store, origin.level, origin, entries)?;
        if found.is_none() && origin.generation != Generation::APACHE {
            // No checksum covers the queue of a waiting record either: once it is damaged, the record waits in that of another level.
            let levels: Vec<_> = self.state().progress.levels.keys().copied().collect();
            for level in levels {
                if found.is_none() {
                    found = self.find(store, level, origin, entries)?;
                }
            }
        }
        let Some(waits) = found else {
            self.state().counts.not_waiting += 1;
            return Ok(());
        };
        self.state().take(origin, &waits);
        Ok(())
    }

    /// The waiting record of a restored one, if it waits in a level.
    fn find(
        &self,
        store: &MessageStore,
        level: DelayLevel,
        origin: &Origin,
        entries: &mut Entries,
    ) -> io::Result<Option<Waits>> {
        let end = origin.end;
        let ranges = {
            let state = self.state();
            let progress = state.progress.levels.get(&level);
            progress.map(|level| level.where_restored_from(origin.generation)).unwrap_or_default()
        };
        let mut found = None;
        if let Some(range) = ranges.first() {
            let first = entries.at(store, level, range.start)?.filter(|entry| end_of(entry) == end);
            found = first.map(|entry| (range.start, entry));
        }
        for range in &ranges {
            if found.is_none() {
                found = Entries::ending_at(store, level, range.clone(), end)?;
            }
        }
        let Some((queue_offset, entry)) = found else { return Ok(None) };
        let is_last = ranges.iter().any(|range| range.end == queue_offset + 1);
        let next = if is_last { None } else { entries.at(store, level, queue_offset + 1)? };
        let next_position = next.map_or(end, |next| next.position);
        Ok(Some(Waits { level, queue_offset, bytes: entry.bytes, next_position }))
    }

    /// Ends a round of dispatch; whether the sleeping driver must be woken.
    pub(super) fn round_ended(&self) -> bool {
        let mut state = self.state();
        mem::take(&mut state.wake) | mem::take(&mut state.blocked)
    }

    /// Store time jumped: deadlines moved as it did, and pauses go on for as long as they would have.
    pub(super) fn clock_jumped(&self, by: Duration) {
        let Some(now) = self.store().map(|store| store.now()) else { return };
        let mut state = self.state();
        // A pause that began behind the jump must not become longer by it.
        let later = |until: Timestamp| until.plus(by).min(now.plus(PAUSE_MAX));
        state.unresolved_until = state.unresolved_until.map(later);
        for run in state.progress.levels.values_mut().flat_map(|level| &mut level.runs) {
            run.stand.head = None;
            run.stand.unread_since = run.stand.unread_since.map(|since| since.plus(by).min(now));
            if let Some(pause) = &mut run.stand.pause {
                pause.until = later(pause.until);
                pause.since = pause.since.plus(by).min(now);
            }
        }
    }

    /// The tag code of a waiting record's queue entry: its deliver time.
    pub(super) fn tag_code(&self, record: &RecordView<'_>, existing: Option<i64>) -> Option<i64> {
        if record.topic() != SCHEDULE_TOPIC {
            return None;
        }
        if let Some(said) = Stamp::from_field(record.prepared_offset()).deliver_at() {
            return Some(said.0);
        }
        let level = DelayLevel::of_queue(record.queue_id());
        let options = self.options();
        let longest = self.state().progress.longest(level, &options.levels);
        Some(deliver_at(record, existing, longest).0)
    }

    /// The oldest record that waits.
    pub(super) fn pinned_from(&self) -> Option<PhysicalOffset> {
        self.state().progress.oldest_position()
    }

    /// What waits.
    pub(super) fn owes(&self) -> Owed {
        let none = Owed { queues: self.topics.queue_count(), ..Owed::default() };
        let state = self.state();
        state.progress.levels.values().fold(none, |owed, level| Owed {
            queues: owed.queues,
            records: owed.records + level.pending(),
            bytes: owed.bytes + level.pending_bytes,
        })
    }

    /// The state for the checkpoint; [`Scheduler::export`] writes what belongs to it. Empty if it is not known now: a recovery does not believe it
    /// then, and reads the whole log.
    pub(super) fn to_state(&self) -> Vec<u8> {
        if !self.resolve() {
            return Vec::new();
        }
        let now = self.store().map(|store| store.now());
        let mut state = self.state();
        state.exported = state.delay_offset(now);
        state.progress.to_state()
    }

    /// Writes `delayOffset.json` as of the last checkpoint.
    ///
    /// # Errors
    /// As the directory gives them.
    pub(super) fn export(&self) -> io::Result<()> {
        let Some(store) = self.store() else { return Ok(()) };
        let file = self.state().exported.clone();
        let state_file = store.state_file(DELAY_OFFSET_FILE);
        let unchanged = matches!(state_file.load(DelayOffset::parse), Loaded::Main(before) if before == file);
        if unchanged || file.offsets.is_empty() { Ok(()) } else { state_file.save(&file.to_text()) }
    }

    // The work.

    /// When there is something to do next; a time in the past if it must be looked at.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.state().next_deadline()
    }

    /// Says until when the driver sleeps: from now on an earlier deadline wakes it. `None` if there is something to do at `now`.
    pub(super) fn fall_asleep(&self, now: Timestamp) -> Option<Option<Timestamp>> {
        let mut state = self.state();
        let until = if state.blocked { None } else { state.next_deadline() };
        if until.is_some_and(|until| until <= now) {
            return None;
        }
        state.wake = false;
        state.sleep = Sleep::Until(until);
        Some(until)
    }

    /// The driver sleeps no more.
    pub(super) fn wake_up(&self) {
        self.state().sleep = Sleep::Awake;
    }

    /// Restores one batch of one run, if one is due at `now`, which must not be later than the store's own time.
    ///
    /// # Panics
    /// If the store's time fell: a message would be early.
    pub(super) fn tick(&self, now: Timestamp) -> Tick {
        let Some(store) = self.store() else { return Tick { closed: true, ..Tick::default() } };
        let mut tick = Tick::default();
        let unresolved_until = self.state().unresolved_until;
        if unresolved_until.is_some() && !self.resolve() {
            tick.next_deadline = self.next_deadline();
            return tick;
        }
        let options = self.options();
        let job = self.state().pick(now, &options);
        if let Some(job) = job {
            if self.is_too_far_ahead(&store) {
                return tick;
            }
            let mut names = mem::take(&mut *self.names.lock().unwrap_or_else(PoisonError::into_inner));
            let (mut batch, end) = self.build(&store, &job, now, &mut names);
            *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names;
            self.append(&job, &mut batch, end, now, &mut tick);
        }
        tick.next_deadline = self.next_deadline();
        tick
    }

    /// Whether dispatch must catch up first. If so, the end of its next round wakes the driver.
    fn is_too_far_ahead(&self, store: &MessageStore) -> bool {
        self.state().blocked = true;
        let unsynced = if store.waits_for_sync() { store.log_range().1.since(store.durable()) } else { 0 };
        let ahead = unsynced + store.dispatch_behind_bytes();
        let blocked = ahead > AHEAD_BYTES_MAX;
        self.state().blocked = blocked;
        blocked
    }

    /// Reads, verifies and builds a batch.
    fn build(&self, store: &MessageStore, job: &Job, now: Timestamp, names: &mut TopicNames) -> (Batch, BatchEnd) {
        let mut batch = Batch { end: job.cursor, ..Batch::default() };
        let mut reader = store.record_reader();
        // Younger than `now`: they hold all jumps that led to it.
        let jumps = store.clock_jumps();
        let records_max = if job.alone { 1 } else { job.at_most.unwrap_or(BATCH_RECORDS_MAX) };
        while batch.end < job.to && batch.records.len() < records_max && batch.bytes < BATCH_BYTES_MAX {
            let left = usize::try_from(job.to - batch.end).unwrap_or(usize::MAX);
            let count_max = left.min(records_max - batch.records.len());
            let entries = entries::try_read(store, job.level, batch.end, count_max).unwrap_or_else(|error| {
                self.say_unread(job, batch.end, &error);
                Vec::new()
            });
            if entries.is_empty() {
                return (batch, BatchEnd::NoEntries);
            }
            let bytes = entries.iter().map(|entry| u64::from(entry.bytes)).sum::<u64>().min(BATCH_BYTES_MAX);
            batch.records.reserve(entries.len(), usize::try_from(bytes).unwrap_or(0));
            for entry in entries {
                let source = Source {
                    level: job.level,
                    generation: job.generation,
                    queue_offset: batch.end,
                    entry,
                    longest: job.longest,
                };
                let (record, mut failed) = match reader.read(entry.position) {
                    Ok(record) => (record, false),
                    Err(error) => {
                        self.say_unread(job, batch.end, &error);
                        (None, true)
                    }
                };
                let looked = if failed {
                    Look::Unreadable("reading failed")
                } else if job.refused {
                    Look::Never(Unrestorable::Refused, now)
                } else {
                    let latest = || store.now();
                    let looked = || look(&source, record, now, &jumps, &latest, &*self.topics, names);
                    catch_unwind(AssertUnwindSafe(looked)).unwrap_or(Look::Never(Unrestorable::Panicked, now))
                };
                let (parked, due) = match looked {
                    Look::NotDue(due) => return (batch, BatchEnd::NotDue(due)),
                    Look::InDoubt(due) if job.aside => return (batch, BatchEnd::NotDue(due)),
                    Look::InDoubt(_) if !batch.records.is_empty() => return (batch, BatchEnd::Full),
                    Look::InDoubt(due) => {
                        tracing::warn!(
                            delay_level = %job.level,
                            queue_offset = batch.end,
                            physical_offset = entry.position.0,
                            "store time and deliver time of a waiting message contradict each other; it is set aside until it is due for sure"
                        );
                        return (
                            batch,
                            BatchEnd::InDoubt { position: entry.position, next_position: end_of(&entry), due },
                        );
                    }
                    Look::Restored(Address { topic, queue_id, origin }, due) => {
                        let built =
                            record.map(|record| batch.records.push_readdressed(record, &topic, queue_id, origin));
                        match built {
                            Some(Ok(())) => (None, due),
                            _ => (Some((record, Unrestorable::TooLong)), due),
                        }
                    }
                    Look::Never(reason, due) => (Some((record, reason)), due),
                    Look::Unreadable(reason) => {
                        let at = QueueOffset(batch.end);
                        let waits_for_it = job.waits_for_unread(now);
                        if !(failed && waits_for_it) {
                            match store.mend_entry(SCHEDULE_TOPIC, job.level.queue_id(), at) {
                                // The next batch begins with the entry as it is now.
                                Ok(Mended::Entry(_)) => return (batch, BatchEnd::Full),
                                Ok(Mended::Hopeless) => {}
                                Ok(Mended::Later) | Err(_) => failed = true,
                            }
                        }
                        let said = Timestamp(entry.tag_code);
                        // Its store time is not known: the earliest there can be.
                        let hint = jumps.due(said.minus(job.longest), said);
                        if !batch.records.is_empty() {
                            return (batch, BatchEnd::Full);
                        } else if hint > now && said <= now.plus(job.longest) {
                            // A jump may lie before it was stored, so that it is due as it says: it is read again as soon as that can tell.
                            let again = if said > now { said } else { hint.min(now.plus(PAUSE_MAX)) };
                            return (batch, BatchEnd::NotDue(if failed { again } else { hint }));
                        } else if failed && waits_for_it {
                            return (batch, BatchEnd::ReadFailed);
                        } else if !job.gives_up(now, self.options().park_after) {
                            let next = entries::read(store, job.level, batch.end + 1, 1);
                            let next_position = next.first().map_or(end_of(&entry), |next| next.position);
                            if !job.aside {
                                tracing::warn!(
                                    delay_level = %job.level,
                                    queue_offset = batch.end,
                                    physical_offset = entry.position.0,
                                    reason,
                                    "a waiting message that cannot be read is set aside, and tried again"
                                );
                            }
                            let position = entry.position;
                            return (batch, BatchEnd::Unreadable { position, next_position, failed });
                        }
                        (Some((None, Unrestorable::Unreadable)), now)
                    }
                };
                let is_parked = parked.is_some();
                if let Some((record, reason)) = parked
                    && let Err(error) = batch.records.push(&self.park(&source, record, reason, now))
                {
                    tracing::error!(error = &error as &dyn std::error::Error, "a marker has no record");
                    return (batch, BatchEnd::NoEntries);
                }
                batch.origins.push((due, is_parked));
                batch.bytes += u64::from(entry.bytes);
                batch.end += 1;
                if batch.bytes >= BATCH_BYTES_MAX {
                    break;
                }
            }
        }
        (batch, BatchEnd::Full)
    }

    /// Logs the first of failed reads in a row.
    fn say_unread(&self, job: &Job, queue_offset: u64, error: &io::Error) {
        if job.pause.is_none() {
            tracing::warn!(delay_level = %job.level, queue_offset, %error, "cannot read what waits; trying again");
        }
    }

    fn park(
        &self,
        source: &Source,
        record: Option<RecordView<'_>>,
        reason: Unrestorable,
        now: Timestamp,
    ) -> MessageDraft {
        let record = record.and_then(|record| Record::parse(&Bytes::copy_from_slice(record.bytes())).ok());
        let marked = catch_unwind(AssertUnwindSafe(|| marker(source, record.as_ref(), reason, now)));
        let marked = marked.unwrap_or_else(|_| marker(source, None, reason, now));
        tracing::error!(
            delay_level = %source.level,
            queue_offset = source.queue_offset,
            physical_offset = source.entry.position.0,
            topic = marked.properties.get(names::REAL_TOPIC),
            unique_key = marked.properties.get(names::UNIQ_KEY),
            %reason,
            "a message cannot be restored and is parked"
        );
        marked
    }

    /// Appends a batch and moves the cursor of its run.
    fn append(&self, job: &Job, batch: &mut Batch, end: BatchEnd, now: Timestamp, tick: &mut Tick) {
        if batch.records.is_empty() {
            let mut state = self.state();
            match end {
                BatchEnd::Full => {}
                BatchEnd::NotDue(due) => state.wait(job, due),
                BatchEnd::ReadFailed => {
                    state.counts.read_failures += 1;
                    let since = job.unread_since.unwrap_or(now);
                    let mut pause = longer(job.pause, now);
                    pause.until = pause.until.min(since.plus(READ_PATIENCE));
                    state.pause(job, pause);
                    state.unread(job, Some(since));
                }
                BatchEnd::Unreadable { position, next_position, failed } => {
                    state.counts.read_failures += 1;
                    if let Some(level) = state.progress.levels.get_mut(&job.level) {
                        level.set_aside(job.cursor, position, next_position);
                    }
                    // The time until it is parked begins with the first failed read.
                    let since = job.unread_since.unwrap_or(now);
                    let pause = longer(job.pause.filter(|_| job.aside), now);
                    state.pause(job, if job.aside { pause } else { Pause { since, ..pause } });
                    // One that was damaged when it was set aside was not waited for.
                    let unread_since = if job.aside { job.unread_since } else { Some(since) };
                    state.unread(job, unread_since.filter(|_| failed));
                }
                BatchEnd::InDoubt { position, next_position, due } => {
                    if let Some(level) = state.progress.levels.get_mut(&job.level) {
                        level.set_aside(job.cursor, position, next_position);
                    }
                    state.wait(job, due);
                }
                BatchEnd::NoEntries => {
                    state.counts.read_failures += 1;
                    state.pause(job, longer(job.pause, now));
                }
            }
            return;
        }
        let head = if let BatchEnd::NotDue(due) = end { Some(due) } else { None };
        self.state().advance(job, batch, head);
        let appended = match self.handle.get() {
            Some(handle) => handle.append_records(&mut batch.records),
            None => Err(AppendError::Closed),
        };
        let mut state = self.state();
        match appended {
            Ok(appended) => state.count(job.level, batch, &appended, tick),
            Err(error) => {
                tick.closed = matches!(error, AppendError::Closed | AppendError::Failed { .. });
                let no_room = matches!(error, AppendError::DiskFull { .. });
                let goes_on = no_room && batch.records.len() > 1;
                state.counts.append_failures += u64::from(!goes_on);
                let refused = matches!(
                    error,
                    AppendError::Record(_) | AppendError::BodyTooLarge { .. } | AppendError::Refused(_)
                );
                state.rewind(job, batch, refused, no_room, now);
                drop(state);
                if job.pause.is_none() && !goes_on && !tick.closed {
                    tracing::error!(
                        delay_level = %job.level,
                        queue_offset = job.cursor,
                        error = &error as &dyn std::error::Error,
                        "cannot append restored messages; the level pauses"
                    );
                }
            }
        }
    }

    // What tools see.

    /// Every level that the table has or that was ever used.
    pub(super) fn level_views(&self) -> Vec<LevelView> {
        let options = self.options();
        let state = self.state();
        let nothing = LevelProgress::default();
        let mut levels: Vec<DelayLevel> = options.levels.iter().map(|(level, _)| level).collect();
        levels.extend(state.progress.levels.keys().filter(|level| **level > options.levels.max()));
        let views = levels.into_iter().map(|level| {
            let progress = state.progress.levels.get(&level).unwrap_or(&nothing);
            LevelView {
                level,
                pending: progress.pending(),
                pending_bytes: progress.pending_bytes,
                undelivered_from: progress.undelivered_from(),
                max: progress.next,
                next_deadline: progress.next_deadline(),
                paused: progress.runs.iter().filter(|run| run.stand.pause.is_some()).count() as u64,
                generations: generation_views(progress),
                counts: state.level_counts.get(&level).copied().unwrap_or_default(),
            }
        });
        views.collect()
    }

    pub(super) fn counts(&self) -> Counts {
        self.state().counts
    }
}

impl State {
    fn next_deadline(&self) -> Option<Timestamp> {
        if self.unresolved_until.is_some() {
            return self.unresolved_until;
        }
        self.progress.levels.values().filter_map(LevelProgress::next_deadline).min()
    }

    /// Takes note of a waiting record.
    fn waits(
        &mut self,
        dispatched: &Dispatched<'_>,
        jumps: &ClockJumps,
        options: &DelayOptions,
        entries: &mut Entries,
    ) -> (DelayLevel, Generation, Duration) {
        let record = dispatched.record;
        let level = DelayLevel::of_queue(record.queue_id());
        let stamp = Stamp::from_field(record.prepared_offset());
        let queue_offset = record.queue_offset().0;
        let duration = stamp.deliver_at().map_or(Duration::ZERO, |said| said.since(record.stored_at()));
        let progress = self.progress.levels.entry(level).or_default();
        let longest = progress.longest_with(stamp.generation, duration);
        let longest = longest.max(options.levels.duration(level).unwrap_or_default());
        if queue_offset < progress.next {
            let dropped = progress.cut(queue_offset);
            entries.forget(level);
            self.matching = None;
            self.without_key.remove(&level);
            tracing::warn!(delay_level = %level, queue_offset, dropped, "the queue of a delay level begins anew");
        }
        if dispatched.replay {
            let candidate = Candidate { level, queue_offset, bytes: record.total_bytes(), end: dispatched.end() };
            if let Some(matching) = &mut self.matching {
                matching.add(record, candidate);
            }
            let said = self.said.get(&level).copied().unwrap_or(0);
            if self.believes_said
                && stamp.generation == Generation::APACHE
                && queue_offset < said
                && !has_unique_key(record)
            {
                self.without_key.entry(level).or_default().push(candidate);
            }
        }
        // During recovery the record may be damaged, which those behind it tell: it is looked at when all is known.
        let is_known = stamp.generation != Generation::APACHE && !dispatched.replay;
        let due = if is_known { due(record, None, longest, jumps) } else { None };
        let is_head = progress.add(&Waiting {
            queue_offset,
            position: dispatched.position,
            bytes: record.total_bytes(),
            generation: stamp.generation,
            duration,
            due,
        });
        if is_head && let Sleep::Until(until) = self.sleep {
            // Without a due time the record must be looked at together with its entry, now.
            self.wake |= until.is_none_or(|until| due.is_none_or(|due| due < until));
        }
        (level, stamp.generation, duration)
    }

    /// Takes those restored records out of what waits that come first and whose entries are at hand.
    fn take_known(&mut self, entries: &mut Entries) {
        while let Some(origin) = entries.unresolved.front().copied() {
            let known = || {
                let runs = &self.progress.levels.get(&origin.level)?.runs;
                let run = runs.iter().rev().find(|run| run.generation == origin.generation)?;
                let entry = entries.known(origin.level, run.from).filter(|entry| end_of(entry) == origin.end)?;
                let is_last = run.from + 1 == run.to;
                let next = if is_last { None } else { Some(entries.known(origin.level, run.from + 1)?) };
                let next_position = next.map_or(origin.end, |next| next.position);
                Some(Waits { level: origin.level, queue_offset: run.from, bytes: entry.bytes, next_position })
            };
            let Some(waits) = known() else { return };
            self.take(&origin, &waits);
            entries.unresolved.pop_front();
        }
    }

    /// Takes the waiting record of a restored one out of what waits.
    fn take(&mut self, origin: &Origin, waits: &Waits) {
        let Waits { level, queue_offset, bytes, next_position } = *waits;
        let Some(progress) = self.progress.levels.get_mut(&level) else { return };
        match progress.take(queue_offset, bytes, next_position) {
            Taken::InOrder => {}
            Taken::Skipping(skipped) => {
                self.counts.skipped += skipped;
                tracing::warn!(
                    delay_level = %level,
                    queue_offset,
                    skipped,
                    physical_offset = origin.restored_at.0,
                    "restored records are missing before this one; their messages are restored again"
                );
            }
            Taken::NotWaiting | Taken::TooManyRuns => self.counts.not_waiting += 1,
        }
        if !origin.replay {
            self.version.delivered += 1;
        }
    }

    /// The due run that was served the fewest bytes.
    fn pick(&mut self, now: Timestamp, options: &DelayOptions) -> Option<Job> {
        let floor = self.served_floor;
        let due = self.progress.levels.iter().flat_map(|(level, progress)| {
            progress.servable().filter(|run| run.due().is_some_and(|due| due <= now)).map(|run| (*level, run))
        });
        let (level, run) = due.min_by_key(|(_, run)| run.stand.served.max(floor))?;
        let (generation, to, stand) = (run.generation, run.to, run.stand.clone());
        let served = stand.served.max(floor);
        self.served_floor = served;
        self.run_mut(level, stand.cursor)?.stand.served = served;
        let has_patience = self.progress.levels.get(&level).is_none_or(LevelProgress::has_patience);
        Some(Job {
            level,
            generation,
            cursor: stand.cursor,
            to,
            longest: self.progress.longest(level, &options.levels),
            pause: stand.pause,
            unread_since: stand.unread_since,
            has_patience,
            aside: stand.aside,
            alone: stand.alone,
            at_most: stand.at_most,
            refused: stand.refused,
        })
    }

    /// The run in which a queue offset waits.
    fn run_mut(&mut self, level: DelayLevel, queue_offset: u64) -> Option<&mut super::progress::Run> {
        let level = self.progress.levels.get_mut(&level)?;
        let index = level.run_at(queue_offset)?;
        level.runs.get_mut(index)
    }

    fn wait(&mut self, job: &Job, due: Timestamp) {
        if let Some(run) = self.run_mut(job.level, job.cursor) {
            run.stand.head = Some(due);
            run.stand.unread_since = None;
        }
    }

    fn pause(&mut self, job: &Job, pause: Pause) {
        if let Some(run) = self.run_mut(job.level, job.cursor) {
            run.stand.pause = Some(pause);
        }
    }

    fn unread(&mut self, job: &Job, since: Option<Timestamp>) {
        if let Some(run) = self.run_mut(job.level, job.cursor) {
            run.stand.unread_since = since;
        }
    }

    fn advance(&mut self, job: &Job, batch: &Batch, head: Option<Timestamp>) {
        if let Some(run) = self.run_mut(job.level, job.cursor) {
            let stand = &mut run.stand;
            stand.cursor = batch.end;
            stand.head = head;
            stand.pause = None;
            stand.unread_since = None;
            stand.aside = false;
            stand.alone = false;
            stand.at_most = job.at_most.map(|at_most| at_most * 2).filter(|at_most| *at_most < BATCH_RECORDS_MAX);
            stand.refused = false;
            stand.served += batch.bytes;
        }
    }

    /// Takes back [`State::advance`]: nothing was stored.
    fn rewind(&mut self, job: &Job, batch: &Batch, refused: bool, no_room: bool, now: Timestamp) {
        if let Some(run) = self.run_mut(job.level, job.cursor) {
            let stand = &mut run.stand;
            if Mutation::CursorNotTakenBack.is_on() {
                return;
            }
            stand.cursor = job.cursor;
            stand.head = batch.origins.first().map(|(due, _)| *due);
            // A batch refused for what is in it is tried again record by record; a single record is parked.
            stand.alone = refused || job.alone;
            stand.refused = job.refused || (refused && batch.records.len() == 1);
            stand.aside = job.aside;
            let count = batch.records.len();
            stand.at_most = if no_room { Some((count / 2).max(1)) } else { job.at_most };
            // Half of them may find room: they are tried at once.
            stand.pause = if no_room && count > 1 { job.pause } else { Some(longer(job.pause, now)) };
        }
    }

    fn count(&mut self, level: DelayLevel, batch: &Batch, appended: &[Appended], tick: &mut Tick) {
        let counts = self.level_counts.entry(level).or_default();
        for (appended, (due, parked)) in appended.iter().zip(&batch.origins) {
            if *parked {
                counts.parked += 1;
                tick.parked += 1;
                continue;
            }
            assert!(appended.stored_at >= *due, "store time never falls, so that nobody is early");
            let late = appended.stored_at.since(*due);
            counts.restored += 1;
            tick.restored += 1;
            counts.late_total += late;
            counts.late_max = counts.late_max.max(late);
        }
    }

    fn delay_offset(&self, now: Option<Timestamp>) -> DelayOffset {
        let counter = self.version.base + self.version.delivered / VERSION_STEP;
        let is_new = counter != self.exported.counter || self.exported.timestamp == Timestamp::EPOCH;
        let timestamp = now.filter(|_| is_new).unwrap_or(self.exported.timestamp);
        let levels = self.progress.levels.iter();
        DelayOffset { counter, timestamp, offsets: levels.map(|(level, at)| (*level, at.undelivered_from())).collect() }
    }
}

impl Job {
    /// Whether those behind a record that cannot be read now wait for it.
    fn waits_for_unread(&self, now: Timestamp) -> bool {
        let is_patient = self.unread_since.is_none_or(|since| now.since(since) < READ_PATIENCE);
        !self.aside && self.has_patience && is_patient && !Mutation::UnreadOvertaken.is_on()
    }

    /// Whether a record that cannot be read was tried for long enough.
    fn gives_up(&self, now: Timestamp, park_after: Duration) -> bool {
        self.aside && self.pause.is_some_and(|pause| now.since(pause.since) >= park_after)
    }
}

/// What a record says of a waiting one, if it is the restored form of one, or its marker.
pub(super) fn origin_of(dispatched: &Dispatched<'_>) -> Option<Origin> {
    let stamp = Stamp::from_field(dispatched.record.prepared_offset());
    let end = stamp.end().filter(|end| *end <= dispatched.position)?;
    let properties = DelayProperties::of(dispatched.record.properties());
    properties.real_topic.and(properties.real_queue)?;
    Some(Origin {
        level: properties.level?,
        generation: stamp.generation,
        end,
        restored_at: dispatched.position,
        replay: dispatched.replay,
    })
}

fn generation_views(progress: &LevelProgress) -> Vec<GenerationView> {
    let mut views: BTreeMap<Generation, GenerationView> = BTreeMap::new();
    for run in &progress.runs {
        let view = views.entry(run.generation).or_insert(GenerationView {
            generation: run.generation,
            duration: run.duration,
            pending: 0,
            next_deadline: None,
        });
        view.pending += run.to - run.from;
    }
    for run in progress.servable() {
        if let Some(view) = views.get_mut(&run.generation) {
            view.next_deadline = view.next_deadline.into_iter().chain(run.due()).min();
        }
    }
    views.into_values().collect()
}

fn longer(before: Option<Pause>, now: Timestamp) -> Pause {
    let failures = before.map_or(1, |pause| pause.failures.saturating_add(1));
    let length = PAUSE_MIN.saturating_mul(1 << (failures - 1).min(16)).min(PAUSE_MAX);
    Pause { until: now.plus(length), since: before.map_or(now, |pause| pause.since), failures }
}

fn load_delay_offset(store: &MessageStore) -> DelayOffset {
    match store.state_file(DELAY_OFFSET_FILE).load(DelayOffset::parse) {
        Loaded::Main(file) | Loaded::Backup(file) => file,
        Loaded::Absent => DelayOffset::default(),
        Loaded::Unreadable(reason) => {
            tracing::warn!(reason, "delayOffset.json cannot be read; what Apache RocketMQ delivered is not known");
            DelayOffset::default()
        }
    }
}
