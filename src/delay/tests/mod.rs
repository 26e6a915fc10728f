//! The level scheduler with the real store, on a directory in memory and a clock that is moved.

mod apache;
mod audit;
mod clock;
mod delivery;
mod faults;
mod model;
mod restart;

use std::{
    collections::HashSet,
    io::ErrorKind,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;

use super::*;
use crate::{
    env::{Clock, Directory, Env, MemoryDirectory, TestClock},
    model::{
        MessageDraft, PhysicalOffset, Properties, QueueId, QueueOffset, SCHEDULE_TOPIC, SysFlag, Timestamp, Topic,
        names,
    },
    record::Record,
    store::{AppendError, Appended, FigureValue, FlushPolicy, MessageStore, Plugin, QueueEntry, StoreOptions},
};

const START: Timestamp = Timestamp(1_800_000_000_000);

/// The topics of a broker: every topic there is, and four queues in each.
#[derive(Default)]
struct Topics {
    deleted: Mutex<HashSet<String>>,
    panicking: Mutex<HashSet<String>>,
}

impl RealTopics for Topics {
    fn resolve(&self, topic: &str, queue_id: u32, _: PhysicalOffset) -> RealQueue {
        assert!(!self.panicking.lock().unwrap().contains(topic), "as planned");
        if self.deleted.lock().unwrap().contains(topic) {
            return RealQueue::Deleted;
        }
        RealQueue::Deliver(QueueId(queue_id % 4))
    }
}

/// A store with the level scheduler, without threads.
struct Rig {
    clock: TestClock,
    directory: MemoryDirectory,
    options: StoreOptions,
    levels: String,
    park_after: Duration,
    topics: Arc<Topics>,
    store: Arc<MessageStore>,
    scheduler: Arc<LevelScheduler>,
}

impl Rig {
    fn new(levels: &str) -> Self {
        Self::with(levels, |_| {})
    }

    fn with(levels: &str, set: impl FnOnce(&mut StoreOptions)) -> Self {
        let clock = TestClock::new(START);
        let mut options = StoreOptions {
            segment_bytes: 128 * 1024,
            body_bytes_max: 32 * 1024,
            queue_file_bytes: 2_000,
            index_slots: 100,
            index_entries: 400,
            ..StoreOptions::default()
        };
        set(&mut options);
        let directory = MemoryDirectory::with_clock(Arc::new(clock.clone()));
        Self::open(clock, directory, options, levels, Arc::default())
    }

    fn open(
        clock: TestClock,
        directory: MemoryDirectory,
        options: StoreOptions,
        levels: &str,
        topics: Arc<Topics>,
    ) -> Self {
        let env = Env {
            clock: Arc::new(clock.clone()) as Arc<dyn Clock>,
            directory: Arc::new(directory.clone()) as Arc<dyn Directory>,
            fatal: Arc::new(|_| {}),
        };
        let delay = DelayOptions { levels: levels.parse().unwrap(), ..DelayOptions::default() };
        let park_after = delay.park_after;
        let scheduler = Arc::new(LevelScheduler::new(delay, topics.clone()));
        let plugin: Arc<dyn Plugin> = scheduler.clone();
        let store = MessageStore::open(options.clone(), env, vec![plugin]).unwrap();
        Self { clock, directory, options, levels: levels.into(), park_after, topics, store, scheduler }
    }

    /// Opens what the end of the process leaves now.
    fn kill(self) -> Self {
        let levels = self.levels.clone();
        self.kill_with_levels(&levels)
    }

    fn kill_with_levels(self, levels: &str) -> Self {
        let left = self.directory.kill();
        self.directory.stop();
        Self::open(self.clock.clone(), left, self.options.clone(), levels, self.topics.clone())
    }

    /// Opens what a power cut may leave now.
    fn crash(self, seed: u64) -> Self {
        let left = self.directory.crash(seed);
        self.directory.stop();
        self.clock.reboot();
        Self::open(self.clock.clone(), left, self.options.clone(), &self.levels, self.topics.clone())
    }

    /// A clean stop and a start.
    fn restart(self) -> Self {
        let levels = self.levels.clone();
        self.restart_with_levels(&levels)
    }

    fn restart_with_levels(self, levels: &str) -> Self {
        self.store.stop().unwrap();
        drop(self.store);
        Self::open(self.clock, self.directory, self.options, levels, self.topics)
    }

    fn try_send(&self, draft: MessageDraft) -> Result<Appended, AppendError> {
        self.store.append(draft)
    }

    /// Sends a message and dispatches it.
    fn send(&self, topic: &str, level: i32, body: &str) -> Appended {
        let appended = self.try_send(draft(topic, level, body)).unwrap();
        self.dispatch();
        appended
    }

    fn dispatch(&self) {
        while self.store.dispatch_once(u64::MAX) {}
    }

    /// Does what is to be done now; gives the number of restored messages.
    fn step(&self) -> usize {
        let mut restored = 0;
        loop {
            self.dispatch();
            let now = self.store.now();
            let tick = self.scheduler.tick(now);
            restored += tick.restored;
            if tick.next_deadline.is_none_or(|next| next > now) {
                self.dispatch();
                return restored;
            }
        }
    }

    fn advance(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    /// Moves the clock from deadline to deadline as the driver would, until nothing waits or pauses.
    fn run_dry(&self) {
        for _ in 0..100_000 {
            self.step();
            let Some(next) = self.scheduler.next_deadline() else { return };
            self.clock.advance(next.since(self.store.now()));
        }
        panic!("there is always something to do");
    }

    /// The same where messages count only once they are synced.
    fn run_dry_and_sync(&self) {
        loop {
            self.step();
            self.store.sync_once().unwrap();
            self.dispatch();
            let Some(next) = self.scheduler.next_deadline() else { return };
            self.clock.advance(next.since(self.store.now()));
        }
    }

    /// Removes all files but the commit log.
    fn lose_files(&self) {
        for entry in self.directory.list(Path::new("")).unwrap() {
            if entry.name != "commitlog" {
                self.directory.remove(Path::new(&entry.name)).unwrap();
            }
        }
    }

    fn entries(&self, topic: &str, queue_id: u32) -> Vec<QueueEntry> {
        let range = self.store.queue_range(topic, QueueId(queue_id)).unwrap_or_default();
        let mut entries = Vec::new();
        let mut at = range.min.0;
        while at < range.max.0 {
            let read = self.store.queue_entries(topic, QueueId(queue_id), QueueOffset(at), 1000);
            assert!(!read.is_empty(), "the queue has all entries of its range");
            at += read.len() as u64;
            entries.extend(read);
        }
        entries
    }

    fn records(&self, topic: &str, queue_id: u32) -> Vec<Record> {
        let entries = self.entries(topic, queue_id);
        entries.iter().map(|entry| self.store.record_at(entry.position).expect("the record is there")).collect()
    }

    /// The bodies in a queue, in order.
    fn bodies(&self, topic: &str, queue_id: u32) -> Vec<String> {
        let text = |record: &Record| String::from_utf8_lossy(&record.body()).into_owned();
        self.records(topic, queue_id).iter().map(text).collect()
    }

    fn number(&self, name: &str, level: Option<u32>) -> f64 {
        let level = level.map(|level| level.to_string());
        let figure = self.store.figures().into_iter().find(|figure| {
            figure.name == name && figure.labels.iter().map(|(_, value)| value).next() == level.as_ref()
        });
        match figure.map(|figure| figure.value) {
            Some(FigureValue::Number(number)) => number,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        let figure = self.store.figures().into_iter().find(|figure| figure.name == name);
        match figure?.value {
            FigureValue::Text(text) => Some(text),
            FigureValue::Number(_) => None,
        }
    }
}

fn draft(topic: &str, level: i32, body: &str) -> MessageDraft {
    let mut properties = Properties::new();
    properties.set(names::UNIQ_KEY, format!("id-{}", &body[..body.len().min(20)]));
    properties.set(names::TAGS, "TagA");
    if level != 0 {
        properties.set(names::DELAY, level.to_string());
    }
    MessageDraft {
        topic: Topic::from(topic),
        queue_id: QueueId(0),
        flag: 7,
        sys_flag: SysFlag::default(),
        born_at: Timestamp(START.0 - 17),
        born_host: ([10, 0, 0, 1], 5).into(),
        store_host: ([127, 0, 0, 1], 10911).into(),
        reconsume_times: 0,
        prepared_offset: 0,
        properties,
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}
