//! What of an answer a load generator needs.

use memchr::memmem;

/// Length field, encoding byte and header length.
const PREFIX_BYTES: usize = 8;
/// Encoding byte of RocketMQ's binary header.
const BINARY: u8 = 1;
/// Where the opaque stands in a binary header: behind code, language and version.
const BINARY_OPAQUE_AT: usize = 5;
/// Where the length of the remark stands in a binary header.
const BINARY_REMARK_AT: usize = 13;

/// One answer in a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer<'a> {
    header: &'a [u8],
    binary: bool,
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
        Some(Self { header, binary: prefix[4] == BINARY, body, bytes: frame + 4 })
    }

    /// Its response code.
    pub(super) fn code(self) -> Option<i64> {
        if self.binary {
            return Some(i64::from(i16::from_be_bytes(self.header.get(..2)?.try_into().ok()?)));
        }
        // At the front of what every broker writes.
        let at = if self.header.starts_with(b"{\"code\":") { 8 } else { memmem::find(self.header, b"\"code\":")? + 7 };
        leading(&self.header[at..])
    }

    /// The number of the request. `from_end` remembers between the answers of one connection how far from the end of a JSON header it stands,
    /// which is the same for answers of one kind; any value is right at first.
    pub(super) fn opaque(self, from_end: &mut usize) -> Option<u64> {
        const NAME: &[u8] = b"\"opaque\":";
        if self.binary {
            return Some(u64::from(self.binary_u32(BINARY_OPAQUE_AT)?));
        }
        let at = self.header.len().checked_sub(*from_end);
        let at = match at.filter(|at| self.header[..*at].ends_with(NAME)) {
            Some(at) => at,
            None => {
                // Behind the ext fields and the remark.
                let at = memmem::rfind(self.header, NAME)? + NAME.len();
                *from_end = self.header.len() - at;
                at
            }
        };
        u64::try_from(leading(&self.header[at..])?).ok()
    }

    /// An ext field that holds a number.
    pub(super) fn ext_number(self, name: &str) -> Option<i64> {
        if !self.binary {
            let mut found = memmem::find_iter(self.header, name.as_bytes());
            return found.find_map(|at| leading(self.header[at + name.len()..].strip_prefix(b"\":\"")?));
        }
        let remark = self.binary_u32(BINARY_REMARK_AT)? as usize;
        let mut rest = self.header.get(BINARY_REMARK_AT + 4 + remark + 4..)?;
        loop {
            let (length, after) = rest.split_first_chunk::<2>()?;
            let (found, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
            let (length, after) = after.split_first_chunk::<4>()?;
            let (value, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
            if found == name.as_bytes() {
                return leading(value);
            }
            rest = after;
        }
    }

    /// Its remark.
    pub(super) fn remark(self) -> String {
        if self.binary {
            let bytes = self.binary_u32(BINARY_REMARK_AT).map_or(0, |bytes| bytes as usize);
            let text = self.header.get(BINARY_REMARK_AT + 4..).and_then(|rest| rest.get(..bytes));
            return String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
        }
        let header: serde_json::Value = serde_json::from_slice(self.header).unwrap_or_default();
        header["remark"].as_str().unwrap_or_default().to_owned()
    }

    fn binary_u32(self, at: usize) -> Option<u32> {
        Some(u32::from_be_bytes(self.header.get(at..at + 4)?.try_into().ok()?))
    }
}

/// The decimal number at the front of a text.
fn leading(text: &[u8]) -> Option<i64> {
    let negative = text.first() == Some(&b'-');
    let digits = text[usize::from(negative)..].iter().take_while(|byte| byte.is_ascii_digit());
    let mut value = None;
    for digit in digits {
        value = Some(value.unwrap_or(0_i64).checked_mul(10)?.checked_add(i64::from(digit - b'0'))?);
    }
    value.map(|value| if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Command, Encoding, frame::encode_whole};

    #[test]
    fn an_answer_tells_its_code_opaque_and_fields_once_it_is_there_whole() {
        for encoding in [Encoding::Json, Encoding::Binary] {
            let mut command = Command::request(20).with_body("body");
            command.encoding = encoding;
            command.opaque = 1_000_000_007;
            command.ext.push("offset", "x");
            command.ext.push("nextBeginOffset", -12);
            command.remark = Some("\"code\":7 no".into());
            let bytes = encode_whole(&command).unwrap();

            assert!((0..bytes.len()).all(|end| Answer::first(&bytes[..end]).is_none()));
            let answer = Answer::first(&bytes).unwrap();
            assert_eq!((answer.code(), answer.body), (Some(20), &b"body"[..]));
            for mut from_end in [0, 1, 7, usize::MAX] {
                assert_eq!(answer.opaque(&mut from_end), Some(1_000_000_007));
                assert_eq!(answer.opaque(&mut from_end), Some(1_000_000_007));
            }
            assert_eq!((answer.ext_number("nextBeginOffset"), answer.ext_number("x")), (Some(-12), None));
            assert_eq!(answer.remark(), "\"code\":7 no");
            assert_eq!(answer.bytes, bytes.len());
        }
    }

    #[test]
    fn a_number_too_large_is_none_and_no_panic() {
        assert_eq!(leading(b"-9223372036854775807,"), Some(-i64::MAX));
        assert_eq!(leading(b"9223372036854775808"), None);
        assert_eq!((leading(b""), leading(b"-"), leading(b"x1")), (None, None, None));
    }
}
