//! Headers of the requests a name server answers.

use super::header;
use crate::protocol::Text;

header! {
    /// Header of code 103, REGISTER_BROKER.
    ///
    /// Source: Apache RocketMQ, `RegisterBrokerRequestHeader`.
    RegisterBrokerHeader {
        /// Name of the broker.
        broker_name: Text = "brokerName",
        /// Its address, `ip:port`.
        broker_addr: Text = "brokerAddr",
        /// Its cluster.
        cluster_name: Text = "clusterName",
        /// Address of its replication port.
        ha_server_addr: Text = "haServerAddr",
        /// 0 for a master.
        broker_id: i64 = "brokerId",
        /// After how long without a sign of life it is gone.
        heartbeat_timeout_ms: Option<i64> = "heartbeatTimeoutMillis",
        /// Whether a slave may stand in for the master.
        enable_acting_master: Option<bool> = "enableActingMaster",
        /// Whether the body is compressed.
        compressed: Option<bool> = "compressed",
        /// CRC-32 of the body without its sign bit; 0 is not checked.
        body_crc32: Option<i32> = "bodyCrc32",
    }
}

header! {
    /// Response header of code 103.
    RegisterBrokerReplyHeader {
        /// Replication address of the master, for slaves.
        ha_server_addr: Option<Text> = "haServerAddr",
        /// Address of the master, for slaves.
        master_addr: Option<Text> = "masterAddr",
    }
}

header! {
    /// Header of codes 104, UNREGISTER_BROKER, and 322, QUERY_DATA_VERSION: a broker.
    BrokerHeader {
        /// Name of the broker.
        broker_name: Text = "brokerName",
        /// Its address, `ip:port`.
        broker_addr: Text = "brokerAddr",
        /// Its cluster.
        cluster_name: Text = "clusterName",
        /// 0 for a master.
        broker_id: i64 = "brokerId",
    }
}

header! {
    /// Response header of code 322.
    QueryDataVersionReplyHeader {
        /// Whether the name server knows another version.
        changed: bool = "changed",
    }
}

header! {
    /// Header of code 105, GET_ROUTEINFO_BY_TOPIC.
    RouteHeader {
        /// Topic whose route is asked for.
        topic: Text = "topic",
        /// Whether the client reads standard JSON only.
        accept_standard_json_only: Option<bool> = "acceptStandardJsonOnly",
    }
}

header! {
    /// Header of code 224, GET_TOPICS_BY_CLUSTER.
    ClusterHeader {
        /// The cluster.
        cluster: Text = "cluster",
    }
}

header! {
    /// Header of codes 100, PUT_KV_CONFIG, with a value, and 101 and 102 without one.
    KvHeader {
        /// Namespace.
        namespace: Text = "namespace",
        /// Key.
        key: Text = "key",
        /// Value; 100 only.
        value: Option<Text> = "value",
    }
}

header! {
    /// Response header of code 101, GET_KV_CONFIG.
    KvValueHeader {
        /// The value.
        value: Text = "value",
    }
}

header! {
    /// Header of code 219, GET_KVLIST_BY_NAMESPACE.
    NamespaceHeader {
        /// Namespace.
        namespace: Text = "namespace",
    }
}
