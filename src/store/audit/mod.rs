//! Looking at a store without opening it: does everything in it agree with the log, and if not, what is wrong.
//!
//! One pass over the log, in order, through a buffer of a few MiB. What is derived from it is compared on the way: each queue and the index have a
//! cursor of their own, for their entries lie in the order of the log, too. Memory does not grow with the number of messages. Nothing is
//! mapped, so that a sector that cannot be read is an error and no signal; nothing is written.
//!
//! What is above the last checkpoint after a kill is not damage: the next start makes it good, as recovery says.
//!
//! | file | what it is |
//! | --- | --- |
//! | `finding` | what an audit has to say |
//! | `segments` | the log, read through a buffer |
//! | `queues` | a cursor for each queue |
//! | `index_files` | a cursor for the index |
//! | `repair` | building anew what is derived |

mod finding;
mod index_files;
mod queues;
mod repair;
mod segments;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

pub use finding::{Finding, Findings, Grade};
pub use queues::{MissingQueue, QueueFiles, QueueSummary};
pub use repair::{Repaired, SET_ASIDE_FOLDER, repair};

use self::{
    index_files::IndexFiles,
    segments::{SegmentFile, SegmentReader, find_segments},
};
use super::{
    StateFile, StoreError, StoreOptions,
    checkpoint::{Checkpoint, CheckpointFiles, Derived, FoundCheckpoint, LastRecord},
    clock::LastTimes,
    consume_queues::queue_file_lengths,
    deletions::{DELETIONS_FILE, Deletions},
    message_store::{ABORT_FILE, LOCK_FILE, RECORD_OVERHEAD_BYTES_MAX, last_record},
    scan::{Found, Located, look},
    segment::Segment,
};
use crate::{
    env::{Directory, Env, Lock},
    model::{PhysicalOffset, QueueOffset, Timestamp, names},
    record::RecordView,
};

/// Names in the root of a store that are known, ours and Apache RocketMQ's.
const ROOT_NAMES: [&str; 22] = [
    "abort",
    "abort.bak",
    "batchconsumequeue",
    "brokerIdentity",
    "checkpoint",
    "checkpoint.tmp",
    "commitlog",
    "compaction",
    "config",
    "consumequeue",
    "consumequeue_ext",
    "epochFileCheckpoint",
    "index",
    "latermq.checkpoint",
    "latermq.checkpoint.bak",
    "latermq.checkpoint.tmp",
    "lock",
    "rocksdbstore",
    "timerlog",
    "timerwheel",
    "timerrocksdb",
    SET_ASIDE_FOLDER,
];

/// What belongs to a plugin in a store, as an audit sees it.
pub trait AuditPart {
    /// The name of the plugin whose state lies in the checkpoint.
    fn name(&self) -> &'static str;

    /// The tag code of a record's queue entry, where it is not the hash of its tag.
    fn tag_code(&self, record: &RecordView<'_>) -> Option<TagCode>;

    /// Told before the first record whether there is a checkpoint that can be believed.
    fn begin(&mut self, has_checkpoint: bool);

    /// Sees each sound record, in the order of the log, after its queue entry was looked at.
    fn record(&mut self, audited: &AuditedRecord<'_>, queues: &mut QueueFiles, findings: &mut Findings);

    /// Sees the state that the checkpoint holds, between the records before and behind its position.
    fn checkpoint(&mut self, state: Option<&[u8]>, findings: &mut Findings);

    /// Told behind the last record.
    fn ended(&mut self);

    /// The first position that retention must keep.
    fn pinned_from(&self) -> Option<PhysicalOffset>;
}

/// What the last field of a queue entry must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagCode {
    /// This number.
    Exactly(i64),
    /// A number from the first to the second; which, nothing but the entry says.
    Between(i64, i64),
}

/// A sound record of the log.
#[derive(Debug, Clone, Copy)]
pub struct AuditedRecord<'a> {
    /// Its first byte.
    pub position: PhysicalOffset,
    /// The record.
    pub record: &'a RecordView<'a>,
    /// The tag code that its queue entry has; `None` if it has no sound entry.
    pub tag_code: Option<i64>,
    /// The first position of the log.
    pub log_first: PhysicalOffset,
    /// The damaged parts of the log before it.
    pub damaged: &'a [DamagedRange],
}

/// What an audit of a store found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreAudit {
    /// Whether the broker that had the store last stopped cleanly.
    pub stopped_cleanly: bool,
    /// The log.
    pub log: LogSummary,
    /// How many queues have files.
    pub queues: u64,
    /// Sound entries of queues.
    pub queue_entries: u64,
    /// Sound entries of the index.
    pub index_entries: u64,
    /// Whether the index was not looked at, since `maxHashSlotNum` and `maxIndexNum` are not those of its files.
    pub index_is_unknown: bool,
    /// Where the next start begins to read the log; `None` if at its beginning, for want of a checkpoint that can be believed.
    pub checkpoint: Option<u64>,
    /// What retention would see.
    pub retention: RetentionSummary,
    /// Ranges of the log that hold no sound record.
    pub damaged: Vec<DamagedRange>,
    /// What was found.
    pub findings: Findings,
    /// Queues whose records are in the log, but which have no files: their topics were deleted, or their files were.
    #[serde(skip)]
    pub missing_queues: Vec<MissingQueue>,
    /// Every queue.
    #[serde(skip)]
    pub ranges: BTreeMap<(String, u32), QueueSummary>,
    /// The queue files, to read in.
    #[serde(skip)]
    pub files: QueueFiles,
    /// What Apache RocketMQ would do with the log, in words.
    #[serde(skip)]
    pub apache_cuts: Option<String>,
}

/// The log in numbers.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogSummary {
    /// Files.
    pub segments: u64,
    /// The first position.
    pub first: u64,
    /// The position behind the last sound record.
    pub end: u64,
    /// Sound records.
    pub records: u64,
    /// Bytes that hold no sound record, and should.
    pub damaged_bytes: u64,
    /// Store time of the first record, in milliseconds since the epoch.
    pub first_stored_at: Option<i64>,
    /// Store time of the last record.
    pub last_stored_at: Option<i64>,
}

/// What retention would see.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RetentionSummary {
    /// Segments older than `fileReservedTime`.
    pub expired_segments: u64,
    /// How many of them are kept since something in them, or behind, still waits.
    pub pinned_segments: u64,
    /// The first position that is kept for what waits.
    pub pinned_from: Option<u64>,
    /// Bytes of log from there on.
    pub pinned_bytes: u64,
}

/// A range of the log that holds no sound record, and should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DamagedRange {
    /// Its first byte.
    pub from: u64,
    /// The byte behind it.
    pub to: u64,
    /// How many messages it held, as queue entries tell; `None` if they cannot be read.
    pub messages: Option<u64>,
    #[serde(skip)]
    records_before: u64,
}

impl StoreAudit {
    /// The offsets of a queue.
    pub fn range(&self, topic: &str, queue_id: u32) -> Option<QueueSummary> {
        self.ranges.get(&(topic.to_owned(), queue_id)).copied()
    }
}

/// Keeps brokers out of a store while it is looked at.
///
/// # Errors
/// [`StoreError::Locked`] if one runs on it; [`StoreError::Io`].
pub fn keep_brokers_out(directory: &dyn Directory) -> Result<Box<dyn Lock>, StoreError> {
    let path = Path::new(LOCK_FILE);
    let lock = directory.keep_brokers_out(path).map_err(|source| io_error(directory, "lock", path, source))?;
    lock.ok_or_else(|| StoreError::Locked { path: directory.display(path) })
}

/// Takes the lengths of segments and queue files from the files that are there, where `is_set` does not say that a key was named.
///
/// # Errors
/// [`StoreError::Io`].
pub fn detect_lengths(
    directory: &dyn Directory,
    options: &mut StoreOptions,
    is_set: impl Fn(&str) -> bool,
) -> Result<(), StoreError> {
    let list = |folder: &Path| directory.list(folder).map_err(|source| io_error(directory, "list", folder, source));
    if !is_set("mappedFileSizeCommitLog") {
        let mut lengths = BTreeMap::new();
        let segments = list(&options.commit_log_folder)?;
        let named = segments.iter().filter_map(|entry| Some((Segment::parse_name(&entry.name)?.0, entry.bytes)));
        for (_, bytes) in named.clone().filter(|(_, bytes)| *bytes > 0) {
            *lengths.entry(bytes).or_default() += 1;
        }
        // One of which the others are no multiples is not theirs.
        let fits = |bytes: u64| named.clone().all(|(base, _)| base.is_multiple_of(bytes));
        if lengths.keys().any(|&bytes| fits(bytes)) {
            lengths.retain(|&bytes, _| fits(bytes));
        }
        options.segment_bytes = most_common(&lengths).unwrap_or(options.segment_bytes);
        // A repair opens the store, and a body has to fit into a segment.
        let body_bytes_max = options.segment_bytes.saturating_sub(RECORD_OVERHEAD_BYTES_MAX);
        options.body_bytes_max = options.body_bytes_max.min(usize::try_from(body_bytes_max).unwrap_or(usize::MAX));
    }
    if !is_set("mappedFileSizeConsumeQueue") {
        let root = Path::new("consumequeue");
        let mut lengths =
            queue_file_lengths(directory, root).map_err(|source| io_error(directory, "list", root, source))?;
        lengths.retain(|bytes, _| bytes.is_multiple_of(super::QUEUE_ENTRY_BYTES));
        options.queue_file_bytes = most_common(&lengths).unwrap_or(options.queue_file_bytes);
    }
    Ok(())
}

/// The length that most files have, the longest of several.
fn most_common(lengths: &BTreeMap<u64, u64>) -> Option<u64> {
    lengths.iter().max_by_key(|(bytes, count)| (**count, **bytes)).map(|(bytes, _)| *bytes)
}

/// Looks at a whole store. `told` hears how many bytes of the log are read, of how many.
///
/// Hold [`keep_brokers_out`] meanwhile.
///
/// # Errors
/// What kept the audit from being done: [`StoreError::Io`] for folders and checkpoints that cannot be read, [`StoreError::FileLength`] for files
/// that do not have the lengths of `options`.
pub fn audit(
    options: &StoreOptions,
    env: &Env,
    part: &mut dyn AuditPart,
    told: &mut dyn FnMut(u64, u64),
) -> Result<StoreAudit, StoreError> {
    let directory = &*env.directory;
    let root = directory.list(Path::new("")).map_err(|source| io_error(directory, "list", Path::new(""), source))?;
    let log_path = &options.commit_log_folder;
    if log_path.is_relative()
        && !root.iter().any(|entry| Path::new(&entry.name) == log_path)
        && log_path.components().count() == 1
    {
        let source = std::io::Error::new(std::io::ErrorKind::NotFound, "there is no such folder: this is no store");
        return Err(io_error(directory, "list", log_path, source));
    }
    let mut findings = Findings::default();
    let unclean = root.iter().any(|entry| entry.name == ABORT_FILE);
    for entry in
        root.iter().filter(|entry| !ROOT_NAMES.contains(&entry.name.as_str()) && !is_log_folder(options, &entry.name))
    {
        findings.note("files", &entry.name, "is not a part of a store, and is left alone");
    }
    let segments = find_segments(env, options, unclean, &mut findings)?;
    let queues = QueueFiles::open(env, options, unclean, &mut findings)?;
    let index = IndexFiles::open(env, options, &mut findings)?;

    let log = LogSummary {
        segments: segments.len() as u64,
        first: segments.first().map_or(0, |segment| segment.base.0),
        ..LogSummary::default()
    };
    let index_is_read = options.index_enabled && !index.is_of_another_shape;
    let mut pass = Pass {
        options,
        index_is_read,
        env,
        part,
        unclean,
        log,
        segments: &segments,
        queues,
        deletions: Deletions::load(StateFile::new(env.directory.clone(), Path::new("config").join(DELETIONS_FILE))),
        index,
        findings,
        damaged: Vec::new(),
        last: None,
        times: LastTimes::default(),
        checkpoint: None,
        is_told: false,
        rebuilds: false,
    };
    pass.read_checkpoint()?;
    pass.part.begin(pass.checkpoint.is_some());
    pass.log.end = pass.read_log(told)?.0;
    pass.finish()
}

fn is_log_folder(options: &StoreOptions, name: &str) -> bool {
    options.commit_log_folder.components().next().is_some_and(|first| first.as_os_str() == name)
}

pub(super) fn io_error(
    directory: &dyn Directory,
    action: &'static str,
    path: &Path,
    source: std::io::Error,
) -> StoreError {
    StoreError::Io { action, path: directory.display(path), source }
}

/// One pass over a store.
struct Pass<'a> {
    options: &'a StoreOptions,
    index_is_read: bool,
    env: &'a Env,
    part: &'a mut dyn AuditPart,
    unclean: bool,
    log: LogSummary,
    segments: &'a [SegmentFile],
    queues: QueueFiles,
    deletions: Deletions,
    index: IndexFiles,
    findings: Findings,
    damaged: Vec<DamagedRange>,
    last: Option<LastRecord>,
    /// The store times of the last records.
    times: LastTimes,
    /// What recovery would start from.
    checkpoint: Option<Checkpoint>,
    /// Whether the checkpoint's position was passed.
    is_told: bool,
    /// Whether the next start builds queues and index anew.
    rebuilds: bool,
}

impl Pass<'_> {
    fn first(&self) -> PhysicalOffset {
        PhysicalOffset(self.log.first)
    }

    /// Reads both checkpoints and compares ours with the log.
    fn read_checkpoint(&mut self) -> Result<(), StoreError> {
        let files = CheckpointFiles::new(self.env.directory.clone());
        let [ours, before] = files.inspect();
        match (&ours, &before) {
            (Err(reason), _) => self.findings.damage("checkpoint", "latermq.checkpoint", reason),
            (Ok(false), Ok(true)) => {
                self.findings.mends("checkpoint", "latermq.checkpoint", "is missing; the one before it is used");
            }
            (Ok(false), _) => {
                let text = "there is no checkpoint of latermq; the next start reads the whole log";
                self.findings.note("checkpoint", "latermq.checkpoint", text);
            }
            (Ok(true), _) => {}
        }
        if let Err(reason) = &before {
            self.findings.damage("checkpoint", "latermq.checkpoint.bak", reason);
        }
        let found = files.load().and_then(FoundCheckpoint::believed);
        if found.is_none() && [&ours, &before].iter().any(|found| matches!(found, Ok(true))) {
            let text = "does not agree with the file checkpoint: Apache RocketMQ wrote to this store since, or that file is damaged; the next start reads the whole log";
            if self.rocketmq_checkpoint_is_plausible(&files) {
                self.findings.note("checkpoint", "latermq.checkpoint", text);
            } else {
                self.findings.damage(
                    "checkpoint",
                    "checkpoint",
                    "holds times that no clock had; the next start reads the whole log",
                );
            }
        }
        let Some(checkpoint) = found else { return Ok(()) };
        if checkpoint.log_first < self.first() && !self.segments.is_empty() {
            // Retention deletes, and then a checkpoint says so: a kill may come between.
            let grade = if self.unclean { Grade::Note } else { Grade::Damage };
            let text = format!("begins at {}, but began at {}", self.first(), checkpoint.log_first);
            self.findings.add(grade, "commit log", self.first(), &text);
        }
        if self.matches_log(&checkpoint)? {
            self.checkpoint = Some(checkpoint);
        } else {
            let end = self.segments.last().map_or(0, |segment| segment.end().0);
            let text = if checkpoint.position.0 > end {
                format!(
                    "says that the log reached {}, but its files end at {end}: what lay between is lost",
                    checkpoint.position
                )
            } else {
                format!("does not match the log: no record ends at {} as it says", checkpoint.position)
            };
            self.findings.damage("checkpoint", "latermq.checkpoint", &text);
        }
        Ok(())
    }

    /// Whether the times in RocketMQ's file can be true: none is negative or far beyond the file's own time.
    fn rocketmq_checkpoint_is_plausible(&self, files: &CheckpointFiles) -> bool {
        let day_ms = 86_400_000;
        let latest = self.env.clock.wall().0.saturating_add(day_ms);
        files.load_rocketmq().is_none_or(|found| {
            [found.log_time, found.queue_time, found.index_time].iter().all(|time| (0..=latest).contains(&time.0))
        })
    }

    fn matches_log(&mut self, checkpoint: &Checkpoint) -> Result<bool, StoreError> {
        let Some(last) = &checkpoint.last_record else {
            return Ok(checkpoint.position == self.first() || checkpoint.position == PhysicalOffset::ZERO);
        };
        let position = PhysicalOffset(last.position);
        let Some(segment) = self.segments.iter().find(|s| (s.base..s.end()).contains(&position)) else {
            return Ok(false);
        };
        let mut reader = SegmentReader::open(self.env, segment)?;
        let Ok(window) = reader.record_at(position) else { return Ok(false) };
        let found = match look(window, position, segment.end().since(position), false) {
            Found::Record(record) => last_record(&Located { position, record }) == *last,
            _ => false,
        };
        Ok(found)
    }

    /// Whether what is wrong or missing at a position is made good by the next start, if it can be.
    fn is_above_floor(&self, position: PhysicalOffset) -> bool {
        match &self.checkpoint {
            Some(checkpoint) => position >= checkpoint.position,
            None => self.unclean,
        }
    }

    /// Reads all segments; gives the position behind the last sound record.
    fn read_log(&mut self, told: &mut dyn FnMut(u64, u64)) -> Result<PhysicalOffset, StoreError> {
        let total: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        let newest = self.newest_with_records()?;
        let time_floor = CheckpointFiles::new(self.env.directory.clone()).load_rocketmq();
        let time_floor = time_floor.map(|found| found.log_time.min(found.queue_time));
        let boot_id = self.env.clock.boot_id();
        let mut end = self.first();
        let mut done = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| self.segments[before].end());
            if let Some(before) = before.filter(|before| *before != segment.base) {
                self.damage(before, segment.base, "segments are missing");
            }
            let is_newest = newest.is_none_or(|newest| segment.base >= newest);
            let mut reader = SegmentReader::open(self.env, segment)?;
            let mut position = segment.base;
            loop {
                self.pass_checkpoint(position);
                let left = segment.end().since(position);
                let window = match reader.record_at(position) {
                    Ok(window) => window,
                    Err(error) => {
                        let behind = reader.readable_behind(position);
                        let next = reader.next_sound(behind, self.options.body_bytes_max)?.unwrap_or(segment.end());
                        self.damage(position, next, &format!("cannot be read ({error})"));
                        position = next;
                        end = end.max(position);
                        if position >= segment.end() { break } else { continue }
                    }
                };
                match look(window, position, left, true) {
                    Found::Record(record) if self.has_wrong_offset(&record, position) => {
                        let text = "a record behind the checkpoint has a queue offset that is not its queue's next; the log is cut there at the next start";
                        self.findings.mends("commit log", position, text);
                        return Ok(end);
                    }
                    Found::Record(record) => {
                        self.record(&Located { position, record });
                        position = record.end();
                        end = position;
                    }
                    Found::SegmentEnd => {
                        end = segment.end();
                        break;
                    }
                    Found::Bad => {
                        let torn = is_newest
                            && match (&self.checkpoint, time_floor) {
                                (Some(checkpoint), _) => {
                                    position >= checkpoint.position && checkpoint.clock.boot_id != boot_id
                                }
                                (None, _) if !self.unclean => false,
                                (None, Some(floor)) => self.times.confirmed().is_some_and(|time| time > floor),
                                (None, None) => false,
                            };
                        let next = reader.next_sound(position, self.options.body_bytes_max)?;
                        let next = match next {
                            Some(next) if !torn => Some(next),
                            _ if is_newest => None,
                            _ => Some(segment.end()),
                        };
                        if let Some(next) = next {
                            self.damage(position, next, "hold no sound record");
                            position = next;
                            end = end.max(position);
                            if position >= segment.end() { break } else { continue }
                        }
                        self.free_space(&mut reader, position);
                        told(total, total);
                        self.pass_checkpoint(PhysicalOffset(u64::MAX));
                        return Ok(end);
                    }
                }
                told(done + position.since(segment.base), total);
            }
            done += segment.bytes;
            told(done, total);
        }
        self.pass_checkpoint(PhysicalOffset(u64::MAX));
        Ok(end)
    }

    /// The newest segment that begins with a sound record.
    fn newest_with_records(&self) -> Result<Option<PhysicalOffset>, StoreError> {
        for segment in self.segments.iter().rev() {
            let mut reader = SegmentReader::open(self.env, segment)?;
            let Ok(window) = reader.record_at(segment.base) else { continue };
            if matches!(look(window, segment.base, segment.bytes, true), Found::Record(_)) {
                return Ok(Some(segment.base));
            }
        }
        Ok(None)
    }

    /// Looks at what lies behind the last record of the newest segment: zeros, or what was left of a write.
    fn free_space(&mut self, reader: &mut SegmentReader, from: PhysicalOffset) {
        let written = reader.first_written(from);
        let Some(written) = written else { return };
        let text = format!(
            "behind the last record at {from} there are bytes of a write that was not finished, at {written}; the next start clears them"
        );
        if self.unclean {
            self.findings.mends("commit log", from, &text);
        } else {
            let text =
                format!("behind the last record at {from} the log should be empty, but there are bytes at {written}");
            self.findings.damage("commit log", from, &text);
            let to = written.0 + 1;
            self.damaged.push(DamagedRange { from: from.0, to, messages: Some(0), records_before: self.log.records });
        }
    }

    /// Tells the part its state when the checkpoint's position is reached.
    fn pass_checkpoint(&mut self, position: PhysicalOffset) {
        let Some(checkpoint) =
            self.checkpoint.as_ref().filter(|checkpoint| !self.is_told && position >= checkpoint.position)
        else {
            return;
        };
        self.is_told = true;
        let state = checkpoint.plugins.get(self.part.name()).map(Vec::as_slice);
        self.part.checkpoint(state, &mut self.findings);
        let index = if self.index_is_read { self.index.below(checkpoint.position) } else { None };
        let derived = self.queues.derived_below(checkpoint.position);
        let said = checkpoint.derived;
        if said == Derived::UNKNOWN {
            self.rebuilds = true;
            let text = "a rebuild of queues and index was not finished; the next start does it";
            self.findings.mends("checkpoint", "latermq.checkpoint", text);
            return;
        }
        // After a kill the next start sees that, and builds queues and index anew: a start that was killed may have left them so.
        let grade = if self.unclean { Grade::Mends } else { Grade::Damage };
        if (said.queues, said.entries) != derived {
            self.rebuilds = self.unclean;
            let text = format!(
                "counts {} queues that end at {} in all, but there are {} that end at {}",
                said.queues, said.entries, derived.0, derived.1
            );
            self.findings.add(grade, "checkpoint", "latermq.checkpoint", &text);
        }
        if let Some((files, end)) = index.filter(|&found| found != (said.index_files, said.index_end)) {
            self.rebuilds = self.unclean;
            let text = format!(
                "counts {} index files that end at {}, but there are {files} that end at {end}",
                said.index_files, said.index_end
            );
            self.findings.add(grade, "checkpoint", "latermq.checkpoint", &text);
        }
    }

    /// Behind the checkpoint a record has the next offset of its queue, or the first of all.
    fn has_wrong_offset(&self, record: &RecordView<'_>, position: PhysicalOffset) -> bool {
        let Some(checkpoint) = &self.checkpoint else { return false };
        if position < checkpoint.position || !record.sys_flag().is_queued() || !self.damaged.is_empty() {
            return false;
        }
        let next = self.queues.next_offset(record.topic(), record.queue_id().0);
        let found = record.queue_offset();
        next.is_some_and(|next| found.0 != next && found != QueueOffset::ZERO)
    }

    fn record(&mut self, located: &Located<'_>) {
        let Located { position, record } = *located;
        let hole = self.damaged.last().map(|range| PhysicalOffset(range.to));
        let mut tag_code = None;
        if record.sys_flag().is_queued() && !self.deletions.covers(record.topic(), position) {
            let wanted = self.part.tag_code(&record).unwrap_or_else(|| {
                TagCode::Exactly(
                    record.properties().get(names::TAGS).map_or(0, |tag| crate::model::java_hash(tag).into()),
                )
            });
            let mends = self.is_above_floor(position);
            tag_code = self.queues.take(&record, wanted, mends, hole, &mut self.findings);
        }
        if self.index_is_read {
            let mends = self.is_above_floor(position);
            let (first, damaged) = (self.first(), &self.damaged);
            self.index.take(&record, mends, &|at| {
                at < first.0 || damaged.iter().any(|range| (range.from..range.to).contains(&at))
            });
        }
        let log_first = self.first();
        let audited = AuditedRecord { position, record: &record, tag_code, log_first, damaged: &self.damaged };
        self.part.record(&audited, &mut self.queues, &mut self.findings);
        self.log.records += 1;
        let stored_at = record.stored_at();
        if let Some(last) = self.last.filter(|last| last.stored_at > stored_at.0) {
            let text = format!("was stored at {}, before the record in front of it ({})", stored_at.0, last.stored_at);
            self.findings.note("commit log", position, &text);
        }
        self.log.first_stored_at.get_or_insert(stored_at.0);
        self.log.last_stored_at = Some(stored_at.0);
        self.times.saw(stored_at);
        // The checksum is not needed here.
        self.last =
            Some(LastRecord { position: position.0, bytes: record.total_bytes(), stored_at: stored_at.0, crc32: 0 });
    }

    fn damage(&mut self, from: PhysicalOffset, to: PhysicalOffset, what: &str) {
        let bytes = to.since(from);
        self.log.damaged_bytes += bytes;
        self.findings.damage("commit log", from, &format!("{bytes} bytes from {from} to {to} {what}"));
        let messages = Some(0);
        self.damaged.push(DamagedRange { from: from.0, to: to.0, messages, records_before: self.log.records });
    }

    /// Counts the messages in damaged ranges.
    fn count_damaged_messages(&mut self) {
        if self.damaged.is_empty() {
            return;
        }
        let counts = self.queues.count_within(&self.damaged);
        for (number, range) in self.damaged.iter_mut().enumerate() {
            range.messages = counts.as_ref().ok().map(|counts| counts[number]);
            let text = range.messages.map_or_else(
                || "queue entries cannot be read: an unknown number of messages is lost there".to_owned(),
                |messages| format!("queue entries lead to {messages} messages from there to {}", range.to),
            );
            self.findings.note("commit log", range.from, &text);
        }
    }

    fn finish(mut self) -> Result<StoreAudit, StoreError> {
        let end = PhysicalOffset(self.log.end);
        self.part.ended();
        self.check_end(end);
        self.count_damaged_messages();
        let first = self.first();
        let holes: Vec<_> = self.damaged.iter().map(|range| range.from..range.to).collect();
        let (unclean, rebuilds) = (self.unclean, self.rebuilds);
        let missing_queues =
            self.queues.finish(first..end, unclean, rebuilds, &holes, &self.deletions, &mut self.findings);
        if self.index_is_read {
            let must_be = self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.derived.index_end > 0);
            let is_gone = |at: u64| at < first.0 || holes.iter().any(|hole| hole.contains(&at));
            self.index.finish(end, &is_gone, must_be, self.unclean, self.rebuilds, &mut self.findings);
        }
        let apache_cuts = self.apache_cuts();
        Ok(StoreAudit {
            stopped_cleanly: !self.unclean,
            retention: self.retention(end),
            queues: self.queues.count(),
            queue_entries: self.queues.sound_entries(),
            index_entries: self.index.sound_entries(),
            index_is_unknown: self.index.is_of_another_shape,
            checkpoint: self.checkpoint.map(|checkpoint| checkpoint.position.0),
            log: self.log,
            damaged: self.damaged,
            findings: self.findings,
            missing_queues,
            ranges: self.queues.ranges(),
            files: self.queues,
            apache_cuts,
        })
    }

    /// Compares the end of the log with what was said to be durable.
    fn check_end(&mut self, end: PhysicalOffset) {
        if let Some(checkpoint) = self.checkpoint.as_ref().filter(|checkpoint| checkpoint.position > end) {
            let text = format!("ends at {end}, but was durable up to {}", checkpoint.position);
            self.findings.damage("commit log", end, &text);
        }
        let files = CheckpointFiles::new(self.env.directory.clone());
        match self.env.directory.read(Path::new(super::checkpoint::ROCKETMQ_CHECKPOINT)) {
            Ok(None) if self.log.records > 0 => {
                self.findings.note("checkpoint", "checkpoint", "is missing; Apache RocketMQ would read the whole log");
            }
            Ok(Some(_)) if files.load_rocketmq().is_none() => {
                self.findings.damage("checkpoint", "checkpoint", "is too short");
            }
            Err(error) => self.findings.damage("checkpoint", "checkpoint", &format!("cannot be read: {error}")),
            Ok(_) => {}
        }
        let stored_at = self.log.last_stored_at.unwrap_or(0);
        if let Some(said) = files.load_rocketmq().filter(|said| said.log_time.0 > stored_at && stored_at > 0) {
            let text = format!(
                "says that a record stored at {} is durable, but the last one was stored at {stored_at}",
                said.log_time.0
            );
            self.findings.damage("checkpoint", "checkpoint", &text);
        }
    }

    fn retention(&self, end: PhysicalOffset) -> RetentionSummary {
        let now = self.env.clock.wall();
        let pinned_from = self.part.pinned_from();
        let candidates = &self.segments[..self.segments.len().saturating_sub(1)];
        let is_expired =
            |segment: &&SegmentFile| now.since(Timestamp(segment.modified_ms)) >= self.options.reserved_time;
        let expired: Vec<_> = candidates.iter().take_while(is_expired).collect();
        let pinned = expired.iter().filter(|segment| pinned_from.is_some_and(|pinned| segment.end() > pinned));
        RetentionSummary {
            expired_segments: expired.len() as u64,
            pinned_segments: pinned.count() as u64,
            pinned_from: pinned_from.map(|position| position.0),
            pinned_bytes: pinned_from.map_or(0, |position| end.since(position)),
        }
    }

    /// Where Apache RocketMQ's recovery would cut the log: at the first bad record behind the segment that it begins with.
    ///
    /// Source: Apache RocketMQ 5.3.3, `CommitLog.recoverNormally`, `recoverAbnormally`.
    fn apache_cuts(&self) -> Option<String> {
        let starts = |position: u64| {
            if !self.unclean {
                return self.segments.last().is_some_and(|newest| position >= newest.base.0);
            }
            let times = CheckpointFiles::new(self.env.directory.clone()).load_rocketmq().unwrap_or_default();
            // Apache begins no later than with the newest segment; how much earlier its times decide. Without them it reads all.
            times.log_time.min(times.queue_time).0 <= 0
                || self.segments.last().is_some_and(|newest| position >= newest.base.0)
        };
        let cut = self.damaged.iter().find(|range| starts(range.from))?;
        let lost = self.log.records - cut.records_before;
        (lost > 0).then(|| format!("cut the log at {}: {lost} sound records behind the damage would be lost", cut.from))
    }
}
