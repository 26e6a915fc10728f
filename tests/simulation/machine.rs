//! The simulated machine: clocks, a disk, and at most one process on it.

use std::{
    collections::VecDeque,
    mem,
    path::Path,
    sync::{Arc, Mutex, OnceLock, Weak},
    time::Duration,
};

use latermq::{
    broker::{Broker, BrokerOptions, Resolved, Topics},
    delay::{DelayOptions, LevelAudit, LevelScheduler, LevelTable, RealQueue, RealTopics},
    env::{Clock, Directory, Env, MemoryDirectory, TestClock},
    model::{PhysicalOffset, QueueId, Timestamp},
    protocol::Command,
    remoting::{Connection, Handler, Responder},
    store::{
        ClockJumps, FigureValue, FlushPolicy, MessageStore, Plugin, StateFile, StoreAudit, StoreError, StoreOptions,
        audit,
    },
};

/// When the simulated world begins.
const BEGIN: Timestamp = Timestamp(1_700_000_000_000);
/// Largest body.
pub(crate) const BODY_BYTES_MAX: usize = 8_000;
/// Length of a segment: as short as the store allows, so that it is often full.
pub(crate) const SEGMENT_BYTES: u64 = 73_728;
/// Queues of each real topic.
pub(crate) const QUEUES: u32 = 2;

/// What the next process is started with.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) flush_policy: FlushPolicy,
    pub(crate) levels: LevelTable,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Kill,
    /// With the seed that decides what of the unsynced is left.
    PowerLoss(u64),
}

/// The machine.
pub(crate) struct Machine {
    pub(crate) clock: TestClock,
    pub(crate) directory: MemoryDirectory,
    pub(crate) settings: Settings,
    /// Real time since the world began; no step of a clock changes it.
    pub(crate) elapsed: Duration,
    /// By how much the wall clock seemed to go on, where only the wall clock was left to tell: across reboots, and where the clock on record was
    /// lost.
    pub(crate) forward: Duration,
    /// Store time when the last process ended, and the real time then.
    ended_at: Option<(Timestamp, Duration)>,
    /// Store time when it was last looked at, and the real time then.
    looked_at: (Timestamp, Duration),
    /// By how much store time jumped so far, as the checkpoint has it on record.
    jumped: Duration,
    rebooted: bool,
    /// The checkpoints of ours were lost since the last process.
    pub(crate) clock_lost: bool,
    /// Everything before this is durable, as far as the process said.
    pub(crate) durable: PhysicalOffset,
    fatal: Arc<Mutex<Vec<String>>>,
    process: Option<Process>,
    /// Traces of the directories so far.
    trace: u64,
}

/// A running broker: all but its sockets and threads.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) store: Arc<MessageStore>,
    pub(crate) scheduler: Arc<LevelScheduler>,
    pub(crate) broker: Arc<Broker>,
    /// What all clients send by.
    client: Arc<Connection>,
}

/// The topics of the broker, which comes after the scheduler. They hold the store, which holds the scheduler: were they held here, no world would
/// ever be freed.
#[derive(Default)]
struct LateTopics(OnceLock<Weak<Topics>>);

impl LateTopics {
    fn topics(&self) -> Option<Arc<Topics>> {
        self.0.get().and_then(Weak::upgrade)
    }
}

impl RealTopics for LateTopics {
    fn resolve(&self, topic: &str, queue_id: u32, waiting_since: PhysicalOffset) -> RealQueue {
        let topics = self.topics().expect("nothing is restored before the broker is there");
        match topics.resolve(topic, QueueId(queue_id), waiting_since) {
            Resolved::Queue(queue_id) => RealQueue::Deliver(queue_id),
            Resolved::Deleted => RealQueue::Deleted,
        }
    }

    fn queue_count(&self) -> u64 {
        self.topics().map_or(0, |topics| topics.queue_count())
    }
}

impl Process {
    /// Hands a request to the broker; its answer comes with [`Process::answers`].
    pub(crate) fn send(&self, request: Command) {
        let responder = Responder::new(&self.client, &request);
        self.broker.handle(&self.client, request, responder);
    }

    /// Hands requests to the broker that came together.
    pub(crate) fn send_together(&self, requests: Vec<Command>) {
        let with_responder = |request| {
            let responder = Responder::new(&self.client, &request);
            (request, responder)
        };
        let mut requests: VecDeque<_> = requests.into_iter().map(with_responder).collect();
        while !requests.is_empty() {
            self.broker.handle_some(&self.client, &mut requests);
        }
    }

    /// A figure of the store.
    pub(crate) fn figure(&self, name: &str) -> f64 {
        let found = self.store.figures().into_iter().find(|figure| figure.name == name);
        match found.map(|figure| figure.value) {
            Some(FigureValue::Number(number)) => number,
            other => panic!("figure {name}: {other:?}"),
        }
    }

    /// The answers since the last call.
    pub(crate) fn answers(&self) -> Vec<Command> {
        self.client.take_sent().into_iter().filter(Command::is_response).collect()
    }
}

impl Machine {
    /// A machine with an empty disk.
    pub(crate) fn new(settings: Settings) -> Self {
        let clock = TestClock::new(BEGIN);
        Self {
            directory: MemoryDirectory::with_clock(Arc::new(clock.clone())),
            clock,
            settings,
            elapsed: Duration::ZERO,
            forward: Duration::ZERO,
            ended_at: None,
            looked_at: (BEGIN, Duration::ZERO),
            jumped: Duration::ZERO,
            rebooted: false,
            clock_lost: false,
            durable: PhysicalOffset::ZERO,
            fatal: Arc::default(),
            process: None,
            trace: 0,
        }
    }

    /// Starts the process.
    pub(crate) fn start(&mut self) -> Result<(), StoreError> {
        let fatal = self.fatal.clone();
        let env = Env {
            clock: Arc::new(self.clock.clone()),
            directory: Arc::new(self.directory.clone()),
            fatal: Arc::new(move |reason| fatal.lock().unwrap().push(reason.to_owned())),
        };
        let options = DelayOptions { levels: self.settings.levels.clone(), ..DelayOptions::default() };
        let topics = Arc::new(LateTopics::default());
        let scheduler = Arc::new(LevelScheduler::new(options, topics.clone()));
        let store = MessageStore::open(store_options(self.settings.flush_policy), env, vec![scheduler.clone()])?;
        self.durable = store.durable();
        let broker = Broker::new(BrokerOptions::default(), store.clone());
        assert!(topics.0.set(Arc::downgrade(broker.topics())).is_ok());
        let client = Connection::unconnected(([10, 0, 0, 7], 4000).into(), ([127, 0, 0, 1], 10911).into());
        if let Some((ended, at)) = self.ended_at.filter(|_| self.rebooted || self.clock_lost) {
            self.forward += store.now().since(ended).saturating_sub(self.elapsed - at);
        }
        if self.clock_lost {
            // Nobody knows any more that what waits moved along.
            self.forward += mem::take(&mut self.jumped);
        }
        self.clock_lost = false;
        self.process = Some(Process { store, scheduler, broker, client });
        self.look_at_clock();
        self.rebooted &= !self.boot_is_on_record();
        Ok(())
    }

    /// Whether our checkpoint was written since the machine booted.
    fn boot_is_on_record(&self) -> bool {
        let text = self.directory.read(Path::new("latermq.checkpoint")).ok().flatten().unwrap_or_default();
        String::from_utf8_lossy(&text).contains(&format!("\"{}\"", self.clock.boot_id().0))
    }

    /// Takes note of how much faster store time went than real time.
    fn look_at_clock(&mut self) {
        let Some(process) = &self.process else { return };
        let (store_time, elapsed) = (process.store.now(), self.elapsed);
        let (last, at) = mem::replace(&mut self.looked_at, (store_time, elapsed));
        self.jumped += store_time.since(last).saturating_sub(elapsed - at);
    }

    /// Takes note of the store time at the end of a process.
    fn note_end(&mut self) {
        if let Some(process) = &self.process {
            self.ended_at = Some((process.store.now(), self.elapsed));
        }
    }

    /// The running process.
    pub(crate) fn process(&self) -> &Process {
        self.process.as_ref().expect("a process runs")
    }

    /// Whether a process runs.
    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Takes note of how far the process says that the log is durable.
    pub(crate) fn note_durable(&mut self) {
        if let Some(process) = &self.process {
            self.durable = process.store.durable();
        }
        self.look_at_clock();
    }

    /// Whether the process must end: the disk stopped under it, or it said so itself.
    pub(crate) fn must_end(&self) -> bool {
        self.directory.has_stopped() || !self.fatal.lock().unwrap().is_empty()
    }

    /// Why the process said that it must end.
    pub(crate) fn fatal_reasons(&self) -> Vec<String> {
        self.fatal.lock().unwrap().clone()
    }

    /// Ends the process as it stands. Gives how far the log was durable.
    pub(crate) fn end(&mut self, end: End) -> PhysicalOffset {
        self.note_durable();
        self.note_end();
        let left = match end {
            End::Kill => self.directory.kill(),
            End::PowerLoss(seed) => {
                self.clock.reboot();
                self.rebooted = true;
                self.directory.crash(seed)
            }
        };
        self.trace = mix(self.trace, self.directory.trace());
        self.directory.stop();
        self.process = None;
        self.directory = left;
        mem::take(&mut *self.fatal.lock().unwrap());
        self.durable
    }

    /// Stops the process cleanly.
    pub(crate) fn stop(&mut self) -> Result<(), StoreError> {
        self.process().broker.save();
        let stopped = self.process().store.stop();
        self.note_durable();
        self.note_end();
        self.process = None;
        stopped
    }

    /// What an audit of the disk says while no process runs; `None` if there is no log yet.
    pub(crate) fn audit(&self) -> Option<StoreAudit> {
        // A copy: no fault is planned for it, and nobody counts its steps.
        let env = Env {
            clock: Arc::new(self.clock.clone()),
            directory: Arc::new(self.directory.kill()),
            fatal: Arc::new(|_| ()),
        };
        if env.directory.list(Path::new("commitlog")).expect("the folder").is_empty() {
            return None;
        }
        let file = StateFile::new(env.directory.clone(), Path::new("config").join(LevelAudit::FILE));
        let mut levels = LevelAudit::new(self.settings.levels.clone(), &file, ClockJumps::load(&env.directory));
        let options = store_options(self.settings.flush_policy);
        let mut audited = audit(&options, &env, &mut levels, &mut |_, _| ()).expect("the store can be read");
        levels.finish(&mut audited, self.clock.wall());
        Some(audited)
    }

    /// What the threads of the process do until all is done that can be done now.
    pub(crate) fn work(&self) {
        let Process { store, scheduler, .. } = self.process();
        loop {
            store.sync_once().expect("no fault is planned");
            while store.dispatch_once(u64::MAX) {}
            let tick = scheduler.tick(store.now());
            if tick.restored + tick.parked == 0 && tick.next_deadline.is_none_or(|next| next > store.now()) {
                return;
            }
        }
    }

    /// Whether messages wait.
    pub(crate) fn waits(&self) -> bool {
        self.process().scheduler.owes().records > 0
    }

    /// Dispatches what can be read.
    pub(crate) fn work_without_sync(&self) {
        while self.process().store.dispatch_once(u64::MAX) {}
    }

    /// Lets time pass.
    pub(crate) fn advance(&mut self, time: Duration) {
        self.clock.advance(time);
        self.elapsed += time;
    }

    /// Steps the wall clock.
    pub(crate) fn step_wall(&mut self, ms: i64) {
        self.clock.step_wall(ms);
    }

    /// Sets the wall clock.
    pub(crate) fn set_wall(&mut self, to: Timestamp) {
        self.step_wall(to.0 - self.clock.wall().0);
    }

    /// A hash of all that was done on the disk.
    pub(crate) fn trace(&self) -> u64 {
        mix(self.trace, self.directory.trace())
    }
}

fn store_options(flush_policy: FlushPolicy) -> StoreOptions {
    StoreOptions {
        commit_log_folder: Path::new("commitlog").into(),
        segment_bytes: SEGMENT_BYTES,
        queue_file_bytes: 20 * 32,
        index_slots: 16,
        index_entries: 64,
        body_bytes_max: BODY_BYTES_MAX,
        flush_policy,
        reserved_time: Duration::from_secs(2 * 3600),
        delete_when: (0..24).collect(),
        pull_bytes_max: 1 << 20,
        pull_count_max: 1_000,
        ..StoreOptions::default()
    }
}

/// Mixes a value into a hash.
pub(crate) fn mix(hash: u64, value: u64) -> u64 {
    (hash ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31)
}
