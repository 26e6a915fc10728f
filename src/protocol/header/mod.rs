//! Typed headers: the ext fields of the requests served here, and of their responses.
//!
//! `decode` names the first field that is missing or wrong.

mod client;
mod namesrv;
mod offset;
mod pull;
mod query;
mod retry;
mod send;
mod topic;

pub use client::{ConsumerGroupHeader, HeartbeatReplyHeader, UnregisterClientHeader};
pub use namesrv::{
    BrokerHeader, ClusterHeader, KvHeader, KvValueHeader, NamespaceHeader, QueryDataVersionReplyHeader,
    RegisterBrokerHeader, RegisterBrokerReplyHeader, RouteHeader,
};
pub use offset::{
    EarliestTimeReplyHeader, OffsetReplyHeader, QueryConsumerOffsetHeader, QueueHeader, SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
};
pub use pull::{PullHeader, PullReplyHeader, pull_flag};
pub use query::{QueryMessageHeader, QueryMessageReplyHeader, UNIQUE_KEY_QUERY, ViewMessageHeader};
pub use retry::SendBackHeader;
pub use send::{SendHeader, SendReplyHeader};
pub use topic::{CreateTopicHeader, DeleteGroupHeader, GroupHeader, TopicHeader};

/// Gives a struct the pair of functions between its fields and ext fields of the given names.
macro_rules! codec {
    ($type:ident, $decode:ident, $encode:ident { $($field:ident = $name:literal,)* }) => {
        impl $type {
            /// Reads the header from ext fields.
            ///
            /// # Errors
            /// A field that must be there is missing, or one does not hold what it must.
            pub fn $decode(ext: &$crate::protocol::ExtFields) -> Result<Self, $crate::protocol::HeaderError> {
                let [$($field),*] = ext.values(&[$($name),*]);
                Ok($type { $($field: $crate::protocol::ExtValue::read($name, $field)?,)* })
            }

            /// Writes the header as ext fields.
            pub fn $encode(&self) -> $crate::protocol::ExtFields {
                let mut ext = $crate::protocol::ExtFields::with_capacity([$($name),*].len());
                $($crate::protocol::ExtValue::write(&self.$field, $name, &mut ext);)*
                ext
            }
        }
    };
}

/// Defines a header: each field with its type and its name on the wire. `Option` marks fields that may be absent.
macro_rules! header {
    ($(#[$doc:meta])* $type:ident { $($(#[$field_doc:meta])* $field:ident: $value:ty = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $type {
            $($(#[$field_doc])* pub $field: $value,)*
        }

        $crate::protocol::header::codec!($type, decode, encode { $($field = $name,)* });
    };
}

use {codec, header};

#[cfg(test)]
mod tests;
