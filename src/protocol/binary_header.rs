//! RocketMQ's binary header.
//!
//! ```text
//! code i16 | language u8 | version i16 | opaque i32 | flag i32 |
//! remark length i32 | remark | ext length i32 | ext
//! ext: repeated  name length i16 | name | value length i32 | value
//! ```
//!
//! Source: Apache RocketMQ, `org.apache.rocketmq.remoting.protocol.RocketMQSerializable`.

use std::ops::Range;

use bytes::{BufMut, BytesMut};

use super::command::{Body, Command, Encoding};
use super::ext::{EXT_FIELDS_MAX, ExtFields};
use super::frame::FrameError;
use super::language::Language;

pub(super) fn decode(header: &[u8]) -> Result<Command, FrameError> {
    let mut input = Input { header, at: 0 };
    let code = i32::from(input.i16()?);
    let language = Language(input.array::<1>()?[0]);
    let version = i32::from(input.i16()?);
    let opaque = input.i32()?;
    let flag = input.i32()?;
    let remark = input.i32()?;
    let remark = input.text(remark)?;
    let ext_bytes = input.i32()?;
    let end = input.end_of(ext_bytes)?;
    let mut ext =
        if ext_bytes > 0 { ExtFields::with_text(Vec::with_capacity(header.len()), 16) } else { ExtFields::new() };
    while input.at < end {
        if ext.len() == EXT_FIELDS_MAX {
            return Err(FrameError::TooManyFields);
        }
        let name = i32::from(input.i16()?);
        let name = input.range(name)?;
        let value = input.i32()?;
        let value = input.range(value)?;
        if input.at > end {
            return Err(FrameError::Header { at: end, reason: "a field runs over the end of the ext fields" });
        }
        let [name, value] = [name, value].map(|range| String::from_utf8_lossy(&header[range]));
        ext.push_strs(&name, &value);
    }
    Ok(Command {
        code,
        language,
        version,
        opaque,
        flag,
        remark: (!remark.is_empty()).then_some(remark),
        ext,
        body: Body::EMPTY,
        encoding: Encoding::Binary,
    })
}

pub(super) fn encode(command: &Command, output: &mut BytesMut) -> Result<(), FrameError> {
    output.put_i16(command.code as i16);
    output.put_u8(command.language.0);
    output.put_i16(command.version as i16);
    output.put_i32(command.opaque);
    output.put_i32(command.flag);
    put_sized(output, command.remark.as_deref().unwrap_or_default().as_bytes());
    let ext_at = output.len();
    output.put_i32(0);
    for (name, value) in command.ext.iter() {
        let name_bytes = i16::try_from(name.len()).map_err(|_| FrameError::NameTooLong { bytes: name.len() })?;
        output.put_i16(name_bytes);
        output.put_slice(name.as_bytes());
        put_sized(output, value.as_bytes());
    }
    let ext_bytes = output.len() - ext_at - 4;
    (&mut output[ext_at..]).put_i32(ext_bytes as i32);
    Ok(())
}

/// Lengths beyond i32 cannot stand: such a frame is refused for its length right after.
fn put_sized(output: &mut BytesMut, bytes: &[u8]) {
    output.put_i32(bytes.len() as i32);
    output.put_slice(bytes);
}

struct Input<'a> {
    header: &'a [u8],
    at: usize,
}

impl Input<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let short = FrameError::Header { at: self.at, reason: "the header ends within a field" };
        let bytes = self.header[self.at..].first_chunk::<N>().copied().ok_or(short)?;
        self.at += N;
        Ok(bytes)
    }

    fn i16(&mut self) -> Result<i16, FrameError> {
        self.array().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32, FrameError> {
        self.array().map(i32::from_be_bytes)
    }

    fn end_of(&self, bytes: i32) -> Result<usize, FrameError> {
        usize::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes <= self.header.len() - self.at)
            .map(|bytes| self.at + bytes)
            .ok_or(FrameError::Header { at: self.at, reason: "a length runs over the end of the header" })
    }

    fn text(&mut self, bytes: i32) -> Result<String, FrameError> {
        let range = self.range(bytes)?;
        Ok(String::from_utf8_lossy(&self.header[range]).into_owned())
    }

    fn range(&mut self, bytes: i32) -> Result<Range<usize>, FrameError> {
        let range = self.at..self.end_of(bytes)?;
        self.at = range.end;
        Ok(range)
    }
}
