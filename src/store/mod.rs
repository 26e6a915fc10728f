//! The store: one append-only commit log, and what is derived from it.
//!
//! It knows no socket, no async code and no delay: what is above attaches as a [`Plugin`].

#[allow(dead_code, reason = "used by the store once its driver is there")]
mod checkpoint;
#[allow(dead_code, reason = "used by the store once its driver is there")]
mod consume_queue;
#[allow(dead_code, reason = "used by the store once its driver is there")]
mod consume_queues;
mod error;
mod message_store;
mod open_files;
mod options;
mod plugin;
mod state_file;

pub use consume_queue::{QUEUE_ENTRY_BYTES, QueueEntry};
pub use error::{AppendError, StoreError};
pub use message_store::{
    Appended, ArrivalListener, Boundary, DurableCallback, MessageStore, PullQuery, PullStatus, Pulled, Queried,
    QueueRange,
};
pub use options::{FlushPolicy, StoreOptions};
pub use plugin::{
    Admission, AdmitContext, Dispatched, Figure, FigureValue, Mark, Placement, Plugin, PluginError, Refusal,
    RefusalKind, SettingChange, StoreHandle,
};
pub use state_file::{Loaded, StateFile};
