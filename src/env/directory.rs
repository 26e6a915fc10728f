//! The door to the file system: one folder tree and the files in it.
//!
//! # What is durable when
//!
//! - Written bytes are durable after [`File::sync`] of their file, not before; until then a crash may keep or lose each page on its own.
//! - That a file exists, is gone or has its new name is durable after [`Directory::sync_folder`] of the folder that holds it.
//! - [`Directory::write`] and [`Directory::create_folder`] are durable when they return.
//!
//! Paths are relative to the root the directory was opened with; an absolute path is taken as it is.

use std::{
    io,
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

/// What kind of thing a folder entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// An ordinary file.
    File,
    /// A folder.
    Folder,
    /// Anything else: a socket, a device.
    Other,
}

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The last part of its path.
    pub name: String,
    /// File or folder.
    pub kind: EntryKind,
    /// Length in bytes; 0 for a folder.
    pub bytes: u64,
    /// When it was last modified, in milliseconds since the epoch; 0 if unknown.
    pub modified_ms: i64,
}

/// How the blocks of a new file are had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// All blocks are reserved now (`fallocate`), so that a later write cannot run out of space.
    Real,
    /// Only the length is set; blocks come with the first write.
    Sparse,
}

/// How full the file system is that holds the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes in use and bytes that this process may still use, together.
    pub total: u64,
    /// Bytes that this process may still use.
    pub free: u64,
}

impl Space {
    /// The used part in percent, rounded up, as RocketMQ counts it.
    pub fn used_percent(self) -> u64 {
        if self.total == 0 { 0 } else { (self.total.saturating_sub(self.free) * 100).div_ceil(self.total) }
    }
}

/// Whether what was sliced from a file can be believed: see [`File::soundness`].
#[derive(Debug, Clone, Default)]
pub struct Soundness(Option<(Arc<AtomicU64>, u64)>);

impl Soundness {
    /// Holds until `faults` grows.
    pub(super) fn of(faults: Arc<AtomicU64>) -> Self {
        let seen = faults.load(Ordering::SeqCst);
        Self(Some((faults, seen)))
    }

    /// Whether all that was read from slices of the file since can be believed.
    pub fn holds(&self) -> bool {
        self.0.as_ref().is_none_or(|(faults, seen)| faults.load(Ordering::SeqCst) == *seen)
    }
}

/// Held while this process owns the store; given back on drop.
pub trait Lock: Send + Sync {}

/// A folder tree.
pub trait Directory: Send + Sync {
    /// The entries of a folder, sorted by name. A missing folder has none.
    ///
    /// # Errors
    /// As the file system gives them.
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>>;

    /// Creates a folder and those above it; durable on return. An existing folder is left as it is.
    ///
    /// # Errors
    /// As the file system gives them.
    fn create_folder(&self, folder: &Path) -> io::Result<()>;

    /// Creates a file of `bytes` zero bytes. Its existence is durable after [`Directory::sync_folder`].
    ///
    /// # Errors
    /// `AlreadyExists`; `StorageFull` when `allocation` is real and there is no room: nothing is left behind then.
    fn create(&self, path: &Path, bytes: u64, allocation: Allocation) -> io::Result<Arc<dyn File>>;

    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// `NotFound`, and others as the file system gives them.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;

    /// Opens an existing file for reading alone: what would change it fails.
    ///
    /// # Errors
    /// As [`Directory::open`].
    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.open(path)
    }

    /// Reads a small file whole; `None` if it does not exist. What is no regular file is not opened.
    ///
    /// # Errors
    /// As the file system gives them, also if it is a folder; `InvalidInput` for other things that are no file, `FileTooLarge`.
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>>;

    /// Writes a small file whole, creating or replacing it, and syncs its bytes. A crash may leave a part of it: write aside and rename
    /// where that matters. A file that is there already is written over, so that it needs space only if it grows.
    ///
    /// # Errors
    /// As the file system gives them.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Gives a file another name, replacing a file of that name; a folder too, where nothing has that name. Durable after [`Directory::sync_folder`].
    ///
    /// # Errors
    /// As the file system gives them.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file, or a folder with all that is in it. A missing one is no error. What is open stays readable.
    ///
    /// # Errors
    /// As the file system gives them.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes what was created, renamed and removed in a folder durable.
    ///
    /// # Errors
    /// As the file system gives them.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// Takes the lock of the store, as Apache RocketMQ does: a POSIX record lock on byte 0 of the file, which then holds the text `lock`.
    /// `None` if another process, or another store of this process, has it.
    ///
    /// # Errors
    /// As the file system gives them.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>>;

    /// Keeps brokers, also Apache's, from taking the lock of the store while it is looked at; nothing is written for that. Where there is no
    /// lock file nothing is held. `None` if a broker has the lock.
    ///
    /// # Errors
    /// As the file system gives them.
    fn keep_brokers_out(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>>;

    /// How full the file system of the root is.
    ///
    /// # Errors
    /// As the file system gives them.
    fn space(&self) -> io::Result<Space>;

    /// How full the file system of a folder is.
    ///
    /// # Errors
    /// As the file system gives them.
    fn space_of(&self, folder: &Path) -> io::Result<Space> {
        let _ = folder;
        self.space()
    }

    /// A path as a person would type it, for logs and errors.
    fn display(&self, path: &Path) -> String;
}

/// An open file of a fixed length.
///
/// Writers write at positions of their own choice; a reader must only read ranges that are finished and published.
pub trait File: Send + Sync {
    /// Length in bytes.
    fn bytes(&self) -> u64;

    /// Writes all of `bytes` at `position`, which must lie within the file together with them.
    ///
    /// # Errors
    /// As the file system gives them; a part may have been written then. `InvalidInput` beyond the end.
    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills `into` from `position`.
    ///
    /// # Errors
    /// `UnexpectedEof` beyond the end, and others as the file system gives them.
    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()>;

    /// A finished range, without copying where the file is mapped. The bytes stay valid after the file is removed or closed, and must
    /// never be written again while they are held.
    ///
    /// They may be zeros where the disk could not be read: [`File::soundness`], taken before, tells afterwards.
    ///
    /// # Errors
    /// `UnexpectedEof` beyond the end, and others as the file system gives them.
    fn slice(&self, position: u64, bytes: usize) -> io::Result<Bytes>;

    /// The file as it is mapped, for who looks at many places of it; `None` if it is not. As long as it is held nothing may be written.
    fn mapped(&self) -> Option<Bytes> {
        None
    }

    /// Where, from `from` on, nothing but zeros is left as far as the file system knows without reading: at most the length. Beyond it nothing was
    /// ever written, or it was made zero again.
    fn data_end(&self, from: u64) -> u64 {
        let _ = from;
        self.bytes()
    }

    /// Tells, after slices were read, whether a page of the file could not be read meanwhile and shows zeros instead. Taken before the slice;
    /// asked after the last byte was looked at or copied, and before anything is done with it.
    fn soundness(&self) -> Soundness {
        Soundness::default()
    }

    /// Makes a range zero without changing the length (`FALLOC_FL_ZERO_RANGE` where there is one). Needs no space: where its blocks cannot be
    /// reserved, the range has none.
    ///
    /// # Errors
    /// As the file system gives them.
    fn zero(&self, range: Range<u64>) -> io::Result<()>;

    /// Sets the length; new bytes are zero, with blocks as `allocation` says. Only before the first [`File::slice`].
    ///
    /// # Errors
    /// As the file system gives them.
    fn set_bytes(&self, bytes: u64, allocation: Allocation) -> io::Result<()>;

    /// Makes the bytes durable. After an error they may be lost for good: the caller must not go on as if a later sync could save them.
    ///
    /// # Errors
    /// As the file system gives them; `UnexpectedEof` if someone else has made the file shorter, so that bytes are lost.
    fn sync(&self) -> io::Result<()>;

    /// Says that a range will be read soon. A hint, nothing more.
    fn will_need(&self, range: Range<u64>);
}
