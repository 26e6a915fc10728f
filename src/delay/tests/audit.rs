//! What an audit says of delayed messages where it is not what their records say.

use super::*;
use crate::store::{ClockJumps, Grade, StateFile, StoreAudit, audit};

const HOUR_MS: i64 = 3_600_000;

/// Audits what the end of the process leaves now.
pub(super) fn check(
    directory: &MemoryDirectory,
    clock: &TestClock,
    options: &StoreOptions,
    levels: &str,
) -> (StoreAudit, DelaySummary) {
    let left: Arc<dyn Directory> = Arc::new(directory.kill());
    let env = Env { clock: Arc::new(clock.clone()), directory: left.clone(), fatal: Arc::new(|_| {}) };
    let file = StateFile::new(left.clone(), Path::new("config").join(LevelAudit::FILE));
    let mut levels = LevelAudit::new(levels.parse().unwrap(), &file, ClockJumps::load(&left));
    let mut store = audit(options, &env, &mut levels, &mut |_, _| ()).unwrap();
    let delay = levels.finish(&mut store, clock.wall());
    (store, delay)
}

fn check_rig(rig: &Rig) -> (Vec<String>, DelaySummary) {
    let (store, delay) = check(&rig.directory, &rig.clock, &rig.options, &rig.levels);
    let damage = store.findings.list.iter().filter(|finding| finding.grade == Grade::Damage);
    (damage.map(|finding| finding.text.clone()).collect(), delay)
}

#[test]
fn what_was_stored_before_a_step_of_the_clock_is_due_later_by_it_and_apache_would_be_early() {
    let rig = Rig::new("10s 2h");
    rig.send("orders", 1, "before");
    rig.advance(4_000);
    rig.clock.step_wall(HOUR_MS);
    rig.store.follow_clock().unwrap();
    rig.send("orders", 1, "behind");

    let (damage, delay) = check_rig(&rig);

    assert_eq!(damage, [""; 0]);
    assert_eq!(delay.levels[0].next_deliver_at, Some(START.0 + HOUR_MS + 10_000));
    let early = "deliver 1 messages of level 1 up to 60 min early: the clock was set forward after they were stored";
    assert_eq!(delay.apache, [early]);
    rig.advance(6_000);
    assert_eq!(rig.step(), 1);
    rig.store.checkpoint_once().unwrap();
    let (damage, delay) = check_rig(&rig);
    assert_eq!(damage, [""; 0]);
    assert_eq!(delay.levels[0].next_deliver_at, Some(START.0 + HOUR_MS + 14_000));
    assert_eq!(delay.apache, [""; 0]);
}

#[test]
fn what_was_restored_before_a_step_of_the_clock_was_not_early() {
    let rig = Rig::new("10s 2h");
    rig.send("orders", 2, "waits");
    rig.send("orders", 1, "a");
    rig.advance(10_000);
    assert_eq!(rig.step(), 1);
    rig.advance(1);
    rig.clock.step_wall(HOUR_MS);
    rig.store.follow_clock().unwrap();

    let (damage, _) = check_rig(&rig);

    assert_eq!(damage, [""; 0]);
}

#[test]
fn what_was_parked_since_it_could_not_be_read_was_not_restored_twice() {
    let rig = Rig::new("1s");
    rig.send("orders", 1, "a");
    let damaged = rig.send("orders", 1, "a body");
    rig.send("orders", 1, "c");
    faults::damage(&rig, damaged.position.plus(90));
    rig.advance(1_000);
    rig.run_dry();
    rig.store.checkpoint_once().unwrap();

    let (store, delay) = check(&rig.directory, &rig.clock, &rig.options, &rig.levels);

    let texts: Vec<&str> = store.findings.list.iter().map(|finding| finding.text.as_str()).collect();
    assert_eq!(delay.parked.values().sum::<u64>(), 1, "{texts:?}");
    assert!(!texts.iter().any(|text| text.contains("twice")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("hold no sound record")), "{texts:?}");
}

#[cfg(debug_assertions)]
#[test]
fn a_message_that_was_early_by_a_step_of_the_clock_is_damage() {
    let rig = Rig::new("2h");
    rig.send("orders", 1, "before");
    rig.advance(4_000);
    rig.clock.step_wall(2 * HOUR_MS);
    rig.store.follow_clock().unwrap();
    rig.advance(1);
    let restored = crate::mutation::Mutation::ClockJumpsForgotten.during(|| rig.step());

    let (damage, _) = check_rig(&rig);

    assert_eq!(restored, 1);
    assert_eq!(damage, ["delay level 1, offset 0: was restored 7195999 ms before it was due"]);
}
