//! What a client may ask: sending, pulling, offsets, topics, groups, retries, locks and the questions of tools.
//!
//! It sees the store and no delay: a delayed message is to it a send whose record lies elsewhere, until the store says that a message
//! arrived.

mod options;

pub use options::{BrokerOptions, perm};
