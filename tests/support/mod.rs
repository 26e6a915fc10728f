//! What the tests of the store have in common: a store on a folder or in memory, messages to send, and ways to read all there is.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use latermq::{
    env::{Clock, Directory, Env, MemoryDirectory, TestClock},
    model::{MessageDraft, PhysicalOffset, Properties, QueueId, SysFlag, Timestamp, Topic},
    record::{Record, Records},
    store::{MessageStore, Plugin, PullQuery, PullStatus, StoreError, StoreOptions},
};

/// When the clock of a test begins.
pub(crate) const START: Timestamp = Timestamp(1_700_000_000_000);
/// Segments of the tests.
pub(crate) const SEGMENT_BYTES: u64 = 72 * 1024;

/// A machine with a disk in memory, a clock that stands still until it is moved, and a broker that writes down why it would have ended.
#[derive(Clone)]
pub(crate) struct Machine {
    /// The disk.
    pub(crate) disk: MemoryDirectory,
    /// The clock.
    pub(crate) clock: TestClock,
    /// How the store is opened.
    pub(crate) options: StoreOptions,
    fatal: Arc<Mutex<Vec<String>>>,
}

impl Machine {
    /// A machine with an empty disk.
    pub(crate) fn new() -> Self {
        let clock = TestClock::new(START);
        let disk = MemoryDirectory::with_clock(Arc::new(clock.clone()));
        Self { disk, clock, options: options(), fatal: Arc::default() }
    }

    /// The same machine after it came up again with another disk.
    pub(crate) fn with_disk(&self, disk: MemoryDirectory) -> Self {
        self.clock.reboot();
        Self { disk, clock: self.clock.clone(), options: self.options.clone(), fatal: Arc::default() }
    }

    /// What the end of the process leaves; the machine stays up.
    pub(crate) fn killed_in_this_boot(&self) -> Self {
        let clock = self.clock.clone();
        Self { disk: self.disk.kill(), clock, options: self.options.clone(), fatal: Arc::default() }
    }

    /// What the end of the process leaves, in a machine that was booted since.
    pub(crate) fn killed(&self) -> Self {
        self.with_disk(self.disk.kill())
    }

    /// What a power cut may leave.
    pub(crate) fn crashed(&self, seed: u64) -> Self {
        self.with_disk(self.disk.crash(seed))
    }

    /// What the store is given of the outside world.
    pub(crate) fn env(&self) -> Env {
        let fatal = self.fatal.clone();
        Env {
            clock: Arc::new(self.clock.clone()),
            directory: Arc::new(self.disk.clone()),
            fatal: Arc::new(move |reason| fatal.lock().unwrap().push(reason.to_owned())),
        }
    }

    /// What the wall clock says.
    pub(crate) fn clock_now(&self) -> Timestamp {
        Clock::wall(&self.clock)
    }

    /// Why the broker would have ended.
    pub(crate) fn fatal(&self) -> Vec<String> {
        self.fatal.lock().unwrap().clone()
    }

    /// Opens the store, which must work.
    pub(crate) fn open(&self) -> Arc<MessageStore> {
        self.open_with(Vec::new())
    }

    /// Opens the store with plugins, which must work.
    pub(crate) fn open_with(&self, plugins: Vec<Arc<dyn Plugin>>) -> Arc<MessageStore> {
        self.try_open(plugins).unwrap()
    }

    /// Opens the store.
    pub(crate) fn try_open(&self, plugins: Vec<Arc<dyn Plugin>>) -> Result<Arc<MessageStore>, StoreError> {
        MessageStore::open(self.options.clone(), self.env(), plugins)
    }

    /// The bytes of a file.
    pub(crate) fn read(&self, path: &str) -> Vec<u8> {
        self.disk.read(Path::new(path)).unwrap().unwrap_or_else(|| panic!("{path} does not exist"))
    }

    /// Whether a file exists.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.disk.read(Path::new(path)).unwrap().is_some()
    }

    /// Overwrites a part of a file, as damage does: durably.
    pub(crate) fn overwrite(&self, path: &str, position: u64, bytes: &[u8]) {
        let file = self.disk.open(Path::new(path)).unwrap();
        file.write_at(position, bytes).unwrap();
        file.sync().unwrap();
    }

    /// Removes a file or folder, durably.
    pub(crate) fn remove(&self, path: &str) {
        let path = Path::new(path);
        self.disk.remove(path).unwrap();
        self.disk.sync_folder(path.parent().unwrap()).unwrap();
    }

    /// Writes a file whole.
    pub(crate) fn write(&self, path: &str, bytes: &[u8]) {
        self.disk.write(Path::new(path), bytes).unwrap();
    }

    /// Names in a folder.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        self.disk.list(Path::new(folder)).unwrap().into_iter().map(|entry| entry.name).collect()
    }

    /// Removes our own checkpoint, so that the whole log is looked at.
    pub(crate) fn forget_our_checkpoint(&self) {
        self.remove("latermq.checkpoint");
        self.remove("latermq.checkpoint.bak");
    }

    /// The path of the segment that begins at `number` times the length of one.
    pub(crate) fn segment(&self, number: u64) -> String {
        format!("commitlog/{:020}", number * self.options.segment_bytes)
    }
}

/// What is logged on this thread meanwhile.
pub(crate) fn logged<T>(run: impl FnOnce() -> T) -> (T, String) {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(lines.clone()).finish();
    let done = tracing::subscriber::with_default(subscriber, run);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    (done, text)
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl tracing_subscriber::fmt::MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Small files, so that a few hundred messages fill several of each kind.
pub(crate) fn options() -> StoreOptions {
    StoreOptions {
        segment_bytes: SEGMENT_BYTES,
        body_bytes_max: 4 * 1024,
        queue_file_bytes: 400,
        index_slots: 20,
        index_entries: 50,
        ..StoreOptions::default()
    }
}

/// A message with a tag and, as its unique key, its own body.
pub(crate) fn draft(topic: &str, queue_id: u32, body: &str) -> MessageDraft {
    let host = "127.0.0.1:10911".parse().unwrap();
    let mut properties = Properties::new();
    properties.set("UNIQ_KEY", body);
    properties.set("TAGS", "TagA");
    MessageDraft {
        topic: Topic::from(topic),
        queue_id: QueueId(queue_id),
        flag: 0,
        sys_flag: SysFlag(0),
        born_at: Timestamp(1),
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_offset: 0,
        properties,
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

/// Dispatches all that can be read.
pub(crate) fn dispatch_all(store: &MessageStore) {
    while store.dispatch_once(u64::MAX) {}
}

/// Every record that pulls give from a queue, from its first offset to its last.
pub(crate) fn records(store: &MessageStore, topic: &str, queue_id: QueueId) -> Vec<Record> {
    let mut records = Vec::new();
    let mut offset = store.queue_range(topic, queue_id).map_or(0, |range| range.min.0 as i64);
    loop {
        let query = PullQuery { topic, queue_id, offset, count_max: 32, bytes_max: usize::MAX };
        let pulled = store.pull(&query, &|_| true);
        match pulled.status {
            PullStatus::Found | PullStatus::MessageWasRemoving | PullStatus::NoMatchedMessage => {}
            _ => return records,
        }
        assert!(pulled.next_offset > offset, "a pull of {topic}/{queue_id} at {offset} does not get on");
        offset = pulled.next_offset;
        let found = pulled.records.into_iter().flat_map(Records::new).map(Result::unwrap);
        let before = records.len();
        records.extend(found);
        assert_eq!(records.len() - before, pulled.count, "records in the answer to a pull of {topic}/{queue_id}");
    }
}

/// Bodies of a queue, in order.
pub(crate) fn bodies(store: &MessageStore, topic: &str, queue_id: u32) -> Vec<String> {
    let text = |record: Record| String::from_utf8_lossy(record.view().body()).into_owned();
    records(store, topic, QueueId(queue_id)).into_iter().map(text).collect()
}

/// Everything in the log below `end`, as (position, end) of whole records; stops at the first place where there is none.
pub(crate) fn ends(store: &MessageStore) -> Vec<(PhysicalOffset, PhysicalOffset)> {
    let (mut at, end) = store.log_range();
    let mut found = Vec::new();
    while at < end {
        let Some(record) = store.record_at(at) else { break };
        found.push((at, record.view().end()));
        at = record.view().end();
    }
    found
}

/// A message whose unique key is `name` and whose body is the name, filled up to `bytes`.
pub(crate) fn message(topic: &str, queue_id: u32, name: &str, bytes: usize) -> MessageDraft {
    let mut message = draft(topic, queue_id, name);
    message.body = body_of(name, bytes);
    message
}

/// The body of a [`message`].
pub(crate) fn body_of(name: &str, bytes: usize) -> Bytes {
    let mut body = name.as_bytes().to_vec();
    while body.len() < bytes {
        body.push(b' ');
        body.extend_from_slice(name.as_bytes());
    }
    body.truncate(bytes.max(name.len()));
    body.into()
}
