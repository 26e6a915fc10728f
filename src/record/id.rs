//! The name a broker gives a record.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use crate::model::PhysicalOffset;

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
/// Digits with an IPv4 store host: address 4 bytes, port 4, offset 8.
const DIGITS_V4: usize = 32;
/// Digits with an IPv6 store host: address 16 bytes, port 4, offset 8.
const DIGITS_V6: usize = 56;

/// The offset message id: which broker has the record, and where in its commit log.
///
/// As text: upper-case hex of the store host's address (4 or 16 bytes), its port (4 bytes) and the physical offset (8 bytes): 32 or 56
/// digits. Lower-case digits are read as well.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.common.message.MessageDecoder.createMessageId`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageId {
    /// The broker's advertised address.
    pub store_host: SocketAddr,
    /// Where the record begins.
    pub physical_offset: PhysicalOffset,
}

/// Why a text is not an offset message id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageIdError {
    /// It has neither 32 nor 56 digits.
    #[error("an offset message id has {DIGITS_V4} or {DIGITS_V6} hex digits, not {found}")]
    Length {
        /// How many bytes the text has.
        found: usize,
    },
    /// A character is not a hex digit.
    #[error("an offset message id has only hex digits, not the one at position {at}")]
    Digit {
        /// Its position, counted from 0.
        at: usize,
    },
    /// The port is beyond 65535.
    #[error("port {found} of an offset message id is out of range")]
    Port {
        /// What stands there.
        found: u32,
    },
    /// The offset is negative.
    #[error("the offset of an offset message id is negative")]
    Offset,
}

impl MessageId {
    /// Most bytes of the text.
    pub const DIGITS_MAX: usize = DIGITS_V6;

    /// Writes the text into `out` and gives it.
    pub fn write<'t>(&self, out: &'t mut [u8; Self::DIGITS_MAX]) -> &'t str {
        let mut end = 0;
        let mut put = |bytes: &[u8]| {
            for (byte, digits) in bytes.iter().zip(out[end..].as_chunks_mut::<2>().0) {
                *digits = [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
            }
            end += 2 * bytes.len();
        };
        match self.store_host.ip() {
            IpAddr::V4(address) => put(&address.octets()),
            IpAddr::V6(address) => put(&address.octets()),
        }
        put(&u32::from(self.store_host.port()).to_be_bytes());
        put(&self.physical_offset.0.to_be_bytes());
        std::str::from_utf8(&out[..end]).unwrap_or_default()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.write(&mut [0; DIGITS_V6]))
    }
}

impl FromStr for MessageId {
    type Err = MessageIdError;

    fn from_str(text: &str) -> Result<Self, MessageIdError> {
        if text.len() != DIGITS_V4 && text.len() != DIGITS_V6 {
            return Err(MessageIdError::Length { found: text.len() });
        }
        if let Some(at) = text.bytes().position(|digit| !digit.is_ascii_hexdigit()) {
            return Err(MessageIdError::Digit { at });
        }
        let (address, rest) = text.split_at(text.len() - 24);
        let (port, offset) = rest.split_at(8);
        let address = number(address);
        let address = if text.len() == DIGITS_V4 {
            IpAddr::V4(Ipv4Addr::from(u32::try_from(address).unwrap_or(0)))
        } else {
            IpAddr::V6(Ipv6Addr::from(address))
        };
        let port = u32::try_from(number(port)).unwrap_or(u32::MAX);
        let port = u16::try_from(port).map_err(|_| MessageIdError::Port { found: port })?;
        let offset = i64::try_from(number(offset)).map_err(|_| MessageIdError::Offset)?;
        Ok(Self { store_host: SocketAddr::new(address, port), physical_offset: PhysicalOffset(offset.unsigned_abs()) })
    }
}

/// The value of at most 32 hex digits.
fn number(digits: &str) -> u128 {
    u128::from_str_radix(digits, 16).unwrap_or(0)
}
