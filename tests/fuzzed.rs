//! The bodies of the fuzz targets on their seeds, and on a few thousand changes of them, so that they stay true; what they once found stands
//! below by name. The fuzzers themselves: see the README.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "fuzz/src/lib.rs"]
mod bodies;

#[test]
fn every_target_holds_for_its_seeds_and_some_changes_of_them() {
    let seed = std::env::var("LATERMQ_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(42);
    let factor = std::env::var("LATERMQ_FUZZ_ROUNDS").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1);
    for (name, body, seeds) in bodies::TARGETS {
        let seeds = seeds();
        assert!(!seeds.is_empty(), "{name}");
        seeds.iter().for_each(|seed| body(seed));
        let mut random = fastrand::Rng::with_seed(seed);
        let rounds = if ["consume_queue", "state_file", "checkpoint"].contains(&name) { 100 } else { 2_000 };
        for round in 0..rounds * factor {
            let data = bodies::mutated(&seeds, &mut random);
            let held = std::panic::catch_unwind(|| body(&data));
            assert!(held.is_ok(), "{name}: LATERMQ_FUZZ_SEED={seed}, round {round}, {} bytes", data.len());
        }
    }
}
