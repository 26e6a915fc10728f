//! The index by key: which records may hold a key, newest first.
//!
//! Files of the folder `index/`, each named by the time of its first entry, `yyyyMMddHHmmssSSS`. All numbers are big-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..40 | header: begin time (8), end time (8), begin position (8), end position (8), used slots (4), count (4) |
//! | 4 each | slots: number of the newest entry whose hash falls here, 0 if none |
//! | 20 each | entries: key hash (4), position (8), whole seconds since the begin time (4), number of the entry before it in the slot (4) |
//!
//! The count is one more than the entries: entry 0 is never used. A key is `topic#key`; only its hash is kept, so that whoever asks must look into the
//! record. Times are in milliseconds since the epoch. RocketMQ names files in local time; here it is UTC, which sorts as well and needs no
//! time zone; a name is never below that of the file before.
//!
//! # Order of writing
//!
//! Entries, then slots, then the header: a reader that finds an entry's number in a slot finds the entry. Numbers in a chain fall, so that a
//! damaged file leads nobody in circles.
//!
//! # After a crash
//!
//! Everything below our checkpoint's position P is durable; above it each sector may be old or new. [`Index::truncate_from`] finds the first entry
//! at or above P by halving (as [`super::consume_queue`] does), takes the later ones out of the slots, and clears them. The chains below are whole. The log is then dispatched
//! again from P.
//!
//! Source: Apache RocketMQ, `org.apache.rocketmq.store.index.IndexFile`.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use tracing::{info, warn};

use super::{
    StoreError,
    obstacle::{is_denied, set_denied_aside},
};
use crate::{
    env::{Allocation, Directory, EntryKind, File},
    model::{PhysicalOffset, Timestamp, java_hash, java_hash_on},
};

const HEADER_BYTES: usize = 40;
const SLOT_BYTES: u64 = 4;
const ENTRY_BYTES: usize = 20;
/// [`ENTRY_BYTES`] as a distance in a file.
pub(super) const ENTRY_STEP: u64 = 20;
const NAME_DIGITS: usize = 17;
/// The least that a disk writes whole.
const SECTOR_BYTES: u64 = 512;
/// Bytes of a read where a file is read through.
const CHUNK_BYTES: u64 = 60_000;
/// Most entries of a chain that one query looks at: what may share a slot by chance or malice.
pub(super) const QUERY_STEPS_MAX: usize = 1 << 20;
/// Most entries that wait for a file that cannot be written; the index is set aside then.
pub(super) const PENDING_ENTRIES_MAX: usize = if cfg!(test) { 1 << 10 } else { 1 << 18 };

/// How many bytes of a file with so many slots lie before its entries.
pub(super) const fn begin_of_entries(slots: u32) -> u64 {
    HEADER_BYTES as u64 + slots as u64 * SLOT_BYTES
}

/// All index files of a store.
///
/// Locks: that of a sync, then the writer's state, then the list of files, then a header. A query takes only the last two.
pub(super) struct Index {
    directory: Arc<dyn Directory>,
    folder: PathBuf,
    shape: Shape,
    /// Oldest first.
    files: RwLock<Vec<Arc<IndexFile>>>,
    writer: Mutex<Writer>,
    /// Held during a sync: whoever finds nothing dirty must know that it is durable, not that another is at it.
    syncing: Mutex<()>,
}

/// Where things lie in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) slots: u32,
    /// The unused entry 0 included.
    pub(super) entries: u32,
}

struct IndexFile {
    name: String,
    file: Arc<dyn File>,
    header: Mutex<Header>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Header {
    pub(super) begin_time: i64,
    pub(super) end_time: i64,
    pub(super) begin_position: u64,
    pub(super) end_position: u64,
    pub(super) used_slots: u32,
    /// One more than the entries.
    pub(super) count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) key_hash: u32,
    pub(super) position: u64,
    pub(super) seconds: i32,
    /// The entry before it in its slot, 0 if none.
    pub(super) previous: u32,
}

#[derive(Default)]
struct Writer {
    pending: Vec<Pending>,
    /// What is being written: made once, so that a second attempt writes the same.
    round: Option<Round>,
    dirty: Vec<Arc<IndexFile>>,
    folder_dirty: bool,
    sync_failed: bool,
    /// The first record whose keys were not taken.
    set_aside: Option<PhysicalOffset>,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    key_hash: u32,
    position: PhysicalOffset,
    stored_at: Timestamp,
}

/// Entries on their way into one file.
struct Round {
    file: Arc<IndexFile>,
    first: u32,
    entries: Vec<[u8; ENTRY_BYTES]>,
    /// Slots and their new heads, by slot.
    slots: Vec<(u32, u32)>,
    header: Header,
    /// The first of the records.
    position: PhysicalOffset,
}

impl Index {
    /// Opens the index files under `folder`. Strange names and longer files are ignored with a warning. What may not be read and written is moved
    /// away. One that is too short, which a crash leaves or a kill in the middle of a cut, and one with a damaged header are removed: all they can hold
    /// is in the log.
    ///
    /// # Errors
    /// [`StoreError::Option`] if there are no slots or no entries; [`StoreError::Io`].
    pub(super) fn open(
        directory: Arc<dyn Directory>,
        folder: &Path,
        slots: u32,
        entries: u32,
    ) -> Result<Self, StoreError> {
        // Numbers of slots and entries are signed in RocketMQ's files.
        let in_range = |value: u32, min: u32| (min..=i32::MAX.unsigned_abs()).contains(&value);
        for (key, value, min) in [("maxHashSlotNum", slots, 1), ("maxIndexNum", entries, 2)] {
            if !in_range(value, min) {
                let reason = format!("{value} is not between {min} and {}", i32::MAX);
                return Err(StoreError::Option { key, reason });
            }
        }
        let index = Self {
            directory,
            folder: folder.to_owned(),
            shape: Shape { slots, entries },
            files: RwLock::default(),
            writer: Mutex::default(),
            syncing: Mutex::default(),
        };
        let files = loop {
            match index.find_files() {
                Err((path, error)) if is_denied(&error) => {
                    let moved = set_denied_aside(&*index.directory, &path, folder, &error);
                    let created = moved.and_then(|()| index.directory.create_folder(folder));
                    let path = index.directory.display(&path);
                    created.map_err(|_| StoreError::Io { action: "open", path, source: error })?;
                }
                Err((path, source)) => {
                    return Err(StoreError::Io { action: "open", path: index.directory.display(&path), source });
                }
                Ok(files) => break files,
            }
        };
        *index.files.write().unwrap_or_else(PoisonError::into_inner) = files;
        Ok(index)
    }

    // Reading.

    /// Offers the positions of the records of `topic` that may hold `key` and may have been stored within `[begin, end]`, newest first, until
    /// `wants` says `false`.
    ///
    /// What is offered is a guess: hashes collide, times are cut to seconds. The asker compares with the record.
    ///
    /// # Errors
    /// As the file system gives them.
    pub(super) fn query(
        &self,
        topic: &str,
        key: &str,
        begin: Timestamp,
        end: Timestamp,
        mut wants: impl FnMut(PhysicalOffset) -> bool,
    ) -> io::Result<()> {
        let key_hash = key_hash(topic, key);
        let mut steps = 0;
        for file in self.files().iter().rev() {
            let header = file.header();
            if header.count <= 1 || header.begin_time > end.0 || header.end_time < begin.0 {
                continue;
            }
            let mut number = self.shape.read_slot(&*file.file, key_hash % self.shape.slots)?;
            while number > 0 && number < self.shape.entries && steps < QUERY_STEPS_MAX {
                steps += 1;
                let entry = self.shape.read_entry(&*file.file, number)?;
                // The second that the time was cut to.
                let second = header.begin_time.saturating_add(i64::from(entry.seconds) * 1000);
                let is_wanted = entry.key_hash == key_hash
                    && second <= end.0
                    && second.saturating_add(999) >= begin.0
                    && entry.position <= i64::MAX.unsigned_abs();
                if is_wanted && !wants(PhysicalOffset(entry.position)) {
                    return Ok(());
                }
                if entry.previous >= number {
                    warn!(path = self.display(file), entry = number, "index chain damaged, the rest of it is not read");
                    break;
                }
                number = entry.previous;
            }
        }
        Ok(())
    }

    /// Time and position of the newest record indexed; zero if there is none.
    pub(super) fn end(&self) -> (Timestamp, PhysicalOffset) {
        let header = self.files().last().map(|file| file.header()).unwrap_or_default();
        (Timestamp(header.end_time), PhysicalOffset(header.end_position))
    }

    /// How many files there are.
    pub(super) fn file_count(&self) -> u64 {
        self.files().len() as u64
    }

    /// Whether every file but the newest is full, and none begins before the one in front of it ends, as their headers say; names those of which
    /// that is not so. After [`Index::truncate_from`] only damage can be the reason.
    pub(super) fn is_whole(&self) -> bool {
        let files = self.files();
        let damaged = files.windows(2).filter(|pair| {
            let [header, next] = [&pair[0], &pair[1]].map(|file| file.header());
            !self.shape.is_full(&header) || header.end_position > next.begin_position
        });
        let damaged: Vec<String> = damaged.map(|pair| self.display(&pair[0])).collect();
        for path in &damaged {
            warn!(path, "index file is damaged");
        }
        damaged.is_empty()
    }

    /// End time of the newest file that is full and synced: what RocketMQ's checkpoint says of the index.
    pub(super) fn synced_time(&self) -> Timestamp {
        let writer = self.writer();
        let files = self.files();
        let is_dirty = |file: &Arc<IndexFile>| writer.dirty.iter().any(|dirty| Arc::ptr_eq(dirty, file));
        let safe = files.iter().take_while(|file| self.shape.is_full(&file.header()) && !is_dirty(file));
        Timestamp(safe.last().map_or(0, |file| file.header().end_time))
    }

    // Writing.

    /// Takes the keys of a record into the round in hand. Records come in the order of the log; one that lies before the newest indexed is passed over.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the index cannot be written and is set aside.
    pub(super) fn put<'k>(
        &self,
        topic: &str,
        keys: impl Iterator<Item = &'k [u8]>,
        position: PhysicalOffset,
        stored_at: Timestamp,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer();
        if writer.set_aside.is_none() && writer.pending.len() >= PENDING_ENTRIES_MAX {
            writer.set_aside = Some(position);
        }
        if writer.set_aside.is_some() {
            return Err(self.fault("write", io::Error::other("the index is set aside until it can be written again")));
        }
        let in_round = writer.round.as_ref().map(|round| PhysicalOffset(round.header.end_position));
        let newest = writer.pending.last().map(|pending| pending.position).or(in_round);
        if position >= newest.unwrap_or_else(|| self.end().1) {
            let of_topic = topic_hash(topic);
            keys.filter_map(|key| key_hash_on(of_topic, key))
                .for_each(|key_hash| writer.pending.push(Pending { key_hash, position, stored_at }));
        }
        Ok(())
    }

    /// From where the index misses the log's records, if it was set aside and what it had before could be written since: they can be put then, once
    /// [`Index::caught_up`] said so.
    pub(super) fn missed_from(&self) -> Option<PhysicalOffset> {
        let writer = self.writer();
        writer.set_aside.filter(|_| writer.pending.is_empty() && writer.round.is_none())
    }

    /// The index has what it missed before `to`; all of it if that is none.
    pub(super) fn caught_up(&self, to: Option<PhysicalOffset>) {
        self.writer().set_aside = to;
    }

    /// Writes what was put; a new file is begun when the newest is full.
    ///
    /// # Errors
    /// [`StoreError::Io`]; what was not written is kept for the next round.
    pub(super) fn write_round(&self) -> Result<(), StoreError> {
        self.write_pending(&mut self.writer()).map_err(|error| self.fault("write", error))
    }

    /// The first record with a key that was put but could not be written: a checkpoint must not pass it.
    pub(super) fn unwritten_from(&self) -> Option<PhysicalOffset> {
        let writer = self.writer();
        let round = writer.round.as_ref().map(|round| round.position);
        let pending = writer.pending.first().map(|pending| pending.position);
        round.into_iter().chain(pending).chain(writer.set_aside).min()
    }

    /// Makes what was written durable. Writing may go on meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Io`], from then on at each call: what the failed sync should have saved may be lost.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let (dirty, folder_dirty) = {
            let mut writer = self.writer();
            if writer.sync_failed {
                return Err(self.fault("sync", io::Error::other("an earlier sync failed")));
            }
            (std::mem::take(&mut writer.dirty), std::mem::take(&mut writer.folder_dirty))
        };
        let synced = dirty.iter().try_for_each(|file| file.file.sync());
        let synced = synced.and_then(|()| if folder_dirty { self.directory.sync_folder(&self.folder) } else { Ok(()) });
        synced.map_err(|error| {
            self.writer().sync_failed = true;
            self.fault("sync", error)
        })
    }

    // Recovery and retention.

    /// Takes out every entry of a record at or behind `position`, and what a crash left beyond. The module says how.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn truncate_from(&self, position: PhysicalOffset) -> Result<(), StoreError> {
        self.truncate(position).map_err(|error| self.fault("cut", error))
    }

    /// Removes all files, to build the index again from the start of the log.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn clear(&self) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let files = std::mem::take(&mut *self.files.write().unwrap_or_else(PoisonError::into_inner));
        self.begin_anew(&mut writer)
            .and_then(|()| files.iter().rev().try_for_each(|file| self.remove(file)))
            .map_err(|error| self.fault("remove", error))
    }

    /// Deletes the files whose newest record lies below `log_min`, never the newest file.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn set_min_position(&self, log_min: PhysicalOffset) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let files = self.files();
        let is_old = |file: &&Arc<IndexFile>| file.header().end_position < log_min.0;
        let old = files[..files.len().saturating_sub(1)].iter().take_while(is_old).count();
        for file in &files[..old] {
            self.files.write().unwrap_or_else(PoisonError::into_inner).remove(0);
            writer.dirty.retain(|dirty| !Arc::ptr_eq(dirty, file));
            writer.folder_dirty = true;
            self.remove(file).map_err(|error| self.fault("remove", error))?;
        }
        Ok(())
    }

    // Parts of the above.

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // A panic of a holder leaves at worst entries that are put again by the next recovery.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> Vec<Arc<IndexFile>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fault(&self, action: &'static str, source: io::Error) -> StoreError {
        StoreError::Io { action, path: self.directory.display(&self.folder), source }
    }

    /// Its folder, for logs and errors.
    pub(super) fn display_folder(&self) -> String {
        self.directory.display(&self.folder)
    }

    fn display(&self, file: &IndexFile) -> String {
        self.directory.display(&self.folder.join(&file.name))
    }

    fn remove(&self, file: &IndexFile) -> io::Result<()> {
        self.directory.remove(&self.folder.join(&file.name))?;
        info!(path = self.display(file), "index file deleted");
        Ok(())
    }

    /// The files; an error with what it is about.
    fn find_files(&self) -> Result<Vec<Arc<IndexFile>>, (PathBuf, io::Error)> {
        let mut files = Vec::new();
        for entry in self.directory.list(&self.folder).map_err(|error| (self.folder.clone(), error))? {
            let file_path = self.folder.join(&entry.name);
            let failed = |error| (file_path.clone(), error);
            let path = self.directory.display(&file_path);
            if entry.kind != EntryKind::File || !is_index_name(&entry.name) {
                warn!(path, "strange entry in the index folder, ignored");
                continue;
            }
            let wanted = self.shape.file_bytes();
            if entry.bytes < wanted {
                warn!(path, bytes = entry.bytes, wanted, "index file is too short, removed");
                self.directory.remove(&file_path).map_err(failed)?;
                continue;
            }
            if entry.bytes > wanted {
                warn!(path, bytes = entry.bytes, wanted, "index file is too long, ignored");
                continue;
            }
            let file = self.directory.open(&file_path).map_err(failed)?;
            let header = Header::read(&*file).map_err(failed)?;
            if header.count > self.shape.entries {
                warn!(path, count = header.count, "index file has a damaged header, removed");
                self.directory.remove(&file_path).map_err(failed)?;
                continue;
            }
            files.push(Arc::new(IndexFile { name: entry.name, file, header: Mutex::new(header) }));
        }
        Ok(files)
    }

    fn write_pending(&self, writer: &mut Writer) -> io::Result<()> {
        loop {
            if let Some(round) = &writer.round {
                let file = Arc::clone(&round.file);
                if !writer.dirty.iter().any(|dirty| Arc::ptr_eq(dirty, &file)) {
                    writer.dirty.push(Arc::clone(&file));
                }
                round.write(self.shape)?;
                file.set_header(round.header);
                writer.round = None;
            }
            let Some(&first) = writer.pending.first() else { return Ok(()) };
            let newest = self.files().pop().filter(|file| !self.shape.is_full(&file.header()));
            let file = match newest {
                Some(file) => file,
                None => self.begin_file(writer, first.stored_at)?,
            };
            let room = usize::try_from(self.shape.entries - file.header().count).map_err(io::Error::other)?;
            let count = room.min(writer.pending.len());
            writer.round = Some(Round::new(self.shape, file, &writer.pending[..count])?);
            writer.pending.drain(..count);
        }
    }

    /// A new file; the header says what RocketMQ's does, until the first entry.
    fn begin_file(&self, writer: &mut Writer, at: Timestamp) -> io::Result<Arc<IndexFile>> {
        let before = self.files().pop();
        let wanted = file_number(at);
        let number =
            before.as_ref().and_then(|file| file.name.parse::<u64>().ok()).map_or(wanted, |n| wanted.max(n + 1));
        self.directory.create_folder(&self.folder)?;
        let (name, file) = self.create_file(number)?;
        let end = before.map(|file| file.header()).unwrap_or_default();
        let header = Header {
            begin_time: end.end_time,
            end_time: end.end_time,
            begin_position: end.end_position,
            end_position: end.end_position,
            used_slots: 0,
            count: 1,
        };
        let file = Arc::new(IndexFile { name, file, header: Mutex::new(header) });
        self.files.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&file));
        writer.folder_dirty = true;
        Ok(file)
    }

    /// Creates the file of this number, or of the next that is not taken by a file which was ignored.
    fn create_file(&self, mut number: u64) -> io::Result<(String, Arc<dyn File>)> {
        loop {
            let name = format!("{number:0NAME_DIGITS$}");
            match self.directory.create(&self.folder.join(&name), self.shape.file_bytes(), Allocation::Sparse) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                created => return created.map(|file| (name, file)),
            }
        }
    }

    /// Nothing is being written. A process that was killed, and the opening too, may have created or removed files without syncing the folder; what a
    /// power cut took with it can be synced only once it is there again.
    fn begin_anew(&self, writer: &mut Writer) -> io::Result<()> {
        self.directory.create_folder(&self.folder)?;
        *writer = Writer { folder_dirty: true, ..Writer::default() };
        Ok(())
    }

    fn truncate(&self, position: PhysicalOffset) -> io::Result<()> {
        let mut writer = self.writer();
        self.begin_anew(&mut writer)?;
        while let Some(file) = self.files().pop() {
            let count = self.shape.count_below(&*file.file, position)?;
            if count > 1 {
                if self.cut(&file, count)? {
                    writer.dirty.push(file);
                }
                break;
            }
            self.files.write().unwrap_or_else(PoisonError::into_inner).pop();
            writer.folder_dirty = true;
            self.remove(&file)?;
        }
        Ok(())
    }

    /// Leaves the entries before `count` in a file; whether anything had to be changed.
    fn cut(&self, file: &IndexFile, count: u32) -> io::Result<bool> {
        let shape = self.shape;
        let (used_slots, beyond) = shape.slots_beyond(&*file.file, count)?;
        let before = file.header();
        if beyond.is_empty() && before.count == count && before.used_slots == used_slots && count == shape.entries {
            return Ok(false);
        }
        let heads = shape.heads_below(&*file.file, &beyond, count)?;
        for (&slot, &head) in &heads {
            file.file.write_at(shape.slot_at(slot), &head.to_be_bytes())?;
        }
        let emptied = heads.values().filter(|&&head| head == 0).count();
        let last = shape.read_entry(&*file.file, count - 1)?;
        let end_time = if before.count == count {
            before.end_time
        } else {
            before.begin_time.saturating_add(i64::from(last.seconds) * 1000 + 999)
        };
        let header = Header {
            end_time,
            end_position: last.position,
            used_slots: used_slots - u32::try_from(emptied).unwrap_or(used_slots),
            count,
            ..before
        };
        // Shortening and extending frees the blocks, where zeroing would reserve them. Killed in between, the next start removes the file.
        file.file.set_bytes(shape.entry_at(count), Allocation::Sparse)?;
        file.file.set_bytes(shape.file_bytes(), Allocation::Sparse)?;
        file.file.write_at(0, &header.to_bytes())?;
        file.set_header(header);
        Ok(true)
    }
}

impl IndexFile {
    fn header(&self) -> Header {
        *self.header.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_header(&self, header: Header) {
        *self.header.lock().unwrap_or_else(PoisonError::into_inner) = header;
    }
}

impl Round {
    /// Chains entries behind those of a file that has room for them.
    fn new(shape: Shape, file: Arc<IndexFile>, pending: &[Pending]) -> io::Result<Self> {
        // Slots lie all over the file: through its map each costs no call. If a page of it could not be read, all are read once more.
        let soundness = file.file.soundness();
        let map = file.file.mapped();
        let round = Self::chained(shape, Arc::clone(&file), pending, map.as_deref());
        if round.is_ok() && soundness.holds() { round } else { Self::chained(shape, file, pending, None) }
    }

    /// Slots are read from `map`, which is the file's, or from the file itself.
    fn chained(shape: Shape, file: Arc<IndexFile>, pending: &[Pending], map: Option<&[u8]>) -> io::Result<Self> {
        let mut header = file.header();
        let first = header.count;
        if let Some(pending) = pending.first().filter(|_| first <= 1) {
            header.begin_time = pending.stored_at.0;
            header.begin_position = pending.position.0;
        }
        if let Some(pending) = pending.last() {
            header.end_time = pending.stored_at.0;
            header.end_position = pending.position.0;
        }
        header.count += u32::try_from(pending.len()).map_err(io::Error::other)?;
        // Those of one slot side by side, in the order in which they came.
        let in_order = |(pending, nth): (&Pending, u64)| u64::from(pending.key_hash % shape.slots) << 32 | nth;
        let mut order: Vec<u64> = pending.iter().zip(0..).map(in_order).collect();
        order.sort_unstable();
        let mut entries = vec![[0; ENTRY_BYTES]; pending.len()];
        let mut slots = Vec::with_capacity(pending.len());
        for of_slot in order.chunk_by(|before, behind| before >> 32 == behind >> 32) {
            let slot = (of_slot[0] >> 32) as u32;
            let seen = map.and_then(|map| shape.see_slot(map, slot));
            let head = seen.map_or_else(|| shape.read_slot(&*file.file, slot), Ok)?;
            let mut previous = Some(head).filter(|&head| head < first).unwrap_or(0);
            for place in of_slot {
                let nth = *place as u32;
                let Pending { key_hash, position, stored_at } = pending[nth as usize];
                let seconds = stored_at.0.saturating_sub(header.begin_time).max(0) / 1000;
                let seconds = if header.begin_time > 0 { i32::try_from(seconds).unwrap_or(i32::MAX) } else { 0 };
                entries[nth as usize] = IndexEntry { key_hash, position: position.0, seconds, previous }.to_bytes();
                header.used_slots += u32::from(previous == 0);
                previous = first + nth;
            }
            slots.push((slot, previous));
        }
        let position = pending.first().map_or(PhysicalOffset::ZERO, |pending| pending.position);
        Ok(Self { file, first, entries, slots, header, position })
    }

    fn write(&self, shape: Shape) -> io::Result<()> {
        let file = &*self.file.file;
        file.write_at(shape.entry_at(self.first), self.entries.as_flattened())?;
        let mut heads = Vec::new();
        for neighbours in self.slots.chunk_by(|(before, _), (slot, _)| before + 1 == *slot) {
            heads.clear();
            neighbours.iter().for_each(|(_, head)| heads.extend_from_slice(&head.to_be_bytes()));
            file.write_at(shape.slot_at(neighbours[0].0), &heads)?;
        }
        file.write_at(0, &self.header.to_bytes())
    }
}

impl Shape {
    pub(super) fn file_bytes(self) -> u64 {
        self.entry_at(self.entries)
    }

    fn slot_at(self, slot: u32) -> u64 {
        HEADER_BYTES as u64 + u64::from(slot) * SLOT_BYTES
    }

    fn entry_at(self, number: u32) -> u64 {
        self.slot_at(self.slots) + u64::from(number) * ENTRY_STEP
    }

    fn is_full(self, header: &Header) -> bool {
        header.count >= self.entries
    }

    fn read_slot(self, file: &dyn File, slot: u32) -> io::Result<u32> {
        let mut bytes = [0; 4];
        file.read_at(self.slot_at(slot), &mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    /// As [`Shape::read_slot`], in the map of the file, if that is long enough.
    fn see_slot(self, map: &[u8], slot: u32) -> Option<u32> {
        let from = map.get(usize::try_from(self.slot_at(slot)).ok()?..)?;
        from.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    fn read_entry(self, file: &dyn File, number: u32) -> io::Result<IndexEntry> {
        let mut bytes = [0; ENTRY_BYTES];
        file.read_at(self.entry_at(number), &mut bytes)?;
        Ok(IndexEntry::from_bytes(&bytes))
    }

    /// Entries from a number on.
    pub(super) fn read_entries(self, file: &dyn File, number: u32, count: u32) -> io::Result<Vec<IndexEntry>> {
        let mut bytes = vec![0; count as usize * ENTRY_BYTES];
        file.read_at(self.entry_at(number), &mut bytes)?;
        let (entries, _) = bytes.as_chunks::<ENTRY_BYTES>();
        Ok(entries.iter().map(IndexEntry::from_bytes).collect())
    }

    /// All slots.
    pub(super) fn read_slots(self, file: &dyn File) -> io::Result<Vec<u32>> {
        let mut bytes = vec![0; self.slots as usize * SLOT_BYTES as usize];
        file.read_at(self.slot_at(0), &mut bytes)?;
        let (heads, _) = bytes.as_chunks::<4>();
        Ok(heads.iter().map(|&head| u32::from_be_bytes(head)).collect())
    }

    fn straddles_sector(self, number: u32) -> bool {
        let at = self.entry_at(number);
        at / SECTOR_BYTES != (at + ENTRY_STEP - 1) / SECTOR_BYTES
    }

    /// One more than the entries of records below `position`, whatever the header says.
    fn count_below(self, file: &dyn File, position: PhysicalOffset) -> io::Result<u32> {
        let is_below = |entry: IndexEntry| !entry.is_unwritten() && entry.position < position.0;
        let (mut low, mut high) = (1, self.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            // A straddling entry may be torn: the one before it is asked instead.
            let probe = if middle > low && self.straddles_sector(middle) { middle - 1 } else { middle };
            if is_below(self.read_entry(file, probe)?) {
                low = probe + 1;
            } else {
                high = probe;
            }
        }
        // A torn entry behind the last whole one may look as if it lay below.
        let torn = low > 2
            && self.straddles_sector(low - 1)
            && self.read_entry(file, low - 1)?.position < self.read_entry(file, low - 2)?.position;
        Ok(if torn { low - 1 } else { low })
    }

    /// How many slots are used, and those whose newest entry is not before `count`.
    fn slots_beyond(self, file: &dyn File, count: u32) -> io::Result<(u32, Vec<(u32, u32)>)> {
        let mut used = 0;
        let mut beyond = Vec::new();
        let mut slot = 0;
        let mut bytes = Vec::new();
        while slot < self.slots {
            let slots = (self.slots - slot).min(CHUNK_BYTES as u32 / SLOT_BYTES as u32);
            bytes.resize(slots as usize * SLOT_BYTES as usize, 0);
            file.read_at(self.slot_at(slot), &mut bytes)?;
            let (heads, _) = bytes.as_chunks::<4>();
            for (slot, head) in (slot..).zip(heads.iter().map(|&head| u32::from_be_bytes(head))) {
                used += u32::from(head != 0);
                if head >= count {
                    beyond.push((slot, head));
                }
            }
            slot += slots;
        }
        Ok((used, beyond))
    }

    /// The newest entries before `count` of slots whose heads lie beyond: along their chains, or where a crash broke one, by reading all entries.
    fn heads_below(self, file: &dyn File, beyond: &[(u32, u32)], count: u32) -> io::Result<BTreeMap<u32, u32>> {
        let mut heads = BTreeMap::default();
        let mut broken = false;
        for &(slot, head) in beyond {
            let found = self.follow(file, slot, head, count)?;
            broken |= found.is_none();
            heads.insert(slot, found.unwrap_or(0));
        }
        let mut number = if broken { 1 } else { count };
        let mut bytes = Vec::new();
        while number < count {
            let entries = (count - number).min(CHUNK_BYTES as u32 / ENTRY_STEP as u32);
            bytes.resize(entries as usize * ENTRY_BYTES, 0);
            file.read_at(self.entry_at(number), &mut bytes)?;
            let (chunks, _) = bytes.as_chunks::<ENTRY_BYTES>();
            for (number, entry) in (number..).zip(chunks.iter().map(IndexEntry::from_bytes)) {
                if let Some(head) = heads.get_mut(&(entry.key_hash % self.slots)) {
                    *head = number;
                }
            }
            number += entries;
        }
        Ok(heads)
    }

    /// Follows a slot's chain from `head` to an entry before `count`; `None` if the chain is broken.
    fn follow(self, file: &dyn File, slot: u32, head: u32, count: u32) -> io::Result<Option<u32>> {
        let mut number = head;
        while number >= count {
            if number >= self.entries {
                return Ok(None);
            }
            let entry = self.read_entry(file, number)?;
            let may_be_torn = self.straddles_sector(number) && entry.previous == 0;
            if entry.is_unwritten() || entry.key_hash % self.slots != slot || entry.previous >= number || may_be_torn {
                return Ok(None);
            }
            number = entry.previous;
        }
        let is_of_slot = number == 0 || self.read_entry(file, number)?.key_hash % self.slots == slot;
        Ok(is_of_slot.then_some(number))
    }
}

impl Header {
    pub(super) fn read(file: &dyn File) -> io::Result<Self> {
        let mut bytes = [0; HEADER_BYTES];
        file.read_at(0, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        let [begin_time, end_time, begin_position, end_position, counts] = *words else {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        };
        let counts = u64::from_be_bytes(counts);
        Ok(Self {
            begin_time: i64::from_be_bytes(begin_time),
            end_time: i64::from_be_bytes(end_time),
            begin_position: u64::from_be_bytes(begin_position),
            end_position: u64::from_be_bytes(end_position),
            used_slots: (counts >> 32) as u32,
            // Without an entry the count may be 0.
            count: (counts as u32).max(1),
        })
    }

    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.begin_time.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.end_time.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.begin_position.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.end_position.to_be_bytes());
        bytes[32..36].copy_from_slice(&self.used_slots.to_be_bytes());
        bytes[36..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }
}

impl IndexEntry {
    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..4].copy_from_slice(&self.key_hash.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.position.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.seconds.to_be_bytes());
        bytes[16..].copy_from_slice(&self.previous.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            key_hash: word(0),
            position: u64::from(word(4)) << 32 | u64::from(word(8)),
            seconds: word(12).cast_signed(),
            previous: word(16),
        }
    }

    /// A place that was never written reads as zeros. (So would a key of hash 0 in the very first record of the log: it is not found again
    /// after a crash.)
    fn is_unwritten(&self) -> bool {
        *self == Self { key_hash: 0, position: 0, seconds: 0, previous: 0 }
    }
}

/// Whether a file of this name can be one of the index.
pub(super) fn is_index_name(name: &str) -> bool {
    name.len() == NAME_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// The hash of `topic#key`: Java's `String.hashCode`, made positive; 0 where that cannot be.
pub(super) fn key_hash(topic: &str, key: &str) -> u32 {
    key_hash_on(topic_hash(topic), key.as_bytes()).unwrap_or(0)
}

/// Of the keys of a topic, what their hashes go on from.
fn topic_hash(topic: &str) -> i32 {
    java_hash_on(java_hash(topic), b"#").unwrap_or(0)
}

/// As [`key_hash`]; `None` if the key is not UTF-8.
fn key_hash_on(topic_hash: i32, key: &[u8]) -> Option<u32> {
    java_hash_on(topic_hash, key).map(|hash| hash.checked_abs().map_or(0, i32::unsigned_abs))
}

/// `yyyyMMddHHmmssSSS` in UTC, as a number.
fn file_number(at: Timestamp) -> u64 {
    let ms = at.0.clamp(0, LAST_MS).unsigned_abs();
    let (days, ms) = (ms / 86_400_000, ms % 86_400_000);
    // Years that begin in March, in eras of 400 years: the leap day is then the last of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let date = year * 10_000 + month * 100 + day;
    let time = ms / 3_600_000 * 10_000_000 + ms / 60_000 % 60 * 100_000 + ms % 60_000;
    date * 1_000_000_000 + time
}

/// 9999-12-31T23:59:59.999Z: later moments would not fit into a name.
const LAST_MS: i64 = 253_402_300_799_999;

#[cfg(test)]
mod tests;
