//! What an audit of a store says of delayed messages: what waits, whether the progress on record is that of the log, what is parked, and what Apache
//! RocketMQ would make of it.
//!
//! The fold is that of the scheduler, what Apache RocketMQ delivered included (see `apache`). Which entry a restored record names is looked up in the
//! queue, as there; where the queue is wrong, the log counts, of which the audit remembers as much as it needs for that, up to [`CORRECTED_MAX`]
//! entries. Of what waits it remembers what Apache RocketMQ may have delivered, up to [`MATCHED_MAX`] records.
//!
//! When something is due is said by store time, moved by the jumps that the checkpoint holds.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    time::Duration,
};

use serde::Serialize;

use super::{
    DELAY_MS_MAX, DelayLevel, LevelTable, PARKED_REASON, about,
    apache::{Candidate, Matching, WithoutKey, has_unique_key, may_be_restored},
    delay_offset::{DELAY_OFFSET_FILE, DelayOffset},
    entries::{Origin, end_of},
    progress::{Progress, Run, RunState, Taken, Waiting, merged},
    restore::{DelayProperties, deliver_at},
    scheduler::origin_of,
    stamp::{Generation, Stamp},
};
use crate::{
    model::{DelayText, PARKING_TOPIC, PhysicalOffset, QueueOffset, SCHEDULE_TOPIC, Timestamp},
    record::RecordView,
    store::{
        AuditPart, AuditedRecord, ClockJumps, DamagedRange, Dispatched, Findings, QueueEntry, QueueFiles, QueueSummary,
        StateFile, StoreAudit, TagCode,
    },
};

/// Most entries whose right form is remembered because the queue has them wrong. Beyond, the progress is not judged.
const CORRECTED_MAX: usize = 1 << 20;
/// Most waiting records that are remembered, since Apache RocketMQ may have delivered them. What it delivered of the others counts as waiting.
const MATCHED_MAX: usize = 1 << 20;
/// Entries of a level read at once.
const BLOCK_ENTRIES: u64 = 512;

/// The part of an audit that belongs to delayed messages.
pub struct LevelAudit {
    levels: LevelTable,
    progress: Progress,
    has_checkpoint: bool,
    /// What `delayOffset.json` says.
    file: Result<Option<DelayOffset>, String>,
    /// The jumps of store time on record.
    jumps: ClockJumps,
    /// Whether the file counts where nothing better is known.
    believes_file: bool,
    matching: Matching,
    without_key: WithoutKey,
    /// Entries as they should be.
    corrected: HashMap<(DelayLevel, u64), QueueEntry>,
    is_blind: bool,
    blocks: BTreeMap<DelayLevel, (u64, Vec<QueueEntry>)>,
    parked: BTreeMap<String, u64>,
    restored: u64,
    twice: u64,
}

/// What an audit says of delayed messages.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DelaySummary {
    /// Each level of the table, and each other on which something waits.
    pub levels: Vec<LevelSummary>,
    /// Records in the log that the scheduler restored.
    pub restored: u64,
    /// Markers of parked messages, by their reason.
    pub parked: BTreeMap<String, u64>,
    /// What Apache RocketMQ would do otherwise with what waits, in words.
    #[serde(skip)]
    pub apache: Vec<String>,
}

/// What waits on one level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LevelSummary {
    /// The level.
    pub level: u32,
    /// How long it waits by the table; `None` for one that is not in it.
    pub delay_ms: Option<u64>,
    /// How long those that wait were told to, by what is stored with them; none for what Apache RocketMQ wrote.
    pub waiting_ms: Vec<u64>,
    /// Messages that wait.
    pub pending: u64,
    /// Bytes of their records.
    pub pending_bytes: u64,
    /// When the next is due, in milliseconds since the epoch; 0 if its queue entry does not say.
    pub next_deliver_at: Option<i64>,
    /// Parts that wait differently long, since the table was changed meanwhile.
    pub generations: u64,
}

impl LevelAudit {
    /// An audit for a table of levels; `file` is `delayOffset.json`, see [`LevelAudit::FILE`], `jumps` those of the store's checkpoint.
    pub fn new(levels: LevelTable, file: &StateFile, jumps: ClockJumps) -> Self {
        let file = match file.inspect(DelayOffset::parse) {
            [Ok(Some(found)), _] | [Ok(None), Ok(Some(found))] => Ok(Some(found)),
            [Ok(None), _] => Ok(None),
            [Err(reason), _] => Err(reason),
        };
        Self {
            levels,
            progress: Progress::default(),
            has_checkpoint: false,
            file,
            jumps,
            believes_file: true,
            matching: Matching::default(),
            without_key: WithoutKey::new(),
            corrected: HashMap::new(),
            is_blind: false,
            blocks: BTreeMap::new(),
            parked: BTreeMap::new(),
            restored: 0,
            twice: 0,
        }
    }

    /// Name of the file with RocketMQ's progress, in the folder `config`.
    pub const FILE: &str = DELAY_OFFSET_FILE;

    /// Whether a text is such a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse_file(text: &str) -> Result<(), String> {
        DelayOffset::parse(text).map(|_| ())
    }

    fn waits(&mut self, audited: &AuditedRecord<'_>, findings: &mut Findings) {
        let record = audited.record;
        let level = DelayLevel::of_queue(record.queue_id());
        let stamp = Stamp::from_field(record.prepared_offset());
        let queue_offset = record.queue_offset().0;
        let duration = stamp.deliver_at().map_or(Duration::ZERO, |said| said.since(record.stored_at()));
        if stamp.deliver_at().is_some_and(|said| said < record.stored_at()) {
            let text =
                format!("delay level {level}: is due before it was stored; it will wait as long as its level can");
            findings.damage("delay", audited.position, &text);
        }
        let properties = DelayProperties::of(record.properties());
        if properties.level != Some(level) || properties.real_topic.is_none() || properties.real_queue.is_none() {
            let text =
                format!("delay level {level}, offset {queue_offset}: says no real topic and queue; it will be parked");
            findings.note("delay", audited.position, &text);
        }
        let progress = self.progress.levels.entry(level).or_default();
        let longest = progress.longest_with(stamp.generation, duration);
        let longest = longest.max(self.levels.duration(level).unwrap_or_default());
        if queue_offset < progress.next {
            progress.cut(queue_offset);
            self.blocks.remove(&level);
            self.matching.forget(level);
            self.without_key.remove(&level);
        }
        let end = audited.position.plus(u64::from(record.total_bytes()));
        let candidate = Candidate { level, queue_offset, bytes: record.total_bytes(), end };
        if self.matching.len() < MATCHED_MAX {
            self.matching.add(record, candidate);
        }
        let said = self.file.as_ref().ok().and_then(|file| file.as_ref()?.offsets.get(&level).copied());
        if self.believes_file
            && stamp.generation == Generation::APACHE
            && queue_offset < said.unwrap_or(0)
            && !has_unique_key(record)
        {
            self.without_key.entry(level).or_default().push(candidate);
        }
        let due = deliver_at(record, audited.tag_code, longest);
        progress.add(&Waiting {
            queue_offset,
            position: audited.position,
            bytes: record.total_bytes(),
            generation: stamp.generation,
            duration,
            due: Some(due),
        });
        if audited.tag_code.is_none() {
            if self.corrected.len() < CORRECTED_MAX {
                let entry = QueueEntry { position: audited.position, bytes: record.total_bytes(), tag_code: due.0 };
                self.corrected.insert((level, queue_offset), entry);
            } else if !self.is_blind {
                self.is_blind = true;
                let text = "too many entries are wrong to judge what waits: --repair, then check again";
                findings.note("delay", format!("level {level}"), text);
            }
        }
    }

    fn restored(&mut self, audited: &AuditedRecord<'_>, queues: &QueueFiles, findings: &mut Findings) {
        let dispatched = Dispatched { position: audited.position, record: audited.record, replay: true };
        let Some(origin) = origin_of(&dispatched) else { return };
        if audited.record.topic() == PARKING_TOPIC {
            let reason = audited.record.properties().get(PARKED_REASON).unwrap_or("unknown").to_owned();
            *self.parked.entry(reason).or_default() += 1;
        } else {
            self.restored += 1;
        }
        // What was restored is no candidate any more. Of those that are alike the first one waited longest.
        self.matching.take(audited.record);
        let end = origin.end;
        let mut found = self.find(origin.level, &origin, queues);
        if found.is_none() && origin.generation != Generation::APACHE {
            // The damaged queue of a waiting record may be that of another level.
            let levels: Vec<_> = self.progress.levels.keys().copied().collect();
            found = levels.into_iter().find_map(|level| self.find(level, &origin, queues));
        }
        let Some((level, queue_offset, entry)) = found else {
            self.not_waiting(audited, origin.level, end, origin.generation, queues, findings);
            return;
        };
        let stored_at = audited.record.stored_at();
        let progress = self.progress.levels.get(&level);
        let run = progress.and_then(|level| level.runs.get(level.run_at(queue_offset)?));
        let said = Timestamp(entry.tag_code);
        let waited_from = said.minus(run.map_or(Duration::ZERO, |run| run.duration));
        let due = self.jumps.due_as_of(waited_from, said, stored_at);
        if origin.generation != Generation::APACHE && stored_at < due {
            let text = format!(
                "delay level {level}, offset {queue_offset}: was restored {} ms before it was due",
                due.since(stored_at).as_millis()
            );
            findings.damage("delay", audited.position, &text);
        }
        let next_position = self.entry(level, queue_offset + 1, queues).map_or(end, |next| next.position);
        self.corrected.remove(&(level, queue_offset));
        let Some(progress) = self.progress.levels.get_mut(&level) else { return };
        if let Taken::Skipping(skipped) = progress.take(queue_offset, entry.bytes, next_position) {
            let text = format!(
                "delay level {level}: {skipped} messages before offset {queue_offset} were not restored, or what was is damaged; a start that reads the whole log restores them again, as --repair does"
            );
            findings.note("delay", audited.position, &text);
        }
    }

    /// The waiting record of a restored one, if it waits in a level.
    fn find(
        &mut self,
        level: DelayLevel,
        origin: &Origin,
        queues: &QueueFiles,
    ) -> Option<(DelayLevel, u64, QueueEntry)> {
        let ranges = self.progress.levels.get(&level)?.where_restored_from(origin.generation);
        let mut found = ranges.first().and_then(|range| {
            let entry = self.entry(level, range.start, queues)?;
            (end_of(&entry) == origin.end).then_some((range.start, entry))
        });
        for range in ranges {
            found = found.or_else(|| self.ending_at(level, range, origin.end, queues));
        }
        found.map(|(queue_offset, entry)| (level, queue_offset, entry))
    }

    /// A record that Apache RocketMQ may have restored.
    fn restored_by_apache(&mut self, record: &RecordView<'_>) {
        while let Some(Candidate { level, queue_offset, bytes, end }) = self.matching.take(record) {
            let Some(progress) = self.progress.levels.get_mut(&level) else { continue };
            if progress.take(queue_offset, bytes, end) != Taken::NotWaiting {
                return;
            }
        }
    }

    /// A restored record whose waiting one does not wait any more: it is gone, or was restored before.
    fn not_waiting(
        &mut self,
        audited: &AuditedRecord<'_>,
        level: DelayLevel,
        end: PhysicalOffset,
        generation: Generation,
        queues: &QueueFiles,
        findings: &mut Findings,
    ) {
        if end <= audited.log_first || self.is_blind {
            return;
        }
        let next = self.progress.levels.get(&level).map_or(0, |level| level.next);
        let Some((queue_offset, entry)) = self.ending_at(level, 0..next, end, queues) else { return };
        // One that cannot be read never counted as waiting: this is what became of it.
        let is_damaged = |range: &DamagedRange| range.from < end.0 && range.to > entry.position.0;
        if audited.damaged.iter().any(is_damaged) {
            return;
        }
        self.twice += 1;
        let text = format!("delay level {level}, offset {queue_offset}: was restored twice");
        // What another broker repeated on a shared store is its own, and what it delivered itself did not wait here.
        if generation != Generation::APACHE {
            findings.damage("delay", audited.position, &text);
        }
    }

    /// The entry at a queue offset, as it should be.
    fn entry(&mut self, level: DelayLevel, at: u64, queues: &QueueFiles) -> Option<QueueEntry> {
        if let Some(entry) = self.corrected.get(&(level, at)) {
            return Some(*entry);
        }
        let (from, block) = self.blocks.entry(level).or_default();
        let index = at.checked_sub(*from).and_then(|index| usize::try_from(index).ok());
        if let Some(entry) = index.and_then(|index| block.get(index)) {
            return Some(*entry);
        }
        *block = queues.read(SCHEDULE_TOPIC, level.queue_id(), QueueOffset(at), BLOCK_ENTRIES).unwrap_or_default();
        *from = at;
        block.first().copied()
    }

    /// The entry within a range whose record ends at `end`: positions ascend within a queue.
    fn ending_at(
        &mut self,
        level: DelayLevel,
        range: Range<u64>,
        end: PhysicalOffset,
        queues: &QueueFiles,
    ) -> Option<(u64, QueueEntry)> {
        let Range { start: mut low, end: mut high } = range;
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.corrected.get(&(level, middle)).copied();
            let entry = entry.or_else(|| {
                queues.read(SCHEDULE_TOPIC, level.queue_id(), QueueOffset(middle), 1).ok()?.first().copied()
            });
            // What the files begin behind, or what is blank, lies in front.
            let at = entry.filter(|entry| !entry.is_blank()).map_or(PhysicalOffset::ZERO, |entry| end_of(&entry));
            match at.cmp(&end) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return entry.map(|entry| (middle, entry)),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Compares `delayOffset.json`, and says what waits.
    pub fn finish(&mut self, store: &mut StoreAudit, now: Timestamp) -> DelaySummary {
        self.check_file(&store.ranges, &mut store.findings);
        let read = &store.files;
        let mut levels: Vec<DelayLevel> = self.levels.iter().map(|(level, _)| level).collect();
        levels.extend(self.progress.levels.keys().filter(|level| **level > self.levels.max()));
        let mut summary =
            DelaySummary { restored: self.restored, parked: self.parked.clone(), ..DelaySummary::default() };
        for level in levels {
            let runs = self.runs(level);
            let next_deliver_at = runs.iter().map(|run| self.due(level, run, run.from, read).0).min();
            let progress = self.progress.levels.get(&level);
            let pending = progress.map_or(0, super::progress::LevelProgress::pending);
            let delay = self.levels.duration(level);
            if delay.is_none() && pending == 0 {
                continue;
            }
            summary.levels.push(LevelSummary {
                level: level.number(),
                delay_ms: delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
                waiting_ms: {
                    let mut waiting: Vec<u64> = runs.iter().map(|run| run.duration_ms).filter(|ms| *ms > 0).collect();
                    waiting.sort_unstable();
                    waiting.dedup();
                    waiting
                },
                pending,
                pending_bytes: progress.map_or(0, |progress| progress.pending_bytes),
                next_deliver_at,
                generations: runs.len() as u64,
            });
            self.apache(level, &runs, read, now, &mut summary.apache);
        }
        let parked: u64 = summary.parked.values().sum();
        if parked > 0 {
            summary.apache.push(format!(
                "leave {parked} parked messages in the topic {PARKING_TOPIC}: it does not know what they are"
            ));
        }
        summary
    }

    /// When an entry of a run is due, as far as its entry tells: what Apache RocketMQ wrote at the latest then.
    fn due(&mut self, level: DelayLevel, run: &RunState, at: u64, queues: &QueueFiles) -> Timestamp {
        let Some(entry) = self.entry(level, at, queues) else { return Timestamp::EPOCH };
        self.jumps.due(self.stored_at(level, run, &entry), Timestamp(entry.tag_code))
    }

    /// When the record of an entry was stored; of what Apache RocketMQ wrote, the earliest that can be.
    fn stored_at(&self, level: DelayLevel, run: &RunState, entry: &QueueEntry) -> Timestamp {
        let waits = if run.generation == Generation::APACHE {
            self.progress.longest(level, &self.levels)
        } else {
            Duration::from_millis(run.duration_ms)
        };
        Timestamp(entry.tag_code).minus(waits)
    }

    fn runs(&self, level: DelayLevel) -> Vec<RunState> {
        self.progress.levels.get(&level).map(|progress| merged(&progress.runs)).unwrap_or_default()
    }

    fn check_file(&self, queues: &BTreeMap<(String, u32), QueueSummary>, findings: &mut Findings) {
        let place = format!("config/{DELAY_OFFSET_FILE}");
        // Damage to the file itself is found where all state files are looked at.
        let Ok(Some(file)) = &self.file else { return };
        for (level, offset) in &file.offsets {
            let queue = queues.get(&(SCHEDULE_TOPIC.to_owned(), level.queue_id().0));
            let max = queue.map_or(0, |queue| queue.max);
            if *offset > max {
                let text = format!("says that level {level} is delivered up to {offset}, but its queue ends at {max}");
                findings.damage("delay", &place, &text);
                continue;
            }
            let undelivered =
                self.runs(*level).iter().find(|run| run.generation != Generation::APACHE).map(|run| run.from);
            if let Some(from) = undelivered.filter(|from| from < offset) {
                let text = format!(
                    "says that level {level} is delivered up to {offset}, but {from} still waits: Apache RocketMQ would never deliver it"
                );
                // Where the checkpoint is not believed, Apache RocketMQ may have delivered that itself.
                if self.has_checkpoint {
                    findings.damage("delay", &place, &text);
                } else {
                    findings.note("delay", &place, &text);
                }
            }
        }
    }

    /// What Apache RocketMQ would do otherwise with a level.
    ///
    /// Source: Apache RocketMQ 5.3.3, `ScheduleMessageService.DeliverDelayedMessageTimerTask`, `correctDeliverTimestamp`.
    fn apache(
        &mut self,
        level: DelayLevel,
        runs: &[RunState],
        read: &QueueFiles,
        now: Timestamp,
        says: &mut Vec<String>,
    ) {
        let Some(delay) = self.levels.duration(level) else {
            let pending: u64 = runs.iter().map(|run| run.to - run.from).sum();
            if pending > 0 {
                says.push(format!(
                    "never deliver the {pending} messages that wait on level {level}: its table ends at level {}",
                    self.levels.max()
                ));
            }
            return;
        };
        let next = self.progress.levels.get(&level).map_or(0, |level| level.next);
        let file = self.file.as_ref().ok().and_then(|file| file.as_ref());
        let begins = file.and_then(|file| file.offsets.get(&level).copied()).unwrap_or(0).min(next);
        let pending_behind: u64 = runs.iter().map(|run| run.to.saturating_sub(run.from.max(begins))).sum();
        let pending_before: u64 = runs.iter().map(|run| run.to.min(begins).saturating_sub(run.from)).sum();
        let again = (next - begins).saturating_sub(pending_behind);
        if again > 0 {
            says.push(format!(
                "deliver {again} messages of level {level} again: {DELAY_OFFSET_FILE} says that it begins at {begins}"
            ));
        }
        if pending_before > 0 {
            says.push(format!("never deliver {pending_before} messages of level {level}: {DELAY_OFFSET_FILE} says that it begins at {begins}"));
        }
        let limit = now.plus(delay);
        for run in runs {
            let early = self.due_behind(level, run, limit, read);
            if early > 0 {
                let by = about(self.due(level, run, run.to - 1, read).since(now));
                says.push(format!(
                    "deliver {early} messages of level {level} at once, since they wait longer than the {} of the table now; the last of them {by} early",
                    DelayText(delay)
                ));
            }
            let moved = self.moved(level, run, read);
            if moved > 0 {
                let said = self.entry(level, run.from, read).map_or(0, |entry| entry.tag_code);
                let by = about(self.due(level, run, run.from, read).since(Timestamp(said)));
                says.push(format!(
                    "deliver {moved} messages of level {level} up to {by} early: the clock was set forward after they were stored"
                ));
            }
        }
        if runs.windows(2).any(|pair| {
            let first = self.entry(level, pair[0].to - 1, read).map_or(0, |entry| entry.tag_code);
            let second = self.entry(level, pair[1].from, read).map_or(0, |entry| entry.tag_code);
            first > second && first <= limit.0
        }) {
            says.push(format!("hold up messages of level {level} behind older ones that wait longer"));
        }
    }

    /// How many entries of a run are due behind a time.
    fn due_behind(&mut self, level: DelayLevel, run: &RunState, limit: Timestamp, read: &QueueFiles) -> u64 {
        run.to - self.first_such(level, run, read, |_, entry| entry.tag_code > limit.0)
    }

    /// How many entries of a run are due later than they say, for a jump of store time.
    fn moved(&mut self, level: DelayLevel, run: &RunState, read: &QueueFiles) -> u64 {
        let is_unmoved = |audit: &Self, entry: &QueueEntry| {
            let said = Timestamp(entry.tag_code);
            audit.jumps.due(audit.stored_at(level, run, entry), said) == said
        };
        self.first_such(level, run, read, is_unmoved) - run.from
    }

    /// The first entry of a run that is such, as all behind it are.
    fn first_such(
        &mut self,
        level: DelayLevel,
        run: &RunState,
        read: &QueueFiles,
        is_such: impl Fn(&Self, &QueueEntry) -> bool,
    ) -> u64 {
        let (mut low, mut high) = (run.from, run.to);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.entry(level, middle, read);
            if entry.is_some_and(|entry| is_such(self, &entry)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }
}

impl AuditPart for LevelAudit {
    fn name(&self) -> &'static str {
        super::plugin::NAME
    }

    fn begin(&mut self, has_checkpoint: bool) {
        self.has_checkpoint = has_checkpoint;
    }

    fn tag_code(&self, record: &RecordView<'_>) -> Option<TagCode> {
        if record.topic() != SCHEDULE_TOPIC {
            return None;
        }
        if let Some(said) = Stamp::from_field(record.prepared_offset()).deliver_at() {
            return Some(TagCode::Exactly(said.0));
        }
        let stored_at = record.stored_at();
        Some(TagCode::Between(stored_at.0, stored_at.plus(Duration::from_millis(DELAY_MS_MAX)).0))
    }

    fn record(&mut self, audited: &AuditedRecord<'_>, queues: &mut QueueFiles, findings: &mut Findings) {
        if audited.record.topic() == SCHEDULE_TOPIC {
            if audited.record.sys_flag().is_queued() {
                self.waits(audited, findings);
            }
        } else if audited.record.prepared_offset() > 0 {
            self.restored(audited, queues, findings);
        } else if may_be_restored(audited.record) {
            self.restored_by_apache(audited.record);
        }
    }

    fn checkpoint(&mut self, state: Option<&[u8]>, findings: &mut Findings) {
        let place = "latermq.checkpoint";
        let Some(said) = state.and_then(Progress::from_state) else {
            findings.note("delay", place, "holds no progress of the delay levels; the next start reads the whole log");
            return;
        };
        if !self.is_blind {
            let ours = |runs: &[Run]| -> Vec<RunState> {
                merged(runs).into_iter().filter(|run| run.generation != Generation::APACHE).collect()
            };
            let levels: std::collections::BTreeSet<_> =
                self.progress.levels.keys().chain(said.levels.keys()).copied().collect();
            for level in levels {
                let of = |progress: &Progress| {
                    progress.levels.get(&level).map(|level| ours(&level.runs)).unwrap_or_default()
                };
                let (found, wanted) = (of(&said), of(&self.progress));
                if found != wanted {
                    let text = |runs: &[RunState]| {
                        let runs: Vec<String> = runs.iter().map(|run| format!("{} to {}", run.from, run.to)).collect();
                        if runs.is_empty() { "nothing".to_owned() } else { runs.join(", ") }
                    };
                    let text =
                        format!("says that on level {level} {} waits, but by the log {}", text(&found), text(&wanted));
                    findings.damage("delay", place, &text);
                }
            }
        }
        // The broker goes on from here: what Apache RocketMQ wrote and delivered is known nowhere else.
        self.progress = said;
        self.believes_file = false;
        self.without_key.clear();
    }

    fn ended(&mut self) {
        for (level, candidates) in std::mem::take(&mut self.without_key) {
            let said = self.file.as_ref().ok().and_then(|file| file.as_ref()?.offsets.get(&level).copied());
            let Some(progress) = self.progress.levels.get_mut(&level) else { continue };
            if said.is_none_or(|said| said > progress.next) {
                continue;
            }
            for candidate in candidates {
                progress.take(candidate.queue_offset, candidate.bytes, candidate.end);
            }
        }
    }

    fn pinned_from(&self) -> Option<PhysicalOffset> {
        self.progress.oldest_position()
    }
}
