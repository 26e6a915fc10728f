//! A message on its way into the log.

use std::net::SocketAddr;

use bytes::Bytes;

use super::{Properties, QueueId, Timestamp, Topic};

/// A message before the commit log gave it a place: everything a record holds but its offsets and its store time.
#[derive(Debug, Clone)]
pub struct MessageDraft {
    /// The topic whose queue the record goes to.
    pub topic: Topic,
    /// The queue within the topic.
    pub queue_id: QueueId,
    /// The producer's own flag; kept, never looked at.
    pub flag: i32,
    /// Compression, transaction type and more, see [`SysFlag`]. The two IPv6 bits are set by the encoder.
    pub sys_flag: SysFlag,
    /// When the producer made the message, by its own clock.
    pub born_at: Timestamp,
    /// Where the producer is.
    pub born_host: SocketAddr,
    /// The broker's advertised address; part of the message id.
    pub store_host: SocketAddr,
    /// How often consumers gave the message back.
    pub reconsume_times: i32,
    /// The header field RocketMQ calls prepared transaction offset. 0 but in records of a plugin.
    pub prepared_offset: i64,
    /// Names and values, the producer's and the broker's.
    pub properties: Properties,
    /// The body as the producer sent it, compressed or not.
    pub body: Bytes,
}

/// The bits of a record that concern the system rather than the application.
///
/// 0x1 body compressed, 0x2 multiple tags, 0xC transaction type, 0x10 born host is IPv6, 0x20 store host is IPv6,
/// 0x40 and 0x80 inner batch, 0x700 compression type.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.common.sysflag.MessageSysFlag`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SysFlag(pub i32);

impl SysFlag {
    /// The body is compressed.
    pub const COMPRESSED: i32 = 0x1;
    /// Mask of the transaction type.
    pub const TRANSACTION: i32 = 0xC;
    /// Transaction type of a half message.
    pub const PREPARED: i32 = 0x4;
    /// Transaction type of a committed message.
    pub const COMMIT: i32 = 0x8;
    /// Transaction type of a message that was rolled back.
    pub const ROLLBACK: i32 = 0xC;
    /// The born host takes 16 bytes.
    pub const BORN_HOST_V6: i32 = 0x10;
    /// The store host takes 16 bytes.
    pub const STORE_HOST_V6: i32 = 0x20;

    /// The body is a batch that the broker took whole; set by brokers only.
    pub const INNER_BATCH: i32 = 0x80;
    /// A reader is to take the batch apart; set by brokers only.
    pub const NEED_UNWRAP: i32 = 0x40;

    /// The flags that are not a client's to set: how hosts are written, and the broker's own kind of batch.
    pub const OF_THE_BROKER: i32 = Self::BORN_HOST_V6 | Self::STORE_HOST_V6 | Self::INNER_BATCH | Self::NEED_UNWRAP;

    /// The two bits of the transaction type.
    #[must_use]
    pub fn transaction(self) -> i32 {
        self.0 & Self::TRANSACTION
    }

    /// Whether the record goes into a queue: half messages and rolled back ones do not.
    #[must_use]
    pub fn is_queued(self) -> bool {
        !matches!(self.transaction(), Self::PREPARED | Self::ROLLBACK)
    }
}
