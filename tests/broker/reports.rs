//! What users of such brokers saw break, each as a test that shows the right behaviour. The numbers are those of the collected reports.

use std::{collections::BTreeSet, io, path::Path, sync::Arc, thread, time::Duration};

use latermq::{
    broker::BrokerOptions,
    env::{Directory, MemoryDirectory, Operation},
    model::Timestamp,
    protocol::{Command, RequestCode, header::PullHeader},
    record::{MessageId, Record},
    remoting::{Connection, Handler, Responder},
    store::StoreOptions,
};

use crate::rig::{
    Message, PullRequest, Rig, connection, max, message, pull_header, records, reply, request, rig, rig_with,
    rig_with_levels, store_options, text,
};

const SCHEDULE: &str = "SCHEDULE_TOPIC_XXXX";
/// Durations of the default table, in seconds.
const DEFAULT_LEVELS: [u64; 18] =
    [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200];

fn named(topic: &str, key: &str) -> Message {
    message(topic).property("UNIQ_KEY", key).body(key)
}

fn bodies(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| String::from_utf8_lossy(record.view().body()).into_owned()).collect()
}

fn delivered(rig: &Rig, topic: &str) -> Vec<String> {
    bodies(&rig.all_records(topic, 0))
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("m{index}")).collect()
}

fn property(record: &Record, name: &str) -> Option<String> {
    record.view().properties().get(name).map(str::to_owned)
}

fn remove(directory: &MemoryDirectory, paths: &[&str]) {
    for path in paths {
        let path = Path::new(path);
        directory.remove(path).unwrap();
        directory.sync_folder(path.parent().unwrap()).unwrap();
    }
}

fn by_key(rig: &Rig, topic: &str, key: &str, unique: bool) -> Command {
    let ext = [
        ("topic", topic),
        ("key", key),
        ("maxNum", "64"),
        ("beginTimestamp", "0"),
        ("endTimestamp", "9223372036854775807"),
        ("_UNIQUE_KEY_QUERY", if unique { "true" } else { "false" }),
    ];
    rig.ask(request(12, &ext))
}

fn give_back(rig: &Rig, record: &Record, group: &str) -> i32 {
    let offset = record.view().physical_offset().0.to_string();
    let code = rig.ask(request(36, &[("offset", offset.as_str()), ("group", group), ("delayLevel", "0")])).code;
    rig.step();
    code
}

#[test]
fn b03_wrong_numbers_in_the_progress_file_stop_no_level() {
    for with_checkpoint in [true, false] {
        for wrong in ["1000000000", "-5", "0"] {
            let rig = rig();
            for level in 1..=18 {
                rig.sent(named("T", &format!("before {level}")).level(level));
            }
            let rig = rig.restart_after(|directory| {
                let table: Vec<_> = (1..=18).map(|level| format!("{level}:{wrong}")).collect();
                let text = format!(r#"{{"offsetTable":{{{}}}}}"#, table.join(","));
                directory.write(Path::new("config/delayOffset.json"), text.as_bytes()).unwrap();
                if !with_checkpoint {
                    remove(directory, &["latermq.checkpoint", "latermq.checkpoint.bak"]);
                }
            });
            for level in 1..=18 {
                rig.sent(named("T", &format!("after {level}")).level(level));
            }

            rig.advance(Duration::from_secs(7200));
            rig.step();

            let found: BTreeSet<_> = delivered(&rig, "T").into_iter().collect();
            assert_eq!((found.len(), max(&rig, "T", 0)), (36, 36), "{wrong}, checkpoint {with_checkpoint}");
        }
    }
}

#[test]
fn b04_the_settings_of_another_broker_over_an_empty_store_lose_no_retry() {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    for name in names(50) {
        rig.sent(named("T", &name).level(3));
    }
    rig.advance(Duration::from_secs(10));
    rig.step();
    let rig = rig.restart_after(|directory| {
        remove(directory, &["commitlog", "consumequeue", "index", "checkpoint"]);
    });

    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    rig.sent(named("T", "fails"));
    assert_eq!(give_back(&rig, &rig.records("T", 0, 0)[0], "g"), 0);
    rig.advance(Duration::from_secs(10));
    rig.step();

    assert_eq!(delivered(&rig, "%RETRY%g"), ["fails"]);
}

#[test]
fn b13_the_progress_file_names_the_next_message_to_deliver() {
    let rig = rig();
    for name in names(7) {
        rig.sent(named("T", &name).level(1));
    }
    rig.advance(Duration::from_secs(1));
    rig.step();

    let rig = rig.restart();

    let file = rig.directory.read(Path::new("config/delayOffset.json")).unwrap().unwrap();
    let file = String::from_utf8(file).unwrap().replace([' ', '\n', '\t', '"'], "");
    assert!(file.contains("{1:7") || file.contains(",1:7"), "{file}");
    rig.step();
    assert_eq!(delivered(&rig, "T"), names(7));
}

#[test]
fn b17_b20_what_waits_is_delivered_after_a_restart_though_nothing_new_is_sent() {
    let mut rig = rig();
    for (level, _) in (1..).zip(DEFAULT_LEVELS) {
        rig.sent(named(&format!("L{level}"), "waits").level(level));
    }
    let mut now = 0;
    for (level, seconds) in (1..).zip(DEFAULT_LEVELS) {
        rig.advance(Duration::from_millis((seconds - now) * 1000 - 1));
        rig = rig.restart();
        rig.step();
        assert_eq!(delivered(&rig, &format!("L{level}")).len(), 0, "level {level} a millisecond before");
        rig.advance(Duration::from_millis(1));
        rig.step();
        assert_eq!(delivered(&rig, &format!("L{level}")), ["waits"], "level {level}");
        now = seconds;
    }
}

#[test]
fn b24_twenty_properties_survive_the_delay_and_a_restart_byte_for_byte() {
    let rig = rig();
    let values: Vec<_> = (0..20).map(|index| (format!("key{index}"), format!("värde {index} =: {{}}"))).collect();
    let sent = values.iter().fold(named("T", "K").level(2), |message, (name, value)| message.property(name, value));
    rig.sent(sent);

    let rig = rig.restart();
    rig.advance(Duration::from_secs(5));
    rig.step();

    let record = rig.records("T", 0, 0).remove(0);
    for (name, value) in &values {
        assert_eq!(property(&record, name).as_ref(), Some(value));
    }
    assert_eq!(property(&record, "REAL_TOPIC").as_deref(), Some("T"));
}

#[test]
fn b26_after_a_kill_every_message_has_exactly_one_place_in_its_queue() {
    let rig = rig();
    for name in names(200) {
        rig.ask(named("T", &name).request());
        rig.ask(named("T", &name).level(1).request());
        if name.ends_with('7') {
            rig.step();
        }
    }
    let rig = rig.kill();
    rig.step();

    assert_eq!(delivered(&rig, "T"), names(200));
    assert_eq!(bodies(&rig.all_records(SCHEDULE, 0)), names(200));
    rig.advance(Duration::from_secs(1));
    rig.step();
    assert_eq!(delivered(&rig, "T")[200..], names(200));
}

#[test]
fn b32_without_any_file_of_progress_nothing_is_lost_and_nothing_comes_twice() {
    let delay_offset = &["config/delayOffset.json", "config/delayOffset.json.bak"][..];
    let checkpoints = &["latermq.checkpoint", "latermq.checkpoint.bak", "checkpoint"];
    for gone in [delay_offset.to_vec(), [delay_offset, checkpoints].concat()] {
        let rig = rig();
        for name in names(100) {
            rig.sent(named("T", &name).level(1));
        }
        rig.advance(Duration::from_secs(1));
        rig.step();
        for name in names(100) {
            rig.sent(named("T", &name).level(3));
        }

        let rig = rig.restart_after(|directory| remove(directory, &gone));
        rig.step();
        assert_eq!(delivered(&rig, "T"), names(100));
        rig.advance(Duration::from_secs(10));
        rig.step();

        assert_eq!(delivered(&rig, "T"), [names(100), names(100)].concat());
    }
}

#[test]
fn b34_b53_a_backlog_of_one_level_makes_no_other_late() {
    let rig = rig();
    for name in names(2000) {
        rig.ask(named("BACKLOG", &name).level(5).request());
    }
    let mut sent = 0;
    for second in 0..90 {
        for level in [1, 2, 3, 4] {
            rig.ask(named("PROBE", &format!("{second} {level}")).level(level).request());
            sent += 1;
        }
        rig.step();
        rig.advance(Duration::from_secs(1));
    }
    rig.advance(Duration::from_secs(30));
    rig.step();

    let probes = rig.all_records("PROBE", 0);
    assert_eq!(probes.len(), sent);
    let waits: Vec<_> = (0..4).flat_map(|queue| rig.all_records(SCHEDULE, queue)).collect();
    for probe in probes.iter().take(sent - 4 * 30) {
        let wait = waits.iter().find(|wait| wait.view().body() == probe.view().body()).unwrap();
        let level = property(wait, "DELAY").unwrap().parse::<usize>().unwrap();
        let due = wait.view().stored_at().plus(Duration::from_secs(DEFAULT_LEVELS[level - 1]));
        assert_eq!(probe.view().stored_at(), due, "{}", String::from_utf8_lossy(probe.view().body()));
    }
    assert_eq!(delivered(&rig, "BACKLOG"), names(2000));
}

#[test]
fn b38_large_and_small_messages_pass_at_every_level() {
    let large = 900 * 1024;
    let store = StoreOptions { segment_bytes: 4 << 20, body_bytes_max: 1 << 20, ..store_options() };
    let rig = rig_with(BrokerOptions::default(), store);
    for level in 1..=18 {
        rig.sent(named(&format!("L{level}"), "small").level(level));
        rig.sent(message(&format!("L{level}")).body(vec![b'x'; large]).level(level));
    }

    rig.advance(Duration::from_secs(7200));
    rig.step();

    for level in 1..=18 {
        let lengths: Vec<_> =
            rig.all_records(&format!("L{level}"), 0).iter().map(|record| record.view().body().len()).collect();
        assert_eq!(lengths, [5, large], "level {level}");
    }
}

#[test]
fn b40_b42_a_delay_counts_from_the_store_time_whatever_the_producer_says_its_clock_is() {
    let hour = 3_600_000;
    for skew in [-hour, 0, hour] {
        let rig = rig();
        let mut sent = named("T", "m").level(3);
        let born = rig.store.now().0 + skew;
        sent.header.born_timestamp = born;
        rig.sent(sent);
        let stored = rig.records(SCHEDULE, 2, 0)[0].view().stored_at();

        rig.advance(Duration::from_millis(9_999));
        rig.step();
        assert_eq!(delivered(&rig, "T").len(), 0);
        rig.advance(Duration::from_millis(1));
        rig.step();

        let record = rig.records("T", 0, 0).remove(0);
        assert_eq!(record.view().born_at(), Timestamp(born));
        assert_eq!(record.view().stored_at(), stored.plus(Duration::from_secs(10)));
    }
}

#[test]
fn b45_a_wall_clock_that_steps_refuses_nobody_and_forgets_nobody() {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    rig.sent(message("T"));
    for step in [10_000, -10_000, -10_000, 10_000, 3_600_000, -3_600_000] {
        let client = connection();
        assert_eq!(rig.ask_now(&client, pull_header("g", "T", 1, 0).held().request()), None);
        for _ in 0..10 {
            rig.advance(Duration::from_secs(1));
            rig.clock.step_wall(step);
            assert_eq!(rig.send(message("T")).code, 0);
            rig.broker.tick();
            rig.clock.step_wall(-step);
        }
        rig.broker.answer_expired_pulls();
        assert!(client.take_sent().is_empty(), "after 10 s of its 15");
        rig.advance(Duration::from_millis(5_500));
        rig.broker.answer_expired_pulls();
        assert_eq!(client.take_sent().len(), 1);
        rig.join(&rig.client, "c", "g", &[("T", "*")]);
    }
    let members = rig.ask(request(38, &[("consumerGroup", "g")]));
    assert!(text(&members).contains(r#""c""#), "{}", text(&members));
}

#[test]
fn b47_levels_of_weeks_years_and_a_century_wait_as_long_as_they_say() {
    let days = [49, 50, 400, 36_500];
    let rig = rig_with_levels("49d 50d 400d 36500d");
    for (level, _) in (1..).zip(days) {
        rig.sent(named("T", &format!("m{level}")).level(level));
    }
    let day = Duration::from_secs(86_400);

    rig.advance(Duration::from_secs(60));
    rig.step();
    assert_eq!(delivered(&rig, "T").len(), 0);

    let mut gone = Duration::from_secs(60);
    for (count, days) in (1..).zip(days) {
        let due = day * days;
        rig.advance(due - Duration::from_millis(1) - gone);
        rig.step();
        assert_eq!(delivered(&rig, "T").len(), count - 1, "{days} days less a millisecond");
        rig.advance(Duration::from_millis(1));
        rig.step();
        assert_eq!(delivered(&rig, "T").len(), count, "{days} days");
        gone = due;
    }
}

#[test]
fn b49_a_short_delay_never_waits_behind_a_long_one_also_in_a_table_that_does_not_ascend() {
    let rig = rig_with_levels("2m 1s 30s");
    for name in names(1000) {
        rig.ask(named("LONG", &name).level(1).request());
    }
    for name in names(100) {
        rig.ask(named("SHORT", &name).level(2).request());
    }
    rig.step();

    rig.advance(Duration::from_secs(1));
    rig.step();

    assert_eq!(delivered(&rig, "SHORT"), names(100));
    assert_eq!(delivered(&rig, "LONG").len(), 0);
}

#[test]
fn b51_a_message_that_comes_between_a_pull_and_its_holding_is_not_missed() {
    let rig = rig();
    for round in 0..50 {
        rig.ask(named("T", "m").level(1).request());
        rig.dispatch();
        rig.advance(Duration::from_secs(1));
        // Restored, but not yet readable when the pull comes.
        rig.scheduler.tick(rig.store.now());
        let client = connection();
        let at_once = rig.ask_now(&client, pull_header("g", "T", 0, round).held().request());
        assert_eq!(at_once, None);
        rig.dispatch();
        let answer = client.take_sent().pop().expect("the pull is answered by the arrival");
        assert_eq!((answer.code, records(&answer).len()), (0, 1));
    }
}

#[test]
fn b52_messages_due_ten_milliseconds_apart_are_each_delivered_on_their_own_time() {
    let rig = rig();
    for name in names(2000) {
        rig.ask(named("T", &name).level(5).request());
        rig.advance(Duration::from_millis(10));
    }
    rig.step();
    for _ in 0..8000 {
        rig.step();
        rig.advance(Duration::from_millis(10));
    }

    let waits = rig.all_records(SCHEDULE, 4);
    let delivered = rig.all_records("T", 0);
    assert_eq!(delivered.len(), 2000);
    for (wait, record) in waits.iter().zip(&delivered) {
        assert_eq!(record.view().stored_at(), wait.view().stored_at().plus(Duration::from_secs(60)));
    }
}

#[test]
fn b58_of_forty_levels_each_waits_its_own_time_and_retries_climb_them_in_order() {
    let table: Vec<_> = (1..=40).map(|second| format!("{second}s")).collect();
    let rig = rig_with_levels(&table.join(" "));
    for level in 1..=40 {
        rig.sent(named("T", &format!("m{level}")).level(level));
    }
    for level in 1..=40 {
        assert_eq!(delivered(&rig, "T").len(), level - 1);
        rig.advance(Duration::from_secs(1));
        rig.step();
        assert_eq!(delivered(&rig, "T").last(), Some(&format!("m{level}")));
    }

    rig.join(&rig.client, "c", "g", &[("R", "*")]);
    rig.sent(message("R"));
    let mut record = rig.records("R", 0, 0).remove(0);
    for retry in 0..16 {
        assert_eq!(give_back(&rig, &record, "g"), 0);
        rig.advance(Duration::from_millis((3 + retry) * 1000 - 1));
        rig.step();
        assert_eq!(max(&rig, "%RETRY%g", 0), retry, "retry {retry} a millisecond before");
        rig.advance(Duration::from_millis(1));
        rig.step();
        record = rig.all_records("%RETRY%g", 0).pop().unwrap();
        assert_eq!(record.view().reconsume_times() as u64, retry + 1);
    }
}

#[test]
fn b61_every_send_is_answered_with_a_code_and_a_refused_one_with_a_reason() {
    let rig = rig();
    let odd = [
        ("__STARTDELIVERTIME", "1"),
        ("__STARTDELIVERTIME", "99999999999999"),
        ("DELAY", ""),
        ("DELAY", "soon"),
        ("DELAY", "99999999999999999999"),
        ("TIMER_DELIVER_MS", "x"),
        ("INNER_NUM", "-1"),
        ("INNER_BASE", "9"),
        ("TRAN_MSG", "maybe"),
        ("CLUSTER", ""),
        ("a\u{1f}b", "c"),
    ];
    for (name, value) in odd {
        let answer = rig.send(message("T").property(name, value));
        assert!(
            answer.code == 0 || answer.remark.as_ref().is_some_and(|remark| remark.len() > 10),
            "{name}={value}: {} {:?}",
            answer.code,
            answer.remark
        );
    }
}

#[test]
fn b65_a_retry_comes_whatever_began_first_and_whatever_restarts_meanwhile() {
    // The group before its topic; the consumer gone and back; the broker restarted while the retry waits.
    for (group_first, consumer_restarts, broker_restarts) in
        [(true, false, false), (false, true, false), (true, false, true), (false, true, true)]
    {
        let mut rig = rig();
        let join = |rig: &Rig| rig.join(&rig.client, "c", "g", &[("T", "*")]);
        if group_first {
            join(&rig);
        }
        rig.sent(named("T", "m"));
        if !group_first {
            join(&rig);
        }
        let record = rig.records("T", 0, 0).remove(0);
        assert_eq!(give_back(&rig, &record, "g"), 0);
        if consumer_restarts {
            rig.ask(request(35, &[("clientID", "c"), ("consumerGroup", "g")]));
            join(&rig);
        }
        if broker_restarts {
            rig = rig.restart();
            join(&rig);
        }

        rig.advance(Duration::from_secs(10));
        rig.step();

        assert_eq!(delivered(&rig, "%RETRY%g"), ["m"]);
    }
}

#[test]
fn b68_sends_straight_to_a_retry_topic_are_answered_whatever_they_say_of_retries() {
    let rig = rig();
    for (times, most) in
        [(0, None), (3, None), (-1, None), (i32::MIN, Some(i32::MIN)), (i32::MAX, Some(-1)), (1, Some(0))]
    {
        let answer = rig.send(message("%RETRY%unknown").reconsumed(times, most));
        assert!(answer.code == 0 || answer.remark.is_some(), "{times} {most:?}");
        let mut absent = message("%RETRY%unknown");
        absent.header.reconsume_times = None;
        absent.header.max_reconsume_times = most;
        let answer = rig.send(absent);
        assert!(answer.code == 0 || answer.remark.is_some(), "{most:?}");
    }
    assert_eq!(rig.send(message("T")).code, 0);
}

#[test]
fn b71_a_retry_keeps_its_tag() {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "TagA")]);
    rig.sent(message("T").tag("TagA"));
    assert_eq!(give_back(&rig, &rig.records("T", 0, 0)[0], "g"), 0);
    rig.advance(Duration::from_secs(10));
    rig.step();

    let pull = |tags: &str| rig.ask(pull_header("TOOLS_CONSUMER", "%RETRY%g", 0, 0).tags(tags).request());
    assert_eq!(records(&pull("TagA")).len(), 1);
    assert_eq!(pull("TagB").code, 20, "passed over");
}

#[test]
fn b72_only_the_group_that_failed_sees_a_retry() {
    let rig = rig();
    for (client, group) in [("c1", "g1"), ("c2", "g2")] {
        rig.join(&rig.client, client, group, &[("T", "*")]);
    }
    rig.sent(named("T", "m"));
    assert_eq!(give_back(&rig, &rig.records("T", 0, 0)[0], "g1"), 0);

    rig.advance(Duration::from_secs(10));
    rig.step();

    assert_eq!(delivered(&rig, "%RETRY%g1"), ["m"]);
    assert_eq!((delivered(&rig, "%RETRY%g2").len(), max(&rig, "T", 0)), (0, 1));
}

#[test]
fn b74_b75_with_queues_and_index_removed_tags_keys_and_due_times_are_what_they_were() {
    for stopped_hard in [false, true] {
        let rig = rig();
        for (name, tag) in [("a", "A"), ("b", "B"), ("c", "C")] {
            rig.sent(named("T", name).tag(tag).property("KEYS", "order").level(3));
        }
        rig.advance(Duration::from_secs(4));
        let gone = |directory: &MemoryDirectory| remove(directory, &["consumequeue", "index"]);
        let rig = if stopped_hard {
            gone(&rig.directory);
            rig.kill()
        } else {
            rig.restart_after(gone)
        };

        rig.advance(Duration::from_millis(5_999));
        rig.step();
        assert_eq!(max(&rig, "T", 0), 0);
        rig.advance(Duration::from_millis(1));
        rig.step();

        let pull = |tags: &str| rig.ask(pull_header("TOOLS_CONSUMER", "T", 0, 0).tags(tags).request());
        assert_eq!(bodies(&records(&pull("A"))), ["a"]);
        assert_eq!(bodies(&records(&pull("B || C"))), ["b", "c"]);
        assert_eq!(records(&by_key(&rig, "T", "order", false)).len(), 3);
    }
}

#[test]
fn b77_a_delivered_message_without_key_and_tag_is_found_by_its_id_and_by_its_unique_key() {
    let rig = rig();
    rig.sent(named("T", "U1").level(1));
    rig.advance(Duration::from_secs(1));
    rig.step();
    let record = rig.records("T", 0, 0).remove(0);
    let id = MessageId { store_host: record.view().store_host(), physical_offset: record.view().physical_offset() };
    let id: MessageId = id.to_string().parse().unwrap();

    let offset = id.physical_offset.0.to_string();
    let by_id = rig.ask(request(33, &[("offset", offset.as_str())]));

    assert_eq!(bodies(&records(&by_id)), ["U1"]);
    let unique = records(&by_key(&rig, "T", "U1", true));
    assert_eq!(unique.len(), 1);
    assert_eq!(unique[0].view().physical_offset(), record.view().physical_offset());
}

#[test]
fn b78_a_waiting_message_is_found_by_key_under_the_schedule_topic_and_then_under_its_own() {
    let rig = rig();
    rig.sent(named("T", "U1").property("KEYS", "order").level(1));

    assert_eq!(records(&by_key(&rig, SCHEDULE, "order", false)).len(), 1);
    assert_eq!(by_key(&rig, "T", "order", false).code, 22);
    assert_eq!(rig.ask(request(202, &[("topic", SCHEDULE)])).code, 0);
    rig.advance(Duration::from_secs(1));
    rig.step();
    assert_eq!(records(&by_key(&rig, "T", "order", false)).len(), 1);
}

#[test]
fn b83_names_at_their_limits_work_whole_or_are_refused_in_words() {
    for length in [100, 119, 120, 126, 127, 128, 255, 256, 1000] {
        let rig = rig();
        let name = "n".repeat(length);
        let answer = rig.send(named(&name, "m").level(1));
        if answer.code != 0 {
            assert!(length > 100 && answer.remark.unwrap().contains("topic"), "{length}");
            continue;
        }
        rig.advance(Duration::from_secs(1));
        rig.step();
        let record = rig.records(&name, 0, 0).remove(0);

        // The group has the same length: its retry topic is longer.
        rig.join(&rig.client, "c", &name, &[(&name, "*")]);
        let code = give_back(&rig, &record, &name);
        rig.advance(Duration::from_secs(10));
        rig.step();

        let retried = delivered(&rig, &format!("%RETRY%{name}")).len();
        assert_eq!(retried, usize::from(code == 0), "{length}: code {code}");
    }
}

#[test]
fn b87_many_topics_with_long_similar_names_keep_each_their_own_messages() {
    let rig = rig();
    let topic = |index: usize| format!("{}_{index:03}", "a_rather_long_name_of_a_topic".repeat(3));
    for round in 0..6 {
        for index in 0..100 {
            let key = format!("{index} {round}");
            rig.ask(named(&topic(index), &key).level(1).request());
            rig.ask(named(&topic(index), &key).body(vec![b'x'; 700]).request());
        }
        rig.step();
        rig.advance(Duration::from_secs(1));
        rig.step();
    }
    let rig = rig.restart_after(|directory| remove(directory, &["consumequeue"]));
    rig.step();

    for index in 0..100 {
        let all = delivered(&rig, &topic(index));
        let restored: Vec<_> = all.iter().filter(|body| body.len() < 10).cloned().collect();
        let expected: Vec<_> = (0..6).map(|round| format!("{index} {round}")).collect();
        assert_eq!((all.len(), restored), (12, expected));
    }
}

#[test]
fn b89_queue_offsets_grow_by_one_and_go_on_after_a_restart() {
    let mut rig = rig();
    for life in 0..3 {
        for index in 0..20 {
            let offset = life * 20 + index;
            assert_eq!(rig.sent(message("T")).queue_offset, offset);
            rig.sent(message("T").queue(1).level(3));
            assert_eq!(max(&rig, SCHEDULE, 2) as i64, offset + 1);
        }
        rig = rig.restart();
    }
}

#[test]
fn b94_an_answer_says_stored_if_and_only_if_the_message_is() {
    let rig = rig();
    let mut stored = Vec::new();
    for name in names(200) {
        // Every third write fails.
        rig.directory.fail_under(Path::new("commitlog"), Operation::Write, 2, io::ErrorKind::Other, 1);
        if rig.send(named("T", &name)).code == 0 {
            stored.push(name);
        }
        rig.directory.heal();
    }
    assert_eq!(delivered(&rig, "T"), stored);
    assert_eq!(delivered(&rig.kill(), "T"), stored);
}

#[test]
fn b99_refused_messages_leave_no_hole_in_the_queue() {
    let rig = rig();
    for index in 0..50 {
        assert_eq!(rig.sent(named("T", "fits").level(index % 3)).queue_id, 0);
        assert_eq!(rig.send(message("T").body(vec![0; 64 * 1024 + 1]).level(index % 3)).code, 13);
        assert_ne!(rig.send(message("T").property("x", &"y".repeat(40_000)).level(index % 3)).code, 0);
    }
    rig.advance(Duration::from_secs(5));
    rig.step();

    let offsets: Vec<_> = rig.all_records("T", 0).iter().map(|record| record.view().queue_offset().0).collect();
    assert_eq!(offsets, (0..50).collect::<Vec<u64>>());
}

#[test]
fn b100_a_group_that_begins_at_the_end_of_an_empty_queue_gets_the_first_message() {
    let rig = rig();
    rig.ask(message("T").queue(1).request());
    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    let end = rig.ask(request(30, &[("topic", "T"), ("queueId", "0")])).ext.get("offset").unwrap().to_owned();
    assert_eq!(end, "0");

    rig.sent(named("T", "first").level(1));
    rig.advance(Duration::from_secs(1));
    rig.step();

    assert_eq!(bodies(&rig.records("T", 0, end.parse().unwrap())), ["first"]);
}

#[test]
fn b102_a_delay_longer_than_every_timeout_is_delivered_once_though_consumers_come_and_go() {
    let rig = rig();
    rig.sent(named("T", "m").level(18));
    for minute in 0..150 {
        rig.advance(Duration::from_secs(60));
        rig.step();
        rig.broker.tick();
        let client = format!("c{}", minute % 3);
        if minute % 2 == 0 {
            rig.join(&rig.client, &client, "g", &[("T", "*")]);
        } else {
            rig.ask(request(35, &[("clientID", client.as_str()), ("consumerGroup", "g")]));
        }
        assert_eq!(delivered(&rig, "T").len(), usize::from(minute >= 119), "minute {minute}");
    }
}

#[test]
fn b103_thousands_of_held_pulls_are_all_answered_in_time() {
    let rig = rig();
    rig.sent(message("T"));
    let clients: Vec<_> = (0..5000).map(|_| connection()).collect();
    for client in &clients {
        let header = PullHeader { suspend_timeout_ms: 15_000, ..pull_header("g", "T", 1, 0) };
        assert_eq!(rig.ask_now(client, header.held().request()), None);
    }

    rig.advance(Duration::from_secs(16));
    rig.broker.answer_expired_pulls();

    assert!(clients.iter().all(|client| client.take_sent().len() == 1));
}

#[test]
fn b105_consumers_that_resubscribe_while_tools_look_on_never_block_each_other() {
    let rig = rig();
    let broker = &rig.broker;
    let ask = |connection: &Arc<Connection>, command: Command| {
        let responder = Responder::new(connection, &command);
        broker.handle(connection, command, responder);
        connection.take_sent();
    };
    thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                let client = connection();
                for round in 0..200 {
                    let topic = format!("T{}", round % 5);
                    let heartbeat = crate::rig::heartbeat(&format!("c{number}"), "g", &[(&topic, "*")]);
                    ask(&client, crate::rig::heartbeat_request(&heartbeat));
                    ask(&client, request(38, &[("consumerGroup", "g")]));
                    ask(&client, Command::request(RequestCode::GET_ALL_TOPIC_CONFIG));
                    ask(&client, request(203, &[("consumerGroup", "g")]));
                    if round % 10 == 9 {
                        ask(&client, request(35, &[("clientID", "c1"), ("consumerGroup", "g")]));
                    }
                }
            });
        }
    });
    assert_eq!(rig.send(message("T")).code, 0);
}

#[test]
fn b01_b109_a_delivery_that_fails_hundreds_of_times_is_made_once_it_can_be() {
    let rig = rig();
    for name in names(20) {
        rig.sent(named("T", &name).level(1));
    }
    rig.directory.fail_under(Path::new("commitlog"), Operation::Write, 0, io::ErrorKind::StorageFull, u64::MAX);
    for _ in 0..300 {
        rig.advance(Duration::from_secs(11));
        rig.scheduler.tick(rig.store.now());
        rig.dispatch();
    }
    assert_eq!((delivered(&rig, "T").len(), rig.fatal.lock().unwrap().clone()), (0, Vec::new()));

    rig.directory.heal();
    rig.advance(Duration::from_secs(11));
    rig.step();

    assert_eq!(delivered(&rig, "T"), names(20));
}

#[test]
fn b126_a_dead_letter_is_found_by_its_group_and_by_its_id() {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    rig.sent(named("T", "m").property("KEYS", "order"));
    let record = rig.records("T", 0, 0).remove(0);
    let offset = record.view().physical_offset().0.to_string();
    let dead = [("offset", offset.as_str()), ("group", "g"), ("delayLevel", "-1")];
    assert_eq!(rig.ask(request(36, &dead)).code, 0);
    rig.step();

    let letter = rig.records("%DLQ%g", 0, 0).remove(0);
    assert_eq!(records(&by_key(&rig, "%DLQ%g", "order", false)).len(), 1);
    let offset = letter.view().physical_offset().0.to_string();
    assert_eq!(bodies(&records(&rig.ask(request(33, &[("offset", offset.as_str())])))), ["m"]);
    // What is not there is not said to be.
    assert_ne!(rig.ask(request(36, &[("offset", "99999999"), ("group", "g"), ("delayLevel", "0")])).code, 0);
}

#[test]
fn b107_a_segment_that_cannot_be_read_for_a_while_holds_consumers_up_and_one_that_never_can_does_not_hold_them_for_ever()
 {
    for minutes in [9, 11] {
        let rig = rig();
        for number in 0..3000 {
            rig.ask(message("T").body(format!("{number:0100}")).request());
        }
        rig.step();
        let segments = rig.store.log_range().1.0.div_ceil(store_options().segment_bytes);
        assert!(segments > 2, "{segments}");
        let first = Path::new("commitlog/00000000000000000000");
        rig.directory.fail_under(first, Operation::Read, 0, io::ErrorKind::Other, u64::MAX);

        // As a client does: it tries again at the same offset, or goes on at the next one it is told.
        let mut offset = 0;
        let mut pulled = Vec::new();
        for _ in 0..minutes * 6 {
            rig.advance(Duration::from_secs(10));
            let answer = rig.pull("T", 0, offset);
            if answer.code != 1 {
                offset = reply(&answer).next_begin_offset;
                pulled.extend(records(&answer));
            }
        }
        assert_eq!(offset > 0, minutes > 10, "after {minutes} minutes");
        rig.directory.heal();
        while offset < 3000 {
            let answer = rig.pull("T", 0, offset);
            offset = reply(&answer).next_begin_offset;
            pulled.extend(if answer.code == 0 { records(&answer) } else { Vec::new() });
        }
        assert_eq!(pulled.len() == 3000, minutes < 10, "{} came", pulled.len());
        assert!(pulled.len() > 1500, "what lies in other segments comes in any case");
    }
}
