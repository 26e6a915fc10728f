//! Whether there is room for one more message of a client.
//!
//! The log grows by whole segments. What can still be written is the rest of the newest segment, the spare one that is reserved ahead, and as
//! many more as the disk takes. Of that a client's message gets what is left
//!
//! - when all that waits is written a second time (what plugins owe, see [`Plugin::owes`](super::Plugin::owes)); what retention could delete at
//!   once counts as room;
//! - while the use of the disk stays at or below `diskSpaceWarningLevelRatio`.
//!
//! So what waits always finds room. What plugins append is not asked here: it takes what there is.
//!
//! To ask the file system for each message would cost more than the message. [`Room::look`] grants an allowance, each message takes its part,
//! and the next look comes when it is used up, and once a second while messages are refused.

use std::{
    io,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{AppendError, MessageStore};
use crate::mutation::Mutation;

/// Least bytes that one look grants if there is room: what others write to the disk is noticed after so much.
const ALLOWANCE_BYTES: u64 = 64 << 20;
/// Shortest time between two looks while messages are refused.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// Shortest time between two lines in the log that messages are refused.
const LOG_PAUSE: Duration = Duration::from_secs(60);
/// What a restored record may take more than the waiting one: a longer topic, entries in queue and index.
pub(super) const RECORD_EXTRA_BYTES: u64 = 256;

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
    allowance: AtomicU64,
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
    /// Takes `bytes` for a message of a client.
    ///
    /// # Errors
    /// [`AppendError::DiskFull`].
    pub(super) fn take(&self, store: &MessageStore, bytes: u64) -> Result<(), AppendError> {
        if self.deduct(bytes) {
            return Ok(());
        }
        let mut state = self.state();
        if self.deduct(bytes) {
            return Ok(());
        }
        let now = store.env.clock.since_boot();
        let is_new = state.seen.is_some() && now.saturating_sub(state.looked_at) < LOOK_PAUSE;
        if !(is_new && state.refusing.is_some()) {
            self.look_locked(store, &mut state);
            if self.deduct(bytes) {
                return Ok(());
            }
        }
        let Some(seen) = state.seen.clone() else { return Ok(()) };
        let (reason, remark) = seen.refusal(store, bytes);
        refusing(store, &mut state, bytes, &remark);
        Err(AppendError::DiskFull { reason: reason.name(), remark })
    }

    fn deduct(&self, bytes: u64) -> bool {
        let rest = |allowance: u64| allowance.checked_sub(bytes);
        self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok()
            || Mutation::AdmitWithoutRoom.is_on()
    }

    /// Looks how much room there is.
    pub(super) fn look(&self, store: &MessageStore) {
        self.look_locked(store, &mut self.state());
    }

    fn look_locked(&self, store: &MessageStore, state: &mut State) {
        let options = &store.options;
        let directory = &store.env.directory;
        let spaces = directory.space_of(&options.commit_log_folder).and_then(|log| Ok((log, directory.space()?)));
        let (space, root) = match spaces {
            Ok(spaces) => spaces,
            Err(error) => {
                tracing::warn!(%error, "cannot ask for the free space of the disk");
                self.allowance.store(ALLOWANCE_BYTES, Ordering::Relaxed);
                return;
            }
        };
        // The end of a segment stays free if the next record does not fit.
        let unused = (options.body_bytes_max as u64 + 4096).min(options.segment_bytes / 2);
        let usable = options.segment_bytes - unused;
        let ready = store.log.ready_bytes();
        let margin = store.log.margin_bytes();
        let segments = |bytes: u64| bytes.saturating_sub(margin) / options.segment_bytes;

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
        let owed = store.owed_bytes();
        let in_all = ready + (segments(space.free) + store.deletable_segments()) * usable;
        let by_pending = in_all.saturating_sub(unused).saturating_sub(owed);
        let most = ALLOWANCE_BYTES.max(4 * options.body_bytes_max as u64);
        let allowance = by_use.min(by_pending).min(most);
        self.allowance.store(allowance, Ordering::Relaxed);
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
