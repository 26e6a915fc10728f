//! The store: one append-only commit log, and what is derived from it.
//!
//! It knows no socket, no async code and no delay: what is above attaches as a [`Plugin`].

mod consume_queue;
mod error;
mod message_store;
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
