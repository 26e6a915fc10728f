//! Topic names and what RocketMQ means by some of them.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

/// The topic in which delayed messages wait; queue id = level − 1.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// The topic that keeps what could never be delivered; queue id = level − 1.
pub const PARKING_TOPIC: &str = "rmq_sys_parked_delayed";
/// Prefix of the topic that carries a consumer group's retries.
pub const RETRY_PREFIX: &str = "%RETRY%";
/// Prefix of the topic that keeps a consumer group's dead letters.
pub const DLQ_PREFIX: &str = "%DLQ%";
/// Longest name of an ordinary topic in bytes; also the longest that a record of version 1 can hold.
pub const TOPIC_BYTES_MAX: usize = 127;
/// Longest name of a retry or dead-letter topic in bytes.
pub const RETRY_TOPIC_BYTES_MAX: usize = 255;

/// Names that every broker owns, besides those that begin with `rmq_sys_`.
const SYSTEM_TOPICS: [&str; 10] = [
    "TBW102",
    SCHEDULE_TOPIC,
    "BenchmarkTest",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
];

/// A topic's name. Cheap to clone.
#[derive(Clone)]
pub struct Topic(Name);

#[derive(Clone)]
enum Name {
    Static(&'static str),
    Shared(Arc<str>),
}

/// A queue of a topic, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QueueId(pub u32);

impl QueueId {
    /// Most queues of a topic, of another broker's store, too. No record has a queue id from here on.
    pub const COUNT_MAX: u32 = 65_536;
}

impl Topic {
    /// A topic of this name. The name is taken as it is; the broker checks names at its door.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(Name::Shared(name.into()))
    }

    /// A topic whose name is known at compile time; costs nothing.
    pub const fn from_static(name: &'static str) -> Self {
        Self(Name::Static(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Name::Static(name) => name,
            Name::Shared(name) => name,
        }
    }
}

impl PartialEq for Topic {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Topic {}

impl PartialOrd for Topic {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Topic {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for Topic {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl From<&str> for Topic {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl Deref for Topic {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Topic {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `%RETRY%group`.
pub fn retry_topic(group: &str) -> Topic {
    Topic::new(format!("{RETRY_PREFIX}{group}"))
}

/// `%DLQ%group`.
pub fn dlq_topic(group: &str) -> Topic {
    Topic::new(format!("{DLQ_PREFIX}{group}"))
}

/// Whether a topic of this name belongs to the broker rather than to a user.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.common.topic.TopicValidator`.
pub fn is_system_topic(name: &str) -> bool {
    name.starts_with("rmq_sys_") || SYSTEM_TOPICS.contains(&name)
}

/// Whether a topic may have this name: not empty, of letters, digits, `%`, `|`, `-` and `_`, and no longer than a record can hold.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.common.topic.TopicValidator`.
pub fn is_legal_topic(name: &str) -> bool {
    let is_long = name.starts_with(RETRY_PREFIX) || name.starts_with(DLQ_PREFIX);
    let max = if is_long { RETRY_TOPIC_BYTES_MAX } else { TOPIC_BYTES_MAX };
    (1..=max).contains(&name.len()) && name.bytes().all(is_name_byte)
}

/// Whether a byte may stand in the name of a topic or group.
pub fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'|' | b'_' | b'-')
}

/// Java's `String.hashCode`: 31·h + c over UTF-16 code units, wrapping at 32 bits.
pub fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_15_tag_hashes_equal_those_of_java() {
        assert_eq!(java_hash("TagA"), 2_598_919);
        assert_eq!(java_hash("订单"), 1_129_459);
        assert_eq!(i64::from(java_hash("polygenelubricants")), 0xFFFF_FFFF_8000_0000_u64.cast_signed());
        assert_eq!(java_hash(""), 0);
    }
}
