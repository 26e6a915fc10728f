//! What can go wrong in a store.

use std::io;

use super::{PluginError, Refusal};
use crate::record::RecordError;

/// Why a store does not open, start or stop.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process, or another store of this process, has the lock.
    #[error("{path} is locked: another broker is running on this store")]
    Locked {
        /// The lock file.
        path: String,
    },
    /// A file system operation failed.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        path: String,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// A file has a length that the configuration does not allow.
    #[error("{path} has {found} bytes, but {key} is {wanted}")]
    FileLength {
        /// The file.
        path: String,
        /// Its length.
        found: u64,
        /// The length it must have.
        wanted: u64,
        /// The key that says so.
        key: &'static str,
    },
    /// An option is out of its range.
    #[error("{key}: {reason}")]
    Option {
        /// The key of `broker.conf`.
        key: &'static str,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// A plugin does not start.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// No checkpoint can be written yet: a queue or the index misses entries.
    #[error("{path} cannot be written from position {from} of the log on; no checkpoint may pass that")]
    Behind {
        /// The folder of the queue or the index.
        path: String,
        /// The first record whose entry is missing.
        from: u64,
    },
    /// The store stopped trusting its files.
    #[error("the store accepts no more appends: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
}

/// Why an append is refused. Nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// A plugin refused the draft.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The draft cannot be a record: a part is too long.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The body is larger than the limit.
    #[error("the body has {found} bytes, more than maxMessageSize = {max}")]
    BodyTooLarge {
        /// Its size.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// The records of a batch do not fit into one segment.
    #[error("the batch takes {found} bytes of log, more than the {max} that a segment holds")]
    BatchTooLarge {
        /// Bytes of its records.
        found: u64,
        /// The limit.
        max: u64,
    },
    /// There is no room for it on the disk; a later try may succeed.
    #[error("disk full: {remark}")]
    DiskFull {
        /// Why, as figures name it: `diskUse`, `pending` (what waits needs the room), `noSpace`.
        reason: &'static str,
        /// Path, use and limit.
        remark: String,
    },
    /// The log could not be written; a later try may succeed.
    #[error("cannot write the commit log")]
    Io(#[source] io::Error),
    /// The store is not open, or no longer.
    #[error("the store is closed")]
    Closed,
    /// The store stopped trusting its files.
    #[error("the store accepts no more appends: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
}
