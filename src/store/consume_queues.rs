//! All queues of a store, by topic and queue id.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, io, mem,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use tracing::warn;

use super::{
    QUEUE_ENTRY_BYTES, QueueEntry, StoreError,
    consume_queue::ConsumeQueue,
    obstacle::{BAD, is_denied, set_denied_aside},
    open_files::OpenFiles,
};
use crate::{
    env::{Directory, EntryKind},
    model::{PhysicalOffset, QueueId, QueueOffset, Topic},
};

/// Most queue files kept open besides those that wait for a sync.
const OPEN_FILES_MAX: usize = 512;
/// Most queues whose files stay open since they wait for a sync; one more, and they are synced.
const DIRTY_QUEUES_MAX: usize = 4_096;
/// Digits of the name of a queue's file.
const FILE_NAME_DIGITS: usize = 20;
/// Longest name of a folder in bytes, on the file systems in use.
const FOLDER_NAME_BYTES_MAX: usize = 255;

/// The queues of a store.
///
/// Locks: that of a sync, then the table, then a queue; a queue is never called while the table is locked, save to delete it.
pub(super) struct ConsumeQueues {
    directory: Arc<dyn Directory>,
    folder: PathBuf,
    file_bytes: u64,
    open_files: Arc<OpenFiles>,
    table: RwLock<Table>,
    /// Queues that were put to since they were last written.
    touched: Mutex<Vec<Arc<ConsumeQueue>>>,
    /// About how many queues wait for a sync.
    dirty: AtomicUsize,
    /// Held during a sync: whoever finds nothing dirty must know that it is durable, not that another is at it.
    syncing: Mutex<()>,
}

type Table = HashMap<Topic, BTreeMap<QueueId, Arc<ConsumeQueue>>, foldhash::fast::RandomState>;

/// What went wrong in one queue; the others are not concerned.
pub(super) struct QueueFault {
    /// The topic.
    pub(super) topic: Topic,
    /// The queue within the topic.
    pub(super) queue_id: QueueId,
    /// What went wrong.
    pub(super) error: StoreError,
}

/// Why queues could not be opened.
enum NotFound {
    /// A file or folder may not be read or written.
    Denied {
        path: PathBuf,
        error: io::Error,
    },
    Otherwise(StoreError),
}

impl From<StoreError> for NotFound {
    fn from(error: StoreError) -> Self {
        Self::Otherwise(error)
    }
}

impl fmt::Debug for QueueFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}: {:?}", self.topic, self.queue_id, self.error)
    }
}

impl ConsumeQueues {
    /// Opens every queue under `folder`. Strange names are ignored with a warning. Ranges are empty until [`ConsumeQueues::rewind`].
    ///
    /// # Errors
    /// [`StoreError::FileLength`] if all files have one length, and that is another than `file_bytes`; [`StoreError::Io`]. A single one of another
    /// length, and what may not be read and written, is moved away.
    pub(super) fn open(directory: Arc<dyn Directory>, folder: &Path, file_bytes: u64) -> Result<Self, StoreError> {
        let queues = Self {
            directory,
            folder: folder.to_owned(),
            file_bytes,
            open_files: Arc::new(OpenFiles::new(OPEN_FILES_MAX)),
            table: RwLock::default(),
            touched: Mutex::default(),
            dirty: AtomicUsize::new(0),
            syncing: Mutex::default(),
        };
        loop {
            // What was moved away leaves gaps in others: all is looked at again.
            match queues.find(folder) {
                Ok(table) => {
                    *queues.write_table() = table;
                    return Ok(queues);
                }
                Err(NotFound::Denied { path, error }) => {
                    let moved = set_denied_aside(&*queues.directory, &path, folder, &error);
                    moved.and_then(|()| queues.directory.create_folder(folder)).map_err(|_| StoreError::Io {
                        action: "open",
                        path: queues.directory.display(&path),
                        source: error,
                    })?;
                }
                Err(NotFound::Otherwise(error)) => return Err(error),
            }
        }
    }

    /// Opens every queue there is.
    fn find(&self, folder: &Path) -> Result<Table, NotFound> {
        let mut table = Table::default();
        let mut is_configured_otherwise = None;
        for name in self.folders(folder)? {
            let topic = Topic::from(name.as_str());
            let topic_folder = folder.join(&name);
            for name in self.folders(&topic_folder)? {
                // Only the plain decimal form: `07` would be another folder than the one we write to.
                let Some(id) = name.parse::<u32>().ok().filter(|id| id.to_string() == name) else {
                    let path = self.directory.display(&topic_folder.join(&name));
                    warn!(path, "folder of a topic holds one that is no queue id, ignored");
                    continue;
                };
                self.check_files(&topic_folder.join(&name))?;
                let opened = match self.open_queue(&topic, QueueId(id), false) {
                    Err(error @ StoreError::FileLength { .. }) => {
                        let refuses = match is_configured_otherwise {
                            Some(refuses) => refuses,
                            None => *is_configured_otherwise.insert(self.have_another_length()?),
                        };
                        if refuses { Err(error) } else { self.open_queue(&topic, QueueId(id), true) }
                    }
                    opened => opened,
                };
                table.entry(topic.clone()).or_default().insert(QueueId(id), Arc::new(opened?));
            }
        }
        Ok(table)
    }

    /// Sees to it that every file of a queue may be read and written.
    fn check_files(&self, queue_folder: &Path) -> Result<(), NotFound> {
        let denied = |path: &Path, error: io::Error| NotFound::Denied { path: path.to_owned(), error };
        let listed = match self.directory.list(queue_folder) {
            Err(error) if is_denied(&error) => return Err(denied(queue_folder, error)),
            // It fails again where it is told.
            Err(_) => return Ok(()),
            Ok(listed) => listed,
        };
        for file in listed.iter().filter(|file| file.kind == EntryKind::File && is_queue_file_name(&file.name)) {
            let path = queue_folder.join(&file.name);
            match self.directory.open(&path) {
                Err(error) if is_denied(&error) => return Err(denied(&path, error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// A queue, if there is one.
    pub(super) fn get(&self, topic: &str, queue_id: QueueId) -> Option<Arc<ConsumeQueue>> {
        self.read_table().get(topic)?.get(&queue_id).cloned()
    }

    /// A queue; it is begun if there is none. Its folder comes with its first entry.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the topic's name cannot be that of a folder.
    pub(super) fn get_or_create(&self, topic: &str, queue_id: QueueId) -> Result<Arc<ConsumeQueue>, StoreError> {
        if let Some(queue) = self.get(topic, queue_id) {
            return Ok(queue);
        }
        if !is_folder_name(topic) {
            let path = self.directory.display(&self.folder);
            let reason = format!("{topic:?} cannot be the name of a folder");
            let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
            return Err(StoreError::Io { action: "create a queue in", path, source });
        }
        // Every queue that has files was found when the store was opened. So nothing is read here: a failed read would lose the entry.
        let queue = Arc::new(ConsumeQueue::begin(
            Arc::clone(&self.directory),
            Arc::clone(&self.open_files),
            self.queue_folder(topic, queue_id),
            Topic::from(topic),
            queue_id,
            self.file_bytes,
        ));
        let mut table = self.write_table();
        let of_topic = table.entry(queue.topic().clone()).or_default();
        Ok(Arc::clone(of_topic.entry(queue_id).or_insert(queue)))
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.read_table().values().map(|queues| queues.len() as u64).sum()
    }

    /// Every queue, by topic and queue id: always in one order, so that a simulation can be repeated.
    pub(super) fn all(&self) -> Vec<Arc<ConsumeQueue>> {
        let table = self.read_table();
        let mut topics: Vec<_> = table.iter().collect();
        topics.sort_unstable_by_key(|(topic, _)| *topic);
        topics.into_iter().flat_map(|(_, queues)| queues.values()).cloned().collect()
    }

    /// Takes the entry of a message into the round in hand, see [`ConsumeQueue::put`]. `last` is the queue of the message before, nearly always
    /// this one, too.
    ///
    /// # Errors
    /// As [`ConsumeQueues::get_or_create`] and [`ConsumeQueue::put`]: the entry was not taken.
    pub(super) fn put(
        &self,
        last: &mut Option<Arc<ConsumeQueue>>,
        topic: &str,
        queue_id: QueueId,
        at: QueueOffset,
        entry: QueueEntry,
    ) -> Result<(), StoreError> {
        let is_its = |queue: &Arc<ConsumeQueue>| queue.queue_id() == queue_id && **queue.topic() == *topic;
        let queue = match last.take().filter(is_its) {
            Some(queue) => queue,
            None => self.get_or_create(topic, queue_id)?,
        };
        let queue = last.insert(queue);
        queue.put(at, entry)?;
        if queue.touch() {
            self.touched.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(queue));
        }
        Ok(())
    }

    /// Writes what was put to all queues and lets readers see it. Queues that fail are tried again in the next round.
    pub(super) fn write_round(&self) -> Vec<QueueFault> {
        let touched = mem::take(&mut *self.touched.lock().unwrap_or_else(PoisonError::into_inner));
        let mut faults = Vec::new();
        for queue in touched {
            let was_dirty = queue.is_dirty();
            match queue.write_round() {
                Ok(()) => queue.untouch(),
                Err(error) => {
                    faults.push(fault(&queue, error));
                    self.touched.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&queue));
                }
            }
            if !was_dirty && queue.is_dirty() {
                self.dirty.fetch_add(1, Ordering::Relaxed);
            }
        }
        if self.dirty.load(Ordering::Relaxed) > DIRTY_QUEUES_MAX {
            faults.extend(self.sync());
        }
        faults
    }

    /// The first record whose entry is missing in a queue that cannot be written, and the queue's folder: a checkpoint must not pass it.
    pub(super) fn unwritten_from(&self) -> Option<(PhysicalOffset, String)> {
        let unwritten = |queue: &Arc<ConsumeQueue>| Some((queue.unwritten_from()?, queue.display()));
        self.all().iter().filter_map(unwritten).min()
    }

    /// Makes what was written to all queues durable.
    pub(super) fn sync(&self) -> Vec<QueueFault> {
        let _one_at_a_time = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        self.dirty.store(0, Ordering::Relaxed);
        let dirty = self.all().into_iter().filter(|queue| queue.is_dirty());
        dirty.filter_map(|queue| queue.sync().err().map(|error| fault(&queue, error))).collect()
    }

    /// [`ConsumeQueue::rewind`] for all queues.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn rewind(&self, position: PhysicalOffset) -> Result<(), StoreError> {
        self.all().iter().try_for_each(|queue| queue.rewind(position))
    }

    /// [`ConsumeQueue::has_damaged_files`] for all queues: whether any has one. `judge` is told the queue's topic and id, too.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn have_damaged_files(
        &self,
        stored: bool,
        judge: impl Fn(&str, QueueId, u64, &QueueEntry) -> Option<bool>,
    ) -> Result<bool, StoreError> {
        let mut damaged = false;
        for queue in self.all() {
            let found = queue.has_damaged_files(stored, |at, entry| judge(queue.topic(), queue.queue_id(), at, entry));
            damaged |= found.map_err(|error| queue.fault("read", error))?;
        }
        Ok(damaged)
    }

    /// [`ConsumeQueue::pointed_to`] for all queues: the last of all.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn pointed_to(&self, end: PhysicalOffset, reach: u64) -> Result<Option<PhysicalOffset>, StoreError> {
        self.all().iter().try_fold(None, |last, queue| Ok(last.max(queue.pointed_to(end, reach)?)))
    }

    /// How many entries of all queues lead to records that begin in a range of the log.
    ///
    /// # Errors
    /// As the file system gives them.
    pub(super) fn count_within(&self, from: PhysicalOffset, to: PhysicalOffset) -> io::Result<u64> {
        self.all().iter().try_fold(0, |count, queue| Ok(count + queue.count_within(from, to)?))
    }

    /// [`ConsumeQueue::keep_leading_into`] for all queues.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn keep_leading_into(&self, parts: &[Range<PhysicalOffset>]) -> Result<(), StoreError> {
        self.all().iter().try_for_each(|queue| queue.keep_leading_into(parts))
    }

    /// [`ConsumeQueue::cut`] for all queues. Those that fail are tried again in the next round.
    pub(super) fn cut(&self) -> Vec<QueueFault> {
        let mut faults = Vec::new();
        for queue in self.all() {
            if let Err(error) = queue.cut() {
                faults.push(fault(&queue, error));
                if queue.touch() {
                    self.touched.lock().unwrap_or_else(PoisonError::into_inner).push(queue);
                }
            }
        }
        faults
    }

    /// [`ConsumeQueue::set_min_position`] for all queues; those that fail are given back.
    pub(super) fn set_min_position(&self, log_min: PhysicalOffset) -> Vec<QueueFault> {
        let queues = self.all().into_iter();
        queues.filter_map(|queue| queue.set_min_position(log_min).err().map(|error| fault(&queue, error))).collect()
    }

    /// Removes the queues of a topic; durable on return.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn delete_topic(&self, topic: &str) -> Result<(), StoreError> {
        // The table stays locked, so that no queue of this name is begun before the folder is gone.
        let mut table = self.write_table();
        let Some(queues) = table.remove(topic) else { return Ok(()) };
        queues.values().try_for_each(|queue| queue.delete())?;
        let folder = self.folder.join(topic);
        let removed = self.directory.remove(&folder).and_then(|()| self.directory.sync_folder(&self.folder));
        removed.map_err(|source| StoreError::Io { action: "remove", path: self.directory.display(&folder), source })
    }

    /// Removes one queue; durable on return.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub(super) fn delete_queue(&self, topic: &str, queue_id: QueueId) -> Result<(), StoreError> {
        let mut table = self.write_table();
        let Some(queues) = table.get_mut(topic) else { return Ok(()) };
        let Some(queue) = queues.remove(&queue_id) else { return Ok(()) };
        if queues.is_empty() {
            table.remove(topic);
        }
        queue.delete()?;
        let folder = self.folder.join(topic);
        let synced = self.directory.sync_folder(&folder);
        synced.map_err(|source| StoreError::Io { action: "sync", path: self.directory.display(&folder), source })
    }

    fn open_queue(&self, topic: &Topic, queue_id: QueueId, sets_aside: bool) -> Result<ConsumeQueue, StoreError> {
        let (directory, open_files) = (Arc::clone(&self.directory), Arc::clone(&self.open_files));
        let folder = self.queue_folder(topic, queue_id);
        ConsumeQueue::open(directory, open_files, folder, topic.clone(), queue_id, self.file_bytes, sets_aside)
    }

    /// Whether all files have one length that another configuration would give them.
    fn have_another_length(&self) -> Result<bool, StoreError> {
        let lengths = queue_file_lengths(&*self.directory, &self.folder).map_err(|source| StoreError::Io {
            action: "list",
            path: self.directory.display(&self.folder),
            source,
        })?;
        Ok(is_another_length(&lengths, self.file_bytes))
    }

    fn queue_folder(&self, topic: &str, queue_id: QueueId) -> PathBuf {
        self.folder.join(topic).join(queue_id.0.to_string())
    }

    /// Names of the folders in a folder; what else is there is ignored with a warning.
    fn folders(&self, folder: &Path) -> Result<Vec<String>, NotFound> {
        let listed = self.directory.list(folder).map_err(|error| {
            if is_denied(&error) {
                return NotFound::Denied { path: folder.to_owned(), error };
            }
            StoreError::Io { action: "list", path: self.directory.display(folder), source: error }.into()
        })?;
        let folders = listed.into_iter().filter(|entry| {
            // No topic has a dot in its name, but what was moved away does.
            let is_folder = entry.kind == EntryKind::Folder && !entry.name.contains(BAD);
            if !is_folder {
                let path = self.directory.display(&folder.join(&entry.name));
                warn!(path, "file where only folders of queues belong, ignored");
            }
            is_folder
        });
        Ok(folders.map(|entry| entry.name).collect())
    }

    fn read_table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_table(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many files of queues below `folder` have which length; those without bytes and strange ones are left out.
pub(super) fn queue_file_lengths(directory: &dyn Directory, folder: &Path) -> io::Result<BTreeMap<u64, u64>> {
    let mut lengths = BTreeMap::new();
    let folders = |folder: &Path| {
        let listed = directory.list(folder)?.into_iter().filter(|entry| entry.kind == EntryKind::Folder);
        Ok::<_, io::Error>(listed.map(|entry| folder.join(entry.name)).collect::<Vec<_>>())
    };
    for topic in folders(folder)? {
        for queue in folders(&topic)? {
            let files = directory.list(&queue)?.into_iter();
            for file in files.filter(|file| file.kind == EntryKind::File && is_queue_file_name(&file.name)) {
                *lengths.entry(file.bytes).or_default() += u64::from(file.bytes > 0);
            }
        }
    }
    lengths.retain(|_, count| *count > 0);
    Ok(lengths)
}

/// Whether `lengths` of files say that the configuration, which wants `wanted`, is not theirs: they have one in common, which can be configured.
pub(super) fn is_another_length(lengths: &BTreeMap<u64, u64>, wanted: u64) -> bool {
    let common = lengths.first_key_value().filter(|_| lengths.len() == 1).map(|(&length, _)| length);
    common.is_some_and(|length| length != wanted && length.is_multiple_of(QUEUE_ENTRY_BYTES))
}

/// Whether a file of this name is one of a queue.
fn is_queue_file_name(name: &str) -> bool {
    name.len() == FILE_NAME_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn fault(queue: &ConsumeQueue, error: StoreError) -> QueueFault {
    QueueFault { topic: queue.topic().clone(), queue_id: queue.queue_id(), error }
}

fn is_folder_name(topic: &str) -> bool {
    !matches!(topic, "" | "." | "..") && topic.len() <= FOLDER_NAME_BYTES_MAX && !topic.contains(['/', '\0'])
}
