//! Any list of operations against a model that fits on a page: each acknowledged message is delivered once, on time, in order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    /// Send so many messages at a level.
    Send(i32, u8),
    /// Let time pass, and do what is to be done.
    Advance(u16),
    /// Let time pass while the broker does nothing.
    Pass(u16),
    /// Restore one batch without dispatching it.
    Tick,
    Dispatch,
    Checkpoint,
    Sync,
    /// What was not synced may be lost, as the seed decides.
    PowerCut(u64),
    WallClock(i32),
    Kill,
    /// A clean stop, and a start with another table.
    Restart(usize),
    /// A kill after which only the commit log is left.
    LoseFiles,
}

const TABLES: [&str; 4] = ["1s 2s 5s", "2s 2s 5s", "1s", "5s 1s 1s 1s"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..5i32, 1..4u8).prop_map(|(level, count)| Step::Send(level, count)),
        4 => (0..3000u16).prop_map(Step::Advance),
        2 => (0..8000u16).prop_map(Step::Pass),
        3 => Just(Step::Tick),
        2 => Just(Step::Dispatch),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Sync),
        2 => any::<u64>().prop_map(Step::PowerCut),
        1 => (-10_000..20_000i32).prop_map(Step::WallClock),
        2 => Just(Step::Kill),
        2 => (0..TABLES.len()).prop_map(Step::Restart),
        1 => Just(Step::LoseFiles),
    ];
    prop::collection::vec(step, 1..40)
}

/// What was promised: for each message its level, which of the level's tables it was stored under, and when it is due by the time that passes.
type Promised = BTreeMap<usize, (u32, usize, u64)>;

fn number(record: &Record) -> usize {
    String::from_utf8(record.body().to_vec()).unwrap().parse().unwrap()
}

fn numbers(rig: &Rig, topic: &str, queue_id: u32) -> Vec<usize> {
    rig.records(topic, queue_id).iter().map(number).collect()
}

fn check(rig: &Rig, promised: &Promised) {
    let mut seen: Vec<usize> = Vec::new();
    let mut last = BTreeMap::new();
    for record in rig.records("orders", 0) {
        let number = number(&record);
        assert!(!seen.contains(&number), "message {number} was delivered twice");
        let (level, table, _) = promised[&number];
        // Messages of a level keep their order as long as its duration stays.
        if let Some(before) = last.insert((level, table), number) {
            assert!(before < number, "message {number} was overtaken by {before}");
        }
        seen.push(number);
    }
}

/// What was delivered until now was due.
fn check_due(rig: &Rig, promised: &Promised, seen: &mut usize, elapsed: u64) {
    let delivered = numbers(rig, "orders", 0);
    for number in delivered.get(*seen..).unwrap_or_default() {
        assert!(promised[number].2 <= elapsed, "message {number} is early: {elapsed} {:?}", promised[number]);
    }
    *seen = delivered.len();
}

fn run(steps: Vec<Step>) {
    let mut rig = Rig::new(TABLES[0]);
    let mut promised = Promised::new();
    let mut sent = 0;
    let mut seen = 0;
    // What has passed, in milliseconds; a reboot after a step of the wall clock is taken for time.
    let mut elapsed = 0;
    let mut tables = 0;
    let mut synced = BTreeSet::new();
    for step in steps {
        match step {
            Step::Send(level, count) => {
                for _ in 0..count {
                    let number = sent;
                    sent += 1;
                    let table: LevelTable = rig.levels.parse().unwrap();
                    let appended = rig.try_send(draft("orders", level, &number.to_string())).unwrap();
                    let level = table.clamp(level).unwrap();
                    let delay = table.deliver_at(level, appended.stored_at).since(appended.stored_at);
                    promised.insert(number, (level.number(), tables, elapsed + delay.as_millis() as u64));
                }
            }
            Step::Advance(ms) => {
                rig.advance(ms.into());
                elapsed += u64::from(ms);
                rig.step();
            }
            Step::Pass(ms) => {
                rig.advance(ms.into());
                elapsed += u64::from(ms);
            }
            Step::Tick => {
                rig.scheduler.tick(rig.store.now());
            }
            Step::Dispatch => rig.dispatch(),
            Step::Checkpoint => rig.store.checkpoint_once().unwrap(),
            Step::Sync => {
                rig.store.sync_once().unwrap();
                synced.extend(promised.keys().copied());
            }
            Step::PowerCut(seed) => {
                let before = rig.store.now();
                rig = rig.crash(seed);
                elapsed += rig.store.now().since(before).as_millis() as u64;
                seen = seen.min(rig.entries("orders", 0).len());
                let waiting: BTreeSet<usize> =
                    (0..5).flat_map(|queue_id| numbers(&rig, SCHEDULE_TOPIC, queue_id)).collect();
                assert!(synced.is_subset(&waiting), "what was synced is there");
                promised.retain(|number, _| waiting.contains(number));
            }
            Step::WallClock(ms) => {
                rig.clock.step_wall(ms.into());
                rig.store.follow_clock().unwrap();
            }
            Step::Kill => rig = rig.kill(),
            Step::Restart(table) => {
                rig = rig.restart_with_levels(TABLES[table]);
                tables += 1;
            }
            Step::LoseFiles => {
                rig.lose_files();
                let kept = rig.number("clockJumpsKept", None);
                let before = rig.store.now();
                rig = rig.kill();
                // Nothing says any more what of the time that seems to have passed was a jump.
                elapsed += rig.store.now().since(before).as_millis() as u64;
                if kept > 0.0 {
                    elapsed += 40 * 20_000;
                }
            }
        }
        let is_kept = rig.number("delaySkipped", None) == 0.0;
        assert!(is_kept, "nothing is ever restored twice without damage");
        check_due(&rig, &promised, &mut seen, elapsed);
    }
    rig.run_dry();
    check(&rig, &promised);
    assert_eq!(rig.entries("orders", 0).len(), promised.len(), "each message is delivered");
}

proptest! {
    #[test]
    fn every_message_is_delivered_once_on_time_and_in_order(steps in steps()) {
        run(steps);
    }
}
