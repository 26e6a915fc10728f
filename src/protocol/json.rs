//! The JSON of RocketMQ's bodies and state files, which is fastjson's and not quite everyone's.
//!
//! Written, in [`Dialect::Fastjson`]: map keys that are integers stand without quotes, keys that are objects stand as they are.
//!
//! ```text
//! {"offsetTable":{"T@g":{0:12,1:9}}}
//! {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:123}}
//! ```
//!
//! Read: both of these and standard JSON, besides single quotes, bare names and trailing commas. Members that are null count as absent.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::ser::{CharEscape, Formatter};
use serde_json::{Map, Number, Value};

/// Deepest nesting that is read.
pub const DEPTH_MAX: usize = 64;

/// Which JSON to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// fastjson's default: integer and object keys without quotes. What every RocketMQ client reads.
    Fastjson,
    /// Standard JSON, pure ASCII: for route data, to clients that ask for it.
    Standard,
}

/// Text that is no JSON of any dialect known here, or not of the shape that was wanted.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Not JSON.
    #[error("bad JSON at byte {at}: {reason}")]
    Syntax {
        /// Position of the first byte that does not fit.
        at: usize,
        /// What was wrong there.
        reason: &'static str,
    },
    /// JSON of another shape.
    #[error("unexpected JSON: {0}")]
    Shape(#[source] serde_json::Error),
}

/// Reads a value.
///
/// # Errors
/// The bytes are not JSON, or not of this shape.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JsonError> {
    // Nearly everything clients send is standard JSON.
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    serde_json::from_value(parse(bytes)?).map_err(JsonError::Shape)
}

/// Writes a value compactly.
///
/// # Panics
/// The value's own serialization fails, which those of this crate never do: their map keys are text, integers or [`ObjectKey`]s.
pub fn to_vec<T: Serialize + ?Sized>(dialect: Dialect, value: &T) -> Vec<u8> {
    match dialect {
        Dialect::Fastjson => write(value, Fastjson::new(false)),
        Dialect::Standard => write(value, Standard),
    }
}

/// Writes a value over several lines, as RocketMQ writes its state files: tabs, maps with integer keys on one line.
///
/// # Panics
/// As [`to_vec`].
pub fn to_vec_pretty<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    write(value, Fastjson::new(true))
}

fn write<T: Serialize + ?Sized>(value: &T, formatter: impl Formatter) -> Vec<u8> {
    let mut output = Vec::with_capacity(256);
    let mut serializer = serde_json::Serializer::with_formatter(&mut output, formatter);
    value.serialize(&mut serializer).expect("bodies have serializable keys and a vector takes every write");
    output
}

/// A map key that is an object, such as a message queue. Written without quotes in fastjson's dialect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey<T>(pub T);

thread_local! {
    /// Tells the writer that the string it is given is an [`ObjectKey`]: serde has no word for that, and a mark in the text could come from
    /// data too.
    static IS_OBJECT_KEY: Cell<bool> = const { Cell::new(false) };
}

impl<T: Serialize> Serialize for ObjectKey<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json = serde_json::to_string(&self.0).map_err(serde::ser::Error::custom)?;
        IS_OBJECT_KEY.set(true);
        let written = serializer.serialize_str(&json);
        IS_OBJECT_KEY.set(false);
        written
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for ObjectKey<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = String::deserialize(deserializer)?;
        serde_json::from_str(&json).map(ObjectKey).map_err(serde::de::Error::custom)
    }
}

/// fastjson's way to write. A key's quotes are held back until it shows itself to be text.
struct Fastjson {
    pretty: bool,
    indent: usize,
    has_members: bool,
    key: Key,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    /// Not within a key.
    None,
    /// A key has begun; nothing of it is written.
    Begun,
    Text,
    Number,
    Object,
}

impl Fastjson {
    fn new(pretty: bool) -> Fastjson {
        Fastjson { pretty, indent: 0, has_members: false, key: Key::None }
    }

    fn new_line<W: Write + ?Sized>(&self, writer: &mut W) -> io::Result<()> {
        if self.pretty {
            writer.write_all(b"\n")?;
            for _ in 0..self.indent {
                writer.write_all(b"\t")?;
            }
        }
        Ok(())
    }

    fn begin_text<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        if self.key == Key::Begun {
            self.key = Key::Text;
            self.new_line(writer)?;
            writer.write_all(b"\"")?;
        }
        Ok(())
    }

    fn number<W: Write + ?Sized>(&mut self, writer: &mut W, number: fmt::Arguments<'_>) -> io::Result<()> {
        if self.key == Key::Begun {
            self.key = Key::Number;
        }
        writer.write_fmt(number)
    }

    fn open<W: Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.indent += 1;
        self.has_members = false;
        writer.write_all(bracket)
    }

    fn close<W: Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.indent -= 1;
        if self.has_members {
            self.new_line(writer)?;
        }
        writer.write_all(bracket)
    }
}

macro_rules! numbers {
    ($($write:ident($type:ty),)*) => {
        $(fn $write<W: Write + ?Sized>(&mut self, writer: &mut W, value: $type) -> io::Result<()> {
            self.number(writer, format_args!("{value}"))
        })*
    };
}

impl Formatter for Fastjson {
    numbers! {
        write_i8(i8), write_i16(i16), write_i32(i32), write_i64(i64),
        write_u8(u8), write_u16(u16), write_u32(u32), write_u64(u64),
    }

    fn begin_string<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        if self.key == Key::None {
            return writer.write_all(b"\"");
        }
        if IS_OBJECT_KEY.get() {
            self.key = Key::Object;
        }
        Ok(())
    }

    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        self.begin_text(writer)?;
        writer.write_all(fragment.as_bytes())
    }

    fn write_char_escape<W: Write + ?Sized>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        match (self.key, &escape) {
            (Key::Object, CharEscape::Quote) => writer.write_all(b"\""),
            (Key::Object, CharEscape::ReverseSolidus) => writer.write_all(b"\\"),
            _ => {
                self.begin_text(writer)?;
                Standard.write_char_escape(writer, escape)
            }
        }
    }

    fn end_string<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin_text(writer)?;
        match self.key {
            Key::None | Key::Begun | Key::Text => writer.write_all(b"\""),
            Key::Number | Key::Object => Ok(()),
        }
    }

    fn begin_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        self.new_line(writer)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.has_members = true;
        Ok(())
    }

    fn begin_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.key = Key::Begun;
        if first { Ok(()) } else { writer.write_all(b",") }
    }

    fn end_object_key<W: Write + ?Sized>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.key = Key::None;
        Ok(())
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.has_members = true;
        Ok(())
    }
}

/// Standard JSON in pure ASCII.
struct Standard;

impl Formatter for Standard {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if fragment.is_ascii() {
            return writer.write_all(fragment.as_bytes());
        }
        for character in fragment.chars() {
            if character.is_ascii() {
                writer.write_all(&[character as u8])?;
            } else {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04X}")?;
                }
            }
        }
        Ok(())
    }
}

/// Reads any dialect into a value: object keys become their JSON text, members that are null are left out.
///
/// # Errors
/// The bytes are not JSON.
pub fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    let mut input = Input { bytes, at: 0 };
    let value = input.value(DEPTH_MAX)?;
    input.space();
    if input.at < bytes.len() {
        return Err(input.error("something follows the value"));
    }
    Ok(value)
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    fn error(&self, reason: &'static str) -> JsonError {
        JsonError::Syntax { at: self.at, reason }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.space();
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.error("nested too deeply"));
        };
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"' | b'\'') => self.string().map(Value::String),
            Some(_) => self.bare_value(),
            None => Err(self.error("a value must begin here")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.at += 1;
        let mut members = Map::new();
        while !self.take(b'}') {
            let key = match self.peek() {
                Some(b'"' | b'\'') => self.string()?,
                Some(b'{') => self.value(depth)?.to_string(),
                _ => self.bare_word()?.to_owned(),
            };
            if !self.take(b':') {
                return Err(self.error("a colon must follow the key"));
            }
            match self.value(depth)? {
                Value::Null => {}
                value => _ = members.insert(key, value),
            }
            if !self.take(b',') && self.peek() != Some(b'}') {
                return Err(self.error("a comma or the end of the object must follow"));
            }
        }
        Ok(Value::Object(members))
    }

    fn array(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.at += 1;
        let mut elements = Vec::new();
        while !self.take(b']') {
            elements.push(self.value(depth)?);
            if !self.take(b',') && self.peek() != Some(b']') {
                return Err(self.error("a comma or the end of the array must follow"));
            }
        }
        Ok(Value::Array(elements))
    }

    /// A run of the bytes that make up names, numbers and literals.
    fn bare_word(&mut self) -> Result<&str, JsonError> {
        let start = self.at;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'-' | b'+' | b'.');
        while self.peek().is_some_and(is_word) {
            self.at += 1;
        }
        std::str::from_utf8(&self.bytes[start..self.at])
            .ok()
            .filter(|word| !word.is_empty())
            .ok_or(JsonError::Syntax { at: start, reason: "unexpected byte" })
    }

    fn bare_value(&mut self) -> Result<Value, JsonError> {
        let at = self.at;
        let wrong = JsonError::Syntax { at, reason: "neither a number nor true, false or null" };
        match self.bare_word()? {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            "null" => Ok(Value::Null),
            word => match (word.parse::<i64>(), word.parse::<u64>(), word.parse::<f64>()) {
                (Ok(number), _, _) => Ok(number.into()),
                (_, Ok(number), _) => Ok(number.into()),
                (_, _, Ok(number)) => Number::from_f64(number).map(Value::Number).ok_or(wrong),
                _ => Err(wrong),
            },
        }
    }

    /// A string in either kind of quotes.
    fn string(&mut self) -> Result<String, JsonError> {
        let start = self.at;
        let quote = self.bytes[start];
        let mut end = start + 1;
        loop {
            match self.bytes.get(end) {
                None => return Err(self.error("the string does not end")),
                Some(b'\\') => end += 2,
                Some(byte) if *byte == quote => break,
                Some(_) => end += 1,
            }
        }
        let content = &self.bytes[start + 1..end];
        self.at = end + 1;
        if !content.contains(&b'\\') {
            return Ok(String::from_utf8_lossy(content).into_owned());
        }
        unescape(content).ok_or(JsonError::Syntax { at: start, reason: "unknown escape in a string" })
    }
}

/// Half of a surrogate pair becomes U+FFFD; `None` for an escape that JSON does not have.
fn unescape(content: &[u8]) -> Option<String> {
    let mut units = Vec::with_capacity(content.len());
    let text = String::from_utf8_lossy(content);
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let unit = match character {
            '\\' => match characters.next()? {
                'b' => 8,
                'f' => 12,
                'n' => 10,
                'r' => 13,
                't' => 9,
                'u' => {
                    let digits: String = characters.by_ref().take(4).collect();
                    u16::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 4)?
                }
                plain @ ('"' | '\'' | '\\' | '/') => plain as u16,
                _ => return None,
            },
            plain => {
                units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
                continue;
            }
        };
        units.push(unit);
    }
    Some(String::from_utf16_lossy(&units))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Queue {
        queue_id: i32,
        topic: String,
    }

    fn text(json: Vec<u8>) -> String {
        String::from_utf8(json).unwrap()
    }

    #[test]
    fn remoting_14_integer_keys_stand_without_quotes() {
        let table = BTreeMap::from([("T@g", BTreeMap::from([(0, 12_i64), (1, 9)]))]);
        assert_eq!(text(to_vec(Dialect::Fastjson, &table)), r#"{"T@g":{0:12,1:9}}"#);
    }

    #[test]
    fn remoting_15_integer_keys_stand_in_quotes_in_standard_json() {
        let table = BTreeMap::from([("Zürich😀", BTreeMap::from([(0, 12)]))]);
        assert_eq!(text(to_vec(Dialect::Standard, &table)), r#"{"Z\u00FCrich\uD83D\uDE00":{"0":12}}"#);
    }

    #[test]
    fn object_keys_stand_as_they_are_and_come_back() {
        let key = ObjectKey(Queue { queue_id: 0, topic: "a\"b\\".to_owned() });
        let table = BTreeMap::from([(key, 123_i64)]);
        let json = to_vec(Dialect::Fastjson, &table);
        assert_eq!(text(json.clone()), r#"{{"queueId":0,"topic":"a\"b\\"}:123}"#);
        assert_eq!(from_slice::<BTreeMap<ObjectKey<Queue>, i64>>(&json).unwrap(), table);
    }

    /// A topic of that name made the file of the deleted topics unreadable.
    #[test]
    fn no_text_of_a_key_makes_it_an_object() {
        for key in ["\0", "\0{", "\0{\"a\":1}", "\0\0", "a\0", "\u{1}{", "{\"a\":1"] {
            let table = BTreeMap::from([(key.to_owned(), 1)]);
            for written in [to_vec_pretty(&table), to_vec(Dialect::Fastjson, &table), to_vec(Dialect::Standard, &table)]
            {
                assert_eq!(serde_json::from_slice::<BTreeMap<String, i32>>(&written).unwrap(), table, "{key:?}");
            }
        }
    }

    #[test]
    fn object_keys_are_text_in_standard_json() {
        let table = BTreeMap::from([(ObjectKey(Queue { queue_id: 0, topic: "T".to_owned() }), 123_i64)]);
        let json = text(to_vec(Dialect::Standard, &table));
        assert_eq!(json, r#"{"{\"queueId\":0,\"topic\":\"T\"}":123}"#);
    }

    #[test]
    fn schedule_4_6_a_state_file_is_laid_out_as_rocketmq_lays_it_out() {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct DelayOffsets {
            data_version: Value,
            offset_table: BTreeMap<i32, i64>,
        }
        let offsets = DelayOffsets {
            data_version: json!({"counter": 7, "stateVersion": 0, "timestamp": 1_700_000_000_000_i64}),
            offset_table: BTreeMap::from([(1, 3), (2, 5), (18, 0)]),
        };
        let wanted = "{\n\t\"dataVersion\":{\n\t\t\"counter\":7,\n\t\t\"stateVersion\":0,\n\t\t\"timestamp\":1700000000000\n\t},\n\
                      \t\"offsetTable\":{1:3,2:5,18:0\n\t}\n}";
        assert_eq!(text(to_vec_pretty(&offsets)), wanted);
        assert_eq!(
            text(to_vec_pretty(&json!({"a": {}, "b": [], "c": [1]}))),
            "{\n\t\"a\":{},\n\t\"b\":[],\n\t\"c\":[\n\t\t1\n\t]\n}"
        );
    }

    #[test]
    fn what_fastjson_tolerates_is_read() {
        let read = parse(br#" { a : 1, 'b':'x\'y', 7:[true,null,],"c":null,{"q":1}:2.5, } "#).unwrap();
        assert_eq!(read, json!({"a": 1, "b": "x'y", "7": [true, null], "{\"q\":1}": 2.5}));
    }

    #[test]
    fn surrogate_pairs_become_one_character_and_halves_a_replacement() {
        assert_eq!(parse(br#""\ud83d\ude00\n\ud83d""#).unwrap(), json!("😀\n\u{FFFD}"));
    }

    #[test]
    fn broken_json_is_refused() {
        for bad in ["", "{", "{\"a\"}", "[1 2]", "{\"a\":1}x", "\"\\q\"", "\"a", "\"\\", "{:1}", "nul", "\"\\u12\""] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
        assert!(parse("{".repeat(100_000).as_bytes()).is_err());
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..5).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(value in values()) {
            prop_assert_eq!(&parse(&to_vec(Dialect::Fastjson, &value)).unwrap(), &value);
            prop_assert_eq!(&parse(&to_vec_pretty(&value)).unwrap(), &value);
            prop_assert_eq!(&serde_json::from_slice::<Value>(&to_vec(Dialect::Standard, &value)).unwrap(), &value);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn almost_json_never_panics(text in r#"[\{\}\[\],:"'\\u0-9a-f ]{0,40}"#) {
            let _ = parse(text.as_bytes());
        }
    }
}
