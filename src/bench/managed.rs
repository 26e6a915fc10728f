//! Runs that start and stop the broker themselves.

use std::{
    process::{Child, Command as Process, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    BenchError, Latencies, Levels, Load, Pace, Report,
    link::Link,
    pull::{PullTemplate, Pulled, stored_ms},
    report::{histogram, record},
    send::{Run, send, send_run, wall_exact_ms, wall_ms},
    template::Template,
    usage::{Usage, listener_at},
};

/// How long a broker may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long nothing may be restored or received before the rest counts as missing.
const STANDSTILL: Duration = Duration::from_secs(60);
/// Pause between two looks at how much is restored.
const LOOK: Duration = Duration::from_millis(2);
/// How long a pull may be held, and how many messages it asks for.
const HOLD_MS: i64 = 1000;
const PULL: i32 = 32;

/// How to drain.
#[derive(Debug, Clone)]
pub struct DrainOptions {
    /// The command that starts the broker, for `sh -c`. It must stay in the foreground.
    pub start: String,
    /// What to send; `load.count` messages at one level.
    pub load: Load,
    /// Kill the broker instead of stopping it.
    pub kill: bool,
    /// Consume from the start on, not only after all is restored.
    pub consumers: bool,
    /// Messages without a delay to send meanwhile, a second.
    pub beside: Option<f64>,
}

/// How to restart.
#[derive(Debug, Clone)]
pub struct RestartOptions {
    /// The command that starts the broker, for `sh -c`. It must stay in the foreground.
    pub start: String,
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
    began: Instant,
}

impl Broker {
    /// Starts it and waits until `answers` says that it serves; says how long that took.
    fn start(
        command: &str,
        address: &str,
        answers: impl Fn(&mut Link) -> Result<bool, BenchError>,
    ) -> Result<(Self, Duration), BenchError> {
        if listener_at(address).is_some() {
            return Err(BenchError::Broker(format!("something listens at {address} already")));
        }
        let began = Instant::now();
        let child = Process::new("sh")
            .arg("-c")
            .arg(format!("exec {command}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| BenchError::Broker(format!("cannot start {command:?}: {error}")))?;
        let mut broker = Self { child, address: address.to_owned(), began };
        loop {
            if let Ok(mut link) = Link::new(address)
                && let Ok(true) = answers(&mut link)
            {
                return Ok((broker, began.elapsed()));
            }
            if let Ok(Some(status)) = broker.child.try_wait() {
                return Err(BenchError::Broker(format!("{command:?} ended with {status}")));
            }
            if began.elapsed() > PATIENCE {
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
        // What listens may be a child of the command.
        let (child, serving) = (Some(self.child.id()), listener_at(&self.address));
        for pid in [child, serving.filter(|_| serving != child)].into_iter().flatten() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // It may have ended already.
                let _ = kill_process(pid, signal);
            }
        }
        loop {
            let ended = self.child.try_wait();
            let ended = ended.map_err(|error| BenchError::Broker(format!("cannot wait for the broker: {error}")))?;
            if ended.is_some() && listener_at(&self.address).is_none() {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > PATIENCE {
                return Err(BenchError::Broker("the broker does not stop".into()));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn usage(&self) -> Option<Usage> {
        Usage::of(listener_at(&self.address)?)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.end(true);
        }
    }
}

/// What was read while or after a level was drained.
struct Read {
    messages: u64,
    /// How many of them were stored after the start.
    fresh: u64,
    /// When the last of them came.
    last: Instant,
    /// Least and greatest store time of those.
    stored_ms: (i64, i64),
}

/// Fills a level, lets all of it fall due while the broker is down, starts it and measures until the last message is restored, and until the
/// last is consumed.
///
/// The broker's CPU and writes are those from its start to the last restored message. Messages that are still missing when nothing happens
/// any more are reported, not waited for.
///
/// # Errors
/// If the broker does not start.
pub fn drain(options: &DrainOptions, progress: &AtomicU64) -> Result<Report, BenchError> {
    let load = &options.load;
    let serves = |link: &mut Link| Ok(!link.level_durations()?.is_empty());
    let (mut broker, _) = Broker::start(&options.start, &load.address, serves)?;
    let mut link = Link::new(&load.address)?;
    let &[(_, wait)] = &load.levels.waits(&link.level_durations()?)?[..] else {
        return Err(BenchError::Broker("a drain needs one level".into()));
    };
    let mut queues = Vec::new();
    for topic in load.topic_names() {
        link.create_topic(&topic, load.queues)?;
        for queue_id in 0..load.queues {
            queues.push((topic.clone(), queue_id, link.max_offset(&topic, queue_id)?));
        }
    }
    let begin: i64 = queues.iter().map(|(_, _, from)| from).sum();
    drop(link);
    let filled = send(load, progress)?;
    let sent_at = Instant::now();
    let waiting = filled.acknowledged;
    broker.end(options.kill)?;
    drop(broker);
    thread::sleep((wait + Duration::from_secs(1)).saturating_sub(sent_at.elapsed()));

    let from_ms = wall_ms();
    let (mut broker, answered) = Broker::start(&options.start, &load.address, serves)?;
    let at_first = broker.usage();
    let received = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let mut restored_in = Duration::ZERO;
    let mut restored = 0;
    let mut used = None;
    let began = broker.began;
    let (read, beside) = thread::scope(|scope| -> Result<_, BenchError> {
        let read = || read_all(load, &queues, waiting, from_ms, &received);
        let reader = options.consumers.then(|| scope.spawn(read));
        let sender = options.beside.map(|rate| {
            let beside = Load {
                pace: Pace::Rate(rate),
                levels: Levels::none(),
                topic_prefix: format!("{}-beside", load.topic_prefix),
                duration: Duration::from_secs(3600),
                warm_up: Duration::ZERO,
                count: None,
                ..load.clone()
            };
            let stop = &stop;
            scope.spawn(move || send_run(&beside, &AtomicU64::new(0), Run { stop: Some(stop), ..Run::new() }))
        });
        let watched = (|| {
            let mut link = Link::new(&load.address)?;
            let mut last = Instant::now();
            loop {
                let now = u64::try_from(link.ends(load)? - begin).unwrap_or(0);
                if now > restored {
                    last = Instant::now();
                    restored_in = began.elapsed();
                }
                restored = now;
                progress.store(restored, Ordering::Relaxed);
                if restored >= waiting || last.elapsed() > STANDSTILL {
                    return Ok(());
                }
                thread::sleep(LOOK);
            }
        })();
        used = broker.usage();
        stop.store(true, Ordering::Relaxed);
        let beside = sender.map(joined).transpose()?;
        watched?;
        let read = match reader {
            Some(reader) => joined(reader)?,
            None => read()?,
        };
        Ok((read, beside))
    })?;
    let consumed_in = read.last - began;
    if read.messages >= restored {
        // Consumers may see the last before the next look does.
        restored_in = restored_in.min(consumed_in);
    }
    let mut report = Report::new("drain", &load.address, read.fresh, restored_in, load.body_bytes);
    report.acknowledged = waiting;
    report.judge(Usage::default(), used, 0.0);
    let by_store_time = (read.stored_ms.1.saturating_sub(read.stored_ms.0)).max(1) as f64 / 1e3;
    let early = read.messages - read.fresh;
    for (name, value) in [
        ("seconds until it answered", answered.as_secs_f64()),
        ("its CPU seconds until it answered", at_first.map_or(0.0, |usage| usage.cpu_seconds)),
        ("seconds until the last was restored", restored_in.as_secs_f64()),
        ("seconds until the last was consumed", consumed_in.as_secs_f64()),
        ("restored a second by store time", read.fresh as f64 / by_store_time),
        ("sent a second before", filled.per_second),
        ("restored before the stop", early as f64),
        ("missing", waiting.saturating_sub(restored) as f64),
        ("consumed", read.messages as f64),
    ] {
        report.figures.insert(name.into(), value);
    }
    if let Some(beside) = beside {
        report.figures.insert("sent a second beside".into(), beside.report.per_second);
        for (name, latencies) in beside.report.latencies {
            report.latencies.insert(format!("beside: {name}"), latencies);
        }
    }
    if early > 0 {
        report.remarks.push(format!(
            "{early} messages were due before the broker had stopped and do not count; use a longer level"
        ));
    }
    if restored < waiting {
        report.remarks.push(format!("{} acknowledged messages were not restored", waiting - restored));
    }
    broker.end(false)?;
    Ok(report)
}

/// Reads queues from their offsets on until `wanted` messages were read, or nothing comes any more. Store times before `from_ms` do not count.
fn read_all(
    load: &Load,
    queues: &[(String, i32, i64)],
    wanted: u64,
    from_ms: i64,
    received: &AtomicU64,
) -> Result<Read, BenchError> {
    let read = |(topic, queue_id, from): &(String, i32, i64)| -> Result<Read, BenchError> {
        let mut link = Link::new(&load.address)?;
        let template = PullTemplate::new(topic, *queue_id, PULL, Some(HOLD_MS), load.encoding);
        let (mut offset, mut output) = (*from, Vec::new());
        let mut read = Read { messages: 0, fresh: 0, last: Instant::now(), stored_ms: (i64::MAX, 0) };
        while received.load(Ordering::Relaxed) < wanted && read.last.elapsed() < STANDSTILL {
            template.write(&mut output, offset);
            link.write(&output)?;
            let mut pulled = None;
            while pulled.is_none() {
                link.read(None)?;
                link.answers(|answer| {
                    let before = read.messages;
                    for record in Pulled::records(answer) {
                        read.messages += 1;
                        let at = stored_ms(record);
                        if at >= from_ms {
                            read.fresh += 1;
                            read.stored_ms = (read.stored_ms.0.min(at), read.stored_ms.1.max(at));
                        }
                    }
                    received.fetch_add(read.messages - before, Ordering::Relaxed);
                    if read.messages > before {
                        read.last = Instant::now();
                    }
                    pulled = Some(Pulled::of(answer, offset));
                    Ok(())
                })?;
            }
            offset = pulled.map_or(offset, |pulled| pulled.next.max(offset));
        }
        Ok(read)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = queues.iter().map(|queue| scope.spawn(move || read(queue))).collect();
        let mut all: Option<Read> = None;
        for thread in threads {
            let one = joined(thread)?;
            all = Some(match all {
                None => one,
                Some(all) => Read {
                    messages: all.messages + one.messages,
                    fresh: all.fresh + one.fresh,
                    last: all.last.max(one.last),
                    stored_ms: (all.stored_ms.0.min(one.stored_ms.0), all.stored_ms.1.max(one.stored_ms.1)),
                },
            });
        }
        all.ok_or_else(|| BenchError::Broker("there is no queue to read".into()))
    })
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T, BenchError>>) -> Result<T, BenchError> {
    thread.join().unwrap_or_else(|_| Err(BenchError::Broker("a thread panicked".into())))
}

/// Leaves messages waiting, restarts the broker several times, and measures from the start of its process until it answers a send.
///
/// # Errors
/// If the broker does not start.
pub fn restart(options: &RestartOptions, progress: &AtomicU64) -> Result<Report, BenchError> {
    let load = &options.load;
    let serves = |link: &mut Link| Ok(!link.level_durations()?.is_empty());
    let (mut broker, first) = Broker::start(&options.start, &load.address, serves)?;
    let mut report = Report { name: "restart".into(), ..send(load, progress)? };
    report.latencies.clear();
    report.remarks.clear();
    let topic = load.topic_names().next().unwrap_or_default();
    let one = Load { batch: 1, levels: Levels::none(), ..load.clone() };
    let template = Template::new(&one, Run::new().id, &topic, 0, None);
    let (mut starts, mut stops) = (histogram(), histogram());
    for nth in 0..options.times {
        record(&mut stops, broker.end(options.kill)?);
        let sends = |link: &mut Link| {
            let mut output = Vec::new();
            template.write(&mut output, 0, nth.into(), wall_exact_ms() as i64);
            link.write(&output)?;
            let mut code = None;
            while code.is_none() {
                link.read(None)?;
                link.answers(|answer| {
                    code = Some(answer.code());
                    Ok(())
                })?;
            }
            Ok(code == Some(Some(0)))
        };
        let (again, took) = Broker::start(&options.start, &load.address, sends)?;
        broker = again;
        record(&mut starts, took);
    }
    report.latencies.insert("start until a send".into(), Latencies::of(&starts));
    report.latencies.insert(if options.kill { "kill" } else { "stop" }.into(), Latencies::of(&stops));
    report.figures.insert("first start, seconds until it answered".into(), first.as_secs_f64());
    // As it is after the last start.
    report.judge(Usage::default(), broker.usage(), 0.0);
    broker.end(false)?;
    Ok(report)
}
