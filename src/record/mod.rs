//! The message record: the same bytes in the commit log, in a pull reply and in the answer to a query.
//!
//! This module turns a [`MessageDraft`](crate::model::MessageDraft) into bytes and bytes into a [`RecordView`]. It knows neither files nor
//! time: where a record lies and when it was stored is put in later by [`patch`].
//!
//! | to | use |
//! | --- | --- |
//! | write a record | [`encoded_bytes`], [`encode`], then [`patch`] under the append lock |
//! | write one once more | [`readdress`], then [`patch`] |
//! | walk a segment | [`kind`] tells a record from the blank at the end of a segment by eight bytes |
//! | read a record | [`RecordView`] borrows, [`Record`] owns (a slice of the mapped log, nothing is copied) |
//! | read a pull reply | [`Records`] |
//! | name a record | [`MessageId`] |
//! | read and write a client's batch | [`decode_batch`], [`encode_batch`] |
//! | end a segment | [`blank`] |
//!
//! The bytes are described in [`layout`]. Invariants: whatever [`RecordView::parse`] accepts has every length within its record, a total
//! equal to the sum of its parts, a topic in UTF-8 and offsets that are not negative. Bytes of any kind lead to an error, never to a panic.

mod batch;
mod blank;
mod encode;
mod id;
pub mod layout;
mod readdress;
mod view;

pub use batch::{BatchError, BatchMember, decode_batch, encode_batch};
pub use blank::blank;
pub use encode::{Place, encode, encoded_bytes, patch};
pub use id::{MessageId, MessageIdError};
pub use readdress::readdress;
pub use view::{Frame, Record, RecordView, Records, Version, body_crc, kind};

/// Why bytes are not a record, or why a draft cannot become one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Fewer bytes than the shortest record has.
    #[error("only {left} bytes are left, fewer than the shortest record has")]
    Short {
        /// How many there are.
        left: usize,
    },
    /// The second field is none of the two magics of a record.
    #[error("magic {found:#010x} is not that of a record")]
    Magic {
        /// What stands there.
        found: u32,
    },
    /// The total is negative, too small, or more than what is left.
    #[error("the record says it has {said} bytes, but {left} are left")]
    Overrun {
        /// The total as it stands in the record.
        said: i32,
        /// How many bytes there are.
        left: usize,
    },
    /// A length is negative or leads beyond the end of the record.
    #[error("length {said} of the {field} is more than the {left} bytes left of the record")]
    Length {
        /// Which field: `body`, `topic` or `properties`.
        field: &'static str,
        /// The length as it stands in the record.
        said: i64,
        /// How many bytes of the record are left for it.
        left: usize,
    },
    /// The total is not the sum of the parts.
    #[error("the record says it has {said} bytes, but its parts have {found}")]
    Total {
        /// The total as it stands in the record.
        said: usize,
        /// The sum of the parts.
        found: usize,
    },
    /// A number that cannot be negative is, or a port is beyond 65535.
    #[error("{field} {found} is out of range")]
    OutOfRange {
        /// Which field.
        field: &'static str,
        /// What stands there.
        found: i64,
    },
    /// The topic is empty.
    #[error("the topic is empty")]
    TopicEmpty,
    /// The topic is not UTF-8.
    #[error("the topic is not UTF-8")]
    TopicText,
    /// A field is longer than the format can hold.
    #[error("length {bytes} of the {field} is more than the {max} bytes that can be stored")]
    TooLong {
        /// Which field: `body`, `topic`, `properties` or `record`.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest the format can hold.
        max: usize,
    },
}

#[cfg(test)]
mod tests;
