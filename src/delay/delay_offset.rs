//! `config/delayOffset.json`: RocketMQ's file of how far each level is delivered.
//!
//! Ours is derived from the log, for RocketMQ's tools: for each level the oldest queue offset that is not delivered, of any generation. What
//! Apache RocketMQ left there is believed only for messages of its own, and only if nothing better is known.
//!
//! As fastjson prints it, each nested member on a line of its own, indented by tabs:
//!
//! ```text
//! {
//!     "dataVersion":{
//!         "counter":7,
//!         "stateVersion":0,
//!         "timestamp":1700000000000
//!     },
//!     "offsetTable":{1:3,2:5
//!     }
//! }
//! ```
//!
//! The keys of the table are numbers without quotes, which is not JSON; readers take quoted keys too, a missing `dataVersion`, and members they
//! do not know.
//!
//! Source: Apache RocketMQ, `org.apache.rocketmq.broker.schedule.DelayOffsetSerializeWrapper`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::DelayLevel;
use crate::model::Timestamp;

/// Name of the file in the folder `config`.
pub(super) const DELAY_OFFSET_FILE: &str = "delayOffset.json";
/// How many changed offsets make a new version. Key `delayOffsetUpdateVersionStep` of RocketMQ.
pub(super) const VERSION_STEP: u64 = 200;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DelayOffset {
    /// Grows by 1 with every [`VERSION_STEP`] delivered messages.
    pub(super) counter: u64,
    /// When it last grew.
    pub(super) timestamp: Timestamp,
    /// For each level used so far the next queue offset to deliver.
    pub(super) offsets: BTreeMap<DelayLevel, u64>,
}

impl DelayOffset {
    /// The text of the file, as fastjson prints it.
    pub(super) fn to_text(&self) -> String {
        let Self { counter, timestamp, .. } = self;
        let table = self.table();
        format!(
            "{{\n\t\"dataVersion\":{{\n\t\t\"counter\":{counter},\n\t\t\"stateVersion\":0,\n\t\t\"timestamp\":{timestamp}\n\t}},\n\t\"offsetTable\":{{{table}\n\t}}\n}}"
        )
    }

    fn table(&self) -> String {
        let pairs: Vec<String> = self.offsets.iter().map(|(level, offset)| format!("{level}:{offset}")).collect();
        pairs.join(",")
    }

    /// Reads the file. Negative offsets count as 0; levels that are no number above 0 are passed over.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(&quote_keys(text)).map_err(|error| error.to_string())?;
        let Value::Object(members) = value else { return Err("it is no JSON object".into()) };
        let version = |name| members.get("dataVersion").and_then(|version| version.get(name)).and_then(Value::as_i64);
        let offsets = match members.get("offsetTable") {
            None | Some(Value::Null) => BTreeMap::new(),
            Some(Value::Object(table)) => {
                let entries = table.iter().filter_map(|(level, offset)| {
                    let level = level.parse().ok().and_then(DelayLevel::new)?;
                    let found = offset.as_i64()?;
                    if found < 0 {
                        tracing::warn!(delay_level = %level, found, used = 0, "a negative offset in delayOffset.json");
                    }
                    Some((level, u64::try_from(found).unwrap_or(0)))
                });
                entries.collect()
            }
            Some(_) => return Err("offsetTable is no object".into()),
        };
        Ok(Self {
            counter: version("counter").and_then(|counter| u64::try_from(counter).ok()).unwrap_or(0),
            timestamp: Timestamp(version("timestamp").unwrap_or(0)),
            offsets,
        })
    }
}

/// Puts quotes around keys that are bare numbers.
fn quote_keys(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 64);
    let mut containers = Vec::new();
    let mut in_string = false;
    let mut escaped = false;
    let mut at_key = false;
    let mut in_number = false;
    for c in text.chars() {
        if in_number && !c.is_ascii_digit() {
            quoted.push('"');
            in_number = false;
        }
        if in_string {
            in_string = c != '"' || escaped;
            escaped = c == '\\' && !escaped;
        } else {
            match c {
                '{' | '[' => {
                    containers.push(c);
                    at_key = c == '{';
                }
                '}' | ']' => {
                    containers.pop();
                    at_key = false;
                }
                ',' => at_key = containers.last() == Some(&'{'),
                '"' => {
                    in_string = true;
                    at_key = false;
                }
                '0'..='9' | '-' if at_key => {
                    quoted.push('"');
                    in_number = true;
                    at_key = false;
                }
                c if c.is_whitespace() => {}
                _ => at_key = false,
            }
        }
        quoted.push(c);
    }
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offsets(pairs: &[(u32, u64)]) -> BTreeMap<DelayLevel, u64> {
        pairs.iter().map(|&(level, offset)| (DelayLevel::new(level).unwrap(), offset)).collect()
    }

    #[test]
    fn schedule_47_the_text_is_what_apache_writes() {
        let file = DelayOffset {
            counter: 3,
            timestamp: Timestamp(1_796_045_226_979),
            offsets: offsets(&[(1, 14), (2, 9), (3, 8), (6, 0), (7, 0), (8, 0)]),
        };

        assert_eq!(
            file.to_text(),
            "{\n\t\"dataVersion\":{\n\t\t\"counter\":3,\n\t\t\"stateVersion\":0,\n\t\t\"timestamp\":1796045226979\n\t},\n\t\"offsetTable\":{1:14,2:9,3:8,6:0,7:0,8:0\n\t}\n}"
        );
        assert_eq!(DelayOffset::parse(&file.to_text()).unwrap(), file);
    }

    #[test]
    fn schedule_46_quoted_keys_and_unknown_or_missing_members_are_read() {
        // B92
        for text in [
            r#"{"offsetTable":{"1":3,"2":5}}"#,
            r#"{"offsetTable":{1:3, 2 :5},"more":[1,2,{3:4}],"text":"{1:2,\"3:"}"#,
            "{\"dataVersion\":{\"counter\":0},\n\"offsetTable\":{\n\t1:3,\n\t2:5,0:9,-1:9,\"x\":1\n}}",
        ] {
            assert_eq!(DelayOffset::parse(text).unwrap().offsets, offsets(&[(1, 3), (2, 5)]), "{text}");
        }
        assert_eq!(DelayOffset::parse("{}").unwrap(), DelayOffset::default());
    }

    #[test]
    fn a_negative_offset_counts_as_zero() {
        assert_eq!(DelayOffset::parse(r#"{"offsetTable":{1:-5}}"#).unwrap().offsets, offsets(&[(1, 0)]));
    }

    #[test]
    fn a_broken_text_is_an_error() {
        for text in ["", "\0\0\0", "[]", "{", r#"{"offsetTable":[1]}"#, r#"{"offsetTable":{1:3"#] {
            assert!(DelayOffset::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn the_text_comes_back_as_it_was(
            counter in 0..u64::MAX / 2,
            timestamp in any::<i64>(),
            table in prop::collection::btree_map(1..2000u32, 0..u64::MAX / 2, 0..20),
        ) {
            let offsets = table.into_iter().map(|(level, offset)| (DelayLevel::new(level).unwrap(), offset)).collect();
            let file = DelayOffset { counter, timestamp: Timestamp(timestamp), offsets };

            prop_assert_eq!(&DelayOffset::parse(&file.to_text()).unwrap(), &file);
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[{}\\[\\],:\"\\\\ 0-9a-z\\-]{0,60}") {
            let _ = DelayOffset::parse(&text);
        }
    }
}
