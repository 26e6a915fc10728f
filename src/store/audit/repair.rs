//! Building anew what is derived from the log: queues, index and checkpoint. No byte of the log changes.
//!
//! The store is opened as by a broker and its whole log dispatched again, behind a door that lets nothing change the log: what recovery
//! would cut or clear is left to the next start, which finds the file `abort` and does it. Entries that stand in the queues are kept as hints for
//! what Apache RocketMQ wrote: nothing else says when its delayed messages are due.
//!
//! Files that cannot be used at all are moved to the folder [`SET_ASIDE_FOLDER`] in the root, under their own paths, where neither latermq nor
//! Apache RocketMQ trips over them.

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use super::{
    super::{
        MessageStore, Plugin, StoreError, StoreOptions,
        index::{Shape, is_index_name},
        message_store::{ABORT_FILE, LOCK_FILE},
        recovery::Recovery,
    },
    Findings, io_error,
    segments::{SegmentReader, find_segments},
};
use crate::{
    env::{Allocation, Directory, Entry, EntryKind, Env, File, Lock, Space},
    model::PhysicalOffset,
};

/// Where files go that cannot be used.
pub const SET_ASIDE_FOLDER: &str = "latermq.bad";

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Files that were moved aside, as paths in the root.
    pub set_aside: Vec<String>,
}

/// Builds queues, index and checkpoint anew from the log. `unusable` are state files, as paths in the root, that are moved aside as well.
///
/// The next start then has nothing to rebuild. Where the log has a tail that must be cleared, that start does it.
///
/// # Errors
/// As [`MessageStore::open`] and [`MessageStore::stop`].
pub fn repair(
    options: &StoreOptions,
    env: &Env,
    plugins: Vec<Arc<dyn Plugin>>,
    unusable: &[PathBuf],
) -> Result<Repaired, StoreError> {
    let directory = env.directory.clone();
    let mut repaired = Repaired::default();
    {
        let lock_path = Path::new(LOCK_FILE);
        let lock = directory.lock(lock_path).map_err(|source| io_error(&*directory, "lock", lock_path, source))?;
        let _lock = lock.ok_or_else(|| StoreError::Locked { path: directory.display(lock_path) })?;
        let mut bad = unusable.to_vec();
        bad.extend(unusable_files(&*directory, options)?);
        for path in bad {
            set_aside(&*directory, &path).map_err(|source| io_error(&*directory, "move aside", &path, source))?;
            repaired.set_aside.push(path.display().to_string());
        }
    }
    let guarded = Env {
        clock: env.clock.clone(),
        directory: Arc::new(LogGuard {
            directory: directory.clone(),
            folder: options.commit_log_folder.clone(),
            segment_bytes: options.segment_bytes,
        }),
        fatal: env.fatal.clone(),
    };
    let abort = Path::new(ABORT_FILE);
    let was_killed = directory.read(abort).map_err(|source| io_error(&*directory, "read", abort, source))?.is_some();
    let store = MessageStore::open_as(options.clone(), guarded, plugins, Recovery::Rebuild)?;
    let (_, end) = store.log_range();
    store.stop()?;
    if was_killed || !is_clear_behind(env, options, end)? {
        // What lies behind the end of the log was not cleared: only a start after what looks like a kill does that.
        let marked = directory.write(abort, b"repaired").and_then(|()| directory.sync_folder(Path::new("")));
        marked.map_err(|source| io_error(&*directory, "write", abort, source))?;
    }
    Ok(repaired)
}

/// Whether the segment that holds the end of the log has nothing but zeros behind it.
fn is_clear_behind(env: &Env, options: &StoreOptions, end: PhysicalOffset) -> Result<bool, StoreError> {
    let segments = find_segments(env, options, true, &mut Findings::default())?;
    let Some(segment) = segments.iter().find(|segment| segment.base <= end && end < segment.end()) else {
        return Ok(true);
    };
    Ok(SegmentReader::open(env, segment)?.first_written(end).is_none())
}

/// Files of queues and index that would keep the store from being opened, or that nobody would look at again.
fn unusable_files(directory: &dyn Directory, options: &StoreOptions) -> Result<Vec<PathBuf>, StoreError> {
    let list = |folder: &Path| -> Result<Vec<Entry>, StoreError> {
        directory.list(folder).map_err(|source| io_error(directory, "list", folder, source))
    };
    let mut found = Vec::new();
    let root = Path::new("consumequeue");
    for topic in list(root)?.iter().filter(|entry| entry.kind == EntryKind::Folder) {
        let folder = root.join(&topic.name);
        for queue in
            list(&folder)?.iter().filter(|entry| entry.kind == EntryKind::Folder && entry.name.parse::<u32>().is_ok())
        {
            let folder = folder.join(&queue.name);
            let files = list(&folder)?;
            let bad =
                files.iter().filter(|entry| entry.kind == EntryKind::File && entry.bytes != options.queue_file_bytes);
            found.extend(bad.map(|entry| folder.join(&entry.name)));
        }
    }
    let shape = Shape { slots: options.index_slots, entries: options.index_entries };
    let folder = Path::new("index");
    let bad = list(folder)?.into_iter().filter(|entry| {
        options.index_enabled
            && is_index_name(&entry.name)
            && (entry.kind != EntryKind::File || entry.bytes != shape.file_bytes())
    });
    found.extend(bad.map(|entry| folder.join(entry.name)));
    Ok(found)
}

fn set_aside(directory: &dyn Directory, path: &Path) -> io::Result<()> {
    let to = Path::new(SET_ASIDE_FOLDER).join(path);
    if let Some(folder) = to.parent() {
        directory.create_folder(folder)?;
    }
    // What an earlier repair set aside stays.
    let mut free = to.clone();
    let mut number = 1;
    while directory
        .list(to.parent().unwrap_or(Path::new("")))?
        .iter()
        .any(|entry| Some(entry.name.as_str()) == free.file_name().and_then(|name| name.to_str()))
    {
        let mut name = to.clone().into_os_string();
        name.push(format!(".{number}"));
        free = name.into();
        number += 1;
    }
    directory.rename(path, &free)?;
    for folder in [path.parent(), free.parent()].into_iter().flatten() {
        directory.sync_folder(folder)?;
    }
    Ok(())
}

/// A directory in which the log cannot be changed. What would change it is passed over in silence.
struct LogGuard {
    directory: Arc<dyn Directory>,
    folder: PathBuf,
    segment_bytes: u64,
}

impl LogGuard {
    fn is_log(&self, path: &Path) -> bool {
        path.starts_with(&self.folder) && path != self.folder
    }
}

impl Directory for LogGuard {
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        self.directory.list(folder)
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        self.directory.create_folder(folder)
    }

    fn create(&self, path: &Path, bytes: u64, allocation: Allocation) -> io::Result<Arc<dyn File>> {
        if self.is_log(path) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a repair makes no segments"));
        }
        self.directory.create(path, bytes, allocation)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = self.directory.open(path)?;
        if !self.is_log(path) {
            return Ok(file);
        }
        let bytes = AtomicU64::new(file.bytes());
        Ok(Arc::new(GuardedFile { file, bytes, segment_bytes: self.segment_bytes }))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.directory.open_to_read(path)
    }

    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        self.directory.read(path)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.directory.write(path, bytes)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.directory.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if self.is_log(path) { Ok(()) } else { self.directory.remove(path) }
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.directory.sync_folder(folder)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        self.directory.lock(path)
    }

    fn keep_brokers_out(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        self.directory.keep_brokers_out(path)
    }

    fn space(&self) -> io::Result<Space> {
        self.directory.space()
    }

    fn space_of(&self, folder: &Path) -> io::Result<Space> {
        self.directory.space_of(folder)
    }

    fn display(&self, path: &Path) -> String {
        self.directory.display(path)
    }
}

/// A segment that cannot be changed. One that is too short reads as if it went on with zeros.
struct GuardedFile {
    file: Arc<dyn File>,
    bytes: AtomicU64,
    segment_bytes: u64,
}

impl File for GuardedFile {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        // Recovery writes once more what it read, to make it durable whatever an earlier sync did: that changes nothing.
        let mut found = vec![0; bytes.len()];
        self.read_at(position, &mut found)?;
        let is_inside = position + bytes.len() as u64 <= self.file.bytes();
        if found == bytes && is_inside { self.file.write_at(position, bytes) } else { Ok(()) }
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        let left = usize::try_from(self.file.bytes().saturating_sub(position)).unwrap_or(usize::MAX).min(into.len());
        if position + into.len() as u64 > self.bytes() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        into[left..].fill(0);
        if left == 0 { Ok(()) } else { self.file.read_at(position, &mut into[..left]) }
    }

    fn slice(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        if position + bytes as u64 <= self.file.bytes() {
            return self.file.slice(position, bytes);
        }
        let mut copy = vec![0; bytes];
        self.read_at(position, &mut copy)?;
        Ok(copy.into())
    }

    fn zero(&self, _: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn set_bytes(&self, bytes: u64, _: Allocation) -> io::Result<()> {
        self.bytes.store(bytes.min(self.segment_bytes), Ordering::Release);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn will_need(&self, range: Range<u64>) {
        self.file.will_need(range);
    }
}
