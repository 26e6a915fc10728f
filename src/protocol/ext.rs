//! The ext fields of a command: the small ordered map in which every request and reply header travels.

use std::{fmt, ops::Range};

use bytes::Bytes;

use super::text::Text;

/// Most ext fields a header may carry. Clients send about fifteen.
pub const EXT_FIELDS_MAX: usize = 4096;
/// Most bytes of a wrong value that an error shows.
const SHOWN_BYTES_MAX: usize = 100;

/// Name and value pairs in the order they were written. Of equal names the last one counts.
///
/// Those of a frame stay where they are, as ranges of its header; what was written with escapes, and what is added, lies in a buffer beside it.
#[derive(Clone, Default)]
pub struct ExtFields {
    header: Bytes,
    added: String,
    fields: Vec<(Span, Span)>,
}

/// Where a text lies.
#[derive(Clone, Copy)]
struct Span {
    at: u32,
    bytes: u32,
    added: bool,
}

/// The value of an ext field.
#[derive(Clone, Copy)]
pub struct FieldValue<'a> {
    ext: &'a ExtFields,
    span: Span,
}

impl<'a> FieldValue<'a> {
    /// The text.
    pub fn as_str(self) -> &'a str {
        self.ext.str_of(self.span)
    }

    /// The text to be kept; a long one is a slice of the frame it came in.
    pub fn to_text(self) -> Text {
        let Span { at, bytes, added } = self.span;
        if added {
            return Text::from(self.as_str());
        }
        let at = at as usize;
        Text::from_range(&self.ext.header, at..at + bytes as usize)
    }
}

/// An ext field that is missing or does not hold what it must.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", match &self.value {
    Some(value) => format!("the header field {} is {value:?}, wanted {}", self.field, self.wanted),
    None => format!("the header field {} is missing, wanted {}", self.field, self.wanted),
})]
pub struct HeaderError {
    /// Name of the field.
    pub field: &'static str,
    /// What it held, if it was there: at least the beginning.
    pub value: Option<String>,
    /// What it must hold.
    pub wanted: &'static str,
}

impl ExtFields {
    /// No fields; allocates nothing.
    pub const fn new() -> ExtFields {
        ExtFields { header: Bytes::new(), added: String::new(), fields: Vec::new() }
    }

    /// No fields yet, with room for `count`.
    pub fn with_capacity(count: usize) -> ExtFields {
        ExtFields { fields: Vec::with_capacity(count), ..ExtFields::new() }
    }

    /// No fields yet, with room for `count`; more will come as ranges of `header`.
    pub(super) fn of_header(header: &Bytes, count: usize) -> ExtFields {
        ExtFields { header: header.clone(), ..ExtFields::with_capacity(count) }
    }

    /// Adds a field at the end; its parts are ranges of the header that hold UTF-8, or texts of their own.
    pub(super) fn push_parts(&mut self, name: Part<'_>, value: Part<'_>) {
        let field = (self.keep(name), self.keep(value));
        self.fields.push(field);
    }

    fn keep(&mut self, part: Part<'_>) -> Span {
        match part {
            Part::Header(range) => Span { at: range.start as u32, bytes: range.len() as u32, added: false },
            Part::Own(text) => {
                let at = self.added.len();
                self.added.push_str(text);
                Span { at: at as u32, bytes: text.len() as u32, added: true }
            }
        }
    }

    fn bytes_of(&self, span: Span) -> &[u8] {
        let range = span.at as usize..(span.at + span.bytes) as usize;
        if span.added { &self.added.as_bytes()[range] } else { &self.header[range] }
    }

    fn str_of(&self, span: Span) -> &str {
        // What is not UTF-8 was replaced when it was read.
        std::str::from_utf8(self.bytes_of(span)).unwrap_or_default()
    }

    /// Sets `name` to `value`, in place of an earlier value.
    pub fn set(&mut self, name: impl Into<Text>, value: impl Into<Text>) {
        let name = name.into();
        match self.fields.iter().rposition(|(found, _)| self.bytes_of(*found) == name.as_bytes()) {
            Some(index) => self.fields[index].1 = self.keep(Part::Own(value.into().as_str())),
            None => self.push(name, value),
        }
    }

    /// Adds a field at the end without looking for an earlier one of that name.
    pub fn push(&mut self, name: impl Into<Text>, value: impl Into<Text>) {
        self.push_parts(Part::Own(name.into().as_str()), Part::Own(value.into().as_str()));
    }

    /// Removes every field of that name.
    pub fn remove(&mut self, name: &str) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.retain(|(found, _)| self.bytes_of(*found) != name.as_bytes());
        self.fields = fields;
    }

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.value(name).map(FieldValue::as_str)
    }

    /// The value of a field as it is kept.
    pub fn value(&self, name: &str) -> Option<FieldValue<'_>> {
        let found = self.fields.iter().rev().find(|(found, _)| self.bytes_of(*found) == name.as_bytes());
        found.map(|(_, span)| FieldValue { ext: self, span: *span })
    }

    /// The value of an i64 field; absent and empty are `None`.
    ///
    /// # Errors
    /// The value is not a decimal number of 64 bits.
    pub fn i64(&self, name: &'static str) -> Result<Option<i64>, HeaderError> {
        ExtValue::read(name, self.value(name))
    }

    /// The value of an i32 field; absent and empty are `None`.
    ///
    /// # Errors
    /// The value is not a decimal number of 32 bits.
    pub fn i32(&self, name: &'static str) -> Result<Option<i32>, HeaderError> {
        ExtValue::read(name, self.value(name))
    }

    /// The value of a boolean field: `true` in any case is true, any other text is false, as in Java.
    pub fn bool(&self, name: &str) -> Option<bool> {
        self.get(name).map(|value| value.eq_ignore_ascii_case("true"))
    }

    /// The value of a field that must be there.
    ///
    /// # Errors
    /// The field is missing.
    pub fn required(&self, name: &'static str) -> Result<&str, HeaderError> {
        self.get(name).ok_or(HeaderError { field: name, value: None, wanted: "a text" })
    }

    /// All pairs in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (self.str_of(*name), self.str_of(*value)))
    }

    /// All pairs in order, the names as bytes.
    pub(super) fn values(&self) -> impl Iterator<Item = (&[u8], FieldValue<'_>)> {
        self.fields.iter().map(|(name, value)| (self.bytes_of(*name), FieldValue { ext: self, span: *value }))
    }

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

/// A part of a field as it is read.
pub(super) enum Part<'a> {
    /// It stands in the header.
    Header(Range<usize>),
    /// It does not, or not like this.
    Own(&'a str),
}

impl PartialEq for ExtFields {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for ExtFields {}

impl fmt::Debug for ExtFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Into<Text>, V: Into<Text>> FromIterator<(K, V)> for ExtFields {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut ext = ExtFields::new();
        pairs.into_iter().for_each(|(name, value)| ext.push(name, value));
        ext
    }
}

/// A type that an ext field can hold.
pub trait ExtValue: Sized {
    /// Reads the value of field `name`, `None` when it is absent.
    ///
    /// # Errors
    /// The field is missing though the type needs it, or holds something else.
    fn read(name: &'static str, value: Option<FieldValue<'_>>) -> Result<Self, HeaderError>;

    /// Adds the value to `ext` under `name`; an absent optional value adds nothing.
    fn write(&self, name: &'static str, ext: &mut ExtFields);
}

fn number<N: std::str::FromStr>(
    name: &'static str,
    value: Option<FieldValue<'_>>,
    wanted: &'static str,
) -> Result<N, HeaderError> {
    let value = value.map(FieldValue::as_str);
    let wrong = |value: Option<&str>| HeaderError { field: name, value: value.map(beginning), wanted };
    value.ok_or_else(|| wrong(None))?.parse().map_err(|_| wrong(value))
}

/// As much of a value as an error shows.
fn beginning(value: &str) -> String {
    value[..value.floor_char_boundary(SHOWN_BYTES_MAX)].to_owned()
}

impl ExtValue for i32 {
    fn read(name: &'static str, value: Option<FieldValue<'_>>) -> Result<Self, HeaderError> {
        number(name, value, "a decimal number of 32 bits")
    }

    fn write(&self, name: &'static str, ext: &mut ExtFields) {
        ext.push(Text::from_static(name), *self);
    }
}

impl ExtValue for i64 {
    fn read(name: &'static str, value: Option<FieldValue<'_>>) -> Result<Self, HeaderError> {
        number(name, value, "a decimal number of 64 bits")
    }

    fn write(&self, name: &'static str, ext: &mut ExtFields) {
        ext.push(Text::from_static(name), *self);
    }
}

impl ExtValue for bool {
    fn read(name: &'static str, value: Option<FieldValue<'_>>) -> Result<Self, HeaderError> {
        let value = value.ok_or(HeaderError { field: name, value: None, wanted: "true or false" })?;
        Ok(value.as_str().eq_ignore_ascii_case("true"))
    }

    fn write(&self, name: &'static str, ext: &mut ExtFields) {
        ext.push(Text::from_static(name), *self);
    }
}

impl ExtValue for Text {
    fn read(name: &'static str, value: Option<FieldValue<'_>>) -> Result<Self, HeaderError> {
        value.map(FieldValue::to_text).ok_or(HeaderError { field: name, value: None, wanted: "a text" })
    }

    fn write(&self, name: &'static str, ext: &mut ExtFields) {
        ext.push(Text::from_static(name), self.clone());
    }
}

impl<V: ExtValue + Optional> ExtValue for Option<V> {
    fn read(name: &'static str, value: Option<FieldValue<'_>>) -> Result<Self, HeaderError> {
        match value {
            Some(FieldValue { span, .. }) if V::EMPTY_IS_VALUE || span.bytes > 0 => V::read(name, value).map(Some),
            _ => Ok(None),
        }
    }

    fn write(&self, name: &'static str, ext: &mut ExtFields) {
        if let Some(value) = self {
            value.write(name, ext);
        }
    }
}

/// Types that may stand in an optional field.
pub trait Optional {
    /// Whether an empty text is a value of this type, not its absence.
    const EMPTY_IS_VALUE: bool;
}

impl Optional for i32 {
    const EMPTY_IS_VALUE: bool = false;
}
impl Optional for i64 {
    const EMPTY_IS_VALUE: bool = false;
}
impl Optional for bool {
    const EMPTY_IS_VALUE: bool = false;
}
impl Optional for Text {
    const EMPTY_IS_VALUE: bool = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_equal_names_counts() {
        let mut ext: ExtFields = [("a", "1"), ("a", "2")].into_iter().collect();
        assert_eq!(ext.get("a"), Some("2"));
        ext.set("a", 3);
        assert_eq!(ext.i32("a"), Ok(Some(3)));
    }

    #[test]
    fn a_wrong_number_is_named_with_its_field_and_value() {
        let ext: ExtFields = [("queueId", "5.0")].into_iter().collect();
        let error = ext.i32("queueId").unwrap_err();
        assert_eq!(error.to_string(), "the header field queueId is \"5.0\", wanted a decimal number of 32 bits");
        assert_eq!(ext.required("topic").unwrap_err().to_string(), "the header field topic is missing, wanted a text");
    }

    #[test]
    fn remoting_9_an_empty_optional_number_counts_as_absent() {
        let ext: ExtFields = [("l", "")].into_iter().collect();
        assert_eq!(ext.i32("l"), Ok(None));
        assert_eq!(ext.i64("absent"), Ok(None));
    }
}
