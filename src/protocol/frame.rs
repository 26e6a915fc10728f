//! The frame: how commands follow each other on a connection.
//!
//! ```text
//! offset size  field
//! 0      4     frame length = 4 + H + B, without these four bytes; big-endian
//! 4      1     encoding of the header: 0 JSON, 1 binary
//! 5      3     H, header length, unsigned
//! 8      H     header
//! 8+H    B     body
//! ```
//!
//! Source: Apache RocketMQ, `org.apache.rocketmq.remoting.netty.NettyDecoder`, `RemotingCommand`.

use bytes::{Buf, BufMut, BytesMut};

use super::command::{Body, Command, Encoding};
use super::ext::EXT_FIELDS_MAX;
use super::{binary_header, json_header};

/// Longest frame, its four length bytes included: 16 MiB, as in RocketMQ.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Length field, encoding byte and header length.
const PREFIX_BYTES: usize = 8;
/// Longest header that the three-byte field can tell.
const HEADER_BYTES_MAX: usize = 0xFF_FFFF;

/// Bytes that are no frame, or a command that fits into none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is longer than [`FRAME_BYTES_MAX`].
    #[error("a frame of {bytes} bytes is longer than {FRAME_BYTES_MAX}")]
    TooLong {
        /// Length of the whole frame.
        bytes: u64,
    },
    /// The peer starts a TLS handshake.
    #[error("the peer speaks TLS, which this port does not")]
    Tls,
    /// The frame is too short for the header length field.
    #[error("the frame length {said} leaves no room for a header length")]
    TooShort {
        /// The length field.
        said: u32,
    },
    /// The encoding byte is neither 0 nor 1.
    #[error("unknown header encoding {0}")]
    UnknownEncoding(u8),
    /// The header is longer than its frame.
    #[error("a header of {header} bytes does not fit a frame of length {frame}")]
    HeaderOverrun {
        /// Announced length of the header.
        header: u32,
        /// Announced length of the frame.
        frame: u32,
    },
    /// The header is not what its encoding says.
    #[error("bad header at byte {at}: {reason}")]
    Header {
        /// Position within the header.
        at: usize,
        /// What was wrong there.
        reason: &'static str,
    },
    /// More ext fields than [`EXT_FIELDS_MAX`].
    #[error("more than {EXT_FIELDS_MAX} ext fields")]
    TooManyFields,
    /// A field name is longer than the binary header can tell.
    #[error("a field name of {bytes} bytes does not fit a binary header")]
    NameTooLong {
        /// Length of the name.
        bytes: usize,
    },
}

/// Takes the next command off the front of `input`; `None` when it does not hold a whole frame yet.
///
/// What can be judged is judged as soon as it is there, so a frame that is too long is refused by its first four bytes.
/// Never reserves memory for bytes that have not come. After an error `input` is of no further use.
///
/// # Errors
/// The bytes are no frame; the connection has to be closed, since nothing tells where the next one begins.
pub fn decode(input: &mut BytesMut) -> Result<Option<Command>, FrameError> {
    let Some((length, rest)) = input.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let frame = u32::from_be_bytes(*length);
    if u64::from(frame) + 4 > FRAME_BYTES_MAX as u64 {
        return Err(if length[..2] == [0x16, 0x03] {
            FrameError::Tls
        } else {
            FrameError::TooLong { bytes: u64::from(frame) + 4 }
        });
    }
    if frame < 4 {
        return Err(FrameError::TooShort { said: frame });
    }
    let Some(&[kind, h0, h1, h2]) = rest.first_chunk::<4>() else {
        return match rest.first() {
            Some(&kind) => encoding(kind).map(|_| None),
            None => Ok(None),
        };
    };
    let encoding = encoding(kind)?;
    let header = u32::from_be_bytes([0, h0, h1, h2]);
    if header > frame - 4 {
        return Err(FrameError::HeaderOverrun { header, frame });
    }
    let total = frame as usize + 4;
    if input.len() < total {
        return Ok(None);
    }
    let mut frame = input.split_to(total).freeze();
    frame.advance(PREFIX_BYTES);
    let header = frame.split_to(header as usize);
    let mut command = match encoding {
        Encoding::Json => json_header::decode(header)?,
        Encoding::Binary => binary_header::decode(&header)?,
    };
    command.body = Body::from(frame);
    Ok(Some(command))
}

/// Appends the frame of `command` up to its body; the body's slices have to follow it.
///
/// # Errors
/// The command does not fit a frame; nothing is appended.
pub fn encode(command: &Command, output: &mut BytesMut) -> Result<(), FrameError> {
    let start = output.len();
    output.put_bytes(0, PREFIX_BYTES);
    let kind = match command.encoding {
        Encoding::Json => {
            json_header::encode(command, output);
            0
        }
        Encoding::Binary => {
            if let Err(error) = binary_header::encode(command, output) {
                output.truncate(start);
                return Err(error);
            }
            1
        }
    };
    let header = output.len() - start - PREFIX_BYTES;
    let total = PREFIX_BYTES + header + command.body.len();
    if header > HEADER_BYTES_MAX || total > FRAME_BYTES_MAX {
        output.truncate(start);
        return Err(FrameError::TooLong { bytes: total as u64 });
    }
    let mut prefix = &mut output[start..];
    prefix.put_u32((total - 4) as u32);
    prefix.put_u32(kind << 24 | header as u32);
    Ok(())
}

/// The whole frame of `command` in one piece, body copied.
///
/// # Errors
/// As [`encode`].
pub fn encode_whole(command: &Command) -> Result<BytesMut, FrameError> {
    let mut output = BytesMut::new();
    encode(command, &mut output)?;
    for slice in command.body.slices() {
        output.extend_from_slice(slice);
    }
    Ok(output)
}

fn encoding(kind: u8) -> Result<Encoding, FrameError> {
    match kind {
        0 => Ok(Encoding::Json),
        1 => Ok(Encoding::Binary),
        _ => Err(FrameError::UnknownEncoding(kind)),
    }
}
