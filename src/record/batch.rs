//! The body of a batch as a client sends it: many messages of one topic in one request.
//!
//! Repeated without padding, big-endian: total (4 bytes, itself included), magic (4), body CRC (4), flag (4), length of the body (4), body,
//! length of the properties (2), properties. Clients write 0 for magic and CRC; neither is looked at, as Apache RocketMQ does.
//!
//! Source: Apache RocketMQ, `org.apache.rocketmq.common.message.MessageDecoder.encodeMessage`.

use bytes::{Buf, BufMut, Bytes};

use super::layout::PROPERTIES_BYTES_MAX;

/// Total, magic, CRC, flag, length of the body.
const HEAD_BYTES: usize = 20;
/// Bytes of a member apart from body and properties.
const FIXED_BYTES: usize = HEAD_BYTES + 2;

/// One message of a batch. Topic, queue and born data are those of the request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BatchMember {
    /// The application's own flag.
    pub flag: i32,
    /// The body.
    pub body: Bytes,
    /// The encoded properties.
    pub properties: Bytes,
}

/// What is wrong with the body of a batch. Members are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// There is no message in it.
    #[error("the batch is empty")]
    Empty,
    /// A member's total is negative, too small, or more than what is left.
    #[error("message {member} of the batch says it has {said} bytes, but {left} are left")]
    Overrun {
        /// Which member.
        member: usize,
        /// The total as it stands there.
        said: i64,
        /// How many bytes are left of the batch.
        left: usize,
    },
    /// A length is negative or leads beyond the end of the member.
    #[error("length {said} of the {field} is more than the {left} bytes left of message {member} of the batch")]
    Length {
        /// Which member.
        member: usize,
        /// Which field: `body` or `properties`.
        field: &'static str,
        /// The length as it stands there.
        said: i64,
        /// How many bytes of the member are left for it.
        left: usize,
    },
    /// The total is not the sum of the parts.
    #[error("message {member} of the batch has {left} bytes behind its properties")]
    Total {
        /// Which member.
        member: usize,
        /// How many bytes are too many.
        left: usize,
    },
    /// A field is longer than the format can hold; only when writing.
    #[error(
        "length {bytes} of the {field} of message {member} of the batch is more than the {max} bytes that can be sent"
    )]
    TooLong {
        /// Which member.
        member: usize,
        /// Which field: `body` or `properties`.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest the format can hold.
        max: usize,
    },
}

/// Takes a batch apart. The members share the memory of `body`.
///
/// # Errors
/// The first thing that is wrong, with the member it is wrong in; then nothing of the batch counts.
pub fn decode_batch(body: &Bytes) -> Result<Vec<BatchMember>, BatchError> {
    let mut rest = body.clone();
    let mut members = Vec::new();
    while !rest.is_empty() {
        let member = members.len();
        let left = rest.len();
        if left < FIXED_BYTES {
            return Err(BatchError::Overrun { member, said: FIXED_BYTES as i64, left });
        }
        let said = (&rest[..4]).get_i32();
        let total = usize::try_from(said)
            .ok()
            .filter(|total| (FIXED_BYTES..=left).contains(total))
            .ok_or(BatchError::Overrun { member, said: i64::from(said), left })?;
        let mut message = rest.split_to(total);
        message.advance(12);
        let flag = message.get_i32();
        let body_bytes = message.get_i32();
        // Two bytes stay for the length of the properties.
        let body = take(&mut message, member, "body", i64::from(body_bytes), 2)?;
        let properties_bytes = message.get_i16();
        let properties = take(&mut message, member, "properties", i64::from(properties_bytes), 0)?;
        if !message.is_empty() {
            return Err(BatchError::Total { member, left: message.len() });
        }
        members.push(BatchMember { flag, body, properties });
    }
    if members.is_empty() { Err(BatchError::Empty) } else { Ok(members) }
}

/// Puts a batch together as a client does.
///
/// # Errors
/// [`BatchError::Empty`] without members, [`BatchError::TooLong`].
pub fn encode_batch(members: &[BatchMember]) -> Result<Bytes, BatchError> {
    if members.is_empty() {
        return Err(BatchError::Empty);
    }
    let mut out = Vec::with_capacity(
        members.iter().map(|member| FIXED_BYTES + member.body.len() + member.properties.len()).sum(),
    );
    for (member, message) in members.iter().enumerate() {
        let (body, properties) = (&message.body, &message.properties);
        let total = i32::try_from(FIXED_BYTES + body.len() + properties.len());
        let body_max = i32::MAX as usize - FIXED_BYTES - PROPERTIES_BYTES_MAX;
        let properties_bytes = i16::try_from(properties.len()).map_err(|_| BatchError::TooLong {
            member,
            field: "properties",
            bytes: properties.len(),
            max: PROPERTIES_BYTES_MAX,
        })?;
        let (Ok(total), Ok(body_bytes)) = (total, i32::try_from(body.len())) else {
            return Err(BatchError::TooLong { member, field: "body", bytes: body.len(), max: body_max });
        };
        out.put_i32(total);
        out.put_i32(0); // magic
        out.put_i32(0); // body CRC
        out.put_i32(message.flag);
        out.put_i32(body_bytes);
        out.put_slice(body);
        out.put_i16(properties_bytes);
        out.put_slice(properties);
    }
    Ok(out.into())
}

/// Splits `said` bytes off the message, as long as `keep` bytes stay.
fn take(message: &mut Bytes, member: usize, field: &'static str, said: i64, keep: usize) -> Result<Bytes, BatchError> {
    let left = message.len().saturating_sub(keep);
    match usize::try_from(said) {
        Ok(bytes) if bytes <= left => Ok(message.split_to(bytes)),
        _ => Err(BatchError::Length { member, field, said, left }),
    }
}
