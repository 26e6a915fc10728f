//! Pulling queues to their end, as fast as the broker answers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    BenchError, Latencies, Report,
    link::Link,
    pull::{PullTemplate, Pulled, stored_ms},
    report::{histogram, record},
    timeline::Timeline,
    usage::{Usage, listener_at, thread_awake},
};
use crate::protocol::Encoding;

/// What to pull.
#[derive(Debug, Clone)]
pub struct ConsumeOptions {
    /// The broker, `host:port`.
    pub address: String,
    /// The topic.
    pub topic: String,
    /// Its queues, each pulled over a connection of its own.
    pub queues: i32,
    /// Most messages of one pull.
    pub pull: i32,
    /// How often everything is read from the first offset on.
    pub times: u32,
    /// How headers are written.
    pub encoding: Encoding,
    /// The broker's process; `None` looks for who listens at the address.
    pub pid: Option<u32>,
}

/// Pulls every message of every queue, `times` over.
///
/// # Errors
/// If the broker cannot be reached.
pub fn consume(options: &ConsumeOptions, progress: &AtomicU64) -> Result<Report, BenchError> {
    let broker = options.pid.or_else(|| listener_at(&options.address));
    let (own, its) = (Usage::own(), broker.and_then(Usage::of));
    let begun = Instant::now();
    let timeline = Timeline::new(Duration::ZERO);
    let pulled: Vec<Result<Worked, BenchError>> = thread::scope(|scope| {
        let timeline = &timeline;
        let pull = |queue_id| scope.spawn(move || pull_all(options, queue_id, progress, timeline, begun));
        let threads: Vec<_> = (0..options.queues).map(pull).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|one| one.unwrap_or_else(|_| Err(BenchError::Broker("a thread panicked".into())))).collect()
    });
    let elapsed = begun.elapsed();
    let used = Usage::own().since(own);
    let its = broker.and_then(Usage::of).zip(its).map(|(now, before)| now.since(before));
    let mut latencies = histogram();
    let (mut messages, mut bytes, mut busy) = (0, 0, 0_f64);
    let (mut first, mut last) = (i64::MAX, 0);
    for one in pulled {
        let one = one?;
        latencies += &one.latencies;
        messages += one.messages;
        bytes += one.bytes;
        busy = busy.max(one.awake.as_secs_f64() / one.ran.as_secs_f64().max(1e-9));
        (first, last) = (first.min(one.stored_ms.0), last.max(one.stored_ms.1));
    }
    let mut report = Report::new("consume", &options.address, messages, elapsed, 0);
    report.megabytes_per_second = bytes as f64 / elapsed.as_secs_f64() / 1e6;
    report.latencies.insert("pull".into(), Latencies::of(&latencies));
    report.judge(used, its, busy);
    report.timeline = timeline.moments(elapsed);
    if messages > 0 {
        report.figures.insert("seconds from the first store time to the last".into(), (last - first) as f64 / 1e3);
    }
    Ok(report)
}

struct Worked {
    latencies: hdrhistogram::Histogram<u64>,
    messages: u64,
    bytes: u64,
    awake: Duration,
    ran: Duration,
    /// Least and greatest store time.
    stored_ms: (i64, i64),
}

fn pull_all(
    options: &ConsumeOptions,
    queue_id: i32,
    progress: &AtomicU64,
    timeline: &Timeline,
    begun: Instant,
) -> Result<Worked, BenchError> {
    let mut link = Link::new(&options.address)?;
    let mut worked = Worked {
        latencies: histogram(),
        messages: 0,
        bytes: 0,
        awake: Duration::ZERO,
        ran: Duration::ZERO,
        stored_ms: (i64::MAX, 0),
    };
    let (started, awake) = (Instant::now(), thread_awake());
    let template = PullTemplate::new(&options.topic, queue_id, options.pull, None, options.encoding);
    let mut output = Vec::new();
    let mut current = timeline.current();
    for _ in 0..options.times.max(1) {
        let mut offset = 0;
        loop {
            let asked = Instant::now();
            template.write(&mut output, offset);
            link.write(&output)?;
            let mut pulled = None;
            let before = worked.messages;
            while pulled.is_none() {
                link.read(None)?;
                link.answers(|answer| {
                    for record in Pulled::records(answer) {
                        let at = stored_ms(record);
                        worked.messages += 1;
                        worked.stored_ms = (worked.stored_ms.0.min(at), worked.stored_ms.1.max(at));
                    }
                    worked.bytes += answer.body.len() as u64;
                    pulled = Some(Pulled::of(answer, offset));
                    Ok(())
                })?;
            }
            let took = asked.elapsed();
            record(&mut worked.latencies, took);
            current.at(begun.elapsed());
            current.count(took.as_nanos() as u64, worked.messages - before);
            progress.fetch_add(worked.messages - before, Ordering::Relaxed);
            match pulled {
                Some(Pulled { found: true, next }) if next > offset => offset = next,
                _ => break,
            }
        }
    }
    (worked.awake, worked.ran) = (thread_awake() - awake, started.elapsed());
    Ok(worked)
}
