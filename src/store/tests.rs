//! The store as a whole, on real files, without its threads.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;

use super::*;
use crate::{
    env::{BootId, Clock, Directory, Env, FsDirectory, MemoryDirectory, Operation},
    model::{MessageDraft, PhysicalOffset, Properties, QueueId, QueueOffset, SysFlag, Timestamp, Topic},
    record::Records,
};

const SEGMENT_BYTES: u64 = 128 * 1024;

/// A clock that stands still until it is moved.
#[derive(Default)]
struct StillClock {
    wall: Mutex<i64>,
    boot: Mutex<Duration>,
    boots: Mutex<u32>,
}

impl StillClock {
    fn advance(&self, by: Duration) {
        *self.wall.lock().unwrap() += i64::try_from(by.as_millis()).unwrap();
        *self.boot.lock().unwrap() += by;
    }

    fn step_wall(&self, by_ms: i64) {
        *self.wall.lock().unwrap() += by_ms;
    }

    fn reboot(&self) {
        *self.boots.lock().unwrap() += 1;
    }
}

impl Clock for StillClock {
    fn wall(&self) -> Timestamp {
        Timestamp(*self.wall.lock().unwrap())
    }

    fn since_boot(&self) -> Duration {
        *self.boot.lock().unwrap()
    }

    fn boot_id(&self) -> BootId {
        BootId(format!("boot {}", self.boots.lock().unwrap()))
    }
}

struct Rig {
    folder: tempfile::TempDir,
    clock: Arc<StillClock>,
    fatal: Arc<Mutex<Vec<String>>>,
    options: StoreOptions,
}

impl Rig {
    fn new() -> Self {
        let clock = StillClock::default();
        *clock.wall.lock().unwrap() = 1_700_000_000_000;
        let options = StoreOptions {
            segment_bytes: SEGMENT_BYTES,
            body_bytes_max: 16 * 1024,
            queue_file_bytes: 2_000,
            index_slots: 100,
            index_entries: 400,
            ..StoreOptions::default()
        };
        Self { folder: tempfile::tempdir().unwrap(), clock: Arc::new(clock), fatal: Arc::default(), options }
    }

    fn env(&self) -> Env {
        let fatal = self.fatal.clone();
        Env {
            clock: self.clock.clone(),
            directory: Arc::new(FsDirectory::open(self.folder.path()).unwrap()) as Arc<dyn Directory>,
            fatal: Arc::new(move |reason| fatal.lock().unwrap().push(reason.to_owned())),
        }
    }

    fn open(&self) -> Arc<MessageStore> {
        MessageStore::open(self.options.clone(), self.env(), Vec::new()).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.path("commitlog").join(format!("{:020}", number * SEGMENT_BYTES))
    }
}

fn draft(topic: &str, queue_id: u32, body: &[u8]) -> MessageDraft {
    let host = "127.0.0.1:10911".parse().unwrap();
    let mut properties = Properties::new();
    properties.set("UNIQ_KEY", String::from_utf8_lossy(body).as_bytes());
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
        body: Bytes::copy_from_slice(body),
    }
}

fn dispatch_all(store: &MessageStore) {
    while store.dispatch_once(u64::MAX) {}
}

fn bodies(store: &MessageStore, topic: &str, queue_id: u32) -> Vec<String> {
    let mut bodies = Vec::new();
    let mut offset = store.queue_range(topic, QueueId(queue_id)).map_or(0, |range| range.min.0 as i64);
    loop {
        let query = PullQuery { topic, queue_id: QueueId(queue_id), offset, count_max: 32, bytes_max: usize::MAX };
        let pulled = store.pull(&query, &|_| true);
        if !matches!(pulled.status, PullStatus::Found | PullStatus::MessageWasRemoving) {
            return bodies;
        }
        assert!(pulled.next_offset > offset, "a pull gets on");
        offset = pulled.next_offset;
        for slice in pulled.records {
            for record in Records::new(slice) {
                let record = record.unwrap();
                bodies.push(String::from_utf8(record.body().to_vec()).unwrap());
            }
        }
    }
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("message {n:04}")).collect()
}

fn fill(store: &MessageStore, from: usize, count: usize) {
    for n in from..from + count {
        store.append(draft("orders", 0, format!("message {n:04}").as_bytes())).unwrap();
    }
}

/// Forgets a store without stopping it, as a kill does.
fn kill(store: Arc<MessageStore>) {
    drop(store);
}

#[test]
fn messages_survive_a_clean_stop_and_a_kill_in_order() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 50);
    dispatch_all(&store);
    store.stop().unwrap();
    drop(store);
    assert!(!rig.path("abort").exists());

    let store = rig.open();
    fill(&store, 50, 50);
    kill(store);
    assert!(rig.path("abort").exists());

    let store = rig.open();
    assert_eq!(bodies(&store, "orders", 0), numbered(100));
    assert_eq!(store.append(draft("orders", 0, b"next")).unwrap().queue_offset, QueueOffset(100));
}

#[test]
fn store_8_9_10_a_full_segment_ends_with_a_blank_and_no_record_crosses_it() {
    let rig = Rig::new();
    let store = rig.open();

    fill(&store, 0, 2_000);

    let segments = store.log_range().1.0 / SEGMENT_BYTES;
    assert!(segments >= 2, "the log rolled");
    for number in 0..segments {
        let bytes = std::fs::read(rig.segment(number)).unwrap();
        let mut at = 0;
        loop {
            match crate::record::kind(&bytes[at..]) {
                crate::record::Frame::Record { bytes: length } => {
                    let record = crate::record::RecordView::parse(&bytes[at..]).unwrap();
                    assert_eq!(record.physical_offset().0, number * SEGMENT_BYTES + at as u64);
                    at += length as usize;
                }
                crate::record::Frame::Blank { bytes: length } => {
                    assert_eq!(length as usize, bytes.len() - at);
                    break;
                }
                crate::record::Frame::Bad => panic!("neither record nor blank at {at} of segment {number}"),
            }
        }
    }
    dispatch_all(&store);
    assert_eq!(bodies(&store, "orders", 0), numbered(2_000));
}

#[test]
fn store_12_a_refused_message_takes_no_queue_offset() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 1);

    let refused = store.append(draft("orders", 0, &vec![b'x'; 16 * 1024 + 1]));

    assert!(matches!(refused, Err(AppendError::BodyTooLarge { .. })));
    assert_eq!(store.append(draft("orders", 0, b"message 0001")).unwrap().queue_offset, QueueOffset(1));
}

#[test]
fn of_messages_that_came_together_a_refused_one_harms_no_other() {
    let rig = Rig::new();
    let store = rig.open();
    let mut bodies_sent: Vec<Vec<u8>> = (0..4).map(|n| format!("message {n:04}").into_bytes()).collect();
    bodies_sent.insert(2, vec![b'x'; 16 * 1024 + 1]);

    let outcomes = store.append_each(bodies_sent.iter().map(|body| draft("orders", 0, body)).collect());

    let offsets: Vec<Option<u64>> =
        outcomes.iter().map(|outcome| outcome.as_ref().ok().map(|appended| appended.queue_offset.0)).collect();
    assert_eq!(offsets, [Some(0), Some(1), None, Some(2), Some(3)]);
    assert!(matches!(outcomes[2], Err(AppendError::BodyTooLarge { .. })));
    dispatch_all(&store);
    assert_eq!(bodies(&store, "orders", 0), numbered(4));
}

#[test]
fn of_messages_that_came_together_those_that_find_room_are_stored_if_not_all_do() {
    let disk = MemoryDirectory::new();
    let rig = Rig::new();
    let env = Env { directory: Arc::new(disk.clone()), ..rig.env() };
    let store = MessageStore::open(rig.options.clone(), env, Vec::new()).unwrap();
    let body = |n: usize| format!("message {n:04}").into_bytes();
    store.append(draft("orders", 0, &body(0))).unwrap();
    // The rest of the segment is too short for all of them, and there is no other.
    disk.fail_under(Path::new("commitlog"), Operation::Create, 0, std::io::ErrorKind::StorageFull, u64::MAX);

    let outcomes = store.append_each((1..2000).map(|n| draft("orders", 0, &body(n))).collect());

    let taken = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
    assert!(taken > 100 && taken < 1999, "{taken}");
    assert!(outcomes[taken..].iter().all(Result::is_err));
    let offsets = outcomes[..taken].iter().map(|outcome| outcome.as_ref().unwrap().queue_offset.0);
    assert!(offsets.eq(1..=taken as u64));
    dispatch_all(&store);
    assert_eq!(bodies(&store, "orders", 0), numbered(taken + 1));
}

#[test]
fn store_13_store_time_never_falls_when_the_wall_clock_steps_back() {
    let rig = Rig::new();
    let store = rig.open();
    let first = store.append(draft("orders", 0, b"a")).unwrap().stored_at;

    rig.clock.step_wall(-3_600_000);
    rig.clock.advance(Duration::from_millis(5));
    let second = store.append(draft("orders", 0, b"b")).unwrap().stored_at;
    kill(store);
    let third = rig.open().append(draft("orders", 0, b"c")).unwrap().stored_at;

    assert_eq!(second.since(first), Duration::from_millis(5), "it goes on at the pace of the boot clock");
    assert!(third >= second, "also after a restart");
}

#[test]
fn store_11_a_batch_lies_in_one_segment_with_consecutive_offsets() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 680);
    let batch = (0..40).map(|n| draft("orders", 0, format!("message {:04}", 680 + n).as_bytes())).collect();

    let appended = store.append_batch(&Properties::new(), batch).unwrap();

    let offsets: Vec<u64> = appended.iter().map(|a| a.queue_offset.0).collect();
    assert_eq!(offsets, (680..720).collect::<Vec<_>>());
    assert_eq!(appended[0].position.0 / SEGMENT_BYTES, (appended[39].end.0 - 1) / SEGMENT_BYTES);
    dispatch_all(&store);
    assert_eq!(bodies(&store, "orders", 0), numbered(720));
}

#[test]
fn store_25_a_second_store_on_the_same_folder_is_refused() {
    let rig = Rig::new();
    let _first = rig.open();

    let second = MessageStore::open(rig.options.clone(), rig.env(), Vec::new());

    assert!(matches!(second, Err(StoreError::Locked { .. })), "{second:?}");
}

#[test]
fn store_26_a_short_newest_segment_is_made_whole_and_another_length_is_refused() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 10);
    kill(store);
    let segment = std::fs::File::options().write(true).open(rig.segment(0)).unwrap();
    segment.set_len(SEGMENT_BYTES / 2).unwrap();

    let store = rig.open();
    assert_eq!(bodies(&store, "orders", 0), numbered(10));
    assert_eq!(std::fs::metadata(rig.segment(0)).unwrap().len(), SEGMENT_BYTES);
    kill(store);

    let other = StoreOptions { segment_bytes: SEGMENT_BYTES - 4096, ..rig.options.clone() };
    let refused = MessageStore::open(other, rig.env(), Vec::new()).unwrap_err();
    assert!(refused.to_string().contains("mappedFileSizeCommitLog"), "{refused}");
}

#[test]
fn store_27_an_empty_newest_segment_is_removed() {
    // B28
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 10);
    kill(store);
    std::fs::write(rig.segment(1), b"").unwrap();

    let store = rig.open();

    assert_eq!(bodies(&store, "orders", 0), numbered(10));
    assert!(!rig.segment(1).exists());
}

#[test]
fn a_folder_of_queues_that_is_taken_away_from_a_running_store_stops_no_queue() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 30);
    dispatch_all(&store);
    std::fs::remove_dir_all(rig.path("consumequeue")).unwrap();

    fill(&store, 30, 320);
    store.append(draft("other", 3, b"x")).unwrap();
    dispatch_all(&store);

    assert_eq!(store.queue_range("orders", QueueId(0)).unwrap().max, QueueOffset(350));
    assert_eq!(bodies(&store, "orders", 0).last().unwrap(), "message 0349");
    assert_eq!(bodies(&store, "other", 3), ["x"]);
    kill(store);
    let store = rig.open();
    assert_eq!(bodies(&store, "orders", 0), numbered(350));
}

#[test]
fn the_folder_of_a_queue_that_is_taken_away_from_a_running_store_stops_no_checkpoint() {
    for gone in ["consumequeue/orders/0", "consumequeue/orders"] {
        let rig = Rig::new();
        let store = rig.open();
        fill(&store, 0, 30);
        dispatch_all(&store);
        std::fs::remove_dir_all(rig.path(gone)).unwrap();

        store.checkpoint_once().unwrap();
        store.append(draft("other", 3, b"x")).unwrap();
        fill(&store, 30, 320);
        dispatch_all(&store);
        store.checkpoint_once().unwrap();
        store.retain_once().unwrap();

        assert_eq!(bodies(&store, "other", 3), ["x"], "{gone}");
        kill(store);
        assert_eq!(bodies(&rig.open(), "orders", 0), numbered(350), "{gone}");
    }
}

#[test]
fn strange_files_are_left_alone() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 10);
    kill(store);
    for folder in ["commitlog", "consumequeue", "config", "index"] {
        std::fs::write(rig.path(folder).join("foo"), b"x").unwrap();
        std::fs::create_dir(rig.path(folder).join("lost+found")).unwrap();
    }
    std::fs::write(rig.path("commitlog").join("00000000000000000000.tmp"), b"x").unwrap();

    let store = rig.open();

    assert_eq!(bodies(&store, "orders", 0), numbered(10));
    assert!(rig.path("commitlog").join("foo").exists());
}

#[test]
fn a_segment_smaller_than_the_largest_record_stops_the_start() {
    let rig = Rig::new();
    let options = StoreOptions { segment_bytes: 70_000, ..rig.options.clone() };

    let error = MessageStore::open(options, rig.env(), Vec::new()).unwrap_err();

    assert!(error.to_string().starts_with("mappedFileSizeCommitLog:"), "{error}");
}

#[test]
fn store_35_36_a_torn_tail_is_cut_and_what_lay_behind_is_never_seen_again() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 10);
    store.sync_once().unwrap();
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    fill(&store, 10, 10);
    let torn = store.append(draft("orders", 0, b"message 0020")).unwrap();
    fill(&store, 21, 5);
    kill(store);
    // The power went: the page that holds the middle of one record is lost; those behind it are whole.
    rig.clock.reboot();
    write_at(&rig.segment(0), torn.position.0 + 20, &[0; 60]);

    let store = rig.open();
    assert_eq!(bodies(&store, "orders", 0), numbered(20));
    assert_eq!(store.log_range().1, torn.position);
    let bytes = std::fs::read(rig.segment(0)).unwrap();
    assert!(bytes[torn.position.0 as usize..].iter().all(|&b| b == 0), "everything behind the cut is zero");

    // A record of the same length ends where an old one began.
    fill(&store, 20, 1);
    kill(store);
    assert_eq!(bodies(&rig.open(), "orders", 0), numbered(21));
}

#[test]
fn damage_below_the_durable_position_is_skipped_and_nothing_behind_it_is_lost() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 30);
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    let position = store.queue_entries("orders", QueueId(0), QueueOffset(7), 1)[0].position;
    kill(store);
    write_at(&rig.segment(0), position.0 + 100, &[0xFF; 8]);
    // Without our checkpoint the whole log is looked at; RocketMQ's says that it was durable.
    std::fs::remove_file(rig.path("latermq.checkpoint")).unwrap();
    let _ = std::fs::remove_file(rig.path("latermq.checkpoint.bak"));

    let store = rig.open();

    let mut wanted = numbered(30);
    wanted.remove(7);
    assert_eq!(bodies(&store, "orders", 0), wanted);
    assert_eq!(store.append(draft("orders", 0, b"next")).unwrap().queue_offset, QueueOffset(30));
}

#[test]
fn store_38_queues_and_index_are_rebuilt_from_the_log() {
    for remove in [&["consumequeue"][..], &["index"], &["consumequeue", "index"], &["consumequeue/orders/1"]] {
        let rig = Rig::new();
        let store = rig.open();
        fill(&store, 0, 2_000);
        store.append(draft("orders", 1, b"other queue")).unwrap();
        dispatch_all(&store);
        store.stop().unwrap();
        drop(store);
        for folder in remove {
            std::fs::remove_dir_all(rig.path(folder)).unwrap();
        }

        let store = rig.open();

        assert_eq!(bodies(&store, "orders", 0), numbered(2_000), "without {remove:?}");
        assert_eq!(bodies(&store, "orders", 1), ["other queue"], "without {remove:?}");
        let found = store.query("orders", "message 1999", 10, Timestamp(0), Timestamp::MAX);
        assert_eq!(found.records.len(), 1, "without {remove:?}");
    }
}

#[test]
fn store_44_queues_without_a_log_begin_at_zero() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 20);
    dispatch_all(&store);
    store.stop().unwrap();
    drop(store);
    std::fs::remove_dir_all(rig.path("commitlog")).unwrap();

    let store = rig.open();

    assert_eq!(bodies(&store, "orders", 0), Vec::<String>::new());
    assert_eq!(store.append(draft("orders", 0, b"first")).unwrap().queue_offset, QueueOffset(0));
}

#[test]
fn a_missing_segment_in_the_middle_loses_only_its_own_messages() {
    // B117
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 2_000);
    dispatch_all(&store);
    assert!(store.log_range().1.0 > 2 * SEGMENT_BYTES);
    store.stop().unwrap();
    drop(store);
    std::fs::remove_file(rig.segment(1)).unwrap();

    let store = rig.open();

    let left = bodies(&store, "orders", 0);
    assert!(left.len() > 500 && left.len() < 2_000);
    assert_eq!(left.first().unwrap(), "message 0000");
    assert_eq!(left.last().unwrap(), "message 1999");
    assert_eq!(store.append(draft("orders", 0, b"next")).unwrap().queue_offset, QueueOffset(2_000));
}

#[test]
fn under_sync_flush_nothing_is_seen_before_it_is_durable() {
    let mut rig = Rig::new();
    rig.options.flush_policy = FlushPolicy::Sync;
    let store = rig.open();
    let appended = store.append(draft("orders", 0, b"message 0000")).unwrap();
    let released = Arc::new(Mutex::new(0));
    let count = released.clone();
    store.when_durable(appended.end, Box::new(move |result| *count.lock().unwrap() += i32::from(result.is_ok())));
    dispatch_all(&store);
    assert_eq!(bodies(&store, "orders", 0), Vec::<String>::new());
    assert!(store.record_at(appended.position).is_none());
    assert_eq!(*released.lock().unwrap(), 0);

    store.sync_once().unwrap();
    dispatch_all(&store);

    assert_eq!(bodies(&store, "orders", 0), numbered(1));
    assert_eq!(*released.lock().unwrap(), 1);
}

#[test]
fn remoting_55_58_the_status_of_a_pull_follows_from_the_offsets() {
    let rig = Rig::new();
    let store = rig.open();
    let pull = |offset| {
        let query = PullQuery { topic: "orders", queue_id: QueueId(0), offset, count_max: 32, bytes_max: usize::MAX };
        let pulled = store.pull(&query, &|_| true);
        (pulled.status, pulled.next_offset)
    };
    assert_eq!(pull(0), (PullStatus::NoMatchedLogicQueue, 0));

    fill(&store, 0, 3);
    dispatch_all(&store);

    assert_eq!(pull(0), (PullStatus::Found, 3));
    assert_eq!(pull(3), (PullStatus::OffsetOverflowOne, 3));
    assert_eq!(pull(4), (PullStatus::OffsetOverflowBadly, 3));
    assert_eq!(pull(-1), (PullStatus::OffsetTooSmall, 0));
}

#[test]
fn remoting_59_a_pull_that_finds_nothing_wanted_gets_on() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 100);
    dispatch_all(&store);

    let query = PullQuery { topic: "orders", queue_id: QueueId(0), offset: 0, count_max: 32, bytes_max: usize::MAX };
    let pulled = store.pull(&query, &|_| false);

    assert_eq!((pulled.status, pulled.next_offset), (PullStatus::NoMatchedMessage, 100));
}

#[test]
fn remoting_64_a_pull_stays_within_its_limits_but_gives_one_message_at_least() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 100);
    dispatch_all(&store);
    let pull = |count_max, bytes_max| {
        let query = PullQuery { topic: "orders", queue_id: QueueId(0), offset: 0, count_max, bytes_max };
        store.pull(&query, &|_| true)
    };

    assert_eq!(pull(1000, usize::MAX).count, 32);
    assert_eq!(pull(5, usize::MAX).count, 5);
    assert_eq!(pull(5, 1).count, 1);
    assert_eq!(pull(32, usize::MAX).records.len(), 1, "neighbours in the log are one slice");
}

#[test]
fn remoting_54_a_search_by_time_finds_the_first_or_the_last_of_equal_times() {
    let rig = Rig::new();
    let store = rig.open();
    let mut times = Vec::new();
    for n in 0..6 {
        times.push(store.append(draft("orders", 0, format!("{n}").as_bytes())).unwrap().stored_at);
        if n % 2 == 1 {
            rig.clock.advance(Duration::from_millis(10));
        }
    }
    dispatch_all(&store);
    let at = |time, boundary| store.offset_at("orders", QueueId(0), time, boundary).0;

    assert_eq!(at(times[2], Boundary::Lower), 2);
    assert_eq!(at(times[2], Boundary::Upper), 3);
    assert_eq!(at(Timestamp(0), Boundary::Lower), 0);
    assert_eq!(at(Timestamp(0), Boundary::Upper), 0);
    assert_eq!(at(Timestamp::MAX, Boundary::Lower), 6);
    assert_eq!(at(Timestamp::MAX, Boundary::Upper), 5);
}

#[test]
fn a_nul_in_topic_or_properties_is_refused() {
    let rig = Rig::new();
    let store = rig.open();
    let mut in_properties = draft("orders", 0, b"a");
    in_properties.properties.set("k", b"a\0b");

    for refused in [store.append(draft("or\0ders", 0, b"a")), store.append(in_properties)] {
        assert!(
            matches!(refused, Err(AppendError::Refused(Refusal { kind: RefusalKind::Illegal, .. }))),
            "{refused:?}"
        );
    }
}

#[test]
fn store_46_47_49_expired_segments_go_and_the_newest_stays() {
    let mut rig = Rig::new();
    rig.options.reserved_time = Duration::from_secs(3600);
    rig.options.delete_when = (0..24).collect();
    // Only age counts here, however full the disk of this machine is.
    rig.options.disk_clean_percent = 100;
    let store = rig.open();
    fill(&store, 0, 2_000);
    dispatch_all(&store);
    assert_eq!(store.retain_once().unwrap(), 0, "nothing is old enough");

    let later =
        i64::try_from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()).unwrap();
    rig.clock.step_wall(later + 2 * 3_600_000 - rig.clock.wall().0);
    let deleted = store.retain_once().unwrap();

    let (first, end) = store.log_range();
    assert!(deleted >= 2);
    assert_eq!(first.0, end.0 / SEGMENT_BYTES * SEGMENT_BYTES, "only the newest is left");
    let range = store.queue_range("orders", QueueId(0)).unwrap();
    assert_eq!(range.max, QueueOffset(2_000));
    assert_eq!(store.queue_entries("orders", QueueId(0), range.min, 1)[0].position, first);
    let left = bodies(&store, "orders", 0);
    assert_eq!(left.len() as u64, range.max.0 - range.min.0);
    kill(store);
    assert_eq!(bodies(&rig.open(), "orders", 0), left);
}

#[test]
fn b112_a_pull_gives_what_it_chose_although_retention_removes_the_segment_meanwhile() {
    let mut rig = Rig::new();
    rig.options.reserved_time = Duration::ZERO;
    rig.options.delete_when = (0..24).collect();
    rig.options.disk_clean_percent = 100;
    let store = rig.open();
    fill(&store, 0, 2_000);
    dispatch_all(&store);
    let asked = std::cell::Cell::new(0);
    let later =
        i64::try_from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()).unwrap();
    rig.clock.step_wall(later + 3_600_000 - rig.clock.wall().0);

    let query = PullQuery { topic: "orders", queue_id: QueueId(0), offset: 0, count_max: 8, bytes_max: usize::MAX };
    let pulled = store.pull(&query, &|_| {
        asked.set(asked.get() + 1);
        if asked.get() == 4 {
            assert!(store.retain_once().unwrap() >= 2);
        }
        true
    });

    assert_eq!((pulled.status, pulled.failure, pulled.count), (PullStatus::Found, None, 3));
    let records: Vec<_> =
        pulled.records.into_iter().flat_map(|slice| Records::new(slice).map(Result::unwrap)).collect();
    let bodies: Vec<_> = records.iter().map(|record| String::from_utf8(record.body().to_vec()).unwrap()).collect();
    assert_eq!(bodies, numbered(3));
}

#[test]
fn a_deleted_topic_begins_anew_at_offset_zero() {
    let rig = Rig::new();
    let store = rig.open();
    fill(&store, 0, 10);
    dispatch_all(&store);

    store.delete_topic("orders").unwrap();
    let appended = store.append(draft("orders", 0, b"first")).unwrap();
    dispatch_all(&store);

    assert_eq!(appended.queue_offset, QueueOffset(0));
    assert_eq!(bodies(&store, "orders", 0), ["first"]);
    kill(store);
    assert_eq!(bodies(&rig.open(), "orders", 0), ["first"]);
}

#[test]
fn the_threads_of_a_started_store_dispatch_and_sync_by_themselves() {
    struct Arrivals(std::sync::mpsc::Sender<QueueOffset>);
    impl ArrivalListener for Arrivals {
        fn arrived(&self, topic: &str, queue_id: QueueId, max: QueueOffset, tag_code: i64) {
            assert_eq!((topic, queue_id, tag_code), ("orders", QueueId(0), 2_598_919));
            self.0.send(max).unwrap();
        }
    }
    for policy in [FlushPolicy::Async, FlushPolicy::Sync] {
        let mut rig = Rig::new();
        rig.options.flush_policy = policy;
        let store = rig.open();
        let (arrived, arrivals) = std::sync::mpsc::channel();
        store.set_arrival_listener(Arc::new(Arrivals(arrived)));
        store.start().unwrap();

        let appended = store.append(draft("orders", 0, b"message 0000")).unwrap();
        let (durable, is_durable) = std::sync::mpsc::channel();
        store.when_durable(appended.end, Box::new(move |result| durable.send(result.is_ok()).unwrap()));

        let patience = Duration::from_secs(20);
        assert_eq!(arrivals.recv_timeout(patience).unwrap(), QueueOffset(1));
        assert!(is_durable.recv_timeout(patience).unwrap());
        assert!(store.durable() >= appended.end);
        store.stop().unwrap();
        assert!(matches!(store.append(draft("orders", 0, b"late")), Err(AppendError::Closed)));
        assert!(rig.fatal.lock().unwrap().is_empty());
    }
}

fn write_at(path: &Path, position: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, position).unwrap();
}

#[test]
fn the_store_time_of_a_position_is_that_of_its_record() {
    let rig = Rig::new();
    let store = rig.open();
    let appended = store.append(draft("orders", 3, b"x")).unwrap();
    dispatch_all(&store);

    assert_eq!(store.stored_at("orders", QueueId(3), QueueOffset(0)), Some(appended.stored_at));
    assert_eq!(store.stored_at("orders", QueueId(3), QueueOffset(1)), None);
    assert_eq!(store.record_at(appended.position).unwrap().view().stored_at(), appended.stored_at);
    assert!(store.record_at(PhysicalOffset(appended.position.0 + 1)).is_none());
}

#[test]
fn a_queue_or_an_index_that_could_not_be_written_for_long_is_given_what_it_missed_without_a_restart() {
    for (folder, operation) in [
        ("consumequeue/orders", Operation::Write),
        ("consumequeue/orders", Operation::Create),
        ("index", Operation::Write),
        ("index", Operation::Create),
    ] {
        let what = format!("{operation:?} under {folder}");
        let rig = Rig::new();
        let disk = MemoryDirectory::new();
        let env = Env { directory: Arc::new(disk.clone()), ..rig.env() };
        let store = MessageStore::open(rig.options.clone(), env, Vec::new()).unwrap();
        if operation == Operation::Write {
            fill(&store, 0, 10);
            dispatch_all(&store);
        }
        let before = if operation == Operation::Write { 10 } else { 0 };
        disk.fail_under(Path::new(folder), operation, 0, std::io::ErrorKind::Other, u64::MAX);

        // More than what is kept in memory for a later try.
        for n in before..2_500 {
            let body = format!("message {n:04}");
            let mut message = draft("orders", 0, body.as_bytes());
            message.properties.set("KEYS", format!("key{n}"));
            store.append(message).unwrap();
            store.append(draft("bills", 0, body.as_bytes())).unwrap();
        }
        dispatch_all(&store);
        assert_eq!(bodies(&store, "bills", 0).len(), 2_500 - before, "the others go on, {what}");
        store.checkpoint_once().unwrap_err();
        assert!(rig.fatal.lock().unwrap().is_empty(), "{what}");
        disk.heal();
        for _ in 0..10 {
            store.dispatch_once(u64::MAX);
        }

        assert_eq!(bodies(&store, "orders", 0), numbered(2_500), "{what}");
        let found = store.query("orders", "key2400", 10, Timestamp(0), Timestamp(i64::MAX));
        assert_eq!(found.records.len(), 1, "{what}");
        store.checkpoint_once().unwrap();
        fill(&store, 2_500, 10);
        dispatch_all(&store);
        assert_eq!(bodies(&store, "orders", 0), numbered(2_510), "{what}");
    }
}
