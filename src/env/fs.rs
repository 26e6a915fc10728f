//! Real files.
//!
//! Files are written with `pwrite` and read with `pread` or through one read-only map each, made at the first [`File::slice`]. Nothing is
//! ever written through a map, so running out of space is an error of a write, not a signal.
//!
//! What becomes of a page that cannot be read is said in `fs_map`.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read},
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, LockResult, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::UNIX_EPOCH,
};

use bytes::Bytes;
use rustix::{
    fs::{Advice, FallocateFlags, FlockOperation, OFlags, SeekFrom, fadvise, fallocate, fcntl_lock, flock, statvfs},
    io::{Errno, retry_on_intr},
};
use tracing::warn;

use super::{
    Allocation, Directory, Entry, EntryKind, File, Lock, Soundness, Space,
    fs_map::{self, Faults},
};

/// What the lock file holds, as in Apache RocketMQ.
const LOCK_TEXT: &[u8] = b"lock";
/// Most bytes of a file that is read whole: far more than any table of a broker takes.
const SMALL_FILE_BYTES_MAX: u64 = 1 << 30;
/// How much is written at once where a range must be made zero by hand.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Most ranges of data of a file that are told apart from what was never written.
const DATA_RANGES_MAX: u32 = 1024;

/// A folder of the file system and what is below it.
#[derive(Debug, Clone)]
pub struct FsDirectory {
    root: PathBuf,
    /// Whether nothing below may be changed.
    read_only: bool,
}

impl FsDirectory {
    /// Opens the folder `root`; it and those above it are created if they do not exist.
    ///
    /// # Errors
    /// As the file system gives them.
    pub fn open(root: impl AsRef<Path>) -> io::Result<Self> {
        // Absolute, so that changing the working directory later changes nothing here.
        let directory = Self { root: std::path::absolute(root)?, read_only: false };
        directory.create_folder(Path::new(""))?;
        Ok(directory)
    }

    /// Opens the folder `root`, which must exist, to look at it: whatever would change something below it is refused with
    /// `PermissionDenied`, and files are opened for reading alone.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, and others as the file system gives them.
    pub fn open_read_only(root: impl AsRef<Path>) -> io::Result<Self> {
        let directory = Self { root: std::path::absolute(root)?, read_only: true };
        fs::read_dir(&directory.root)?;
        Ok(directory)
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.read_only {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder was opened for reading only"));
        }
        Ok(())
    }

    /// The folder it was opened with, as an absolute path.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn at(&self, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

impl Directory for FsDirectory {
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        let found = match fs::read_dir(self.at(folder)) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut entries = Vec::new();
        for entry in found {
            let entry = entry?;
            // A link counts as what it leads to; one that leads nowhere is something else.
            let metadata = match fs::metadata(entry.path()).or_else(|_| entry.metadata()) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // removed meanwhile
                Err(error) => return Err(error),
            };
            let kind = if metadata.is_file() {
                EntryKind::File
            } else if metadata.is_dir() {
                EntryKind::Folder
            } else {
                EntryKind::Other
            };
            let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            entries.push(Entry {
                name: entry.file_name().to_string_lossy().into_owned(),
                kind,
                bytes: if kind == EntryKind::File { metadata.len() } else { 0 },
                modified_ms: modified.map_or(0, |time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX)),
            });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        self.check_writable()?;
        let folder = self.at(folder);
        let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.is_dir()).collect();
        for folder in missing.into_iter().rev() {
            match fs::create_dir(folder) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
                Err(error) => return Err(error),
            }
            if let Some(above) = folder.parent() {
                sync_folder_at(above)?;
            }
        }
        Ok(())
    }

    fn create(&self, path: &Path, bytes: u64, allocation: Allocation) -> io::Result<Arc<dyn File>> {
        self.check_writable()?;
        let path = self.at(path);
        let folder = path.parent().unwrap_or(&self.root);
        if allocation == Allocation::Real && statvfs_of(folder).is_ok_and(|space| space.free < bytes) {
            // An attempt in vain would take the last space from others for a while.
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        if let Err(error) = extend(&file, 0, bytes, allocation) {
            if let Err(error) = fs::remove_file(&path) {
                warn!(%error, path = %path.display(), "half-made file stays behind");
            }
            return Err(error);
        }
        Ok(Arc::new(FsFile::new(file, bytes)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = open_regular(fs::OpenOptions::new().read(true).write(!self.read_only), &self.at(path))?;
        let bytes = file.metadata()?.len();
        Ok(Arc::new(FsFile::new(file, bytes)))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = open_regular(fs::OpenOptions::new().read(true), &self.at(path))?;
        let bytes = file.metadata()?.len();
        Ok(Arc::new(FsFile::new(file, bytes)))
    }

    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let file = match open_regular(fs::OpenOptions::new().read(true), &self.at(path)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = file.metadata()?.len();
        if bytes > SMALL_FILE_BYTES_MAX {
            let reason = format!("it has {bytes} bytes, more than the {SMALL_FILE_BYTES_MAX} of any file of this kind");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        let mut read = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
        // Somebody may make it longer meanwhile.
        file.take(SMALL_FILE_BYTES_MAX).read_to_end(&mut read)?;
        Ok(Some(read))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        let path = self.at(path);
        let mut options = fs::OpenOptions::new();
        // Not truncated first: on a full disk the blocks that it has must do.
        options.write(true);
        let (file, created) = match open_regular(&options, &path) {
            Ok(file) => (file, false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (options.create(true).open(&path)?, true),
            Err(error) => return Err(error),
        };
        file.write_all_at(bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_data()?;
        match path.parent() {
            Some(folder) if created => sync_folder_at(folder),
            _ => Ok(()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check_writable()?;
        fs::rename(self.at(from), self.at(to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.check_writable()?;
        let path = self.at(path);
        let removed = match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path),
            Ok(_) => fs::remove_file(&path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        sync_folder_at(&self.at(folder))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        self.check_writable()?;
        let lock = FsLock::take(&self.at(path))?;
        Ok(lock.map(|lock| Box::new(lock) as Box<dyn Lock>))
    }

    fn keep_brokers_out(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let lock = FsLock::share(&self.at(path))?;
        Ok(lock.map(|lock| Box::new(lock) as Box<dyn Lock>))
    }

    fn space(&self) -> io::Result<Space> {
        statvfs_of(&self.root)
    }

    fn space_of(&self, folder: &Path) -> io::Result<Space> {
        statvfs_of(&self.at(folder))
    }

    fn display(&self, path: &Path) -> String {
        self.at(path).display().to_string()
    }
}

fn statvfs_of(folder: &Path) -> io::Result<Space> {
    let stat = statvfs(folder)?;
    // What is kept back from this process counts neither as used nor as free: the same ratio as that of `df` and of RocketMQ.
    let used = stat.f_blocks.saturating_sub(stat.f_bfree);
    Ok(Space {
        total: used.saturating_add(stat.f_bavail).saturating_mul(stat.f_frsize),
        free: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}

/// Opens what must be a regular file, and nothing else: to open a FIFO may wait for ever, and a device may have no end. It is looked at before,
/// since to open a device may do something already, and after, since it may have been replaced meanwhile.
fn open_regular(options: &fs::OpenOptions, path: &Path) -> io::Result<fs::File> {
    let check = |metadata: &fs::Metadata| match metadata.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    };
    check(&fs::metadata(path)?)?;
    let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let file = options.clone().custom_flags(nonblock).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

fn sync_folder_at(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

/// Makes a file of `from` bytes one of `to` bytes.
fn extend(file: &fs::File, from: u64, to: u64, allocation: Allocation) -> io::Result<()> {
    if to <= from || allocation == Allocation::Sparse {
        return file.set_len(to);
    }
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), from, to - from)) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            warn!(bytes = to - from, "the file system cannot allocate; writing zeros instead, which is slower");
            write_zeros(file, from..to)
        }
        Err(error) => Err(error.into()),
    }
}

fn write_zeros(file: &fs::File, range: Range<u64>) -> io::Result<()> {
    let mut position = range.start;
    while position < range.end {
        let bytes = (range.end - position).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..usize::try_from(bytes).unwrap_or(ZEROS.len())], position)?;
        position += bytes;
    }
    Ok(())
}

/// An open file and, once something was sliced, its map.
///
/// The lock of the map is held while it is made and while the length changes, so that no map is ever shorter or longer than its file.
struct FsFile {
    file: fs::File,
    bytes: AtomicU64,
    map: RwLock<Option<Mapped>>,
    faults: Faults,
}

/// A map of a whole file.
struct Mapped {
    bytes: Bytes,
    /// Of the file, when it was mapped: once there are more, it is mapped anew.
    faults: u64,
}

impl FsFile {
    fn new(file: fs::File, bytes: u64) -> Self {
        Self { file, bytes: AtomicU64::new(bytes), map: RwLock::default(), faults: Faults::default() }
    }

    /// Shows the whole file, mapped; `None` if there are too many maps.
    fn see<T>(&self, look: impl FnOnce(&Bytes) -> T) -> io::Result<Option<T>> {
        fn sound<'a>(file: &FsFile, mapped: &'a Option<Mapped>) -> Option<&'a Bytes> {
            // One that was made while the file was too short is of no use once it is whole again.
            let is_sound =
                |mapped: &&Mapped| mapped.faults == file.faults.count() && mapped.bytes.len() as u64 >= file.bytes();
            mapped.as_ref().filter(is_sound).map(|mapped| &mapped.bytes)
        }
        if let Some(bytes) = sound(self, &self.map.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(Some(look(bytes)));
        }
        let mut mapped = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = sound(self, &mapped) {
            return Ok(Some(look(bytes)));
        }
        let faults = self.faults.count();
        *mapped = fs_map::map(&self.file, &self.faults)?.map(|bytes| Mapped { bytes, faults });
        Ok(mapped.as_ref().map(|mapped| look(&mapped.bytes)))
    }
}

impl File for FsFile {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        check_within(self.bytes(), position, bytes.len() as u64)?;
        self.file.write_all_at(bytes, position)
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, position)
    }

    fn slice(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        let end = position.checked_add(bytes as u64).filter(|&end| end <= self.bytes());
        let (Some(end), Ok(start)) = (end, usize::try_from(position)) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        if bytes == 0 {
            return Ok(Bytes::new());
        }
        // The map may be shorter than the file says only if someone else cut it.
        match self.see(|map| (end <= map.len() as u64).then(|| map.slice(start..start + bytes)))? {
            Some(slice) => slice.ok_or_else(|| io::ErrorKind::UnexpectedEof.into()),
            None => {
                let mut copy = vec![0; bytes];
                self.read_at(position, &mut copy)?;
                Ok(copy.into())
            }
        }
    }

    fn mapped(&self) -> Option<Bytes> {
        self.see(Bytes::clone).ok().flatten()
    }

    fn data_end(&self, from: u64) -> u64 {
        let (mut at, mut end) = (from, from);
        for _ in 0..DATA_RANGES_MAX {
            let hole = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
                Ok(data) => rustix::fs::seek(&self.file, SeekFrom::Hole(data)),
                // No data from here on.
                Err(Errno::NXIO) => return end,
                Err(error) => Err(error),
            };
            match hole {
                Ok(hole) if hole > at => (at, end) = (hole, hole),
                // A file system that cannot tell.
                _ => return self.bytes(),
            }
        }
        self.bytes()
    }

    fn zero(&self, range: Range<u64>) -> io::Result<()> {
        let bytes = range.end.saturating_sub(range.start);
        check_within(self.bytes(), range.start, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let change =
            |flags| retry_on_intr(|| fallocate(&self.file, flags | FallocateFlags::KEEP_SIZE, range.start, bytes));
        let zeroed = match change(FallocateFlags::ZERO_RANGE) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(&self.file, range.clone()),
            zeroed => zeroed.map_err(io::Error::from),
        };
        zeroed.or_else(|error| match error.kind() {
            // A range without blocks is zero too.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Ok(change(FallocateFlags::PUNCH_HOLE)?),
            _ => Err(error),
        })
    }

    fn set_bytes(&self, bytes: u64, allocation: Allocation) -> io::Result<()> {
        let map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the length of a mapped file cannot change"));
        }
        extend(&self.file, self.bytes(), bytes, allocation)?;
        self.bytes.store(bytes, Ordering::Release);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        let (wanted, found) = (self.bytes(), self.file.metadata()?.len());
        if found < wanted {
            let reason = format!("someone else cut the file to {found} bytes, it had {wanted}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
        }
        Ok(())
    }

    fn soundness(&self) -> Soundness {
        self.faults.soundness()
    }

    fn will_need(&self, range: Range<u64>) {
        // On Linux this does to the page cache, and so to the map, what `madvise` would. A hint: if it fails, reads are slower.
        let bytes = std::num::NonZeroU64::new(range.end.saturating_sub(range.start));
        if bytes.is_some() {
            let _ = fadvise(&self.file, range.start, bytes, Advice::WillNeed);
        }
    }
}

fn check_within(file_bytes: u64, position: u64, bytes: u64) -> io::Result<()> {
    match position.checked_add(bytes) {
        Some(end) if end <= file_bytes => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{bytes} bytes at {position} reach beyond the file's {file_bytes} bytes"),
        )),
    }
}

/// The lock files that this process holds, by device and inode: a POSIX lock does not keep out its own process, and closing a second handle of
/// the file would even give the lock up.
static HELD: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// A POSIX record lock, in conflict with the one Java's `FileChannel.tryLock` takes, in both directions.
///
/// The lock file must not be opened again while this is held: closing any handle of it gives the lock up.
///
/// The folder is locked as well: who takes the file away does not let a second broker in.
struct FsLock {
    file: Option<fs::File>,
    inode: (u64, u64),
    /// Only to be held.
    _folder: Option<fs::File>,
}

/// Locks the folder of a lock file; `None` if another holds it. A file system that cannot lock folders is left with the file.
fn lock_folder(path: &Path, operation: FlockOperation) -> io::Result<Option<Option<fs::File>>> {
    let folder = match fs::File::open(path.parent().unwrap_or(Path::new("/"))) {
        Ok(folder) => folder,
        // There is nothing to lock yet, or it may only be passed through.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(Some(None));
        }
        Err(error) => return Err(error),
    };
    match flock(&folder, operation) {
        Ok(()) => Ok(Some(Some(folder))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => {
            warn!(error = %io::Error::from(error), path = %path.display(), "the folder of the lock file cannot be locked; do not remove the file while a broker runs");
            Ok(Some(None))
        }
    }
}

impl FsLock {
    fn take(path: &Path) -> io::Result<Option<Self>> {
        let Some(folder) = lock_folder(path, FlockOperation::NonBlockingLockExclusive)? else { return Ok(None) };
        let mut held = ignore_poison(HELD.lock());
        match fs::metadata(path) {
            Ok(metadata) if held.contains(&inode_of(&metadata)) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true);
        let file = match open_regular(&options, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => options.create(true).truncate(false).open(path)?,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => permit(path, &options)?,
            opened => opened?,
        };
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // It is the lock that counts; on a full disk there may be no room for the text.
        match file.write_all_at(LOCK_TEXT, 0).and_then(|()| file.set_len(LOCK_TEXT.len() as u64)) {
            Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {}
            written => written?,
        }
        let inode = inode_of(&file.metadata()?);
        held.insert(inode);
        Ok(Some(Self { file: Some(file), inode, _folder: folder }))
    }
}

/// Opens a lock file that may not be read and written, after its owner, if that is us, has permitted it. Never replaces it: another broker may hold
/// the lock of the file that is there, and who may not open it cannot know.
fn permit(path: &Path, options: &fs::OpenOptions) -> io::Result<fs::File> {
    let refused = |reason: String| io::Error::new(io::ErrorKind::PermissionDenied, reason);
    let metadata = fs::metadata(path)?;
    let us = rustix::process::geteuid().as_raw();
    if metadata.uid() != us {
        return Err(refused(format!(
            "it belongs to user {}, and this broker runs as user {us}: whether another broker holds it cannot be known. Remove it if none does, or give it to user {us}",
            metadata.uid()
        )));
    }
    fs::set_permissions(path, fs::Permissions::from_mode(metadata.mode() | 0o600))
        .and_then(|()| open_regular(options, path))
        .inspect(|_| warn!(path = %path.display(), "the lock file could not be read and written; its owner, this broker, may now"))
        .map_err(|error| refused(format!("{error}: let its owner read and write it, or remove it if no broker runs")))
}

impl Lock for FsLock {}

impl FsLock {
    /// A shared lock, which writes nothing. Without a lock file there is only the folder to hold.
    fn share(path: &Path) -> io::Result<Option<Self>> {
        let Some(folder) = lock_folder(path, FlockOperation::NonBlockingLockShared)? else { return Ok(None) };
        let mut held = ignore_poison(HELD.lock());
        let inode = match fs::metadata(path) {
            Ok(metadata) => inode_of(&metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some(Self { file: None, inode: (0, 0), _folder: folder }));
            }
            Err(error) => return Err(error),
        };
        // Asked before the file is opened: closing it again would give up the lock that is held.
        if held.contains(&inode) {
            return Ok(None);
        }
        let file = open_regular(fs::OpenOptions::new().read(true), path)?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        held.insert(inode);
        Ok(Some(Self { file: Some(file), inode, _folder: folder }))
    }
}

impl Drop for FsLock {
    fn drop(&mut self) {
        let mut held = ignore_poison(HELD.lock());
        drop(self.file.take());
        held.remove(&self.inode);
    }
}

fn inode_of(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// What the locks here guard is whole between any two statements, so a panic elsewhere spoils nothing.
fn ignore_poison<T>(guard: LockResult<T>) -> T {
    guard.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        io::{BufRead, BufReader, Read},
        process::{Child, ChildStdout, Command, Stdio},
    };

    use super::*;

    /// Set for the second process of a test: the root whose lock it shall take.
    const ROOT_VARIABLE: &str = "LATERMQ_TEST_LOCK_ROOT";

    /// Not a test of its own but the second process of the one below: says whether it got the lock and holds it until its input ends.
    #[test]
    #[ignore = "only run as a second process by another test"]
    fn second_process() {
        let root = env::var_os(ROOT_VARIABLE).expect("run by another test");

        let lock = FsDirectory::open(root).unwrap().lock(Path::new("lock")).unwrap();

        println!("\n{}", if lock.is_some() { "locked" } else { "refused" });
        io::stdin().lines().for_each(drop);
    }

    /// The second process of a test; it holds its lock, if it got it, until it is dropped.
    struct SecondProcess {
        child: Child,
        /// Kept open, else the process would fail to write what comes after its answer.
        output: BufReader<ChildStdout>,
    }

    impl SecondProcess {
        /// Starts it and says whether it got the lock.
        fn start(root: &Path) -> (Self, bool) {
            let mut child = Command::new(env::current_exe().unwrap())
                .args(["--exact", "--ignored", "--nocapture", "env::fs::tests::second_process"])
                .env(ROOT_VARIABLE, root)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            let mut lines = output.by_ref().lines().map(Result::unwrap);
            let answer = lines.find(|line| ["locked", "refused"].contains(&line.as_str())).unwrap();
            (Self { child, output }, answer == "locked")
        }
    }

    impl Drop for SecondProcess {
        fn drop(&mut self) {
            drop(self.child.stdin.take());
            let _ = io::copy(&mut self.output, &mut io::sink());
            let _ = self.child.wait();
        }
    }

    #[test]
    fn store_25_a_second_process_on_the_same_root_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let directory = FsDirectory::open(folder.path()).unwrap();
        let lock = directory.lock(Path::new("lock")).unwrap();
        assert!(lock.is_some());

        let (_second, locked) = SecondProcess::start(folder.path());

        assert!(!locked);
    }

    #[test]
    fn store_25_a_lock_of_another_process_keeps_us_out_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let directory = FsDirectory::open(folder.path()).unwrap();
        let (second, locked) = SecondProcess::start(folder.path());
        assert!(locked);

        let while_it_runs = directory.lock(Path::new("lock")).unwrap().is_some();
        drop(second);

        assert!(!while_it_runs);
        assert!(directory.lock(Path::new("lock")).unwrap().is_some());
    }

    #[test]
    fn who_takes_the_lock_file_away_lets_no_second_broker_in() {
        let folder = tempfile::tempdir().unwrap();
        let directory = FsDirectory::open(folder.path()).unwrap();
        let lock = directory.lock(Path::new("lock")).unwrap();
        assert!(lock.is_some());
        fs::remove_file(folder.path().join("lock")).unwrap();

        let (_second, locked) = SecondProcess::start(folder.path());

        assert!(!locked);
        assert!(directory.lock(Path::new("lock")).unwrap().is_none());
        assert!(directory.keep_brokers_out(Path::new("lock")).unwrap().is_none());
        drop(lock);
        assert!(directory.lock(Path::new("lock")).unwrap().is_some());
    }

    #[test]
    fn the_lock_is_found_by_any_path_that_leads_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let directory = FsDirectory::open(folder.path()).unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("link")).unwrap();
        let _lock = directory.lock(Path::new("lock")).unwrap().unwrap();

        let again = FsDirectory::open(folder.path().join("link")).unwrap().lock(Path::new("lock")).unwrap();

        assert!(again.is_none());
    }

    #[test]
    fn slices_of_one_file_share_one_map() {
        let folder = tempfile::tempdir().unwrap();
        let directory = FsDirectory::open(folder.path()).unwrap();
        let file = directory.create(Path::new("f"), 8192, Allocation::Real).unwrap();

        let (first, second) = (file.slice(0, 16).unwrap(), file.slice(4096, 16).unwrap());

        assert_eq!(second.as_ptr() as usize - first.as_ptr() as usize, 4096);
    }

    #[test]
    fn the_length_of_a_mapped_file_cannot_change() {
        let folder = tempfile::tempdir().unwrap();
        let directory = FsDirectory::open(folder.path()).unwrap();
        let file = directory.create(Path::new("f"), 8192, Allocation::Sparse).unwrap();
        let slice = file.slice(8000, 100).unwrap();

        let refused = file.set_bytes(4096, Allocation::Sparse);

        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(slice, vec![0; 100]);
    }

    #[test]
    fn real_allocation_takes_the_blocks_at_once_and_sparse_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let directory = FsDirectory::open(folder.path()).unwrap();
        let blocks = |name: &str| fs::metadata(folder.path().join(name)).unwrap().blocks();

        directory.create(Path::new("real"), 1 << 20, Allocation::Real).unwrap();
        directory.create(Path::new("sparse"), 1 << 20, Allocation::Sparse).unwrap();

        assert!(blocks("real") * 512 >= 1 << 20);
        assert_eq!(blocks("sparse"), 0);
    }

    #[test]
    fn a_file_that_cannot_be_allocated_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let directory = FsDirectory::open(folder.path()).unwrap();

        let refused = directory.create(Path::new("f"), 1 << 62, Allocation::Real);

        assert!(refused.is_err());
        assert_eq!(directory.list(Path::new("")).unwrap(), []);
    }

    #[test]
    fn a_link_counts_as_what_it_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let directory = FsDirectory::open(folder.path()).unwrap();
        directory.create_folder(Path::new("real")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("real"), folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("none"), folder.path().join("nowhere")).unwrap();

        let kinds: Vec<_> = directory.list(Path::new("")).unwrap().iter().map(|entry| entry.kind).collect();

        assert_eq!(kinds, [EntryKind::Folder, EntryKind::Other, EntryKind::Folder]);
    }

    #[test]
    fn a_range_made_zero_by_hand_is_exactly_that_range() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let bytes = ZEROS.len() * 2 + 100;
        fs::write(&path, vec![7; bytes]).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();

        write_zeros(&file, 10..bytes as u64 - 10).unwrap();

        let left = fs::read(&path).unwrap();
        assert_eq!(left.len(), bytes);
        assert_eq!(left.iter().filter(|&&byte| byte == 7).count(), 20);
        assert_eq!((left[9], left[10], left[bytes - 11], left[bytes - 10]), (7, 0, 0, 7));
    }
}
