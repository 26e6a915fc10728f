//! The JSON header, as Java, Go and C++ clients really write it.
//!
//! ```json
//! {"code":310,"extFields":{"a":"group"},"flag":0,"language":"JAVA","opaque":4,"version":479}
//! ```
//!
//! Reading is lenient where a client may be: unknown keys, null or absent members, ext values that are not strings, numbers in
//! quotes. What is written holds to the strictest reader, the Go client: ext values are strings, integers are bare.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{BufMut, BytesMut};

use super::command::{Body, Command, Encoding, VERSION};
use super::ext::{EXT_FIELDS_MAX, ExtFields, Span};
use super::frame::FrameError;
use super::language::Language;
use crate::model::swar::{eight, find, zeros};

pub(super) fn encode(command: &Command, output: &mut BytesMut) {
    let mut fields = command.ext.iter();
    output.put_slice(b"{\"code\":");
    put_number(output, command.code);
    if let Some(first) = fields.next() {
        output.put_slice(b",\"extFields\":{");
        put_field(output, first);
        for field in fields {
            output.put_u8(b',');
            put_field(output, field);
        }
        output.put_u8(b'}');
    }
    output.put_slice(b",\"flag\":");
    put_number(output, command.flag);
    output.put_slice(b",\"language\":\"");
    output.put_slice(command.language.name().as_bytes());
    output.put_slice(b"\",\"opaque\":");
    put_number(output, command.opaque);
    if let Some(remark) = &command.remark {
        output.put_slice(b",\"remark\":");
        put_string(output, remark.as_bytes());
    }
    output.put_slice(b",\"version\":");
    put_number(output, command.version);
    output.put_u8(b'}');
}

/// What [`encode`] makes of a successful response with the fields of a reply to a send, in one go.
pub(super) fn encode_send_reply(
    opaque: i32,
    [msg_id, queue_id, queue_offset, transaction_id, region]: [&str; 5],
    trace_on: bool,
    output: &mut BytesMut,
) {
    output.put_slice(b"{\"code\":0,\"extFields\":{\"msgId\":\"");
    put_text(output, msg_id.as_bytes());
    output.put_slice(b"\",\"queueId\":\"");
    put_text(output, queue_id.as_bytes());
    output.put_slice(b"\",\"queueOffset\":\"");
    put_text(output, queue_offset.as_bytes());
    output.put_slice(b"\",\"transactionId\":\"");
    put_text(output, transaction_id.as_bytes());
    output.put_slice(b"\",\"MSG_REGION\":\"");
    put_text(output, region.as_bytes());
    output.put_slice(b"\",\"TRACE_ON\":\"");
    output.put_slice(if trace_on { &b"true"[..] } else { b"false" });
    output.put_slice(b"\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":");
    put_number(output, opaque);
    output.put_slice(b",\"version\":");
    put_number(output, VERSION);
    output.put_u8(b'}');
}

fn put_field(output: &mut BytesMut, (name, value): (&str, &str)) {
    put_string(output, name.as_bytes());
    output.put_u8(b':');
    put_string(output, value.as_bytes());
}

fn put_number(output: &mut BytesMut, number: i32) {
    output.put_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Marks quotes and backslashes among eight bytes, at least the first of them rightly.
fn end_marks(bytes: u64) -> u64 {
    zeros(bytes ^ eight(b'"')) | zeros(bytes ^ eight(b'\\'))
}

/// Index of the first quote or backslash.
fn find_end(bytes: &[u8]) -> Option<usize> {
    find(bytes, end_marks, |byte| byte == b'"' || byte == b'\\')
}

/// Index of the first byte that a string cannot hold as it is.
fn find_special(bytes: &[u8]) -> Option<usize> {
    let controls = |bytes: u64| bytes.wrapping_sub(eight(0x20)) & !bytes & eight(0x80);
    let marks = |bytes| controls(bytes) | zeros(bytes ^ eight(b'"')) | zeros(bytes ^ eight(b'\\'));
    find(bytes, marks, |byte| byte < 0x20 || byte == b'"' || byte == b'\\')
}

/// Writes a quoted string.
fn put_string(output: &mut BytesMut, text: &[u8]) {
    output.put_u8(b'"');
    put_text(output, text);
    output.put_u8(b'"');
}

/// Writes what stands between the quotes: runs of bytes that need no escape are copied whole.
fn put_text(output: &mut BytesMut, text: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut rest = text;
    while let Some(at) = find_special(rest) {
        output.put_slice(&rest[..at]);
        match rest[at] {
            b'"' => output.put_slice(b"\\\""),
            b'\\' => output.put_slice(b"\\\\"),
            b'\n' => output.put_slice(b"\\n"),
            b'\r' => output.put_slice(b"\\r"),
            b'\t' => output.put_slice(b"\\t"),
            byte => {
                output.put_slice(&[b'\\', b'u', b'0', b'0', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
        }
        rest = &rest[at + 1..];
    }
    output.put_slice(rest);
}

pub(super) fn decode(header: &[u8]) -> Result<Command, FrameError> {
    // As in Java, bytes that are not UTF-8 become U+FFFD.
    let header = if header.is_ascii() || std::str::from_utf8(header).is_ok() {
        Cow::Borrowed(header)
    } else {
        Cow::Owned(String::from_utf8_lossy(header).into_owned().into_bytes())
    };
    let mut text = Vec::with_capacity(header.len() + UNESCAPED_BYTES);
    text.extend_from_slice(&header);
    let mut input = Input { header: &header, text, at: 0 };
    let mut command = Command {
        code: 0,
        language: Language::OTHER,
        version: 0,
        opaque: 0,
        flag: 0,
        remark: None,
        ext: ExtFields::new(),
        body: Body::EMPTY,
        encoding: Encoding::Json,
    };
    input.object(|input, name| {
        match &input.text[name] {
            b"code" => command.code = input.number()?,
            b"flag" => command.flag = input.number()?,
            b"opaque" => command.opaque = input.number()?,
            b"version" => command.version = input.number()?,
            b"language" => {
                let name = input.value()?;
                command.language = name.map_or(Language::OTHER, |name| Language::from_name(utf8(&input.text[name])));
            }
            b"remark" => {
                let remark = input.value()?.filter(|remark| !remark.is_empty());
                command.remark = remark.map(|remark| utf8(&input.text[remark]).to_owned());
            }
            b"extFields" => command.ext = input.ext()?,
            _ => _ = input.value()?,
        }
        Ok(())
    })?;
    input.space();
    if input.at < header.len() {
        return Err(input.error("something follows the JSON object"));
    }
    if !command.ext.is_empty() {
        *command.ext.text_mut() = input.text;
    }
    Ok(command)
}

/// Room made for what is read without its escapes: properties are most of it, and rarely longer.
const UNESCAPED_BYTES: usize = 256;

/// Text that was checked to be UTF-8.
fn utf8(text: &[u8]) -> &str {
    std::str::from_utf8(text).unwrap_or_default()
}

struct Input<'h> {
    /// UTF-8, as `text` is.
    header: &'h [u8],
    /// The header, and behind it what stands in it with escapes, without them.
    text: Vec<u8>,
    /// How far the header is read.
    at: usize,
}

impl<'h> Input<'h> {
    fn error(&self, reason: &'static str) -> FrameError {
        FrameError::Header { at: self.at, reason }
    }

    /// The header from here on.
    fn rest(&self) -> &'h [u8] {
        &self.header[self.at..]
    }

    fn peek(&self) -> Option<u8> {
        self.header.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// Skips space and then `byte`, if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        if self.peek() != Some(byte) {
            self.space();
        }
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, Range<usize>) -> Result<(), FrameError>,
    ) -> Result<(), FrameError> {
        if !self.take(b'{') {
            return Err(self.error("a JSON object must begin here"));
        }
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let name = self.name()?;
            member(self, name)?;
            if !self.goes_on()? {
                return Ok(());
            }
        }
    }

    /// The name of a member, and the colon behind it.
    fn name(&mut self) -> Result<Range<usize>, FrameError> {
        self.space();
        if self.peek() != Some(b'"') {
            return Err(self.error("a quoted name must begin here"));
        }
        let name = self.string()?;
        if self.take(b':') { Ok(name) } else { Err(self.error("a colon must follow the name")) }
    }

    /// Whether another member follows in this object.
    fn goes_on(&mut self) -> Result<bool, FrameError> {
        if self.take(b',') {
            return Ok(true);
        }
        if self.take(b'}') { Ok(false) } else { Err(self.error("a comma or the end of the object must follow")) }
    }

    fn ext(&mut self) -> Result<ExtFields, FrameError> {
        self.space();
        if self.peek() != Some(b'{') {
            return match self.value()? {
                None => Ok(ExtFields::new()),
                Some(_) => Err(self.error("extFields must be an object")),
            };
        }
        self.at += 1;
        if self.take(b'}') {
            return Ok(ExtFields::new());
        }
        let mut ext = ExtFields::with_capacity(16);
        loop {
            let name = match self.plain_name() {
                Some(name) => name,
                None => self.name()?,
            };
            // Clients write all of them as strings.
            let value = if self.peek() == Some(b'"') { Some(self.string()?) } else { self.value()? };
            if let Some(value) = value {
                if ext.len() == EXT_FIELDS_MAX {
                    return Err(FrameError::TooManyFields);
                }
                ext.push_spans(Span::new(name), Span::new(value));
            }
            if !self.goes_on()? {
                return Ok(ext);
            }
        }
    }

    /// The name of a member, if it is one letter and nothing but the colon stands between it and the value: fields of a send are.
    fn plain_name(&mut self) -> Option<Range<usize>> {
        let [b'"', b'a'..=b'z', b'"', b':'] = self.rest().first_chunk::<4>()? else { return None };
        self.at += 4;
        Some(self.at - 3..self.at - 2)
    }

    /// A number, bare or in quotes; null is 0, as an absent one is.
    fn number(&mut self) -> Result<i32, FrameError> {
        self.space();
        let at = self.at;
        let Some(piece) = self.value()? else {
            return Ok(0);
        };
        utf8(&self.text[piece])
            .parse()
            .map_err(|_| FrameError::Header { at, reason: "a number of 32 bits must stand here" })
    }

    /// Any value: where a string's content lies, or the JSON text of anything else, `None` for null.
    fn value(&mut self) -> Result<Option<Range<usize>>, FrameError> {
        self.space();
        let start = self.at;
        match self.peek() {
            Some(b'"') => return self.string().map(Some),
            Some(b'{' | b'[') => self.skip_nested()?,
            _ => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
                let rest = self.rest();
                self.at += rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
                if self.at == start {
                    return Err(self.error("a JSON value must begin here"));
                }
            }
        }
        let value = start..self.at;
        Ok((self.header[value.clone()] != *b"null").then_some(value))
    }

    /// Skips an object or array; only brackets and strings are looked at, and no recursion is needed.
    fn skip_nested(&mut self) -> Result<(), FrameError> {
        let mut depth = 0_usize;
        loop {
            match self.peek() {
                None => return Err(self.error("the header ends within a value")),
                Some(b'"') => {
                    self.string()?;
                    continue;
                }
                Some(b'{' | b'[') => depth += 1,
                Some(b'}' | b']') => depth -= 1,
                Some(_) => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn unended(&mut self) -> FrameError {
        self.at = self.header.len();
        self.error("the header ends within a string")
    }

    /// The string whose opening quote comes next.
    fn string(&mut self) -> Result<Range<usize>, FrameError> {
        let start = self.at + 1;
        let end = start + find_end(&self.header[start..]).ok_or_else(|| self.unended())?;
        if self.header[end] == b'"' {
            self.at = end + 1;
            return Ok(start..end);
        }
        let unescaped = self.text.len();
        self.text.extend_from_slice(&self.header[start..end]);
        self.at = end;
        while self.header[self.at] == b'\\' {
            // The separators of properties, which nearly every send has many of.
            if let Some([b'\\', b'u', b'0', b'0', b'0', digit @ (b'1' | b'2')]) = self.rest().first_chunk() {
                self.text.push(digit - b'0');
                self.at += 6;
            } else {
                self.at += 1;
                let character = self.escape()?;
                self.text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            self.copy_run()?;
        }
        self.at += 1;
        Ok(unescaped..self.text.len())
    }

    /// Copies what comes before the next quote or backslash, and goes there.
    fn copy_run(&mut self) -> Result<(), FrameError> {
        let (chunks, rest) = self.rest().as_chunks::<8>();
        for chunk in chunks {
            let marked = end_marks(u64::from_le_bytes(*chunk));
            // All eight at once; what is too much goes again.
            self.text.extend_from_slice(chunk);
            if marked != 0 {
                let found = marked.trailing_zeros() as usize / 8;
                self.text.truncate(self.text.len() - (8 - found));
                self.at += found;
                return Ok(());
            }
            self.at += 8;
        }
        let found = find_end(rest).ok_or_else(|| self.unended())?;
        self.text.extend_from_slice(&rest[..found]);
        self.at += found;
        Ok(())
    }

    /// What follows a backslash. Half of a surrogate pair becomes U+FFFD.
    fn escape(&mut self) -> Result<char, FrameError> {
        let kind = self.peek().ok_or_else(|| self.error("the header ends within a string"))?;
        self.at += 1;
        Ok(match kind {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'"' | b'\\' | b'/' => char::from(kind),
            b'u' => {
                let high = self.hex4()?;
                if (0xD800..0xDC00).contains(&high) && self.rest().starts_with(b"\\u") {
                    let back = self.at;
                    self.at += 2;
                    let low = self.hex4()?;
                    if (0xDC00..0xE000).contains(&low) {
                        let point = 0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                        return Ok(char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    self.at = back;
                }
                char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err(self.error("unknown escape in a string")),
        })
    }

    fn hex4(&mut self) -> Result<u32, FrameError> {
        let digits =
            self.rest().first_chunk::<4>().copied().ok_or_else(|| self.error("four hex digits must stand here"))?;
        let mut value = 0;
        for digit in digits {
            let digit = char::from(digit).to_digit(16).ok_or_else(|| self.error("four hex digits must stand here"))?;
            value = value << 4 | digit;
        }
        self.at += 4;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_eight_bytes_at_once_is_what_is_found_one_by_one() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let text: Vec<u8> = (0..random.usize(..40))
                .map(|_| *random.choice(b"\0\x1f !\"#[\\]a\x7f\x80\x9f\xa2\xdc\xff").unwrap_or(&0))
                .collect();
            let text = if random.bool() { [&[b'x'; 24][..random.usize(..24)], &text].concat() } else { text };
            let is_end = |byte: &u8| *byte == b'"' || *byte == b'\\';
            assert_eq!(find_end(&text), text.iter().position(is_end), "{text:?}");
            assert_eq!(find_special(&text), text.iter().position(|byte| *byte < 0x20 || is_end(byte)), "{text:?}");
        }
    }
}
