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

use super::command::{Body, Command, Encoding, Head};
use super::ext::{EXT_FIELDS_MAX, ExtFields, Span};
use super::frame::FrameError;
use super::language::Language;
use crate::model::swar::{eight, find, zeros};

pub(super) fn encode<'f>(head: &Head<'_>, mut fields: impl Iterator<Item = (&'f str, &'f str)>, output: &mut BytesMut) {
    output.put_slice(b"{\"code\":");
    put_number(output, head.code);
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
    put_number(output, head.flag);
    output.put_slice(b",\"language\":\"");
    output.put_slice(head.language.name().as_bytes());
    output.put_slice(b"\",\"opaque\":");
    put_number(output, head.opaque);
    if let Some(remark) = head.remark {
        output.put_slice(b",\"remark\":");
        put_string(output, remark.as_bytes());
    }
    output.put_slice(b",\"version\":");
    put_number(output, head.version);
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

/// Index of the first quote or backslash.
fn find_end(bytes: &[u8]) -> Option<usize> {
    let marks = |bytes| zeros(bytes ^ eight(b'"')) | zeros(bytes ^ eight(b'\\'));
    find(bytes, marks, |byte| byte == b'"' || byte == b'\\')
}

/// Index of the first byte that a string cannot hold as it is.
fn find_special(bytes: &[u8]) -> Option<usize> {
    let controls = |bytes: u64| bytes.wrapping_sub(eight(0x20)) & !bytes & eight(0x80);
    let marks = |bytes| controls(bytes) | zeros(bytes ^ eight(b'"')) | zeros(bytes ^ eight(b'\\'));
    find(bytes, marks, |byte| byte < 0x20 || byte == b'"' || byte == b'\\')
}

/// Writes a quoted string: runs of bytes that need no escape are copied whole.
fn put_string(output: &mut BytesMut, text: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    output.put_u8(b'"');
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
    output.put_u8(b'"');
}

pub(super) fn decode(header: &[u8]) -> Result<Command, FrameError> {
    // As in Java, bytes that are not UTF-8 become U+FFFD.
    let header = match std::str::from_utf8(header) {
        Ok(header) => Cow::Borrowed(header),
        Err(_) => String::from_utf8_lossy(header),
    };
    let mut text = String::with_capacity(header.len() + UNESCAPED_BYTES);
    text.push_str(&header);
    let mut input = Input { end: text.len(), text, at: 0 };
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
        match &input.text.as_bytes()[name] {
            b"code" => command.code = input.number()?,
            b"flag" => command.flag = input.number()?,
            b"opaque" => command.opaque = input.number()?,
            b"version" => command.version = input.number()?,
            b"language" => {
                let name = input.value()?;
                command.language = name.map_or(Language::OTHER, |name| Language::from_name(&input.text[name]));
            }
            b"remark" => {
                let remark = input.value()?.filter(|remark| !remark.is_empty());
                command.remark = remark.map(|remark| input.text[remark].to_owned());
            }
            b"extFields" => command.ext = input.ext()?,
            _ => _ = input.value()?,
        }
        Ok(())
    })?;
    input.space();
    if input.at < input.end {
        return Err(input.error("something follows the JSON object"));
    }
    if !command.ext.is_empty() {
        *command.ext.text_mut() = input.text;
    }
    Ok(command)
}

/// Room made for what is read without its escapes: properties are most of it, and rarely longer.
const UNESCAPED_BYTES: usize = 256;

struct Input {
    /// The header, and behind it what stands in it with escapes, without them.
    text: String,
    /// Where the header ends.
    end: usize,
    at: usize,
}

impl Input {
    fn error(&self, reason: &'static str) -> FrameError {
        FrameError::Header { at: self.at, reason }
    }

    /// The header from here on.
    fn rest(&self) -> &[u8] {
        &self.text.as_bytes()[self.at..self.end]
    }

    fn peek(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// Skips space and then `byte`, if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        self.space();
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
            let (name, value) = match self.plain_member() {
                Some((name, value)) => {
                    self.at = value.end + 1;
                    (name, Some(value))
                }
                None => (self.name()?, self.value()?),
            };
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

    /// A member whose name and value are strings without escapes, if that comes next, without spaces.
    fn plain_member(&self) -> Option<(Range<usize>, Range<usize>)> {
        let name = self.rest().strip_prefix(b"\"")?;
        let name_bytes = find_end(name).filter(|end| name[*end] == b'"')?;
        let value = name[name_bytes + 1..].strip_prefix(b":\"")?;
        let value_bytes = find_end(value).filter(|end| value[*end] == b'"')?;
        let name_at = self.at + 1;
        let value_at = name_at + name_bytes + 3;
        Some((name_at..name_at + name_bytes, value_at..value_at + value_bytes))
    }

    /// A number, bare or in quotes; null is 0, as an absent one is.
    fn number(&mut self) -> Result<i32, FrameError> {
        self.space();
        let at = self.at;
        let Some(piece) = self.value()? else {
            return Ok(0);
        };
        self.text[piece].parse().map_err(|_| FrameError::Header { at, reason: "a number of 32 bits must stand here" })
    }

    /// Any value: where a string's content lies, or the JSON text of anything else, `None` for null.
    fn value(&mut self) -> Result<Option<Range<usize>>, FrameError> {
        self.space();
        let start = self.at;
        match self.peek() {
            Some(b'"') => return self.string().map(Some),
            Some(b'{' | b'[') => self.skip_nested()?,
            _ => {
                while matches!(self.peek(), Some(b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z')) {
                    self.at += 1;
                }
                if self.at == start {
                    return Err(self.error("a JSON value must begin here"));
                }
            }
        }
        let value = start..self.at;
        Ok((self.text[value.clone()] != *"null").then_some(value))
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

    /// Goes on to the next quote or backslash; tells which.
    fn scan(&mut self) -> Result<u8, FrameError> {
        let rest = self.rest();
        let Some(found) = find_end(rest) else {
            self.at = self.end;
            return Err(self.error("the header ends within a string"));
        };
        let byte = rest[found];
        self.at += found;
        Ok(byte)
    }

    /// The string whose opening quote comes next.
    fn string(&mut self) -> Result<Range<usize>, FrameError> {
        self.at += 1;
        let start = self.at;
        if self.scan()? == b'"' {
            self.at += 1;
            return Ok(start..self.at - 1);
        }
        let unescaped = self.text.len();
        let mut copied = start;
        while self.scan()? == b'\\' {
            self.text.extend_from_within(copied..self.at);
            self.at += 1;
            // The separators of properties, which nearly every send has many of.
            if let Some([b'u', b'0', b'0', b'0', digit @ (b'1' | b'2')]) = self.rest().first_chunk() {
                let separator = char::from(digit - b'0');
                self.text.push(separator);
                self.at += 5;
            } else {
                let character = self.escape()?;
                self.text.push(character);
            }
            copied = self.at;
        }
        self.text.extend_from_within(copied..self.at);
        self.at += 1;
        Ok(unescaped..self.text.len())
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
