//! Small bodies: lists and tables.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::topic::DataVersion;

/// Topic names: response body of codes 206, 224, 304, 305 and others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicList {
    /// A broker that can be asked for more; 304 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_addr: Option<String>,
    /// The topics.
    pub topic_list: Vec<String>,
}

/// Response body of code 38: the client ids of a group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerIds {
    /// The ids, in any order.
    pub consumer_id_list: Vec<String>,
}

/// Names with texts: response body of codes 28, 103 and 219.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvTable {
    /// The table.
    pub table: BTreeMap<String, String>,
}

/// Consumer offsets: response body of code 43 and content of `consumerOffset.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerOffsets {
    /// Version of the table.
    pub data_version: DataVersion,
    /// `topic@group` to queue id to next queue offset to consume.
    pub offset_table: BTreeMap<String, BTreeMap<i32, i64>>,
}

/// Progress of the delay levels: response body of code 45 and content of `delayOffset.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DelayOffsets {
    /// Version of the table.
    pub data_version: DataVersion,
    /// Level (queue id + 1) to next queue offset of that queue of the schedule topic.
    pub offset_table: BTreeMap<i32, i64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json::{self, Dialect};

    #[test]
    fn store_23_bare_integer_keys_load_and_are_written() {
        let text = br#"{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1700000000000},"offsetTable":{"T@G":{0:12,1:9}}}"#;
        let offsets: ConsumerOffsets = json::from_slice(text).unwrap();
        assert_eq!(offsets.offset_table["T@G"], BTreeMap::from([(0, 12), (1, 9)]));
        assert_eq!(json::to_vec(Dialect::Fastjson, &offsets), text);
    }

    #[test]
    fn remoting_87_levels_are_unquoted_keys() {
        let offsets: DelayOffsets = json::from_slice(br#"{"offsetTable":{"1":123,2:7}}"#).unwrap();
        let json = json::to_vec(Dialect::Fastjson, &offsets);
        assert!(String::from_utf8(json).unwrap().ends_with(r#""offsetTable":{1:123,2:7}}"#));
    }
}
