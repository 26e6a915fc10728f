//! How late delayed messages are: sent at a fixed rate, received by held pulls.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    BenchError, Latencies, Load, Report,
    link::Link,
    report::{histogram, record},
    send::{run_id, send_run, wall_ms},
    stored::{read_queue, read_to_end, summary},
};

/// The topic of what waits.
const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// How long a pull may be held.
const HOLD_MS: i64 = 1000;
/// How long to wait for messages beyond their time.
const PATIENCE: Duration = Duration::from_secs(30);

/// How late to find out.
#[derive(Debug, Clone)]
pub struct LatenessOptions {
    /// What to send; each message at a level.
    pub load: Load,
}

/// Sends at the load's pace and tells how late each message was stored again, and received.
///
/// The store time of the message as it waited is read afterwards from the schedule topic. Store times are whole milliseconds; the time of
/// receipt is this machine's, so the broker must run on it, or on one with the same time.
///
/// # Errors
/// If the broker cannot be reached.
pub fn lateness(options: &LatenessOptions, progress: &AtomicU64) -> Result<Report, BenchError> {
    let load = &options.load;
    let mut link = Link::new(&load.address)?;
    let durations = link.level_durations()?;
    for topic in load.topic_names() {
        link.create_topic(&topic, load.queues)?;
    }
    let mut waits_from = HashMap::new();
    for level in load.levels.levels() {
        let queue_id = i32::try_from(level).unwrap_or(i32::MAX) - 1;
        waits_from.insert(level, link.max_offset(SCHEDULE_TOPIC, queue_id).unwrap_or(0));
    }
    let longest = load.levels.levels().iter().filter_map(|level| durations.get(*level as usize - 1)).max().copied();
    let run = run_id();
    let prefix = format!("{run:016X}");
    let sending = AtomicBool::new(true);
    let received: Mutex<Vec<(super::stored::Stored, f64)>> = Mutex::default();
    let begun = Instant::now();
    let wall = wall_ms() as f64;
    let sent = Mutex::new(None::<u64>);

    let report = thread::scope(|scope| -> Result<Report, BenchError> {
        let mut readers = Vec::new();
        for topic in load.topic_names() {
            for queue_id in 0..load.queues {
                let (sending, received, prefix, sent) = (&sending, &received, &prefix, &sent);
                let topic = topic.clone();
                let mut link = Link::new(&load.address)?;
                let from = link.max_offset(&topic, queue_id)?;
                readers.push(scope.spawn(move || {
                    let mut last = Instant::now();
                    let each = |record: &crate::record::Record, came: Instant| {
                        let stored = summary(record);
                        if stored.key.starts_with(prefix) {
                            let at = wall + (came - begun).as_secs_f64() * 1e3;
                            received.lock().unwrap_or_else(PoisonError::into_inner).push((stored, at));
                        }
                    };
                    let go_on = |_, found: bool| {
                        if found || sending.load(Ordering::Relaxed) {
                            last = Instant::now();
                        }
                        let expected = *sent.lock().unwrap_or_else(PoisonError::into_inner);
                        let all = received.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
                        expected.is_none_or(|expected| all < expected)
                            && last.elapsed() < PATIENCE + longest.unwrap_or_default()
                    };
                    read_queue(&mut link, &topic, queue_id, from, each, go_on, Some(HOLD_MS))
                }));
            }
        }
        let report = send_run(load, progress, run);
        sending.store(false, Ordering::Relaxed);
        let all =
            report.as_ref().map_or(0, |report| *report.figures.get("messages with warm-up").unwrap_or(&0.0) as u64);
        *sent.lock().unwrap_or_else(PoisonError::into_inner) = Some(all);
        for reader in readers {
            reader.join().unwrap_or_else(|_| Err(BenchError::Broker("a thread panicked".into())))?;
        }
        report
    })?;

    let mut waited = HashMap::new();
    for (level, from) in waits_from {
        let queue_id = i32::try_from(level).unwrap_or(i32::MAX) - 1;
        for one in read_to_end(&mut link, SCHEDULE_TOPIC, queue_id, from)? {
            waited.insert(one.key.clone(), one);
        }
    }
    judge(report, &received.into_inner().unwrap_or_else(PoisonError::into_inner), &waited, &durations)
}

fn judge(
    mut report: Report,
    received: &[(super::stored::Stored, f64)],
    waited: &HashMap<String, super::stored::Stored>,
    durations: &[Duration],
) -> Result<Report, BenchError> {
    let (mut stored_late, mut received_late) = (histogram(), histogram());
    let (mut early, mut unknown) = (0_u64, 0_u64);
    let mut seen: HashMap<&str, u32> = HashMap::new();
    for (one, came) in received {
        *seen.entry(&one.key).or_default() += 1;
        let wait = waited.get(&one.key);
        let duration = wait.and_then(|wait| durations.get((wait.level as usize).checked_sub(1)?));
        let (Some(wait), Some(duration)) = (wait, duration) else {
            unknown += 1;
            continue;
        };
        let due = wait.stored_ms + duration.as_millis() as i64;
        if one.stored_ms < due {
            early += 1;
        }
        let late = |ms: f64| Duration::from_secs_f64((ms / 1e3).max(0.0));
        record(&mut stored_late, late((one.stored_ms - due) as f64));
        record(&mut received_late, late(came - due as f64));
    }
    let lost =
        waited.keys().filter(|key| !seen.contains_key(key.as_str()) && key.starts_with(&run_of(received))).count();
    let repeated: u64 = seen.values().map(|times| u64::from(times - 1)).sum();
    report.name = "lateness".into();
    report.latencies.insert("late, store time".into(), Latencies::of(&stored_late));
    report.latencies.insert("late, received".into(), Latencies::of(&received_late));
    for (name, value) in
        [("early", early), ("lost", lost as u64), ("repeated", repeated), ("without a waiting record", unknown)]
    {
        report.figures.insert(name.into(), value as f64);
    }
    Ok(report)
}

/// What the keys of this run begin with.
fn run_of(received: &[(super::stored::Stored, f64)]) -> String {
    received.first().map_or_else(String::new, |(one, _)| one.key.chars().take(16).collect())
}
