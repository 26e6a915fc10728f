//! Following every message: sent at a fixed rate, received by held pulls, and found again as it waited.

use std::{
    collections::HashSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    BenchError, Load, Report,
    ledger::{Ledger, Received, Waiting},
    link::{Link, SCHEDULE_TOPIC},
    pull::{Stored, read_queue, read_to_end},
    send::{Run, send_run, wall_exact_ms},
};

/// How long a pull may be held.
const HOLD_MS: i64 = 1000;
/// How long to wait for messages beyond their time.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to look for repetitions after all came.
const LINGER: Duration = Duration::from_secs(1);

/// What the readers of a run have found.
#[derive(Default)]
struct Found {
    received: Vec<Received>,
    numbers: HashSet<u64>,
    disordered: u64,
    /// When the last message came that was still missing.
    complete: Option<Instant>,
}

/// Sends at the load's pace and tells how late each message was stored again, and received.
///
/// The store time of the message as it waited is read afterwards from the schedule topic. Store times are whole milliseconds; the time of
/// receipt is this machine's, so the broker must run on it, or on one with the same time. The report holds the ledger.
///
/// # Errors
/// If the broker cannot be reached.
pub fn lateness(load: &Load, progress: &AtomicU64) -> Result<Report, BenchError> {
    follow("lateness", load, progress)
}

/// As [`lateness`], for loads that do everything at once; what matters is the ledger.
///
/// # Errors
/// If the broker cannot be reached.
pub fn soak(load: &Load, progress: &AtomicU64) -> Result<Report, BenchError> {
    follow("soak", load, progress)
}

fn follow(name: &str, load: &Load, progress: &AtomicU64) -> Result<Report, BenchError> {
    let mut link = Link::new(&load.address)?;
    let durations = link.level_durations()?;
    let levels = load.levels.waits(&durations)?;
    for topic in load.topic_names() {
        link.create_topic(&topic, load.queues)?;
    }
    let mut waits_from = Vec::new();
    for &(queue_id, wait) in &levels {
        waits_from.push((queue_id, wait, link.max_offset(SCHEDULE_TOPIC, queue_id).unwrap_or(0)));
    }
    let longest = levels.iter().map(|(_, wait)| *wait).max().unwrap_or_default();
    let run = Run { keeps_acknowledged: true, ..Run::new() };
    let sending = AtomicBool::new(true);
    let expected = Mutex::new(None::<u64>);
    let found: Mutex<Found> = Mutex::default();
    let (begun, wall) = (Instant::now(), wall_exact_ms());

    let sent = thread::scope(|scope| {
        let mut readers = Vec::new();
        for topic in load.topic_names() {
            for queue_id in 0..load.queues {
                let (sending, found, expected) = (&sending, &found, &expected);
                let topic = topic.clone();
                let mut link = Link::new(&load.address)?;
                let from = link.max_offset(&topic, queue_id)?;
                readers.push(scope.spawn(move || {
                    let mut last = Instant::now();
                    let mut highest = None;
                    let go_on = |stored: &[Stored], came: Instant, _| {
                        if !stored.is_empty() || sending.load(Ordering::Relaxed) {
                            last = Instant::now();
                        }
                        let came_ms = wall + (came - begun).as_secs_f64() * 1e3;
                        let expected = *expected.lock().unwrap_or_else(PoisonError::into_inner);
                        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                        for &stored in stored {
                            found.disordered +=
                                u64::from(highest.is_some_and(|highest| stored.queue_offset <= highest));
                            highest = Some(stored.queue_offset);
                            found.numbers.insert(stored.number);
                            found.received.push(Received { stored, came_ms });
                        }
                        if expected.is_some_and(|expected| found.numbers.len() as u64 >= expected) {
                            return found.complete.get_or_insert_with(Instant::now).elapsed() < LINGER;
                        }
                        last.elapsed() < PATIENCE + longest
                    };
                    read_queue(&mut link, (&topic, queue_id), from, run.id, Some(HOLD_MS), go_on)
                }));
            }
        }
        let sent = send_run(load, progress, run);
        sending.store(false, Ordering::Relaxed);
        let acknowledged = sent.as_ref().map_or(0, |sent| sent.report.acknowledged);
        *expected.lock().unwrap_or_else(PoisonError::into_inner) = Some(acknowledged);
        for reader in readers {
            reader.join().unwrap_or_else(|_| Err(BenchError::Broker("a thread panicked".into())))?;
        }
        sent
    })?;

    let mut waited = Vec::new();
    let mut link = Link::new(&load.address)?;
    for (queue_id, wait, from) in waits_from {
        let records = read_to_end(&mut link, (SCHEDULE_TOPIC, queue_id), from, run.id)?;
        waited.push(Waiting { wait_ms: wait.as_millis() as i64, records });
    }
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let ledger = Ledger {
        received: found.received,
        waited,
        acknowledged: sent.acknowledged,
        batch: load.batch as u64,
        turns: load.turns(),
        disordered: found.disordered,
    };
    let mut report = Report { name: name.into(), ..sent.report };
    ledger.judge(&mut report);
    Ok(report)
}
