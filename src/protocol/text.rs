//! A string of a header: cheap to take out of a frame, cheap to make from a number.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Longest string kept inside a [`Text`] itself, in bytes: nearly every header key and value, message ids and unique keys among them.
const INLINE_BYTES: usize = 38;

/// An immutable UTF-8 string that is static, short and inline, or owned.
#[derive(Clone)]
pub struct Text(Kind);

#[derive(Clone)]
enum Kind {
    Static(&'static str),
    Inline(u8, [u8; INLINE_BYTES]),
    Owned(String),
}

impl Text {
    /// The empty string.
    pub const EMPTY: Text = Text(Kind::Static(""));

    /// A string known at compile time; costs nothing.
    pub const fn from_static(text: &'static str) -> Text {
        Text(Kind::Static(text))
    }

    /// The string.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Kind::Static(text) => text,
            Kind::Inline(len, bytes) => {
                std::str::from_utf8(&bytes[..usize::from(*len)]).expect("inline text is copied from a str")
            }
            Kind::Owned(text) => text,
        }
    }

    /// The bytes of the string.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Kind::Static(text) => text.as_bytes(),
            Kind::Inline(len, bytes) => &bytes[..usize::from(*len)],
            Kind::Owned(text) => text.as_bytes(),
        }
    }
}

fn inline(text: &str) -> Option<Text> {
    if text.len() > INLINE_BYTES {
        return None;
    }
    let mut bytes = [0; INLINE_BYTES];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    Some(Text(Kind::Inline(text.len() as u8, bytes)))
}

impl Default for Text {
    fn default() -> Self {
        Text::EMPTY
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        inline(text).unwrap_or_else(|| Text(Kind::Owned(text.to_owned())))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        inline(&text).unwrap_or(Text(Kind::Owned(text)))
    }
}

impl From<i64> for Text {
    fn from(number: i64) -> Self {
        let mut bytes = [0; INLINE_BYTES];
        let mut at = INLINE_BYTES;
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            bytes[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            at -= 1;
            bytes[at] = b'-';
        }
        bytes.copy_within(at.., 0);
        Text(Kind::Inline((INLINE_BYTES - at) as u8, bytes))
    }
}

impl From<i32> for Text {
    fn from(number: i32) -> Self {
        Text::from(i64::from(number))
    }
}

impl From<bool> for Text {
    fn from(value: bool) -> Self {
        Text::from_static(if value { "true" } else { "false" })
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        match text.0 {
            Kind::Owned(text) => text,
            _ => text.as_str().to_owned(),
        }
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Eq for Text {}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Text) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Text) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_their_decimal_text() {
        for number in [0, 7, -1, 10, i64::MAX, i64::MIN, 1_700_000_000_000] {
            assert_eq!(Text::from(number).as_str(), number.to_string());
        }
    }
}
