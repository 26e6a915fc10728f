//! Steps of the wall clock: nobody is early, and nobody late, by the time that passes.

use std::{sync::atomic::AtomicI64, time::Instant};

use super::*;
use crate::{
    env::{BootId, Operation, SystemClock},
    store::{JUMPS_MAX, LARGE_JUMP_LASTS},
};

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
const CHECKPOINT: &str = "latermq.checkpoint";

fn followed(rig: &Rig) -> Option<i64> {
    rig.store.follow_clock().unwrap().map(|by| by.as_millis().try_into().unwrap())
}

/// Waiting messages are due in so many milliseconds, and not one earlier.
fn assert_due_in(rig: &Rig, ms: u64, count: usize, what: &str) {
    rig.advance(ms - 1);
    assert_eq!(rig.step(), 0, "early: {what}");
    rig.advance(1);
    assert_eq!(rig.step(), count, "late: {what}");
}

#[test]
fn a_forward_step_of_the_wall_clock_makes_nobody_early_and_nobody_late() {
    for follows in [false, true] {
        let rig = Rig::new("10s");
        rig.send("orders", 1, "before");
        rig.advance(4_000);
        rig.clock.step_wall(HOUR_MS);
        assert_eq!(rig.step(), 0);
        if follows {
            assert_eq!(followed(&rig), Some(HOUR_MS));
            assert_eq!(rig.number("storeTimeAheadOfWallMs", None), 0.0);
            assert_eq!(rig.number("clockJumps", None), 1.0);
        }
        rig.send("orders", 1, "behind");

        assert_due_in(&rig, 6_000, 1, "what was stored before the step");
        assert_due_in(&rig, 4_000, 1, "what was stored behind the step");
        assert_eq!(rig.bodies("orders", 0), ["before", "behind"]);
    }
}

#[test]
fn a_wall_clock_that_begins_in_1970_and_is_set_makes_nobody_early_and_nobody_late() {
    let rig = Rig::open(
        TestClock::new(Timestamp(5_000)),
        MemoryDirectory::new(),
        Rig::new("1s").options,
        "10s 1h",
        Arc::default(),
    );
    rig.send("orders", 2, "before");
    rig.advance(1_000);
    rig.clock.step_wall(START.0);
    rig.send("orders", 2, "unnoticed");
    assert_eq!(followed(&rig), None);
    rig.advance(LARGE_JUMP_LASTS.as_millis() as u64);
    assert_eq!(followed(&rig), Some(START.0));
    rig.send("orders", 1, "behind");

    assert_due_in(&rig, 10_000, 1, "what was stored behind the step");
    assert_due_in(&rig, 3_600_000 - 71_000, 1, "what was stored before the step");
    assert_due_in(&rig, 1_000, 1, "what was stored before the step was followed");
}

#[test]
fn a_step_of_more_than_a_day_that_is_put_right_within_a_minute_is_ignored() {
    let rig = Rig::new("10s");
    rig.send("orders", 1, "a");
    rig.clock.step_wall(2 * DAY_MS);
    assert_eq!(followed(&rig), None);
    rig.advance(9_999);
    assert_eq!(followed(&rig), None);
    assert_eq!(rig.step(), 0);
    rig.clock.step_wall(-2 * DAY_MS);
    assert_eq!(followed(&rig), None);

    assert_due_in(&rig, 1, 1, "what waited meanwhile");
    assert_eq!(rig.number("clockJumps", None), 0.0);
}

#[test]
fn a_step_back_and_forth_makes_nobody_early_and_nobody_late() {
    let rig = Rig::new("10s");
    rig.send("orders", 1, "before");
    rig.clock.step_wall(-HOUR_MS);
    for _ in 0..2 {
        assert_eq!(followed(&rig), None);
        assert_eq!(rig.number("clockStepsBack", None), 1.0);
    }
    rig.advance(1_000);
    rig.send("orders", 1, "meanwhile");
    rig.clock.step_wall(HOUR_MS);
    assert_eq!(followed(&rig), None);

    assert_due_in(&rig, 9_000, 1, "before");
    assert_due_in(&rig, 1_000, 1, "meanwhile");
}

#[test]
fn a_jump_whose_recording_ends_at_any_step_makes_nobody_early_and_nobody_late() {
    let mut step = 0;
    let mut is_done = false;
    while !is_done {
        step += 1;
        for power_loss in [None, Some(1), Some(2), Some(3)] {
            let rig = Rig::new("10s");
            rig.send("orders", 1, "before");
            rig.store.sync_once().unwrap();
            rig.advance(4_000);
            rig.clock.step_wall(HOUR_MS);
            rig.directory.crash_at(rig.directory.steps() + step);
            let followed = rig.store.follow_clock();
            is_done = !rig.directory.has_stopped();
            let what = format!("step {step}, power loss {power_loss:?}, {followed:?}");

            let rig = match power_loss {
                None => rig.kill(),
                // What was not followed when the power went cannot be told from time that passed.
                Some(_) if !matches!(followed, Ok(Some(_))) => continue,
                Some(seed) => rig.crash(seed),
            };
            rig.store.follow_clock().unwrap();
            rig.send("orders", 1, "behind");
            assert_eq!(rig.number("storeTimeAheadOfWallMs", None), 0.0, "{what}");
            assert_due_in(&rig, 6_000, 1, &what);
            assert_due_in(&rig, 4_000, 1, &what);
        }
    }
    assert!(step > 6, "a jump is recorded in {step} steps");
}

#[test]
fn a_failing_disk_at_the_jump_makes_nobody_early_and_nobody_late() {
    for operation in [Operation::Write, Operation::Sync, Operation::Rename, Operation::Read] {
        for (after, times) in (0..6).flat_map(|after| [(after, 1), (after, 2), (after, 1_000)]) {
            let what = format!("{operation:?} fails {times} times after {after}");
            let rig = Rig::new("10s");
            rig.send("orders", 1, "before");
            rig.store.sync_once().unwrap();
            rig.advance(4_000);
            rig.clock.step_wall(2_500);
            rig.directory.fail_under(Path::new(""), operation, after, ErrorKind::Other, times);
            let first = rig.store.follow_clock();
            rig.directory.heal();
            // Behind the threshold of the jump, whether it was followed or not.
            rig.advance(3_000);
            if rig.try_send(draft("orders", 1, "meanwhile")).is_err() {
                assert!(times > 1, "the broker stopped: {what}");
                let rig = rig.kill();
                assert_due_in(&rig, 3_000, 1, &what);
                continue;
            }
            let rig = rig.kill();
            assert_eq!(rig.step(), 0, "early: {what}");
            if first.is_err() {
                assert_eq!(followed(&rig), Some(2_500), "{what}");
            }
            assert_eq!(rig.number("storeTimeAheadOfWallMs", None), 0.0, "{what}");

            assert_due_in(&rig, 3_000, 1, &what);
            assert_due_in(&rig, 7_000, 1, &what);
        }
    }
}

#[test]
fn a_full_disk_puts_off_a_jump_and_stops_nothing() {
    let rig = Rig::new("10s");
    rig.send("orders", 1, "a");
    rig.clock.step_wall(HOUR_MS);
    rig.directory.fail_under(Path::new(""), Operation::Write, 0, ErrorKind::StorageFull, 1_000);

    assert!(rig.store.follow_clock().is_err());
    assert_eq!(rig.number("storeTimeAheadOfWallMs", None), -HOUR_MS as f64);
    rig.directory.heal();
    rig.send("orders", 1, "b");
    assert_eq!(followed(&rig), Some(HOUR_MS));

    assert_due_in(&rig, 10_000, 2, "both");
}

#[test]
fn a_restart_in_the_same_boot_is_no_time_whatever_became_of_the_wall_clock_meanwhile() {
    for step in [HOUR_MS, -HOUR_MS, 3 * DAY_MS] {
        for is_clean in [true, false] {
            let rig = Rig::new("10s");
            rig.send("orders", 1, "a");
            rig.advance(4_000);
            rig.store.sync_once().unwrap();
            if is_clean {
                rig.store.stop().unwrap();
            }
            rig.clock.step_wall(step);
            rig.clock.advance(Duration::from_secs(2));
            let rig = rig.kill();
            rig.store.follow_clock().unwrap();

            assert_due_in(&rig, 4_000, 1, &format!("step {step}, clean {is_clean}"));
        }
    }
}

#[test]
fn after_a_reboot_the_wall_clock_says_how_long_it_took() {
    let rig = Rig::new("1h");
    rig.send("orders", 1, "a");
    rig.clock.step_wall(HOUR_MS);
    assert_eq!(followed(&rig), Some(HOUR_MS));
    rig.send("orders", 1, "b");
    rig.store.sync_once().unwrap();
    rig.advance(600_000);

    let rig = rig.crash(1);
    rig.advance(1_000);
    assert_eq!(followed(&rig), None);
    let rig = rig.kill();

    assert_due_in(&rig, 3_600_000 - 601_000, 2, "both");
}

#[test]
fn more_jumps_than_are_kept_make_nobody_early() {
    let rig = Rig::new("1h");
    let mut sent = Vec::new();
    let mut elapsed = 0;
    for number in 0..2 * JUMPS_MAX as u64 {
        sent.push(elapsed);
        rig.send("orders", 1, &number.to_string());
        rig.clock.step_wall(1_500 + number as i64);
        assert!(followed(&rig).is_some());
        rig.advance(100);
        elapsed += 100;
    }
    assert_eq!(rig.number("clockJumpsKept", None), JUMPS_MAX as f64);
    rig.store.checkpoint_once().unwrap();
    let rig = rig.kill();

    rig.advance(3_600_000 - elapsed - 1);
    assert_eq!(rig.step(), 0);
    let mut arrived = 0;
    let mut at = 3_600_000 - 1;
    let late_max = 2 * JUMPS_MAX as u64 * 2_000;
    while arrived < sent.len() {
        rig.advance(100);
        at += 100;
        arrived += rig.step();
        let due = sent.iter().filter(|sent| **sent + 3_600_000 <= at).count();
        assert!(arrived <= due, "early");
        assert!(at < 3_600_000 + elapsed + late_max, "lost");
    }
}

#[test]
fn jumps_are_kept_as_long_as_something_waits_that_was_stored_before() {
    let rig = Rig::new("10s 1h");
    rig.send("orders", 1, "a");
    rig.clock.step_wall(HOUR_MS);
    followed(&rig);
    rig.send("orders", 2, "b");
    rig.store.checkpoint_once().unwrap();
    let rig = rig.kill();
    assert_eq!(rig.number("clockJumpsKept", None), 1.0);

    assert_due_in(&rig, 10_000, 1, "a");
    rig.store.checkpoint_once().unwrap();

    assert_eq!(rig.number("clockJumpsKept", None), 0.0);
    let rig = rig.kill();
    assert_due_in(&rig, 3_590_000, 1, "b");
}

#[test]
fn the_clock_outlasts_the_loss_of_a_checkpoint_and_one_that_is_not_believed() {
    type Damage = fn(&Rig);
    let damages: [(&str, Damage); 4] = [
        ("the checkpoint is damaged", |rig| rig.directory.write(Path::new(CHECKPOINT), b"{").unwrap()),
        ("the checkpoint is missing", |rig| rig.directory.remove(Path::new(CHECKPOINT)).unwrap()),
        ("RocketMQ's checkpoint changed", |rig| rig.directory.write(Path::new("checkpoint"), &[1; 4096]).unwrap()),
        ("all else is missing", |rig| {
            for entry in rig.directory.list(Path::new("")).unwrap() {
                if entry.name != "commitlog" && !entry.name.starts_with(CHECKPOINT) {
                    rig.directory.remove(Path::new(&entry.name)).unwrap();
                }
            }
        }),
    ];
    for (what, damage) in damages {
        let rig = Rig::new("10s");
        rig.send("orders", 1, "before");
        rig.advance(4_000);
        rig.clock.step_wall(HOUR_MS);
        followed(&rig);
        rig.send("orders", 1, "behind");
        rig.store.sync_once().unwrap();
        damage(&rig);

        let rig = rig.kill();

        assert_due_in(&rig, 6_000, 1, what);
        assert_due_in(&rig, 4_000, 1, what);
    }
}

#[test]
fn a_checkpoint_from_before_the_jump_makes_nobody_early() {
    let rig = Rig::new("10s");
    rig.send("orders", 1, "before");
    rig.store.checkpoint_once().unwrap();
    let old = rig.directory.read(Path::new(CHECKPOINT)).unwrap().unwrap();
    rig.advance(4_000);
    rig.clock.step_wall(HOUR_MS);
    followed(&rig);
    rig.send("orders", 1, "behind");
    rig.store.sync_once().unwrap();
    rig.directory.write(Path::new(CHECKPOINT), &old).unwrap();

    let rig = rig.kill();

    assert_due_in(&rig, 6_000, 1, "before");
    rig.advance(3_999);
    assert_eq!(rig.step(), 0);
}

#[test]
fn a_jump_does_not_shorten_the_time_until_an_unreadable_message_is_parked() {
    let rig = Rig::new("1s");
    let bad = rig.send("orders", 1, "bad");
    let segment = rig.directory.open(Path::new("commitlog/00000000000000000000")).unwrap();
    segment.write_at(bad.position.0 + 90, &[0xff]).unwrap();
    rig.advance(1_000);
    rig.step();
    rig.clock.step_wall(HOUR_MS);
    followed(&rig);

    rig.clock.advance(rig.park_after - Duration::from_secs(1));
    rig.step();
    assert_eq!(rig.number("delayParked", Some(1)), 0.0);
    rig.advance(12_000);
    rig.step();
    assert_eq!(rig.number("delayParked", Some(1)), 1.0);
}

/// The machine's clocks, with a wall clock that can be set.
struct SetClock(SystemClock, AtomicI64);

impl Clock for SetClock {
    fn wall(&self) -> Timestamp {
        Timestamp(self.0.wall().0 + self.1.load(std::sync::atomic::Ordering::SeqCst))
    }

    fn since_boot(&self) -> Duration {
        self.0.since_boot()
    }

    fn boot_id(&self) -> BootId {
        self.0.boot_id()
    }
}

#[test]
fn the_thread_does_not_oversleep_what_is_stored_behind_a_jump() {
    let clock = Arc::new(SetClock(SystemClock::new(), AtomicI64::new(0)));
    let env = Env {
        clock: clock.clone(),
        directory: Arc::new(MemoryDirectory::new()),
        fatal: Arc::new(|reason| panic!("{reason}")),
    };
    let options = DelayOptions { levels: "1s 30m".parse().unwrap(), ..DelayOptions::default() };
    let scheduler = Arc::new(LevelScheduler::new(options, Arc::<Topics>::default()));
    let store = MessageStore::open(Rig::new("1s").options, env, vec![scheduler]).unwrap();
    store.start().unwrap();
    store.append(draft("orders", 2, "a")).unwrap();
    while store.dispatch_behind_bytes() > 0 {
        std::thread::yield_now();
    }
    // The thread sleeps now, or soon, until half an hour from now.
    std::thread::sleep(Duration::from_millis(20));
    clock.1.store(HOUR_MS, std::sync::atomic::Ordering::SeqCst);
    while store.now() < clock.wall() {
        // The upkeep thread may be faster.
        store.follow_clock().unwrap();
    }
    let sent_at = Instant::now();
    store.append(draft("orders", 1, "b")).unwrap();

    while store.queue_range("orders", QueueId(0)).is_none_or(|range| range.max.0 == 0) {
        assert!(sent_at.elapsed() < Duration::from_secs(20), "the thread sleeps on");
        std::thread::sleep(Duration::from_millis(1));
    }

    assert!(sent_at.elapsed() >= Duration::from_secs(1));
    store.stop().unwrap();
}

#[cfg(debug_assertions)]
#[test]
fn without_the_jumps_somebody_would_be_early() {
    crate::mutation::Mutation::ClockJumpsForgotten.during(|| {
        let rig = Rig::new("10s");
        rig.send("orders", 1, "a");
        rig.clock.step_wall(HOUR_MS);
        followed(&rig);
        assert_eq!(rig.step(), 1);
    });
}

/// No checksum covers the store time of a record. If store time began at a damaged one, all that waits would be early.
#[test]
fn a_damaged_store_time_of_the_last_record_makes_nobody_early_and_nobody_late() {
    for by_ms in [60_000, 2 * HOUR_MS, DAY_MS + 1, 40 * DAY_MS, i64::MAX - START.0 - 5_000] {
        for loses_checkpoints in [true, false] {
            for reboots in [true, false] {
                let what = format!("by {by_ms} ms, checkpoints lost: {loses_checkpoints}, another boot: {reboots}");
                let rig = Rig::new("1h");
                rig.send("orders", 1, "a");
                rig.advance(1_000);
                rig.send("orders", 1, "b");
                rig.advance(1_000);
                let last = rig.send("orders", 0, "last");
                rig.store.sync_once().unwrap();
                let segment = rig.directory.open(Path::new("commitlog/00000000000000000000")).unwrap();
                segment.write_at(last.position.0 + 56, &(last.stored_at.0 + by_ms).to_be_bytes()).unwrap();
                segment.sync().unwrap();
                if loses_checkpoints {
                    rig.lose_files();
                }
                if reboots {
                    rig.clock.reboot();
                }

                let rig = rig.kill();

                assert_due_in(&rig, 3_598_000, 1, &what);
                assert_due_in(&rig, 1_000, 1, &what);
                rig.send("orders", 1, "c");
                assert_due_in(&rig, 3_600_000, 1, &what);
            }
        }
    }
}
