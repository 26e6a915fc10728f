//! The properties of a message.
//!
//! One byte string, `name 0x01 value 0x02` repeated; the last 0x02 may be missing (Java clients 4.9.2 to 5.1 leave it out). Readers drop
//! pieces shorter than three bytes, with an empty name or an empty value; of two pairs with one name the later counts.
//!
//! Source: Apache RocketMQ, `org.apache.rocketmq.common.message.MessageDecoder`.

use std::{borrow::Cow, fmt, mem};

use bytes::Bytes;

use super::pieces::{self, NAME_END, PAIR_END, name_end};

/// About as many pairs as a message has, the broker's among them.
const PAIRS_EXPECTED: usize = 16;

/// Names of the properties that the broker reads or writes.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.common.message.MessageConst`.
pub mod names {
    /// The delay level, decimal.
    pub const DELAY: &str = "DELAY";
    /// The topic a waiting message goes to.
    pub const REAL_TOPIC: &str = "REAL_TOPIC";
    /// The queue a waiting message goes to, decimal.
    pub const REAL_QID: &str = "REAL_QID";
    /// `false`: the producer does not wait until the message is durable.
    pub const WAIT: &str = "WAIT";
    /// The message's tag.
    pub const TAGS: &str = "TAGS";
    /// Keys to find the message by, separated by single spaces.
    pub const KEYS: &str = "KEYS";
    /// The producer's own id of the message.
    pub const UNIQ_KEY: &str = "UNIQ_KEY";
    /// The topic a retried message came from.
    pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
    /// The offset message id of a retried message's first record.
    pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
    /// `true`: a half message.
    pub const TRAN_MSG: &str = "TRAN_MSG";
    /// The producer group.
    pub const PGROUP: &str = "PGROUP";
    /// Relative delay in seconds.
    pub const TIMER_DELAY_SEC: &str = "TIMER_DELAY_SEC";
    /// Relative delay in milliseconds.
    pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
    /// Absolute deliver time, milliseconds since the epoch.
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
    /// The deliver time a timer wheel chose.
    pub const TIMER_OUT_MS: &str = "TIMER_OUT_MS";
    /// The region; shown to consumers' trace hooks.
    pub const MSG_REGION: &str = "MSG_REGION";
    /// Whether message tracing is on.
    pub const TRACE_ON: &str = "TRACE_ON";
    /// The cluster's name; needed by request-reply.
    pub const CLUSTER: &str = "CLUSTER";
    /// A pop consumer's receipt; never taken from a client.
    pub const POP_CK: &str = "POP_CK";
}

/// The properties of one message, owned and editable. The text is looked through once, when it is taken or changed in its middle; after
/// that any name is found by the pairs noted then.
#[derive(Clone, Default)]
pub struct Properties {
    text: Vec<u8>,
    pairs: Vec<Pair>,
}

/// Where a pair that counts lies in the text. Properties are never longer than the frame they came in.
#[derive(Clone, Copy)]
struct Pair {
    /// Where its name begins.
    from: u32,
    /// Where its name ends, and the value begins one byte behind.
    name_end: u32,
    /// Where its value ends.
    end: u32,
}

/// The properties of one message, borrowed from its record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PropertiesView<'a> {
    text: &'a [u8],
}

impl Properties {
    /// No properties.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the text as a client or a record has it.
    pub fn from_text(text: impl Into<Vec<u8>>) -> Self {
        let text = text.into();
        let mut pairs = Vec::with_capacity(PAIRS_EXPECTED);
        pieces::each(&text, |from, end| pairs.extend(Pair::of(&text, from, end)));
        Self { text, pairs }
    }

    /// A view for reading.
    pub fn view(&self) -> PropertiesView<'_> {
        PropertiesView { text: &self.text }
    }

    /// The values of several names, as they stand in the text.
    pub fn find<const N: usize>(&self, names: [&str; N]) -> [Option<&[u8]>; N] {
        let mut values = [None; N];
        // Most pairs are passed over by the length of their name alone.
        let lengths = names.iter().fold(0_u64, |lengths, name| lengths | 1 << (name.len() % 64));
        for pair in &self.pairs {
            if lengths >> ((pair.name_end - pair.from) % 64) & 1 == 0 {
                continue;
            }
            let found = self.name(pair);
            for (name, slot) in names.iter().zip(&mut values) {
                if name.as_bytes() == found {
                    *slot = Some(self.value(pair));
                }
            }
        }
        values
    }

    fn name(&self, pair: &Pair) -> &[u8] {
        &self.text[pair.from as usize..pair.name_end as usize]
    }

    fn value(&self, pair: &Pair) -> &[u8] {
        &self.text[pair.name_end as usize + 1..pair.end as usize]
    }

    /// The value of `name`, if it is there and is UTF-8.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_bytes(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The value of `name` as it stands in the text.
    pub fn get_bytes(&self, name: &str) -> Option<&[u8]> {
        let [value] = self.find([name]);
        value
    }

    /// Whether there is a value of `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.get_bytes(name).is_some()
    }

    /// Sets `name` to `value`, replacing what was there. An empty value removes the name, since readers would drop the pair.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.replace(&[], &[(name, value.as_ref())]);
    }

    /// Removes every pair called `name`; says whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.text.len();
        self.replace(&[name], &[]);
        self.text.len() < before
    }

    /// Takes every pair out whose name is among `gone` or those of `new`, and puts `new` at the end, in one pass. As with
    /// [`Properties::set`] an empty value only takes a name out.
    pub fn replace(&mut self, gone: &[&str], new: &[(&str, &[u8])]) {
        let goes = |name: &[u8]| {
            let is_named = |gone: &str| gone.as_bytes() == name;
            gone.iter().any(|gone| is_named(gone)) || new.iter().any(|(gone, _)| is_named(gone))
        };
        let before = mem::take(&mut self.text);
        self.text.reserve(before.len());
        self.pairs.clear();
        pieces::each(&before, |from, end| {
            let piece = &before[from..end];
            if name_end(piece).is_some_and(|name_end| goes(&piece[..name_end])) {
                return;
            }
            let kept = self.text.len();
            self.text.extend_from_slice(&before[from..before.len().min(end + 1)]);
            self.pairs.extend(Pair::of(&self.text, kept, kept + piece.len()));
        });
        for (name, value) in new {
            self.add(name, value);
        }
    }

    /// Puts a pair at the end whose name is not there yet; an empty value adds nothing.
    pub fn add(&mut self, name: &str, value: &[u8]) {
        if name.is_empty() || value.is_empty() {
            return;
        }
        if self.text.last().is_some_and(|&last| last != PAIR_END) {
            self.text.push(PAIR_END);
        }
        self.text.reserve(name.len() + value.len() + 2);
        let from = self.text.len() as u32;
        self.text.extend_from_slice(name.as_bytes());
        let name_end = self.text.len() as u32;
        self.text.push(NAME_END);
        self.text.extend_from_slice(value);
        self.pairs.push(Pair { from, name_end, end: self.text.len() as u32 });
        self.text.push(PAIR_END);
    }

    /// The encoded text, as it goes into a record.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// The encoded length in bytes.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether there is no text at all.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

impl From<&[u8]> for Properties {
    fn from(text: &[u8]) -> Self {
        Self::from_text(text)
    }
}

impl From<Bytes> for Properties {
    fn from(text: Bytes) -> Self {
        Self::from_text(text)
    }
}

impl PartialEq for Properties {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Properties {}

impl Pair {
    /// The pair of a piece of `text`, unless readers drop it.
    fn of(text: &[u8], from: usize, end: usize) -> Option<Self> {
        let name_bytes = name_end(&text[from..end])?;
        let name_end = from + name_bytes;
        let counts = name_bytes > 0 && end > name_end + 1;
        counts.then_some(Self { from: from as u32, name_end: name_end as u32, end: end as u32 })
    }
}

impl<'a> PropertiesView<'a> {
    /// Reads the text of a record or a request.
    pub fn new(text: &'a [u8]) -> Self {
        Self { text }
    }

    /// The pairs in the order of the text, those that readers drop left out.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.text.split(|byte| *byte == PAIR_END).filter_map(|piece| {
            let (name, value) = piece.split_at(name_end(piece)?);
            let value = &value[1..];
            (!name.is_empty() && !value.is_empty()).then_some((name, value))
        })
    }

    /// The values of several names, in one pass, as they stand in the text.
    #[inline]
    pub fn find<const N: usize>(self, names: [&str; N]) -> [Option<&'a [u8]>; N] {
        pieces::values(self.text, names)
    }

    /// The value of `name`, if it is there and is UTF-8.
    pub fn get(self, name: &str) -> Option<&'a str> {
        self.get_bytes(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The value of `name` as it stands in the text.
    pub fn get_bytes(self, name: &str) -> Option<&'a [u8]> {
        let [value] = self.find([name]);
        value
    }

    /// The pairs as text, bytes that are not UTF-8 replaced.
    pub fn to_pairs(self) -> Vec<(Cow<'a, str>, Cow<'a, str>)> {
        self.iter().map(|(name, value)| (String::from_utf8_lossy(name), String::from_utf8_lossy(value))).collect()
    }

    /// The encoded text.
    pub fn as_bytes(self) -> &'a [u8] {
        self.text
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

impl fmt::Debug for PropertiesView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.to_pairs()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_19_store_7_a_missing_last_separator_changes_nothing() {
        let with = Properties::from_text(&b"A\x011\x02B\x012\x02"[..]);
        let without = Properties::from_text(&b"A\x011\x02B\x012"[..]);

        assert_eq!(with.view().to_pairs(), without.view().to_pairs());
        assert_eq!(without.get("B"), Some("2"));
    }

    #[test]
    fn remoting_29_pieces_without_name_or_value_are_dropped() {
        let properties = Properties::from_text(&b"A\x01\x02\x01x\x02B\x02C\x01c\x02"[..]);

        assert_eq!(properties.view().iter().count(), 1);
        assert_eq!(properties.get("A"), None);
        assert_eq!(properties.get("C"), Some("c"));
    }

    #[test]
    fn replacing_is_removing_and_setting_in_one_pass() {
        for text in
            ["", "A\x011\x02B\x012\x02A\x013", "AB\x011\x02A\x01\x02C\x02B\x01\x01\x02", "B\x012\x02D\x014\x02x"]
        {
            let mut replaced = Properties::from_text(text);
            replaced.replace(&["A", "Z"], &[("B", b"9"), ("E", b""), ("D", b"8")]);

            let mut one_by_one = Properties::from_text(text);
            one_by_one.remove("A");
            for (name, value) in [("B", "9"), ("E", ""), ("D", "8")] {
                one_by_one.set(name, value);
            }
            assert_eq!(replaced.view().to_pairs(), one_by_one.view().to_pairs(), "{text:?}");
            assert_eq!(
                replaced.view().find(["A", "B", "C"]),
                ["A", "B", "C"].map(|name| replaced.view().get_bytes(name))
            );
        }
    }

    #[test]
    fn the_later_of_two_pairs_with_one_name_counts() {
        assert_eq!(Properties::from_text(&b"A\x011\x02A\x012\x02"[..]).get("A"), Some("2"));
    }

    #[test]
    fn set_replaces_every_earlier_pair_and_mends_a_missing_separator() {
        let mut properties = Properties::from_text(&b"AB\x010\x02A\x011\x02A\x012\x02B\x013"[..]);

        properties.set("A", "9");

        assert_eq!(properties.as_bytes(), b"AB\x010\x02B\x013\x02A\x019\x02");
    }

    #[test]
    fn remove_takes_only_the_whole_name() {
        let mut properties = Properties::from_text(&b"WAITING\x011\x02WAIT\x01true"[..]);

        assert!(properties.remove("WAIT"));
        assert!(!properties.remove("WAIT"));
        assert_eq!(properties.as_bytes(), b"WAITING\x011\x02");
    }
}
