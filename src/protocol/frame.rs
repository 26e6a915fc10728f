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
        Encoding::Json => json_header::decode(&header)?,
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
    match command.encoding {
        Encoding::Json => json_header::encode(command, output),
        Encoding::Binary => {
            if let Err(error) = binary_header::encode(command, output) {
                output.truncate(start);
                return Err(error);
            }
        }
    }
    put_prefix(output, start, command.encoding, command.body.len())
}

/// Appends the whole frame of the reply to a send, by its fields in the order in which they are written.
///
/// # Errors
/// It does not fit a frame; nothing is appended.
pub(super) fn encode_send_reply(
    opaque: i32,
    fields: [&str; 5],
    trace_on: bool,
    output: &mut BytesMut,
) -> Result<(), FrameError> {
    let start = output.len();
    output.put_bytes(0, PREFIX_BYTES);
    json_header::encode_send_reply(opaque, fields, trace_on, output);
    put_prefix(output, start, Encoding::Json, 0)
}

/// Puts lengths before the header that was written behind the place for them.
fn put_prefix(output: &mut BytesMut, start: usize, encoding: Encoding, body_bytes: usize) -> Result<(), FrameError> {
    let kind = match encoding {
        Encoding::Json => 0,
        Encoding::Binary => 1,
    };
    let header = output.len() - start - PREFIX_BYTES;
    let total = PREFIX_BYTES + header + body_bytes;
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{ExtFields, Language, RequestCode, Text};

    fn decode_all(bytes: &[u8]) -> Result<Vec<Command>, FrameError> {
        let mut input = BytesMut::from(bytes);
        let mut commands = Vec::new();
        while let Some(command) = decode(&mut input)? {
            commands.push(command);
        }
        Ok(commands)
    }

    fn json_frame(header: &str) -> Vec<u8> {
        let mut frame = Vec::new();
        frame.put_u32(header.len() as u32 + 4);
        frame.put_u32(header.len() as u32);
        frame.put_slice(header.as_bytes());
        frame
    }

    fn decode_json(header: &str) -> Result<Command, FrameError> {
        decode_all(&json_frame(header)).map(|mut commands| commands.remove(0))
    }

    fn commands() -> impl Strategy<Value = Command> {
        let text = prop_oneof!["[a-zA-Z0-9_%|-]{0,40}", ".{0,40}", "[\u{0}-\u{1f}\"\\\\/é😀]{0,20}"];
        let ext = prop::collection::vec((text.clone(), text.clone()), 0..8);
        let body = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from), 0..3);
        let numbers = (any::<i16>(), 0_u8..14, any::<i16>(), any::<i32>(), any::<i32>(), any::<bool>());
        (numbers, prop::option::of(text.prop_filter("empty is none", |remark| !remark.is_empty())), ext, body).prop_map(
            |((code, language, version, opaque, flag, binary), remark, ext, body)| Command {
                code: i32::from(code),
                language: Language(language),
                version: i32::from(version),
                opaque,
                flag,
                remark,
                ext: ext.into_iter().collect(),
                body: Body::from(body),
                encoding: if binary { Encoding::Binary } else { Encoding::Json },
            },
        )
    }

    proptest! {
        #[test]
        fn a_command_comes_back_as_it_was_and_every_prefix_needs_more(command in commands()) {
            let frame = encode_whole(&command).unwrap();
            for end in 0..frame.len() {
                prop_assert_eq!(decode(&mut BytesMut::from(&frame[..end])), Ok(None));
            }
            prop_assert_eq!(decode_all(&frame), Ok(vec![command]));
        }

        #[test]
        fn commands_in_one_buffer_come_out_in_order(commands in prop::collection::vec(commands(), 0..5)) {
            let frames: Vec<u8> = commands.iter().flat_map(|command| encode_whole(command).unwrap()).collect();
            prop_assert_eq!(decode_all(&frames), Ok(commands));
        }

        #[test]
        fn a_json_header_is_what_a_json_parser_reads(mut command in commands()) {
            command.encoding = Encoding::Json;
            command.body = Body::EMPTY;
            let frame = encode_whole(&command).unwrap();
            let header: serde_json::Value = serde_json::from_slice(&frame[8..]).unwrap();
            prop_assert_eq!(&header["code"], &serde_json::Value::from(command.code));
            prop_assert_eq!(&header["opaque"], &serde_json::Value::from(command.opaque));
            prop_assert_eq!(header["remark"].as_str(), command.remark.as_deref());
            for (name, value) in header["extFields"].as_object().into_iter().flatten() {
                prop_assert_eq!(value.as_str(), command.ext.get(name));
            }
        }

        #[test]
        fn mutated_frames_never_panic(command in commands(), changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4)) {
            let mut frame = encode_whole(&command).unwrap();
            for (at, byte) in changes {
                let at = at % frame.len();
                frame[at] = byte;
            }
            let _ = decode_all(&frame);
        }

        #[test]
        fn arbitrary_headers_never_panic(kind in 0_u8..3, header in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut frame = Vec::new();
            frame.put_u32(header.len() as u32 + 4);
            frame.put_u32(u32::from(kind) << 24 | header.len() as u32);
            frame.put_slice(&header);
            let _ = decode_all(&frame);
        }

        #[test]
        fn almost_json_headers_never_panic(header in r#"\{[\{\}\[\]:,"\\u0-9a-f ]{0,40}"#) {
            let _ = decode_json(&header);
        }
    }

    #[test]
    fn remoting_3_a_frame_of_16_mib_is_accepted_and_one_byte_more_refused_by_its_length() {
        let command = Command::request(10);
        let header = encode_whole(&command).unwrap().len();
        let mut frame = encode_whole(&command.clone().with_body(vec![7; FRAME_BYTES_MAX - header])).unwrap();
        assert_eq!(frame.len(), FRAME_BYTES_MAX);
        assert_eq!(decode(&mut frame).unwrap().unwrap().body.len(), FRAME_BYTES_MAX - header);

        let too_long = command.with_body(vec![7; FRAME_BYTES_MAX - header + 1]);
        let error = FrameError::TooLong { bytes: FRAME_BYTES_MAX as u64 + 1 };
        assert_eq!(encode_whole(&too_long).unwrap_err(), error);
        assert_eq!(decode(&mut BytesMut::from(&16_777_213_u32.to_be_bytes()[..])), Err(error));
    }

    #[test]
    fn remoting_4_a_header_longer_than_its_frame_is_refused() {
        let frame = [0, 0, 0, 8, 0, 0, 0, 5];
        assert_eq!(decode_all(&frame), Err(FrameError::HeaderOverrun { header: 5, frame: 8 }));
        assert_eq!(decode_all(&[0, 0, 0, 3]), Err(FrameError::TooShort { said: 3 }));
        assert_eq!(decode_all(&[0, 0, 0, 8, 2]), Err(FrameError::UnknownEncoding(2)));
        assert_eq!(decode_all(&[0x16, 3, 1, 2, 0, 1]), Err(FrameError::Tls));
    }

    #[test]
    fn memory_is_not_reserved_by_what_a_frame_announces() {
        let mut input = BytesMut::from(&[0, 0xFF, 0xFF, 0xFC, 0, 0, 1, 0, b'{'][..]);
        let before = input.capacity();
        assert_eq!(decode(&mut input), Ok(None));
        assert_eq!(input.capacity(), before);
    }

    #[test]
    fn remoting_9_ext_fields_may_be_null_absent_empty_or_mixed_with_unknown_keys() {
        for header in [
            r#"{"code":34,"extFields":null,"flag":0}"#,
            r#"{"code":34}"#,
            r#" { "code" : 34 , "extFields" : { } } "#,
            r#"{"code":34,"new":{"a":["}",{"b":null}]},"newer":[1,2.5e3],"extFields":{"none":null},"remark":null,"language":null}"#,
            r#"{"code":"34","language":"COBOL","remark":"","version":null}"#,
        ] {
            let command = decode_json(header).unwrap();
            assert_eq!((command.code, command.ext, command.remark), (34, ExtFields::new(), None), "{header}");
        }
    }

    #[test]
    fn ext_values_that_are_no_strings_are_taken_by_their_text() {
        let command = decode_json(
            r#"{"code":1,"extFields":{"a":12,"b":true,"c":-1.5,"d":{"x": [1]},"e":"\u0001\ud83d\ude00\/"}}"#,
        )
        .unwrap();
        let values: Vec<&str> = command.ext.iter().map(|(_, value)| value).collect();
        assert_eq!(values, ["12", "true", "-1.5", r#"{"x": [1]}"#, "\u{1}😀/"]);
    }

    #[test]
    fn broken_json_headers_are_refused() {
        for header in [
            "",
            "{",
            "[]",
            "null",
            r#"{"code":1.5}"#,
            r#"{"code":99999999999}"#,
            r#"{"code":1}x"#,
            r#"{"code":1,}"#,
            r#"{code:1}"#,
            r#"{"extFields":"x"}"#,
            r#"{"remark":"a"#,
            r#"{"remark":"\x"}"#,
            r#"{"a":[}"#,
            r#"{"a":[["#,
        ] {
            assert!(decode_json(header).is_err(), "{header}");
        }
    }

    #[test]
    fn too_many_ext_fields_are_refused() {
        let fields = vec!["\"\":1"; EXT_FIELDS_MAX + 1].join(",");
        assert_eq!(decode_json(&format!("{{\"extFields\":{{{fields}}}}}")), Err(FrameError::TooManyFields));
    }

    #[test]
    fn a_header_that_is_not_utf_8_is_read_with_replacement_characters() {
        let mut frame = json_frame(r#"{"code":10,"extFields":{"i":"TAGS?"}}"#);
        let at = frame.iter().position(|byte| *byte == b'?').unwrap();
        frame[at] = 0xC4;
        assert_eq!(decode_all(&frame).unwrap()[0].ext.get("i"), Some("TAGS\u{FFFD}"));
    }

    #[test]
    fn remoting_8_a_response_has_string_values_only_language_java_and_version_479() {
        let mut response = Command::request(RequestCode::SEND_MESSAGE).reply(0);
        response.ext.set("queueId", 3);
        response.ext.set("TRACE_ON", true);
        let frame = encode_whole(&response).unwrap();
        assert_eq!(
            std::str::from_utf8(&frame[8..]).unwrap(),
            r#"{"code":0,"extFields":{"queueId":"3","TRACE_ON":"true"},"flag":1,"language":"JAVA","opaque":0,"version":479}"#
        );
    }

    #[test]
    fn a_code_beyond_16_bits_is_truncated_in_a_binary_header_as_in_java() {
        let command = Command { encoding: Encoding::Binary, ..Command::request(RequestCode::POP_MESSAGE) };
        assert_eq!(decode_all(&encode_whole(&command).unwrap()).unwrap()[0].code, 3442);
    }

    #[test]
    fn a_name_too_long_for_a_binary_header_leaves_nothing_behind() {
        let mut command = Command { encoding: Encoding::Binary, ..Command::request(1) };
        command.ext.push(Text::from("x".repeat(40_000)), "v");
        let mut output = BytesMut::from(&b"before"[..]);
        assert_eq!(encode(&command, &mut output), Err(FrameError::NameTooLong { bytes: 40_000 }));
        assert_eq!(&output[..], b"before");
    }
}
