//! Reading records.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::Range,
};

use bytes::Bytes;

use super::{
    MessageId, RecordError,
    layout::{
        BODY_AT, BODY_CRC_AT, BODY_LENGTH_AT, BORN_AT_AT, BORN_HOST_AT, FLAG_AT, HOST_V6_EXTRA_BYTES, MAGIC_AT,
        MAGIC_BLANK, MAGIC_V1, MAGIC_V2, PHYSICAL_OFFSET_AT, PREPARED_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT,
        RECONSUME_TIMES_AT, RECORD_BYTES_MIN, STORE_HOST_AT, STORED_AT_AT, SYS_FLAG_AT, TOTAL_AT,
    },
};
use crate::{
    model::{
        MessageDraft, PhysicalOffset, Properties, PropertiesView, QueueId, QueueOffset, SysFlag, Timestamp, Topic,
    },
    record::layout::BLANK_BYTES_MIN,
};

/// Name of the property that may hold a checksum of the whole record.
const PROPERTY_CRC: &[u8] = b"__CRC32#";
/// Bytes of that property: name, separator, ten digits, separator. It is the last one.
const PROPERTY_CRC_BYTES: usize = 20;

/// What begins at a position of a segment, by its first eight bytes alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// A record of so many bytes; [`RecordView::parse`] tells whether it is whole.
    Record {
        /// Its total.
        bytes: u32,
    },
    /// The blank at the end of a segment.
    Blank {
        /// Its total: all that is left of the segment.
        bytes: u32,
    },
    /// Neither: free space, a torn write or damage.
    Bad,
}

/// Tells a record from a blank by the eight bytes at the start of `bytes`. Whether the rest is there is not looked at.
pub fn kind(bytes: &[u8]) -> Frame {
    if bytes.len() < BLANK_BYTES_MIN {
        return Frame::Bad;
    }
    let total = i32_at(bytes, TOTAL_AT);
    let at_least = |min: usize| u32::try_from(total).ok().filter(|&total| total as usize >= min);
    let frame = match u32_at(bytes, MAGIC_AT) {
        MAGIC_V1 | MAGIC_V2 => at_least(RECORD_BYTES_MIN).map(|bytes| Frame::Record { bytes }),
        MAGIC_BLANK => at_least(BLANK_BYTES_MIN).map(|bytes| Frame::Blank { bytes }),
        _ => None,
    };
    frame.unwrap_or(Frame::Bad)
}

/// The checksum RocketMQ keeps of a body: CRC-32 (IEEE) without its highest bit; 0 for an empty body.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.common.UtilAll.crc32`.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

/// How long the length of the topic is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One byte; topics of at most 127 bytes.
    V1,
    /// Two bytes.
    V2,
}

/// Where the parts of one record lie; counted from its start.
#[derive(Debug, Clone, Copy)]
struct Parts {
    version: Version,
    /// How far an IPv6 born host moves the store time and what follows.
    born_extra: usize,
    /// How far both hosts together move what follows the store host.
    hosts_extra: usize,
    body_end: usize,
    topic_at: usize,
    topic_end: usize,
    total: usize,
}

impl Parts {
    fn of(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() < RECORD_BYTES_MIN {
            return Err(RecordError::Short { left: bytes.len() });
        }
        let version = match u32_at(bytes, MAGIC_AT) {
            MAGIC_V1 => Version::V1,
            MAGIC_V2 => Version::V2,
            found => return Err(RecordError::Magic { found }),
        };
        let said = i32_at(bytes, TOTAL_AT);
        let total = usize::try_from(said)
            .ok()
            .filter(|total| (RECORD_BYTES_MIN..=bytes.len()).contains(total))
            .ok_or(RecordError::Overrun { said, left: bytes.len() })?;
        let bytes = &bytes[..total];

        let flag = i32_at(bytes, SYS_FLAG_AT);
        let born_extra = if flag & SysFlag::BORN_HOST_V6 == 0 { 0 } else { HOST_V6_EXTRA_BYTES };
        let hosts_extra = born_extra + if flag & SysFlag::STORE_HOST_V6 == 0 { 0 } else { HOST_V6_EXTRA_BYTES };

        let body_at = BODY_AT + hosts_extra;
        if body_at > total {
            return Err(RecordError::Short { left: total });
        }
        let body_end = end(bytes, "body", body_at, i64::from(i32_at(bytes, BODY_LENGTH_AT + hosts_extra)))?;
        let (topic_at, topic_bytes) = match version {
            Version::V1 => (body_end + 1, i64::from(i8::from_be_bytes(array(bytes, "topic", body_end)?))),
            Version::V2 => (body_end + 2, i64::from(i16::from_be_bytes(array(bytes, "topic", body_end)?))),
        };
        let topic_end = end(bytes, "topic", topic_at, topic_bytes)?;
        let properties_bytes = i64::from(i16::from_be_bytes(array(bytes, "properties", topic_end)?));
        let properties_end = end(bytes, "properties", topic_end + 2, properties_bytes)?;
        if properties_end != total {
            return Err(RecordError::Total { said: total, found: properties_end });
        }
        Ok(Self { version, born_extra, hosts_extra, body_end, topic_at, topic_end, total })
    }

    fn body(self) -> Range<usize> {
        BODY_AT + self.hosts_extra..self.body_end
    }
}

/// One record, borrowed from the bytes it lies in. Cheap to copy.
#[derive(Clone, Copy)]
pub struct RecordView<'a> {
    bytes: &'a [u8],
    parts: Parts,
    topic: &'a str,
}

impl<'a> RecordView<'a> {
    /// Reads the record at the start of `bytes`, which may be longer than the record.
    ///
    /// Magic, total and all lengths are checked against each other; the body's checksum is not, see [`RecordView::body_is_sound`].
    ///
    /// # Errors
    /// What is wrong first, as a [`RecordError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RecordError> {
        let parts = Parts::of(bytes)?;
        let bytes = &bytes[..parts.total];
        not_negative("queue id", i64::from(i32_at(bytes, QUEUE_ID_AT)))?;
        not_negative("queue offset", i64_at(bytes, QUEUE_OFFSET_AT))?;
        not_negative("physical offset", i64_at(bytes, PHYSICAL_OFFSET_AT))?;
        let topic = std::str::from_utf8(&bytes[parts.topic_at..parts.topic_end]).map_err(|_| RecordError::TopicText)?;
        if topic.is_empty() {
            return Err(RecordError::TopicEmpty);
        }
        let view = Self { bytes, parts, topic };
        is_port("born host", port_of(view.born_host_bytes()))?;
        is_port("store host", port_of(view.store_host_bytes()))?;
        Ok(view)
    }

    /// The record's own bytes, nothing behind them.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The record's length.
    pub fn total_bytes(self) -> u32 {
        u32_at(self.bytes, TOTAL_AT)
    }

    /// Which version it is.
    pub fn version(self) -> Version {
        self.parts.version
    }

    /// The body's checksum as it stands in the record.
    pub fn body_crc(self) -> u32 {
        u32_at(self.bytes, BODY_CRC_AT)
    }

    /// The queue.
    pub fn queue_id(self) -> QueueId {
        QueueId(u32_at(self.bytes, QUEUE_ID_AT))
    }

    /// The application's own flag.
    pub fn flag(self) -> i32 {
        i32_at(self.bytes, FLAG_AT)
    }

    /// Position in the queue.
    pub fn queue_offset(self) -> QueueOffset {
        QueueOffset(u64_at(self.bytes, QUEUE_OFFSET_AT))
    }

    /// Position in the commit log, as it stands in the record.
    pub fn physical_offset(self) -> PhysicalOffset {
        PhysicalOffset(u64_at(self.bytes, PHYSICAL_OFFSET_AT))
    }

    /// The position in the commit log behind the record.
    pub fn end(self) -> PhysicalOffset {
        self.physical_offset().plus(u64::from(self.total_bytes()))
    }

    /// The system flag, IPv6 bits included.
    pub fn sys_flag(self) -> SysFlag {
        SysFlag(i32_at(self.bytes, SYS_FLAG_AT))
    }

    /// When the producer made the message.
    pub fn born_at(self) -> Timestamp {
        Timestamp(i64_at(self.bytes, BORN_AT_AT))
    }

    /// Where the producer was.
    pub fn born_host(self) -> SocketAddr {
        host(self.born_host_bytes())
    }

    fn born_host_bytes(self) -> &'a [u8] {
        &self.bytes[BORN_HOST_AT..STORED_AT_AT + self.parts.born_extra]
    }

    /// When the broker stored it.
    pub fn stored_at(self) -> Timestamp {
        Timestamp(i64_at(self.bytes, STORED_AT_AT + self.parts.born_extra))
    }

    /// The broker's address.
    pub fn store_host(self) -> SocketAddr {
        host(self.store_host_bytes())
    }

    fn store_host_bytes(self) -> &'a [u8] {
        &self.bytes[STORE_HOST_AT + self.parts.born_extra..RECONSUME_TIMES_AT + self.parts.hosts_extra]
    }

    /// How often consumers gave it back.
    pub fn reconsume_times(self) -> i32 {
        i32_at(self.bytes, RECONSUME_TIMES_AT + self.parts.hosts_extra)
    }

    /// The field RocketMQ calls prepared transaction offset.
    pub fn prepared_offset(self) -> i64 {
        i64_at(self.bytes, PREPARED_OFFSET_AT + self.parts.hosts_extra)
    }

    /// The body as stored, compressed or not.
    pub fn body(self) -> &'a [u8] {
        &self.bytes[self.parts.body()]
    }

    /// The topic.
    pub fn topic(self) -> &'a str {
        self.topic
    }

    /// The properties.
    pub fn properties(self) -> PropertiesView<'a> {
        PropertiesView::new(&self.bytes[self.parts.topic_end + 2..])
    }

    /// What lies before the body; the body; and what lies behind the topic: the length of the properties, and they.
    pub(super) fn around_topic(self) -> (&'a [u8], &'a [u8], &'a [u8]) {
        let body = self.parts.body();
        (&self.bytes[..body.start], &self.bytes[body], &self.bytes[self.parts.topic_end..])
    }

    /// How far an IPv6 born host moves the store time and what follows, and both hosts what follows the store host.
    pub(super) fn host_extras(self) -> (usize, usize) {
        (self.parts.born_extra, self.parts.hosts_extra)
    }

    /// The offset message id.
    pub fn message_id(self) -> MessageId {
        MessageId { store_host: self.store_host(), physical_offset: self.physical_offset() }
    }

    /// Whether the body has the checksum that stands in the record.
    pub fn body_is_sound(self) -> bool {
        body_crc(self.body()) == self.body_crc()
    }

    /// Whether the whole record has the checksum that stands in its last property, `__CRC32#`; `None` if there is none.
    ///
    /// Apache RocketMQ writes that property with `enabledAppendPropCRC`: the masked CRC-32 of all bytes before the property, ten decimal
    /// digits, the least significant first.
    pub fn property_crc_is_sound(self) -> Option<bool> {
        let properties = self.properties().as_bytes();
        let at = properties.len().checked_sub(PROPERTY_CRC_BYTES)?;
        let digits = properties[at..].strip_prefix(PROPERTY_CRC)?.strip_prefix(&[1])?.strip_suffix(&[2])?;
        let mut left = body_crc(&self.bytes[..self.bytes.len() - PROPERTY_CRC_BYTES]);
        Some(digits.iter().all(|&digit| {
            let wanted = b'0' + u8::try_from(left % 10).unwrap_or(0);
            left /= 10;
            digit == wanted
        }))
    }
}

impl fmt::Debug for RecordView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordView")
            .field("topic", &self.topic)
            .field("queue_id", &self.queue_id().0)
            .field("queue_offset", &self.queue_offset().0)
            .field("physical_offset", &self.physical_offset().0)
            .field("bytes", &self.bytes.len())
            .field("stored_at", &self.stored_at().0)
            .finish_non_exhaustive()
    }
}

/// One record that owns its bytes, as a rule a slice of the mapped log. Cheap to clone.
#[derive(Clone)]
pub struct Record {
    bytes: Bytes,
    parts: Parts,
    topic: Topic,
}

impl Record {
    /// Takes the record at the start of `bytes`, which may be longer than the record. The body is not copied.
    ///
    /// # Errors
    /// As [`RecordView::parse`].
    pub fn parse(bytes: &Bytes) -> Result<Self, RecordError> {
        let view = RecordView::parse(bytes)?;
        let (parts, topic) = (view.parts, Topic::from(view.topic));
        Ok(Self { bytes: bytes.slice(..parts.total), parts, topic })
    }

    /// For reading the fields.
    pub fn view(&self) -> RecordView<'_> {
        RecordView { bytes: &self.bytes, parts: self.parts, topic: &self.topic }
    }

    /// The record's own bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The body as stored; shares the record's memory.
    pub fn body(&self) -> Bytes {
        self.bytes.slice(self.parts.body())
    }

    /// The topic.
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// A draft with everything this record holds but its place; the body shares the record's memory.
    pub fn to_draft(&self) -> MessageDraft {
        let view = self.view();
        MessageDraft {
            topic: self.topic.clone(),
            queue_id: view.queue_id(),
            flag: view.flag(),
            sys_flag: view.sys_flag(),
            born_at: view.born_at(),
            born_host: view.born_host(),
            store_host: view.store_host(),
            reconsume_times: view.reconsume_times(),
            prepared_offset: view.prepared_offset(),
            properties: Properties::from_text(view.properties().as_bytes()),
            body: self.body(),
        }
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

/// The records of a pull reply: one behind the other, without count or separator. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Records {
    rest: Bytes,
}

impl Records {
    /// The records of this body.
    pub fn new(body: Bytes) -> Self {
        Self { rest: body }
    }
}

impl Iterator for Records {
    type Item = Result<Record, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = Record::parse(&self.rest);
        self.rest = match &record {
            Ok(record) => self.rest.slice(record.bytes.len()..),
            Err(_) => Bytes::new(),
        };
        Some(record)
    }
}

/// The end of a field of `said` bytes that starts at `at`.
fn end(bytes: &[u8], field: &'static str, at: usize, said: i64) -> Result<usize, RecordError> {
    let left = bytes.len().saturating_sub(at);
    match usize::try_from(said) {
        Ok(said) if said <= left => Ok(at + said),
        _ => Err(RecordError::Length { field, said, left }),
    }
}

fn array<const N: usize>(bytes: &[u8], field: &'static str, at: usize) -> Result<[u8; N], RecordError> {
    let too_short = || RecordError::Length { field, said: 0, left: bytes.len().saturating_sub(at) };
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().ok_or_else(too_short)
}

fn not_negative(field: &'static str, found: i64) -> Result<(), RecordError> {
    if found < 0 { Err(RecordError::OutOfRange { field, found }) } else { Ok(()) }
}

/// A host as it stands in a record: the address, then the port in four bytes. The port was looked at when the record was parsed.
fn host(bytes: &[u8]) -> SocketAddr {
    let address = match bytes.first_chunk::<16>() {
        Some(address) => IpAddr::V6(Ipv6Addr::from(*address)),
        None => IpAddr::V4(Ipv4Addr::from(fixed::<4>(bytes, 0))),
    };
    SocketAddr::new(address, u16::try_from(port_of(bytes)).unwrap_or(0))
}

fn port_of(host: &[u8]) -> i32 {
    i32_at(host, host.len() - 4)
}

fn is_port(field: &'static str, found: i32) -> Result<(), RecordError> {
    match u16::try_from(found) {
        Ok(_) => Ok(()),
        Err(_) => Err(RecordError::OutOfRange { field, found: i64::from(found) }),
    }
}

// The callers have made sure that the head of the record is there.

fn fixed<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

fn i32_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(fixed(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(fixed(bytes, at))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(fixed(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(fixed(bytes, at))
}
