//! A cursor for each queue, to compare its entries with the log in the order of the log.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    super::{
        QUEUE_ENTRY_BYTES, QueueEntry, StoreError, StoreOptions,
        consume_queues::{is_another_length, queue_file_lengths},
        deletions::Deletions,
    },
    DamagedRange, Findings, Grade, TagCode, io_error,
};
use crate::{
    env::{Directory, EntryKind, Env},
    model::{PhysicalOffset, QueueId, QueueOffset, Topic},
    record::RecordView,
};

/// Entries of a queue that are read at once.
const BLOCK_ENTRIES: u64 = 1_024;
const ENTRY_BYTES: usize = QUEUE_ENTRY_BYTES as usize;

/// The queue files of a store.
pub struct QueueFiles {
    directory: Arc<dyn Directory>,
    folder: PathBuf,
    file_bytes: u64,
    queues: HashMap<Topic, BTreeMap<u32, Cursor>, foldhash::fast::RandomState>,
    sound_entries: u64,
}

/// The offsets of a queue, as files and log say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueSummary {
    /// The first record of the queue in the log; the end if there is none.
    pub min: u64,
    /// The offset behind its last.
    pub max: u64,
}

/// A queue whose records are in the log, but which has no files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingQueue {
    /// Its topic.
    pub topic: String,
    /// Its id.
    pub queue_id: u32,
    /// How many records.
    pub records: u64,
    /// Whether the next start makes it good.
    pub mends: bool,
}

/// One queue.
#[derive(Default)]
struct Cursor {
    /// Offset of the first entry of the first file, and the offset behind the last entry that fits into the newest.
    files: Range<u64>,
    /// The offset that the next record must have; `None` before the first.
    next: Option<u64>,
    /// The offset of the first record of this incarnation in the log.
    first_seen: u64,
    records: u64,
    /// Entries that agree with their records.
    sound: u64,
    wrong: Wrong,
    /// Entries that are wrong or missing, and that the next start writes anew.
    mends: Wrong,
    /// Whether the entry of the first record would be.
    all_mends: bool,
    block_from: u64,
    block: Vec<QueueEntry>,
}

/// Where the log is, and how what lies elsewhere is graded.
struct Borders<'a> {
    log: Range<PhysicalOffset>,
    holes: &'a [Range<u64>],
    unclean: bool,
    damage: Grade,
    deletions: &'a Deletions,
}

/// Entries that are not as they should be.
#[derive(Default)]
struct Wrong {
    count: u64,
    first: Option<(u64, String)>,
}

impl Wrong {
    fn add(&mut self, at: u64, text: impl FnOnce() -> String) {
        self.count += 1;
        self.first.get_or_insert_with(|| (at, text()));
    }
}

impl fmt::Debug for QueueFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueFiles").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl QueueFiles {
    pub(super) fn open(
        env: &Env,
        options: &StoreOptions,
        unclean: bool,
        findings: &mut Findings,
    ) -> Result<Self, StoreError> {
        let mut files = Self {
            directory: env.directory.clone(),
            folder: "consumequeue".into(),
            file_bytes: options.queue_file_bytes,
            queues: HashMap::default(),
            sound_entries: 0,
        };
        let directory = env.directory.clone();
        let list =
            |folder: &Path| directory.list(folder).map_err(|source| io_error(&*directory, "list", folder, source));
        let lengths = queue_file_lengths(&*directory, &files.folder)
            .map_err(|source| io_error(&*directory, "list", &files.folder, source))?;
        let is_configured_otherwise = is_another_length(&lengths, files.file_bytes);
        for topic in list(&files.folder)? {
            let topic_folder = files.folder.join(&topic.name);
            if topic.kind != EntryKind::Folder {
                findings.note("files", topic_folder.display(), "is no folder of a topic, and is left alone");
                continue;
            }
            for queue in list(&topic_folder)? {
                let path = topic_folder.join(&queue.name);
                let id = queue.name.parse::<u32>().ok().filter(|id| id.to_string() == queue.name);
                let Some(id) = id.filter(|_| queue.kind == EntryKind::Folder) else {
                    findings.note("files", path.display(), "is no folder of a queue, and is left alone");
                    continue;
                };
                let listed = list(&path)?;
                let range = files.file_range(&path, listed, unclean, is_configured_otherwise, findings)?;
                let cursor = Cursor { files: range, ..Cursor::default() };
                files.queues.entry(Topic::from(topic.name.as_str())).or_default().insert(id, cursor);
            }
        }
        Ok(files)
    }

    /// The offsets that the files of a queue have room for.
    fn file_range(
        &self,
        folder: &Path,
        listed: Vec<crate::env::Entry>,
        unclean: bool,
        is_configured_otherwise: bool,
        findings: &mut Findings,
    ) -> Result<Range<u64>, StoreError> {
        let grade = if unclean { Grade::Mends } else { Grade::Damage };
        let mut range: Option<Range<u64>> = None;
        for entry in listed {
            let path = folder.join(&entry.name);
            let is_name = entry.name.len() == 20 && entry.name.bytes().all(|byte| byte.is_ascii_digit());
            let start = entry.name.parse::<u64>().ok().filter(|_| is_name && entry.kind == EntryKind::File);
            let Some(start) = start.filter(|start| start.is_multiple_of(self.file_bytes)) else {
                let text = "is no file of a queue, and is left alone; Apache RocketMQ does not start with it";
                findings.note("files", path.display(), text);
                continue;
            };
            if entry.bytes > self.file_bytes && !is_configured_otherwise {
                let text = format!(
                    "has {} bytes, more than the {} of a queue file; the next start moves it away and builds the queue again",
                    entry.bytes, self.file_bytes
                );
                findings.damage("queue", path.display(), &text);
                continue;
            }
            if entry.bytes > self.file_bytes {
                return Err(StoreError::FileLength {
                    path: self.directory.display(&path),
                    found: entry.bytes,
                    wanted: self.file_bytes,
                    key: "mappedFileSizeConsumeQueue",
                });
            }
            if entry.bytes < self.file_bytes {
                let text = format!("has {} of {} bytes", entry.bytes, self.file_bytes);
                findings.add(grade, "queue", path.display(), &text);
            }
            let first = start / QUEUE_ENTRY_BYTES;
            let end = first + self.file_bytes / QUEUE_ENTRY_BYTES;
            match &mut range {
                None => range = Some(first..end),
                Some(range) => {
                    if first != range.end {
                        findings.add(
                            grade,
                            "queue",
                            path.display(),
                            "does not follow the file before it: one is missing",
                        );
                    }
                    range.end = end;
                }
            }
        }
        Ok(range.unwrap_or_default())
    }

    /// Entries of a queue from an offset on, fewer at the end of its files.
    ///
    /// # Errors
    /// As the directory gives them.
    pub fn read(&self, topic: &str, queue_id: QueueId, from: QueueOffset, count: u64) -> io::Result<Vec<QueueEntry>> {
        let files = self.cursor(topic, queue_id.0).map(|cursor| cursor.files.clone()).unwrap_or_default();
        if !files.contains(&from.0) {
            return Ok(Vec::new());
        }
        let per_file = self.file_bytes / QUEUE_ENTRY_BYTES;
        let count = count.min(files.end - from.0).min(per_file - from.0 % per_file);
        let name = format!("{:020}", from.0 / per_file * self.file_bytes);
        let path = self.folder.join(topic).join(queue_id.0.to_string()).join(name);
        let mut bytes = vec![0; usize::try_from(count).map_err(io::Error::other)? * ENTRY_BYTES];
        // A file that is missing between two others, or is too short, was reported; what it lacks reads as never written.
        match self.directory.open(&path) {
            Ok(file) => {
                let at = from.0 % per_file * QUEUE_ENTRY_BYTES;
                let left = usize::try_from(file.bytes().saturating_sub(at)).unwrap_or(usize::MAX).min(bytes.len());
                if left > 0 {
                    file.read_at(at, &mut bytes[..left])?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
        Ok(entries.iter().map(QueueEntry::from_bytes).collect())
    }

    fn cursor(&self, topic: &str, queue_id: u32) -> Option<&Cursor> {
        self.queues.get(topic)?.get(&queue_id)
    }

    /// The offset that the next record of a queue must have, if one was seen.
    pub(super) fn next_offset(&self, topic: &str, queue_id: u32) -> Option<u64> {
        self.cursor(topic, queue_id)?.next
    }

    /// The entry at an offset, by the block at hand.
    fn entry(&mut self, topic: &str, queue_id: u32, at: u64) -> io::Result<Option<QueueEntry>> {
        let cursor = self.cursor(topic, queue_id);
        let Some(cursor) = cursor.filter(|cursor| cursor.files.contains(&at)) else { return Ok(None) };
        let index = |cursor: &Cursor| usize::try_from(at.checked_sub(cursor.block_from)?).ok();
        if let Some(entry) = index(cursor).and_then(|index| cursor.block.get(index)) {
            return Ok(Some(*entry));
        }
        let block = self.read(topic, QueueId(queue_id), QueueOffset(at), BLOCK_ENTRIES)?;
        let found = block.first().copied();
        if let Some(cursor) = self.queues.get_mut(topic).and_then(|queues| queues.get_mut(&queue_id)) {
            cursor.block_from = at;
            cursor.block = block;
        }
        Ok(found)
    }

    /// Compares a record with the entry of its queue; gives the tag code of a sound one.
    pub(super) fn take(
        &mut self,
        record: &RecordView<'_>,
        wanted: TagCode,
        mends: bool,
        hole: Option<PhysicalOffset>,
        findings: &mut Findings,
    ) -> Option<i64> {
        let (topic, queue_id, at) = (record.topic(), record.queue_id().0, record.queue_offset().0);
        if self.cursor(topic, queue_id).is_none() {
            self.queues.entry(Topic::from(topic)).or_default().insert(queue_id, Cursor::default());
        }
        let found = self.entry(topic, queue_id, at);
        let cursor = self.queues.get_mut(topic)?.get_mut(&queue_id)?;
        let place = || format!("{topic}/{queue_id}");
        match cursor.next {
            None => cursor.first_seen = at,
            Some(next) if at == 0 && next > 0 => {
                // The topic was deleted and created again: what was there before has no entries any more.
                let files = cursor.files.clone();
                *cursor = Cursor { files, ..Cursor::default() };
            }
            Some(next) if at < next => {
                let text = format!(
                    "offset {at} is given twice: to the record at {} and to one before",
                    record.physical_offset()
                );
                findings.damage("queue", place(), &text);
            }
            Some(next) if at > next && hole.is_none() => {
                let text = format!("the log has no records for the offsets from {next} to {at}");
                findings.damage("queue", place(), &text);
            }
            Some(_) => {}
        }
        if cursor.records == 0 {
            cursor.all_mends = mends;
        }
        cursor.next = Some(at + 1);
        cursor.records += 1;
        let (position, bytes) = (record.physical_offset(), record.total_bytes());
        let entry = match found {
            Ok(entry) => entry,
            Err(error) => {
                cursor.wrong.add(at, || format!("cannot be read: {error}"));
                return None;
            }
        };
        let wrong = if mends { &mut cursor.mends } else { &mut cursor.wrong };
        let Some(entry) = entry.filter(|entry| !entry.is_blank()) else {
            wrong.add(at, || format!("has no entry for the record at {position}"));
            return None;
        };
        let tag_is_right = match wanted {
            TagCode::Exactly(wanted) => entry.tag_code == wanted,
            TagCode::Between(from, to) => (from..=to).contains(&entry.tag_code),
        };
        if (entry.position, entry.bytes) != (position, bytes) {
            wrong.add(at, || {
                format!(
                    "points at {} ({} bytes), but the record lies at {position} ({bytes} bytes)",
                    entry.position, entry.bytes
                )
            });
            return None;
        }
        if !tag_is_right {
            wrong.add(at, || match wanted {
                TagCode::Exactly(wanted) => {
                    format!("has the tag code {}, but the record says {wanted}", entry.tag_code)
                }
                TagCode::Between(from, to) => {
                    format!("has the tag code {}, which is no time from {from} to {to}", entry.tag_code)
                }
            });
            return None;
        }
        cursor.sound += 1;
        Some(entry.tag_code)
    }

    /// Queues with entries below a position, and the sum of their ends: what a checkpoint there counts.
    pub(super) fn derived_below(&mut self, position: PhysicalOffset) -> (u64, u64) {
        let (mut count, mut sum) = (0, 0);
        for (topic, queue_id) in self.names() {
            let Some(cursor) = self.cursor(&topic, queue_id).filter(|cursor| !cursor.files.is_empty()) else {
                continue;
            };
            let end = match cursor.next {
                Some(next) => next,
                None => self.end_below(&topic, queue_id, position).unwrap_or(0),
            };
            count += u64::from(end > 0);
            sum += end;
        }
        (count, sum)
    }

    /// The end of a queue without records in the log: behind its last entry below a position. A queue without entries ends where its files begin.
    fn end_below(&self, topic: &str, queue_id: u32, position: PhysicalOffset) -> io::Result<u64> {
        let files = self.cursor(topic, queue_id).map(|cursor| cursor.files.clone()).unwrap_or_default();
        let mut end = files.start;
        let mut at = files.start;
        while at < files.end {
            let entries = self.read(topic, QueueId(queue_id), QueueOffset(at), BLOCK_ENTRIES * 16)?;
            if entries.is_empty() {
                break;
            }
            for (offset, entry) in (at..).zip(&entries) {
                if !entry.is_blank() && entry.position < position {
                    end = offset + 1;
                }
            }
            at += entries.len() as u64;
        }
        Ok(end)
    }

    /// How many entries lead into each range of the log, which ascend.
    pub(super) fn count_within(&self, ranges: &[DamagedRange]) -> io::Result<Vec<u64>> {
        let mut counts = vec![0; ranges.len()];
        for (topic, queue_id) in self.names() {
            let files = self.cursor(&topic, queue_id).map(|cursor| cursor.files.clone()).unwrap_or_default();
            let mut at = files.start;
            while at < files.end {
                let entries = self.read(&topic, QueueId(queue_id), QueueOffset(at), BLOCK_ENTRIES * 16)?;
                if entries.is_empty() {
                    break;
                }
                for entry in entries.iter().filter(|entry| !entry.is_blank()) {
                    let behind = ranges.partition_point(|range| range.to <= entry.position.0);
                    if ranges.get(behind).is_some_and(|range| range.from <= entry.position.0) {
                        counts[behind] += 1;
                    }
                }
                at += entries.len() as u64;
            }
        }
        Ok(counts)
    }

    fn names(&self) -> Vec<(Topic, u32)> {
        let mut names: Vec<_> =
            self.queues.iter().flat_map(|(topic, queues)| queues.keys().map(|id| (topic.clone(), *id))).collect();
        names.sort_unstable();
        names
    }

    /// Looks at the entries before and behind those of the log's records, and reports all of them.
    pub(super) fn finish(
        &mut self,
        log: Range<PhysicalOffset>,
        unclean: bool,
        rebuilds: bool,
        holes: &[Range<u64>],
        deletions: &Deletions,
        findings: &mut Findings,
    ) -> Vec<MissingQueue> {
        let damage = if rebuilds { Grade::Mends } else { Grade::Damage };
        let borders = Borders { log, holes, unclean, damage, deletions };
        let mut missing_queues = Vec::new();
        for (topic, queue_id) in self.names() {
            let Some(cursor) = self.queues.get_mut(&topic).and_then(|queues| queues.get_mut(&queue_id)) else {
                continue;
            };
            self.sound_entries += cursor.sound;
            cursor.block = Vec::new();
            let place = format!("{topic}/{queue_id}");
            if cursor.files.is_empty() {
                if cursor.records > 0 {
                    missing_queues.push(MissingQueue {
                        topic: topic.to_string(),
                        queue_id,
                        records: cursor.records,
                        mends: cursor.all_mends || rebuilds,
                    });
                }
                continue;
            }
            for (wrong, grade) in [(&cursor.wrong, damage), (&cursor.mends, Grade::Mends)] {
                let Some((at, text)) = &wrong.first else { continue };
                let others = if wrong.count > 1 { format!("; {} entries in all", wrong.count) } else { String::new() };
                findings.add(grade, "queue", &place, &format!("offset {at} {text}{others}"));
            }
            let (files, first_seen, next) = (cursor.files.clone(), cursor.first_seen, cursor.next);
            if next.is_none() && self.is_left_of_a_deleted_topic(&topic, queue_id, &borders) {
                findings.mends("queue", &place, "is of a topic that was deleted; the next start removes it");
                continue;
            }
            let before = files.start..next.map_or(files.end, |_| first_seen.min(files.end));
            self.check_others(&topic, queue_id, before, false, &borders, findings);
            if let Some(next) = next {
                let behind = next.max(files.start)..files.end;
                self.check_others(&topic, queue_id, behind, true, &borders, findings);
            }
        }
        missing_queues
    }

    /// Whether all that a queue without records has lies before the deletion of its topic, which a stop interrupted.
    fn is_left_of_a_deleted_topic(&self, topic: &str, queue_id: u32, borders: &Borders<'_>) -> bool {
        let Some(deleted) = borders.deletions.position(topic) else { return false };
        let ends = [deleted, PhysicalOffset(u64::MAX)].map(|position| self.end_below(topic, queue_id, position).ok());
        ends[0].is_some() && ends[0] == ends[1]
    }

    /// Entries whose records are not in the log: those in front belong to what retention deleted or damage took; behind there must be none.
    fn check_others(
        &self,
        topic: &str,
        queue_id: u32,
        offsets: Range<u64>,
        behind: bool,
        borders: &Borders<'_>,
        findings: &mut Findings,
    ) {
        let mut at = offsets.start;
        // Where the log is, and where it is not.
        let mut stray = [Wrong::default(), Wrong::default()];
        while at < offsets.end {
            let count = (offsets.end - at).min(BLOCK_ENTRIES * 16);
            let entries = match self.read(topic, QueueId(queue_id), QueueOffset(at), count) {
                Ok(entries) => entries,
                Err(error) => {
                    findings.damage(
                        "queue",
                        format!("{topic}/{queue_id}"),
                        &format!("offset {at} cannot be read: {error}"),
                    );
                    return;
                }
            };
            if entries.is_empty() {
                break;
            }
            for (offset, entry) in (at..).zip(&entries) {
                let is_empty = entry.position == PhysicalOffset::ZERO && entry.bytes == 0 && entry.tag_code == 0;
                let is_fine = is_empty
                    || (entry.is_blank() && !behind)
                    || (!behind && entry.end() <= borders.log.start)
                    || borders.holes.iter().any(|hole| hole.start <= entry.position.0 && entry.position.0 < hole.end);
                if !is_fine {
                    let is_beyond = behind || entry.position >= borders.log.end;
                    stray[usize::from(is_beyond)].add(offset, || {
                        format!(
                            "points at {} ({} bytes), where the log has no record of this queue",
                            entry.position, entry.bytes
                        )
                    });
                }
            }
            at += entries.len() as u64;
        }
        // What was dispatched before the power went may be gone from the log; the next start cuts the queue.
        let beyond = if borders.unclean { Grade::Mends } else { Grade::Damage };
        for (stray, grade) in stray.into_iter().zip([borders.damage, beyond]) {
            let Some((first, text)) = stray.first else { continue };
            let text = format!("offset {first} {text}; {} entries in all", stray.count);
            findings.add(grade, "queue", format!("{topic}/{queue_id}"), &text);
        }
    }

    /// How many queues have files.
    pub(super) fn count(&self) -> u64 {
        self.queues.values().flat_map(BTreeMap::values).filter(|cursor| !cursor.files.is_empty()).count() as u64
    }

    pub(super) fn sound_entries(&self) -> u64 {
        self.sound_entries
    }

    /// The offsets of every queue.
    pub(super) fn ranges(&self) -> BTreeMap<(String, u32), QueueSummary> {
        let mut ranges = BTreeMap::new();
        for (topic, queue_id) in self.names() {
            let Some(cursor) = self.cursor(&topic, queue_id) else { continue };
            let end = || self.end_below(&topic, queue_id, PhysicalOffset(u64::MAX)).unwrap_or(0);
            let max = cursor.next.unwrap_or_else(end);
            let min = if cursor.next.is_some() { cursor.first_seen } else { max };
            ranges.insert((topic.to_string(), queue_id), QueueSummary { min, max });
        }
        ranges
    }
}
