//! The index of one queue: fixed-size entries that say where its messages lie in the commit log.
//!
//! A queue is a folder `consumequeue/<topic>/<queueId>/` of sparse files of one length. A file is named by the byte position of its first
//! entry, in 20 digits; entry k lies at byte 20·k of the queue. There is no header and no checksum: everything here can be made again from
//! the log.
//!
//! # Invariants
//!
//! - Between the first file and `max`, positions ascend; entries without a record are RocketMQ's pre-blank ones, never the last. Blank ones stand before the
//!   first entry of a queue that begins in the middle of a file, and for offsets that the log does not have.
//! - After [`ConsumeQueue::cut`] everything from `max` on is zero.
//! - There is one writer, the dispatcher. Readers see entries below `max`, which is published after they are written.
//! - Locks: the writer's state, then the open files; never the other way round. Readers take only the second.
//!
//! # How a queue finds its end
//!
//! Our checkpoint at P means: every entry whose record lies below P is durable. Above P each page of an entry's file may be old or new on
//! its own after a power cut, and an entry that straddles two sectors may be half of each. "Is an entry, and lies below P" is therefore true
//! up to one point and false from there on, also among zeros and survivors, if a straddling entry is judged by the one before it, which lies whole
//! in its sector. [`ConsumeQueue::rewind`] finds that point by halving; the log is then dispatched again from P, which writes every later entry anew; what
//! survived can be asked by [`ConsumeQueue::existing`]; [`ConsumeQueue::cut`] at last clears what is left beyond.

use std::{
    collections::BTreeMap,
    io, mem,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tracing::{debug, warn};

use super::{
    QueueRange, StoreError,
    obstacle::{clear, create_folder, set_aside},
    open_files::{OpenFiles, Owner},
};
use crate::{
    env::{Allocation, Directory, EntryKind, File},
    model::{PhysicalOffset, QueueId, QueueOffset, Topic},
    record::layout::RECORD_BYTES_MIN,
};

/// Bytes of an entry.
pub const QUEUE_ENTRY_BYTES: u64 = 20;

/// [`QUEUE_ENTRY_BYTES`] as a length in memory.
const ENTRY_BYTES: usize = 20;
/// Size of a blank entry: no record is that long.
const BLANK_BYTES: u32 = 0x7FFF_FFFF;
/// Size from which on an entry is a blank one, perhaps one whose write was cut short within the size. No record is that long either.
const TORN_BLANK_BYTES_MIN: u32 = 0x7F00_0000;
/// The key that sets the length of a file.
const FILE_BYTES_KEY: &str = "mappedFileSizeConsumeQueue";
/// Digits of a file's name.
const NAME_DIGITS: usize = 20;
/// The least that a disk writes whole.
const SECTOR_BYTES: u64 = 512;
/// Most entries that are read or written at once where the number is not the caller's.
const CHUNK_ENTRIES: u64 = 3_000;
/// Most offsets in a row that may be missing from the log: what a segment of 1 GiB can hold. More is taken for a damaged offset, as is more than
/// can have lain between two records.
pub(super) const GAP_ENTRIES_MAX: u64 = 1 << 24;
/// Most files in a row that may be missing between two others.
const GAP_FILES_MAX: u64 = 1 << 10;
/// Most entries that wait for a file that cannot be written; the queue is set aside then.
pub(super) const PENDING_ENTRIES_MAX: usize = if cfg!(test) { 1 << 10 } else { 1 << 18 };

/// One entry of a consume queue: where a message lies in the commit log.
///
/// 20 bytes, big-endian: physical offset (8), record size in bytes (4), tag code (8). In the schedule topic the tag code is the deliver time
/// in milliseconds since the epoch.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.store.ConsumeQueue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueEntry {
    /// First byte of the record.
    pub position: PhysicalOffset,
    /// Length of the record.
    pub bytes: u32,
    /// Hash of the tag, or what a plugin put there.
    pub tag_code: i64,
}

impl QueueEntry {
    /// What stands for an offset without a record: position 0, size 0x7FFFFFFF, tag code 0.
    pub const BLANK: Self = Self { position: PhysicalOffset::ZERO, bytes: BLANK_BYTES, tag_code: 0 };

    /// Whether no record belongs to this entry: it was never written, or stands for an offset that has none.
    pub fn is_blank(&self) -> bool {
        self.bytes == 0 || self.bytes >= TORN_BLANK_BYTES_MIN
    }

    /// The position behind the record.
    pub fn end(&self) -> PhysicalOffset {
        PhysicalOffset(self.position.0.saturating_add(u64::from(self.bytes)))
    }

    /// The entry as it is stored.
    pub fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.position.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_be_bytes());
        bytes[12..].copy_from_slice(&self.tag_code.to_be_bytes());
        bytes
    }

    /// Reads an entry as it is stored.
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let (position, rest) = bytes.split_at(8);
        let (size, tag_code) = rest.split_at(4);
        Self {
            position: PhysicalOffset(u64::from_be_bytes(position.try_into().unwrap_or_default())),
            bytes: u32::from_be_bytes(size.try_into().unwrap_or_default()),
            tag_code: i64::from_be_bytes(tag_code.try_into().unwrap_or_default()),
        }
    }

    /// A blank that was written as one, rather than a place that was never written.
    fn is_filler(&self) -> bool {
        self.bytes >= BLANK_BYTES
    }
}

/// One queue.
pub(super) struct ConsumeQueue {
    topic: Topic,
    queue_id: QueueId,
    directory: Arc<dyn Directory>,
    folder: PathBuf,
    file_bytes: u64,
    open_files: Arc<OpenFiles>,
    /// Changes when the files are begun anew, so that no reader is given a file of an earlier life.
    owner: AtomicU64,
    /// Offset of the first entry of the first file.
    first: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
    /// Whether [`ConsumeQueue::sync`] has something to do.
    dirty: AtomicBool,
    /// Whether the table knows that this queue has entries to write.
    touched: AtomicBool,
    /// Whether a file was not as this queue leaves it when it was opened.
    suspect: AtomicBool,
    writer: Mutex<Writer>,
}

/// What only the writer needs.
#[derive(Default)]
struct Writer {
    /// Number of the first file and of the one that would follow the newest; equal if there is none. File n begins at byte n · length.
    files: (u64, u64),
    /// Entries put since the last round that was written. Below `next`, not always in order.
    pending: Vec<(u64, QueueEntry)>,
    /// The offset behind the newest entry, pending ones included.
    next: u64,
    /// The newest entry that is not blank, pending ones included.
    last: Option<QueueEntry>,
    /// Files that were written since they were synced.
    dirty: BTreeMap<u64, Arc<dyn File>>,
    /// Whether files were created or removed since the folder was synced.
    folder_dirty: bool,
    /// Whether files were found when the queue was opened: one that was created after the last checkpoint, by a process that was killed then,
    /// may have no durable name yet. It is then written again, which is when the folder must be synced.
    found: bool,
    /// Whether a sync failed: what it should have saved may be lost, and no later sync can tell.
    sync_failed: bool,
    /// The first record that the queue does not have, since it could not be written and too many came after it.
    set_aside: Option<PhysicalOffset>,
    /// Behind the last offset of those records.
    refused: u64,
    /// What lies beyond the end could not be cleared yet: see [`ConsumeQueue::cut`].
    uncut: bool,
    /// Whether the queue was removed while someone still held it: what is put then is nobody's.
    deleted: bool,
}

impl ConsumeQueue {
    /// Opens a queue; nothing is created before the first entry is written. Its range is empty until [`ConsumeQueue::rewind`].
    ///
    /// Strange names are ignored. What a crash left short or took from between two files is made good with zeros, an empty newest file is
    /// removed. A file of another length is moved away if `sets_aside`.
    ///
    /// # Errors
    /// [`StoreError::FileLength`] if a file has another length than `file_bytes`; [`StoreError::Io`].
    pub(super) fn open(
        directory: Arc<dyn Directory>,
        open_files: Arc<OpenFiles>,
        folder: PathBuf,
        topic: Topic,
        queue_id: QueueId,
        file_bytes: u64,
        sets_aside: bool,
    ) -> Result<Self, StoreError> {
        let queue = Self::begin(directory, open_files, folder, topic, queue_id, file_bytes);
        let files = queue.find_files(sets_aside)?;
        let first = files.0 * queue.file_entries();
        queue.first.store(first, Ordering::Relaxed);
        queue.min.store(first, Ordering::Relaxed);
        queue.max.store(first, Ordering::Relaxed);
        {
            let mut writer = queue.writer();
            writer.files = files;
            writer.found = files.0 != files.1;
            // A process that was killed may have removed them, which is not durable yet: with the power they would come back.
            writer.folder_dirty = !writer.found;
            queue.dirty.store(writer.folder_dirty, Ordering::Relaxed);
            writer.next = first;
        }
        Ok(queue)
    }

    /// Begins a queue that has no files.
    pub(super) fn begin(
        directory: Arc<dyn Directory>,
        open_files: Arc<OpenFiles>,
        folder: PathBuf,
        topic: Topic,
        queue_id: QueueId,
        file_bytes: u64,
    ) -> Self {
        let owner = AtomicU64::new(open_files.owner().0);
        Self {
            topic,
            queue_id,
            directory,
            folder,
            file_bytes,
            open_files,
            owner,
            first: AtomicU64::new(0),
            min: AtomicU64::new(0),
            max: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            touched: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            writer: Mutex::default(),
        }
    }

    /// The topic.
    pub(super) fn topic(&self) -> &Topic {
        &self.topic
    }

    /// The queue within the topic.
    pub(super) fn queue_id(&self) -> QueueId {
        self.queue_id
    }

    // Reading.

    /// Its folder, for logs and errors.
    pub(super) fn display(&self) -> String {
        self.directory.display(&self.folder)
    }

    /// The offsets of the queue.
    pub(super) fn range(&self) -> QueueRange {
        let max = self.max.load(Ordering::Acquire);
        let min = self.min.load(Ordering::Acquire).min(max);
        QueueRange { min: QueueOffset(min), max: QueueOffset(max) }
    }

    /// The first offset that the queue has a file for.
    pub(super) fn first_stored(&self) -> QueueOffset {
        QueueOffset(self.first.load(Ordering::Acquire))
    }

    /// Says whether files of the queue are damaged, and names them: those that were not as the queue leaves them when it was opened, and those whose
    /// first and last entry are not what `judge` expects at their offset. It gives nothing for an entry whose record cannot be looked at. With
    /// `stored` what lies behind the end of the queue is looked at, too.
    ///
    /// # Errors
    /// As the file system gives them.
    pub(super) fn has_damaged_files(
        &self,
        stored: bool,
        judge: impl Fn(u64, &QueueEntry) -> Option<bool>,
    ) -> io::Result<bool> {
        let mut damaged = self.suspect.load(Ordering::Relaxed);
        let (first, mut max) = self.readable();
        if stored {
            max = self.writer().files.1 * self.file_entries();
        }
        let per_file = self.file_entries();
        for start in (first..max).step_by(usize::try_from(per_file).map_err(io::Error::other)?) {
            let end = max.min(start + per_file);
            let Some(begin) = self.first_written(start, end)? else { continue };
            let last = if stored { Some(begin) } else { self.nearest_entry(start, end - 1)? };
            let judged = [Some(begin), last].map(|found| {
                let (at, entry) = found?;
                if entry.is_blank() { Some(false) } else { judge(at, &entry) }
            });
            if judged.contains(&Some(false)) || judged == [None, None] {
                let path = self.folder.join(self.file_name(start / per_file));
                warn!(path = self.directory.display(&path), "queue file is damaged");
                damaged = true;
            }
        }
        Ok(damaged)
    }

    /// The first entry that is no filler in `start..end`, which lie in one file.
    fn first_written(&self, start: u64, end: u64) -> io::Result<Option<(u64, QueueEntry)>> {
        let entry = self.read_one(start)?;
        if !entry.is_filler() {
            return Ok(Some((start, entry)));
        }
        let mut from = start;
        while from < end {
            let entries = self.read_stored(from, (end - from).min(CHUNK_ENTRIES))?;
            if let Some((at, entry)) = (from..).zip(&entries).find(|(_, entry)| !entry.is_filler()) {
                return Ok(Some((at, *entry)));
            }
            from += entries.len() as u64;
        }
        Ok(None)
    }

    /// The entries from `from` on, at most `count_max`; fewer at the end of the queue or of a file, none where the queue has none.
    ///
    /// # Errors
    /// As the file system gives them.
    pub(super) fn read(&self, from: QueueOffset, count_max: usize) -> io::Result<Vec<QueueEntry>> {
        let max = self.max.load(Ordering::Acquire);
        let count = max.saturating_sub(from.0).min(count_max as u64);
        if count == 0 || from.0 < self.first.load(Ordering::Acquire) {
            return Ok(Vec::new());
        }
        match self.read_stored(from.0, count) {
            // Deleted, or cut, since the range was read.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof) => {
                Ok(Vec::new())
            }
            read => read,
        }
    }

    /// The entry at an offset; `None` where the queue has none. It may be blank.
    ///
    /// # Errors
    /// As the file system gives them.
    pub(super) fn entry(&self, at: QueueOffset) -> io::Result<Option<QueueEntry>> {
        Ok(self.read(at, 1)?.first().copied())
    }

    /// The entry whose record ends at `end`.
    ///
    /// # Errors
    /// As the file system gives them.
    pub(super) fn find_end(&self, end: PhysicalOffset) -> io::Result<Option<QueueOffset>> {
        let (first, max) = self.readable();
        let behind = self.count_below(first, max, end.0)?;
        if behind == first {
            return Ok(None);
        }
        let found = self.nearest_entry(first, behind - 1)?;
        Ok(found.filter(|(_, entry)| entry.end() == end).map(|(at, _)| QueueOffset(at)))
    }

    /// The tag code of what lies at a queue offset, if it is the entry of this very record; also beyond `max`, where entries may have survived a
    /// crash.
    pub(super) fn existing(&self, at: QueueOffset, position: PhysicalOffset, bytes: u32) -> Option<i64> {
        let files = self.writer().files;
        let stored = files.0 * self.file_entries()..files.1 * self.file_entries();
        let entry = stored.contains(&at.0).then(|| self.read_stored(at.0, 1))?.ok()?.first().copied()?;
        (entry.position == position && entry.bytes == bytes).then_some(entry.tag_code)
    }

    // Writing.

    /// Takes the entry of the message at a queue offset into the round in hand.
    ///
    /// - The same entry again changes nothing; another one at an offset that has one replaces it.
    /// - Missing offsets before it are filled: by what survived there if it fits between its neighbours, else by blank entries.
    /// - An offset that is taken, of a record behind the newest entry's, begins the queue anew from there: the topic was deleted and created again, or a
    ///   crash of another broker lost the entries in between. At offset 0 all earlier entries are dropped.
    /// - An offset of a file that was deleted is passed over.
    ///
    /// # Errors
    /// [`StoreError`] if the entry was not taken: the gap before it is beyond [`GAP_ENTRIES_MAX`], or the queue cannot be written and is
    /// set aside.
    pub(super) fn put(&self, at: QueueOffset, entry: QueueEntry) -> Result<(), StoreError> {
        let mut writer = self.writer();
        if writer.deleted {
            return Ok(());
        }
        if writer.set_aside.is_none() && writer.pending.len() >= PENDING_ENTRIES_MAX {
            writer.set_aside = Some(entry.position);
        }
        if writer.set_aside.is_some() {
            writer.refused = writer.refused.max(at.0 + 1);
            return Err(self.fault("write", io::Error::other("the queue is set aside until it can be written again")));
        }
        let taken = self.take(&mut writer, at.0, entry);
        if let Err(StoreError::Io { source, .. }) = &taken
            && source.kind() != io::ErrorKind::InvalidData
        {
            // A later entry must not close the gap that this one leaves.
            writer.set_aside = Some(entry.position);
            writer.refused = writer.refused.max(at.0 + 1);
        }
        taken
    }

    /// From where the queue misses the log's records, if it was set aside and what it had before could be written since: the time to give them by
    /// [`ConsumeQueue::put_missed`].
    pub(super) fn missed_from(&self) -> Option<PhysicalOffset> {
        let writer = self.writer();
        writer.set_aside.filter(|_| writer.pending.is_empty() && !writer.uncut)
    }

    /// As [`ConsumeQueue::put`], for an entry that was refused while the queue was set aside.
    ///
    /// # Errors
    /// As [`ConsumeQueue::put`].
    pub(super) fn put_missed(&self, at: QueueOffset, entry: QueueEntry) -> Result<(), StoreError> {
        let mut writer = self.writer();
        if writer.deleted { Ok(()) } else { self.take(&mut writer, at.0, entry) }
    }

    /// The queue has what it missed before `to`; all of it if that is none.
    pub(super) fn caught_up(&self, to: Option<PhysicalOffset>) {
        self.writer().set_aside = to;
    }

    /// Behind the last offset that a record has, also if its entry is not written.
    pub(super) fn next_offset(&self) -> QueueOffset {
        let writer = self.writer();
        QueueOffset(writer.next.max(writer.refused))
    }

    /// Writes what was put, by one call for each run of neighbours in a file, and lets readers see it.
    ///
    /// # Errors
    /// [`StoreError::Io`]; what was not written is kept for the next round.
    pub(super) fn write_round(&self) -> Result<(), StoreError> {
        self.write_pending(&mut self.writer())
    }

    /// The first record whose entry was put but could not be written; what lies behind it is not safe in this queue.
    pub(super) fn unwritten_from(&self) -> Option<PhysicalOffset> {
        let writer = self.writer();
        let pending =
            writer.pending.iter().filter(|(_, entry)| !entry.is_blank()).map(|(_, entry)| entry.position).min();
        // No checkpoint may pass what is beyond the end: later it would be taken for entries.
        let uncut = writer.uncut.then_some(PhysicalOffset::ZERO);
        writer.set_aside.into_iter().chain(pending).chain(uncut).min()
    }

    /// Says that there are entries to write; whether this is news.
    pub(super) fn touch(&self) -> bool {
        !self.touched.swap(true, Ordering::Relaxed)
    }

    /// Says that all entries are written.
    pub(super) fn untouch(&self) {
        self.touched.store(false, Ordering::Relaxed);
    }

    /// The offset behind the newest entry, those included that are not written yet; none if there is no entry.
    pub(super) fn end(&self) -> Option<QueueOffset> {
        let writer = self.writer();
        writer.last.map(|_| QueueOffset(writer.next))
    }

    /// Where the record of the newest entry ends, pending ones included; none if there is no entry.
    pub(super) fn end_position(&self) -> Option<PhysicalOffset> {
        self.writer().last.map(|last| last.end())
    }

    /// Whether [`ConsumeQueue::sync`] has something to do.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Makes what was written durable. Writing may go on meanwhile; one sync at a time.
    ///
    /// # Errors
    /// [`StoreError::Io`], from then on at each call: what the failed sync should have saved may be lost.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        let (files, folder_dirty) = {
            let mut writer = self.writer();
            if writer.sync_failed {
                return Err(self.fault("sync", io::Error::other("an earlier sync failed")));
            }
            self.dirty.store(false, Ordering::Release);
            (mem::take(&mut writer.dirty), mem::take(&mut writer.folder_dirty))
        };
        let synced = files.values().try_for_each(|file| file.sync());
        let synced = synced.and_then(|()| if folder_dirty { self.sync_folder() } else { Ok(()) });
        synced.or_else(|error| {
            let mut writer = self.writer();
            if writer.deleted {
                return Ok(());
            }
            writer.sync_failed = true;
            self.dirty.store(true, Ordering::Release);
            Err(self.fault("sync", error))
        })
    }

    // Recovery and retention.

    /// Lets the queue end behind its last entry below `position`. What lies beyond is kept for [`ConsumeQueue::existing`], until it is written
    /// again or [`ConsumeQueue::cut`]. The module says why this finds the end.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn rewind(&self, position: PhysicalOffset) -> Result<(), StoreError> {
        let mut writer = self.writer();
        writer.pending.clear();
        let first = writer.files.0 * self.file_entries();
        let stored = writer.files.1 * self.file_entries();
        let end = self.count_below(first, stored, position.0).map_err(|error| self.fault("read", error))?;
        let last = if end == first { Ok(None) } else { self.nearest_entry(first, end - 1) };
        let mut last = last.map_err(|error| self.fault("read", error))?;
        // A torn entry behind the last whole one may look as if it lay below.
        if let Some((at, torn)) = last
            && at > first
            && self.straddles_sector(at)
            && let Some((before, whole)) =
                self.nearest_entry(first, at - 1).map_err(|error| self.fault("read", error))?
            && torn.position < whole.end()
        {
            last = Some((before, whole));
        }
        // Blank entries are never the last ones, but those before the first entry say where it goes.
        writer.next = last.map_or(end, |(at, _)| at + 1);
        writer.last = last.map(|(_, entry)| entry);
        self.publish_end(writer.next);
        if writer.last.is_none() {
            self.min.store(end, Ordering::Release);
        }
        Ok(())
    }

    /// Where the last record ended that had an entry beyond the queue's end, and lay at `end` or behind, before it was lost. Only entries as they
    /// would be written within `reach` bytes of the log count.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn pointed_to(&self, end: PhysicalOffset, reach: u64) -> Result<Option<PhysicalOffset>, StoreError> {
        let writer = self.writer();
        let range = end..=end.plus(reach);
        let plausible = |entry: &QueueEntry| !entry.is_filler() && range.contains(&entry.position) && entry.bytes > 0;
        let found = || -> io::Result<Option<PhysicalOffset>> {
            let (mut low, mut high) = (writer.next, writer.files.1 * self.file_entries());
            let mut last = None;
            // The first one beyond the end, nearly always a blank one, then the last: they were written one after the other.
            let mut at = low;
            while low < high {
                let entry = self.read_one(at)?;
                if plausible(&entry) {
                    last = last.max(Some(entry.end()));
                    low = at + 1;
                } else {
                    high = at;
                }
                at = low + (high - low) / 2;
            }
            Ok(last)
        };
        found().map_err(|error| self.fault("read", error))
    }

    /// How many entries lead to records that begin in a range of the log; those beyond the queue's end count, too.
    ///
    /// # Errors
    /// As the file system gives them.
    pub(super) fn count_within(&self, from: PhysicalOffset, to: PhysicalOffset) -> io::Result<u64> {
        let files = self.writer().files;
        let (first, stored) = (files.0 * self.file_entries(), files.1 * self.file_entries());
        let mut at = self.count_below(first, stored, from.0)?;
        let end = self.count_below(at, stored, to.0)?;
        let mut count = 0;
        while at < end {
            let entries = self.read_stored(at, (end - at).min(CHUNK_ENTRIES))?;
            count += entries.iter().filter(|entry| !entry.is_blank() && entry.position >= from).count() as u64;
            at += entries.len() as u64;
        }
        Ok(count)
    }

    /// Takes back entries right behind the queue's end that lead into parts of the log which could not be read: their messages may be read later, and
    /// their offsets must not be given again.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn keep_leading_into(&self, parts: &[Range<PhysicalOffset>]) -> Result<(), StoreError> {
        let mut writer = self.writer();
        if !writer.pending.is_empty() {
            // It cannot be written; what it has is not known.
            return Ok(());
        }
        let stored = writer.files.1 * self.file_entries();
        while writer.next < stored {
            let entry = self.read_one(writer.next).map_err(|error| self.fault("read", error))?;
            let behind = writer.last.map_or(PhysicalOffset::ZERO, |last| last.end());
            let leads_there = !entry.is_blank()
                && entry.position >= behind
                && parts.iter().any(|part| part.contains(&entry.position));
            if !leads_there {
                break;
            }
            writer.last = Some(entry);
            writer.next += 1;
        }
        self.max.fetch_max(writer.next, Ordering::AcqRel);
        Ok(())
    }

    /// Clears what lies beyond the queue's end: later files are removed, the rest of the newest is zero, without blocks. A queue without an entry
    /// loses all its files and begins at 0 again. If it fails it is done with the next round that can be written.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn cut(&self) -> Result<(), StoreError> {
        let mut writer = self.writer();
        writer.uncut = true;
        self.write_pending(&mut writer)
    }

    fn cut_now(&self, writer: &mut Writer) -> Result<(), StoreError> {
        if writer.last.is_some() {
            self.cut_behind(writer)?;
        } else {
            self.remove_files(writer)?;
            writer.next = 0;
        }
        writer.uncut = false;
        Ok(())
    }

    /// Sets `min` to the first entry at or behind `log_min`, and deletes the files before it, never the newest. A queue without such an entry keeps its
    /// `max` as `min`.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn set_min_position(&self, log_min: PhysicalOffset) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let (first, max) = self.readable();
        let min = self.min.load(Ordering::Acquire).clamp(first, max);
        let unchanged = min < max
            && self
                .read_stored(min, 1)
                .is_ok_and(|e| e.first().is_some_and(|e| !e.is_blank() && e.position >= log_min));
        if unchanged {
            return Ok(());
        }
        let below = self.count_below(min, max, log_min.0).map_err(|error| self.fault("read", error))?;
        self.min.store(below, Ordering::Release);
        let newest = writer.files.1.saturating_sub(1);
        while writer.files.0 < (below / self.file_entries()).min(newest) {
            let number = writer.files.0;
            // Readers are turned away first.
            self.first.store((number + 1) * self.file_entries(), Ordering::Release);
            writer.files.0 = number + 1;
            self.remove_file(&mut writer, number)?;
            // One after the other, also on disk: a gap would be taken for what a crash took.
            self.sync_folder().map_err(|error| self.fault("sync", error))?;
            debug!(topic = %self.topic, queue_id = self.queue_id.0, file = self.file_name(number), "queue file deleted");
        }
        Ok(())
    }

    /// Removes the queue and all its files. The caller makes it durable.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn delete(&self) -> Result<(), StoreError> {
        let mut writer = self.writer();
        self.forget_files(&mut writer);
        self.publish_end(0);
        self.min.store(0, Ordering::Release);
        self.first.store(0, Ordering::Release);
        *writer = Writer { deleted: true, ..Writer::default() };
        self.dirty.store(false, Ordering::Release);
        self.directory.remove(&self.folder).map_err(|error| self.fault("remove", error))
    }

    // Parts of the above.

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // A panic of a holder leaves at worst entries that are put again by the next recovery.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fault(&self, action: &'static str, source: io::Error) -> StoreError {
        StoreError::Io { action, path: self.directory.display(&self.folder), source }
    }

    fn file_entries(&self) -> u64 {
        self.file_bytes / QUEUE_ENTRY_BYTES
    }

    fn file_name(&self, number: u64) -> String {
        format!("{:0NAME_DIGITS$}", number * self.file_bytes)
    }

    fn readable(&self) -> (u64, u64) {
        let max = self.max.load(Ordering::Acquire);
        (self.first.load(Ordering::Acquire).min(max), max)
    }

    fn publish_end(&self, max: u64) {
        self.max.store(max, Ordering::Release);
        self.min.fetch_min(max, Ordering::AcqRel);
    }

    /// The numbers of the files, as [`Writer::files`]. What a crash took from them is made good with zeros: it holds nothing that was synced.
    fn find_files(&self, sets_aside: bool) -> Result<(u64, u64), StoreError> {
        let listed = self.directory.list(&self.folder).map_err(|error| self.fault("list", error))?;
        let mut found = Vec::new();
        for entry in listed {
            let start = (entry.name.len() == NAME_DIGITS && entry.name.bytes().all(|b| b.is_ascii_digit()))
                .then(|| entry.name.parse::<u64>().ok())
                .flatten();
            match start {
                Some(start) if entry.kind == EntryKind::File => found.push((start, entry.bytes, entry.name)),
                Some(start) if start.is_multiple_of(self.file_bytes) => {
                    self.suspect.store(true, Ordering::Relaxed);
                    clear(&*self.directory, &self.folder.join(&entry.name))
                        .map_err(|error| self.fault("list", error))?;
                }
                _ => warn!(
                    path = self.directory.display(&self.folder.join(&entry.name)),
                    "strange entry in the folder of a queue, ignored"
                ),
            }
        }
        found.sort_unstable();
        // Whether files were created or removed: a power cut must not bring back what is not as this queue leaves it.
        let mut changed = false;
        while let Some((_, 0, name)) = found.last() {
            let path = self.folder.join(name);
            warn!(path = self.directory.display(&path), "newest queue file is empty, removed");
            self.directory.remove(&path).map_err(|error| self.fault("remove", error))?;
            found.pop();
            changed = true;
        }
        if sets_aside {
            for (_, bytes, name) in found.extract_if(.., |(_, bytes, _)| *bytes > self.file_bytes) {
                let path = self.folder.join(name);
                let kept = set_aside(&*self.directory, &path).map_err(|error| self.fault("rename a file in", error))?;
                let path = self.directory.display(&path);
                warn!(path, kept, bytes, wanted = self.file_bytes, "queue file has another length, moved");
                self.suspect.store(true, Ordering::Relaxed);
            }
        }
        let newest = found.last().map(|(start, ..)| *start);
        // If some have the right length, a short one was cut; else the length was changed.
        let is_right_length = sets_aside || found.iter().any(|(_, bytes, _)| *bytes == self.file_bytes);
        let mut files: Option<(u64, u64)> = None;
        for (start, bytes, name) in found.into_iter().rev() {
            let file_path = self.folder.join(&name);
            let path = self.directory.display(&file_path);
            // A crash takes the length of a file that was not synced, or a part of it from the newest.
            let is_short = bytes == 0 || bytes < self.file_bytes && (Some(start) == newest || is_right_length);
            if !is_short && bytes != self.file_bytes {
                let wanted = self.file_bytes;
                return Err(StoreError::FileLength { path, found: bytes, wanted, key: FILE_BYTES_KEY });
            }
            if !start.is_multiple_of(self.file_bytes) {
                warn!(path, "queue file begins within another, ignored");
                continue;
            }
            let number = start / self.file_bytes;
            let first = files.map_or(number + 1, |(first, _)| first);
            if first - number > GAP_FILES_MAX {
                warn!(path, "queue file far before the others, ignored");
                continue;
            }
            if is_short {
                warn!(path, bytes, "queue file is short, extended");
                self.suspect.fetch_or(Some(start) != newest, Ordering::Relaxed);
                let file = self.directory.open(&file_path).map_err(|error| self.fault("open", error))?;
                let extended = file.set_bytes(self.file_bytes, Allocation::Sparse).and_then(|()| file.sync());
                extended.map_err(|error| self.fault("extend", error))?;
            }
            for missing in number + 1..first {
                let path = self.folder.join(self.file_name(missing));
                warn!(path = self.directory.display(&path), "queue file is missing, begun anew");
                self.suspect.store(true, Ordering::Relaxed);
                let file = self.directory.create(&path, self.file_bytes, Allocation::Sparse);
                file.and_then(|file| file.sync()).map_err(|error| self.fault("create", error))?;
                changed = true;
            }
            files = Some((number, files.map_or(number + 1, |(_, end)| end)));
        }
        if changed {
            self.directory.sync_folder(&self.folder).map_err(|error| self.fault("sync", error))?;
        }
        Ok(files.unwrap_or_default())
    }

    fn open_file(&self, number: u64) -> io::Result<Arc<dyn File>> {
        let owner = Owner(self.owner.load(Ordering::Acquire));
        let path = self.folder.join(self.file_name(number));
        self.open_files.get(owner, number, || self.directory.open(&path)).map_err(|error| self.in_file(number, &error))
    }

    /// An error of a file, with its name.
    fn in_file(&self, number: u64, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("file {}: {error}", self.file_name(number)))
    }

    /// Entries as they are stored, at most to the end of the file.
    fn read_stored(&self, from: u64, count: u64) -> io::Result<Vec<QueueEntry>> {
        let per_file = self.file_entries();
        let count = count.min(per_file - from % per_file);
        let mut bytes = vec![0; usize::try_from(count * QUEUE_ENTRY_BYTES).map_err(io::Error::other)?];
        let read = self.open_file(from / per_file)?.read_at(from % per_file * QUEUE_ENTRY_BYTES, &mut bytes);
        read.map_err(|error| self.in_file(from / per_file, &error))?;
        let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
        Ok(entries.iter().map(QueueEntry::from_bytes).collect())
    }

    fn read_one(&self, at: u64) -> io::Result<QueueEntry> {
        let mut bytes = [0; ENTRY_BYTES];
        let per_file = self.file_entries();
        let read = self.open_file(at / per_file)?.read_at(at % per_file * QUEUE_ENTRY_BYTES, &mut bytes);
        read.map_err(|error| self.in_file(at / per_file, &error))?;
        Ok(QueueEntry::from_bytes(&bytes))
    }

    /// The last entry that is no filler in `first..=at`.
    fn nearest_entry(&self, first: u64, at: u64) -> io::Result<Option<(u64, QueueEntry)>> {
        let entry = self.read_one(at)?;
        if !entry.is_filler() {
            return Ok(Some((at, entry)));
        }
        let mut end = at;
        while end > first {
            let file_start = (end - 1) / self.file_entries() * self.file_entries();
            let start = end.saturating_sub(CHUNK_ENTRIES).max(first).max(file_start);
            let entries = self.read_stored(start, end - start)?;
            if let Some((found, entry)) = (start..).zip(&entries).filter(|(_, e)| !e.is_filler()).last() {
                return Ok(Some((found, *entry)));
            }
            end = start;
        }
        Ok(None)
    }

    /// Whether an entry lies in two sectors, so that a power cut can leave half of it. The first of a file never does.
    fn straddles_sector(&self, at: u64) -> bool {
        let byte = at % self.file_entries() * QUEUE_ENTRY_BYTES;
        byte / SECTOR_BYTES != (byte + QUEUE_ENTRY_BYTES - 1) / SECTOR_BYTES
    }

    /// How far, in `low..high`, entries lie below `position`. Fillers count as what stands before them.
    fn count_below(&self, mut low: u64, mut high: u64, position: u64) -> io::Result<u64> {
        while low < high {
            let middle = low + (high - low) / 2;
            // A straddling entry may be torn: the one before it is asked instead.
            let probe = if middle > low && self.straddles_sector(middle) { middle - 1 } else { middle };
            match self.nearest_entry(low, probe)? {
                Some((at, entry)) if entry.is_blank() || entry.position.0 >= position => high = at,
                _ => low = probe + 1,
            }
        }
        Ok(low)
    }

    fn take(&self, writer: &mut Writer, at: u64, entry: QueueEntry) -> Result<(), StoreError> {
        let begun = writer.files.0 != writer.files.1 || !writer.pending.is_empty();
        if begun && at < writer.next {
            let anew = writer.last.is_none_or(|last| entry.position >= last.end());
            if !anew {
                return self.replace(writer, at, entry);
            }
            self.begin_anew(writer, at)?;
        } else if begun && at > writer.next {
            self.fill_gap(writer, at, entry)?;
        }
        writer.pending.push((at, entry));
        writer.next = at + 1;
        writer.last = Some(entry);
        Ok(())
    }

    /// Another entry at an offset that has one.
    fn replace(&self, writer: &mut Writer, at: u64, entry: QueueEntry) -> Result<(), StoreError> {
        if at < writer.files.0 * self.file_entries() {
            return Ok(());
        }
        let is_stored = at / self.file_entries() < writer.files.1;
        if let Some((_, pending)) = writer.pending.iter_mut().rev().find(|(pending, _)| *pending == at) {
            *pending = entry;
        } else if is_stored {
            let stored = self.read_one(at).map_err(|error| self.fault("read", error))?;
            if stored == entry {
                return Ok(());
            }
            if !stored.is_blank() {
                warn!(topic = %self.topic, queue_id = self.queue_id.0, queue_offset = at, physical_offset = entry.position.0, "queue entry disagrees with the log, rebuilt");
            }
            writer.pending.push((at, entry));
        } else {
            writer.pending.push((at, entry));
        }
        if at + 1 == writer.next {
            writer.last = Some(entry);
        }
        Ok(())
    }

    /// Drops everything from the offset `at` on; all of the queue if that is 0.
    fn begin_anew(&self, writer: &mut Writer, at: u64) -> Result<(), StoreError> {
        if writer.last.is_some() {
            warn!(topic = %self.topic, queue_id = self.queue_id.0, queue_offset = at, max = writer.next, "queue offset given again, later entries dropped");
        }
        self.write_pending(writer)?;
        let first = writer.files.0 * self.file_entries();
        if at <= first {
            self.remove_files(writer)?;
        } else {
            self.publish_end(at);
            writer.next = at;
            self.cut_behind(writer)?;
        }
        writer.next = at;
        writer.last = None;
        Ok(())
    }

    /// Fills the offsets from `writer.next` to `at`, which takes `entry`.
    fn fill_gap(&self, writer: &mut Writer, at: u64, entry: QueueEntry) -> Result<(), StoreError> {
        let from = writer.next;
        // The missing records had to lie somewhere.
        let behind = writer.last.map_or(PhysicalOffset::ZERO, |last| last.end());
        let room = entry.position.since(behind) / RECORD_BYTES_MIN as u64;
        if at - from > room.min(GAP_ENTRIES_MAX) {
            let reason = format!("offset {at} of the record at {} is too far behind {from}", entry.position);
            return Err(self.fault("extend", io::Error::new(io::ErrorKind::InvalidData, reason)));
        }
        self.write_pending(writer)?;
        let mut blanks = 0;
        let mut start = from;
        while start < at {
            let file_end = (start / self.file_entries() + 1) * self.file_entries();
            let end = at.min(start + CHUNK_ENTRIES).min(file_end);
            let survivors = if start / self.file_entries() < writer.files.1 {
                self.read_stored(start, end - start).map_err(|error| self.fault("read", error))?
            } else {
                Vec::new()
            };
            for offset in start..end {
                let survivor = usize::try_from(offset - start).ok().and_then(|at| survivors.get(at)).copied();
                let behind = writer.last.map_or(PhysicalOffset::ZERO, |last| last.end());
                let fits = survivor
                    .filter(|found| !found.is_blank() && found.position >= behind && found.end() <= entry.position);
                writer.last = fits.or(writer.last);
                blanks += u64::from(fits.is_none());
                writer.pending.push((offset, fits.unwrap_or(QueueEntry::BLANK)));
            }
            self.write_runs(writer)?;
            writer.next = end;
            start = end;
        }
        warn!(topic = %self.topic, queue_id = self.queue_id.0, queue_offset = from, blanks, kept = at - from - blanks, "queue offsets missing from the log, filled");
        Ok(())
    }

    fn write_pending(&self, writer: &mut Writer) -> Result<(), StoreError> {
        self.write_runs(writer)?;
        // What is written but blank stays unseen: only an entry can be the last.
        if writer.next > self.max.load(Ordering::Relaxed) {
            self.max.store(writer.next, Ordering::Release);
        }
        if writer.uncut { self.cut_now(writer) } else { Ok(()) }
    }

    fn write_runs(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let per_file = self.file_entries();
        let mut written = 0;
        let mut outcome = Ok(());
        let mut bytes = Vec::new();
        while let Some(&(start, _)) = writer.pending.get(written) {
            let number = start / per_file;
            let file_end = (number + 1) * per_file;
            let rest = &writer.pending[written..];
            let run = rest.iter().zip(start..file_end).take_while(|((at, _), wanted)| at == wanted).count();
            bytes.clear();
            bytes.extend(rest[..run].iter().map(|(_, entry)| entry.to_bytes()));
            let position = start % per_file * QUEUE_ENTRY_BYTES;
            let file = self.file_to_write(writer, number, position);
            outcome = file.and_then(|file| file.write_at(position, bytes.as_flattened()).map(|()| file)).map(|file| {
                writer.dirty.insert(number, file);
                self.dirty.store(true, Ordering::Release);
            });
            if outcome.is_err() {
                break;
            }
            written += run;
        }
        writer.pending.drain(..written);
        outcome.map_err(|error| self.fault("write", error))
    }

    /// The file `number`, created if it is the next; `position` is where writing begins in it.
    fn file_to_write(&self, writer: &mut Writer, number: u64, position: u64) -> io::Result<Arc<dyn File>> {
        if (writer.files.0..writer.files.1).contains(&number) {
            writer.folder_dirty |= mem::take(&mut writer.found);
            return self.open_file(number);
        }
        let is_first = writer.files.0 == writer.files.1;
        if is_first {
            create_folder(&*self.directory, &self.folder)?;
        }
        let path = self.folder.join(self.file_name(number));
        let file = match self.directory.create(&path, self.file_bytes, Allocation::Sparse) {
            // Left by an attempt that failed further on, or ignored when the queue was opened.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.directory.remove(&path)?;
                self.directory.create(&path, self.file_bytes, Allocation::Sparse)?
            }
            // Somebody took the folder away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                warn!(path = self.directory.display(&self.folder), "the folder of a queue is gone, made anew");
                create_folder(&*self.directory, &self.folder)?;
                self.directory.create(&path, self.file_bytes, Allocation::Sparse)?
            }
            created => created?,
        };
        self.open_files.keep(Owner(self.owner.load(Ordering::Acquire)), number, &file);
        writer.folder_dirty = true;
        if is_first {
            self.blank_before(&*file, position)?;
            let first = number * self.file_entries();
            self.first.store(first, Ordering::Release);
            self.min.store(first + position / QUEUE_ENTRY_BYTES, Ordering::Release);
            writer.files = (number, number + 1);
        } else {
            writer.files.1 = number + 1;
        }
        Ok(file)
    }

    /// Pre-blank entries from the start of a queue's first file to `position`.
    fn blank_before(&self, file: &dyn File, position: u64) -> io::Result<()> {
        let blanks: Vec<u8> = (0..CHUNK_ENTRIES).flat_map(|_| QueueEntry::BLANK.to_bytes()).collect();
        let mut at = 0;
        while at < position {
            let count = (position - at).min(blanks.len() as u64);
            file.write_at(at, &blanks[..usize::try_from(count).map_err(io::Error::other)?])?;
            at += count;
        }
        Ok(())
    }

    fn cut_behind(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let per_file = self.file_entries();
        let max = writer.next;
        let keeps = max.div_ceil(per_file).max(writer.files.0);
        while writer.files.1 > keeps {
            writer.files.1 -= 1;
            self.remove_file(writer, writer.files.1)?;
        }
        if writer.files.0 == writer.files.1 {
            return Ok(());
        }
        let newest = writer.files.1 - 1;
        let left = max - newest * per_file;
        if left < per_file {
            let file = self.open_file(newest).map_err(|error| self.fault("open", error))?;
            // Shortening and extending frees the blocks, where zeroing would reserve them.
            file.set_bytes(left * QUEUE_ENTRY_BYTES, Allocation::Sparse)
                .and_then(|()| file.set_bytes(self.file_bytes, Allocation::Sparse))
                .map_err(|error| self.fault("cut", error))?;
            writer.dirty.insert(newest, file);
            self.dirty.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn remove_files(&self, writer: &mut Writer) -> Result<(), StoreError> {
        self.publish_end(0);
        // The newest first: what a crash leaves has no gap.
        for number in (writer.files.0..writer.files.1).rev() {
            self.remove_file(writer, number)?;
        }
        self.forget_files(writer);
        writer.files = (0, 0);
        self.first.store(0, Ordering::Release);
        self.min.store(0, Ordering::Release);
        Ok(())
    }

    fn remove_file(&self, writer: &mut Writer, number: u64) -> Result<(), StoreError> {
        self.open_files.forget(Owner(self.owner.load(Ordering::Acquire)), number);
        writer.dirty.remove(&number);
        writer.folder_dirty = true;
        self.dirty.store(true, Ordering::Release);
        self.directory.remove(&self.folder.join(self.file_name(number))).map_err(|error| self.fault("remove", error))
    }

    /// Makes what the folder holds durable. One that somebody took away is made anew: what lay in it is built again by the next start, which notices, and
    /// a folder that is not there gives no reason to doubt what was synced elsewhere.
    fn sync_folder(&self) -> io::Result<()> {
        match self.directory.sync_folder(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                warn!(path = self.directory.display(&self.folder), "the folder of a queue is gone, made anew");
                create_folder(&*self.directory, &self.folder)?;
                self.directory.sync_folder(&self.folder)
            }
            synced => synced,
        }
    }

    /// Forgets every open file, for good: readers that still open one keep it under a name that is not asked for again.
    fn forget_files(&self, writer: &mut Writer) {
        let owner = Owner(self.owner.swap(self.open_files.owner().0, Ordering::AcqRel));
        for number in writer.files.0..writer.files.1 {
            self.open_files.forget(owner, number);
        }
        writer.dirty.clear();
    }
}

#[cfg(test)]
mod tests;
