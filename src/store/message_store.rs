//! The store as the broker sees it: opening, appending, the steps that its threads repeat, and stopping.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use super::{
    Admission, AdmitContext, AppendError, ClockJumps, FailureRow, Figure, FigureValue, FlushPolicy, Owed, Plugin,
    Refusal, RefusalKind, SettingChange, StateFile, StoreError, StoreHandle, StoreOptions,
    checkpoint::{Checkpoint, CheckpointFiles, LastRecord, RocketmqCheckpoint},
    commit_log::{CommitLog, Encoded},
    consume_queues::ConsumeQueues,
    deletions::{DELETIONS_FILE, Deletions},
    dispatch::{Dispatcher, first_error},
    drivers::Drivers,
    durability::Durability,
    health::Health,
    index::Index,
    mend::Hopeless,
    obstacle::{clearing, create_folder, what_stands},
    patience::Patience,
    recovery::{self, Recovery},
    room::{RECORD_EXTRA_BYTES, Room, is_full},
    scan::{Found, Located, look, next_sound},
};
use crate::{
    env::{Directory, EntryKind, Env, Lock},
    model::{MessageDraft, PhysicalOffset, Properties, QueueId, QueueOffset, Timestamp},
    mutation::Mutation,
};

/// About as many bytes of log are gone through at once for a queue that was set aside.
const WALK_BYTES: usize = 4 << 20;
/// Most records of one dispatch round.
const ROUND_RECORDS_MAX: usize = 4096;
/// The file whose presence says that the last stop was not a clean one.
pub(super) const ABORT_FILE: &str = "abort";
/// The file that is locked while a broker runs on the store.
pub(super) const LOCK_FILE: &str = "lock";
/// Smallest segment: the largest record must fit, and beside it this much for properties, topic and the blank.
pub(super) const RECORD_OVERHEAD_BYTES_MAX: u64 = 65_536;

/// Keeps messages: commit log, consume queues, index and the plugins attached to them.
///
/// Without threads until [`MessageStore::start`]: a test drives it by [`MessageStore::dispatch_once`] and [`MessageStore::sync_once`].
pub struct MessageStore {
    pub(super) options: StoreOptions,
    pub(super) env: Env,
    pub(super) health: Arc<Health>,
    pub(super) log: CommitLog,
    pub(super) durability: Durability,
    pub(super) dispatcher: Dispatcher,
    pub(super) dispatching: Mutex<Dispatching>,
    pub(super) dispatched: AtomicU64,
    /// Records that were appended and not dispatched yet.
    undispatched: AtomicU64,
    pub(super) checkpointed: AtomicU64,
    pub(super) room: Room,
    pub(super) damaged_bytes: AtomicU64,
    pub(super) hopeless: Hopeless,
    pub(super) patience: Patience,
    pub(super) mended_entries: AtomicU64,
    pub(super) damaged_ranges: AtomicU64,
    /// Messages in them, as far as queues tell, and ranges of which they do not.
    damaged_messages: AtomicU64,
    damaged_uncounted: AtomicU64,
    /// Queues have an entry for every message before this position.
    pub(super) queues_whole_to: AtomicU64,
    pub(super) cut_tails: AtomicU64,
    /// One more than the pinned position that retention logged last.
    pub(super) pin_logged: AtomicU64,
    pub(super) drivers: Drivers,
    exports: FailureRow,
    pub(super) checkpoint_files: CheckpointFiles,
    /// The last checkpoint that was saved; held while one is written.
    pub(super) checkpointing: Mutex<Option<Checkpoint>>,
    lock: Mutex<Option<Box<dyn Lock>>>,
}

/// Where dispatch stands.
#[derive(Default)]
pub(super) struct Dispatching {
    /// Everything before this position is dispatched.
    pub(super) position: PhysicalOffset,
    /// The last record dispatched.
    pub(super) last: Option<LastRecord>,
}

/// Where a message lies that was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// First byte of the record.
    pub position: PhysicalOffset,
    /// Position behind the record: durable when the store's durable position has reached it.
    pub end: PhysicalOffset,
    /// Its place in its queue.
    pub queue_offset: QueueOffset,
    /// Its store time.
    pub stored_at: Timestamp,
}

/// Told when messages can be read.
pub trait ArrivalListener: Send + Sync {
    /// A message can be read from a queue; `max` is the queue's new maximum. Runs on the dispatching thread: hand over, do not work.
    fn arrived(&self, topic: &str, queue_id: QueueId, max: QueueOffset, tag_code: i64);
}

/// Called when a position is durable, or never will be.
pub type DurableCallback = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

impl MessageStore {
    /// Opens a store: takes the lock, reads the checkpoint, recovers log, queues, index and plugins.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(options: StoreOptions, env: Env, plugins: Vec<Arc<dyn Plugin>>) -> Result<Arc<Self>, StoreError> {
        Self::open_as(options, env, plugins, Recovery::FromCheckpoint)
    }

    /// As [`MessageStore::open`], with a choice of what recovery trusts.
    pub(super) fn open_as(
        options: StoreOptions,
        env: Env,
        plugins: Vec<Arc<dyn Plugin>>,
        from: Recovery,
    ) -> Result<Arc<Self>, StoreError> {
        check_options(&options)?;
        let directory = &env.directory;
        let io = |action, path: &Path| {
            let path = directory.display(path);
            move |source| StoreError::Io { action, path, source }
        };
        directory.create_folder(Path::new("")).map_err(io("create", Path::new("")))?;
        let lock_path = Path::new(LOCK_FILE);
        let lock = clearing(&**directory, &[lock_path], || directory.lock(lock_path)).map_err(io("lock", lock_path))?;
        let lock = lock.ok_or_else(|| StoreError::Locked { path: directory.display(lock_path) })?;
        let log_folder = &options.commit_log_folder;
        create_log_folder(&**directory, log_folder).map_err(io("open the commit log in", log_folder))?;
        for folder in ["consumequeue", "index", "config"].map(Path::new) {
            create_folder(&**directory, folder).map_err(io("create", folder))?;
        }

        let health = Arc::new(Health::new(env.fatal.clone()));
        let log = CommitLog::open(env.clone(), &options, health.clone())?;
        let queues = ConsumeQueues::open(directory.clone(), Path::new("consumequeue"), options.queue_file_bytes)?;
        let index = if options.index_enabled {
            Some(Index::open(directory.clone(), Path::new("index"), options.index_slots, options.index_entries)?)
        } else {
            None
        };
        let deletions = StateFile::new(directory.clone(), Path::new("config").join(DELETIONS_FILE));
        let deletions = Deletions::load(deletions);
        let store = Arc::new_cyclic(|store| {
            for plugin in &plugins {
                plugin.attach(StoreHandle::new(store.clone()));
            }
            let clock = env.clock.clone();
            Self {
                health,
                log,
                durability: Durability::default(),
                dispatcher: Dispatcher::new(queues, index, plugins, deletions, clock),
                dispatching: Mutex::default(),
                dispatched: AtomicU64::new(0),
                undispatched: AtomicU64::new(0),
                checkpointed: AtomicU64::new(0),
                room: Room::default(),
                damaged_bytes: AtomicU64::new(0),
                hopeless: Hopeless::default(),
                patience: Patience::default(),
                mended_entries: AtomicU64::new(0),
                damaged_ranges: AtomicU64::new(0),
                damaged_messages: AtomicU64::new(0),
                damaged_uncounted: AtomicU64::new(0),
                queues_whole_to: AtomicU64::new(0),
                cut_tails: AtomicU64::new(0),
                pin_logged: AtomicU64::new(0),
                drivers: Drivers::default(),
                exports: FailureRow::new("write a derived file of a plugin"),
                checkpoint_files: CheckpointFiles::new(env.directory.clone()),
                checkpointing: Mutex::default(),
                lock: Mutex::new(Some(lock)),
                options,
                env,
            }
        });
        recovery::recover(&store, from)?;
        store.room.look(&store);
        Ok(store)
    }

    /// Starts the threads of the store and its plugins.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn start(self: &Arc<Self>) -> Result<(), StoreError> {
        self.drivers.start(self)?;
        for plugin in &self.dispatcher.plugins {
            plugin.start()?;
        }
        Ok(())
    }

    /// Stops cleanly: plugins, dispatch, sync, checkpoint, lock. Appends are refused from now on.
    ///
    /// # Errors
    /// What could not be saved; the next start then recovers as after a kill.
    pub fn stop(&self) -> Result<(), StoreError> {
        for plugin in self.dispatcher.plugins.iter().rev() {
            plugin.stop();
        }
        self.health.close();
        self.drivers.stop();
        let stopped = self.finish();
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
        stopped
    }

    /// Saves everything, so that the next start has nothing to recover.
    fn finish(&self) -> Result<(), StoreError> {
        if let Err(error) = self.follow_clock() {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot follow the wall clock");
        }
        self.sync_once()?;
        while self.dispatch_round(u64::MAX)? {}
        self.checkpoint_once()?;
        self.log
            .drop_spare()
            .map_err(|source| self.io_error("remove the spare segment in", &self.options.commit_log_folder, source))?;
        let abort = Path::new(ABORT_FILE);
        let removed = self.env.directory.remove(abort).and_then(|()| self.env.directory.sync_folder(Path::new("")));
        removed.map_err(|source| self.io_error("remove", abort, source))
    }

    /// Appends one message. It is in the log when this returns, but not yet durable: see [`MessageStore::when_durable`].
    ///
    /// # Errors
    /// See [`AppendError`]; nothing was stored then.
    pub fn append(&self, draft: MessageDraft) -> Result<Appended, AppendError> {
        Ok(self.append_for_client(None, vec![draft])?[0])
    }

    /// Appends the members of a batch, which share topic and queue, under one lock, in one segment. `envelope` holds the properties of the
    /// batch itself.
    ///
    /// # Errors
    /// See [`AppendError`]; no member was stored then.
    pub fn append_batch(&self, envelope: &Properties, drafts: Vec<MessageDraft>) -> Result<Vec<Appended>, AppendError> {
        self.append_for_client(Some(envelope), drafts)
    }

    /// Appends messages that came together, each by itself: one that is refused leaves the others as they are. Gives what became of each, in
    /// order. They take one lock and one write, if all goes well.
    pub fn append_each(&self, drafts: Vec<MessageDraft>) -> Vec<Result<Appended, AppendError>> {
        let mut encoded = Encoded::with_room_for(&drafts);
        let admitted = drafts.into_iter().map(|mut draft| {
            let before = encoded.mark();
            let admitted = self.admit(&mut draft, None, &mut encoded).and_then(|()| {
                let taken = self.room.take(self, encoded.room_bytes_since(&before), 1);
                taken.inspect_err(|_| encoded.truncate(&before))
            });
            self.room.count(admitted)
        });
        let admitted: Vec<Result<(), AppendError>> = admitted.collect();
        if encoded.is_empty() {
            return admitted.into_iter().filter_map(|refused| refused.err().map(Err)).collect();
        }
        let mut appended = match self.append_encoded(&mut encoded, false) {
            Ok(appended) => appended.into_iter().map(Ok).collect::<VecDeque<_>>(),
            Err(error) if encoded.len() == 1 => VecDeque::from([self.room.count(Err(error))]),
            // What one of them cannot have the others may.
            Err(_) => {
                let each = encoded.split().into_iter().map(|mut one| {
                    let appended = self.append_encoded(&mut one, false);
                    self.room.count(appended.map(|appended| appended[0]))
                });
                each.collect()
            }
        };
        let closed = || Err(AppendError::Closed);
        admitted
            .into_iter()
            .map(|admitted| admitted.and_then(|()| appended.pop_front().unwrap_or_else(closed)))
            .collect()
    }

    fn append_for_client(
        &self,
        envelope: Option<&Properties>,
        drafts: Vec<MessageDraft>,
    ) -> Result<Vec<Appended>, AppendError> {
        let append = || {
            let mut encoded = Encoded::with_room_for(&drafts);
            for mut draft in drafts {
                self.admit(&mut draft, envelope, &mut encoded)?;
            }
            self.health.check()?;
            self.room.take(self, encoded.room_bytes, encoded.len() as u64)?;
            self.append_encoded(&mut encoded, true)
        };
        self.room.count(append())
    }

    pub(super) fn append_past_plugins(&self, encoded: &mut Encoded) -> Result<Vec<Appended>, AppendError> {
        self.append_encoded(encoded, false)
    }

    /// Checks a client's draft, shows it to the plugins and encodes it.
    fn admit(
        &self,
        draft: &mut MessageDraft,
        batch: Option<&Properties>,
        encoded: &mut Encoded,
    ) -> Result<(), AppendError> {
        if draft.body.len() > self.options.body_bytes_max {
            return Err(AppendError::BodyTooLarge { found: draft.body.len(), max: self.options.body_bytes_max });
        }
        // Zeros in them could not be told from a page that a power cut took.
        for (part, text) in [("topic", draft.topic.as_bytes()), ("properties", draft.properties.as_bytes())] {
            if memchr::memchr(0, text).is_some() {
                let remark = format!("the message contains a NUL character in its {part}");
                return Err(Refusal { kind: RefusalKind::Illegal, remark }.into());
            }
        }
        draft.prepared_offset = 0;
        let context = AdmitContext { batch, body_bytes_max: self.options.body_bytes_max };
        let mut mark = None;
        for (index, plugin) in self.dispatcher.plugins.iter().enumerate() {
            if let Admission::Marked(by_plugin) = plugin.admit(draft, &context)? {
                mark = Some((index, by_plugin));
                break;
            }
        }
        encoded.push(draft, mark)
    }

    fn append_encoded(&self, encoded: &mut Encoded, together: bool) -> Result<Vec<Appended>, AppendError> {
        let count = encoded.len() as u64;
        self.undispatched.fetch_add(count, Ordering::Relaxed);
        let appended = self.log.append(encoded, &self.dispatcher.plugins, together);
        let appended = appended.inspect_err(|_| self.dispatched_records(count)).map_err(|error| match error {
            AppendError::Io(error) if is_full(&error) => self.room.no_space(self, &error),
            error => error,
        })?;
        self.drivers.appended(self);
        Ok(appended)
    }

    /// Records and bytes that the records which wait will take when they are written once more. What is not dispatched yet may all wait.
    pub(super) fn owed(&self) -> Owed {
        let behind = self.log.written().since(PhysicalOffset(self.dispatched.load(Ordering::Acquire)));
        let undispatched = Owed { records: self.undispatched_records(), bytes: behind, queues: 0 };
        self.dispatcher.plugins.iter().map(|plugin| plugin.owes()).fold(undispatched, |owed, by_plugin| Owed {
            records: owed.records + by_plugin.records,
            bytes: owed.bytes + by_plugin.bytes + by_plugin.records * RECORD_EXTRA_BYTES,
            queues: owed.queues.max(by_plugin.queues),
        })
    }

    /// How many records have no entries in queues and index yet, about.
    pub(super) fn undispatched_records(&self) -> u64 {
        self.undispatched.load(Ordering::Relaxed)
    }

    fn dispatched_records(&self, count: u64) {
        let rest = |undispatched: u64| Some(undispatched.saturating_sub(count));
        let _ = self.undispatched.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
    }

    /// Whether an answer must wait for durability ([`FlushPolicy::Sync`]).
    pub fn waits_for_sync(&self) -> bool {
        self.options.flush_policy == FlushPolicy::Sync
    }

    /// Calls back once everything before `end` is durable, at once if it is; asks for a sync. Callbacks run on the syncing thread.
    pub fn when_durable(&self, end: PhysicalOffset, callback: DurableCallback) {
        self.durability.wait(end, callback, &self.health);
        self.drivers.wake_flusher();
    }

    /// Everything before this position is durable.
    pub fn durable(&self) -> PhysicalOffset {
        self.durability.durable()
    }

    /// The oldest position still there, and the position behind the newest record.
    pub fn log_range(&self) -> (PhysicalOffset, PhysicalOffset) {
        (self.log.first(), self.log.written())
    }

    /// Everything before this position may be shown to others: under SYNC_FLUSH only what is durable.
    pub(super) fn readable(&self) -> PhysicalOffset {
        let only_durable = self.waits_for_sync() && !Mutation::ReadBeforeDurable.is_on();
        if only_durable { self.durability.durable() } else { self.log.written() }
    }

    /// How many bytes of the log are not dispatched yet.
    pub fn dispatch_behind_bytes(&self) -> u64 {
        self.readable().since(PhysicalOffset(self.dispatched.load(Ordering::Acquire)))
    }

    /// How many bytes of the log lie behind the first message that cannot be pulled yet: it is not dispatched, or its queue cannot be written.
    pub fn invisible_bytes(&self) -> u64 {
        let behind = self.dispatch_behind_bytes();
        if !self.dispatcher.is_failing() {
            return behind;
        }
        // What only has to be cleared beyond the end of a queue is said to lie at 0.
        let unwritten = self.dispatcher.unwritten_from().filter(|(from, _)| *from >= self.log.first());
        unwritten.map_or(behind, |(from, _)| behind.max(self.readable().since(from)))
    }

    /// The store's own time: it never falls, and goes on at the pace of the boot-time clock, whatever the wall clock does.
    pub fn now(&self) -> Timestamp {
        self.log.clock().now()
    }

    /// What the boot-time clock shows when the store's own time reaches `time`, if it does not jump before: see [`Plugin::clock_jumped`].
    pub fn since_boot_at(&self, time: Timestamp) -> Duration {
        self.log.clock().since_boot_at(time)
    }

    /// The jumps of store time that move deadlines. Asked for after [`MessageStore::now`], they hold all that led to that time.
    pub fn clock_jumps(&self) -> ClockJumps {
        self.log.clock().jumps()
    }

    /// How far the store's own time is ahead of the wall clock, in milliseconds; negative if it is behind.
    pub fn ahead_of_wall_ms(&self) -> i64 {
        self.log.clock().ahead_of_wall_ms()
    }

    /// Lets the store's own time follow the wall clock, if that was set forward; gives by how much.
    ///
    /// # Errors
    /// The jump could not be recorded; store time goes on without it, and the next call tries again. [`StoreError::Failed`] if it could not be
    /// taken back either: the store accepts no more appends.
    pub fn follow_clock(&self) -> Result<Option<Duration>, StoreError> {
        let mut saved = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = self.log.clock();
        let (Some(before), Some(jump)) = (&*saved, clock.due_jump()) else { return Ok(None) };
        let Some(recording) = clock.record(jump) else { return Ok(None) };
        let mut checkpoint = Checkpoint { clock: recording.to_save(), ..before.clone() };
        if Mutation::JumpBeforeRecorded.is_on() {
            recording.follow();
            self.checkpoint_files.save_clock(&checkpoint)?;
            return Ok(Some(jump.by));
        }
        if let Err(error) = self.checkpoint_files.save_clock(&checkpoint) {
            let in_place = self.checkpoint_files.load().is_none_or(|found| found.checkpoint.clock == checkpoint.clock);
            // Twice, so that the version before does not hold it either.
            let taken_back =
                || self.checkpoint_files.save_clock(before).and_then(|()| self.checkpoint_files.save_clock(before));
            if in_place && let Err(error) = taken_back() {
                // A process after this one would believe it, and what is stored meanwhile would be early.
                let reason = format!("a jump of the clock can neither be recorded nor taken back: {error}");
                self.health.fail(&reason);
                return Err(StoreError::Failed { reason });
            }
            return Err(error);
        }
        recording.follow();
        // No append is under way that took its store time before.
        clock.jumped_before(self.log.end());
        checkpoint.clock = clock.to_save();
        tracing::warn!(
            by_ms = jump.by.as_millis(),
            "the wall clock was set forward; store time follows, and what waits keeps its time"
        );
        *saved = Some(checkpoint);
        drop(saved);
        if let Err(error) = self.save_clock_again() {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot write the checkpoint a second time");
        }
        for plugin in &self.dispatcher.plugins {
            plugin.clock_jumped(jump.by);
        }
        Ok(Some(jump.by))
    }

    /// What the store was opened with.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The store's options.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Who is told when messages can be read. Set once, before [`MessageStore::start`]; a second one is ignored.
    pub fn set_arrival_listener(&self, listener: Arc<dyn ArrivalListener>) {
        if self.dispatcher.listener.set(listener).is_err() {
            tracing::warn!("a second arrival listener is ignored");
        }
    }

    /// Writes the last checkpoint once more, so that the version before holds a new clock, too.
    pub(super) fn save_clock_again(&self) -> Result<(), StoreError> {
        let saved = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        saved.as_ref().map_or(Ok(()), |checkpoint| self.checkpoint_files.save_clock(checkpoint))
    }

    /// Deletes what is stored for a topic: its queues are removed, and what is not dispatched yet never will be; its records stay in the log
    /// until retention. A later message begins at queue offset 0. Durable on return.
    ///
    /// # Errors
    /// As the directory gives them: the topic may be as it was, now or after the next start.
    pub fn delete_topic(&self, topic: &str) -> Result<(), StoreError> {
        // No round may be under way, or it would write into a queue that is gone; nor one come before all is done, or it would put what is
        // new into the old queue.
        let _dispatching = self.dispatching.lock().unwrap_or_else(PoisonError::into_inner);
        let (position, offsets) = self.log.forget_topic(topic);
        // Were the log to end before that position, what is stored there later would count as deleted.
        let noted = self.sync_once().and_then(|()| {
            let noted = self.dispatcher.deletions.add(topic, position, self.log.first());
            noted.map_err(|source| self.io_error("write", &Path::new("config").join(DELETIONS_FILE), source))
        });
        if let Err(error) = noted {
            self.log.remember_topic(topic, offsets);
            return Err(error);
        }
        self.dispatcher.queues.delete_topic(topic)
    }

    /// The position below which everything that was stored for a topic is deleted, if it ever was.
    pub fn deleted_to(&self, topic: &str) -> Option<PhysicalOffset> {
        self.dispatcher.deletions.position(topic)
    }

    /// A small JSON file of the folder `config`, kept with a `.bak`.
    pub fn state_file(&self, name: &str) -> StateFile {
        StateFile::new(self.env.directory.clone(), Path::new("config").join(name))
    }

    /// Asks the plugins about a change of a setting; the first that knows the key decides.
    pub fn change_setting(&self, key: &str, value: &str) -> SettingChange {
        let answers = self.dispatcher.plugins.iter().map(|plugin| plugin.change_setting(key, value));
        answers.into_iter().find(|answer| *answer != SettingChange::NotMine).unwrap_or(SettingChange::NotMine)
    }

    /// The figures of the store and its plugins.
    pub fn figures(&self) -> Vec<Figure> {
        let (first, end) = self.log_range();
        let number = |name: &str, value: u64| Figure {
            name: name.into(),
            labels: Vec::new(),
            value: FigureValue::Number(value as f64),
        };
        let mut figures = vec![
            number("commitLogMinOffset", first.0),
            number("commitLogMaxOffset", end.0),
            number("unsyncedBytes", end.since(self.durable())),
            number("dispatchBehindBytes", self.invisible_bytes()),
            number("damagedBytes", self.damaged_bytes.load(Ordering::Relaxed)),
            number("clockJumps", self.log.clock().followed()),
            number("clockStepsBack", self.log.clock().steps_back()),
            number("clockJumpsKept", self.clock_jumps().as_slice().len() as u64),
            Figure {
                name: "storeTimeAheadOfWallMs".into(),
                labels: Vec::new(),
                value: FigureValue::Number(self.ahead_of_wall_ms() as f64),
            },
            number("mendedQueueEntries", self.mended_entries.load(Ordering::Relaxed)),
        ];
        figures.push(number("pendingRoomBytes", self.owed().bytes));
        figures.push(number("damagedRanges", self.damaged_ranges.load(Ordering::Relaxed)));
        figures.push(number("damagedMessages", self.damaged_messages.load(Ordering::Relaxed)));
        figures.push(number("damagedRangesUncounted", self.damaged_uncounted.load(Ordering::Relaxed)));
        figures.push(number("cutTails", self.cut_tails.load(Ordering::Relaxed)));
        figures.push(number("failedSyncs", u64::from(self.health.failure().is_some())));
        if let Some((plugin, pinned)) = self.pinned() {
            let held = |name: &str, value: u64| Figure {
                name: name.into(),
                labels: vec![("by", plugin.to_owned())],
                value: FigureValue::Number(value as f64),
            };
            figures.push(held("pinnedFrom", pinned.0));
            figures.push(held("pinnedBytes", self.log.written().since(pinned)));
        }
        let [failures, rebuilt, behind] = self.dispatcher.faults();
        figures.push(number("queueWriteFailures", failures));
        figures.push(number("queuesCaughtUp", rebuilt));
        figures.push(number("queuesBehind", behind));
        figures.extend(self.room.refused().map(|(reason, count)| Figure {
            name: "refusedSends".into(),
            labels: vec![("reason", reason.name().to_owned())],
            value: FigureValue::Number(count as f64),
        }));
        figures.extend(self.dispatcher.plugins.iter().flat_map(|plugin| plugin.figures()));
        figures
    }

    /// Why the store takes no messages now (disk full, failed, stopped); `None` if it does.
    pub fn not_writable(&self) -> Option<AppendError> {
        self.health.check().err().or_else(|| self.room.refusal(self))
    }

    /// Dispatches records up to the readable position, about `bytes_max` bytes of log; says whether there is more.
    pub fn dispatch_once(&self, bytes_max: u64) -> bool {
        self.dispatch_round(bytes_max).unwrap_or_else(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot dispatch; trying again");
            false
        })
    }

    /// One round of dispatch within one segment; says whether there is more.
    pub(super) fn dispatch_round(&self, bytes_max: u64) -> Result<bool, StoreError> {
        let mut dispatching = self.dispatching.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = self.readable();
        let from = dispatching.position;
        if from >= limit {
            if self.dispatcher.is_failing() {
                // What could not be written is tried again.
                self.dispatcher.round(&[], false);
                self.catch_up(from)?;
            }
            return Ok(false);
        }
        let Some(segment) = self.log.segment_at(from) else {
            // Retention, or a segment that vanished: what lies there cannot be dispatched any more.
            let next =
                self.log.segments().iter().map(|segment| segment.base).find(|base| *base > from).unwrap_or(limit);
            self.report_damage(from, next, "is missing");
            dispatching.position = next;
            self.dispatched.store(next.0, Ordering::Release);
            return Ok(next < limit);
        };
        let visible = usize::try_from(limit.min(segment.end()).since(from)).unwrap_or(usize::MAX);
        let failed = |source| self.io_error("read", &segment.path, source);
        let sight = segment.sight(from, visible).map_err(failed)?;
        let bytes: &Bytes = &sight.bytes;

        let mut records: Vec<Located<'_>> = Vec::new();
        let mut at = 0;
        while at < visible && (at as u64) < bytes_max && records.len() < ROUND_RECORDS_MAX {
            let position = from.plus(at as u64);
            match look(&bytes[at..], position, segment.end().since(position), false) {
                Found::Record(record) => {
                    records.push(Located { position, record });
                    at += record.total_bytes() as usize;
                }
                Found::SegmentEnd => at = visible,
                Found::Bad => {
                    let skipped = next_sound(&bytes[at..], position).unwrap_or(visible - at);
                    sight.check().map_err(failed)?;
                    self.report_damage(position, position.plus(skipped as u64), "is damaged");
                    at += skipped;
                }
            }
        }
        sight.check().map_err(failed)?;
        self.dispatcher.round(&records, false);
        if let Some(last) = records.last() {
            dispatching.last = Some(last_record(last));
        }
        dispatching.position = from.plus(at as u64);
        self.dispatched.store(dispatching.position.0, Ordering::Release);
        self.dispatched_records(records.len() as u64);
        self.catch_up(dispatching.position)?;
        Ok(dispatching.position < limit)
    }

    /// Gives queues and index a part of what they missed before `to`.
    fn catch_up(&self, to: PhysicalOffset) -> Result<(), StoreError> {
        if self.dispatcher.has_aside() {
            self.dispatcher.catch_up(to, &|from, see| self.walk(from, to, see))?;
        }
        Ok(())
    }

    /// Shows records from `from` on, to `to` or the end of a segment, and not many more bytes than [`WALK_BYTES`]; says how far.
    fn walk(
        &self,
        from: PhysicalOffset,
        to: PhysicalOffset,
        see: &mut dyn FnMut(&Located<'_>),
    ) -> Result<PhysicalOffset, StoreError> {
        let Some(segment) = self.log.segment_at(from) else {
            let next = self.log.segments().iter().map(|segment| segment.base).find(|base| *base > from);
            return Ok(next.unwrap_or(to).min(to));
        };
        let failed = |source| self.io_error("read", &segment.path, source);
        let left = usize::try_from(to.min(segment.end()).since(from)).unwrap_or(usize::MAX);
        let sight = segment.sight(from, left).map_err(failed)?;
        let mut records = Vec::new();
        let mut at = 0;
        while at < left && at < WALK_BYTES {
            let position = from.plus(at as u64);
            at += match look(&sight.bytes[at..], position, segment.end().since(position), false) {
                Found::Record(record) => {
                    records.push(Located { position, record });
                    record.total_bytes() as usize
                }
                Found::SegmentEnd => left - at,
                Found::Bad => next_sound(&sight.bytes[at..], position).unwrap_or(left - at),
            };
        }
        sight.check().map_err(failed)?;
        records.iter().for_each(see);
        Ok(from.plus(at as u64))
    }

    /// Says that a range of the log cannot be used. Nothing is cut: what lies behind it goes on.
    pub(super) fn report_damage(&self, from: PhysicalOffset, to: PhysicalOffset, what: &str) {
        self.damaged_bytes.fetch_add(to.since(from), Ordering::Relaxed);
        self.damaged_ranges.fetch_add(1, Ordering::Relaxed);
        let messages = self.messages_within(from, to);
        match messages {
            Some(messages) => self.damaged_messages.fetch_add(messages, Ordering::Relaxed),
            None => self.damaged_uncounted.fetch_add(1, Ordering::Relaxed),
        };
        tracing::error!(
            physical_offset = from.0,
            to = to.0,
            bytes = to.since(from),
            messages = messages.map_or_else(|| "an unknown number".to_owned(), |messages| messages.to_string()),
            "a part of the commit log {what}; going on behind it"
        );
    }

    /// How many messages lie in a range of the log, if queues tell.
    fn messages_within(&self, from: PhysicalOffset, to: PhysicalOffset) -> Option<u64> {
        let is_known = to.0 <= self.queues_whole_to.load(Ordering::Relaxed);
        is_known.then(|| self.dispatcher.queues.count_within(from, to).ok())?
    }

    /// Syncs what was written and releases those who wait.
    ///
    /// # Errors
    /// [`StoreError::Failed`]: the store accepts no more appends.
    pub fn sync_once(&self) -> Result<(), StoreError> {
        let before = self.durable();
        self.durability.sync(&self.log, &*self.env.directory, &self.health)?;
        if self.waits_for_sync() && self.durable() > before {
            self.drivers.wake_dispatcher();
        }
        Ok(())
    }

    /// Syncs log, queues and index, and writes the checkpoint.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn checkpoint_once(&self) -> Result<(), StoreError> {
        let mut saved = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        // State and position belong together: no round may be under way.
        let (position, last, derived, plugins, waiting_from) = {
            let dispatching = self.dispatching.lock().unwrap_or_else(PoisonError::into_inner);
            let state = |plugin: &Arc<dyn Plugin>| (plugin.name().to_owned(), plugin.state());
            let plugins = self.dispatcher.plugins.iter().map(state).collect();
            let pinned = self.dispatcher.plugins.iter().filter_map(|plugin| plugin.pinned_from()).min();
            let waiting_from = pinned.map_or(dispatching.position, |pinned| pinned.min(dispatching.position));
            (dispatching.position, dispatching.last, self.dispatcher.derived(), plugins, waiting_from)
        };
        if let Some((from, path)) = self.dispatcher.unwritten_from().filter(|(from, _)| *from < position) {
            return Err(StoreError::Behind { path, from: from.0 });
        }
        if self.durable() < position && !Mutation::CheckpointBeforeSync.is_on() {
            self.sync_once()?;
        }
        let queues = if Mutation::QueuesUnsynced.is_on() { None } else { first_error(self.dispatcher.queues.sync()) };
        let index = self.dispatcher.index.as_ref().and_then(|index| index.sync().err());
        if let Some(error) = queues.or(index) {
            // No later sync tells whether those pages were saved, so no later checkpoint could be true: the next start writes them again.
            self.health.fail(&format!("{error}: {}", source_of(&error)));
            return Err(error);
        }
        let confirmed = i64::try_from(position.0).unwrap_or(i64::MAX);
        // What was restored up to the position is durable by now.
        self.log.clock().forget_before(waiting_from);
        let clock = self.log.clock().to_save();
        // No store time lies beyond that of now, unless it is damaged: it is not passed on.
        let stored_at = Timestamp(last.map_or(0, |last| last.stored_at)).min(clock.store_time);
        let checkpoint = Checkpoint {
            position,
            log_first: self.log.first(),
            last_record: last,
            clock,
            rocketmq: RocketmqCheckpoint {
                log_time: stored_at,
                queue_time: stored_at,
                index_time: self.dispatcher.index.as_ref().map_or(Timestamp::EPOCH, Index::synced_time),
                master_flushed: 0,
                confirmed,
            },
            derived,
            plugins,
        };
        self.checkpoint_files.save(&checkpoint)?;
        *saved = Some(checkpoint);
        self.checkpointed.store(position.0, Ordering::Release);
        for plugin in &self.dispatcher.plugins {
            let exported = plugin.export();
            let outcome = exported.as_ref().map_err(|error| error as &dyn std::error::Error);
            let folder = || self.env.directory.display(Path::new("config"));
            self.exports.attempted(outcome, self.env.clock.since_boot(), folder);
        }
        Ok(())
    }

    pub(super) fn io_error(&self, action: &'static str, path: &Path, source: io::Error) -> StoreError {
        StoreError::Io { action, path: self.env.directory.display(path), source }
    }
}

/// What lies behind an error.
fn source_of(error: &StoreError) -> String {
    std::error::Error::source(error).map_or_else(String::new, ToString::to_string)
}

/// What a checkpoint says of the record that ends at it.
pub(super) fn last_record(located: &Located<'_>) -> LastRecord {
    LastRecord {
        position: located.position.0,
        bytes: located.record.total_bytes(),
        stored_at: located.record.stored_at().0,
        crc32: crc32fast::hash(located.record.bytes()),
    }
}

/// Checks the options that depend on one another.
/// Creates the folder of the commit log. A file in its place may hold what it held: it is moved away only if it is empty.
fn create_log_folder(directory: &dyn Directory, folder: &Path) -> io::Result<()> {
    match what_stands(directory, folder)? {
        Some(found) if found.kind != EntryKind::Folder && found.bytes > 0 => {
            let text =
                format!("it is a file of {} bytes, and no folder; move it away, or put the folder back", found.bytes);
            Err(io::Error::new(io::ErrorKind::NotADirectory, text))
        }
        _ => create_folder(directory, folder),
    }
}

fn check_options(options: &StoreOptions) -> Result<(), StoreError> {
    let largest = options.body_bytes_max as u64 + RECORD_OVERHEAD_BYTES_MAX;
    if options.segment_bytes < largest {
        return Err(StoreError::Option {
            key: "mappedFileSizeCommitLog",
            reason: format!(
                "{} bytes are less than the largest record, maxMessageSize + {RECORD_OVERHEAD_BYTES_MAX} = {largest}",
                options.segment_bytes
            ),
        });
    }
    if options.segment_bytes > 1 << 31 {
        let reason =
            format!("{} bytes are more than {}, the most that a segment may have", options.segment_bytes, 1u64 << 31);
        return Err(StoreError::Option { key: "mappedFileSizeCommitLog", reason });
    }
    if options.queue_file_bytes == 0 || !options.queue_file_bytes.is_multiple_of(super::QUEUE_ENTRY_BYTES) {
        let reason = format!("{} is not a positive multiple of {}", options.queue_file_bytes, super::QUEUE_ENTRY_BYTES);
        return Err(StoreError::Option { key: "mappedFileSizeConsumeQueue", reason });
    }
    Ok(())
}

impl std::fmt::Debug for MessageStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageStore").field("log", &self.log_range()).finish_non_exhaustive()
    }
}
