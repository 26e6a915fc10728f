//! Sending as fast as the broker answers, or at a fixed rate.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use hdrhistogram::Histogram;

use super::{
    BenchError, Latencies, Load, Pace, Report,
    answer::Answer,
    link::Link,
    report::{histogram, record},
    template::{Template, request_of},
    usage::{Usage, listener},
};

/// Most requests in flight on a connection. A power of two.
const IN_FLIGHT_MAX: usize = 1 << 16;
/// Most bytes written in one call.
const WRITE_BYTES_MAX: usize = 256 * 1024;

/// What one connection did.
struct Worked {
    latencies: Histogram<u64>,
    messages: u64,
    all: u64,
    errors: BTreeMap<i64, (u64, String)>,
    waited: Duration,
    ran: Duration,
}

/// What the threads share.
struct Shared<'a> {
    load: &'a Load,
    run: u64,
    begun: Instant,
    progress: &'a AtomicU64,
}

/// Sends what `load` says; `progress` counts the messages that were answered.
///
/// # Errors
/// If the broker cannot be reached or a topic not be created. Refused messages are counted in the report.
pub fn send(load: &Load, progress: &AtomicU64) -> Result<Report, BenchError> {
    send_run(load, progress, run_id())
}

/// A number that tells the messages of this run from others.
pub(super) fn run_id() -> u64 {
    fastrand::u64(..)
}

/// As [`send`], with unique keys that begin with `run`.
pub(super) fn send_run(load: &Load, progress: &AtomicU64, run: u64) -> Result<Report, BenchError> {
    let mut link = Link::new(&load.address)?;
    for topic in load.topic_names() {
        link.create_topic(&topic, load.queues)?;
    }
    drop(link);
    let broker = load.address.rsplit_once(':').and_then(|(_, port)| listener(port.parse().ok()?));
    let shared = Shared { load, run, begun: Instant::now(), progress };
    let mut usage = None;
    let done = AtomicBool::new(false);
    let mut crowd = None;
    let worked: Vec<Result<Worked, BenchError>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..load.connections)
            .map(|number| {
                scope.spawn({
                    let shared = &shared;
                    move || work(shared, number)
                })
            })
            .collect();
        let done = &done;
        let playing = load.crowd.map(|crowd| scope.spawn(move || crowd.play(&load.address, done)));
        thread::sleep(load.warm_up);
        usage = Some((Usage::own(), broker.and_then(Usage::of)));
        let worked = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(BenchError::Broker("a thread panicked".into()))))
            .collect();
        done.store(true, Ordering::Relaxed);
        crowd = playing.and_then(|playing| playing.join().ok()?.ok());
        worked
    });
    let worked = worked.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (own_before, broker_before) = usage.unwrap_or_default();

    let mut latencies = histogram();
    let mut report = Report::default();
    let (mut messages, mut all, mut waited, mut ran) = (0, 0, Duration::ZERO, Duration::ZERO);
    for one in worked {
        latencies += &one.latencies;
        messages += one.messages;
        all += one.all;
        waited += one.waited;
        ran = ran.max(one.ran);
        for (code, (times, remark)) in one.errors {
            report.errors.entry(code).or_insert((0, remark)).0 += times;
        }
    }
    let errors = report.errors;
    let counted = ran.saturating_sub(load.warm_up);
    let mut report = Report::new("send", &load.address, messages, counted, load.body_bytes);
    report.errors = errors;
    report.latencies.insert("answer".into(), Latencies::of(&latencies));
    report.generator = Usage::own().since(own_before);
    report.broker = broker.and_then(Usage::of).zip(broker_before).map(|(now, before)| now.since(before));
    if let Some(connected) = crowd {
        report.figures.insert("ill-behaved clients at the end".into(), connected as f64);
    }
    report.figures.insert("messages with warm-up".into(), all as f64);
    report.judge(waited.as_secs_f64() / (ran.as_secs_f64() * load.connections as f64).max(1e-9));
    Ok(report)
}

fn work(shared: &Shared<'_>, number: usize) -> Result<Worked, BenchError> {
    let load = shared.load;
    let (templates, turn) = templates(load, shared.run);
    let mut link = Link::new(&load.address)?;
    let mut sent_at = vec![shared.begun; IN_FLIGHT_MAX];
    let mut worked = Worked {
        latencies: histogram(),
        messages: 0,
        all: 0,
        errors: BTreeMap::new(),
        waited: Duration::ZERO,
        ran: Duration::ZERO,
    };
    let (window, interval) = match load.pace {
        Pace::InFlight(window) => (window.clamp(1, IN_FLIGHT_MAX), None),
        Pace::Rate(rate) => {
            let per_connection = rate / load.connections as f64 / load.batch as f64;
            (IN_FLIGHT_MAX, Some(Duration::from_secs_f64(1.0 / per_connection.max(1e-6))))
        }
    };
    let count = load.count.map_or(u64::MAX, |count| {
        let share = count / load.connections as u64 + u64::from((number as u64) < count % load.connections as u64);
        share.div_ceil(load.batch as u64)
    });
    let warm = shared.begun + load.warm_up;
    let end = warm + load.duration;
    // Connections of a fixed rate take turns.
    let first = shared.begun + interval.unwrap_or_default().mul_f64(number as f64 / load.connections as f64);
    let (mut requests, mut answered, mut told) = (0_u64, 0_u64, 0_u64);
    let places = load.topics * load.queues.unsigned_abs() as usize;
    let levels = templates.len() / places;
    let messages = templates[0].messages();
    let mut output = Vec::with_capacity(WRITE_BYTES_MAX + load.body_bytes * load.batch + 1024);
    loop {
        let now = Instant::now();
        let open = now < end;
        let born = wall_ms();
        let mut due = None;
        while open && requests < count && ((requests - answered) as usize) < window && output.len() < WRITE_BYTES_MAX {
            let at = interval.map_or(now, |interval| first + interval.mul_f64(requests as f64));
            if at > now {
                due = Some(at);
                break;
            }
            let slot = requests as usize + number * 7;
            // Each queue sees each level.
            let level = turn[(slot + slot / places) % turn.len()];
            let message = ((number as u64) << 40) + requests * messages;
            templates[slot % places * levels + level].write(&mut output, requests, message, born);
            sent_at[requests as usize & (IN_FLIGHT_MAX - 1)] = at;
            requests += 1;
        }
        if !output.is_empty() {
            link.write(&output)?;
            output.clear();
        }
        if answered == requests && (!open || requests == count) {
            break;
        }
        // With nothing in flight only the next request is waited for.
        let until = due.or((answered == requests).then_some(end));
        link.read(until)?;
        let now = Instant::now();
        link.answers(|answer: Answer<'_>| {
            let Some(request) = answer.opaque().map(request_of) else { return Ok(()) };
            let at = sent_at[request as usize & (IN_FLIGHT_MAX - 1)];
            answered += 1;
            match answer.code() {
                Some(0) => {
                    worked.all += messages;
                    if at >= warm {
                        worked.messages += messages;
                        record(&mut worked.latencies, now.saturating_duration_since(at));
                    }
                }
                code => worked.errors.entry(code.unwrap_or(-1)).or_insert_with(|| (0, answer.remark())).0 += 1,
            }
            Ok(())
        })?;
        shared.progress.fetch_add(worked.all - told, Ordering::Relaxed);
        told = worked.all;
    }
    worked.waited = link.waited;
    worked.ran = shared.begun.elapsed();
    Ok(worked)
}

/// The templates by topic, queue and level, and the turn of the levels as indexes.
fn templates(load: &Load, run: u64) -> (Vec<Template>, Vec<usize>) {
    let turn = load.levels.turn();
    let mut levels = turn.clone();
    levels.sort_unstable();
    levels.dedup();
    let mut templates = Vec::new();
    for topic in load.topic_names() {
        for queue_id in 0..load.queues {
            for &level in &levels {
                templates.push(Template::new(load, run, &topic, queue_id, (level > 0).then_some(level)));
            }
        }
    }
    let index = |level: &u32| levels.iter().position(|one| one == level).unwrap_or(0);
    (templates, turn.iter().map(index).collect())
}

/// The wall clock in milliseconds since the epoch.
pub(super) fn wall_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
