//! Whether there is room for one more message of a client.
//!
//! The log grows by whole segments. What can still be written is the rest of the newest segment, the spare one that is reserved ahead, and as
//! many more as the disk takes. Of that a client's message gets what is left
//!
//! - when all that waits is written a second time (what plugins owe, see [`Plugin::owes`](super::Plugin::owes)), and its entries are written to
//!   queues and index; what retention could delete at once counts as room;
//! - while the use of the disk stays at or below `diskSpaceWarningLevelRatio`.
//!
//! So what waits always finds room. What plugins append is not asked here: it takes what there is.
//!
//! To ask the file system for each message would cost more than the message. [`Room::look`] grants an allowance, in bytes of log and in messages,
//! each message takes its part, and the next look comes when it is used up, and once a second while messages are refused.
//!
//! Queues and index are sparse files: what an entry costs depends on the pages that are there. [`Growth`] bounds it from above.

use std::{
    io,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{AppendError, MessageStore, QUEUE_ENTRY_BYTES, StoreOptions, index};
use crate::mutation::Mutation;

/// Least bytes that one look grants if there is room: what others write to the disk is noticed after so much.
const ALLOWANCE_BYTES: u64 = 64 << 20;
/// Shortest time between two looks while messages are refused.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// Shortest time between two lines in the log that messages are refused.
const LOG_PAUSE: Duration = Duration::from_secs(60);
/// What a restored record may take more than the waiting one: a longer topic, entries in queue and index.
pub(super) const RECORD_EXTRA_BYTES: u64 = 256;

/// What a file system gives at once.
const PAGE_BYTES: u64 = 4096;
/// Pages of a queue without files: its first page, perhaps a second one, and the folders of topic and queue.
const NEW_QUEUE_PAGES: u64 = 4;
/// Pages by which state files may grow, and that they take while they are written anew.
const STATE_PAGES: u64 = 8;
/// Keys of a message for which room is kept in the index. It costs queries, not messages, if those that wait have more.
const KEYS: u64 = 4;
/// Most messages that one look grants.
const MESSAGES_MAX: u64 = 1 << 16;
/// A look grants one message for so many bytes of a segment.
const BYTES_PER_MESSAGE: u64 = 4096;

/// Why a message of a client was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The disk is used above the limit.
    DiskUse,
    /// What waits would not find room.
    Pending,
    /// The file system had no space when it was asked for it.
    NoSpace,
    /// It breaks a rule.
    Illegal,
    /// The log could not be written for another reason.
    Io,
    /// The store is closed, or not trusted any more.
    Closed,
}

impl Reason {
    /// All of them.
    pub(super) const ALL: [Self; 6] =
        [Self::DiskUse, Self::Pending, Self::NoSpace, Self::Illegal, Self::Io, Self::Closed];

    /// As figures name it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::DiskUse => "diskUse",
            Self::Pending => "pending",
            Self::NoSpace => "noSpace",
            Self::Illegal => "illegal",
            Self::Io => "io",
            Self::Closed => "closed",
        }
    }
}

/// Grants and refuses room; see the module.
#[derive(Default)]
pub(super) struct Room {
    /// Bytes of log.
    allowance: AtomicU64,
    /// Messages.
    messages: AtomicU64,
    /// Bytes of the disk that are for queues, index and state files.
    kept: AtomicU64,
    state: Mutex<State>,
    refused: [AtomicU64; Reason::ALL.len()],
}

#[derive(Default)]
struct State {
    seen: Option<Seen>,
    /// When that was, since boot.
    looked_at: Duration,
    /// Bytes of a message that was refused; none since there was room again.
    refusing: Option<u64>,
    logged_at: Option<Duration>,
}

/// What a look saw.
#[derive(Debug, Clone)]
struct Seen {
    /// The folder with the fuller disk, and the use of that.
    path: PathBuf,
    used_percent: u64,
    /// Bytes that may be appended before the use of the disk is above the limit.
    by_use: u64,
    /// Bytes that may be appended before what waits finds no room.
    by_pending: u64,
    /// What waits, as it is written a second time.
    owed: u64,
}

impl Room {
    /// Takes `bytes` of log for so many messages of a client.
    ///
    /// # Errors
    /// [`AppendError::DiskFull`].
    pub(super) fn take(&self, store: &MessageStore, bytes: u64, messages: u64) -> Result<(), AppendError> {
        if self.deduct(bytes, messages) {
            return Ok(());
        }
        let mut state = self.state();
        if self.deduct(bytes, messages) {
            return Ok(());
        }
        let now = store.env.clock.since_boot();
        let is_new = state.seen.is_some() && now.saturating_sub(state.looked_at) < LOOK_PAUSE;
        if !(is_new && state.refusing.is_some()) {
            self.look_locked(store, &mut state, messages);
            if self.deduct(bytes, messages) {
                return Ok(());
            }
        }
        let Some(seen) = state.seen.clone() else { return Ok(()) };
        let (reason, remark) = seen.refusal(store, bytes);
        refusing(store, &mut state, bytes, &remark);
        Err(AppendError::DiskFull { reason: reason.name(), remark })
    }

    fn deduct(&self, bytes: u64, messages: u64) -> bool {
        let deduct = |from: &AtomicU64, amount: u64| {
            from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(amount)).is_ok()
        };
        if !deduct(&self.messages, messages) {
            return Mutation::AdmitWithoutRoom.is_on();
        }
        if !deduct(&self.allowance, bytes) {
            self.messages.fetch_add(messages, Ordering::Relaxed);
            return Mutation::AdmitWithoutRoom.is_on();
        }
        true
    }

    /// Bytes of the disk that are for queues, index and state files, as the last look saw it: nothing is made ahead of time of them.
    pub(super) fn kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Looks how much room there is.
    pub(super) fn look(&self, store: &MessageStore) {
        self.look_locked(store, &mut self.state(), 0);
    }

    /// Grants at least so many messages, if there is room for them.
    fn look_locked(&self, store: &MessageStore, state: &mut State, messages: u64) {
        let options = &store.options;
        let directory = &store.env.directory;
        let spaces = directory.space_of(&options.commit_log_folder).and_then(|log| Ok((log, directory.space()?)));
        let (space, root) = match spaces {
            Ok(spaces) => spaces,
            Err(error) => {
                tracing::warn!(%error, "cannot ask for the free space of the disk");
                self.allowance.store(ALLOWANCE_BYTES, Ordering::Relaxed);
                self.messages.store(MESSAGES_MAX.max(messages), Ordering::Relaxed);
                return;
            }
        };
        // The end of a segment stays free if the next record does not fit.
        let unused = (options.body_bytes_max as u64 + 4096).min(options.segment_bytes / 2);
        let usable = options.segment_bytes - unused;
        let ready = store.log.ready_bytes();
        let margin = store.log.margin_bytes();
        let segments = |bytes: u64| bytes.saturating_sub(margin) / options.segment_bytes;

        let owed = store.owed();
        let granted = (options.segment_bytes / BYTES_PER_MESSAGE).clamp(1, MESSAGES_MAX).max(messages);
        // What is granted may all wait: it is written twice.
        let entries = owed.records + 2 * granted + store.undispatched_records();
        let kept = Growth::of(options, entries, store.dispatcher.queues.count(), owed.queues).bytes();
        self.kept.store(kept, Ordering::Relaxed);

        let limit = (u128::from(space.total) * u128::from(options.disk_full_percent) / 100) as u64;
        let used = space.total.saturating_sub(space.free);
        // Queues and state files may lie on another disk.
        let (fullest, path) = if root.used_percent() > space.used_percent() {
            (root, PathBuf::new())
        } else {
            (space, options.commit_log_folder.clone())
        };
        let used_percent = fullest.used_percent();
        let by_use = if used_percent > options.disk_full_percent {
            0
        } else {
            ready + segments(limit.saturating_sub(used)) * usable
        };
        let deletable = store.deletable_segments() * options.segment_bytes;
        // Two disks of one size are taken for one.
        let beside_log = if root.total == space.total { kept } else { 0 };
        let in_all = ready + segments((space.free + deletable).saturating_sub(beside_log)) * usable;
        let by_pending =
            if root.free + deletable < kept { 0 } else { in_all.saturating_sub(unused).saturating_sub(owed.bytes) };
        let owed = owed.bytes;
        let most = ALLOWANCE_BYTES.max(4 * options.body_bytes_max as u64);
        let allowance = by_use.min(by_pending).min(most);
        self.allowance.store(allowance, Ordering::Relaxed);
        self.messages.store(granted, Ordering::Relaxed);
        let seen = Seen { path, used_percent, by_use, by_pending, owed };
        state.seen = Some(seen.clone());
        state.looked_at = store.env.clock.since_boot();
        if used_percent > options.disk_full_percent {
            let (_, remark) = seen.refusal(store, 0);
            refusing(store, state, 0, &remark);
        } else if state.refusing.is_some_and(|bytes| allowance >= bytes.max(1).saturating_mul(2)) {
            state.refusing = None;
            tracing::info!(used_percent, "there is room on the disk again; messages are taken");
        }
    }

    /// The file system had no space for an append; gives what to answer.
    pub(super) fn no_space(&self, store: &MessageStore, error: &io::Error) -> AppendError {
        let path = store.env.directory.display(&store.options.commit_log_folder);
        let space = store.env.directory.space_of(&store.options.commit_log_folder);
        let used = space.map_or_else(|_| "?".to_owned(), |space| space.used_percent().to_string());
        let remark = format!("{path} has no space left, its disk is {used} % full: {error}");
        refusing(store, &mut self.state(), 1, &remark);
        AppendError::DiskFull { reason: Reason::NoSpace.name(), remark }
    }

    /// Whether messages were refused for want of room and none was found since.
    pub(super) fn is_refusing(&self) -> bool {
        self.state().refusing.is_some()
    }

    /// Why every message is refused now; `None` if some are taken.
    pub(super) fn refusal(&self, store: &MessageStore) -> Option<AppendError> {
        let seen = self.state().seen.clone().filter(|seen| seen.by_use.min(seen.by_pending) == 0)?;
        let (reason, remark) = seen.refusal(store, 1);
        Some(AppendError::DiskFull { reason: reason.name(), remark })
    }

    /// Counts what became of a client's message.
    pub(super) fn count<T>(&self, outcome: Result<T, AppendError>) -> Result<T, AppendError> {
        if let Err(error) = &outcome {
            let reason = match error {
                AppendError::DiskFull { reason, .. } => {
                    Reason::ALL.into_iter().find(|known| known.name() == *reason).unwrap_or(Reason::NoSpace)
                }
                AppendError::Refused(_)
                | AppendError::Record(_)
                | AppendError::BodyTooLarge { .. }
                | AppendError::BatchTooLarge { .. } => Reason::Illegal,
                AppendError::Io(_) => Reason::Io,
                AppendError::Closed | AppendError::Failed { .. } => Reason::Closed,
            };
            self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    /// How many requests were refused, by reason, since the start.
    pub(super) fn refused(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().map(|reason| (reason, self.refused[reason as usize].load(Ordering::Relaxed)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each field is valid by itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Why a message of so many bytes is refused, in words for its producer.
    fn refusal(&self, store: &MessageStore, bytes: u64) -> (Reason, String) {
        let path = store.env.directory.display(&self.path);
        let used = self.used_percent;
        let limit = store.options.disk_full_percent;
        if used > limit {
            let remark =
                format!("{path} is {used} % full, and sends are refused above diskSpaceWarningLevelRatio = {limit} %");
            return (Reason::DiskUse, remark);
        }
        if self.by_pending < bytes.max(1) {
            let remark = format!(
                "{path} is {used} % full; of the room left, {} bytes are kept for the delayed messages that wait, and this one has no room beside them",
                self.owed
            );
            return (Reason::Pending, remark);
        }
        let remark = format!(
            "{path} is {used} % full, and one more file of the commit log ({} bytes) would lead above diskSpaceWarningLevelRatio = {limit} %",
            store.options.segment_bytes
        );
        (Reason::DiskUse, remark)
    }
}

/// By how many pages queues, index and state files grow at most.
struct Growth {
    queue_pages: u64,
    index_pages: u64,
}

impl Growth {
    /// With so many records more in the log: they go to `queues` that have files, and to `all_queues`, of which some have none.
    fn of(options: &StoreOptions, records: u64, queues: u64, all_queues: u64) -> Self {
        let pages = |bytes: u64| bytes.div_ceil(PAGE_BYTES);
        // In each queue the entries begin within a page and end within one; each file that is begun ends the page before it.
        let new_files = records / (options.queue_file_bytes / QUEUE_ENTRY_BYTES).max(1);
        let begun = records.min(2 * queues) + NEW_QUEUE_PAGES * records.min(all_queues.saturating_sub(queues));
        let queue_pages = pages(records * QUEUE_ENTRY_BYTES) + new_files + begun;

        let keys = if options.index_enabled { records * KEYS } else { 0 };
        let files = keys / u64::from(options.index_entries.saturating_sub(1).max(1)) + 2;
        // Each key may be the first in its part of the slots.
        let slot_pages = keys.min(files * pages(index::begin_of_entries(options.index_slots)));
        let index_pages = if keys == 0 { 0 } else { pages(keys * index::ENTRY_STEP) + 2 * files + slot_pages };
        Self { queue_pages, index_pages }
    }

    fn bytes(&self) -> u64 {
        (self.queue_pages + self.index_pages + STATE_PAGES) * PAGE_BYTES
    }
}

/// Whether a file system had no space left.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn refusing(store: &MessageStore, state: &mut State, bytes: u64, remark: &str) {
    let now = store.env.clock.since_boot();
    if state.refusing.is_none() && state.logged_at.is_none_or(|at| now.saturating_sub(at) >= LOG_PAUSE) {
        state.logged_at = Some(now);
        tracing::error!(error = remark, "messages are refused for want of room");
    }
    state.refusing = Some(state.refusing.unwrap_or(0).max(bytes));
}
