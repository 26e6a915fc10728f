//! Values that obey their own rules. Nothing here reads a clock, a file or a socket.

mod delay_text;
mod message;
mod offset;
pub(crate) mod pieces;
mod properties;
pub(crate) mod swar;
mod timestamp;
mod topic;

pub use delay_text::{DelayText, DelayTextError};
pub use message::{MessageDraft, SysFlag};
pub use offset::{PhysicalOffset, QueueOffset};
pub use properties::{Properties, PropertiesView, names};
pub use timestamp::Timestamp;
pub(crate) use topic::java_hash_on;
pub use topic::{
    DLQ_PREFIX, PARKING_TOPIC, QueueId, RETRY_PREFIX, RETRY_TOPIC_BYTES_MAX, SCHEDULE_TOPIC, TOPIC_BYTES_MAX, Topic,
    dlq_topic, is_legal_topic, is_name_byte, is_system_topic, java_hash, retry_topic,
};
