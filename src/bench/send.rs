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
    link::{Extent, Link},
    load::Turns,
    report::histogram,
    template::{Template, request_of},
    timeline::Timeline,
    usage::{Usage, thread_awake},
};

/// Most requests in flight on a connection.
const IN_FLIGHT_MAX: usize = 1 << 16;
/// Most requests in flight on all connections at a fixed rate, and at least so many on each.
const OPEN_IN_FLIGHT_MAX: usize = 1 << 19;
const OPEN_IN_FLIGHT_MIN: usize = 64;
/// How far an answer may fall behind later ones before no more is sent on its connection, in windows.
const BEHIND_MAX: usize = 4;
/// Most bytes written in one call.
const WRITE_BYTES_MAX: usize = 256 * 1024;
/// Stack of a connection's thread: there may be ten thousand.
const STACK_BYTES: usize = 128 * 1024;

/// How a load is run, beyond what it is.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    /// Unique keys begin with it.
    pub(super) id: u64,
    /// Whether to keep which requests were acknowledged.
    pub(super) keeps_acknowledged: bool,
    /// Ends the run before its time.
    pub(super) stop: Option<&'a AtomicBool>,
}

/// What was sent.
pub(super) struct Sent {
    pub(super) report: Report,
    /// For each connection which of its requests were acknowledged, a bit each.
    pub(super) acknowledged: Vec<Vec<u64>>,
}

/// What one connection did.
struct Worked {
    latencies: Histogram<u64>,
    behind: Histogram<u64>,
    messages: u64,
    all: u64,
    errors: BTreeMap<i64, (u64, String)>,
    acknowledged: Vec<u64>,
    /// Awake and in all, since the warm-up.
    awake: (Duration, Duration),
    ran: Duration,
}

/// What the threads share.
struct Shared<'a> {
    load: &'a Load,
    run: Run<'a>,
    turns: Turns,
    templates: Vec<(u32, Vec<Template>)>,
    begun: Instant,
    timeline: Timeline,
    progress: &'a AtomicU64,
}

/// A request that waits for its answer.
#[derive(Clone, Copy)]
struct Slot {
    /// When it was sent, or should have been, in nanoseconds since the start; [`FREE`] for none.
    at: u64,
    request: u64,
}

const FREE: u64 = u64::MAX;

/// Sends what `load` says; `progress` counts the messages that were answered.
///
/// # Errors
/// If the broker cannot be reached or a topic not be created. Refused messages are counted in the report.
pub fn send(load: &Load, progress: &AtomicU64) -> Result<Report, BenchError> {
    Ok(send_run(load, progress, Run::new())?.report)
}

impl Run<'_> {
    /// A run whose messages can be told from those of others.
    pub(super) fn new() -> Self {
        Self { id: fastrand::u64(..), keeps_acknowledged: false, stop: None }
    }
}

/// As [`send`], as `run` says.
pub(super) fn send_run(load: &Load, progress: &AtomicU64, run: Run<'_>) -> Result<Sent, BenchError> {
    let mut link = Link::new(&load.address)?;
    for topic in load.topic_names() {
        link.create_topic(&topic, load.queues)?;
    }
    let before = Extent::of(&mut link, load);
    // It would be closed for its silence.
    drop(link);
    let broker = load.broker();
    let expected = load.warm_up + load.duration.min(Duration::from_secs(3600));
    let shared = Shared {
        load,
        run,
        turns: load.turns(),
        templates: templates(load, run.id),
        begun: Instant::now(),
        timeline: Timeline::new(expected),
        progress,
    };
    let mut usage = None;
    let done = AtomicBool::new(false);
    let mut crowd = None;
    let worked: Vec<Result<Worked, BenchError>> = thread::scope(|scope| {
        let panicked = |_| Err(BenchError::Broker("a thread panicked".into()));
        let no_thread = |error| Err(BenchError::Broker(format!("cannot start a thread: {error}")));
        let shared = &shared;
        let spawn =
            |number| thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, move || work(shared, number));
        let threads: Vec<_> = (0..load.connections).map(spawn).collect();
        let done = &done;
        let playing = load.crowd.map(|crowd| scope.spawn(move || crowd.play(&load.address, done)));
        thread::sleep(load.warm_up);
        usage = Some((Usage::own(), broker.and_then(Usage::of)));
        let join = |thread: std::io::Result<thread::ScopedJoinHandle<'_, _>>| match thread {
            Ok(thread) => thread.join().unwrap_or_else(panicked),
            Err(error) => no_thread(error),
        };
        let worked = threads.into_iter().map(join).collect();
        done.store(true, Ordering::Relaxed);
        crowd = playing.and_then(|playing| playing.join().ok()?.ok());
        worked
    });
    let own_after = Usage::own();
    let worked = worked.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (own_before, broker_before) = usage.unwrap_or_default();

    let (mut latencies, mut behind) = (histogram(), histogram());
    let mut errors: BTreeMap<i64, (u64, String)> = BTreeMap::new();
    let (mut messages, mut all, mut busy, mut ran) = (0, 0, 0_f64, Duration::ZERO);
    let mut acknowledged = Vec::new();
    for one in worked {
        latencies += &one.latencies;
        behind += &one.behind;
        messages += one.messages;
        all += one.all;
        busy = busy.max(one.awake.0.as_secs_f64() / one.awake.1.as_secs_f64().max(1e-9));
        ran = ran.max(one.ran);
        acknowledged.push(one.acknowledged);
        for (code, (times, remark)) in one.errors {
            errors.entry(code).or_insert((0, remark)).0 += times;
        }
    }
    let mut report = Report::new("send", &load.address, messages, ran.saturating_sub(load.warm_up), load.body_bytes);
    report.errors = errors;
    report.acknowledged = all;
    report.latencies.insert("answer".into(), Latencies::of(&latencies));
    if !behind.is_empty() {
        report.latencies.insert("written after its time".into(), Latencies::of(&behind));
    }
    let its = broker.and_then(Usage::of).zip(broker_before).map(|(now, before)| now.since(before));
    report.judge(own_after.since(own_before), its, busy);
    report.log = before.and_then(|before| before.growth(load, all));
    report.timeline = shared.timeline.moments(ran);
    if let Some(connected) = crowd {
        report.figures.insert("ill-behaved clients at the end".into(), connected as f64);
    }
    Ok(Sent { report, acknowledged })
}

fn work(shared: &Shared<'_>, number: usize) -> Result<Worked, BenchError> {
    let load = shared.load;
    let mut link = Link::new(&load.address)?;
    let mut worked = Worked {
        latencies: histogram(),
        behind: histogram(),
        messages: 0,
        all: 0,
        errors: BTreeMap::new(),
        acknowledged: Vec::new(),
        awake: (Duration::ZERO, Duration::ZERO),
        ran: Duration::ZERO,
    };
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(FREE - 1);
    let (window, interval) = match load.pace {
        Pace::InFlight(window) => (window.clamp(1, IN_FLIGHT_MAX), None),
        Pace::Rate(rate) => {
            let per_connection = rate / load.connections as f64 / load.batch as f64;
            let window = (OPEN_IN_FLIGHT_MAX / load.connections).clamp(OPEN_IN_FLIGHT_MIN, IN_FLIGHT_MAX);
            (window, Some(1e9 / per_connection.max(1e-6)))
        }
    };
    let mut slots = vec![Slot { at: FREE, request: 0 }; (window * BEHIND_MAX).next_power_of_two()];
    let mask = slots.len() - 1;
    let count = load.count.map_or(u64::MAX, |count| {
        let share = count / load.connections as u64 + u64::from((number as u64) < count % load.connections as u64);
        share.div_ceil(load.batch as u64)
    });
    let warm = nanos(load.warm_up);
    let end = warm.saturating_add(nanos(load.duration));
    // Connections of a fixed rate take turns.
    let first = interval.map_or(0.0, |interval| interval * number as f64 / load.connections as f64);
    let (mut requests, mut answered, mut told) = (0_u64, 0_u64, 0_u64);
    let messages = shared.templates[0].1[0].messages();
    let mut output = Vec::with_capacity(WRITE_BYTES_MAX + load.body_bytes * load.batch + 1024);
    let mut current = shared.timeline.current();
    let mut opaque_from_end = 0;
    let mut warmed = None;
    loop {
        let now = nanos(shared.begun.elapsed());
        if warmed.is_none() && now >= warm {
            warmed = Some((thread_awake(), now));
        }
        let open = now < end && !shared.run.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        let born = wall_ms();
        let mut due = None;
        while open && requests < count && ((requests - answered) as usize) < window && output.len() < WRITE_BYTES_MAX {
            let at = interval.map_or(now, |interval| (first + interval * requests as f64) as u64);
            if at > now {
                due = Some(at);
                break;
            }
            let slot = &mut slots[requests as usize & mask];
            if slot.at != FREE {
                break;
            }
            let (place, level) = shared.turns.of(number, requests);
            let message = ((number as u64) << 40) + requests * messages;
            template(&shared.templates, place, level).write(&mut output, requests, message, born);
            *slot = Slot { at, request: requests };
            if interval.is_some() && at >= warm {
                worked.behind.saturating_record((now - at).max(1));
            }
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
        link.read(until.map(|until| shared.begun + Duration::from_nanos(until)))?;
        let now = shared.begun.elapsed();
        current.at(now);
        let now = nanos(now);
        link.answers(|answer: Answer<'_>| {
            // What is no answer of ours is passed over, such as notices of the broker.
            let Some(request) = answer.opaque(&mut opaque_from_end).and_then(request_of) else { return Ok(()) };
            let slot = &mut slots[request as usize & mask];
            let Slot { at, request } = *slot;
            if at == FREE {
                return Ok(());
            }
            slot.at = FREE;
            answered += 1;
            match answer.code() {
                Some(0) => {
                    worked.all += messages;
                    let took = now.saturating_sub(at).max(1);
                    current.count(took, messages);
                    if at >= warm {
                        worked.messages += messages;
                        worked.latencies.saturating_record(took);
                    }
                    if shared.run.keeps_acknowledged {
                        acknowledge(&mut worked.acknowledged, request);
                    }
                }
                code => worked.errors.entry(code.unwrap_or(-1)).or_insert_with(|| (0, answer.remark())).0 += 1,
            }
            Ok(())
        })?;
        shared.progress.fetch_add(worked.all - told, Ordering::Relaxed);
        told = worked.all;
    }
    worked.ran = shared.begun.elapsed();
    if let Some((awake, since)) = warmed {
        worked.awake = (thread_awake() - awake, worked.ran.saturating_sub(Duration::from_nanos(since)));
    }
    Ok(worked)
}

fn acknowledge(bits: &mut Vec<u64>, request: u64) {
    let word = (request / 64) as usize;
    if bits.len() <= word {
        bits.resize(word + 1, 0);
    }
    bits[word] |= 1 << (request % 64);
}

/// The templates by level, and for each by topic and queue.
fn templates(load: &Load, run: u64) -> Vec<(u32, Vec<Template>)> {
    let mut levels = load.levels.turn();
    levels.sort_unstable();
    levels.dedup();
    let of_level = |level: u32| {
        let queues = |topic: String| (0..load.queues).map(move |queue_id| (topic.clone(), queue_id));
        let places = load.topic_names().flat_map(queues);
        places
            .map(|(topic, queue_id)| Template::new(load, run, &topic, queue_id, (level > 0).then_some(level)))
            .collect()
    };
    levels.into_iter().map(|level| (level, of_level(level))).collect()
}

/// The template of a place and a level; there are few levels.
fn template(templates: &[(u32, Vec<Template>)], place: usize, level: u32) -> &Template {
    let (_, places) = templates.iter().find(|(one, _)| *one == level).unwrap_or(&templates[0]);
    &places[place]
}

/// The wall clock in milliseconds since the epoch.
pub(super) fn wall_ms() -> i64 {
    wall_exact_ms() as i64
}

/// The wall clock in milliseconds since the epoch, and parts of them.
pub(super) fn wall_exact_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use bytes::BytesMut;

    use super::*;
    use crate::protocol::{
        RequestCode, ResponseCode,
        frame::{decode, encode_whole},
    };

    /// A broker that answers everything at once, but sends only when `held` of them have come over a connection.
    fn hesitant_broker(held: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for stream in listener.incoming() {
                thread::spawn(move || answer(stream.unwrap(), held));
            }
        });
        address
    }

    fn answer(mut stream: TcpStream, held: usize) {
        let (mut input, mut sends, mut chunk) = (BytesMut::new(), Vec::new(), [0; 4096]);
        while let Ok(bytes) = stream.read(&mut chunk)
            && bytes > 0
        {
            input.extend_from_slice(&chunk[..bytes]);
            while let Some(request) = decode(&mut input).unwrap() {
                let answer = encode_whole(&request.reply(ResponseCode::SUCCESS)).unwrap();
                if request.code != RequestCode::SEND_MESSAGE_V2 {
                    stream.write_all(&answer).unwrap();
                    continue;
                }
                sends.push(answer);
                if sends.len() == held {
                    stream.write_all(&sends.concat()).unwrap();
                }
            }
        }
    }

    #[test]
    fn at_a_fixed_rate_a_broker_that_stands_still_is_charged_for_all_who_would_have_come() {
        let load = Load {
            address: hesitant_broker(100),
            connections: 1,
            pace: Pace::Rate(1000.0),
            count: Some(100),
            warm_up: Duration::ZERO,
            ..Load::default()
        };
        let report = send(&load, &AtomicU64::new(0)).unwrap();

        // The first was due 99 ms before the last, the tenth from the end 9 ms.
        let latencies = &report.latencies["answer"];
        assert_eq!(latencies.count, 100);
        assert!(latencies.max >= 98.9 && latencies.p90 >= 88.0 && latencies.p50 >= 48.0, "{latencies:?}");
    }

    #[test]
    fn no_more_requests_are_in_flight_than_told_and_none_is_answered_twice() {
        let load = Load {
            address: hesitant_broker(8),
            connections: 1,
            pace: Pace::InFlight(8),
            count: Some(8),
            warm_up: Duration::ZERO,
            ..Load::default()
        };
        let run = Run { keeps_acknowledged: true, ..Run::new() };
        let sent = send_run(&load, &AtomicU64::new(0), run).unwrap();

        assert_eq!(sent.report.acknowledged, 8);
        assert_eq!(sent.acknowledged, [[0xff]]);
    }

    #[test]
    fn an_acknowledged_request_is_a_bit() {
        let mut bits = Vec::new();
        for request in [0, 63, 64, 200] {
            acknowledge(&mut bits, request);
        }
        assert_eq!(bits, [1 | 1 << 63, 1, 0, 1 << 8]);
    }
}
