//! Stores that Apache RocketMQ wrote.

use super::{audit::check, *};
use crate::{
    record::{Place, encode, encoded_bytes, patch},
    store::Grade,
};

/// What Apache RocketMQ leaves: a commit log of its waiting records, `delayOffset.json`, no file of ours.
struct Left {
    clock: TestClock,
    directory: MemoryDirectory,
    options: StoreOptions,
}

/// Waiting records as Apache writes them: level and body, all stored at the same time; the table is said nowhere.
fn apache_left(waiting: &[(u32, &str)], delay_offset: Option<&str>) -> Left {
    let rig = Rig::new("1s");
    let Rig { clock, directory, options, store, scheduler, .. } = rig;
    store.stop().unwrap();
    drop((store, scheduler));
    let mut log = vec![0; options.segment_bytes as usize];
    let mut at = 0;
    let mut next = std::collections::HashMap::<u32, u64>::new();
    for (level, body) in waiting {
        let mut draft = draft(SCHEDULE_TOPIC, *level as i32, body);
        draft.queue_id = QueueId(level - 1);
        if body.starts_with("keyless") {
            draft.properties = Properties::new();
            draft.properties.set("DELAY", level.to_string());
        }
        draft.properties.set("REAL_TOPIC", "orders");
        draft.properties.set("REAL_QID", "0");
        let bytes = encoded_bytes(&draft).unwrap();
        let mut record = Vec::new();
        encode(&draft, &mut record).unwrap();
        let queue_offset = next.entry(*level).or_default();
        let place = Place {
            queue_offset: QueueOffset(*queue_offset),
            physical_offset: PhysicalOffset(at as u64),
            stored_at: START,
            prepared_offset: 0,
        };
        *queue_offset += 1;
        patch(&mut record, &place);
        log[at..at + bytes].copy_from_slice(&record);
        at += bytes;
    }
    for entry in directory.list(Path::new("")).unwrap() {
        directory.remove(Path::new(&entry.name)).unwrap();
    }
    directory.create_folder(Path::new("commitlog")).unwrap();
    directory.create_folder(Path::new("config")).unwrap();
    directory.write(Path::new("commitlog/00000000000000000000"), &log).unwrap();
    if let Some(text) = delay_offset {
        directory.write(Path::new("config/delayOffset.json"), text.as_bytes()).unwrap();
    }
    Left { clock, directory, options }
}

/// Opens what is left; the audit sees what waits as the broker does.
fn open(left: Left, levels: &str) -> Rig {
    let (_, audited) = check(&left.directory, &left.clock, &left.options, levels);
    let rig = Rig::open(left.clock, left.directory, left.options, levels, Arc::default());
    for level in audited.levels {
        assert_eq!(level.pending as f64, rig.number("delayPending", Some(level.level)), "level {}", level.level);
    }
    rig
}

#[test]
fn what_apache_left_waiting_is_delivered_after_the_longest_duration_on_record() {
    let rig = open(apache_left(&[(1, "a"), (2, "b"), (1, "c")], None), "1s 5s");

    assert_eq!(rig.entries(SCHEDULE_TOPIC, 1)[0].tag_code, START.0 + 5_000);
    rig.advance(999);
    assert_eq!(rig.step(), 0);
    rig.advance(1);
    assert_eq!(rig.step(), 2);
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["a", "c", "b"]);
    let rig = rig.kill();
    rig.run_dry();
    assert_eq!(rig.entries("orders", 0).len(), 3, "origins count for what Apache wrote too");
}

#[test]
fn b03_b04_schedule_45_46_delay_offset_json_is_believed_within_the_queue_for_messages_without_a_key() {
    let text = "{\n\t\"offsetTable\":{\"1\":3,2:1000000000,3:-5\n\t}\n}";
    let waiting = [(1, "keyless a"), (1, "b"), (2, "keyless c"), (1, "keyless d"), (1, "keyless e"), (3, "keyless f")];
    let rig = open(apache_left(&waiting, Some(text)), "1s 5s 10s");
    rig.send("orders", 1, "ours");
    rig.send("orders", 2, "ours too");

    rig.run_dry();

    // That of `b` would be in the log, had it been delivered.
    let wanted = ["b", "keyless e", "ours", "keyless c", "ours too", "keyless f"];
    assert_eq!(rig.bodies("orders", 0), wanted);
    let rig = rig.restart();
    rig.run_dry();
    assert_eq!(rig.entries("orders", 0).len(), wanted.len());
    let rig = rig.kill();
    assert_eq!(rig.text("scheduleMessageOffset_1").as_deref(), Some("5,5"));
    assert_eq!(rig.text("scheduleMessageOffset_2").as_deref(), Some("2,2"));
}

#[test]
fn b03_a_wrong_delay_offset_json_beside_our_own_progress_is_not_used() {
    for wrong in [1_000_000_000, -5, 0] {
        let rig = Rig::new("1s");
        rig.send("orders", 1, "a");
        rig.run_dry();
        rig.send("orders", 1, "b");
        rig.store.stop().unwrap();
        let text = format!("{{\"offsetTable\":{{1:{wrong}}}}}");
        rig.directory.write(Path::new("config/delayOffset.json"), text.as_bytes()).unwrap();
        let rig = Rig::open(rig.clock, rig.directory, rig.options, "1s", rig.topics);
        rig.send("orders", 1, "c");

        rig.run_dry();

        assert_eq!(rig.bodies("orders", 0), ["a", "b", "c"]);
    }
}

/// What Apache RocketMQ does on our store after a clean stop: it restores some waiting records, and is stopped, or killed before it wrote its
/// checkpoint.
fn apache_restores(rig: Rig, waiting: &[Appended], is_killed: bool) -> Rig {
    let records: Vec<Record> = waiting.iter().map(|at| rig.store.record_at(at.position).unwrap()).collect();
    let next = rig.entries("orders", 0).len() as u64;
    rig.store.stop().unwrap();
    let mut end = rig.store.log_range().1;
    let segment = rig.directory.open(Path::new("commitlog/00000000000000000000")).unwrap();
    for (queue_offset, record) in (next..).zip(records) {
        let view = record.view();
        let restored = MessageDraft {
            topic: Topic::from("orders"),
            queue_id: QueueId(0),
            flag: view.flag(),
            sys_flag: view.sys_flag(),
            born_at: view.born_at(),
            born_host: view.born_host(),
            store_host: view.store_host(),
            reconsume_times: view.reconsume_times(),
            prepared_offset: 0,
            properties: Properties::from_text(view.properties().as_bytes()),
            body: record.body(),
        };
        let mut bytes = Vec::new();
        encode(&restored, &mut bytes).unwrap();
        let place = Place {
            queue_offset: QueueOffset(queue_offset),
            physical_offset: end,
            stored_at: rig.clock.wall(),
            prepared_offset: 0,
        };
        patch(&mut bytes, &place);
        segment.write_at(end.0, &bytes).unwrap();
        end = end.plus(bytes.len() as u64);
    }
    if is_killed {
        rig.directory.write(Path::new("abort"), b"1").unwrap();
    } else {
        rig.directory.write(Path::new("checkpoint"), &[1; 4096]).unwrap();
        rig.directory.write(Path::new("config/delayOffset.json"), b"{\"offsetTable\":{1:1000,2:1000}}").unwrap();
    }
    open(Left { clock: rig.clock, directory: rig.directory, options: rig.options }, &rig.levels)
}

#[test]
fn what_apache_delivered_from_our_store_does_not_come_again_and_all_else_comes() {
    for is_killed in [false, true] {
        let rig = Rig::new("1s 5s");
        let [a, b] = ["a", "b"].map(|body| rig.send("orders", 1, body));
        rig.send("orders", 2, "c");
        rig.send("orders", 1, "d");
        rig.advance(1_000);
        let rig = apache_restores(rig, &[a, b], is_killed);
        assert_eq!(rig.number("delayDeliveredByApache", None), 2.0);
        assert_eq!(rig.number("delayPending", Some(1)), 1.0);

        rig.run_dry();

        assert_eq!(rig.bodies("orders", 0), ["a", "b", "d", "c"], "killed: {is_killed}");
        let rig = rig.kill();
        rig.run_dry();
        let rig = rig.restart();
        rig.run_dry();
        assert_eq!(rig.entries("orders", 0).len(), 4, "nor later, killed: {is_killed}");
    }
}

/// Apache delivered two messages, then this broker two, then Apache one more; two wait.
fn delivered_in_turn() -> Rig {
    let rig = Rig::new("1s 5s");
    let [a, b] = ["a", "b"].map(|body| rig.send("orders", 1, body));
    rig.advance(1_000);
    let rig = apache_restores(rig, &[a, b], false);
    for body in ["c", "d"] {
        rig.send("orders", 1, body);
    }
    rig.run_dry();
    let e = rig.send("orders", 1, "e");
    for body in ["f", "g"] {
        rig.send("orders", 2, body);
    }
    rig.advance(1_000);
    apache_restores(rig, &[e], false)
}

#[test]
fn store_24_what_apache_delivered_before_this_broker_had_the_store_does_not_come_when_apache_had_it_again() {
    let rig = delivered_in_turn();

    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["a", "b", "c", "d", "e", "f", "g"]);
    assert_eq!(rig.number("delayDeliveredByApache", None), 3.0);
}

#[test]
fn what_apache_delivered_does_not_come_again_when_queues_or_all_derived_files_are_lost() {
    for lost in ["consumequeue", "index", "latermq.checkpoint", "config"] {
        let rig = delivered_in_turn();
        rig.run_dry();
        rig.store.stop().unwrap();
        rig.directory.remove(Path::new(lost)).unwrap();

        let rig = open(Left { clock: rig.clock, directory: rig.directory, options: rig.options }, &rig.levels);
        rig.run_dry();

        assert_eq!(rig.bodies("orders", 0), ["a", "b", "c", "d", "e", "f", "g"], "without {lost}");
    }
}

#[test]
fn an_audit_finds_sound_what_apache_delivered_before_our_checkpoint() {
    let rig = delivered_in_turn();
    rig.store.stop().unwrap();

    let (audited, delay) = check(&rig.directory, &rig.clock, &rig.options, &rig.levels);

    let damage: Vec<_> = audited.findings.list.iter().filter(|finding| finding.grade == Grade::Damage).collect();
    assert!(damage.is_empty(), "{:?}", damage.iter().map(|finding| &finding.text).collect::<Vec<_>>());
    assert_eq!(delay.levels.iter().map(|level| level.pending).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn of_messages_that_are_alike_one_that_this_broker_delivered_hides_none_that_apache_did() {
    let rig = Rig::new("1s");
    let first = rig.send("orders", 1, "first");
    rig.advance(1_000);
    let rig = apache_restores(rig, &[first], false);
    rig.send("orders", 1, "twice");
    rig.run_dry();
    let second = rig.send("orders", 1, "twice");
    rig.advance(1_000);

    let rig = apache_restores(rig, &[second], false);
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["first", "twice", "twice"]);
}

#[test]
fn a_message_that_apache_passed_over_comes_and_those_behind_it_do_not_come_again() {
    let rig = Rig::new("1s");
    let [_, b, _, d] = ["a", "b", "c", "d"].map(|body| rig.send("orders", 1, body));
    rig.advance(1_000);

    let rig = apache_restores(rig, &[b, d], false);
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["b", "d", "a", "c"]);
}

#[test]
fn of_two_messages_that_are_alike_apache_delivered_one_and_the_other_comes() {
    let rig = Rig::new("1s");
    let first = rig.send("orders", 1, "twice");
    rig.send("orders", 1, "twice");
    rig.advance(1_000);

    let rig = apache_restores(rig, &[first], true);
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["twice", "twice"]);
}

#[test]
fn what_apache_delivers_again_or_what_only_looks_alike_takes_nothing_away() {
    let rig = Rig::new("1s");
    let delivered = rig.send("orders", 1, "delivered");
    rig.advance(1_000);
    rig.step();
    let mut other = draft("orders", 1, "delivered");
    other.reconsume_times = 1;
    rig.try_send(other).unwrap();
    rig.dispatch();

    let rig = apache_restores(rig, &[delivered], false);
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["delivered", "delivered", "delivered"]);
    assert_eq!(rig.number("delayDeliveredByApache", None), 0.0);
}

#[test]
fn a_message_without_a_unique_key_matches_nothing() {
    let rig = Rig::new("1s");
    let mut keyless = draft("orders", 1, "keyless");
    keyless.properties = Properties::new();
    keyless.properties.set("DELAY", "1");
    let keyless = rig.try_send(keyless).unwrap();
    rig.dispatch();
    rig.advance(1_000);

    let rig = apache_restores(rig, &[keyless], false);
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["keyless", "keyless"], "rather twice than lost");
}

#[test]
fn schedule_43_44_offsets_of_empty_queues_hold_up_nothing() {
    let text = "{\"offsetTable\":{1:3,2:5}}";
    let rig = open(apache_left(&[], Some(text)), "1s 5s");

    rig.send("orders", 1, "a");
    rig.send("orders", 2, "b");
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["a", "b"]);
}
