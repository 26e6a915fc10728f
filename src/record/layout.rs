//! Where each field of a record lies.
//!
//! All numbers are big-endian and signed. Positions hold for two IPv4 hosts; an IPv6 born host moves what follows it by 12 bytes, an IPv6
//! store host by another 12.
//!
//! | # | position | bytes | field |
//! | --- | --- | --- | --- |
//! | 1 | 0 | 4 | total: bytes of the record, this field included |
//! | 2 | 4 | 4 | magic: [`MAGIC_V1`], [`MAGIC_V2`] or [`MAGIC_BLANK`] |
//! | 3 | 8 | 4 | body CRC: CRC-32 (IEEE) of the body as stored, `& 0x7FFF_FFFF`; 0 for an empty body |
//! | 4 | 12 | 4 | queue id |
//! | 5 | 16 | 4 | flag, the application's own |
//! | 6 | 20 | 8 | queue offset, in messages |
//! | 7 | 28 | 8 | physical offset of this record |
//! | 8 | 36 | 4 | system flag, see [`SysFlag`](crate::model::SysFlag) |
//! | 9 | 40 | 8 | born time, ms since the epoch |
//! | 10 | 48 | 8 or 20 | born host: 4 or 16 bytes of address, then 4 bytes of port |
//! | 11 | 56 | 8 | store time, ms since the epoch |
//! | 12 | 64 | 8 or 20 | store host, same form |
//! | 13 | 72 | 4 | reconsume times |
//! | 14 | 76 | 8 | prepared transaction offset |
//! | 15 | 84 | 4 + n | length of the body, body |
//! | 16 | 88 + body | 1 + n or 2 + n | length of the topic (1 byte in version 1, 2 in version 2), topic in UTF-8 |
//! | 17 | | 2 + n | length of the properties, properties |
//!
//! Version 2 is used only for topics longer than 127 bytes, which only retry and dead-letter topics may be.
//!
//! The blank at the end of a segment: total (4 bytes, all that is left of the segment), [`MAGIC_BLANK`], then anything. A record of length L goes
//! into a segment only if L + [`BLANK_BYTES_MIN`] bytes are left.
//!
//! Source: Apache RocketMQ, `org.apache.rocketmq.store.CommitLog`, `org.apache.rocketmq.common.message.MessageDecoder`.

/// Magic of a record with a topic of at most 127 bytes.
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
/// Magic of a record with a topic of more than 127 bytes; known to Apache RocketMQ since 5.1.0.
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// Magic of the blank that ends a segment.
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;

/// Shortest blank in bytes; every full segment ends with one.
pub const BLANK_BYTES_MIN: usize = 8;
/// Bytes of a version 1 record with two IPv4 hosts, apart from body, topic and properties.
pub const FIXED_BYTES: usize = 91;
/// Shortest record: version 1, IPv4 hosts, no body, no properties, a topic of one byte.
pub const RECORD_BYTES_MIN: usize = FIXED_BYTES + 1;
/// How many bytes an IPv6 host takes more than an IPv4 host.
pub const HOST_V6_EXTRA_BYTES: usize = 12;
/// Longest encoded properties in bytes: their length is a signed 16-bit number.
pub const PROPERTIES_BYTES_MAX: usize = 32_767;

/// Position of the total.
pub const TOTAL_AT: usize = 0;
/// Position of the magic.
pub const MAGIC_AT: usize = 4;
/// Position of the body CRC.
pub const BODY_CRC_AT: usize = 8;
/// Position of the queue id.
pub const QUEUE_ID_AT: usize = 12;
/// Position of the flag.
pub const FLAG_AT: usize = 16;
/// Position of the queue offset.
pub const QUEUE_OFFSET_AT: usize = 20;
/// Position of the physical offset.
pub const PHYSICAL_OFFSET_AT: usize = 28;
/// Position of the system flag.
pub const SYS_FLAG_AT: usize = 36;
/// Position of the born time.
pub const BORN_AT_AT: usize = 40;
/// Position of the born host.
pub const BORN_HOST_AT: usize = 48;
/// Position of the store time behind an IPv4 born host.
pub const STORED_AT_AT: usize = 56;
/// Position of the store host behind an IPv4 born host.
pub const STORE_HOST_AT: usize = 64;
/// Position of the reconsume times behind two IPv4 hosts.
pub const RECONSUME_TIMES_AT: usize = 72;
/// Position of the prepared transaction offset behind two IPv4 hosts.
pub const PREPARED_OFFSET_AT: usize = 76;
/// Position of the body's length behind two IPv4 hosts.
pub const BODY_LENGTH_AT: usize = 84;
/// Position of the body behind two IPv4 hosts: the length of the head.
pub const BODY_AT: usize = 88;
