//! Many messages due in the same second.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    BenchError, Latencies, Levels, Load, Report,
    link::{Link, SCHEDULE_TOPIC},
    pull::read_to_end,
    report::{histogram, late, record},
    send::{Run, send_run, wall_exact_ms},
    usage::{Usage, thread_awake},
};

/// The length of the second, in milliseconds.
const SECOND_MS: i64 = 1000;
/// How long before the first message is sent, so that everything is ready.
const LEAD: Duration = Duration::from_millis(500);
/// Pause between two looks at how much is restored.
const LOOK: Duration = Duration::from_millis(20);
/// How long nothing may happen before the rest counts as missing.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends `load.count` messages so that as many as possible are due in the same second, and tells how many of those were stored again by its end.
///
/// No broker takes all of them within one second, so each level of the load gets its share, the longest first, sent when the second is just
/// as far away as the level waits. What was due in the second, and when it was stored again, is read from the store times afterwards.
///
/// # Errors
/// If the broker cannot be reached.
pub fn burst(load: &Load, progress: &AtomicU64) -> Result<Report, BenchError> {
    let mut link = Link::new(&load.address)?;
    let durations = link.level_durations()?;
    let mut waits = load.levels.waits(&durations)?;
    waits.sort_by_key(|(_, wait)| std::cmp::Reverse(*wait));
    let Some(longest) = waits.first().map(|(_, wait)| *wait) else {
        return Err(BenchError::Broker("a burst needs a level".into()));
    };
    for topic in load.topic_names() {
        link.create_topic(&topic, load.queues)?;
    }
    let run = Run::new();
    let mut from = Vec::new();
    for topic in load.topic_names() {
        for queue_id in 0..load.queues {
            from.push((topic.clone(), queue_id, link.max_offset(&topic, queue_id)?));
        }
    }
    let mut waits_from = Vec::new();
    for &(queue_id, wait) in &waits {
        waits_from.push((queue_id, wait, link.max_offset(SCHEDULE_TOPIC, queue_id).unwrap_or(0)));
    }
    let before = link.ends(load)?;
    let broker = load.broker();
    let (own, its) = (Usage::own(), broker.and_then(Usage::of));
    let (begun, awake) = (Instant::now(), thread_awake());

    // A whole second by the wall clock, in which all is to be due.
    let earliest = wall_exact_ms() + (longest + LEAD).as_secs_f64() * 1e3;
    let second = (earliest as i64 / SECOND_MS + 1) * SECOND_MS;
    let count = load.count.unwrap_or(0);
    let (mut acknowledged, mut sending) = (0, Duration::ZERO);
    let mut errors = std::collections::BTreeMap::new();
    for (nth, &(queue_id, wait)) in waits.iter().enumerate() {
        let share = count / waits.len() as u64 + u64::from((nth as u64) < count % waits.len() as u64);
        let until = (second - wait.as_millis() as i64) as f64 - wall_exact_ms();
        thread::sleep(late(until));
        let part = Load {
            count: Some(share),
            levels: Levels::one(queue_id.unsigned_abs() + 1),
            warm_up: Duration::ZERO,
            ..load.clone()
        };
        if share > 0 {
            // Numbers begin anew for each level, so each is a run of its own.
            let sent = send_run(&part, progress, Run { id: run.id.wrapping_add(nth as u64), ..run })?.report;
            acknowledged += sent.acknowledged;
            sending = sending.max(Duration::from_secs_f64(sent.seconds));
            errors.extend(sent.errors);
        }
    }
    let mut restored = 0;
    let mut last = Instant::now();
    while restored < acknowledged && last.elapsed() < PATIENCE + longest {
        let now = (link.ends(load)? - before) as u64;
        if now > restored {
            last = Instant::now();
            progress.store(now, Ordering::Relaxed);
        }
        restored = now;
        thread::sleep(LOOK);
    }
    let used = Usage::own().since(own);
    let its = broker.and_then(Usage::of).zip(its).map(|(now, before)| now.since(before));
    let elapsed = begun.elapsed();
    let busy = (thread_awake() - awake).as_secs_f64() / elapsed.as_secs_f64().max(1e-9);

    let (mut due_then, mut by_its_end, mut last_stored, mut missing) = (0_u64, 0_u64, second, 0_u64);
    let mut lateness = histogram();
    for (nth, (queue_id, wait, waits_from)) in waits_from.into_iter().enumerate() {
        let id = run.id.wrapping_add(nth as u64);
        let mut stored = HashMap::new();
        for (topic, queue_id, from) in &from {
            let records = read_to_end(&mut link, (topic, *queue_id), *from, id)?;
            stored.extend(records.into_iter().map(|one| (one.number, one.stored_ms)));
        }
        for waited in read_to_end(&mut link, (SCHEDULE_TOPIC, queue_id), waits_from, id)? {
            let due = waited.stored_ms + wait.as_millis() as i64;
            let again = stored.get(&waited.number).copied();
            missing += u64::from(again.is_none());
            if !(second..second + SECOND_MS).contains(&due) {
                continue;
            }
            due_then += 1;
            if let Some(again) = again {
                by_its_end += u64::from(again < second + SECOND_MS);
                last_stored = last_stored.max(again);
                record(&mut lateness, late((again - due) as f64));
            }
        }
    }
    let mut report = Report::new("burst", &load.address, due_then, elapsed, load.body_bytes);
    // What counts is the second, not how long it took to get there.
    report.seconds = ((last_stored - second) as f64 / 1e3).max(1e-3);
    report.per_second = due_then as f64 / report.seconds;
    report.megabytes_per_second = report.per_second * load.body_bytes as f64 / 1e6;
    report.acknowledged = acknowledged;
    report.errors = errors;
    report.latencies.insert("late, store time".into(), Latencies::of(&lateness));
    report.judge(used, its, busy);
    for (name, value) in [
        ("messages due in the second", due_then as f64),
        ("stored again by its end", by_its_end as f64),
        ("the last of them stored, ms after the end of the second", (last_stored - second - SECOND_MS) as f64),
        ("longest time to send the share of a level, seconds", sending.as_secs_f64()),
        ("missing", missing as f64),
    ] {
        report.figures.insert(name.into(), value);
    }
    if due_then < acknowledged {
        report.remarks.push(format!(
            "{} messages were due in other seconds, since the broker took longer than a second for a level's share; use more levels",
            acknowledged - due_then
        ));
    }
    Ok(report)
}
