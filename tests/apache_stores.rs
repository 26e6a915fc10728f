//! Stores that Apache RocketMQ 5.3.3 wrote, one stopped cleanly and one killed: everything in them is read as RocketMQ's own client saw it.
//!
//! `fixtures/stores/*.messages.json` holds what the official Java client read from them: every record of every queue of every topic.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use flate2::read::{GzDecoder, ZlibDecoder};
use latermq::{
    delay::{DelayOptions, LevelScheduler, RealQueue, RealTopics},
    env::{Env, FsDirectory, TestClock},
    model::{PhysicalOffset, QueueId, QueueOffset, SCHEDULE_TOPIC, Timestamp, java_hash},
    record::{Record, RecordView},
    store::{MessageStore, Plugin, StoreOptions},
};
use serde::Deserialize;
use support::{dispatch_all, draft, records};

/// After the last message of both stores was written.
const OPENED_AT: Timestamp = Timestamp(1_796_046_000_000);

struct Fixture {
    archive: &'static [u8],
    messages: &'static str,
    folder: &'static str,
}

const CLEAN: Fixture = Fixture {
    archive: include_bytes!("fixtures/stores/store-5.3.3.tar.gz"),
    messages: include_str!("fixtures/stores/store-5.3.3.messages.json"),
    folder: "store-5.3.3",
};
const KILLED: Fixture = Fixture {
    archive: include_bytes!("fixtures/stores/store-5.3.3-killed.tar.gz"),
    messages: include_str!("fixtures/stores/store-5.3.3-killed.messages.json"),
    folder: "store-5.3.3-killed",
};

/// What the official client read.
#[derive(Deserialize)]
struct Recorded {
    queues: Vec<RecordedQueue>,
    messages: Vec<RecordedMessage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecordedQueue {
    topic: String,
    queue_id: u32,
    min_offset: u64,
    max_offset: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecordedMessage {
    topic: String,
    queue_id: u32,
    queue_offset: u64,
    physical_offset: u64,
    store_size: u32,
    offset_msg_id: String,
    uniq_key: Option<String>,
    store_timestamp: i64,
    born_timestamp: i64,
    born_host: String,
    store_host: String,
    tags: Option<String>,
    keys: Option<String>,
    flag: i32,
    sys_flag: i32,
    /// As it stands in the record, where the client shows another after it has unpacked the body.
    stored_sys_flag: Option<i32>,
    #[serde(rename = "bodyCRC")]
    body_crc: u32,
    reconsume_times: i32,
    prepared_transaction_offset: i64,
    /// Of the unpacked body.
    body_length: usize,
    /// The unpacked body in hexadecimal digits, if it is short.
    body: Option<String>,
    properties: BTreeMap<String, String>,
}

impl Recorded {
    fn of_queue<'a>(&'a self, queue: &'a RecordedQueue) -> impl Iterator<Item = &'a RecordedMessage> {
        self.messages.iter().filter(|message| (&message.topic, message.queue_id) == (&queue.topic, queue.queue_id))
    }
}

/// A store of Apache's, unpacked.
struct Unpacked {
    folder: tempfile::TempDir,
    root: PathBuf,
    clock: TestClock,
    recorded: Recorded,
}

impl Unpacked {
    fn new(fixture: &Fixture) -> Self {
        let folder = tempfile::tempdir().unwrap();
        tar::Archive::new(GzDecoder::new(fixture.archive)).unpack(folder.path()).unwrap();
        let root = folder.path().join(fixture.folder);
        let recorded = serde_json::from_str(fixture.messages).unwrap();
        Self { folder, root, clock: TestClock::new(OPENED_AT), recorded }
    }

    fn open(&self) -> Arc<MessageStore> {
        self.open_with(Vec::new())
    }

    fn open_with(&self, plugins: Vec<Arc<dyn Plugin>>) -> Arc<MessageStore> {
        let env = Env {
            clock: Arc::new(self.clock.clone()),
            directory: Arc::new(FsDirectory::open(&self.root).unwrap()),
            fatal: Arc::new(|reason| panic!("{reason}")),
        };
        // As Apache's broker was configured when it wrote them, but for the largest body: ours has to fit into a segment.
        let options = StoreOptions {
            segment_bytes: 1 << 20,
            queue_file_bytes: 20_000,
            index_slots: 500,
            index_entries: 400,
            body_bytes_max: 512 * 1024,
            ..StoreOptions::default()
        };
        MessageStore::open(options, env, plugins).unwrap()
    }

    /// Everything that can be read must be what the client saw.
    fn check(&self, store: &MessageStore) {
        for queue in &self.recorded.queues {
            let name = format!("{}/{}", queue.topic, queue.queue_id);
            let range = store.queue_range(&queue.topic, QueueId(queue.queue_id));
            let range = range.unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!((range.min.0, range.max.0), (queue.min_offset, queue.max_offset), "offsets of {name}");
            let found = records(store, &queue.topic, QueueId(queue.queue_id));
            assert_eq!(found.len(), self.recorded.of_queue(queue).count(), "messages in {name}");
            for (found, wanted) in found.iter().zip(self.recorded.of_queue(queue)) {
                check_record(found.view(), wanted);
            }
        }
        let queues: BTreeSet<_> = store.queues().into_iter().map(|(topic, id, _)| (topic.to_string(), id.0)).collect();
        let wanted = self.recorded.queues.iter().map(|queue| (queue.topic.clone(), queue.queue_id)).collect();
        assert_eq!(queues, wanted);
    }

    /// What the client saw is where it was, whatever came behind it.
    fn check_still_there(&self, store: &MessageStore) {
        for queue in &self.recorded.queues {
            let found = records(store, &queue.topic, QueueId(queue.queue_id));
            for (found, wanted) in found.iter().zip(self.recorded.of_queue(queue)) {
                check_record(found.view(), wanted);
            }
        }
    }

    fn names(&self, folder: &str) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.root.join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn check_record(found: RecordView<'_>, wanted: &RecordedMessage) {
    let at = format!("{}/{} at {}", wanted.topic, wanted.queue_id, wanted.queue_offset);
    assert_eq!(found.topic(), wanted.topic, "{at}");
    assert_eq!(found.queue_id().0, wanted.queue_id, "{at}");
    assert_eq!(found.queue_offset().0, wanted.queue_offset, "{at}");
    assert_eq!(found.physical_offset().0, wanted.physical_offset, "{at}");
    assert_eq!(found.total_bytes(), wanted.store_size, "{at}");
    assert_eq!(found.message_id().to_string(), wanted.offset_msg_id, "{at}");
    assert_eq!(found.stored_at().0, wanted.store_timestamp, "{at}");
    assert_eq!(found.born_at().0, wanted.born_timestamp, "{at}");
    assert_eq!(found.born_host().to_string(), wanted.born_host, "{at}");
    assert_eq!(found.store_host().to_string(), wanted.store_host, "{at}");
    assert_eq!(found.flag(), wanted.flag, "{at}");
    assert_eq!(found.sys_flag().0, wanted.stored_sys_flag.unwrap_or(wanted.sys_flag), "{at}");
    assert_eq!(found.reconsume_times(), wanted.reconsume_times, "{at}");
    assert_eq!(found.prepared_offset(), wanted.prepared_transaction_offset, "{at}");

    assert_eq!(found.body_crc(), wanted.body_crc, "{at}");
    assert!(found.body_is_sound(), "{at}");
    let is_zlib = found.sys_flag().0 & 0x701 == 0x301;
    let body = match found.sys_flag().0 & 1 {
        0 => Some(found.body().to_vec()),
        _ if is_zlib => {
            let mut body = Vec::new();
            std::io::Read::read_to_end(&mut ZlibDecoder::new(found.body()), &mut body).unwrap();
            Some(body)
        }
        _ => None,
    };
    if let Some(body) = body {
        assert_eq!(body.len(), wanted.body_length, "{at}");
        if let Some(wanted) = &wanted.body {
            let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, *wanted, "{at}");
        }
    }

    let mut properties: BTreeMap<String, String> =
        found.properties().to_pairs().into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    for (name, value) in &wanted.properties {
        let found = properties.remove(name).unwrap_or_else(|| panic!("{at}: {name} is missing"));
        match value.strip_prefix("@sha256:").and_then(|value| value.split_once(':')) {
            Some((_, bytes)) => assert_eq!(found.len().to_string(), bytes, "{at}: {name}"),
            None => assert_eq!(found, *value, "{at}: {name}"),
        }
    }
    assert_eq!(properties, BTreeMap::new(), "{at}");
    assert_eq!(found.properties().get("TAGS"), wanted.tags.as_deref(), "{at}");
}

#[test]
fn store_42_a_store_that_apache_stopped_is_read_as_its_own_client_saw_it() {
    let unpacked = Unpacked::new(&CLEAN);

    let store = unpacked.open();

    unpacked.check(&store);
}

#[test]
fn store_42_a_store_whose_apache_was_killed_has_every_message_up_to_the_kill() {
    let unpacked = Unpacked::new(&KILLED);

    let store = unpacked.open();

    unpacked.check(&store);
    assert_eq!(unpacked.names("commitlog").len(), 2, "the segment that was made ahead of time is gone");
}

#[test]
fn a_store_of_apaches_reads_the_same_after_our_stop_and_after_our_kill() {
    for fixture in [&CLEAN, &KILLED] {
        let unpacked = Unpacked::new(fixture);
        let store = unpacked.open();
        store.stop().unwrap();
        drop(store);

        let store = unpacked.open();
        unpacked.check(&store);
        drop(store);

        unpacked.check(&unpacked.open());
    }
}

#[test]
fn every_message_of_apaches_is_found_by_its_unique_key_and_by_its_keys() {
    for fixture in [&CLEAN, &KILLED] {
        let unpacked = Unpacked::new(fixture);
        let store = unpacked.open();

        for message in &unpacked.recorded.messages {
            let keys = message.keys.iter().flat_map(|keys| keys.split(' '));
            for key in message.uniq_key.iter().map(String::as_str).chain(keys).filter(|key| !key.is_empty()) {
                let queried = store.query(&message.topic, key, 64, Timestamp::EPOCH, Timestamp::MAX);
                let positions = queried.records.iter().map(|bytes| Record::parse(bytes).unwrap());
                let found = positions.map(|record| record.view().physical_offset().0).collect::<Vec<_>>();
                assert!(found.contains(&message.physical_offset), "{} by {key}: {found:?}", message.topic);
            }
        }
    }
}

#[test]
fn store_15_16_entries_that_apache_wrote_hold_what_a_rebuild_of_ours_writes() {
    for fixture in [&CLEAN, &KILLED] {
        let unpacked = Unpacked::new(fixture);
        let as_apache_wrote = unpacked.open();
        for queue in unpacked.recorded.queues.iter().filter(|queue| queue.topic != SCHEDULE_TOPIC) {
            let entries = entries(&as_apache_wrote, queue);
            for (entry, message) in entries.iter().zip(unpacked.recorded.of_queue(queue)) {
                let (at, bytes, tag_code) = *entry;
                let tag = message.tags.as_deref().map_or(0, |tag| i64::from(java_hash(tag)));
                assert_eq!(
                    (at, bytes, tag_code),
                    (message.physical_offset, message.store_size, tag),
                    "{}",
                    queue.topic
                );
            }
        }
        let before: Vec<_> = unpacked.recorded.queues.iter().map(|queue| entries(&as_apache_wrote, queue)).collect();
        drop(as_apache_wrote);
        std::fs::remove_dir_all(unpacked.root.join("consumequeue")).unwrap();
        std::fs::remove_file(unpacked.root.join("latermq.checkpoint")).unwrap();

        let rebuilt = unpacked.open();

        for (queue, before) in unpacked.recorded.queues.iter().zip(before) {
            if queue.topic != SCHEDULE_TOPIC {
                assert_eq!(entries(&rebuilt, queue), before, "{}/{}", queue.topic, queue.queue_id);
            }
        }
        unpacked.check(&rebuilt);
    }
}

fn entries(store: &MessageStore, queue: &RecordedQueue) -> Vec<(u64, u32, i64)> {
    let entries = store.queue_entries(&queue.topic, QueueId(queue.queue_id), QueueOffset::ZERO, 1_000);
    entries.into_iter().map(|entry| (entry.position.0, entry.bytes, entry.tag_code)).collect()
}

#[test]
fn what_we_append_to_a_store_of_apaches_goes_on_where_apache_ended() {
    for fixture in [&CLEAN, &KILLED] {
        let unpacked = Unpacked::new(fixture);
        let store = unpacked.open();
        let last = unpacked.recorded.messages.iter().max_by_key(|message| message.physical_offset).unwrap();
        let wanted = unpacked.recorded.queues.iter().find(|q| (&*q.topic, q.queue_id) == ("StoreA", 2)).unwrap();

        let appended = store.append(draft("StoreA", 2, "ours")).unwrap();
        dispatch_all(&store);

        assert_eq!(appended.position, PhysicalOffset(last.physical_offset + u64::from(last.store_size)));
        assert_eq!(appended.queue_offset.0, wanted.max_offset);
        assert!(appended.stored_at.0 >= last.store_timestamp);
        assert_eq!(records(&store, "StoreA", QueueId(2)).last().unwrap().view().body(), b"ours");
    }
}

#[test]
fn store_29_no_name_of_ours_lies_where_apache_would_trip_over_it() {
    let unpacked = Unpacked::new(&KILLED);
    let store = unpacked.open();
    store.append(draft("ours", 0, "a")).unwrap();
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    store.stop().unwrap();
    drop(store);

    let is_number = |name: &String, digits| name.len() == digits && name.bytes().all(|byte| byte.is_ascii_digit());
    for name in unpacked.names("commitlog") {
        assert!(is_number(&name, 20), "commitlog/{name}");
        let path = unpacked.root.join("commitlog").join(&name);
        assert_eq!(std::fs::metadata(path).unwrap().len(), 1 << 20, "{name}");
    }
    for topic in unpacked.names("consumequeue") {
        for queue in unpacked.names(&format!("consumequeue/{topic}")) {
            assert!(queue.parse::<u32>().is_ok(), "consumequeue/{topic}/{queue}");
            for name in unpacked.names(&format!("consumequeue/{topic}/{queue}")) {
                assert!(is_number(&name, 20), "consumequeue/{topic}/{queue}/{name}");
                let path = unpacked.root.join("consumequeue").join(&topic).join(&queue).join(&name);
                assert_eq!(std::fs::metadata(path).unwrap().len(), 20_000, "{topic}/{queue}/{name}");
            }
        }
    }
    for name in unpacked.names("index") {
        assert!(is_number(&name, 17), "index/{name}");
        assert_eq!(std::fs::metadata(unpacked.root.join("index").join(&name)).unwrap().len(), 10_040, "{name}");
    }
    let root = unpacked.names("");
    assert!(!root.contains("abort"), "{root:?}");
    assert_eq!(std::fs::metadata(unpacked.root.join("checkpoint")).unwrap().len(), 4096);
    assert!(Path::new(unpacked.folder.path()).exists());
}

// What waits in them.

/// Every topic has as many queues as it needs.
struct EveryTopic;

impl RealTopics for EveryTopic {
    fn resolve(&self, _: &str, queue_id: u32, _: PhysicalOffset) -> RealQueue {
        RealQueue::Deliver(QueueId(queue_id))
    }
}

/// Topic, queue and unique key of a message where it is delivered.
type Delivery = (String, u32, String);

struct Delivering {
    store: Arc<MessageStore>,
    levels: Arc<LevelScheduler>,
}

impl Delivering {
    fn open(unpacked: &Unpacked) -> Self {
        let options =
            DelayOptions { levels: "1s 2s 5s 10s 30s 1m 2h 3650d".parse().unwrap(), ..DelayOptions::default() };
        let levels = Arc::new(LevelScheduler::new(options, Arc::new(EveryTopic)));
        let store = unpacked.open_with(vec![levels.clone()]);
        Self { store, levels }
    }

    /// Delivers all that is due; every message behind those that Apache knew, sorted.
    fn deliver(&self, unpacked: &Unpacked) -> Vec<Delivery> {
        dispatch_all(&self.store);
        for _ in 0..1_000 {
            self.levels.tick(self.store.now());
            dispatch_all(&self.store);
        }
        let mut delivered = Vec::new();
        for (topic, queue_id, _) in self.store.queues() {
            let is_it = |queue: &&RecordedQueue| queue.topic == *topic && queue.queue_id == queue_id.0;
            let known = unpacked.recorded.queues.iter().find(is_it).map_or(0, |queue| queue.max_offset);
            for record in records(&self.store, &topic, queue_id) {
                if record.view().queue_offset().0 >= known {
                    let key = record.view().properties().get("UNIQ_KEY").unwrap().to_owned();
                    delivered.push((topic.to_string(), queue_id.0, key));
                }
            }
        }
        delivered.sort();
        delivered
    }
}

/// Where the waiting messages of some levels go; of each level those from an offset on.
fn waiting(unpacked: &Unpacked, levels: &[(u32, u64)]) -> Vec<Delivery> {
    let mut waiting: Vec<_> = unpacked
        .recorded
        .messages
        .iter()
        .filter(|message| message.topic == SCHEDULE_TOPIC)
        .filter(|message| {
            let (level, at) = (message.queue_id + 1, message.queue_offset);
            levels.iter().any(|&(wanted, from)| level == wanted && at >= from)
        })
        .map(|message| {
            let property = |name: &str| message.properties[name].clone();
            (property("REAL_TOPIC"), property("REAL_QID").parse().unwrap(), message.uniq_key.clone().unwrap())
        })
        .collect();
    waiting.sort();
    waiting
}

/// Levels with the offsets that Apache had delivered to, as its `delayOffset.json` says; level 8 is due in 2036.
const OVERDUE: [(u32, u64); 5] = [(1, 14), (2, 9), (3, 8), (6, 0), (7, 0)];
const DUE_IN_2036: (u32, u64) = (8, 0);

/// Two hours after the stores were written.
const HOURS_LATER: std::time::Duration = std::time::Duration::from_secs(3 * 3_600);
const TEN_YEARS: std::time::Duration = std::time::Duration::from_secs(3_651 * 24 * 3_600);

#[test]
fn store_42_what_waits_in_a_store_of_apaches_is_delivered_once_and_what_apache_delivered_is_not() {
    for (fixture, overdue, in_2036) in [(&CLEAN, 8, 6), (&KILLED, 18, 16)] {
        let unpacked = Unpacked::new(fixture);
        unpacked.clock.advance(HOURS_LATER);
        let delivering = Delivering::open(&unpacked);

        let wanted = waiting(&unpacked, &OVERDUE);
        assert_eq!(wanted.len(), overdue, "{}", fixture.folder);
        assert_eq!(delivering.deliver(&unpacked), wanted, "{}", fixture.folder);
        assert_eq!(delivering.deliver(&unpacked), wanted, "{}: once", fixture.folder);

        unpacked.clock.advance(TEN_YEARS);
        let mut all = wanted;
        let late = waiting(&unpacked, &[DUE_IN_2036]);
        assert_eq!(late.len(), in_2036, "{}", fixture.folder);
        all.extend(late);
        all.sort();
        assert_eq!(delivering.deliver(&unpacked), all, "{}: in 2036", fixture.folder);
        unpacked.check_still_there(&delivering.store);
    }
}

#[test]
fn store_42_what_was_delivered_from_a_store_of_apaches_is_not_delivered_again_after_a_kill_or_a_stop() {
    for stopped in [false, true] {
        let unpacked = Unpacked::new(&KILLED);
        unpacked.clock.advance(HOURS_LATER);
        let delivering = Delivering::open(&unpacked);
        let delivered = delivering.deliver(&unpacked);
        if stopped {
            delivering.store.stop().unwrap();
        }
        drop(delivering);

        let again = Delivering::open(&unpacked);

        assert_eq!(again.deliver(&unpacked), delivered, "stopped: {stopped}");
    }
}

#[test]
fn store_43_delay_offsets_beyond_the_queue_and_below_zero_hold_up_no_later_message() {
    let unpacked = Unpacked::new(&CLEAN);
    unpacked.clock.advance(HOURS_LATER);
    let text = "{\"offsetTable\":{1:14,2:9,3:8,6:-5,7:0,8:1000000}}";
    std::fs::write(unpacked.root.join("config/delayOffset.json"), text).unwrap();
    let delivering = Delivering::open(&unpacked);
    let mut wanted = waiting(&unpacked, &[(6, 0), (7, 0)]);
    assert_eq!(delivering.deliver(&unpacked), wanted, "below zero is from the start");

    let mut late = draft("ours", 0, "late");
    late.properties.set("DELAY", "8");
    delivering.store.append(late).unwrap();
    wanted.push((SCHEDULE_TOPIC.to_owned(), 7, "late".to_owned()));
    wanted.sort();
    assert_eq!(delivering.deliver(&unpacked), wanted, "the new message waits");
    drop(delivering);

    let delivering = Delivering::open(&unpacked);
    unpacked.clock.advance(TEN_YEARS);
    let delivered = delivering.deliver(&unpacked);

    wanted.push(("ours".to_owned(), 0, "late".to_owned()));
    // An offset beyond the queue says nothing: what has a unique key and no restored record was not delivered.
    wanted.extend(waiting(&unpacked, &[DUE_IN_2036]));
    wanted.sort();
    assert_eq!(delivered, wanted);
}
