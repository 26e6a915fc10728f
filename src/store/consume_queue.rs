//! The index of one queue: fixed-size entries that say where its messages lie in the commit log.

use crate::model::PhysicalOffset;

/// Bytes of an entry.
pub const QUEUE_ENTRY_BYTES: u64 = 20;

/// One entry of a consume queue: where a message lies in the commit log.
///
/// 20 bytes, big-endian: physical offset (8), record size in bytes (4), tag code (8). In the schedule topic the tag code is the deliver time
/// in milliseconds since the epoch.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.store.ConsumeQueue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueEntry {
    /// First byte of the record.
    pub position: PhysicalOffset,
    /// Length of the record.
    pub bytes: u32,
    /// Hash of the tag, or what a plugin put there.
    pub tag_code: i64,
}
