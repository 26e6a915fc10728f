//! A directory in memory that forgets what was not synced, for tests and simulation.
//!
//! It keeps apart what is read now and what is durable: per page of 4096 bytes, per file length and per name. [`MemoryDirectory::crash`]
//! makes from that what a power cut could have left, [`MemoryDirectory::kill`] what the end of the process alone leaves. Faults can be
//! planned, and the machine can be made to stop at any step. Nothing here depends on anything but the calls made and the seed given.
//!
//! One lock guards names and faults, taken before that of a file's content; each is held for one operation.

mod content;
mod faults;
mod names;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    ops::Range,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

use self::{
    content::Content,
    faults::{Faults, Verdict},
    names::{Names, Node, Shared, content},
};
use super::{Allocation, Clock, Directory, Entry, EntryKind, File, Lock, Space};

pub use self::faults::Operation;

/// What a disk without a given capacity has.
const CAPACITY_DEFAULT: u64 = 1 << 40;
/// What the lock file holds.
const LOCK_TEXT: &[u8] = b"lock";

/// A folder tree in memory. Clones show the same tree.
///
/// # What is lost
///
/// - Written pages, and a changed length, until [`File::sync`]. A page that was not synced is kept, lost, or torn at sectors of 512 bytes.
/// - Created, renamed and removed names until [`Directory::sync_folder`]. Each change is kept or lost as a whole.
/// - After a failed sync the written pages are still read, but no later sync makes them durable, as in Linux.
///
/// # Steps
///
/// Each operation that changes something or makes something durable is one step, [`Directory::write`] two. Reading is none.
#[derive(Clone)]
pub struct MemoryDirectory {
    machine: Arc<Mutex<Machine>>,
}

/// What [`MemoryDirectory::forbid`] forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forbidden {
    /// Writing.
    Writing,
    /// Reading and writing.
    All,
}

struct Machine {
    names: Names,
    forbidden: BTreeMap<PathBuf, Forbidden>,
    faults: Faults,
    capacity: u64,
    locks: BTreeSet<PathBuf>,
    clock: Option<Arc<dyn Clock>>,
}

impl MemoryDirectory {
    /// An empty tree. Files have no time of modification.
    pub fn new() -> Self {
        Self::of(Names::default(), BTreeMap::new(), CAPACITY_DEFAULT, None)
    }

    /// An empty tree whose files take the time of their last modification from `clock`.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::of(Names::default(), BTreeMap::new(), CAPACITY_DEFAULT, Some(clock))
    }

    fn of(names: Names, forbidden: BTreeMap<PathBuf, Forbidden>, capacity: u64, clock: Option<Arc<dyn Clock>>) -> Self {
        let machine = Machine { names, forbidden, faults: Faults::default(), capacity, locks: BTreeSet::new(), clock };
        Self { machine: Arc::new(Mutex::new(machine)) }
    }

    /// What a power cut at this moment could leave, in a tree of its own; the seed decides about all that was not synced.
    ///
    /// This tree stays as it is, so that many seeds can be tried. The new one has no planned faults, no locks, and is at step 0.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let machine = self.machine();
        let names = machine.names.after_power_cut(&mut fastrand::Rng::with_seed(seed));
        Self::of(names, machine.forbidden.clone(), machine.capacity, machine.clock.clone())
    }

    /// What the end of the process at this moment leaves, in a tree of its own: all that was written. What was not synced still is not,
    /// so a crash of the new tree may lose it.
    ///
    /// This tree stays as it is. The new one has no planned faults, no locks, and is at step 0.
    #[must_use]
    pub fn kill(&self) -> Self {
        let machine = self.machine();
        Self::of(machine.names.copy(), machine.forbidden.clone(), machine.capacity, machine.clock.clone())
    }

    /// Stops the machine: every operation fails from now on, so that whoever still uses this tree gives up.
    pub fn stop(&self) {
        self.machine().faults.stop();
    }

    /// Stops the machine in the middle of a step, counted from 1: that step fails, half done or not at all, and so does everything after it,
    /// reading included. What is left is seen by [`MemoryDirectory::crash`] or [`MemoryDirectory::kill`].
    pub fn crash_at(&self, step: u64) {
        self.machine().faults.crash_at(step);
    }

    /// Whether the machine has stopped.
    pub fn has_stopped(&self) -> bool {
        self.machine().faults.has_stopped()
    }

    /// How many steps were done so far.
    pub fn steps(&self) -> u64 {
        self.machine().faults.steps()
    }

    /// Lets the next `after` operations of this kind succeed and the `times` after them fail. A failing write may write a part.
    pub fn fail_after(&self, operation: Operation, after: u64, kind: io::ErrorKind, times: u64) {
        self.fail_under(Path::new(""), operation, after, kind, times);
    }

    /// As [`MemoryDirectory::fail_after`], but counts only operations on `path` and what is below it.
    pub fn fail_under(&self, path: &Path, operation: Operation, after: u64, kind: io::ErrorKind, times: u64) {
        self.machine().faults.add(operation, normal(path), after, kind, times);
    }

    /// Damages bytes of a file where they lie, on the disk as in memory: each is combined with `mask` by exclusive or. This is no step, and
    /// whoever holds a slice keeps what he read.
    ///
    /// # Errors
    /// `NotFound` if there is no such file.
    pub fn damage(&self, path: &Path, range: Range<u64>, mask: u8) -> io::Result<()> {
        let file = self.machine().names.file(&normal(path))?;
        content(&file).damage(range, mask);
        Ok(())
    }

    /// Lets the disk be unable to read the pages of a range of a file, over kills and power cuts, until they are written again.
    ///
    /// # Errors
    /// `NotFound` if there is no such file.
    pub fn make_unreadable(&self, path: &Path, range: Range<u64>) -> io::Result<()> {
        let file = self.machine().names.file(&normal(path))?;
        content(&file).make_unreadable(&range);
        Ok(())
    }

    /// Takes back [`MemoryDirectory::make_unreadable`].
    ///
    /// # Errors
    /// `NotFound` if there is no such file.
    pub fn make_readable(&self, path: &Path, range: Range<u64>) -> io::Result<()> {
        let file = self.machine().names.file(&normal(path))?;
        content(&file).make_readable(&range);
        Ok(())
    }

    /// Takes permissions from a file or folder, with all that is below it, until it is renamed or removed: as for a user who is not root, over kills
    /// and power cuts. What is open stays usable.
    pub fn forbid(&self, path: &Path, what: Forbidden) {
        self.machine().forbidden.insert(normal(path), what);
    }

    /// Gives back all permissions.
    pub fn allow_all(&self) {
        self.machine().forbidden.clear();
    }

    /// Forgets all planned faults.
    pub fn heal(&self) {
        self.machine().faults.heal();
    }

    /// Sets the size of the disk. Where it is full, allocating, and writing to pages without room, fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.machine().capacity = bytes;
    }

    /// A hash of all operations so far: kinds, paths, positions and bytes written. Two runs that did the same have the same.
    pub fn trace(&self) -> u64 {
        self.machine().faults.trace()
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, path: PathBuf, file: Shared) -> Arc<dyn File> {
        Arc::new(MemoryFile { directory: self.clone(), path, file })
    }
}

impl Default for MemoryDirectory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDirectory").field("steps", &self.steps()).finish_non_exhaustive()
    }
}

impl Machine {
    fn used_bytes(&self) -> u64 {
        self.names.files().map(|file| content(file).used_bytes()).sum()
    }

    fn check_room(&self, bytes: u64) -> io::Result<()> {
        if bytes > 0 && bytes > self.capacity.saturating_sub(self.used_bytes()) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Whether something may be done with what is at a path; else `PermissionDenied`.
    fn check_allowed(&self, path: &Path, writing: bool) -> io::Result<()> {
        let forbids = |above: &Path| self.forbidden.get(above).is_some_and(|what| writing || *what == Forbidden::All);
        if path.ancestors().any(forbids) { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
    }

    fn now_ms(&self) -> i64 {
        self.clock.as_ref().map_or(0, |clock| clock.wall().0)
    }

    /// An operation that reads begins.
    fn read(&mut self, path: &Path, details: &[u64]) -> io::Result<()> {
        match self.faults.begin(Operation::Read, path, details)? {
            Verdict::Go => Ok(()),
            Verdict::Fault(error) => Err(error),
            Verdict::Crash => Err(faults::stopped()),
        }
    }

    /// An operation that changes or syncs names begins. One that only changes them is done before [`Step::end`] stops the machine: nothing of it
    /// is durable then, so a crash keeps or loses it. A sync is not done.
    fn step(&mut self, operation: Operation, path: &Path, details: &[u64]) -> io::Result<Step> {
        match self.faults.begin(operation, path, details)? {
            Verdict::Go => Ok(Step { crash: false }),
            Verdict::Fault(error) => Err(error),
            Verdict::Crash => Ok(Step { crash: true }),
        }
    }
}

/// A step that was begun and may be done; the machine may stop in it.
struct Step {
    crash: bool,
}

impl Step {
    fn end(&self) -> io::Result<()> {
        if self.crash { Err(faults::stopped()) } else { Ok(()) }
    }
}

impl Directory for MemoryDirectory {
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        let folder = normal(folder);
        let mut machine = self.machine();
        machine.read(&folder, &[])?;
        machine.check_allowed(&folder, false)?;
        match machine.names.node(&folder) {
            Some(Node::Folder) => {}
            Some(Node::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
            None => return Ok(Vec::new()),
        }
        let entry = |(path, node): (&Path, &Node)| {
            let (kind, bytes, modified_ms) = match node {
                Node::Folder => (EntryKind::Folder, 0, 0),
                Node::File(file) => {
                    let content = content(file);
                    (EntryKind::File, content.bytes(), content.modified_ms)
                }
            };
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Entry { name, kind, bytes, modified_ms }
        };
        Ok(machine.names.entries(&folder).map(entry).collect())
    }

    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        let folder = normal(folder);
        let mut machine = self.machine();
        machine.faults.check_running()?;
        if matches!(machine.names.node(&folder), Some(Node::Folder)) {
            return Ok(());
        }
        machine.step(Operation::Create, &folder, &[])?.end()?;
        machine.names.create_folder(&folder)
    }

    fn create(&self, path: &Path, bytes: u64, allocation: Allocation) -> io::Result<Arc<dyn File>> {
        let path = normal(path);
        let mut machine = self.machine();
        let step = machine.step(Operation::Create, &path, &[bytes, allocation as u64])?;
        machine.check_allowed(path.parent().unwrap_or(&path), true)?;
        let mut file = Content::new(bytes, allocation == Allocation::Real);
        machine.check_room(file.used_bytes())?;
        file.modified_ms = machine.now_ms();
        let file = machine.names.create(&path, file)?;
        step.end()?;
        Ok(self.handle(path, file))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let path = normal(path);
        let mut machine = self.machine();
        machine.read(&path, &[])?;
        let file = machine.names.file(&path)?;
        machine.check_allowed(&path, true)?;
        Ok(self.handle(path, file))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let path = normal(path);
        let mut machine = self.machine();
        machine.read(&path, &[])?;
        let file = machine.names.file(&path)?;
        machine.check_allowed(&path, false)?;
        Ok(self.handle(path, file))
    }

    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let path = normal(path);
        let mut machine = self.machine();
        machine.read(&path, &[])?;
        let file = match machine.names.file(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        machine.check_allowed(&path, false)?;
        let content = content(&file);
        let mut bytes = vec![0; usize::try_from(content.bytes()).map_err(io::Error::other)?];
        content.read(0, &mut bytes)?;
        Ok(Some(bytes))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let path = normal(path);
        let length = bytes.len() as u64;
        let mut machine = self.machine();
        let verdict = machine.faults.begin(Operation::Write, &path, &[length, hash(bytes)])?;
        machine.check_allowed(&path, true)?;
        let file = match machine.names.file(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                machine.names.create(&path, Content::new(0, false))?
            }
            Err(error) => return Err(error),
        };
        let now_ms = machine.now_ms();
        let missing = content(&file).missing_bytes(&(0..length));
        machine.check_room(missing)?;
        content(&file).set_bytes(0, false);
        {
            let mut content = content(&file);
            content.set_bytes(length, false);
            content.modified_ms = now_ms;
            content.write(0, written(bytes, &verdict));
        }
        match verdict {
            Verdict::Go => {}
            Verdict::Fault(error) => return Err(error),
            Verdict::Crash => return Err(faults::stopped()),
        }
        sync(&mut machine, &path, &file)?;
        match path.parent() {
            Some(folder) => machine.names.sync_folder(folder),
            None => Ok(()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (normal(from), normal(to));
        let mut machine = self.machine();
        let step = machine.step(Operation::Rename, &from, &[hash(to.as_os_str().as_encoded_bytes())])?;
        machine.check_allowed(from.parent().unwrap_or(&from), true)?;
        machine.names.rename(&from, &to)?;
        machine.forbidden.remove(&to);
        if let Some(what) = machine.forbidden.remove(&from) {
            machine.forbidden.insert(to, what);
        }
        step.end()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let path = normal(path);
        let mut machine = self.machine();
        let step = machine.step(Operation::Remove, &path, &[])?;
        machine.check_allowed(path.parent().unwrap_or(&path), true)?;
        machine.names.remove(&path);
        machine.forbidden.remove(&path);
        step.end()
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let folder = normal(folder);
        let mut machine = self.machine();
        machine.step(Operation::Sync, &folder, &[])?.end()?;
        machine.names.sync_folder(&folder)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let path = normal(path);
        self.machine().faults.check_running()?;
        if !self.machine().locks.insert(path.clone()) {
            return Ok(None);
        }
        let lock = MemoryLock { directory: self.clone(), path };
        self.write(&lock.path, LOCK_TEXT)?;
        Ok(Some(Box::new(lock)))
    }

    fn keep_brokers_out(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let path = normal(path);
        let mut machine = self.machine();
        machine.faults.check_running()?;
        if !machine.locks.insert(path.clone()) {
            return Ok(None);
        }
        Ok(Some(Box::new(MemoryLock { directory: self.clone(), path })))
    }

    fn space(&self) -> io::Result<Space> {
        let machine = self.machine();
        machine.faults.check_running()?;
        Ok(Space { total: machine.capacity, free: machine.capacity.saturating_sub(machine.used_bytes()) })
    }

    fn display(&self, path: &Path) -> String {
        Path::new("/memory").join(path).display().to_string()
    }
}

struct MemoryFile {
    directory: MemoryDirectory,
    /// Its name when it was opened.
    path: PathBuf,
    file: Shared,
}

impl MemoryFile {
    /// Begins a write of `range`, which must lie within the file and have room.
    fn begin_write(
        &self,
        machine: &mut Machine,
        range: &Range<u64>,
        details: &[u64],
        takes_room: bool,
    ) -> io::Result<Verdict> {
        let verdict = machine.faults.begin(Operation::Write, &self.path, details)?;
        let (bytes, missing) = {
            let content = content(&self.file);
            (content.bytes(), if takes_room && range.end <= content.bytes() { content.missing_bytes(range) } else { 0 })
        };
        if range.end > bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("bytes {} to {} reach beyond the file's {bytes} bytes", range.start, range.end),
            ));
        }
        machine.check_room(missing)?;
        content(&self.file).modified_ms = machine.now_ms();
        Ok(verdict)
    }
}

impl File for MemoryFile {
    fn bytes(&self) -> u64 {
        content(&self.file).bytes()
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let mut machine = self.directory.machine();
        let range = position..position.saturating_add(bytes.len() as u64);
        let verdict = self.begin_write(&mut machine, &range, &[position, range.end, hash(bytes)], true)?;
        content(&self.file).write(position, written(bytes, &verdict));
        end(verdict)
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        let mut machine = self.directory.machine();
        machine.read(&self.path, &[position, into.len() as u64])?;
        let content = content(&self.file);
        if position.saturating_add(into.len() as u64) > content.bytes() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        content.read(position, into)
    }

    fn slice(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        if position.saturating_add(bytes as u64) > self.bytes() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut slice = vec![0; bytes];
        self.read_at(position, &mut slice)?;
        Ok(slice.into())
    }

    fn zero(&self, range: Range<u64>) -> io::Result<()> {
        let mut machine = self.directory.machine();
        let range = range.start..range.end.max(range.start);
        let verdict = self.begin_write(&mut machine, &range, &[range.start, range.end, 0], false)?;
        let middle = range.start + (range.end - range.start) / 2;
        let end_of_zeros = if matches!(verdict, Verdict::Go) { range.end } else { middle };
        content(&self.file).zero(range.start..end_of_zeros);
        end(verdict)
    }

    fn set_bytes(&self, bytes: u64, allocation: Allocation) -> io::Result<()> {
        let mut machine = self.directory.machine();
        let step = machine.step(Operation::Write, &self.path, &[bytes, allocation as u64])?;
        let now_ms = machine.now_ms();
        let mut changed = content(&self.file).clone();
        let used = changed.used_bytes();
        changed.set_bytes(bytes, allocation == Allocation::Real);
        machine.check_room(changed.used_bytes().saturating_sub(used))?;
        changed.modified_ms = now_ms;
        *content(&self.file) = changed;
        step.end()
    }

    fn sync(&self) -> io::Result<()> {
        sync(&mut self.directory.machine(), &self.path, &self.file)
    }

    fn will_need(&self, _range: Range<u64>) {}
}

fn sync(machine: &mut Machine, path: &Path, file: &Shared) -> io::Result<()> {
    match machine.faults.begin(Operation::Sync, path, &[])? {
        Verdict::Go => {
            content(file).sync();
            Ok(())
        }
        Verdict::Fault(error) => {
            content(file).fail_sync();
            Err(error)
        }
        Verdict::Crash => Err(faults::stopped()),
    }
}

/// What of `bytes` is written: all, or the first half if it goes wrong.
fn written<'a>(bytes: &'a [u8], verdict: &Verdict) -> &'a [u8] {
    if matches!(verdict, Verdict::Go) { bytes } else { &bytes[..bytes.len() / 2] }
}

fn end(verdict: Verdict) -> io::Result<()> {
    match verdict {
        Verdict::Go => Ok(()),
        Verdict::Fault(error) => Err(error),
        Verdict::Crash => Err(faults::stopped()),
    }
}

struct MemoryLock {
    directory: MemoryDirectory,
    path: PathBuf,
}

impl Lock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.directory.machine().locks.remove(&self.path);
    }
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

fn hash(bytes: &[u8]) -> u64 {
    u64::from(crc32fast::hash(bytes))
}
