//! Many seeds, and what is said when one fails.

use std::{
    any::Any,
    env,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::workload::Simulation;

/// Actions shown of a seed that failed.
const ACTIONS_SHOWN: usize = 60;

/// What a simulation did so far; still there when it panicked.
pub(crate) type History = Arc<Mutex<Vec<String>>>;

/// Runs seeds, or what the environment asks for.
///
/// # Panics
/// If one fails: with the seed, what was wrong, the last actions, and how to run it again.
pub(crate) fn run(seeds: u64) {
    let number = |name: &str| env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    if let Some(seed) = number("LATERMQ_SIM_SEED") {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(std::io::stderr)
            .without_time()
            .init();
        if let Err(failure) = run_seed(seed, true) {
            panic!("{failure}");
        }
        return;
    }
    let seeds = number("LATERMQ_SIM_SEEDS").unwrap_or(seeds);
    let seconds = number("LATERMQ_SIM_SECONDS");
    let first = number("LATERMQ_SIM_FIRST_SEED").unwrap_or(0);
    let deadline = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let next = AtomicU64::new(first);
    let stop = AtomicBool::new(false);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let more = deadline.is_some_and(|deadline| Instant::now() < deadline);
                    if seed >= first + seeds && !more {
                        return;
                    }
                    if let Err(failure) = run_seed(seed, false) {
                        failures.lock().unwrap().push(failure);
                        stop.store(env::var_os("LATERMQ_SIM_ALL").is_none(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    eprintln!("{} seeds ran from {first} on, {} failed", next.load(Ordering::Relaxed) - first, failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Does something for each of several things, on all cores; gathers what comes back.
pub(crate) fn each<T: Sync, R: Send>(things: &[T], act: impl Fn(&T) -> Option<R> + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let gathered = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                while let Some(thing) = things.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let back = act(thing);
                    gathered.lock().unwrap().extend(back);
                }
            });
        }
    });
    gathered.into_inner().unwrap()
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs the two worlds of one seed.
fn run_seed(seed: u64, verbose: bool) -> Result<u64, String> {
    let run = |is_harsh| {
        let what = format!("{} seed {seed}", if is_harsh { "harsh" } else { "mild" });
        catch(&what, |history| {
            let simulation = Simulation::new(seed, history, verbose);
            if is_harsh { simulation.harsh().run() } else { simulation.run() }
        })
    };
    run(false).and_then(|_| run(true)).map_err(|failure| {
        format!(
            "{failure}\nto run it again: LATERMQ_SIM_SEED={seed} cargo test --test simulation whatever_happens -- --nocapture"
        )
    })
}

/// Runs something; if it panics, says what it was and what it did.
pub(crate) fn told<T>(what: &str, run: impl FnOnce(History) -> T) -> T {
    catch(what, run).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Runs something; a panic becomes an error that says what was run and what it did.
pub(crate) fn catch<T>(what: &str, run: impl FnOnce(History) -> T) -> Result<T, String> {
    let history = History::default();
    let told = history.clone();
    panic::catch_unwind(AssertUnwindSafe(|| run(told))).map_err(|panic| {
        let history = history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let shown = &history[history.len().saturating_sub(ACTIONS_SHOWN)..];
        format!("{what} failed: {}\nlast actions:\n  {}", text(&*panic), shown.join("\n  "))
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("?")
}
