//! Runs the targets over random changes of their seeds, without a fuzzer: `mutate SECONDS [TARGET] [SEED]`; `mutate seeds` writes the seeds
//! where `cargo fuzz` looks for them.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::{Duration, Instant},
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "seeds") {
        for (name, _, seeds) in bodies::TARGETS {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
            fs::create_dir_all(&folder).expect("the folder can be made");
            for (number, seed) in seeds().iter().enumerate() {
                fs::write(folder.join(format!("seed-{number:03}")), seed).expect("the seed can be written");
            }
        }
        return;
    }
    let seconds = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(60);
    let wanted = arguments.get(1).filter(|name| *name != "all");
    let seed = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let targets: Vec<_> = bodies::TARGETS.into_iter().filter(|(name, ..)| wanted.is_none_or(|wanted| wanted == name)).collect();
    let mut failed = false;
    for (name, body, seeds) in &targets {
        let (seeds, mut random) = (seeds(), fastrand::Rng::with_seed(seed));
        let until = Instant::now() + Duration::from_secs(seconds) / u32::try_from(targets.len()).unwrap_or(1);
        let mut rounds = 0_u64;
        while Instant::now() < until {
            let data = bodies::mutated(&seeds, &mut random);
            if catch_unwind(AssertUnwindSafe(|| body(&data))).is_err() {
                let file = std::env::temp_dir().join(format!("latermq-{name}-{seed}-{rounds}"));
                let _ = fs::write(&file, &data);
                println!("{name}: panicked in round {rounds} of seed {seed}: {}", file.display());
                failed = true;
                break;
            }
            rounds += 1;
        }
        println!("{name}: {rounds} rounds of seed {seed}");
    }
    std::process::exit(i32::from(failed));
}
