//! The audit of a store: a sound one is called sound, each kind of damage is named, and a repair makes good what is derived without touching
//! the log.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use latermq::{
    broker::audit_tables,
    delay::{DelayOptions, DelaySummary, LevelAudit, LevelScheduler, LevelTable, RealQueue, RealTopics},
    env::{Directory, Operation},
    model::{PARKING_TOPIC, PhysicalOffset, QueueId, SCHEDULE_TOPIC},
    store::{ClockJumps, Grade, MessageStore, StateFile, StoreAudit, StoreError, audit, keep_brokers_out, repair},
};
use support::{Machine, bodies, dispatch_all, message};

/// A topic that was deleted: what waits for it is parked.
const DELETED: &str = "deleted";
const BEFORE: &str = "1s 5s 10s 1h";
const AFTER: &str = "2s 5s 30s 1h";

struct Topics;

impl RealTopics for Topics {
    fn resolve(&self, topic: &str, queue_id: u32, _: PhysicalOffset) -> RealQueue {
        if topic == DELETED { RealQueue::Deleted } else { RealQueue::Deliver(QueueId(queue_id % 2)) }
    }
}

struct Running {
    store: Arc<MessageStore>,
    scheduler: Arc<LevelScheduler>,
}

fn scheduler(levels: &str) -> Arc<LevelScheduler> {
    let options = DelayOptions { levels: levels.parse().unwrap(), ..DelayOptions::default() };
    Arc::new(LevelScheduler::new(options, Arc::new(Topics)))
}

impl Running {
    fn start(machine: &Machine, levels: &str) -> Self {
        let scheduler = scheduler(levels);
        Self { store: machine.open_with(vec![scheduler.clone()]), scheduler }
    }

    fn send(&self, topic: &str, level: u32, name: &str) {
        let mut message = message(topic, u32::try_from(name.len()).unwrap() % 2, name, 900);
        message.properties.set("KEYS", format!("k1 {name}-key"));
        if level > 0 {
            message.properties.set("DELAY", level.to_string());
        }
        self.store.append(message).unwrap();
    }

    fn work(&self) {
        loop {
            dispatch_all(&self.store);
            let tick = self.scheduler.tick(self.store.now());
            if tick.restored + tick.parked == 0 && tick.next_deadline.is_none_or(|next| next > self.store.now()) {
                return;
            }
        }
    }
}

/// A store with some of everything: two segments and more, two generations, restored, waiting and parked messages, consumer offsets.
fn filled() -> Machine {
    let machine = Machine::new();
    let running = Running::start(&machine, BEFORE);
    for round in 0..40 {
        for level in 0..=4 {
            running.send("orders", level, &format!("a{round}-{level}"));
        }
        if round % 10 == 0 {
            running.send(DELETED, 1, &format!("gone{round}"));
        }
        machine.clock.advance(Duration::from_millis(700));
        running.work();
    }
    running.store.stop().unwrap();
    drop(running);

    let running = Running::start(&machine, AFTER);
    for round in 0..20 {
        for level in 0..=4 {
            running.send("bills", level, &format!("b{round}-{level}"));
        }
        machine.clock.advance(Duration::from_millis(300));
        running.work();
    }
    let end = running.store.queue_range("orders", QueueId(0)).unwrap().max.0;
    let offsets = format!("{{\"offsetTable\":{{\"orders@readers\":{{0:{end}}}}}}}");
    running.store.state_file("consumerOffset.json").save(&offsets).unwrap();
    running.store.stop().unwrap();
    machine
}

struct Checked {
    store: StoreAudit,
    delay: DelaySummary,
    unusable: Vec<std::path::PathBuf>,
}

impl Checked {
    fn damage(&self) -> Vec<String> {
        let damage = self.store.findings.list.iter().filter(|finding| finding.grade == Grade::Damage);
        damage.map(|finding| format!("{}: {}: {}", finding.part, finding.place, finding.text)).collect()
    }

    fn mends(&self) -> usize {
        self.store.findings.list.iter().filter(|finding| finding.grade == Grade::Mends).count()
    }

    fn pending(&self) -> u64 {
        self.delay.levels.iter().map(|level| level.pending).sum()
    }
}

fn check_with(machine: &Machine, levels: &str) -> Result<Checked, StoreError> {
    let directory: Arc<dyn Directory> = Arc::new(machine.disk.clone());
    let _lock = keep_brokers_out(&*directory)?;
    let file = StateFile::new(directory.clone(), Path::new("config").join(LevelAudit::FILE));
    let mut levels = LevelAudit::new(levels.parse::<LevelTable>().unwrap(), &file, ClockJumps::load(&directory));
    let steps = machine.disk.steps();
    let mut store = audit(&machine.options, &machine.env(), &mut levels, &mut |_, _| ())?;
    let delay = levels.finish(&mut store, machine.clock_now());
    let parse = |text: &str| LevelAudit::parse_file(text);
    let unusable = audit_tables(&directory, &mut store, &[(LevelAudit::FILE, &parse)])?;
    assert_eq!(machine.disk.steps(), steps, "an audit writes nothing");
    Ok(Checked { store, delay, unusable })
}

fn check(machine: &Machine) -> Checked {
    check_with(machine, AFTER).unwrap()
}

fn log_of(machine: &Machine) -> BTreeMap<String, Vec<u8>> {
    let names = machine.names("commitlog");
    names.into_iter().map(|name| (name.clone(), machine.read(&format!("commitlog/{name}")))).collect()
}

fn mend(machine: &Machine) -> Vec<String> {
    let before = log_of(machine);
    let unusable = check(machine).unusable;
    let repaired = repair(&machine.options, &machine.env(), vec![scheduler(AFTER)], &unusable).unwrap();
    assert!(log_of(machine) == before, "a repair changes no byte of the log");
    repaired.set_aside
}

/// Everything that can be read after all is due, sorted; each message once.
fn delivered(machine: &Machine) -> Vec<String> {
    let running = Running::start(machine, AFTER);
    machine.clock.advance(Duration::from_secs(7200));
    running.work();
    let mut all: Vec<String> = Vec::new();
    for (topic, queue_id, _) in running.store.queues() {
        if &*topic != SCHEDULE_TOPIC && &*topic != PARKING_TOPIC {
            all.extend(bodies(&running.store, &topic, queue_id.0));
        }
    }
    running.store.stop().unwrap();
    all.sort();
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count, "each message once");
    all
}

#[test]
fn a_store_that_was_stopped_is_sound_and_its_figures_are_those_of_the_broker() {
    let machine = filled();

    let checked = check(&machine);

    assert_eq!(checked.damage(), [""; 0]);
    assert_eq!(checked.mends(), 0);
    assert!(checked.store.stopped_cleanly && checked.store.log.segments > 2);
    assert_eq!(checked.store.checkpoint, Some(checked.store.log.end));
    assert_eq!(checked.delay.parked, [("topic deleted".to_owned(), 4)].into());
    let hours = checked.delay.levels.iter().find(|level| level.level == 4).unwrap();
    assert_eq!((hours.pending, hours.generations, hours.delay_ms), (60, 1, Some(3_600_000)));
    assert!(hours.next_deliver_at.is_some_and(|at| at > support::START.0 + 3_600_000 - 1));
    let running = Running::start(&machine, AFTER);
    let figures = running.store.figures();
    let pending: f64 = figures
        .iter()
        .filter(|figure| figure.name == "delayPending")
        .map(|figure| match figure.value {
            latermq::store::FigureValue::Number(number) => number,
            latermq::store::FigureValue::Text(_) => 0.0,
        })
        .sum();
    assert_eq!(pending as u64, checked.pending());
}

#[test]
fn a_store_whose_broker_was_killed_or_lost_power_at_any_moment_is_sound() {
    let machine = Machine::new();
    let running = Running::start(&machine, BEFORE);
    for round in 0..60 {
        for level in 0..=3 {
            running.send("orders", level, &format!("m{round}-{level}"));
        }
        machine.clock.advance(Duration::from_millis(400));
        if round % 3 == 0 {
            running.work();
        }
        if round % 7 == 0 {
            running.store.sync_once().unwrap();
        }
        if round % 11 == 0 {
            running.store.checkpoint_once().unwrap();
        }
        let checked = check(&machine.killed());
        assert_eq!(checked.damage(), [""; 0], "killed in round {round}");
        for seed in 0..4 {
            let checked = check(&machine.crashed(round * 10 + seed));
            assert_eq!(checked.damage(), [""; 0], "power lost in round {round}, seed {seed}");
        }
    }
}

#[test]
fn a_store_is_sound_again_after_each_start_and_stop() {
    let machine = filled();
    for levels in [BEFORE, AFTER, "1s"] {
        let running = Running::start(&machine, levels);
        running.work();
        running.store.stop().unwrap();
        assert_eq!(check_with(&machine, levels).unwrap().damage(), [""; 0]);
    }
}

#[test]
fn a_deletion_of_a_topic_that_was_cut_short_at_any_step_is_no_damage() {
    for step in 1.. {
        let machine = filled();
        let running = Running::start(&machine, AFTER);
        machine.disk.crash_at(machine.disk.steps() + step);
        let deleted = running.store.delete_topic("orders");
        for machine in [machine.killed(), machine.crashed(step)] {
            assert_eq!(check_with(&machine, AFTER).unwrap().damage(), [""; 0], "step {step}");
        }
        if deleted.is_ok() {
            assert!(step > 3);
            break;
        }
    }
}

/// The two keys of a record may lie in two files of the index. Without the second file the index seemed to end where it should.
#[test]
fn an_index_that_lacks_its_newest_file_after_a_kill_is_built_anew_and_no_damage() {
    let mut was_split = false;
    for count in 1..80 {
        let machine = Machine::new();
        let running = Running::start(&machine, BEFORE);
        for at in 0..count {
            running.send("orders", 0, &format!("m{at}"));
        }
        running.work();
        running.store.checkpoint_once().unwrap();
        let machine = machine.killed();
        let newest = newest(&machine, "index");
        let begins = |name: &str| machine.read(name)[16..24].to_vec();
        let names = machine.names("index");
        if names.len() > 1 {
            let before = machine.read(&format!("index/{}", names[names.len() - 2]));
            was_split |= before[24..32] == begins(&newest);
        }
        machine.remove(&newest);
        assert_eq!(check(&machine).damage(), [""; 0], "{count} records");
    }
    assert!(was_split);
}

/// Flips a bit in the middle of a file's first part that is not zero.
fn flip(machine: &Machine, path: &str, at: u64) {
    let mut byte = [0];
    machine.disk.open(Path::new(path)).unwrap().read_at(at, &mut byte).unwrap();
    machine.overwrite(path, at, &[byte[0] ^ 0x10]);
}

fn newest(machine: &Machine, folder: &str) -> String {
    format!("{folder}/{}", machine.names(folder).pop().unwrap())
}

#[test]
fn damage_to_what_is_derived_is_named_and_repaired_and_all_is_delivered_once() {
    let wanted = delivered(&filled());
    let schedule = "consumequeue/SCHEDULE_TOPIC_XXXX/3";
    type Damage = (&'static str, &'static str, Box<dyn Fn(&Machine)>);
    let damages: [Damage; 18] = [
        (
            "queue entry's position",
            "queue: orders/0",
            Box::new(|m| flip(m, "consumequeue/orders/0/00000000000000000000", 107)),
        ),
        (
            "queue entry's size",
            "queue: orders/0",
            Box::new(|m| flip(m, "consumequeue/orders/0/00000000000000000000", 111)),
        ),
        (
            "queue entry's tag code",
            "queue: orders/0",
            Box::new(|m| flip(m, "consumequeue/orders/0/00000000000000000000", 119)),
        ),
        (
            "deliver time",
            "queue: SCHEDULE_TOPIC_XXXX/3",
            Box::new(move |m| flip(m, &format!("{schedule}/00000000000000000000"), 19)),
        ),
        (
            "an entry made zero",
            "queue: orders/0",
            Box::new(|m| m.overwrite("consumequeue/orders/0/00000000000000000000", 40, &[0; 20])),
        ),
        ("a file of a queue removed", "queue: ", Box::new(move |m| m.remove(&newest(m, schedule)))),
        (
            "a first file of a queue removed",
            "queue: ",
            Box::new(move |m| m.remove(&format!("{schedule}/00000000000000000000"))),
        ),
        ("a queue removed", "checkpoint: latermq.checkpoint: counts", Box::new(|m| m.remove("consumequeue/bills/1"))),
        (
            "an entry behind the end",
            "queue: bills/1",
            Box::new(|m| m.overwrite(&newest(m, "consumequeue/bills/1"), 380, &[1; 20])),
        ),
        (
            "a queue file of another length",
            "queue: consumequeue/bills/1",
            Box::new(|m| {
                let path = newest(m, "consumequeue/bills/1");
                let bytes = m.read(&path);
                m.write(&path, &bytes[..100]);
            }),
        ),
        (
            "a queue file that is too long",
            "queue: consumequeue/bills/1",
            Box::new(|m| {
                let path = newest(m, "consumequeue/bills/1");
                let bytes = m.read(&path);
                m.write(&path, &[&bytes, &b"of another"[..]].concat());
            }),
        ),
        ("index entry", "index: index", Box::new(|m| flip(m, &newest(m, "index"), 40 + 80 + 20 + 11))),
        ("index slot", "index: index", Box::new(|m| m.overwrite(&newest(m, "index"), 40 + 3 * 4, &[0, 0, 0, 1]))),
        ("index header", "index: index", Box::new(|m| flip(m, &newest(m, "index"), 31))),
        ("an index file removed", "index", Box::new(|m| m.remove(&newest(m, "index")))),
        ("our checkpoint", "checkpoint: latermq.checkpoint: ", Box::new(|m| flip(m, "latermq.checkpoint", 40))),
        ("RocketMQ's checkpoint", "checkpoint: ", Box::new(|m| flip(m, "checkpoint", 1))),
        (
            "delayOffset.json ahead",
            "delay: config/delayOffset.json",
            Box::new(|m| m.write("config/delayOffset.json", b"{\"offsetTable\":{4:5}}")),
        ),
    ];
    for (what, name, damage) in damages {
        let machine = filled();
        damage(&machine);

        let found = check(&machine).damage();
        assert!(found.iter().any(|found| found.starts_with(name)), "{what}: {found:?}");
        mend(&machine);

        assert_eq!(check(&machine).damage(), [""; 0], "{what}: after the repair");
        assert_eq!(delivered(&machine), wanted, "{what}");
        assert_eq!(check(&machine).damage(), [""; 0], "{what}: after the broker ran");
    }
}

#[test]
fn state_files_that_cannot_be_used_are_named_and_moved_aside() {
    for name in
        ["topics.json", "consumerOffset.json", "subscriptionGroup.json", "deletedTopics.json", "delayOffset.json"]
    {
        let machine = filled();
        machine.write(&format!("config/{name}"), b"\0\0\0\0");

        let damage = check(&machine).damage();
        assert_eq!(damage.len(), 1, "{damage:?}");
        assert!(damage[0].starts_with(&format!("state files: config/{name}: holds 4 NUL bytes")), "{damage:?}");
        assert_eq!(mend(&machine), [format!("config/{name}")]);

        assert_eq!(check(&machine).damage(), [""; 0], "{name}");
        assert_eq!(machine.read(&format!("latermq.bad/config/{name}")), b"\0\0\0\0");
    }
}

#[test]
fn a_consumer_offset_beyond_its_queue_is_damage() {
    let machine = filled();
    machine.write("config/consumerOffset.json", b"{\"offsetTable\":{\"orders@g\":{0:100000,1:3},\"bills@g\":{0:-1}}}");

    let damage = check(&machine).damage();

    assert_eq!(damage.len(), 2, "{damage:?}");
    assert!(damage[0].contains("bills@g has offset -1"), "{damage:?}");
    assert!(damage[1].contains("orders@g has offset 100000 in queue 0"), "{damage:?}");
}

#[test]
fn a_flipped_bit_anywhere_in_the_log_is_found_and_only_its_record_is_lost() {
    let machine = filled();
    let records = check(&machine).store.log.records;
    let path = machine.segment(1);
    for at in (600..60_000).step_by(3_001) {
        let damaged = machine.killed();
        flip(&damaged, &path, at);
        damaged.remove("abort");

        let checked = check(&damaged);

        let is_named = checked.damage().iter().any(|found| {
            found.starts_with("commit log: ")
                || found.starts_with("queue: ")
                || found.starts_with("index: ")
                || found.starts_with("delay: ")
        });
        assert!(is_named, "byte {at}: {:?}", checked.damage());
        assert!(checked.store.log.records + 1 >= records, "byte {at}: only its own record is lost");
    }
}

#[test]
fn damage_in_the_log_stays_after_a_repair_but_what_is_derived_agrees_with_what_is_left() {
    let machine = filled();
    machine.overwrite(&machine.segment(1), 5_000, &[0x55; 64]);

    mend(&machine);

    let damage = check(&machine).damage();
    assert!(!damage.is_empty());
    assert!(damage.iter().all(|found| found.starts_with("commit log: ")), "{damage:?}");
}

#[test]
fn a_log_that_lost_its_end_is_damaged() {
    let machine = filled();
    let segments = machine.names("commitlog");
    machine.remove(&format!("commitlog/{}", segments.last().unwrap()));

    let damage = check(&machine).damage();

    assert!(
        damage.iter().any(|found| found.starts_with("checkpoint: latermq.checkpoint: says that the log reached")),
        "{damage:?}"
    );
}

#[test]
fn a_missing_segment_is_damage_with_its_range() {
    let machine = filled();
    machine.remove(&machine.segment(1));

    let damage = check(&machine).damage();

    let bytes = machine.options.segment_bytes;
    let wanted = format!("commit log: {bytes}: {bytes} bytes from {bytes} to {} segments are missing", 2 * bytes);
    assert!(damage.contains(&wanted), "{damage:?}");
    let count = check(&machine).store.damaged[0].messages.unwrap();
    let text = format!("queue entries lead to {count} messages from there to {}", 2 * bytes);
    assert!(count > 50 && check(&machine).store.findings.list.iter().any(|found| found.text == text), "{count}");
}

#[test]
fn bytes_behind_the_end_of_a_store_that_was_stopped_are_damage_and_cleared_by_the_start_after_a_repair() {
    let machine = filled();
    let end = check(&machine).store.log.end;
    let at = end % machine.options.segment_bytes + 100;
    let newest = newest(&machine, "commitlog");
    machine.overwrite(&newest, at, b"left of a write");

    assert!(check(&machine).damage().iter().any(|found| found.contains("the log should be empty")));
    mend(&machine);
    assert_eq!(check(&machine).damage(), [""; 0]);
    let running = Running::start(&machine, AFTER);
    running.store.stop().unwrap();
    drop(running);

    assert_eq!(check(&machine).mends(), 0);
    assert!(machine.read(&newest)[usize::try_from(at).unwrap()..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_read_error_in_the_log_is_damage_of_a_range_and_does_not_end_the_audit() {
    let machine = filled();
    let path = machine.segment(1);
    machine.disk.fail_under(Path::new(&path), Operation::Read, 1, std::io::ErrorKind::Other, 4);

    let checked = check(&machine);

    assert!(checked.damage().iter().any(|found| found.contains("cannot be read")), "{:?}", checked.damage());
}

#[test]
fn an_audit_does_not_run_while_a_broker_has_the_store_and_keeps_one_from_starting() {
    let machine = filled();
    let running = Running::start(&machine, AFTER);
    assert!(matches!(check_with(&machine, AFTER), Err(StoreError::Locked { .. })));
    assert!(matches!(repair(&machine.options, &machine.env(), Vec::new(), &[]), Err(StoreError::Locked { .. })));
    running.store.stop().unwrap();
    drop(running);

    let lock = keep_brokers_out(&machine.disk).unwrap();
    assert!(matches!(machine.try_open(Vec::new()), Err(StoreError::Locked { .. })));
    drop(lock);
    check(&machine);
}

/// Found by the simulation: queues and index that a killed process had made anew, but not synced, were what the old checkpoint counted. The next
/// process believed it, and a power cut took pages that nobody missed.
#[test]
fn what_a_killed_rebuild_left_is_not_taken_for_durable() {
    let machine = filled();
    machine.remove("consumequeue");
    machine.remove("index");
    machine.disk.fail_under(Path::new("consumequeue"), Operation::Sync, 0, std::io::ErrorKind::Other, 1);
    assert!(machine.try_open(vec![scheduler(AFTER)]).is_err(), "the rebuild is not finished");

    let machine = machine.killed();
    let running = Running::start(&machine, AFTER);
    for seed in 0..10 {
        let checked = check(&machine.crashed(seed));
        assert_eq!(checked.damage(), [""; 0], "seed {seed}");
    }
    drop(running);
}

#[test]
fn what_is_no_store_cannot_be_checked() {
    let machine = Machine::new();

    assert!(matches!(check_with(&machine, AFTER), Err(StoreError::Io { .. })));
}

#[test]
fn foreign_files_are_named_and_are_no_damage() {
    let machine = filled();
    for path in [
        "readme.txt",
        "commitlog/notes",
        "consumequeue/orders/x",
        "index/x",
        "config/mine.json",
        "consumequeue/orders/0/x",
    ] {
        machine.write(path, b"x");
    }

    let checked = check(&machine);

    assert_eq!(checked.damage(), [""; 0]);
    let notes = checked.store.findings.list.iter().filter(|finding| finding.part == "files");
    assert_eq!(notes.count(), 6, "{:?}", checked.store.findings.list);
}

#[test]
fn what_apache_would_do_otherwise_is_said() {
    let machine = filled();

    let of = |levels: &str| check_with(&machine, levels).unwrap().delay.apache.join("\n");
    let same = of(AFTER);
    let fewer = of("2s 5s");
    let shorter = of("2s 5s 30s 1s");

    assert!(same.contains("leave 4 parked messages"), "{same}");
    assert!(!same.contains("at once"), "{same}");
    assert!(fewer.contains("never deliver the 60 messages that wait on level 4"), "{fewer}");
    assert!(shorter.contains("deliver 60 messages of level 4 at once"), "{shorter}");

    machine.overwrite(&newest(&machine, "commitlog"), 3_000, &[0x55; 64]);
    let cuts = check(&machine).store.apache_cuts.unwrap_or_default();
    assert!(cuts.contains("sound records behind the damage would be lost"), "{cuts}");
}

#[test]
fn a_message_restored_before_its_time_or_twice_is_damage() {
    let machine = filled();
    let running = Running::start(&machine, AFTER);
    let waiting = bodies(&running.store, SCHEDULE_TOPIC, 3).len();
    assert_eq!(waiting, 60);
    // What a broker without its protective lines would write: the restored form of a waiting message, before its time, and twice.
    let entry = running.store.queue_entries(SCHEDULE_TOPIC, QueueId(3), latermq::model::QueueOffset(0), 1)[0];
    let record = running.store.record_at(entry.position).unwrap();
    let generation = record.view().prepared_offset() >> 48;
    drop(running);
    let plain = machine.open();
    let forge = |name: &str| {
        let mut draft = record.to_draft();
        draft.topic = "orders".into();
        draft.queue_id = QueueId(0);
        draft.properties.set("UNIQ_KEY", name);
        draft
    };
    // A store without the scheduler lets nobody set the field: it is put into the record afterwards, which no checksum covers.
    for name in ["x", "y"] {
        let appended = plain.append(forge(name)).unwrap();
        let field = (generation << 48) | i64::try_from(entry.end().0).unwrap();
        let position = appended.position.0;
        let path = machine.segment(position / machine.options.segment_bytes);
        machine.overwrite(&path, position % machine.options.segment_bytes + 76, &field.to_be_bytes());
    }
    dispatch_all(&plain);
    drop(plain);

    let damage = check(&machine.killed()).damage();

    assert!(damage.iter().any(|found| found.contains("before it was due")), "{damage:?}");
    assert!(damage.iter().any(|found| found.contains("was restored twice")), "{damage:?}");
}
