//! Settings of consumer groups.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::topic::DataVersion;

/// Settings of one consumer group: body of codes 200 and 352.
///
/// Source: Apache RocketMQ, `SubscriptionGroupConfig`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionGroupConfig {
    /// Attributes; never absent.
    pub attributes: BTreeMap<String, String>,
    /// From which broker id consumers should read.
    pub broker_id: i64,
    /// Whether it may consume in broadcasting mode.
    pub consume_broadcast_enable: bool,
    /// Whether it may consume at all.
    pub consume_enable: bool,
    /// Whether it may begin at the first offset.
    pub consume_from_min_enable: bool,
    /// Whether it consumes in order.
    pub consume_message_orderly: bool,
    /// After how many minutes a client gives up on a message.
    pub consume_timeout_minute: i32,
    /// Name of the group.
    pub group_name: String,
    /// How retries are spaced; not interpreted.
    pub group_retry_policy: Value,
    /// System flag.
    pub group_sys_flag: i32,
    /// Whether members are told when others join or leave.
    pub notify_consumer_ids_changed_enable: bool,
    /// After how many retries a message is dead.
    pub retry_max_times: i32,
    /// Queues of its retry topic; 0 drops what consumers send back.
    pub retry_queue_nums: i32,
    /// From which broker id to read when consumption is slow.
    pub which_broker_when_consume_slowly: i64,
    /// Members of other versions, kept as they are.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

impl Default for SubscriptionGroupConfig {
    fn default() -> Self {
        SubscriptionGroupConfig {
            attributes: BTreeMap::new(),
            broker_id: 0,
            consume_broadcast_enable: true,
            consume_enable: true,
            consume_from_min_enable: true,
            consume_message_orderly: false,
            consume_timeout_minute: 15,
            group_name: String::new(),
            group_retry_policy: json!({"type": "CUSTOMIZED"}),
            group_sys_flag: 0,
            notify_consumer_ids_changed_enable: true,
            retry_max_times: 16,
            retry_queue_nums: 1,
            which_broker_when_consume_slowly: 1,
            others: Map::new(),
        }
    }
}

/// Settings of all groups: response body of code 201 and content of `subscriptionGroup.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionGroups {
    /// Version of the table.
    pub data_version: DataVersion,
    /// Group to topic to forbidden bits; kept as they are.
    pub forbidden_table: BTreeMap<String, BTreeMap<String, i32>>,
    /// Group name to settings.
    pub subscription_group_table: BTreeMap<String, SubscriptionGroupConfig>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json::{self, Dialect};

    #[test]
    fn a_new_group_is_written_as_rocketmq_writes_it() {
        let config = SubscriptionGroupConfig { group_name: "g".to_owned(), ..SubscriptionGroupConfig::default() };
        let text = r#"{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}"#;
        assert_eq!(json::to_vec(Dialect::Fastjson, &config), text.as_bytes());
    }
}
