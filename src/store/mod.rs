//! The store: one append-only commit log, and what is derived from it.
//!
//! It knows no socket, no async code and no delay: what is above attaches as a [`Plugin`].

mod audit;
mod checkpoint;
mod clock;
mod commit_log;
mod consume_queue;
mod consume_queues;
mod deletions;
mod dispatch;
mod drivers;
mod durability;
mod error;
mod failure_row;
mod head;
mod health;
mod index;
mod mend;
mod message_store;
mod obstacle;
mod open_files;
mod options;
mod patience;
mod plugin;
mod read;
mod record_reader;
mod recovery;
mod retention;
mod room;
mod scan;
mod segment;
mod state_file;
pub(crate) mod threads;
mod unlike;

pub use audit::{
    AuditPart, AuditedRecord, DamagedRange, Finding, Findings, Grade, LogSummary, MissingQueue, QueueFiles,
    QueueSummary, Repaired, RetentionSummary, SET_ASIDE_FOLDER, StoreAudit, TagCode, audit, detect_lengths,
    keep_brokers_out, repair,
};
pub use clock::{ClockJumps, JUMP_MIN, JUMPS_MAX, LARGE_JUMP, LARGE_JUMP_LASTS};
pub use consume_queue::{QUEUE_ENTRY_BYTES, QueueEntry};
pub use error::{AppendError, StoreError};
pub(crate) use failure_row::FailureRow;
pub use mend::{MEND_BYTES_MAX, Mended};
pub use message_store::{Appended, ArrivalListener, DurableCallback, MessageStore};
pub use options::{FlushPolicy, StoreOptions};
pub use patience::READ_PATIENCE;
pub use plugin::{
    Admission, AdmitContext, Dispatched, Figure, FigureValue, Mark, NewRecords, Owed, Placement, Plugin, PluginError,
    Refusal, RefusalKind, SettingChange, StoreHandle,
};
pub use read::{Boundary, PullQuery, PullStatus, Pulled, Queried, QueueRange};
pub use record_reader::RecordReader;
pub use recovery::{GAPS_FILE, HOLES_FILE};
pub use state_file::{Loaded, StateFile};

#[cfg(test)]
mod tests;
