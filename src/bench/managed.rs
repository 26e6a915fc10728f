//! Runs that start and stop the broker themselves.

use std::{
    process::{Child, Command as Process, Stdio},
    sync::atomic::AtomicU64,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    BenchError, Levels, Load, Pace, Report,
    link::Link,
    send::send,
    usage::{Usage, listener},
};

/// How long a broker may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(300);

/// How to drain.
#[derive(Debug, Clone)]
pub struct DrainOptions {
    /// The command that starts the broker, for `sh -c`. It must stay in the foreground.
    pub broker: String,
    /// What to send; `load.count` messages at one level.
    pub load: Load,
    /// Kill the broker instead of stopping it.
    pub kill: bool,
}

/// How to restart.
#[derive(Debug, Clone)]
pub struct RestartOptions {
    /// The command that starts the broker, for `sh -c`. It must stay in the foreground.
    pub broker: String,
    /// What to leave waiting; `load.count` messages at a level that is long enough.
    pub load: Load,
    /// Kill the broker instead of stopping it.
    pub kill: bool,
    /// How many restarts.
    pub times: u32,
}

/// A broker that belongs to a run.
struct Broker {
    child: Child,
    address: String,
}

impl Broker {
    /// Starts it and waits until it answers; says how long that took.
    fn start(command: &str, address: &str) -> Result<(Self, Duration), BenchError> {
        let begun = Instant::now();
        // In a group of its own, so that a shell's children get the signal too.
        let child = Process::new("sh")
            .arg("-c")
            .arg(format!("exec {command}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| BenchError::Broker(format!("cannot start {command:?}: {error}")))?;
        let mut broker = Self { child, address: address.to_owned() };
        loop {
            if let Ok(mut link) = Link::new(address)
                && link.level_durations().is_ok()
            {
                return Ok((broker, begun.elapsed()));
            }
            if let Ok(Some(status)) = broker.child.try_wait() {
                return Err(BenchError::Broker(format!("{command:?} ended with {status}")));
            }
            if begun.elapsed() > PATIENCE {
                broker.end(true)?;
                return Err(BenchError::Broker(format!("{command:?} does not answer at {address}")));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops it; says how long that took.
    fn end(&mut self, kill: bool) -> Result<Duration, BenchError> {
        let begun = Instant::now();
        let signal = if kill { Signal::KILL } else { Signal::TERM };
        let port = self.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        // What listens may be a child of the command.
        for pid in [Some(self.child.id()), port.and_then(listener)].into_iter().flatten() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // It may have ended already.
                let _ = kill_process(pid, signal);
            }
        }
        self.child.wait().map_err(|error| BenchError::Broker(format!("cannot wait for the broker: {error}")))?;
        while port.and_then(listener).is_some() {
            if begun.elapsed() > PATIENCE {
                return Err(BenchError::Broker("the broker does not stop".into()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(begun.elapsed())
    }

    fn usage(&self) -> Option<Usage> {
        let port = self.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok())?;
        Usage::of(listener(port)?)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.end(true);
        }
    }
}

/// Fills a level, lets all of it fall due while the broker is down, starts it and measures until the last message is restored.
///
/// # Errors
/// If the broker does not start, or does not get done.
pub fn drain(options: &DrainOptions, progress: &AtomicU64) -> Result<Report, BenchError> {
    let load = &options.load;
    let (mut broker, _) = Broker::start(&options.broker, &load.address)?;
    let level = *load.levels.levels().first().ok_or_else(|| BenchError::Broker("a drain needs a level".into()))?;
    let mut link = Link::new(&load.address)?;
    let duration = link.level_durations()?.get(level as usize - 1).copied();
    let duration = duration.ok_or_else(|| BenchError::Broker(format!("the broker has no level {level}")))?;
    let filled = send(load, progress)?;
    let expected = ends(&mut link, load)? as u64;
    drop(link);
    let waiting = *filled.figures.get("messages with warm-up").unwrap_or(&0.0) as u64;
    broker.end(options.kill)?;
    drop(broker);
    thread::sleep(duration + Duration::from_secs(1));

    let (mut broker, started) = Broker::start(&options.broker, &load.address)?;
    let begun = Instant::now() - started;
    let before = Usage::default();
    let mut link = Link::new(&load.address)?;
    let restored = loop {
        let restored = ends(&mut link, load)? as u64 - expected;
        progress.store(restored, std::sync::atomic::Ordering::Relaxed);
        if restored >= waiting {
            break restored;
        }
        if begun.elapsed() > PATIENCE * 4 {
            return Err(BenchError::Broker(format!("{restored} of {waiting} messages were restored")));
        }
        thread::sleep(Duration::from_millis(2));
    };
    let elapsed = begun.elapsed();
    let mut report = Report::new("drain", &load.address, restored, elapsed, load.body_bytes);
    report.broker = broker.usage().map(|usage| usage.since(before));
    report.figures.insert("seconds until it answered".into(), started.as_secs_f64());
    report.figures.insert("messages sent a second".into(), filled.per_second);
    report.figures.insert("restored before the stop".into(), expected as f64);
    report.generator_idle = 1.0;
    broker.end(false)?;
    Ok(report)
}

/// Leaves messages waiting, restarts the broker several times, and measures until it answers a send.
///
/// # Errors
/// If the broker does not start.
pub fn restart(options: &RestartOptions, progress: &AtomicU64) -> Result<Report, BenchError> {
    let load = &options.load;
    let (mut broker, first) = Broker::start(&options.broker, &load.address)?;
    let filled = send(load, progress)?;
    let mut report = Report { name: "restart".into(), address: load.address.clone(), ..filled };
    report.latencies.clear();
    let one = Load {
        connections: 1,
        count: Some(1),
        pace: Pace::InFlight(1),
        levels: Levels::none(),
        warm_up: Duration::ZERO,
        ..load.clone()
    };
    for time in 0..options.times {
        let stopped = broker.end(options.kill)?;
        let begun = Instant::now();
        let (again, _) = Broker::start(&options.broker, &load.address)?;
        broker = again;
        send(&one, &AtomicU64::new(0))?;
        report.figures.insert(format!("stop {time}, seconds"), stopped.as_secs_f64());
        report
            .figures
            .insert(format!("start {time}, seconds until a send was answered"), begun.elapsed().as_secs_f64());
    }
    report.figures.insert("first start, seconds until it answered".into(), first.as_secs_f64());
    report.broker = broker.usage();
    broker.end(false)?;
    Ok(report)
}

/// The sum of the ends of the topics' queues.
fn ends(link: &mut Link, load: &Load) -> Result<i64, BenchError> {
    let mut sum = 0;
    for topic in load.topic_names() {
        for queue_id in 0..load.queues {
            sum += link.max_offset(&topic, queue_id).unwrap_or(0);
        }
    }
    Ok(sum)
}
