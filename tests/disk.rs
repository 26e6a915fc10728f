//! A disk without room: messages are refused in time and for a reason, what waits is delivered, and all goes on as soon as there is room.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use latermq::{
    delay::{DelayOptions, LevelScheduler, RealQueue, RealTopics},
    env::{Directory, Env, FsDirectory, Operation, TestClock},
    model::{MessageDraft, PhysicalOffset, QueueId, Timestamp},
    store::{AppendError, FigureValue, MessageStore, PullQuery, Pulled},
};
use support::{Machine, SEGMENT_BYTES, START, bodies, dispatch_all, message};

/// A running core on a machine.
struct Core {
    machine: Machine,
    store: Arc<MessageStore>,
    scheduler: Arc<LevelScheduler>,
}

/// Every topic, and how many queues all of them have.
struct EveryTopic(u64);

impl RealTopics for EveryTopic {
    fn queue_count(&self) -> u64 {
        self.0
    }

    fn resolve(&self, _: &str, queue_id: u32, _: PhysicalOffset) -> RealQueue {
        RealQueue::Deliver(QueueId(queue_id))
    }
}

impl Core {
    fn on(machine: Machine) -> Self {
        Self::with_queues(machine, 1)
    }

    fn with_queues(machine: Machine, queues: u64) -> Self {
        let options = DelayOptions { levels: "10s 1m".parse().unwrap(), ..DelayOptions::default() };
        let scheduler = Arc::new(LevelScheduler::new(options, Arc::new(EveryTopic(queues))));
        let store = machine.open_with(vec![scheduler.clone()]);
        Self { machine, store, scheduler }
    }

    fn new() -> Self {
        Self::on(Machine::new())
    }

    /// What the threads do until nothing is left to do now.
    fn work(&self) {
        loop {
            dispatch_all(&self.store);
            let tick = self.scheduler.tick(self.store.now());
            if tick.restored == 0 && tick.next_deadline.is_none_or(|next| next > self.store.now()) {
                return;
            }
        }
    }

    /// Lets time pass and does what falls due.
    fn pass(&self, seconds: u64) {
        for _ in 0..seconds {
            self.machine.clock.advance(Duration::from_secs(1));
            self.work();
        }
    }

    /// The disk has so many bytes more than are in use.
    fn leave(&self, bytes: u64) {
        let space = self.machine.disk.space().unwrap();
        self.machine.disk.set_capacity(space.total - space.free + bytes);
    }

    fn give_room(&self) {
        self.machine.disk.set_capacity(1 << 40);
        self.store.retain_once().unwrap();
    }

    fn figure(&self, name: &str, label: Option<&str>) -> u64 {
        let figures = self.store.figures();
        let figure = figures.iter().find(|figure| {
            figure.name == name && label.is_none_or(|label| figure.labels.iter().any(|(_, value)| value == label))
        });
        match figure.unwrap_or_else(|| panic!("{name} {label:?}")).value {
            FigureValue::Number(number) => number as u64,
            FigureValue::Text(_) => panic!("{name} is no number"),
        }
    }
}

fn delayed(name: &str, bytes: usize) -> MessageDraft {
    let mut message = message("orders", 0, name, bytes);
    message.properties.set("DELAY", "1");
    message
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("m{n}")).collect()
}

/// The first word of each body.
fn arrived(store: &MessageStore) -> Vec<String> {
    bodies(store, "orders", 0).iter().map(|body| body.split(' ').next().unwrap().to_owned()).collect()
}

fn remark(error: &AppendError) -> &str {
    match error {
        AppendError::DiskFull { remark, .. } => remark,
        error => panic!("{error:?}"),
    }
}

#[test]
fn b110_above_the_limit_sends_are_refused_with_path_use_and_limit_and_the_rest_goes_on() {
    let core = Core::new();
    for n in 0..20 {
        core.store.append(delayed(&format!("m{n}"), 100)).unwrap();
    }
    core.store.append(message("bills", 0, "bill", 1)).unwrap();
    core.work();
    core.leave(8_200);

    core.store.retain_once().unwrap();
    let refused = core.store.append(message("bills", 0, "more", 10)).unwrap_err();
    core.pass(10);

    let remark = remark(&refused);
    assert!(remark.contains("/memory/commitlog is ") && remark.contains(" % full"), "{remark}");
    assert!(remark.contains("diskSpaceWarningLevelRatio = 90 %"), "{remark}");
    assert_eq!(core.figure("refusedSends", Some("diskUse")), 1);
    assert_eq!(arrived(&core.store), names(20));
    assert_eq!(bodies(&core.store, "bills", 0), ["bill"]);
}

#[test]
fn b111_as_soon_as_there_is_room_messages_are_taken_without_a_restart() {
    let core = Core::new();
    core.store.append(message("orders", 0, "m0", 100)).unwrap();
    core.leave(8_000);
    core.store.retain_once().unwrap();
    core.store.append(message("orders", 0, "no", 100)).unwrap_err();
    assert!(core.store.not_writable().is_some());

    core.machine.disk.set_capacity(1 << 40);
    core.machine.clock.advance(Duration::from_secs(1));
    core.store.append(message("orders", 0, "m1", 100)).unwrap();
    dispatch_all(&core.store);

    assert!(core.store.not_writable().is_none());
    assert_eq!(arrived(&core.store), names(2));
}

#[test]
fn b01_what_falls_due_while_there_is_no_room_waits_and_arrives_once_there_is() {
    let core = Core::new();
    let mut sent = 0;
    while core.store.log_range().1.0 < 3 * SEGMENT_BYTES {
        core.store.append(delayed(&format!("m{sent}"), 1_500)).unwrap();
        sent += 1;
    }
    core.work();
    core.leave(30_000);

    core.pass(60);
    let meanwhile = arrived(&core.store).len();
    assert!(meanwhile > 0 && meanwhile < sent, "{meanwhile} of {sent} found room in the newest segment");
    core.store.append(delayed("refused", 1_500)).unwrap_err();
    assert!(core.figure("delayAppendFailures", None) > 0);
    core.give_room();
    core.pass(15);

    assert_eq!(arrived(&core.store), names(sent));
    assert_eq!(core.machine.fatal(), [""; 0]);
}

#[test]
fn b114_figures_tell_from_where_on_the_log_is_kept_for_whom_and_how_many_bytes() {
    let core = Core::new();
    core.store.append(message("bills", 0, "bill", 1_000)).unwrap();
    let waits = core.store.append(delayed("m0", 100)).unwrap();
    let last = core.store.append(message("bills", 0, "bill", 1_000)).unwrap();
    core.work();

    assert_eq!(core.figure("pinnedFrom", Some("levels")), waits.position.0);
    assert_eq!(core.figure("pinnedBytes", Some("levels")), last.end.0 - waits.position.0);
    core.pass(10);
    assert!(core.store.figures().iter().all(|figure| figure.name != "pinnedFrom"), "nothing waits any more");
}

/// Sends until nothing is taken on a disk of so many segments; gives how many delayed messages were taken, and who refused.
fn fill(core: &Core, segments: u64, every_other_waits: bool) -> usize {
    core.machine.disk.set_capacity(segments * SEGMENT_BYTES);
    core.store.retain_once().unwrap();
    let mut sent = 0;
    loop {
        if core.store.append(delayed(&format!("m{sent}"), 1_500)).is_err() {
            break;
        }
        sent += 1;
        dispatch_all(&core.store);
        if every_other_waits && core.store.append(message("bills", 0, "bill", 3_000)).is_err() {
            break;
        }
    }
    assert!(sent > 10);
    sent
}

#[test]
fn b113_all_that_waits_is_delivered_on_a_disk_that_was_filled_until_nothing_more_was_taken() {
    for every_other_waits in [false, true] {
        let core = Core::new();
        let sent = fill(&core, 12, every_other_waits);
        assert!(core.figure("refusedSends", Some("pending")) > 0);

        core.pass(11);

        assert_eq!(core.figure("delayAppendFailures", None), 0);
        assert_eq!(arrived(&core.store), names(sent));
    }
}

#[test]
fn b113_all_that_is_restored_on_a_disk_that_was_filled_until_nothing_more_was_taken_can_be_pulled_and_found() {
    const QUEUES: u32 = 20;
    for (segments, bytes) in [(16, 40), (17, 40), (18, 300), (30, 40)] {
        let core = Core::with_queues(Machine::new(), QUEUES.into());
        core.machine.disk.set_capacity(segments * SEGMENT_BYTES);
        core.store.retain_once().unwrap();
        let mut sent = 0;
        loop {
            let mut draft = message("orders", sent % QUEUES, &format!("m{sent}"), bytes);
            draft.properties.set("DELAY", "1");
            draft.properties.set("UNIQ_KEY", format!("U{sent}"));
            draft.properties.set("KEYS", format!("a{sent} b{sent} c{sent}"));
            if core.store.append(draft).is_err() {
                break;
            }
            sent += 1;
            dispatch_all(&core.store);
        }
        assert!(sent > 30, "{sent} messages in {segments} segments");

        core.pass(11);

        assert_eq!(core.figure("queueWriteFailures", None), 0, "{sent} messages in {segments} segments");
        let arrived: usize = (0..QUEUES).map(|queue| bodies(&core.store, "orders", queue).len()).sum();
        assert_eq!(arrived, sent as usize);
        for n in 0..sent {
            let found = core.store.query("orders", &format!("c{n}"), 9, Timestamp(0), Timestamp(i64::MAX));
            assert_eq!(found.records.len(), 1, "message {n}");
        }
    }
}

#[cfg(debug_assertions)]
#[test]
fn taking_messages_without_room_would_leave_none_for_what_waits() {
    let core = Core::new();
    latermq::mutation::Mutation::AdmitWithoutRoom.during(|| fill(&core, 12, false));

    core.pass(11);

    assert!(core.figure("delayAppendFailures", None) > 0);
}

#[test]
fn a_send_that_finds_no_space_is_refused_with_path_and_use() {
    let core = Core::new();
    core.store.append(message("orders", 0, "m0", 100)).unwrap();
    let log = Path::new("commitlog");
    core.machine.disk.fail_under(log, Operation::Write, 0, std::io::ErrorKind::StorageFull, 1);

    let refused = core.store.append(message("orders", 0, "no", 100)).unwrap_err();

    let remark = remark(&refused);
    assert!(remark.contains("/memory/commitlog has no space left") && remark.contains(" % full"), "{remark}");
    assert_eq!(core.figure("refusedSends", Some("noSpace")), 1);
    core.store.append(message("orders", 0, "m1", 100)).unwrap();
    dispatch_all(&core.store);
    assert_eq!(arrived(&core.store), names(2));
}

#[test]
fn a_store_opens_on_a_full_disk_serves_what_it_has_and_goes_on_when_there_is_room() {
    for clean in [false, true] {
        let core = Core::new();
        for n in 0..100 {
            core.store.append(delayed(&format!("m{n}"), 1_500)).unwrap();
        }
        core.store.append(message("bills", 0, "bill", 1)).unwrap();
        core.work();
        if clean {
            core.store.stop().unwrap();
        }
        let machine = core.machine.killed();
        let space = machine.disk.space().unwrap();
        machine.disk.set_capacity(space.total - space.free);
        machine.clock.advance(Duration::from_secs(10));

        let core = Core::on(machine);
        core.store.append(message("bills", 0, "no", 10)).unwrap_err();
        assert_eq!(bodies(&core.store, "bills", 0), ["bill"], "clean: {clean}");
        core.pass(30);
        assert_eq!(core.machine.fatal(), [""; 0]);
        core.give_room();
        core.pass(15);

        assert_eq!(arrived(&core.store), names(100), "clean: {clean}");
        core.store.append(message("bills", 0, "yes", 1)).unwrap();
        // Nothing was left undone that only a restart would notice.
        let core = Core::on(core.machine.killed());
        core.pass(1);
        assert_eq!(arrived(&core.store), names(100), "clean: {clean}");
        assert_eq!(bodies(&core.store, "bills", 0), ["bill", "yes"]);
    }
}

#[test]
fn old_segments_go_on_a_full_disk_on_which_no_checkpoint_can_be_written_anew() {
    let core = Core::new();
    for n in 0..200 {
        core.store.append(message("bills", 0, &format!("{n}"), 3_000)).unwrap();
    }
    core.work();
    core.store.checkpoint_once().unwrap();
    core.store.checkpoint_once().unwrap();
    let (first, _) = core.store.log_range();
    core.leave(0);

    assert!(core.store.retain_once().unwrap() > 0);

    assert!(core.store.log_range().0 > first);
    core.machine.clock.advance(Duration::from_secs(1));
    core.store.append(message("bills", 0, "again", 10)).unwrap();
}

// Real files that someone else cuts.

/// A running core on real files.
struct Real {
    folder: tempfile::TempDir,
    clock: TestClock,
    fatal: Arc<Mutex<Vec<String>>>,
    store: Arc<MessageStore>,
    scheduler: Arc<LevelScheduler>,
}

impl Real {
    fn new() -> Self {
        Self::on(tempfile::tempdir().unwrap(), TestClock::new(START))
    }

    fn on(folder: tempfile::TempDir, clock: TestClock) -> Self {
        let fatal = Arc::new(Mutex::new(Vec::new()));
        let told = fatal.clone();
        let env = Env {
            clock: Arc::new(clock.clone()),
            directory: Arc::new(FsDirectory::open(folder.path()).unwrap()),
            fatal: Arc::new(move |reason| told.lock().unwrap().push(reason.to_owned())),
        };
        let options = DelayOptions { levels: "10s 1m".parse().unwrap(), ..DelayOptions::default() };
        let scheduler = Arc::new(LevelScheduler::new(options, Arc::new(EveryTopic(1))));
        let store = MessageStore::open(support::options(), env, vec![scheduler.clone()]).unwrap();
        Self { folder, clock, fatal, store, scheduler }
    }

    /// As after kill -9.
    fn reopen(self) -> Self {
        let Self { folder, clock, fatal: _, store, scheduler } = self;
        drop(scheduler);
        drop(store);
        Self::on(folder, clock)
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.folder.path().join(format!("commitlog/{:020}", number * SEGMENT_BYTES))
    }

    fn cut(&self, number: u64, bytes: u64) {
        fs::OpenOptions::new().write(true).open(self.segment(number)).unwrap().set_len(bytes).unwrap();
    }

    fn work(&self) {
        for _ in 0..50 {
            self.store.sync_once().unwrap();
            dispatch_all(&self.store);
            self.scheduler.tick(self.store.now());
        }
    }

    fn pull(&self, topic: &str, offset: i64) -> Pulled {
        let query = PullQuery { topic, queue_id: QueueId(0), offset, count_max: 32, bytes_max: 1 << 20 };
        self.store.pull(&query, &|_| true)
    }
}

#[test]
fn b108_what_lies_in_a_file_that_is_cut_is_a_failed_read_and_arrives_once_the_file_is_whole_again() {
    let real = Real::new();
    for n in 0..20 {
        real.store.append(delayed(&format!("m{n}"), 1_500)).unwrap();
        real.store.append(message("bills", 0, &format!("bill{n}"), 1_500)).unwrap();
    }
    while real.store.log_range().1.0 < 2 * SEGMENT_BYTES {
        real.store.append(message("later", 0, "later", 1_500)).unwrap();
    }
    real.work();
    // Mapped, and verified.
    let held = real.pull("bills", 0);
    assert!(held.count > 10 && held.are_sound());
    let whole = fs::read(real.segment(0)).unwrap();

    real.cut(0, 0);
    real.clock.advance(Duration::from_secs(10));
    real.work();
    let failed = real.pull("bills", 0);
    let others = real.pull("later", 20);

    let reason = failed.failure.expect("it cannot be read");
    assert!(reason.contains("commitlog/00000000000000000000"), "{reason}");
    assert_eq!((failed.count, failed.next_offset), (0, 0));
    assert!(!held.are_sound(), "nobody may be sent what was found before");
    assert!(others.count > 10 && others.are_sound());
    assert_eq!(arrived(&real.store), [""; 0]);
    fs::write(real.segment(0), whole).unwrap();
    for _ in 0..20 {
        real.clock.advance(Duration::from_secs(1));
        real.work();
    }
    let mut all = arrived(&real.store);
    // What could not be read for a while does not hold up the others of its level.
    all.sort_by_key(|name| name[1..].parse::<u32>().unwrap());
    assert_eq!(all, names(20));
    assert_eq!(real.pull("bills", 0).records.len(), held.records.len());
    assert_eq!(*real.fatal.lock().unwrap(), [""; 0]);
}

#[test]
fn a_segment_cut_under_the_append_stops_the_store_before_anything_lost_is_called_durable() {
    let real = Real::new();
    for n in 0..10 {
        real.store.append(message("orders", 0, &format!("m{n}"), 1_500)).unwrap();
    }
    real.work();
    let durable = real.store.durable();
    real.cut(0, 8_192);

    let appended = real.store.append(message("orders", 0, "m10", 1_500)).unwrap();
    let told = Arc::new(Mutex::new(None));
    let answer = told.clone();
    real.store.when_durable(appended.end, Box::new(move |outcome| *answer.lock().unwrap() = Some(outcome.is_ok())));
    real.store.sync_once().unwrap_err();

    let reasons = real.fatal.lock().unwrap().clone();
    assert!(reasons.len() == 1 && reasons[0].contains("someone else cut the file"), "{reasons:?}");
    assert_eq!(*told.lock().unwrap(), Some(false));
    assert_eq!(real.store.durable(), durable);
    real.store.append(message("orders", 0, "no", 10)).unwrap_err();
    let real = real.reopen();
    let left: Vec<_> = arrived(&real.store);
    assert_eq!(left[..4], names(4), "what lies before the cut is there");
    real.store.append(message("orders", 0, "next", 10)).unwrap();
    real.work();
    assert_eq!(arrived(&real.store).last().unwrap(), "next");
}
