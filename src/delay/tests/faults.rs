//! Failures that pass, and messages that can never be restored.

use super::*;
use crate::env::Operation;

fn parked(rig: &Rig, queue_id: u32) -> Vec<(String, String)> {
    let text = |record: &Record, name| record.view().properties().get(name).unwrap_or_default().to_owned();
    rig.records(PARKING_TOPIC, queue_id)
        .iter()
        .map(|record| (text(record, PARKED_REASON), text(record, names::UNIQ_KEY)))
        .collect()
}

#[test]
fn schedule_36_a_failed_append_is_tried_again_in_order_and_delivers_once() {
    let rig = Rig::new("1s 1s");
    for body in ["a", "b"] {
        rig.send("orders", 1, body);
    }
    rig.advance(1_000);
    let mut pauses = Vec::new();
    for _ in 0..3 {
        rig.directory.fail_after(Operation::Write, 0, ErrorKind::Other, 1);
        assert_eq!(rig.step(), 0);
        let next = rig.scheduler.next_deadline().unwrap();
        pauses.push(next.since(rig.store.now()).as_millis());
        rig.clock.advance(next.since(rig.store.now()));
    }
    assert_eq!(rig.step(), 2);

    assert_eq!(pauses, [100, 200, 400]);
    assert_eq!(rig.bodies("orders", 0), ["a", "b"]);
    assert_eq!(rig.number("delayAppendFailures", None), 3.0);
    assert_eq!(rig.scheduler.next_deadline(), None);
}

#[test]
fn schedule_42_after_a_failure_of_the_first_batch_the_second_does_not_overtake_it() {
    for is_killed in [false, true] {
        let rig = Rig::with("1s", |options| options.segment_bytes = 1 << 20);
        let all: Vec<String> = (0..2 * BATCH_RECORDS_MAX).map(|number| number.to_string()).collect();
        for body in &all {
            rig.try_send(draft("orders", 1, body)).unwrap();
        }
        rig.dispatch();
        rig.advance(1_000);
        rig.directory.fail_after(Operation::Write, 0, ErrorKind::Other, 1);
        assert_eq!(rig.scheduler.tick(rig.store.now()).restored, 0);

        assert_eq!(rig.scheduler.tick(rig.store.now()).restored, 0, "the level pauses");
        let rig = if is_killed { rig.kill() } else { rig };
        rig.run_dry();

        assert_eq!(rig.bodies("orders", 0), all);
    }
}

#[test]
fn what_waits_behind_damage_does_not_overtake_a_level_that_pauses() {
    let rig = Rig::new("1s 5s");
    rig.send("orders", 1, "a");
    let bad = rig.send("orders", 1, "bad");
    rig.send("orders", 1, "b");
    rig.send("bills", 2, "other level");
    damage(&rig, bad.position);
    let rig = rig.kill();
    rig.advance(5_000);
    rig.directory.fail_after(Operation::Write, 0, ErrorKind::Other, 1);

    assert_eq!(rig.step(), 1, "the level pauses, the other one goes on");
    assert_eq!(rig.bodies("orders", 0).len(), 0);
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["a", "b"]);
}

#[test]
fn schedule_39_40_what_can_never_be_restored_is_parked_with_its_ids_and_holds_up_nobody() {
    let rig = Rig::new("1s");
    rig.send("deleted", 1, "d");
    rig.send("panics", 1, "p");
    rig.send("orders", 1, "fine");
    rig.topics.deleted.lock().unwrap().insert("deleted".into());
    rig.topics.panicking.lock().unwrap().insert("panics".into());
    rig.advance(1_000);

    assert_eq!(rig.step(), 1);

    assert_eq!(rig.bodies("orders", 0), ["fine"]);
    let wanted = [("topic deleted", "id-d"), ("restoring panicked", "id-p")];
    assert_eq!(parked(&rig, 0), wanted.map(|(reason, id)| (reason.to_owned(), id.to_owned())));
    assert_eq!(rig.bodies(PARKING_TOPIC, 0), ["d", "p"]);
    assert_eq!(rig.number("delayParked", Some(1)), 2.0);
    assert_eq!(rig.number("delayPending", Some(1)), 0.0);

    let rig = rig.kill();
    rig.run_dry();
    assert_eq!(rig.bodies(PARKING_TOPIC, 0), ["d", "p"], "a marker is progress");
    assert_eq!(rig.bodies("orders", 0), ["fine"]);
}

/// Overwrites a byte of the log.
pub(super) fn damage(rig: &Rig, at: PhysicalOffset) {
    let segment_bytes = rig.options.segment_bytes;
    let path = format!("commitlog/{:020}", at.0 / segment_bytes * segment_bytes);
    let file = rig.directory.open(Path::new(&path)).unwrap();
    let mut byte = [0];
    file.read_at(at.0 % segment_bytes, &mut byte).unwrap();
    file.write_at(at.0 % segment_bytes, &[byte[0] ^ 0x55]).unwrap();
}

#[test]
fn a_damaged_store_time_of_one_message_makes_no_other_of_its_level_early() {
    // The first one says how long its generation waits, and the table does not know the level any more.
    for damaged in 0..3 {
        let rig = Rig::new("1s 1d");
        let sent = ["a", "b", "c", "d"].map(|body| rig.send("orders", 2, body));
        // Ten days later, so that it seems to wait for no time at all; no checksum covers it.
        damage(&rig, sent[damaged].position.plus(60));
        rig.lose_files();

        let rig = rig.kill_with_levels("1s");
        assert_eq!(rig.step(), 0, "{damaged}");
        rig.advance(86_400_000 - 1);
        assert_eq!(rig.step(), 0, "{damaged}");
        rig.advance(1);
        rig.step();
        let mut bodies = rig.bodies("orders", 0);
        bodies.retain(|body| body != ["a", "b", "c"][damaged]);
        assert_eq!(bodies.len(), 3, "{damaged}: {bodies:?}");
    }
}

#[test]
fn a_damaged_deliver_time_holds_its_message_up_no_longer_than_the_others_of_its_level() {
    let rig = Rig::new("10s");
    let sent = ["a", "b", "c", "d"].map(|body| rig.send("orders", 1, body));
    // The first byte of the deliver time, which no checksum covers: thousands of years later.
    damage(&rig, sent[1].position.plus(78));
    rig.lose_files();

    let rig = rig.kill();
    rig.advance(10_000);

    assert_eq!(rig.step(), 4);
    assert_eq!(rig.bodies("orders", 0), ["a", "b", "c", "d"]);
}

#[test]
fn a_message_whose_real_topic_is_no_legal_name_is_parked() {
    let rig = Rig::new("1s");
    let bad = rig.send("orders", 1, "bad");
    rig.send("orders", 1, "fine");
    let record = rig.store.record_at(bad.position).unwrap();
    let name = b"REAL_TOPIC\x01";
    let at = record.bytes().windows(name.len()).position(|window| window == name).unwrap() + name.len();
    // `o` becomes `:`, which no checksum covers.
    damage(&rig, bad.position.plus(at as u64));
    rig.advance(1_000);

    assert_eq!(rig.step(), 1);

    assert_eq!(rig.bodies("orders", 0), ["fine"]);
    assert_eq!(parked(&rig, 0), [("real topic has no legal name".to_owned(), "id-bad".to_owned())]);
}

#[test]
fn schedule_37_38_an_unreadable_message_holds_up_nobody_and_is_parked_after_a_while() {
    let rig = Rig::new("1s");
    rig.send("orders", 1, "a");
    let bad = rig.send("orders", 1, "bad");
    rig.send("orders", 1, "c");
    damage(&rig, bad.position.plus(90));
    rig.advance(1_000);

    assert_eq!(rig.step(), 2);

    assert_eq!(rig.bodies("orders", 0), ["a", "c"]);
    assert_eq!(rig.number("delayPending", Some(1)), 1.0);
    assert_eq!(rig.number("delayPinnedFrom", None), bad.position.0 as f64);
    rig.clock.advance(rig.park_after - Duration::from_secs(1));
    rig.step();
    assert_eq!(rig.entries(PARKING_TOPIC, 0).len(), 0);

    rig.run_dry();
    assert_eq!(parked(&rig, 0), [("unreadable".to_owned(), String::new())]);
    assert!(rig.store.now().since(START) < rig.park_after + Duration::from_secs(60));
    assert_eq!(rig.number("delayPending", Some(1)), 0.0);
}

#[test]
fn a_message_that_becomes_readable_again_is_delivered() {
    let rig = Rig::new("1s");
    let bad = rig.send("orders", 1, "bad");
    rig.send("orders", 1, "b");
    damage(&rig, bad.position.plus(90));
    rig.advance(1_000);
    assert_eq!(rig.step(), 1);

    damage(&rig, bad.position.plus(90));
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["b", "bad"]);
    assert_eq!(rig.number("delayParked", Some(1)), 0.0);
}

#[test]
fn restored_records_that_damage_swallowed_are_restored_again() {
    let rig = Rig::new("1s");
    for body in ["a", "b", "c", "d"] {
        rig.send("orders", 1, body);
    }
    rig.advance(1_000);
    rig.step();
    let second = rig.records("orders", 0)[1].view().physical_offset();
    // The whole log is read again, and the second restored record cannot be.
    damage(&rig, second.plus(88));
    rig.lose_files();

    let rig = rig.kill();
    assert_eq!(rig.number("delayPending", Some(1)), 1.0);
    assert_eq!(rig.number("delaySkipped", None), 1.0);
    rig.run_dry();

    let bodies: Vec<String> = rig
        .store
        .queue_entries("orders", QueueId(0), QueueOffset(0), 100)
        .iter()
        .filter_map(|entry| rig.store.record_at(entry.position))
        .filter(|record| record.view().topic() == "orders")
        .map(|record| String::from_utf8(record.body().to_vec()).unwrap())
        .collect();
    assert_eq!(bodies, ["a", "c", "d", "b"]);
}

#[test]
fn nobody_waits_for_a_message_whose_times_are_damaged_and_it_is_not_early() {
    // Its store time in the eight bytes at 56, its deliver time in the six at 78. With a level that is on time for years, those behind it waited.
    for at in (56..62).chain(78..82) {
        for is_killed in [false, true] {
            let rig = Rig::new("1h 1s");
            let sent = ["a", "bad", "c"].map(|body| rig.send("orders", 2, body).position);
            damage(&rig, sent[1].plus(at));
            let what = format!("byte {at}, killed: {is_killed}");
            let rig = if is_killed {
                rig.lose_files();
                rig.kill()
            } else {
                rig
            };
            rig.step();
            rig.advance(999);
            assert_eq!(rig.step(), 0, "{what}");
            rig.advance(1);

            rig.step();

            let mut bodies = rig.bodies("orders", 0);
            bodies.retain(|body| body != "bad");
            assert_eq!(bodies, ["a", "c"], "{what}");
            rig.advance(1_000);
            rig.step();
            assert!(rig.bodies("orders", 0).contains(&"bad".to_owned()), "{what}");
        }
    }
}

#[test]
fn a_message_whose_generation_or_level_was_damaged_after_its_delivery_is_not_delivered_again() {
    // No checksum covers them: the level of the waiting record is its queue, in the four bytes at 12, and the generation is in the two at 76, in both
    // records.
    for (is_restored, at) in [(false, 12), (false, 14), (false, 15), (false, 76), (false, 77), (true, 76), (true, 77)] {
        let rig = Rig::new("1s");
        let waiting = ["a", "b", "c"].map(|body| rig.send("orders", 1, body).position);
        rig.advance(1_000);
        rig.step();
        let restored = rig.records("orders", 0)[1].view().physical_offset();
        damage(&rig, if is_restored { restored } else { waiting[1] }.plus(at));
        rig.lose_files();

        let rig = rig.kill();
        rig.run_dry();

        assert_eq!(rig.bodies("orders", 0), ["a", "b", "c"], "of the restored record: {is_restored}, at {at}");
        assert!(rig.store.queues().iter().all(|(topic, ..)| **topic != *PARKING_TOPIC), "at {at}");
        assert_eq!(rig.number("delayPending", Some(1)), 0.0);
    }
}

#[test]
fn a_spoofed_origin_does_not_count() {
    let rig = Rig::new("1s 1h");
    let waiting = rig.send("orders", 2, "waits");
    let mut spoofed = draft("orders", 0, "spoofed");
    spoofed.prepared_offset = stamp::Stamp::origin(stamp::Generation(1), waiting.end).to_field();
    spoofed.properties.set("DELAY", "-2");
    spoofed.properties.set("REAL_TOPIC", "orders");
    spoofed.properties.set("REAL_QID", "0");

    rig.try_send(spoofed).unwrap();
    rig.dispatch();

    assert_eq!(rig.number("delayPending", Some(2)), 1.0);
}

#[test]
fn schedule_41_the_scheduler_waits_for_dispatch_instead_of_running_ahead() {
    let rig = Rig::with("1s", |options| {
        options.segment_bytes = 64 << 20;
        options.body_bytes_max = 8 << 20;
    });
    let body = "x".repeat(7 << 20);
    for _ in 0..12 {
        rig.send("orders", 1, &body);
    }
    rig.advance(1_000);

    let mut restored = 0;
    while rig.scheduler.next_deadline().is_some() {
        let tick = rig.scheduler.tick(rig.store.now());
        restored += tick.restored;
        if tick.restored == 0 {
            break;
        }
    }

    assert!((9..12).contains(&restored), "{restored}");
    rig.dispatch();
    rig.run_dry();
    assert_eq!(rig.entries("orders", 0).len(), 12);
}

#[test]
fn a_damaged_queue_entry_of_a_waiting_message_is_built_again_and_its_message_delivered_in_order() {
    for wrong in [[0; 20], [0xA5; 20]] {
        let rig = Rig::new("1s");
        for name in ["a", "b", "c", "d", "e"] {
            rig.send("orders", 1, name);
        }
        let queue = rig.directory.open(Path::new("consumequeue/SCHEDULE_TOPIC_XXXX/0/00000000000000000000")).unwrap();
        for at in [0, 2, 4] {
            queue.write_at(at * 20, &wrong).unwrap();
        }
        rig.advance(999);
        assert_eq!(rig.step(), 0);
        rig.advance(1);

        rig.step();

        assert_eq!(rig.bodies("orders", 0), ["a", "b", "c", "d", "e"]);
        assert_eq!(rig.number("delayParked", Some(1)), 0.0);
        assert_eq!(rig.number("delayPending", Some(1)), 0.0);
    }
}

/// Does what falls due for so long, as the driver would.
fn run_for(rig: &Rig, ms: u64) {
    let end = rig.store.now().plus(Duration::from_millis(ms));
    loop {
        rig.step();
        let next = rig.scheduler.next_deadline().filter(|next| *next <= end);
        rig.clock.advance(next.unwrap_or(end).since(rig.store.now()));
        if next.is_none() {
            return;
        }
    }
}

#[test]
fn a_read_error_that_passes_within_the_patience_changes_no_order() {
    for folder in ["commitlog", "consumequeue"] {
        for after in 0..4 {
            let rig = Rig::new("1s");
            for body in ["a", "b", "c", "d"] {
                rig.send("orders", 1, body);
            }
            rig.advance(1_000);
            rig.directory.fail_under(Path::new(folder), Operation::Read, after, ErrorKind::Other, u64::MAX);
            run_for(&rig, 9_999);
            rig.directory.heal();
            rig.send("orders", 1, "e");

            rig.run_dry();

            assert_eq!(rig.bodies("orders", 0), ["a", "b", "c", "d", "e"], "{folder} fails after {after} reads");
            assert_eq!(rig.number("delayParked", Some(1)), 0.0);
        }
    }
}

/// Fills the newest segment and begins the next; gives the path of the one that is full.
fn next_segment(rig: &Rig) -> String {
    let bytes = rig.options.segment_bytes;
    let base = rig.store.log_range().1.0 / bytes * bytes;
    let filler = "x".repeat(30_000);
    while rig.send("fillers", 0, &filler).position.0 < base + bytes {}
    format!("commitlog/{base:020}")
}

fn make_unreadable(rig: &Rig, path: &str) {
    rig.directory.fail_under(Path::new(path), Operation::Read, 0, ErrorKind::Other, u64::MAX);
}

/// Messages `bad` and `bad too` in the first segment, `c` in the second, all of level 1; then the first segment cannot be read.
fn first_segment_unreadable() -> Rig {
    let rig = Rig::new("1s 2s");
    rig.send("orders", 1, "bad");
    rig.send("orders", 1, "bad too");
    let path = next_segment(&rig);
    rig.send("orders", 1, "c");
    rig.send("bills", 2, "other level");
    make_unreadable(&rig, &path);
    rig
}

#[test]
fn behind_a_message_that_cannot_be_read_its_level_waits_for_the_patience_and_no_longer_and_other_levels_do_not() {
    let rig = first_segment_unreadable();
    let read = |topic| rig.entries(topic, 0).len();

    run_for(&rig, 2_001);
    assert_eq!((read("orders"), read("bills")), (0, 1));
    run_for(&rig, 8_998);
    assert_eq!(read("orders"), 0, "the last moment of the patience");
    run_for(&rig, 1);
    assert_eq!(rig.bodies("orders", 0), ["c"], "two unreadable messages hold it up but once");
    run_for(&rig, 60_000);
    rig.directory.heal();
    rig.run_dry();

    let mut all = rig.bodies("orders", 0);
    all[1..].sort();
    assert_eq!(all, ["c", "bad", "bad too"]);
    assert_eq!(rig.number("delayParked", Some(1)), 0.0);
}

#[test]
fn after_a_read_error_has_passed_a_level_has_patience_again() {
    let rig = first_segment_unreadable();
    run_for(&rig, 12_000);
    rig.directory.heal();
    rig.run_dry();
    rig.send("orders", 1, "e");
    let path = next_segment(&rig);
    rig.send("orders", 1, "f");
    make_unreadable(&rig, &path);
    run_for(&rig, 2_000);
    rig.directory.heal();

    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0)[3..], ["e", "f"]);
}

#[test]
fn a_damaged_message_that_waits_aside_takes_no_patience_from_its_level() {
    let rig = Rig::new("1s");
    let bad = rig.send("orders", 1, "bad");
    rig.send("orders", 1, "a");
    damage(&rig, bad.position.plus(90));
    run_for(&rig, 1_000);
    assert_eq!(rig.bodies("orders", 0), ["a"]);
    rig.send("orders", 1, "b");
    let path = next_segment(&rig);
    rig.send("orders", 1, "c");
    make_unreadable(&rig, &path);
    // The damaged one is tried meanwhile, and cannot be read either.
    run_for(&rig, 1_000);
    rig.directory.heal();

    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["a", "b", "c"]);
}

#[test]
fn an_append_that_failed_for_long_takes_no_patience_from_a_read_error_behind_it() {
    let rig = Rig::new("1s");
    rig.send("orders", 1, "a");
    let path = next_segment(&rig);
    rig.send("orders", 1, "b");
    rig.advance(1_000);
    rig.directory.fail_under(Path::new(""), Operation::Write, 0, ErrorKind::StorageFull, u64::MAX);
    run_for(&rig, 60_000);
    rig.directory.heal();
    make_unreadable(&rig, &path);
    let next = rig.scheduler.next_deadline().unwrap().since(rig.store.now());
    run_for(&rig, u64::try_from(next.as_millis()).unwrap() + 1_000);
    rig.directory.heal();

    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["a", "b"]);
}

#[test]
fn what_waits_in_a_page_that_could_not_be_read_by_a_start_is_delivered_once_it_can_be() {
    let rig = Rig::new("1h");
    rig.send("orders", 1, "before");
    let hidden = rig.send("orders", 1, &"h".repeat(9_000));
    let path = next_segment(&rig);
    rig.send("orders", 1, "behind");
    rig.store.checkpoint_once().unwrap();
    let base: u64 = path.rsplit('/').next().unwrap().parse().unwrap();
    let page = hidden.position.0 + 4096 - base..hidden.position.0 + 4097 - base;
    rig.directory.make_unreadable(Path::new(&path), page.clone()).unwrap();
    for checkpoint in ["latermq.checkpoint", "latermq.checkpoint.bak"] {
        rig.directory.remove(Path::new(checkpoint)).unwrap();
    }
    let rig = rig.kill();
    rig.store.checkpoint_once().unwrap();

    rig.directory.make_readable(Path::new(&path), page).unwrap();
    let rig = rig.kill();
    rig.advance(3_600_000);
    rig.run_dry();

    let mut sizes: Vec<_> = rig.bodies("orders", 0).iter().map(String::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [6, 6, 9_000]);
}

/// Only whole segments that were missing counted: what was restored into the part that was cut was never delivered.
#[test]
fn what_was_restored_into_a_part_of_an_old_segment_that_was_cut_is_restored_again() {
    let rig = Rig::new("1s");
    rig.send("orders", 1, "kept");
    next_segment(&rig);
    rig.run_dry();
    rig.send("orders", 1, "twice");
    next_segment(&rig);
    rig.advance(1_000);
    let cut_at = rig.store.log_range().1.0;
    rig.run_dry();
    let path = next_segment(&rig);
    let base: u64 = path.rsplit('/').next().unwrap().parse().unwrap();
    rig.store.checkpoint_once().unwrap();
    let file = rig.directory.open(Path::new(&path)).unwrap();
    file.set_bytes(cut_at - base, crate::env::Allocation::Sparse).unwrap();

    let rig = rig.kill();
    rig.run_dry();

    assert_eq!(rig.number("delayRestored", Some(1)), 1.0);
    assert_eq!(rig.bodies("orders", 0).last().unwrap(), "twice");
    let rig = rig.kill();
    rig.run_dry();
    assert_eq!(rig.number("delayRestored", Some(1)), 0.0, "once is enough");
}
