//! What the fuzz targets do with their bytes, and the bytes they begin with. Nothing may panic; what is accepted must hold together.

#![allow(clippy::unwrap_used, reason = "a fuzz target ends by a panic")]
#![allow(unreachable_pub, reason = "also built as a module of a test")]

use std::{
    path::Path,
    sync::{Arc, LazyLock, OnceLock},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use latermq::{
    broker::{Broker, BrokerOptions, Resolved, Topics},
    delay::{DelayOptions, LevelScheduler, RealQueue, RealTopics},
    env::{Directory, Env, MemoryDirectory, TestClock},
    model::{MessageDraft, PhysicalOffset, Properties, QueueId, SysFlag, Timestamp, Topic},
    protocol::{Command, Encoding, frame as wire},
    record::{BatchMember, Record, RecordView, Records, decode_batch, encode_batch, encoded_bytes, kind},
    store::{MessageStore, StoreOptions},
};

/// A target: its name, what it does, and where it begins.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// Every target.
pub const TARGETS: [Target; 9] = [
    ("frame", frame, frame_seeds),
    ("json_header", json_header, || header_seeds(0)),
    ("binary_header", binary_header, || header_seeds(1)),
    ("batch", batch, batch_seeds),
    ("properties", properties, properties_seeds),
    ("record", record, record_seeds),
    ("consume_queue", consume_queue, || world_seeds(&QUEUES)),
    ("state_file", state_file, || world_seeds(&STATE_FILES)),
    ("checkpoint", checkpoint, || world_seeds(&CHECKPOINTS)),
];

const FRAMES: [&str; 4] = [
    include_str!("../../fixtures/frames/frames-java-5.3.3.jsonl"),
    include_str!("../../fixtures/frames/frames-java-4.9.8.jsonl"),
    include_str!("../../fixtures/frames/frames-java-5.3.3-binary.jsonl"),
    include_str!("../../fixtures/frames/frames-go.jsonl"),
];
/// The queues of the world, and its index.
const QUEUES: [&str; 3] = [
    "consumequeue/T/0/00000000000000000000",
    "consumequeue/SCHEDULE_TOPIC_XXXX/0/00000000000000000000",
    "consumequeue/D/0/00000000000000000000",
];
const QUEUE_FILE_BYTES: usize = 400;
/// Its state files.
const STATE_FILES: [&str; 5] = [
    "config/topics.json",
    "config/subscriptionGroup.json",
    "config/consumerOffset.json",
    "config/delayOffset.json",
    "config/deletedTopics.json",
];
const CHECKPOINTS: [&str; 2] = ["checkpoint", "latermq.checkpoint"];
/// Where the clock of the world stands.
const START: Timestamp = Timestamp(1_700_000_000_000);

/// Whatever comes over a connection: what is a frame is a frame again when written.
pub fn frame(data: &[u8]) {
    let mut input = BytesMut::from(data);
    while let Ok(Some(command)) = wire::decode(&mut input) {
        assert_written_back(&command);
    }
}

/// The header of a frame in JSON.
pub fn json_header(data: &[u8]) {
    header(0, data);
}

/// The header of a frame in RocketMQ's own bytes.
pub fn binary_header(data: &[u8]) {
    header(1, data);
}

fn header(encoding: u8, data: &[u8]) {
    let mut bytes = BytesMut::new();
    bytes.extend_from_slice(&u32::try_from(data.len() + 4).unwrap().to_be_bytes());
    bytes.extend_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes[4] = encoding;
    bytes.extend_from_slice(data);
    if let Ok(Some(command)) = wire::decode(&mut bytes) {
        assert_eq!(command.encoding, if encoding == 1 { Encoding::Binary } else { Encoding::Json });
        assert_written_back(&command);
    }
}

fn assert_written_back(command: &Command) {
    // Names that are too long for a binary header come only in JSON, and the other way round nothing is lost.
    let Ok(mut written) = wire::encode_whole(command) else { return };
    let again = wire::decode(&mut written).unwrap().unwrap();
    assert_eq!(
        (&again.ext, again.code, again.opaque, again.flag),
        (&command.ext, command.code, command.opaque, command.flag)
    );
    assert_eq!(again.body.to_bytes(), command.body.to_bytes());
}

/// The body of a batch.
pub fn batch(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    if let Ok(members) = decode_batch(&body) {
        let total: usize = members.iter().map(|member| member.body.len() + member.properties.len()).sum();
        assert!(!members.is_empty() && total < data.len());
        assert_eq!(decode_batch(&encode_batch(&members).unwrap()).unwrap(), members);
    }
}

/// A block of properties, read, changed and written.
pub fn properties(data: &[u8]) {
    let mut properties = Properties::from_text(data);
    let count = properties.view().iter().count();
    assert!(properties.view().to_pairs().len() == count);
    for name in ["DELAY", "REAL_TOPIC", "TAGS"] {
        properties.remove(name);
        assert!(!properties.contains(name));
        properties.set(name, "value");
        assert_eq!(properties.get(name), Some("value"));
    }
    assert_eq!(Properties::from_text(properties.as_bytes()).view().to_pairs(), properties.view().to_pairs());
}

/// A record of the log, alone and in a row.
pub fn record(data: &[u8]) {
    let _ = kind(data);
    if let Ok(view) = RecordView::parse(data) {
        let _ = (view.body_is_sound(), view.property_crc_is_sound(), view.message_id(), view.properties().to_pairs());
        assert!(view.end().0 >= view.physical_offset().0);
        let draft = Record::parse(&Bytes::copy_from_slice(data)).unwrap().to_draft();
        let _ = encoded_bytes(&draft);
    }
    for record in Records::new(Bytes::copy_from_slice(data)).take(1_000) {
        if record.is_err() {
            break;
        }
    }
}

/// A file of a consume queue: the first byte says which.
pub fn consume_queue(data: &[u8]) {
    // A file of another length is refused by name at the start.
    let mut data = data.to_vec();
    data.resize(1 + QUEUE_FILE_BYTES, 0);
    open_with(&QUEUES, &data, false);
}

/// A file of the folder `config`: the first byte says which, and whether its backup is the same.
pub fn state_file(data: &[u8]) {
    open_with(&STATE_FILES, data, true);
}

/// RocketMQ's checkpoint or ours: the first byte says which, and whether the backup is the same.
pub fn checkpoint(data: &[u8]) {
    open_with(&CHECKPOINTS, data, true);
}

/// Opens a store in which one file holds these bytes: it must open and serve. With `delivers` it must find all messages, and deliver what
/// waits, once; entries of a queue that are damaged without a crash are found by an audit, not at the start.
fn open_with(files: &[&str], data: &[u8], delivers: bool) {
    let Some((&which, bytes)) = data.split_first() else { return };
    let path = files[usize::from(which) % files.len()];
    let world = WORLD.disk.kill();
    world.write(Path::new(path), bytes).unwrap();
    if which >= 128 {
        world.write(Path::new(&format!("{path}.bak")), bytes).unwrap();
    }
    let opened = Opened::open(world, WORLD.clock.clone());
    opened.clock.advance(Duration::from_secs(3));
    opened.step();
    let (waited, stored) = (opened.bodies("D"), opened.bodies("T").len());
    if delivers {
        assert_eq!(waited, [Bytes::from_static(b"delivered before"), Bytes::from_static(b"waits")], "{path}");
        assert_eq!(stored, 3, "{path}");
    }
    opened.send("T", 0, "after");
    opened.step();
    assert_eq!(opened.bodies("T").last().map(|body| &body[..]), Some(&b"after"[..]), "{path}");
}

/// What a clean stop left: three messages, one that was delivered, and one that waits.
struct World {
    disk: MemoryDirectory,
    clock: TestClock,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let clock = TestClock::new(START);
    let disk = MemoryDirectory::with_clock(Arc::new(clock.clone()));
    let opened = Opened::open(disk.clone(), clock.clone());
    for body in ["one", "two", "three"] {
        opened.send("T", 0, body);
    }
    opened.send("D", 1, "delivered before");
    opened.step();
    clock.advance(Duration::from_secs(1));
    opened.step();
    opened.send("D", 1, "waits");
    opened.step();
    opened.broker.save();
    opened.store.stop().unwrap();
    World { disk, clock }
});

/// A broker that serves from a disk in memory, driven step by step.
struct Opened {
    clock: TestClock,
    store: Arc<MessageStore>,
    scheduler: Arc<LevelScheduler>,
    broker: Arc<Broker>,
}

#[derive(Default)]
struct LateTopics(OnceLock<Arc<Topics>>);

impl RealTopics for LateTopics {
    fn resolve(&self, topic: &str, queue_id: u32, waiting_since: PhysicalOffset) -> RealQueue {
        match self.0.get().unwrap().resolve(topic, QueueId(queue_id), waiting_since) {
            Resolved::Queue(queue_id) => RealQueue::Deliver(queue_id),
            Resolved::Deleted => RealQueue::Deleted,
        }
    }
}

impl Opened {
    fn open(disk: MemoryDirectory, clock: TestClock) -> Self {
        let env = Env {
            clock: Arc::new(clock.clone()),
            directory: Arc::new(disk),
            fatal: Arc::new(|reason| panic!("the broker stops: {reason}")),
        };
        let options = StoreOptions {
            segment_bytes: 72 * 1024,
            body_bytes_max: 4 * 1024,
            queue_file_bytes: QUEUE_FILE_BYTES as u64,
            index_slots: 20,
            index_entries: 50,
            ..StoreOptions::default()
        };
        let topics = Arc::new(LateTopics::default());
        let real_topics = Arc::clone(&topics) as Arc<dyn RealTopics>;
        let scheduler = Arc::new(LevelScheduler::new(DelayOptions::default(), real_topics));
        let store = MessageStore::open(options, env, vec![scheduler.clone()]).unwrap();
        let broker = Broker::new(BrokerOptions::default(), Arc::clone(&store));
        assert!(topics.0.set(Arc::clone(broker.topics())).is_ok());
        Self { clock, store, scheduler, broker }
    }

    fn send(&self, topic: &str, level: u32, body: &str) {
        let mut properties = Properties::new();
        properties.set("UNIQ_KEY", body);
        if level > 0 {
            properties.set("DELAY", level.to_string());
        }
        let host = "127.0.0.1:10911".parse().unwrap();
        let draft = MessageDraft {
            topic: Topic::from(topic),
            queue_id: QueueId(0),
            flag: 0,
            sys_flag: SysFlag::default(),
            born_at: START,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_offset: 0,
            properties,
            body: Bytes::copy_from_slice(body.as_bytes()),
        };
        self.store.append(draft).unwrap();
    }

    fn step(&self) {
        for _ in 0..100 {
            while self.store.dispatch_once(u64::MAX) {}
            let now = self.store.now();
            if self.scheduler.next_deadline().is_none_or(|next| next > now) {
                return;
            }
            self.scheduler.tick(now);
        }
        panic!("there is always something to do");
    }

    fn bodies(&self, topic: &str) -> Vec<Bytes> {
        let range = self.store.queue_range(topic, QueueId(0)).unwrap_or_default();
        let mut bodies = Vec::new();
        for entry in self.store.queue_entries(topic, QueueId(0), range.min, 100) {
            bodies.extend(self.store.record_at(entry.position).map(|record| record.body()));
        }
        bodies
    }
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let hex = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let hex = line["frame"].as_str().unwrap();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    FRAMES.iter().flat_map(|file| file.lines()).map(hex).filter(|frame: &Vec<u8>| frame.len() < 4_096).collect()
}

fn header_seeds(encoding: u8) -> Vec<Vec<u8>> {
    let header = |frame: &Vec<u8>| {
        let bytes = u32::from_be_bytes([0, frame[5], frame[6], frame[7]]) as usize;
        (frame[4] == encoding).then(|| frame[8..8 + bytes].to_vec())
    };
    frame_seeds().iter().filter_map(header).collect()
}

fn batch_seeds() -> Vec<Vec<u8>> {
    let member = |body: &'static [u8], properties: &'static [u8]| BatchMember {
        flag: 7,
        body: Bytes::from_static(body),
        properties: Bytes::from_static(properties),
    };
    let (small, large) = (member(b"b", b""), member(&[9; 300], b"KEYS\x01k\x02TAGS\x01t\x02"));
    let batches = [vec![small.clone()], vec![large.clone()], vec![small, large.clone(), large]];
    batches.iter().map(|members| encode_batch(members).unwrap().to_vec()).collect()
}

fn properties_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "",
        "KEYS\x01k\x02",
        "DELAY\x013\x02REAL_TOPIC\x01T\x02REAL_QID\x010",
        "A\x01\x02\x01b\x02TAGS\x01a\x02TAGS\x01b\x02",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn record_seeds() -> Vec<Vec<u8>> {
    let world = &WORLD;
    let log = world.disk.read(Path::new("commitlog/00000000000000000000")).unwrap().unwrap();
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    let mut at = 0;
    while let Ok(view) = RecordView::parse(&log[at..]) {
        seeds.push(view.bytes().to_vec());
        at += view.bytes().len();
    }
    seeds.push(log[..at.min(2_000)].to_vec());
    seeds
}

fn world_seeds(files: &[&str]) -> Vec<Vec<u8>> {
    let read = |(which, path): (u8, &&str)| {
        let bytes = WORLD.disk.read(Path::new(path)).unwrap().unwrap_or_default();
        [&[which][..], &bytes].concat()
    };
    (0..).zip(files).map(read).collect()
}

/// One of the seeds with a few changes.
pub fn mutated(seeds: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = seeds[random.usize(..seeds.len())].clone();
    for _ in 0..random.usize(..6) {
        let at = random.usize(..=bytes.len());
        match random.u8(..7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.u8(..8),
            1 if at < bytes.len() => bytes[at] = random.u8(..),
            2 if at < bytes.len() => _ = bytes.remove(at),
            3 => bytes.insert(at, random.u8(..)),
            4 => {
                let other = &seeds[random.usize(..seeds.len())];
                let from = random.usize(..=other.len());
                let end = (from + random.usize(..64)).min(other.len());
                bytes.splice(at..at, other[from..end].iter().copied());
            }
            5 => bytes.truncate(at),
            _ => {
                let width = [1, 2, 4, 8][random.usize(..4)];
                let odd = [0, 1, -1, i64::MAX, i64::MIN, 0x7FFF, 0x8000, i64::from(i32::MAX)][random.usize(..8)]
                    .to_be_bytes();
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&odd[8 - (end - at)..]);
            }
        }
    }
    bytes
}
