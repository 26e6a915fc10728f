//! The audit: every queue is read from its first offset on and compared with the ledger.

use std::{collections::BTreeMap, fmt, time::Duration};

use latermq::{
    model::{RETRY_PREFIX, SCHEDULE_TOPIC, names},
    record::Record,
};

use crate::{
    client::{Client, key_of, now_ms},
    ledger::{Book, Sent},
    process::wait_until,
};

/// How long the last messages may take beyond their delay.
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// A record that stands in a queue.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
    pub(crate) physical_offset: u64,
    pub(crate) stored_at: i64,
}

/// What the audit found: nothing, if all promises were kept.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Messages that were acknowledged, and how many of them waited.
    pub(crate) acknowledged: usize,
    pub(crate) delayed: usize,
    pub(crate) lost: Vec<String>,
    pub(crate) early: Vec<String>,
    pub(crate) twice: Vec<String>,
    pub(crate) out_of_order: Vec<String>,
    /// Holes in queues, records that nobody sent, bodies that are not what was sent, and the like.
    pub(crate) others: Vec<String>,
}

impl Findings {
    /// Whether every promise was kept.
    pub(crate) fn is_clean(&self) -> bool {
        [&self.lost, &self.early, &self.twice, &self.out_of_order, &self.others].iter().all(|found| found.is_empty())
    }

    /// Fails unless every promise was kept.
    pub(crate) fn assert_clean(&self, what: &str) {
        assert!(self.is_clean(), "{what}: {self}");
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, early, twice, out_of_order, others, .. } = self;
        write!(f, "{} acknowledged, {} of them delayed", self.acknowledged, self.delayed)?;
        let kinds = [
            ("lost", lost),
            ("early", early),
            ("twice", twice),
            ("out of order", out_of_order),
            ("other findings", others),
        ];
        for (kind, found) in kinds {
            write!(f, "; {} {kind}", found.len())?;
        }
        for (kind, found) in kinds {
            for text in found.iter().take(8) {
                write!(f, "\n  {kind}: {text}")?;
            }
        }
        Ok(())
    }
}

/// The durations of the levels of a table in seconds, minutes and hours, level 1 first.
pub(crate) fn delays(levels: &str) -> Vec<Duration> {
    let seconds = |token: &str| {
        let (number, unit) = token.split_at(token.len() - 1);
        number.parse::<u64>().unwrap()
            * [("s", 1), ("m", 60), ("h", 3600)].iter().find(|(name, _)| *name == unit).unwrap().1
    };
    levels.split(' ').map(|token| Duration::from_secs(seconds(token))).collect()
}

/// Waits until nothing waits any more, and everything is dispatched.
pub(crate) fn drain(client: &mut Client) {
    drain_to(client, 0);
}

/// Waits until so many messages wait, and everything is dispatched.
pub(crate) fn drain_to(client: &mut Client, pending: u64) {
    wait_until("all that is due is delivered", DRAIN_MAX, || {
        client.pending().unwrap() == pending && client.figure("dispatchBehindBytes").unwrap() == 0.0
    });
}

/// Audits a broker over the wire.
pub(crate) fn audit(client: &mut Client, book: &Book, levels: &str) -> Findings {
    let topics = client.topics().unwrap();
    audit_with(book, &delays(levels), &topics, |topic, queue_id| client.read_all(topic, queue_id).unwrap())
}

/// Audits by reading queues in any way. `topics` are the topics there are, with the number of their queues.
pub(crate) fn audit_with(
    book: &Book,
    delays: &[Duration],
    topics: &BTreeMap<String, i32>,
    mut read: impl FnMut(&str, i32) -> Vec<Record>,
) -> Findings {
    let mut findings = Findings::default();
    let began = now_ms();
    let mut arrived: BTreeMap<(String, String), Vec<Found>> = BTreeMap::new();
    let mut waited: BTreeMap<(String, String), Vec<(usize, Found)>> = BTreeMap::new();
    let mut levels: Vec<Vec<(String, String)>> = Vec::new();
    let mut times: Vec<(u64, i64)> = Vec::new();

    let is_ours = |topic: &str| {
        topic == SCHEDULE_TOPIC
            || topic.starts_with(RETRY_PREFIX)
            || book.sent.keys().any(|(known, _)| known.as_str() == topic)
    };
    for (topic, &queues) in topics.iter().filter(|(topic, _)| is_ours(topic)) {
        for queue_id in 0..queues {
            let mut in_level = Vec::new();
            for (record, expected) in read(topic, queue_id).iter().zip(0..) {
                let view = record.view();
                let key = key_of(record);
                let found = Found {
                    queue_id: i32::try_from(view.queue_id().0).unwrap(),
                    queue_offset: i64::try_from(view.queue_offset().0).unwrap(),
                    physical_offset: view.physical_offset().0,
                    stored_at: view.stored_at().0,
                };
                times.push((found.physical_offset, found.stored_at));
                let what = format!("{key} at {expected} of {topic} {queue_id}: {found:?}");
                if (found.queue_id, found.queue_offset) != (queue_id, expected) || view.topic() != topic {
                    findings.others.push(format!("the queue is not contiguous: {what} of {}", view.topic()));
                }
                let real_topic = view.properties().get(names::REAL_TOPIC);
                let place = if topic == SCHEDULE_TOPIC {
                    (real_topic.unwrap_or_default().to_owned(), key)
                } else {
                    (topic.clone(), key)
                };
                match book.sent.get(&place) {
                    None => findings.others.push(format!("nobody sent {what}")),
                    Some(sent) if sent.message.body() != view.body() => {
                        findings.others.push(format!("another body than was sent: {what}"));
                    }
                    Some(_) => {}
                }
                if topic == SCHEDULE_TOPIC {
                    in_level.push(place.clone());
                    waited.entry(place).or_default().push((usize::try_from(queue_id).unwrap() + 1, found));
                } else {
                    arrived.entry(place).or_default().push(found);
                }
            }
            if topic == SCHEDULE_TOPIC {
                levels.push(in_level);
            }
        }
    }

    for (place, sent) in &book.sent {
        let arrived = arrived.get(place).map_or(&[][..], Vec::as_slice);
        let waited = waited.get(place).map_or(&[][..], Vec::as_slice);
        judge(&mut findings, place, sent, arrived, waited, delays, began);
    }
    for places in &levels {
        let mut last: Option<(&(String, String), u64)> = None;
        for place in places.iter().filter(|place| book.sent.contains_key(place)) {
            let Some(position) = arrived.get(place).map(|found| found[0].physical_offset) else { continue };
            if let Some((before, before_position)) = last
                && before_position > position
            {
                findings.out_of_order.push(format!("{before:?} was stored before {place:?} and arrived behind it"));
            }
            last = Some((place, position));
        }
    }
    for ((topic, queue_id, queue_offset), seen) in &book.seen {
        let place = (topic.clone(), seen.key.clone());
        let stands = arrived.get(&place).and_then(|found| found.first());
        if stands.is_none_or(|found| (found.queue_id, found.queue_offset) != (*queue_id, *queue_offset)) {
            let place = format!("{topic} {queue_id} at {queue_offset}");
            findings.others.push(format!("{} was seen in {place}, and now: {stands:?}", seen.key));
        }
        if let Some((level, found)) = waited.get(&place).and_then(|waited| waited.first()) {
            let waited_ms = seen.at - found.stored_at;
            if waited_ms < ms(delays[level - 1]) {
                findings.early.push(format!("{place:?} of level {level} was seen {waited_ms} ms after it was stored"));
            }
        }
    }
    times.sort_unstable();
    for pair in times.windows(2).filter(|pair| pair[0].1 > pair[1].1) {
        findings.others.push(format!("the store time falls along the log: {pair:?}"));
    }
    findings
}

fn judge(
    findings: &mut Findings,
    place: &(String, String),
    sent: &Sent,
    arrived: &[Found],
    waited: &[(usize, Found)],
    delays: &[Duration],
    now: i64,
) {
    let Sent { message, acknowledged, .. } = sent;
    let what = format!("{place:?} {sent:?}: arrived {arrived:?}, waited {waited:?}");
    findings.acknowledged += usize::from(*acknowledged);
    findings.delayed += usize::from(*acknowledged && message.level > 0);
    if arrived.len() > 1 || waited.len() > 1 {
        findings.twice.push(what.clone());
    }
    let is_due = waited.first().is_none_or(|(level, waited)| waited.stored_at + ms(delays[level - 1]) <= now);
    if arrived.is_empty() && (*acknowledged || !waited.is_empty()) && is_due {
        findings.lost.push(what.clone());
    }
    if message.level == 0 && !waited.is_empty() || message.level > 0 && !arrived.is_empty() && waited.is_empty() {
        findings.others.push(format!("waited or not, and should have been the other: {what}"));
    }
    let (Some(found), first_waited) = (arrived.first(), waited.first()) else { return };
    if sent.queue_id.is_some_and(|queue_id| queue_id != found.queue_id) {
        findings.others.push(format!("in another queue: {what}"));
    }
    let told = first_waited.map_or(found, |(_, waited)| waited);
    if sent.queue_offset.is_some_and(|queue_offset| queue_offset != told.queue_offset) {
        findings.others.push(format!("not at the queue offset that was answered: {what}"));
    }
    if let Some((level, waited)) = first_waited {
        if *level != message.level {
            findings.others.push(format!("on another level: {what}"));
        }
        if found.stored_at - waited.stored_at < ms(delays[*level - 1]) {
            findings.early.push(what);
        }
    }
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap()
}
