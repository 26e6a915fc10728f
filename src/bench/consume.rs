//! Pulling queues to their end, as fast as the broker answers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    BenchError, Latencies, Report,
    link::Link,
    report::{histogram, record},
    stored::pull_request,
    usage::{Usage, listener},
};

/// Response code of a pull that found messages.
const FOUND: i64 = 0;
/// Response code of a pull that passed messages over, and tells where to go on.
const RETRY_IMMEDIATELY: i64 = 20;

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
    /// How many pulls are in flight for a queue: each asks for the next messages, so more than one only fits queues without gaps.
    pub times: u32,
}

/// Pulls every message of every queue, `times` over.
///
/// # Errors
/// If the broker cannot be reached.
pub fn consume(options: &ConsumeOptions, progress: &AtomicU64) -> Result<Report, BenchError> {
    let broker = options.address.rsplit_once(':').and_then(|(_, port)| listener(port.parse().ok()?));
    let (own, its) = (Usage::own(), broker.and_then(Usage::of));
    let begun = Instant::now();
    let pulled: Vec<Result<Pulled, BenchError>> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..options.queues).map(|queue_id| scope.spawn(move || pull_all(options, queue_id, progress))).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|one| one.unwrap_or_else(|_| Err(BenchError::Broker("a thread panicked".into())))).collect()
    });
    let elapsed = begun.elapsed();
    let mut latencies = histogram();
    let (mut messages, mut bytes, mut waited) = (0, 0, Duration::ZERO);
    for one in pulled {
        let one = one?;
        latencies += &one.latencies;
        messages += one.messages;
        bytes += one.bytes;
        waited += one.waited;
    }
    let mut report = Report::new("consume", &options.address, messages, elapsed, 0);
    report.megabytes_per_second = bytes as f64 / elapsed.as_secs_f64() / 1e6;
    report.latencies.insert("pull".into(), Latencies::of(&latencies));
    report.generator = Usage::own().since(own);
    report.broker = broker.and_then(Usage::of).zip(its).map(|(now, before)| now.since(before));
    report.judge(waited.as_secs_f64() / (elapsed.as_secs_f64() * f64::from(options.queues)).max(1e-9));
    Ok(report)
}

struct Pulled {
    latencies: hdrhistogram::Histogram<u64>,
    messages: u64,
    bytes: u64,
    waited: Duration,
}

fn pull_all(options: &ConsumeOptions, queue_id: i32, progress: &AtomicU64) -> Result<Pulled, BenchError> {
    let mut link = Link::new(&options.address)?;
    let mut pulled = Pulled { latencies: histogram(), messages: 0, bytes: 0, waited: Duration::ZERO };
    for _ in 0..options.times.max(1) {
        let mut offset = 0;
        loop {
            let asked = Instant::now();
            link.write(&pull_request(&options.topic, queue_id, offset, options.pull, None))?;
            let mut next = None;
            while next.is_none() {
                link.read(None)?;
                link.answers(|answer| {
                    let begin = answer.ext_number("nextBeginOffset").unwrap_or(-1);
                    let code = answer.code().unwrap_or(-1);
                    if code == FOUND {
                        pulled.messages += u64::try_from(begin - offset).unwrap_or(0);
                        pulled.bytes += answer.body.len() as u64;
                        progress.fetch_add(u64::try_from(begin - offset).unwrap_or(0), Ordering::Relaxed);
                    }
                    next = Some((code, begin));
                    Ok(())
                })?;
            }
            record(&mut pulled.latencies, asked.elapsed());
            match next {
                Some((FOUND | RETRY_IMMEDIATELY, begin)) if begin > offset => offset = begin,
                _ => break,
            }
        }
    }
    pulled.waited = link.waited;
    Ok(pulled)
}
