//! What a client may ask: sending, pulling, offsets, topics, groups, retries, locks and the questions of tools.
//!
//! It sees the store and no delay: a delayed message is to it a send whose record lies elsewhere, until the store says that a message
//! arrived.

mod admin;
mod audit;
mod blocking;
#[expect(clippy::module_inception, reason = "the broker itself, beside its parts")]
mod broker;
mod clients;
mod configuration;
mod consumers;
mod failure;
mod groups;
mod heartbeat;
mod locks;
mod offsets;
mod options;
mod producers;
mod pull;
mod pull_hold;
mod query;
mod registration;
mod router;
mod send;
mod send_back;
mod subscription;
mod table_file;
mod topics;
mod unique_key;

pub use audit::{IsTable, audit_tables};
pub use broker::Broker;
pub use configuration::{Change, ChangeError, ChangedKey, Configuration};
pub use options::{BrokerOptions, perm};
pub use registration::{Announcement, Registry};
pub use router::SUPPORTED_CODES;
use subscription::Subscription;
pub use topics::{Resolved, Topics};
