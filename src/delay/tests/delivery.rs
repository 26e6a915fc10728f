//! What is delivered when, and what it looks like.

use super::{super::stamp::Stamp, *};
use crate::store::{Admission, AdmitContext, Placement, PullQuery, PullStatus, SettingChange};

#[test]
fn schedule_24_26_each_default_level_is_on_time_to_the_millisecond() {
    let table = LevelTable::default();
    let rig = Rig::new(LEVELS_DEFAULT);
    for (level, _) in table.iter() {
        rig.send("orders", level.number() as i32, &level.to_string());
    }

    for (already, (level, delay)) in (0..).zip(table.iter()) {
        let due = START.plus(delay);
        rig.clock.advance(Timestamp(due.0 - 1).since(rig.store.now()));
        rig.step();
        assert_eq!(rig.bodies("orders", 0).len(), already, "level {level} is not early");
        assert_eq!(rig.scheduler.next_deadline(), Some(due));

        rig.advance(1);
        assert_eq!(rig.step(), 1, "level {level} is on time");
        let records = rig.records("orders", 0);
        assert_eq!(records[already].view().stored_at(), due);
        assert_eq!(records[already].body(), level.to_string());
    }
    assert_eq!(rig.scheduler.next_deadline(), None);
}

#[test]
fn schedule_2_11_a_level_beyond_the_table_waits_as_long_as_the_last() {
    // B59
    let rig = Rig::new("5s 8s");
    rig.send("orders", 3, "clamped");
    rig.send("orders", i32::MAX, "as well");

    let waiting = rig.records(SCHEDULE_TOPIC, 1);
    assert_eq!(waiting.len(), 2);
    assert!(waiting.iter().all(|record| record.view().properties().get("DELAY") == Some("2")));
    rig.advance(7_999);
    assert_eq!(rig.step(), 0);
    rig.advance(1);
    assert_eq!(rig.step(), 2);
}

#[test]
fn schedule_9_30_what_has_no_level_is_there_at_once_and_what_was_delivered_is_not_delayed_again() {
    let rig = Rig::new("1s");
    for level in [0, -1] {
        rig.send("orders", level, "now");
    }
    assert_eq!(rig.bodies("orders", 0), ["now", "now"]);
    assert_eq!(rig.records("orders", 0)[1].view().properties().get("DELAY"), Some("-1"));

    rig.send("orders", 1, "later");
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["now", "now", "later"]);
    assert_eq!(rig.entries(SCHEDULE_TOPIC, 0).len(), 1);
}

#[test]
fn schedule_10_17_20_the_waiting_record_and_its_queue_entry() {
    let rig = Rig::new("1s 5s 10s");
    rig.advance(3);
    let mut sent = draft("orders", 3, "body");
    sent.queue_id = QueueId(2);

    let appended = rig.try_send(sent).unwrap();
    rig.dispatch();

    assert_eq!(appended.queue_offset, QueueOffset(0));
    let record = &rig.records(SCHEDULE_TOPIC, 2)[0];
    let properties = record.view().properties();
    assert_eq!(properties.get("REAL_TOPIC"), Some("orders"));
    assert_eq!(properties.get("REAL_QID"), Some("2"));
    assert_eq!(properties.get("DELAY"), Some("3"));
    assert_eq!(rig.entries(SCHEDULE_TOPIC, 2)[0].tag_code, START.0 + 3 + 10_000);
}

#[test]
fn schedule_12_15_16_what_is_refused_leaves_nothing() {
    let rig = Rig::new("1s");
    let mut no_number = draft("orders", 0, "x");
    no_number.properties.set("DELAY", "abc");
    let mut timer = draft("orders", 0, "x");
    timer.properties.set("TIMER_DELAY_SEC", "1");

    for bad in [no_number, timer, draft(SCHEDULE_TOPIC, 0, "x"), draft(PARKING_TOPIC, 1, "x")] {
        assert!(matches!(rig.try_send(bad), Err(AppendError::Refused(_))));
    }
    let batch = vec![draft("orders", 0, "a"), draft("orders", 1, "b")];
    assert!(rig.store.append_batch(&Properties::new(), batch).is_err());
    let envelope = draft("orders", 1, "").properties;
    assert!(rig.store.append_batch(&envelope, vec![draft("orders", 0, "a")]).is_err());

    rig.dispatch();
    assert_eq!(rig.store.queues().len(), 0);
}

#[test]
fn schedule_22_a_level_beyond_eighteen_has_its_queue() {
    let rig = Rig::new(&"1s ".repeat(25));

    rig.send("orders", 25, "body");

    assert_eq!(rig.entries(SCHEDULE_TOPIC, 24).len(), 1);
    rig.run_dry();
    assert_eq!(rig.bodies("orders", 0), ["body"]);
}

#[test]
fn schedule_25_27_one_level_is_first_in_first_out_whatever_the_topics() {
    let rig = Rig::new("1s 2s");
    let mut wanted = Vec::new();
    for number in 0..1500 {
        let topic = ["a", "b", "c"][number % 3];
        rig.try_send(draft(topic, 1, &number.to_string())).unwrap();
        wanted.push((topic, number.to_string()));
        if number % 100 == 0 {
            rig.advance(1);
        }
    }
    rig.run_dry();

    let mut delivered = Vec::new();
    for topic in ["a", "b", "c"] {
        let records = rig.records(topic, 0);
        delivered.extend(records.iter().map(|record| {
            let body = String::from_utf8(record.body().to_vec()).unwrap();
            (record.view().physical_offset(), topic, body)
        }));
    }
    delivered.sort_unstable();
    let delivered: Vec<_> = delivered.into_iter().map(|(_, topic, body)| (topic, body)).collect();
    assert_eq!(delivered, wanted);
}

#[test]
fn schedule_28_29_32_the_delivered_record_is_the_waiting_one_in_its_real_place() {
    let rig = Rig::new("1s");
    let mut sent = draft("orders", 1, "body");
    sent.queue_id = QueueId(3);
    sent.sys_flag = SysFlag(SysFlag::COMPRESSED | 0x200);
    sent.reconsume_times = 4;
    sent.properties.set("KEYS", "k1 k2");
    sent.properties.set("WAIT", "false");
    rig.try_send(sent).unwrap();
    rig.run_dry();

    let waiting = &rig.records(SCHEDULE_TOPIC, 0)[0];
    let delivered = &rig.records("orders", 3)[0];
    let (waiting, delivered) = (waiting.view(), delivered.view());
    assert_eq!(delivered.properties().as_bytes(), waiting.properties().as_bytes());
    assert_eq!(delivered.body(), waiting.body());
    assert_eq!(delivered.body_crc(), waiting.body_crc());
    assert_eq!((delivered.flag(), delivered.sys_flag()), (waiting.flag(), waiting.sys_flag()));
    assert_eq!((delivered.born_at(), delivered.born_host()), (waiting.born_at(), waiting.born_host()));
    assert_eq!((delivered.store_host(), delivered.reconsume_times()), (waiting.store_host(), 4));
    assert_eq!(delivered.stored_at(), START.plus(Duration::from_secs(1)));
    assert_ne!(delivered.message_id(), waiting.message_id());
    assert_eq!(rig.entries("orders", 3)[0].tag_code, i64::from(crate::model::java_hash("TagA")));
}

#[test]
fn schedule_33_a_query_under_the_real_topic_finds_nothing_before_it_is_due() {
    let rig = Rig::new("1s");
    rig.send("orders", 1, "body");
    let found = |topic| rig.store.query(topic, "id-body", 10, Timestamp(0), Timestamp::MAX).records.len();

    assert_eq!((found("orders"), found(SCHEDULE_TOPIC)), (0, 1));
    rig.run_dry();
    assert_eq!(found("orders"), 1);
}

#[test]
fn nobody_can_read_a_message_before_it_is_due_and_a_pull_finds_it_then() {
    let rig = Rig::new("1s");
    rig.send("orders", 1, "body");
    let pull = || {
        let query =
            PullQuery { topic: "orders", queue_id: QueueId(0), offset: 0, count_max: 32, bytes_max: usize::MAX };
        rig.store.pull(&query, &|_| true)
    };
    rig.advance(999);
    rig.step();
    assert_ne!(pull().status, PullStatus::Found);

    rig.advance(1);
    rig.step();
    assert_eq!(pull().count, 1);
}

#[test]
fn schedule_35_a_clock_that_steps_back_makes_nobody_early_and_nobody_late() {
    let rig = Rig::new("1s 10s");
    rig.send("orders", 2, "before");
    rig.advance(5_000);
    rig.clock.step_wall(-3_600_000);
    rig.send("orders", 1, "after");

    rig.advance(999);
    assert_eq!(rig.step(), 0);
    rig.advance(1);
    assert_eq!(rig.step(), 1);
    rig.advance(3_999);
    assert_eq!(rig.step(), 0);
    rig.advance(1);
    assert_eq!(rig.step(), 1);
    assert_eq!(rig.bodies("orders", 0), ["after", "before"]);
}

#[test]
fn a_backlog_of_one_level_does_not_hold_up_another() {
    // B34, B53
    let rig = Rig::with("1s 2s", |options| options.segment_bytes = 1 << 20);
    for number in 0..4 * BATCH_RECORDS_MAX {
        rig.try_send(draft("backlog", 1, &number.to_string())).unwrap();
    }
    rig.advance(1);
    rig.send("orders", 2, "on time");
    rig.advance(2_000);

    // Two heads to look at, then a batch of each level.
    let mut batches = 0;
    while rig.bodies("orders", 0).is_empty() {
        rig.scheduler.tick(rig.store.now());
        rig.dispatch();
        batches += 1;
    }

    assert!(batches <= 2, "{batches} batches went first");
    assert!(rig.number("delayPending", Some(1)) > 0.0);
    rig.run_dry();
    assert_eq!(rig.entries("backlog", 0).len(), 4 * BATCH_RECORDS_MAX);
}

#[test]
fn a_batch_has_bounded_bytes() {
    let rig = Rig::with("1s", |options| options.segment_bytes = 1 << 22);
    let body = "x".repeat(30 * 1024);
    for _ in 0..100 {
        rig.try_send(draft("orders", 1, &body)).unwrap();
    }
    rig.dispatch();
    rig.advance(1_000);

    let tick = rig.scheduler.tick(rig.store.now());

    assert!((30..40).contains(&tick.restored), "{tick:?}");
    assert!(tick.next_deadline.is_some_and(|next| next <= rig.store.now()));
}

#[test]
fn schedule_52_figures_tell_what_waits_and_what_was_late() {
    // B120
    let rig = Rig::new("1s 5s");
    rig.send("orders", 1, "a");
    rig.send("orders", 1, "b");
    rig.send("orders", 2, "c");
    assert_eq!(rig.number("delayPending", Some(1)), 2.0);
    assert_eq!(rig.number("delayNextDeadlineMs", Some(2)), (START.0 + 5_000) as f64);
    assert_eq!(rig.number("delayPinnedFrom", None), 0.0);

    rig.advance(1_250);
    rig.step();

    assert_eq!(rig.text("scheduleMessageOffset_1").as_deref(), Some("2,2"));
    assert_eq!(rig.text("scheduleMessageOffset_2").as_deref(), Some("0,1"));
    assert_eq!(rig.number("delayRestored", Some(1)), 2.0);
    assert_eq!(rig.number("delayLateTotalMs", Some(1)), 500.0);
    assert_eq!(rig.number("delayLateMaxMs", Some(1)), 250.0);
    assert_eq!(rig.number("delayPending", Some(1)), 0.0);
}

#[test]
fn schedule_8_a_live_change_of_the_table_counts_whole_or_not_at_all() {
    let rig = Rig::new("1s 5s");

    for text in ["", "2s 3x", "2s  3s", "0s", "2s 99999999999d"] {
        let answer = rig.store.change_setting(LEVELS_KEY, text);
        assert!(matches!(answer, SettingChange::Refused(reason) if reason.contains(LEVELS_KEY)), "{text:?}");
    }
    assert_eq!(rig.number("delayLevelMs", Some(1)), 1_000.0);
    assert_eq!(rig.number("delayLevelMs", Some(2)), 5_000.0);

    assert_eq!(rig.store.change_setting(LEVELS_KEY, "2s 3s 4s"), SettingChange::Accepted);
    assert_eq!(rig.number("delayLevelMs", Some(1)), 2_000.0);
    assert_eq!(rig.number("delayLevelMs", Some(3)), 4_000.0);
    assert_eq!(rig.store.change_setting("other", "2s"), SettingChange::NotMine);
    assert_eq!(rig.store.change_setting(PARK_AFTER_KEY, "5000"), SettingChange::Accepted);
    assert!(matches!(rig.store.change_setting(PARK_AFTER_KEY, "x"), SettingChange::Refused(_)));
    assert_eq!(rig.scheduler.options().park_after, Duration::from_secs(5));
    assert_eq!(rig.number("delayLevelMs", Some(1)), 2_000.0, "the other key stays");
}

#[test]
fn after_a_live_change_new_messages_wait_by_the_new_table_and_earlier_ones_keep_their_time() {
    let rig = Rig::new("10s 20s");
    rig.send("orders", 1, "old");
    rig.send("orders", 2, "gone");
    rig.send("orders", 9, "clamped before");

    assert_eq!(rig.store.change_setting(LEVELS_KEY, "1s"), SettingChange::Accepted);
    rig.send("orders", 1, "new");
    rig.send("orders", 9, "clamped after");

    let generation = |name: &str, level: &str, generation: &str| {
        let labels = vec![("level", level.to_owned()), ("generation", generation.to_owned())];
        let figures = rig.store.figures();
        figures.into_iter().find(|figure| figure.name == name && figure.labels == labels).map(|figure| figure.value)
    };
    let number = |number: f64| Some(FigureValue::Number(number));
    assert_eq!(generation("delayGenerationPending", "1", "1"), number(1.0));
    assert_eq!(generation("delayGenerationMs", "1", "1"), number(10_000.0));
    assert_eq!(generation("delayGenerationNextDeadlineMs", "1", "1"), number((START.0 + 10_000) as f64));
    assert_eq!(generation("delayGenerationPending", "1", "2"), number(2.0));
    assert_eq!(generation("delayGenerationMs", "1", "2"), number(1_000.0));
    assert_eq!(generation("delayGenerationPending", "2", "1"), number(2.0));

    rig.advance(999);
    assert_eq!(rig.step(), 0);
    rig.advance(1);
    assert_eq!(rig.step(), 2);
    assert_eq!(rig.bodies("orders", 0), ["new", "clamped after"]);
    assert_eq!(generation("delayGenerationPending", "1", "2"), None, "it has drained");
    rig.advance(8_999);
    assert_eq!(rig.step(), 0);
    rig.advance(1);
    assert_eq!(rig.step(), 1);
    rig.advance(9_999);
    assert_eq!(rig.step(), 0);
    rig.advance(1);
    assert_eq!(rig.step(), 2);
    assert_eq!(rig.bodies("orders", 0), ["new", "clamped after", "old", "gone", "clamped before"]);
    assert_eq!(rig.scheduler.next_deadline(), None);
}

/// A message that was admitted by the table before and is stored when another is in force keeps what it was admitted for: a level that is
/// gone would wait a second, and one that became shorter would come early.
#[test]
fn a_message_admitted_before_a_live_change_waits_as_it_was_admitted() {
    let rig = Rig::new("10s 20s");
    let mut admitted = draft("orders", 2, "between");
    let context = AdmitContext { batch: None, body_bytes_max: 1024 };
    let Ok(Admission::Marked(mark)) = rig.scheduler.admit(&mut admitted, &context) else { panic!("it is delayed") };

    assert_eq!(rig.store.change_setting(LEVELS_KEY, "1s"), SettingChange::Accepted);

    let place =
        Placement { stored_at: START, position: PhysicalOffset::ZERO, bytes: 100, queue_offset: QueueOffset(0) };
    let stamp = Stamp::from_field(rig.scheduler.place(mark, &place));
    assert_eq!(stamp.deliver_at(), Some(START.plus(Duration::from_secs(20))));
}

#[test]
fn changes_of_the_table_there_and_back_deliver_each_message_once_at_its_time_also_after_a_kill() {
    let mut rig = Rig::new("2s 3s");
    let mut due = Vec::new();
    for round in 0..20_u64 {
        let table = ["2s 3s", "1s", "5s 1s 1s", "1s 9s"][round as usize % 4];
        let waits = [[2, 3], [1, 1], [5, 1], [1, 9]][round as usize % 4];
        assert_eq!(rig.store.change_setting(LEVELS_KEY, table), SettingChange::Accepted);
        for level in [1, 2] {
            let body = format!("{round}-{level}");
            let appended = rig.send("orders", level, &body);
            due.push((appended.stored_at.plus(Duration::from_secs(waits[level as usize - 1])), body));
        }
        rig.advance(300);
        rig.step();
        if round % 5 == 4 {
            rig = rig.kill_with_levels(table);
        }
    }

    rig.run_dry();

    let mut arrived = rig
        .records("orders", 0)
        .iter()
        .map(|record| (record.view().stored_at(), String::from_utf8_lossy(&record.body()).into_owned()))
        .collect::<Vec<_>>();
    for (due_at, body) in &due {
        let index = arrived.iter().position(|(_, found)| found == body).expect("each arrives");
        let (stored_at, _) = arrived.remove(index);
        assert!(stored_at >= *due_at, "{body} is early");
    }
    assert_eq!(arrived, [], "none arrives twice");
}

#[test]
fn under_sync_flush_nothing_is_restored_twice_while_syncs_are_slow_and_nothing_is_readable_before_it_is_durable() {
    let rig = Rig::with("1s", |options| options.flush_policy = FlushPolicy::Sync);
    rig.try_send(draft("orders", 1, "a")).unwrap();
    assert_eq!(rig.scheduler.next_deadline(), None, "it is not durable yet");
    rig.store.sync_once().unwrap();
    rig.dispatch();
    rig.advance(1_000);

    assert_eq!(rig.step(), 1);
    assert_eq!(rig.step(), 0);
    assert_eq!(rig.entries("orders", 0).len(), 0);
    assert_eq!(rig.number("delayPending", Some(1)), 1.0);

    rig.store.sync_once().unwrap();
    rig.dispatch();
    assert_eq!(rig.bodies("orders", 0), ["a"]);
    assert_eq!(rig.number("delayPending", Some(1)), 0.0);
}
