//! Power loss on real files: a second folder holds what was synced, and only that. The store works on one folder with its threads and the real
//! clock; at some instant the power goes, and it is opened again on what the other folder has.
//!
//! The content of a file is mirrored by its sync, that a name exists or is gone by the sync of its folder.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use latermq::{
    delay::{DelayOptions, LevelScheduler, RealQueue, RealTopics},
    env::{Allocation, Directory, Entry, Env, File, FsDirectory, Lock, Space, SystemClock},
    model::{MessageDraft, PhysicalOffset, Properties, QueueId, SCHEDULE_TOPIC, SysFlag, Timestamp, Topic, names},
    record::{Record, Records},
    store::{FlushPolicy, MessageStore, PullQuery, StoreOptions},
};

use crate::{
    audit::{audit_with, delays},
    client::Message,
    ledger::Ledger,
    process::{BODY_BYTES_MAX, SEGMENT_BYTES, folder},
};

const LEVELS: &str = "1s 2s 1s 2s";
/// Power losses of one story.
const LOSSES: u64 = 6;
/// Queues of the topic.
const QUEUES: u32 = 2;
const TOPIC: &str = "orders";
/// ASYNC_FLUSH: the longest time that a byte stays un-synced.
const THOROUGH: Duration = Duration::from_millis(300);
/// What a busy machine may take for a sync on top of that.
const SYNC_MAX: Duration = Duration::from_millis(700);

#[test]
fn power_losses_under_sync_flush_lose_nothing_that_was_acknowledged() {
    run(FlushPolicy::Sync);
}

#[test]
fn power_losses_under_async_flush_lose_at_most_the_last_interval() {
    run(FlushPolicy::Async);
}

/// What is durable: names, and the content of files by number.
#[derive(Default)]
struct Durable {
    /// Number of the file that has a name now, and after a power loss.
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    contents: HashMap<u64, Vec<u8>>,
    next: u64,
}

/// A folder that remembers what of it is durable.
#[derive(Clone)]
struct Recorder {
    live: Arc<FsDirectory>,
    durable: Arc<Mutex<Durable>>,
}

struct RecordedFile {
    file: Arc<dyn File>,
    number: u64,
    durable: Arc<Mutex<Durable>>,
}

impl Recorder {
    /// Everything in the folder is durable at first.
    fn new(root: &Path) -> Self {
        let recorder = Self { live: Arc::new(FsDirectory::open(root).unwrap()), durable: Arc::default() };
        recorder.take_over(root, Path::new(""));
        let mut durable = recorder.durable();
        durable.durable_names = durable.names.clone();
        drop(durable);
        recorder
    }

    fn take_over(&self, root: &Path, below: &Path) {
        for entry in fs::read_dir(root.join(below)).unwrap() {
            let entry = entry.unwrap();
            let path = below.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                self.take_over(root, &path);
            } else {
                let content = fs::read(entry.path()).unwrap();
                let mut durable = self.durable();
                let number = durable.begin(&path);
                durable.contents.insert(number, content);
            }
        }
    }

    fn durable(&self) -> MutexGuard<'_, Durable> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recorded(&self, file: Arc<dyn File>, number: u64) -> Arc<dyn File> {
        Arc::new(RecordedFile { file, number, durable: Arc::clone(&self.durable) })
    }

    /// Writes what a power loss now would leave into another folder.
    fn lose_power(&self, left: &Path) {
        let durable = self.durable();
        fs::create_dir_all(left).unwrap();
        for (path, number) in &durable.durable_names {
            let path = left.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            // A file whose name is durable, but not one byte of it.
            fs::write(path, durable.contents.get(number).map_or(&[][..], Vec::as_slice)).unwrap();
        }
    }
}

impl Durable {
    /// A new file of that name.
    fn begin(&mut self, path: &Path) -> u64 {
        self.next += 1;
        self.names.insert(path.to_owned(), self.next);
        self.next
    }
}

impl Directory for Recorder {
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        self.live.list(folder)
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        self.live.create_folder(folder)
    }

    fn create(&self, path: &Path, bytes: u64, allocation: Allocation) -> io::Result<Arc<dyn File>> {
        let file = self.live.create(path, bytes, allocation)?;
        let number = self.durable().begin(path);
        Ok(self.recorded(file, number))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = self.live.open(path)?;
        let number = self.durable().names[path];
        Ok(self.recorded(file, number))
    }

    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        self.live.read(path)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.live.write(path, bytes)?;
        let mut durable = self.durable();
        let number = match durable.names.get(path) {
            Some(number) => *number,
            None => durable.begin(path),
        };
        durable.contents.insert(number, bytes.to_vec());
        durable.durable_names.insert(path.to_owned(), number);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut durable = self.durable();
        self.live.rename(from, to)?;
        if let Some(number) = durable.names.remove(from) {
            durable.names.insert(to.to_owned(), number);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut durable = self.durable();
        self.live.remove(path)?;
        durable.names.retain(|known, _| !known.starts_with(path));
        Ok(())
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let mut durable = self.durable();
        self.live.sync_folder(folder)?;
        let is_in = |path: &PathBuf| path.parent() == Some(folder);
        let now: Vec<_> = durable.names.iter().filter(|(path, _)| is_in(path)).map(|(p, n)| (p.clone(), *n)).collect();
        durable.durable_names.retain(|path, _| !is_in(path));
        durable.durable_names.extend(now);
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        self.live.lock(path)
    }

    fn keep_brokers_out(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        self.live.keep_brokers_out(path)
    }

    fn space(&self) -> io::Result<Space> {
        self.live.space()
    }

    fn display(&self, path: &Path) -> String {
        self.live.display(path)
    }
}

impl File for RecordedFile {
    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(position, bytes)
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_at(position, into)
    }

    fn slice(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        self.file.slice(position, bytes)
    }

    fn zero(&self, range: Range<u64>) -> io::Result<()> {
        self.file.zero(range)
    }

    fn set_bytes(&self, bytes: u64, allocation: Allocation) -> io::Result<()> {
        self.file.set_bytes(bytes, allocation)
    }

    fn sync(&self) -> io::Result<()> {
        // Held all the time, so that of two syncs the later counts. What is written after this moment is not promised.
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        let mut content = vec![0; usize::try_from(self.file.bytes()).unwrap()];
        self.file.read_at(0, &mut content)?;
        self.file.sync()?;
        durable.contents.insert(self.number, content);
        Ok(())
    }

    fn will_need(&self, range: Range<u64>) {
        self.file.will_need(range);
    }
}

/// Every topic exists.
struct EveryTopic;

impl RealTopics for EveryTopic {
    fn resolve(&self, _: &str, queue_id: u32, _: PhysicalOffset) -> RealQueue {
        RealQueue::Deliver(QueueId(queue_id % QUEUES))
    }
}

fn open(directory: &Recorder, policy: FlushPolicy) -> Arc<MessageStore> {
    let options = StoreOptions {
        segment_bytes: SEGMENT_BYTES,
        queue_file_bytes: 2_000,
        index_slots: 100,
        index_entries: 400,
        body_bytes_max: BODY_BYTES_MAX,
        flush_policy: policy,
        flush_interval: Duration::from_millis(40),
        flush_thorough_interval: THOROUGH,
        checkpoint_interval: Duration::from_millis(200),
        retention_interval: Duration::from_millis(100),
        disk_used_max_percent: 100,
        disk_clean_percent: 100,
        disk_full_percent: 100,
        ..StoreOptions::default()
    };
    let env = Env {
        clock: Arc::new(SystemClock::new()),
        directory: Arc::new(directory.clone()),
        fatal: Arc::new(|reason| panic!("the store gave up: {reason}")),
    };
    let delay = DelayOptions { levels: LEVELS.parse().unwrap(), ..DelayOptions::default() };
    let scheduler = Arc::new(LevelScheduler::new(delay, Arc::new(EveryTopic)));
    let store = MessageStore::open(options, env, vec![scheduler]).unwrap();
    store.start().unwrap();
    store
}

fn draft(message: &Message) -> MessageDraft {
    let host = "127.0.0.1:10911".parse().unwrap();
    let mut properties = Properties::new();
    properties.set(names::KEYS, &message.key);
    properties.set(names::UNIQ_KEY, &message.key);
    if message.level > 0 {
        properties.set(names::DELAY, message.level.to_string());
    }
    MessageDraft {
        topic: Topic::from(TOPIC),
        queue_id: QueueId(u32::try_from(message.queue_id).unwrap()),
        flag: 0,
        sys_flag: SysFlag(0),
        born_at: Timestamp(1),
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_offset: 0,
        properties,
        body: message.body().into(),
    }
}

/// When which message was acknowledged, and where its record ends.
type Acknowledged = Arc<Mutex<Vec<(Message, Instant, PhysicalOffset)>>>;

/// Appends messages from several threads until told otherwise.
fn produce(store: &Arc<MessageStore>, ledger: &Arc<Ledger>, acknowledged: &Acknowledged, name: &str, until: Instant) {
    thread::scope(|scope| {
        for thread in 0..2_u64 {
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread + 7);
                for number in 0.. {
                    if Instant::now() >= until {
                        return;
                    }
                    let level = rng.usize(0..=4);
                    let bytes = if rng.u8(..8) == 0 { rng.usize(1..=BODY_BYTES_MAX) } else { rng.usize(1..600) };
                    let queue_id = rng.i32(0..2);
                    let key = format!("{name}-{thread}-{number}");
                    let message = Message::new(TOPIC, queue_id, level, key).bytes(bytes);
                    ledger.sending(&message);
                    let appended = store.append(draft(&message)).unwrap();
                    let note = {
                        let acknowledged = Arc::clone(acknowledged);
                        move || acknowledged.lock().unwrap().push((message, Instant::now(), appended.end))
                    };
                    if store.waits_for_sync() {
                        store.when_durable(appended.end, Box::new(|durable| durable.map(|()| note()).unwrap()));
                    } else {
                        note();
                    }
                    thread::sleep(Duration::from_millis(rng.u64(0..6)));
                }
            });
        }
    });
}

fn run(policy: FlushPolicy) {
    let root = folder();
    let place = |number: u64| root.path().join(format!("life-{number}"));
    let ledger = Arc::new(Ledger::default());
    let mut rng = fastrand::Rng::with_seed(3);
    let lost_bytes = AtomicU64::new(0);
    fs::create_dir_all(place(0)).unwrap();
    for life in 0..LOSSES {
        let directory = Recorder::new(&place(life));
        let store = open(&directory, policy);
        let acknowledged = Acknowledged::default();
        let until = Instant::now() + Duration::from_millis(rng.u64(150..1_300));
        thread::scope(|scope| {
            scope.spawn(|| produce(&store, &ledger, &acknowledged, &format!("life-{life}"), until));
            thread::sleep(until.saturating_duration_since(Instant::now()).mul_f32(0.9));
            // First what was promised, then what is there: whatever was promised is durable by then.
            let promised = acknowledged.lock().unwrap().clone();
            let durable = store.durable();
            let lost_at = Instant::now();
            directory.lose_power(&place(life + 1));
            lost_bytes.fetch_add(store.log_range().1.since(durable), Ordering::Relaxed);
            for (message, at, end) in promised {
                let old_enough = lost_at.duration_since(at) > THOROUGH + SYNC_MAX;
                if policy == FlushPolicy::Sync || old_enough || end <= durable {
                    ledger.acknowledged_somewhere(&message);
                }
            }
        });
        store.stop().unwrap();
    }
    let directory = Recorder::new(&place(LOSSES));
    let store = open(&directory, policy);
    let figure = |name: &str| {
        let figures = store.figures();
        let value = figures.into_iter().filter(|figure| figure.name == name).map(|figure| match figure.value {
            latermq::store::FigureValue::Number(value) => value,
            latermq::store::FigureValue::Text(_) => 0.0,
        });
        value.sum::<f64>()
    };
    crate::process::wait_until("all is delivered", Duration::from_secs(20), || {
        figure("delayPending") == 0.0 && figure("dispatchBehindBytes") == 0.0
    });
    // What the log shows of a message after a loss counts: who saw it before is not asked.
    let topics = BTreeMap::from([(TOPIC.to_owned(), 2), (SCHEDULE_TOPIC.to_owned(), 4)]);
    let findings =
        audit_with(&ledger.copy(), &delays(LEVELS), &topics, |topic, queue_id| read(&store, topic, queue_id));
    println!("{policy:?}, {LOSSES} power losses, {} bytes were not synced: {findings}", lost_bytes.into_inner());
    findings.assert_clean(&format!("power losses under {policy:?}"));
    assert!(findings.delayed > 50, "{findings}");
    store.stop().unwrap();
}

fn read(store: &MessageStore, topic: &str, queue_id: i32) -> Vec<Record> {
    let mut records = Vec::new();
    let mut offset = 0;
    loop {
        let queue_id = QueueId(u32::try_from(queue_id).unwrap());
        let query = PullQuery { topic, queue_id, offset, count_max: 32, bytes_max: usize::MAX };
        let pulled = store.pull(&query, &|_| true);
        records.extend(pulled.records.into_iter().flat_map(Records::new).map(Result::unwrap));
        if pulled.next_offset <= offset {
            return records;
        }
        offset = pulled.next_offset;
    }
}
