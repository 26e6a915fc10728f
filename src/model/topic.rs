//! Topic names and what RocketMQ means by some of them.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

use super::swar::eight;

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
    java_hash_on(0, text.as_bytes()).unwrap_or(0)
}

/// As [`java_hash`], of a text that follows one of this hash; `None` if it is not UTF-8.
pub(crate) fn java_hash_on(hash: i32, text: &[u8]) -> Option<i32> {
    const EIGHT: u32 = 31u32.wrapping_pow(8);
    let (words, rest) = text.as_chunks::<8>();
    let (mut ascii, mut seen) = (hash.cast_unsigned(), 0);
    for word in words {
        let word = u64::from_le_bytes(*word);
        seen |= word;
        ascii = ascii.wrapping_mul(EIGHT).wrapping_add(java_hash_of_eight(word));
    }
    for &byte in rest {
        seen |= u64::from(byte);
        ascii = ascii.wrapping_mul(31).wrapping_add(u32::from(byte));
    }
    if seen & eight(0x80) == 0 {
        return Some(ascii.cast_signed());
    }
    let units = std::str::from_utf8(text).ok()?.encode_utf16();
    Some(units.fold(hash, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit))))
}

/// The hash of eight ASCII characters, the first in the lowest byte: of pairs, of fours, of all.
fn java_hash_of_eight(word: u64) -> u32 {
    const ODD: u64 = 0x00FF_00FF_00FF_00FF;
    const ODD_PAIRS: u64 = 0x0000_FFFF_0000_FFFF;
    let pairs = (word & ODD) * 31 + (word >> 8 & ODD);
    let fours = (pairs & ODD_PAIRS) * 31u64.pow(2) + (pairs >> 16 & ODD_PAIRS);
    (fours as u32).wrapping_mul(31u32.pow(4)).wrapping_add((fours >> 32) as u32)
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

    #[test]
    fn a_hash_by_eights_is_that_of_one_character_after_the_other() {
        let slow = |text: &str| {
            text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
        };
        for text in
            ["", "1234567", "12345678", "~~~~~~~~~~~~~~~~", "7F000001000A2A139E28512B00000040", "abcdefgh订单ij"]
        {
            assert_eq!(java_hash(text), slow(text), "{text}");
            let (front, back) = text.split_at(text.len() / 2 - text.len() / 2 % 8);
            assert_eq!(java_hash_on(java_hash(front), back.as_bytes()), Some(slow(text)), "{text}");
        }
        assert_eq!(java_hash_on(0, b"12345678\xFF"), None);
    }
}
