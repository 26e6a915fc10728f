//! What survives a stop, a kill, a power cut and a change of the table.

use super::*;

fn numbered(from: usize, count: usize) -> Vec<String> {
    (from..from + count).map(|number| format!("m{number:04}")).collect()
}

fn send_all(rig: &Rig, level: i32, bodies: &[String]) {
    for body in bodies {
        rig.try_send(draft("orders", level, body)).unwrap();
    }
    rig.dispatch();
}

/// Restores only the batch in hand.
fn one_batch(rig: &Rig) -> usize {
    rig.scheduler.tick(rig.store.now()).restored
}

#[test]
fn schedule_48_a_clean_restart_repeats_nothing_and_loses_nothing() {
    // B05
    let rig = Rig::new("1s 5s");
    send_all(&rig, 1, &numbered(0, 7));
    send_all(&rig, 2, &numbered(100, 5));
    rig.advance(1_000);
    rig.step();
    rig.store.stop().unwrap();
    let file = rig.directory.read(Path::new("config/delayOffset.json")).unwrap().unwrap();
    let file = String::from_utf8(file).unwrap();
    assert!(file.contains("\"offsetTable\":{1:7,2:0\n"), "{file}");

    let rig = Rig::open(rig.clock, rig.directory, rig.options, "1s 5s", rig.topics);
    assert_eq!(rig.number("delayPending", Some(1)), 0.0);
    assert_eq!(rig.number("delayPending", Some(2)), 5.0);
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), [numbered(0, 7), numbered(100, 5)].concat());
}

#[test]
fn schedule_49_a_kill_in_the_middle_of_a_delivery_repeats_nothing_and_loses_nothing() {
    for restored_before in [0, 1, 2, 3] {
        let rig = Rig::with("1s", |options| options.segment_bytes = 256 * 1024);
        let all = numbered(0, 3 * BATCH_RECORDS_MAX);
        send_all(&rig, 1, &all);
        rig.advance(1_000);
        for _ in 0..restored_before {
            assert_eq!(one_batch(&rig), BATCH_RECORDS_MAX);
        }

        // The last batch is in the log, but neither dispatched nor in any checkpoint.
        let rig = rig.kill();
        rig.run_dry();

        assert_eq!(rig.bodies("orders", 0), all, "{restored_before} batches before the kill");
    }
}

#[test]
fn schedule_34_what_fell_due_while_the_broker_was_down_is_delivered_at_once_at_the_start() {
    // B09
    let rig = Rig::new("1s 1h");
    rig.send("orders", 1, "overdue");
    rig.send("orders", 2, "not yet");
    let rig = rig.restart();
    rig.advance(60_000);
    let rig = rig.kill();

    assert_eq!(rig.step(), 1);

    assert_eq!(rig.bodies("orders", 0), ["overdue"]);
    assert_eq!(rig.records("orders", 0)[0].view().stored_at(), START.plus(Duration::from_secs(60)));
    assert_eq!(rig.scheduler.next_deadline(), Some(START.plus(Duration::from_secs(3_600))));
}

#[test]
fn schedule_21_rebuilt_queues_keep_the_deliver_time_that_was_promised() {
    let rig = Rig::new("10s");
    rig.send("orders", 1, "body");
    let promised = START.0 + 10_000;

    rig.store.stop().unwrap();
    rig.lose_files();
    let rig = Rig::open(rig.clock, rig.directory, rig.options, "1s", rig.topics);

    assert_eq!(rig.entries(SCHEDULE_TOPIC, 0)[0].tag_code, promised);
    rig.advance(9_999);
    assert_eq!(rig.step(), 0);
    rig.advance(1);
    assert_eq!(rig.step(), 1);
}

#[test]
fn new_messages_of_a_shortened_level_are_not_held_up_by_older_ones() {
    let rig = Rig::new("1h");
    rig.send("orders", 1, "old");
    let rig = rig.restart_with_levels("1s");

    rig.send("orders", 1, "new");
    rig.advance(1_000);
    assert_eq!(rig.step(), 1);

    assert_eq!(rig.bodies("orders", 0), ["new"]);
    // The newer one was restored first; neither a kill nor a lost checkpoint brings it back.
    let rig = rig.kill();
    rig.directory.remove(Path::new("config")).unwrap();
    let rig = rig.kill();
    assert_eq!(rig.step(), 0);
    assert_eq!(rig.scheduler.next_deadline(), Some(START.plus(Duration::from_secs(3_600))));
    rig.run_dry();
    assert_eq!(rig.bodies("orders", 0), ["new", "old"]);
}

#[test]
fn old_messages_of_a_lengthened_level_keep_their_time() {
    let rig = Rig::new("1s");
    rig.send("orders", 1, "old");
    let rig = rig.kill_with_levels("1h");

    rig.send("orders", 1, "new");
    rig.advance(1_000);

    assert_eq!(rig.step(), 1);
    assert_eq!(rig.bodies("orders", 0), ["old"]);
    assert_eq!(rig.scheduler.next_deadline(), Some(START.plus(Duration::from_secs(3_600))));
}

#[test]
fn a_table_that_changes_back_begins_a_third_generation_and_first_in_first_out_holds_within_each() {
    let mut rig = Rig::new("10s");
    for (round, levels) in ["1s", "10s", "1s"].into_iter().enumerate() {
        rig.send("orders", 1, &format!("{round}a"));
        rig.send("orders", 1, &format!("{round}b"));
        rig = rig.restart_with_levels(levels);
    }

    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["1a", "1b", "0a", "0b", "2a", "2b"]);
}

#[test]
fn messages_of_a_removed_level_are_delivered_on_their_time() {
    let rig = Rig::new("1s 5s 10s");
    rig.send("orders", 3, "removed");
    let rig = rig.kill_with_levels("1s");

    rig.send("orders", 3, "clamped");
    rig.advance(1_000);
    assert_eq!(rig.step(), 1);
    rig.advance(8_999);
    assert_eq!(rig.step(), 0);
    rig.advance(1);
    assert_eq!(rig.step(), 1);

    assert_eq!(rig.bodies("orders", 0), ["clamped", "removed"]);
}

#[test]
fn the_state_after_a_replay_of_the_whole_log_is_the_state_of_the_checkpoint_and_its_tail() {
    let rig = Rig::new("1s 5s 1h");
    for (number, level) in [1, 2, 3, 1, 1, 2, 3, 1].into_iter().enumerate() {
        rig.send("orders", level, &number.to_string());
        rig.advance(400);
        rig.step();
        if number == 4 {
            rig.store.checkpoint_once().unwrap();
        }
    }
    let state = rig.scheduler.state();

    let rig = rig.kill();
    assert_eq!(String::from_utf8(rig.scheduler.state()).unwrap(), String::from_utf8(state.clone()).unwrap());

    rig.store.stop().unwrap();
    rig.lose_files();
    let rig = Rig::open(rig.clock, rig.directory, rig.options, &rig.levels, rig.topics);
    assert_eq!(String::from_utf8(rig.scheduler.state()).unwrap(), String::from_utf8(state).unwrap());
}

#[test]
fn waiting_messages_pin_their_segments_until_they_are_delivered() {
    // B113, B114
    let rig = Rig::with("1s 1h", |options| {
        options.reserved_time = Duration::from_secs(1);
        options.delete_when = (0..24).collect();
    });
    let fill = |rig: &Rig| {
        for _ in 0..30 {
            rig.send("filler", 0, &"x".repeat(20_000));
        }
        rig.advance(60_000);
    };
    fill(&rig);
    rig.send("orders", 2, "waits");
    let pinned = rig.records(SCHEDULE_TOPIC, 1)[0].view().physical_offset();
    fill(&rig);

    rig.store.retain_once().unwrap();
    rig.store.retain_once().unwrap();
    let (oldest, _) = rig.store.log_range();
    assert!(oldest > PhysicalOffset(0) && oldest <= pinned, "{oldest} {pinned}");

    rig.run_dry();
    assert_eq!(rig.bodies("orders", 0), ["waits"]);
    fill(&rig);
    rig.store.retain_once().unwrap();
    assert!(rig.store.log_range().0 > pinned);
}

#[test]
fn schedule_23_a_queue_of_the_schedule_topic_goes_on_at_its_offset_after_all_its_entries_expired() {
    const BEFORE: usize = 250;
    let mut rig = Rig::with("1s", |options| {
        options.segment_bytes = 1 << 20;
        options.reserved_time = Duration::from_secs(1);
        options.delete_when = (0..24).collect();
    });
    send_all(&rig, 1, &numbered(0, BEFORE));
    rig.run_dry();
    let last = rig.records(SCHEDULE_TOPIC, 0)[BEFORE - 1].view().end();
    while rig.store.log_range().1.0 < 2 * rig.options.segment_bytes {
        rig.send("filler", 0, &"x".repeat(20_000));
    }
    rig.advance(60_000);

    rig.store.retain_once().unwrap();

    assert!(rig.store.log_range().0 >= last);
    for killed in [false, true] {
        let range = rig.store.queue_range(SCHEDULE_TOPIC, QueueId(0)).unwrap();
        assert_eq!((range.min.0, range.max.0), (BEFORE as u64, BEFORE as u64));
        rig = if killed { rig.kill() } else { rig.restart() };
    }
    rig.send("orders", 1, "late");
    let range = rig.store.queue_range(SCHEDULE_TOPIC, QueueId(0)).unwrap();
    assert_eq!((range.min.0, range.max.0), (BEFORE as u64, BEFORE as u64 + 1));
    rig.run_dry();
    assert_eq!(rig.bodies("orders", 0), ["late"]);
}

#[test]
fn an_acknowledged_message_survives_a_power_cut_under_sync_flush_and_is_delivered_once() {
    for seed in 0..40 {
        let rig = Rig::with("1s", |options| options.flush_policy = FlushPolicy::Sync);
        let all = numbered(0, 20);
        send_all(&rig, 1, &all[..10]);
        rig.store.sync_once().unwrap();
        rig.dispatch();
        rig.advance(1_000);
        one_batch(&rig);
        if seed % 2 == 0 {
            rig.store.sync_once().unwrap();
            rig.dispatch();
        }
        if seed % 3 == 0 {
            rig.store.checkpoint_once().unwrap();
        }
        send_all(&rig, 1, &all[10..]);
        rig.store.sync_once().unwrap();
        rig.advance(10);

        let rig = rig.crash(seed);
        rig.run_dry_and_sync();

        assert_eq!(rig.bodies("orders", 0), all, "seed {seed}");
    }
}

/// Sends, delivers, syncs and saves until the machine stops; gives what was acknowledged, and what may be in the log besides.
fn work_until_the_machine_stops(rig: &Rig) -> (Vec<String>, Vec<String>) {
    let mut acknowledged = Vec::new();
    for body in numbered(0, 12) {
        let sent = rig.try_send(draft("orders", 1, &body)).is_ok() && rig.store.sync_once().is_ok();
        if !sent || rig.directory.has_stopped() {
            return (acknowledged, vec![body]);
        }
        acknowledged.push(body);
        rig.store.dispatch_once(u64::MAX);
        rig.advance(300);
        let now = rig.store.now();
        rig.scheduler.tick(now);
        if acknowledged.len() % 4 == 0 {
            let _ = rig.store.checkpoint_once();
        }
        let _ = rig.store.sync_once();
        rig.store.dispatch_once(u64::MAX);
    }
    (acknowledged, Vec::new())
}

#[test]
fn a_power_cut_at_any_step_neither_loses_nor_repeats_what_was_acknowledged() {
    let rig = || {
        Rig::with("1s", |options| {
            options.flush_policy = FlushPolicy::Sync;
            // Small enough that the work crosses from one segment to the next.
            options.body_bytes_max = 512;
            options.segment_bytes = 66 * 1024;
        })
    };
    let whole = rig();
    let first = whole.directory.steps();
    assert_eq!(work_until_the_machine_stops(&whole).0.len(), 12);
    let last = whole.directory.steps();
    assert!(last > first + 20, "the work has steps");

    for step in first + 1..=last {
        let rig = rig();
        rig.directory.crash_at(step);
        let (acknowledged, unsure) = work_until_the_machine_stops(&rig);
        let rig = if step % 2 == 0 { rig.crash(step) } else { rig.kill() };
        rig.run_dry_and_sync();

        let delivered = rig.bodies("orders", 0);
        let with_unsure = [acknowledged.clone(), unsure].concat();
        assert!(delivered == acknowledged || delivered == with_unsure, "step {step}: {acknowledged:?} {delivered:?}");
    }
}

#[test]
fn schedule_50_two_hundred_deliveries_make_a_new_version_of_the_file() {
    let counter = |rig: &Rig| {
        rig.store.checkpoint_once().unwrap();
        let text = rig.directory.read(Path::new("config/delayOffset.json")).unwrap().unwrap();
        delay_offset::DelayOffset::parse(&String::from_utf8(text).unwrap()).unwrap().counter
    };
    let rig = Rig::new("1s");
    send_all(&rig, 1, &numbered(0, 199));
    rig.run_dry();
    assert_eq!(counter(&rig), 0);
    rig.send("orders", 1, "the 200th");
    rig.run_dry();
    assert_eq!(counter(&rig), 1);

    let rig = rig.restart();
    send_all(&rig, 1, &numbered(0, 200));
    rig.run_dry();
    assert_eq!(counter(&rig), 2);
}

/// Found by the model: a queue file that a killed process had created got entries and a checkpoint from the next process, but never a durable
/// name.
#[test]
fn a_message_synced_before_a_kill_survives_a_power_cut_after_it() {
    for seed in 0..20 {
        let rig = Rig::new("1s").restart();
        rig.try_send(draft("orders", 1, "a")).unwrap();
        rig.store.sync_once().unwrap();
        rig.dispatch();

        let rig = rig.kill().crash(seed);
        rig.run_dry();

        assert_eq!(rig.bodies("orders", 0), ["a"], "seed {seed}");
    }
}
