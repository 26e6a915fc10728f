//! What of an answer a load generator needs.

use memchr::memmem;

/// Length field, encoding byte and header length.
const PREFIX_BYTES: usize = 8;

/// One answer in a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer<'a> {
    header: &'a [u8],
    /// The body.
    pub(super) body: &'a [u8],
    /// Length of its frame.
    pub(super) bytes: usize,
}

impl<'a> Answer<'a> {
    /// The answer at the front of `input`; `None` if it is not there whole.
    pub(super) fn first(input: &'a [u8]) -> Option<Self> {
        let (prefix, rest) = input.split_at_checked(PREFIX_BYTES)?;
        let frame = u32::from_be_bytes(prefix[..4].try_into().ok()?) as usize;
        let header = u32::from_be_bytes([0, prefix[5], prefix[6], prefix[7]]) as usize;
        let rest = rest.get(..frame.checked_sub(4)?)?;
        let (header, body) = rest.split_at_checked(header)?;
        Some(Self { header, body, bytes: frame + 4 })
    }

    /// Its response code.
    pub(super) fn code(self) -> Option<i64> {
        // Before the ext fields in what every broker writes.
        self.number(b"\"code\":")
    }

    /// The number of the request.
    pub(super) fn opaque(self) -> Option<u64> {
        // Behind the ext fields and the remark.
        let at = memmem::rfind(self.header, b"\"opaque\":")? + 9;
        u64::try_from(leading(&self.header[at..])?).ok()
    }

    /// An ext field that holds a number.
    pub(super) fn ext_number(self, name: &str) -> Option<i64> {
        self.number(format!("\"{name}\":\"").as_bytes())
    }

    /// Its remark, as it stands there.
    pub(super) fn remark(self) -> String {
        let Some(at) = memmem::find(self.header, b"\"remark\":\"") else { return String::new() };
        let rest = &self.header[at + 10..];
        let end = memchr::memchr(b'"', rest).unwrap_or(rest.len());
        String::from_utf8_lossy(&rest[..end]).into_owned()
    }

    fn number(self, before: &[u8]) -> Option<i64> {
        let at = memmem::find(self.header, before)? + before.len();
        leading(&self.header[at..])
    }
}

fn leading(text: &[u8]) -> Option<i64> {
    let negative = text.first() == Some(&b'-');
    let digits = &text[usize::from(negative)..];
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let value: i64 = std::str::from_utf8(&digits[..end]).ok()?.parse().ok()?;
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Command, frame::encode_whole};

    #[test]
    fn an_answer_tells_its_code_opaque_and_fields_once_it_is_there_whole() {
        let mut command = Command::request(20).with_body("body");
        command.opaque = 1_000_000_007;
        command.ext.push("nextBeginOffset", -12);
        command.remark = Some("\"code\":7 no".into());
        let bytes = encode_whole(&command).unwrap();

        assert!((0..bytes.len()).all(|end| Answer::first(&bytes[..end]).is_none()));
        let answer = Answer::first(&bytes).unwrap();
        assert_eq!((answer.code(), answer.opaque(), answer.body), (Some(20), Some(1_000_000_007), &b"body"[..]));
        assert_eq!((answer.ext_number("nextBeginOffset"), answer.ext_number("x")), (Some(-12), None));
        assert_eq!(answer.bytes, bytes.len());
    }
}
