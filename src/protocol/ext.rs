//! The ext fields of a command: the small ordered map in which every request and reply header travels.

use std::{fmt, ops::Range};

use super::text::Text;

/// Most ext fields a header may carry. Clients send about fifteen.
pub const EXT_FIELDS_MAX: usize = 4096;
/// Most bytes of a wrong value that an error shows.
const SHOWN_BYTES_MAX: usize = 100;

/// Name and value pairs in the order they were written. Of equal names the last one counts.
///
/// All texts lie in one string, that of a header that was read as it came; a pair is two ranges of it.
#[derive(Clone, Default)]
pub struct ExtFields {
    /// UTF-8.
    text: Vec<u8>,
    fields: Vec<(Span, Span)>,
}

/// Where a name or a value lies in the text.
#[derive(Clone, Copy)]
pub(super) struct Span {
    from: u32,
    to: u32,
}

impl Span {
    /// A range of the text, which is never longer than a frame.
    pub(super) fn new(range: Range<usize>) -> Self {
        Span { from: range.start as u32, to: range.end as u32 }
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
        ExtFields { text: Vec::new(), fields: Vec::new() }
    }

    /// No fields yet, with room for `count`.
    pub fn with_capacity(count: usize) -> ExtFields {
        ExtFields { fields: Vec::with_capacity(count), ..ExtFields::new() }
    }

    /// No fields yet, with room for `count`; they will be ranges of `text` or be added to it.
    pub(super) fn with_text(text: Vec<u8>, count: usize) -> ExtFields {
        ExtFields { text, ..ExtFields::with_capacity(count) }
    }

    /// Adds a field at the end that lies in the text already.
    pub(super) fn push_spans(&mut self, name: Span, value: Span) {
        self.fields.push((name, value));
    }

    /// As [`ExtFields::push`].
    pub(super) fn push_strs(&mut self, name: &str, value: &str) {
        let field = (self.add(name), self.add(value));
        self.fields.push(field);
    }

    /// Where more text can be added.
    pub(super) fn text_mut(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    fn add(&mut self, text: &str) -> Span {
        let from = self.text.len();
        self.text.extend_from_slice(text.as_bytes());
        Span::new(from..self.text.len())
    }

    fn bytes_at(&self, span: Span) -> &[u8] {
        &self.text[span.from as usize..span.to as usize]
    }

    fn at(&self, span: Span) -> &str {
        std::str::from_utf8(self.bytes_at(span)).unwrap_or_default()
    }

    /// Sets `name` to `value`, in place of an earlier value.
    pub fn set(&mut self, name: impl Into<Text>, value: impl Into<Text>) {
        let name = name.into();
        match self.fields.iter().rposition(|(found, _)| self.bytes_at(*found) == name.as_bytes()) {
            Some(index) => self.fields[index].1 = self.add(value.into().as_str()),
            None => self.push(name, value),
        }
    }

    /// Adds a field at the end without looking for an earlier one of that name.
    pub fn push(&mut self, name: impl Into<Text>, value: impl Into<Text>) {
        self.push_strs(name.into().as_str(), value.into().as_str());
    }

    /// Removes every field of that name.
    pub fn remove(&mut self, name: &str) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.retain(|(found, _)| self.bytes_at(*found) != name.as_bytes());
        self.fields = fields;
    }

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .rev()
            .find(|(found, _)| self.bytes_at(*found) == name.as_bytes())
            .map(|(_, value)| self.at(*value))
    }

    /// The value of an i64 field; absent and empty are `None`.
    ///
    /// # Errors
    /// The value is not a decimal number of 64 bits.
    pub fn i64(&self, name: &'static str) -> Result<Option<i64>, HeaderError> {
        ExtValue::read(name, self.get(name))
    }

    /// The value of an i32 field; absent and empty are `None`.
    ///
    /// # Errors
    /// The value is not a decimal number of 32 bits.
    pub fn i32(&self, name: &'static str) -> Result<Option<i32>, HeaderError> {
        ExtValue::read(name, self.get(name))
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

    /// The values of several fields. Most clients write fields in the order in which they are
    /// declared, so that each is looked for behind the last one found.
    pub(super) fn values<const N: usize>(&self, names: &[&str; N]) -> [Option<&str>; N] {
        let mut values = [None; N];
        let mut next = 0;
        for (name, value) in &self.fields {
            let name = self.bytes_at(*name);
            let found = (next..N).chain(0..next).find(|at| names[*at].as_bytes() == name);
            if let Some(at) = found {
                values[at] = Some(self.at(*value));
                next = at + 1;
            }
        }
        values
    }

    /// All pairs in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (self.at(*name), self.at(*value)))
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
    fn read(name: &'static str, value: Option<&str>) -> Result<Self, HeaderError>;

    /// Adds the value to `ext` under `name`; an absent optional value adds nothing.
    fn write(&self, name: &'static str, ext: &mut ExtFields);
}

fn number<N: std::str::FromStr>(
    name: &'static str,
    value: Option<&str>,
    wanted: &'static str,
) -> Result<N, HeaderError> {
    let wrong = |value: Option<&str>| HeaderError { field: name, value: value.map(beginning), wanted };
    value.ok_or_else(|| wrong(None))?.parse().map_err(|_| wrong(value))
}

/// As much of a value as an error shows.
fn beginning(value: &str) -> String {
    value[..value.floor_char_boundary(SHOWN_BYTES_MAX)].to_owned()
}

impl ExtValue for i32 {
    fn read(name: &'static str, value: Option<&str>) -> Result<Self, HeaderError> {
        number(name, value, "a decimal number of 32 bits")
    }

    fn write(&self, name: &'static str, ext: &mut ExtFields) {
        ext.push(Text::from_static(name), *self);
    }
}

impl ExtValue for i64 {
    fn read(name: &'static str, value: Option<&str>) -> Result<Self, HeaderError> {
        number(name, value, "a decimal number of 64 bits")
    }

    fn write(&self, name: &'static str, ext: &mut ExtFields) {
        ext.push(Text::from_static(name), *self);
    }
}

impl ExtValue for bool {
    fn read(name: &'static str, value: Option<&str>) -> Result<Self, HeaderError> {
        let value = value.ok_or(HeaderError { field: name, value: None, wanted: "true or false" })?;
        Ok(value.eq_ignore_ascii_case("true"))
    }

    fn write(&self, name: &'static str, ext: &mut ExtFields) {
        ext.push(Text::from_static(name), *self);
    }
}

impl ExtValue for Text {
    fn read(name: &'static str, value: Option<&str>) -> Result<Self, HeaderError> {
        value.map(Text::from).ok_or(HeaderError { field: name, value: None, wanted: "a text" })
    }

    fn write(&self, name: &'static str, ext: &mut ExtFields) {
        ext.push(Text::from_static(name), self.clone());
    }
}

impl<V: ExtValue + Optional> ExtValue for Option<V> {
    fn read(name: &'static str, value: Option<&str>) -> Result<Self, HeaderError> {
        match value {
            Some(text) if V::EMPTY_IS_VALUE || !text.is_empty() => V::read(name, value).map(Some),
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
