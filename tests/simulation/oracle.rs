//! The judgement: each acknowledged message can be read exactly once in its real topic, in order, and never early.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ledger::{Id, Ledger},
    reader::{Queue, Reader, Sighting},
};

/// Compares what was seen with what was acknowledged, when everything is past due and dispatched.
///
/// # Errors
/// What is wrong.
pub(crate) fn judge(ledger: &Ledger, reader: &Reader) -> Result<(), String> {
    let mut waiting: BTreeMap<Id, &Sighting> = BTreeMap::new();
    for (queue, at, sighting) in reader.waiting() {
        if let Some(first) = waiting.insert(sighting.id, sighting) {
            return Err(format!("message {} waits twice, at {first:?} and in {queue:?} {at}", sighting.id));
        }
    }
    let parked: BTreeSet<Id> = reader.parked().map(|(_, _, sighting)| sighting.id).collect();
    // One whose marker was damaged since may be restored after all.
    let sound = reader.parked().filter(|(_, _, sighting)| !reader.is_damaged(sighting));
    let parked_for_good: BTreeSet<Id> = sound.map(|(_, _, sighting)| sighting.id).collect();
    let mut delivered: BTreeMap<Id, &Sighting> = BTreeMap::new();
    for (queue, at, sighting) in reader.delivered() {
        let first = delivered.insert(sighting.id, sighting).filter(|first| first.position != sighting.position);
        // What was damaged in the log comes again.
        if let Some(first) = first.filter(|first| !reader.is_damaged(first) && !reader.is_damaged(sighting)) {
            return Err(format!("message {} repeated: {first:?}, and in {queue:?} {at} {sighting:?}", sighting.id));
        }
    }
    for (id, message) in &ledger.messages {
        let is_promised = message.acknowledged && !message.excused || waiting.contains_key(id);
        let must_arrive = is_promised && !message.exempt && !message.damaged;
        let is_parked = parked.contains(id);
        if must_arrive && !delivered.contains_key(id) && !(message.may_be_parked && is_parked) {
            return Err(format!("message {id} lost: {message:?}, waited as {:?}", waiting.get(id)));
        }
        let arrived_sound = delivered.get(id).is_some_and(|arrived| !reader.is_damaged(arrived));
        if parked_for_good.contains(id) && arrived_sound && !message.exempt && !message.damaged {
            return Err(format!("message {id} delivered, and parked: {message:?}"));
        }
        let (Some(waited), Some(arrived)) = (waiting.get(id), delivered.get(id)) else {
            if message.level > 0 && delivered.contains_key(id) && !message.exempt && !message.unordered {
                return Err(format!("message {id} never waited: {message:?}"));
            }
            continue;
        };
        if arrived.stored_at < waited.stored_at.plus(message.delay) && !reader.is_damaged(waited) {
            return Err(format!("message {id} early: {message:?}, waited as {waited:?}, arrived as {arrived:?}"));
        }
    }
    in_order(ledger, reader, &delivered)?;
    times_ascend(reader)
}

/// Within a level and generation messages arrive in the order in which they were stored, unless one could not be read for a while.
fn in_order(ledger: &Ledger, reader: &Reader, delivered: &BTreeMap<Id, &Sighting>) -> Result<(), String> {
    let run = |(queue, _, waited): (&Queue, u64, &Sighting)| (queue.1, waited.generation);
    let mut waiting: Vec<((u32, u16), &Sighting)> = reader.waiting().map(|seen| (run(seen), seen.2)).collect();
    waiting.sort_by_key(|(run, waited)| (*run, waited.position));
    let mut last: Option<((u32, u16), Id, &Sighting)> = None;
    for (run, waited) in waiting {
        let arrived = delivered.get(&waited.id).filter(|_| !ledger.message(waited.id).unordered);
        let Some(arrived) = arrived else { continue };
        if let Some((last_run, before, before_arrived)) = last
            && last_run == run
            && before_arrived.position > arrived.position
        {
            return Err(format!("message {before} arrived after {}: {before_arrived:?}, {arrived:?}", waited.id));
        }
        last = Some((run, waited.id, arrived));
    }
    Ok(())
}

/// Store time never falls along the log.
fn times_ascend(reader: &Reader) -> Result<(), String> {
    let mut all: Vec<&Sighting> = reader.waiting().chain(reader.delivered()).map(|(_, _, sighting)| sighting).collect();
    all.retain(|sighting| !reader.is_damaged(sighting));
    all.sort_by_key(|sighting| sighting.position);
    match all.windows(2).find(|pair| pair[0].stored_at > pair[1].stored_at) {
        Some(pair) => Err(format!("store time falls from {:?} to {:?}", pair[0], pair[1])),
        None => Ok(()),
    }
}

/// What was damaged while it waited and is lost has left a marker.
///
/// # Errors
/// One that has not: then the store must have reported the damage.
pub(crate) fn all_reported(ledger: &Ledger, reader: &Reader) -> Result<(), String> {
    let seen: BTreeSet<Id> = reader.delivered().chain(reader.parked()).map(|(_, _, sighting)| sighting.id).collect();
    let silent = ledger.messages.iter().find(|(id, message)| {
        let is_promised = message.acknowledged && !message.excused && !message.exempt;
        message.damaged && is_promised && !seen.contains(id)
    });
    silent.map_or(Ok(()), |(id, message)| Err(format!("message {id} is lost without a report: {message:?}")))
}
