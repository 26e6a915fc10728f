//! Bodies by which clients tell who they are: HEART_BEAT and CHECK_CLIENT_CONFIG.

use serde::{Deserialize, Deserializer, Serialize};

/// Body of code 34: every group of one client.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.remoting.protocol.heartbeat.HeartbeatData`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HeartbeatData {
    /// Id of the client.
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// Its consumer groups.
    pub consumer_data_set: Vec<ConsumerData>,
    /// Hash of the subscriptions; 0 in heartbeats of the first kind.
    pub heartbeat_fingerprint: i32,
    /// Its producer groups.
    pub producer_data_set: Vec<ProducerData>,
    /// Whether the subscriptions were left out because the broker knows them.
    pub without_sub: bool,
}

/// One producer group of a client.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProducerData {
    /// Name of the group.
    pub group_name: String,
}

/// One consumer group of a client.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerData {
    /// Where a group without offsets begins.
    pub consume_from_where: ConsumeFromWhere,
    /// How it gets its messages.
    pub consume_type: ConsumeType,
    /// Name of the group.
    pub group_name: String,
    /// Whether the members share the messages.
    pub message_model: MessageModel,
    /// What it subscribes to.
    pub subscription_data_set: Vec<SubscriptionData>,
    /// Unit mode; of no effect.
    pub unit_mode: bool,
}

/// Where a group without offsets begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "RocketMQ's names; the last three are obsolete")]
pub enum ConsumeFromWhere {
    #[default]
    ConsumeFromLastOffset,
    ConsumeFromFirstOffset,
    ConsumeFromTimestamp,
    ConsumeFromLastOffsetAndFromMinWhenBootFirst,
    ConsumeFromMinOffset,
    ConsumeFromMaxOffset,
}

/// How a consumer gets its messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ConsumeType {
    /// Pull and lite pull consumers.
    ConsumeActively,
    /// Push consumers.
    #[default]
    ConsumePassively,
    /// Pop consumers.
    ConsumePop,
}

/// Whether the members of a group share its messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum MessageModel {
    /// Each message goes to one member.
    #[default]
    Clustering,
    /// Each message goes to every member; they keep their offsets themselves.
    Broadcasting,
}

/// Subscription of a group to one topic.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionData {
    /// Class filter; obsolete.
    pub class_filter_mode: bool,
    /// Hashes of the tags as the client computed them. The Go client's differ for tags that are not ASCII.
    #[serde(deserialize_with = "numbers_or_strings")]
    pub code_set: Vec<i32>,
    /// `TAG` or `SQL92`; empty means `TAG`.
    pub expression_type: String,
    /// The expression: `*`, or tags joined by `||`.
    pub sub_string: String,
    /// Grows with each change of the subscription.
    pub sub_version: i64,
    /// The tags; empty for all.
    pub tags_set: Vec<String>,
    /// The topic.
    pub topic: String,
}

/// Body of code 46: a subscription that is no tag expression, to be checked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CheckClientRequest {
    /// Id of the client.
    pub client_id: String,
    /// Its consumer group.
    pub group: String,
    /// Its namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The subscription.
    pub subscription_data: SubscriptionData,
}

/// Java writes tag codes as numbers, Go as strings.
fn numbers_or_strings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<i32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Code {
        Number(i32),
        Text(String),
    }
    let codes = Vec::<Code>::deserialize(deserializer)?;
    let number = |code| match code {
        Code::Number(number) => Ok(number),
        Code::Text(text) => text.parse().map_err(serde::de::Error::custom),
    };
    codes.into_iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json;

    #[test]
    fn remoting_48_tag_codes_may_be_numbers_or_strings() {
        for codes in ["[2598919]", "[\"2598919\"]"] {
            let subscription = format!("{{\"codeSet\":{codes},\"tagsSet\":[\"TagA\"],\"topic\":\"T\"}}");
            let subscription: SubscriptionData = json::from_slice(subscription.as_bytes()).unwrap();
            assert_eq!(subscription.code_set, [2_598_919]);
        }
    }

    #[test]
    fn members_that_are_null_count_as_absent() {
        let heartbeat: HeartbeatData = json::from_slice(
            br#"{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeFromWhere":null,"subscriptionDataSet":null}],"producerDataSet":null}"#,
        )
        .unwrap();
        assert_eq!(heartbeat.consumer_data_set[0].group_name, "g");
        assert!(heartbeat.producer_data_set.is_empty());
    }
}
