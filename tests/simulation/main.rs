//! The core of the broker under simulated faults: one thread, one seed that decides everything, an oracle at the end.
//!
//! Store, dispatch and level scheduler run on a clock that is moved by hand and on a directory in memory that loses what was not synced. A
//! workload drawn from the seed sends, ticks, moves and steps clocks, kills the process and cuts the power at any step; what became of each
//! message is compared with what was acknowledged.
//!
//! | file | what it is |
//! | --- | --- |
//! | `machine` | the simulated machine and the life of the process on it |
//! | `clients` | what clients ask of the broker's handlers |
//! | `faults` | what goes wrong |
//! | `ledger` | what was sent and acknowledged |
//! | `reader` | what readers saw, and what must hold at every moment |
//! | `oracle` | the judgement at the end |
//! | `workload` | what happens, drawn from the seed |
//! | `stories` | what was found, one test each |
//! | `runner` | many seeds, and what is said when one fails |
//!
//! | variable | meaning |
//! | --- | --- |
//! | `LATERMQ_SIM_SEED` | run this seed alone, and print every action |
//! | `LATERMQ_SIM_SEEDS` | how many seeds |
//! | `LATERMQ_SIM_MUTATION` | switch off only the lines with these names |
//! | `LATERMQ_SIM_SECONDS` | go on with further seeds for so long |

#![allow(clippy::unwrap_used, reason = "a simulation fails by panicking")]

mod clients;
mod faults;
mod ledger;
mod machine;
mod oracle;
mod reader;
mod runner;
mod stories;
mod workload;

use std::sync::Arc;

use machine::End;
use workload::Simulation;

/// Seeds that every run of the tests tries.
const SEEDS: u64 = 50;

#[test]
fn nothing_is_lost_early_repeated_or_out_of_order_whatever_happens() {
    runner::run(SEEDS);
}

#[test]
fn nothing_is_lost_or_repeated_at_whatever_step_of_a_fixed_piece_of_work_the_machine_stops() {
    for seed in [0, 1] {
        let mut step = 0;
        let mut reached = true;
        while reached {
            step += 1;
            for end in [End::Kill, End::PowerLoss(step)] {
                reached = runner::told(&format!("step {step} of seed {seed}, {end:?}"), |history| {
                    Simulation::new(seed, history, false).run_fixed(step, end)
                });
            }
        }
        eprintln!("seed {seed}: the machine stopped at each of {} steps", step - 1);
    }
}

#[test]
fn nothing_is_lost_or_repeated_at_whatever_step_of_a_recovery_the_machine_stops_again() {
    let whole_scan = ["latermq.checkpoint", "latermq.checkpoint.bak"];
    let mut cases = Vec::new();
    for first in [61, 250] {
        cases.push((first, End::PowerLoss(first), &[][..]));
    }
    cases.push((250, End::Kill, &whole_scan[..]));
    cases.push((200, End::Kill, &["consumequeue", "index", "config"]));
    let steps = runner::each(&cases, |&(first, first_end, lost)| {
        let mut step = 0;
        let mut reached = true;
        while reached {
            step += 1;
            for end in [End::Kill, End::PowerLoss(step)] {
                let what = format!(
                    "{first_end:?} at step {first} without {lost:?}, then {end:?} at step {step} of the recovery"
                );
                reached = runner::told(&what, |history| {
                    Simulation::new(0, history, false).run_recovery((first, first_end), lost, step, end)
                });
            }
        }
        Some(step - 1)
    });
    eprintln!("the recovery was stopped at each of {} steps", steps.iter().sum::<u64>());
}

#[test]
fn the_same_seed_does_the_same() {
    for seed in [1, 2, 3] {
        let [first, second] = [(), ()].map(|()| {
            let history = runner::History::default();
            let trace = Simulation::new(seed, history.clone(), false).run();
            (history, trace)
        });
        for (at, (first, second)) in first.0.lock().unwrap().iter().zip(second.0.lock().unwrap().iter()).enumerate() {
            assert_eq!(first, second, "action {at} of seed {seed}");
        }
        assert_eq!(first.1, second.1, "trace of seed {seed}");
    }
}

/// Else hundreds of seeds take gigabytes.
#[test]
fn nothing_of_a_world_is_left_in_memory_when_it_ends() {
    let mut simulation = Simulation::new(1, runner::History::default(), false);
    simulation.restart();
    simulation.send_large(1);
    simulation.work();
    let process = simulation.machine.process();
    let (store, scheduler, broker) =
        (Arc::downgrade(&process.store), Arc::downgrade(&process.scheduler), Arc::downgrade(&process.broker));

    drop(simulation);

    assert_eq!([store.strong_count(), scheduler.strong_count(), broker.strong_count()], [0; 3]);
}

/// Seeds within which each mutation must be noticed.
#[cfg(debug_assertions)]
const SEEDS_PER_MUTATION: u64 = 400;

#[cfg(debug_assertions)]
#[test]
fn the_simulation_notices_when_a_protective_line_is_missing() {
    let wanted = std::env::var("LATERMQ_SIM_MUTATION").ok();
    let is_wanted = |mutation: &latermq::mutation::Mutation| {
        wanted.as_ref().is_none_or(|wanted| wanted.contains(&format!("{mutation:?}")))
    };
    let mutations: Vec<_> = latermq::mutation::Mutation::ALL.into_iter().filter(is_wanted).collect();
    let missed = runner::each(&mutations, |&mutation| {
        let run = |seed, is_harsh| {
            runner::catch("", |history| {
                let simulation = Simulation::new(seed, history, false);
                if is_harsh { simulation.harsh().run() } else { simulation.run() }
            })
        };
        let notices = |(seed, is_harsh)| {
            let failure = mutation.during(|| run(seed, is_harsh)).err()?;
            // Only a world that goes well with the line tells what is missing without it.
            let text = failure.lines().next().unwrap_or_default().chars().take(150).collect::<String>();
            run(seed, is_harsh).is_ok().then_some(text)
        };
        let worlds = (0..SEEDS_PER_MUTATION).flat_map(|seed| [(seed, true), (seed, false)]);
        let noticed = worlds.into_iter().find_map(|world| Some((world.0, notices(world)?)));
        let Some((seed, failure)) = noticed else { return Some(mutation) };
        eprintln!("{mutation:?}: seed {seed}{failure}");
        None
    });
    assert_eq!(missed, [], "mutations that {SEEDS_PER_MUTATION} seeds did not notice");
}
