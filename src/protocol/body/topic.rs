//! Settings of topics, and the version such tables carry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Version of a table. Ordered by state version, then counter, then timestamp.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.remoting.protocol.DataVersion`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVersion {
    /// Number of changes.
    pub counter: i64,
    /// Epoch of the master; 0 outside controller mode.
    pub state_version: i64,
    /// Time of the last change, in milliseconds.
    pub timestamp: i64,
}

impl DataVersion {
    /// The version after one more change at `now_ms`.
    #[must_use]
    pub fn next(self, now_ms: i64) -> DataVersion {
        DataVersion { counter: self.counter + 1, state_version: self.state_version, timestamp: now_ms }
    }
}

impl PartialOrd for DataVersion {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DataVersion {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |version: &DataVersion| (version.state_version, version.counter, version.timestamp);
        key(self).cmp(&key(other))
    }
}

/// Settings of one topic.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.common.TopicConfig`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicConfig {
    /// Attributes such as `message.type`; never absent.
    pub attributes: BTreeMap<String, String>,
    /// Whether it is an order topic.
    pub order: bool,
    /// Permission bits: 4 read, 2 write, 1 inherit.
    pub perm: i32,
    /// Queues that consumers read.
    pub read_queue_nums: i32,
    /// `SINGLE_TAG` or `MULTI_TAG`.
    pub topic_filter_type: String,
    /// Name of the topic.
    pub topic_name: String,
    /// Bit 0 unit, bit 1 unit subscription.
    pub topic_sys_flag: i32,
    /// Queues that producers write.
    pub write_queue_nums: i32,
    /// Members of other versions, kept as they are.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

impl Default for TopicConfig {
    /// A topic without name: 16 queues to read and write, as in RocketMQ.
    fn default() -> Self {
        TopicConfig {
            attributes: BTreeMap::new(),
            order: false,
            perm: 6,
            read_queue_nums: 16,
            topic_filter_type: "SINGLE_TAG".to_owned(),
            topic_name: String::new(),
            topic_sys_flag: 0,
            write_queue_nums: 16,
            others: Map::new(),
        }
    }
}

/// Settings of all topics: response body of code 21, part of a registration, and content of `topics.json`.
///
/// Source: Apache RocketMQ, `TopicConfigAndMappingSerializeWrapper`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicConfigs {
    /// Version of the table.
    pub data_version: DataVersion,
    /// Topic name to settings.
    pub topic_config_table: BTreeMap<String, TopicConfig>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json::{self, Dialect};

    #[test]
    fn a_topic_config_is_written_as_rocketmq_writes_it() {
        let text = r#"{"attributes":{},"order":false,"perm":6,"readQueueNums":6,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":6}"#;
        let config: TopicConfig = json::from_slice(text.as_bytes()).unwrap();
        assert_eq!(json::to_vec(Dialect::Fastjson, &config), text.as_bytes());
    }

    #[test]
    fn members_of_other_versions_survive() {
        let config: TopicConfig = json::from_slice(br#"{"topicName":"T","liteTopic":{"a":[1]}}"#).unwrap();
        let json = json::to_vec(Dialect::Fastjson, &config);
        assert!(String::from_utf8(json).unwrap().contains(r#""liteTopic":{"a":[1]}"#));
    }

    #[test]
    fn data_versions_compare_by_state_then_counter_then_time() {
        let version = |state_version, counter, timestamp| DataVersion { counter, state_version, timestamp };
        assert!(version(1, 0, 0) > version(0, 9, 9));
        assert!(version(0, 2, 0) > version(0, 1, 9));
        assert!(version(0, 1, 2) > version(0, 1, 1));
        assert_eq!(version(0, 1, 5).next(8), version(0, 2, 8));
    }
}
