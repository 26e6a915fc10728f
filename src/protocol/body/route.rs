//! Bodies that tell where topics and brokers are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::protocol::json::{self, Dialect};

/// Version of clients from which on route data is read as standard JSON: 4.9.4.
const STANDARD_JSON_VERSION: i32 = 401;

/// Response body of code 105: which brokers have a topic, and how many queues of it.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.remoting.protocol.route.TopicRouteData`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicRouteData {
    /// The brokers.
    pub broker_datas: Vec<BrokerData>,
    /// Obsolete; always written.
    pub filter_server_table: BTreeMap<String, Vec<String>>,
    /// Queue counts of an order topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_topic_conf: Option<String>,
    /// The queues on each broker.
    pub queue_datas: Vec<QueueData>,
}

impl TopicRouteData {
    /// The body for a client of that version: standard JSON if it is new enough or asks for it, else integer keys without quotes,
    /// which the parser of older Go clients needs.
    pub fn to_json(&self, client_version: i32, accept_standard_json_only: bool) -> Vec<u8> {
        let standard = client_version >= STANDARD_JSON_VERSION || accept_standard_json_only;
        json::to_vec(if standard { Dialect::Standard } else { Dialect::Fastjson }, self)
    }
}

/// A broker name and the addresses behind it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerData {
    /// Broker id to `ip:port`; id 0 is the master.
    pub broker_addrs: BTreeMap<i64, String>,
    /// Name of the broker.
    pub broker_name: String,
    /// Its cluster.
    pub cluster: String,
    /// Whether a slave may stand in for the master.
    pub enable_acting_master: bool,
}

/// Queues of a topic on one broker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueueData {
    /// Name of the broker.
    pub broker_name: String,
    /// Permission bits: 4 read, 2 write, 1 inherit.
    pub perm: i32,
    /// Queues that consumers read.
    pub read_queue_nums: i32,
    /// Bit 0 unit, bit 1 unit subscription. Called `topicSynFlag` by old versions.
    #[serde(alias = "topicSynFlag")]
    pub topic_sys_flag: i32,
    /// Queues that producers write.
    pub write_queue_nums: i32,
}

/// Response body of code 106: all brokers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterInfo {
    /// Broker name to broker.
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    /// Cluster name to broker names.
    pub cluster_addr_table: BTreeMap<String, Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route() -> TopicRouteData {
        TopicRouteData {
            broker_datas: vec![BrokerData {
                broker_addrs: BTreeMap::from([(0, "10.0.0.1:10911".to_owned()), (1, "10.0.0.2:10911".to_owned())]),
                broker_name: "broker-a".to_owned(),
                cluster: "DefaultCluster".to_owned(),
                enable_acting_master: false,
            }],
            queue_datas: vec![QueueData {
                broker_name: "broker-a".to_owned(),
                perm: 6,
                read_queue_nums: 4,
                topic_sys_flag: 0,
                write_queue_nums: 4,
            }],
            ..TopicRouteData::default()
        }
    }

    #[test]
    fn remoting_14_a_go_client_gets_broker_ids_without_quotes_or_whitespace() {
        let json = String::from_utf8(route().to_json(317, false)).unwrap();
        assert_eq!(
            json,
            r#"{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#
        );
    }

    #[test]
    fn remoting_15_a_new_client_and_one_that_asks_for_it_get_standard_json() {
        for json in [route().to_json(401, false), route().to_json(317, true)] {
            assert!(String::from_utf8(json).unwrap().contains(r#""brokerAddrs":{"0":"10.0.0.1:10911","#));
        }
    }

    #[test]
    fn remoting_16_route_data_has_its_three_members_no_nulls_and_no_mapping() {
        for version in [317, 479] {
            let json = String::from_utf8(TopicRouteData::default().to_json(version, false)).unwrap();
            assert_eq!(json, r#"{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}"#);
        }
    }

    #[test]
    fn both_dialects_read_back() {
        for version in [317, 479] {
            let read: TopicRouteData = json::from_slice(&route().to_json(version, false)).unwrap();
            assert_eq!(read, route());
        }
    }
}
