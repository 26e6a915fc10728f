//! Writing records.

use std::{
    net::{IpAddr, SocketAddr},
    ops::Range,
};

use bytes::BufMut;

use super::{
    RecordError,
    layout::{
        BODY_AT, FIXED_BYTES, HOST_V6_EXTRA_BYTES, MAGIC_V1, MAGIC_V2, PHYSICAL_OFFSET_AT, PREPARED_OFFSET_AT,
        PROPERTIES_BYTES_MAX, QUEUE_OFFSET_AT, STORED_AT_AT, SYS_FLAG_AT,
    },
    view::body_crc,
};
use crate::model::{
    DLQ_PREFIX, MessageDraft, PhysicalOffset, QueueOffset, RETRY_PREFIX, RETRY_TOPIC_BYTES_MAX, SysFlag,
    TOPIC_BYTES_MAX, Timestamp,
};

/// The head of a record, up to the body, with two IPv6 hosts.
const HEAD_BYTES_MAX: usize = BODY_AT + 2 * HOST_V6_EXTRA_BYTES;
/// The largest total: it is a signed 32-bit number.
const RECORD_BYTES_MAX: usize = i32::MAX as usize;

/// What a record learns only under the append lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Position in its queue.
    pub queue_offset: QueueOffset,
    /// Position in the commit log.
    pub physical_offset: PhysicalOffset,
    /// When it is stored.
    pub stored_at: Timestamp,
    /// The field RocketMQ calls prepared transaction offset.
    pub prepared_offset: i64,
}

/// Which version a draft needs, which hosts are IPv6, and how long the record is.
struct Shape {
    total_bytes: usize,
    version_2: bool,
    born_v6: bool,
    store_v6: bool,
}

impl Shape {
    fn of(draft: &MessageDraft) -> Result<Self, RecordError> {
        let topic_bytes = draft.topic.len();
        let long_allowed = draft.topic.starts_with(RETRY_PREFIX) || draft.topic.starts_with(DLQ_PREFIX);
        let topic_max = if long_allowed { RETRY_TOPIC_BYTES_MAX } else { TOPIC_BYTES_MAX };
        if topic_bytes == 0 {
            return Err(RecordError::TopicEmpty);
        }
        check("topic", topic_bytes, topic_max)?;
        check("properties", draft.properties.len(), PROPERTIES_BYTES_MAX)?;
        check("body", draft.body.len(), RECORD_BYTES_MAX)?;
        if i32::try_from(draft.queue_id.0).is_err() {
            return Err(RecordError::OutOfRange { field: "queue id", found: i64::from(draft.queue_id.0) });
        }

        let (born_v6, store_v6) = (draft.born_host.is_ipv6(), draft.store_host.is_ipv6());
        let version_2 = topic_bytes > TOPIC_BYTES_MAX;
        let total_bytes = FIXED_BYTES
            + usize::from(version_2)
            + HOST_V6_EXTRA_BYTES * (usize::from(born_v6) + usize::from(store_v6))
            + draft.body.len()
            + topic_bytes
            + draft.properties.len();
        check("record", total_bytes, RECORD_BYTES_MAX)?;
        Ok(Self { total_bytes, version_2, born_v6, store_v6 })
    }
}

/// How many bytes the record of a draft has.
///
/// # Errors
/// [`RecordError::TooLong`] if the body, the topic (127 bytes; 255 for a retry or dead-letter topic) or the properties (32,767 bytes) cannot
/// be stored, [`RecordError::TopicEmpty`], [`RecordError::OutOfRange`] for a queue id of 2³¹ or more.
pub fn encoded_bytes(draft: &MessageDraft) -> Result<usize, RecordError> {
    Shape::of(draft).map(|shape| shape.total_bytes)
}

/// Appends the record of a draft to `out` and says where in `out` it lies.
///
/// Queue offset, physical offset and store time are 0 until [`patch`] puts them in. The record is of version 2 if the topic has more than 127
/// bytes, else of version 1. The two IPv6 bits of the system flag follow the addresses, whatever the draft says.
///
/// # Errors
/// As [`encoded_bytes`]; `out` is unchanged then.
pub fn encode(draft: &MessageDraft, out: &mut Vec<u8>) -> Result<Range<usize>, RecordError> {
    let shape = Shape::of(draft)?;
    let start = out.len();
    out.reserve(shape.total_bytes);

    let mut flag = draft.sys_flag.0 & !(SysFlag::BORN_HOST_V6 | SysFlag::STORE_HOST_V6);
    if shape.born_v6 {
        flag |= SysFlag::BORN_HOST_V6;
    }
    if shape.store_v6 {
        flag |= SysFlag::STORE_HOST_V6;
    }

    let mut head = [0; HEAD_BYTES_MAX];
    let mut rest = &mut head[..];
    rest.put_u32(length_32(shape.total_bytes));
    rest.put_u32(if shape.version_2 { MAGIC_V2 } else { MAGIC_V1 });
    rest.put_u32(body_crc(&draft.body));
    rest.put_u32(draft.queue_id.0);
    rest.put_i32(draft.flag);
    rest.put_u64(0); // queue offset
    rest.put_u64(0); // physical offset
    rest.put_i32(flag);
    rest.put_i64(draft.born_at.0);
    put_host(&mut rest, draft.born_host);
    rest.put_i64(0); // store time
    put_host(&mut rest, draft.store_host);
    rest.put_i32(draft.reconsume_times);
    rest.put_i64(draft.prepared_offset);
    rest.put_u32(length_32(draft.body.len()));
    let head_bytes = HEAD_BYTES_MAX - rest.len();

    out.extend_from_slice(&head[..head_bytes]);
    out.extend_from_slice(&draft.body);
    if shape.version_2 {
        out.put_u16(length_16(draft.topic.len()));
    } else {
        out.put_u8(length_8(draft.topic.len()));
    }
    out.extend_from_slice(draft.topic.as_bytes());
    out.put_u16(length_16(draft.properties.len()));
    out.extend_from_slice(draft.properties.as_bytes());

    debug_assert_eq!(out.len() - start, shape.total_bytes, "the record has the length it says");
    Ok(start..start + shape.total_bytes)
}

/// Puts into a record what it learns under the append lock.
///
/// # Panics
/// If `record` is not what [`encode`] wrote: it is too short to have the fields.
pub fn patch(record: &mut [u8], place: &Place) {
    let flag = i32::from_be_bytes(field(record, SYS_FLAG_AT));
    let born_extra = if flag & SysFlag::BORN_HOST_V6 == 0 { 0 } else { HOST_V6_EXTRA_BYTES };
    let store_extra = if flag & SysFlag::STORE_HOST_V6 == 0 { 0 } else { HOST_V6_EXTRA_BYTES };
    put(record, QUEUE_OFFSET_AT, place.queue_offset.0.to_be_bytes());
    put(record, PHYSICAL_OFFSET_AT, place.physical_offset.0.to_be_bytes());
    put(record, STORED_AT_AT + born_extra, place.stored_at.0.to_be_bytes());
    put(record, PREPARED_OFFSET_AT + born_extra + store_extra, place.prepared_offset.to_be_bytes());
}

pub(super) fn check(field: &'static str, bytes: usize, max: usize) -> Result<(), RecordError> {
    if bytes > max { Err(RecordError::TooLong { field, bytes, max }) } else { Ok(()) }
}

fn put_host(out: &mut &mut [u8], host: SocketAddr) {
    match host.ip() {
        IpAddr::V4(address) => out.put_slice(&address.octets()),
        IpAddr::V6(address) => out.put_slice(&address.octets()),
    }
    out.put_u32(u32::from(host.port()));
}

fn put<const N: usize>(record: &mut [u8], at: usize, value: [u8; N]) {
    record[at..at + N].copy_from_slice(&value);
}

fn field<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&record[at..at + N]);
    value
}

// `Shape::of` has checked all lengths, so that none of these is ever cut.

fn length_32(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn length_16(bytes: usize) -> u16 {
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

fn length_8(bytes: usize) -> u8 {
    u8::try_from(bytes).unwrap_or(u8::MAX)
}
