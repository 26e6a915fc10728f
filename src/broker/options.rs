//! What can be set about a broker. `config` fills it from `broker.conf`; the defaults are RocketMQ's, save the loopback address.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

/// Permission bits of brokers and topics.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.common.constant.PermName`.
pub mod perm {
    /// Topics created from this one take over its settings.
    pub const INHERIT: i32 = 1;
    /// Messages may be sent.
    pub const WRITE: i32 = 2;
    /// Messages may be read.
    pub const READ: i32 = 4;
    /// All bits there are: the three above and one without effect, priority.
    pub const ALL: i32 = 15;
}

/// Options of a `Broker`.
#[derive(Debug, Clone)]
pub struct BrokerOptions {
    /// Name of the cluster. Key `brokerClusterName`.
    pub cluster: String,
    /// Name of the broker. Key `brokerName`.
    pub name: String,
    /// 0: a master. Key `brokerId`.
    pub broker_id: i64,
    /// The address clients are told and message ids hold. Keys `brokerIP1` and `listenPort`.
    pub advertised: SocketAddr,
    /// The address of the replication port, as told to name servers. Keys `brokerIP2` and `haListenPort`.
    pub ha_advertised: SocketAddr,
    /// Outside name servers, `host:port`. Key `namesrvAddr`.
    pub name_servers: Vec<String>,
    /// Permission of the broker, see [`perm`]. Key `brokerPermission`.
    pub permission: i32,
    /// Region, told to producers and kept with each message. Key `regionId`.
    pub region: String,
    /// Whether clients should trace messages. Key `traceOn`.
    pub trace_on: bool,
    /// Whether there is a topic for traces, `RMQ_SYS_TRACE_TOPIC`. Key `traceTopicEnable`.
    pub trace_topic: bool,
    /// Whether a send to an unknown topic creates it from `TBW102`. Key `autoCreateTopicEnable`.
    pub auto_create_topics: bool,
    /// Whether an unknown consumer group is created on first use. Key `autoCreateSubscriptionGroup`.
    pub auto_create_groups: bool,
    /// Queues of `TBW102`, the most that a topic created by a send gets. Key `defaultTopicQueueNums`.
    pub default_topic_queues: u32,
    /// Whether there is a topic named like the cluster. Key `clusterTopicEnable`.
    pub cluster_topic: bool,
    /// Whether there is a topic named like the broker. Key `brokerTopicEnable`.
    pub broker_topic: bool,
    /// Queues of the schedule topic: one for each delay level.
    pub schedule_queues: u32,
    /// Whether a pull that finds nothing waits for a message. Key `longPollingEnable`.
    pub long_polling: bool,
    /// How long it waits when long polling is off. Key `shortPollingTimeMills`.
    pub short_polling: Duration,
    /// Longest time that a pull waits, whatever the client asks: Java clients give a pull up after 30 s.
    pub hold_max: Duration,
    /// Most pulls held at once; beyond them a pull that finds nothing is answered at once.
    pub held_max: usize,
    /// A group without a stored offset begins at the first message of a queue if that lies within so many bytes of the end of the log;
    /// else the client decides. RocketMQ means what is still in memory.
    pub recent_log_bytes: u64,
    /// How long, at a clean stop, requests are still taken only to send the client elsewhere.
    pub go_away: Duration,
    /// Pause between two savings of the consumer offsets. Key `flushConsumerOffsetInterval`.
    pub save_offsets_interval: Duration,
    /// Commits that make a new version of the offset table. Key `consumerOffsetUpdateVersionStep`.
    pub offsets_version_step: u64,
    /// A client is gone when nothing was heard of it for so long. Key `channelExpiredTimeout`.
    pub client_expiry: Duration,
    /// Pause between two looks for clients that are gone.
    pub client_scan_interval: Duration,
    /// How long a queue lock lasts unless it is renewed. Key `rebalanceLockMaxLiveTime`.
    pub lock_expiry: Duration,
    /// Pause between two registrations at outside name servers. Key `registerNameServerPeriod`.
    pub register_interval: Duration,
    /// How long a name server may take to answer. Key `registerBrokerTimeoutMills`.
    pub register_timeout: Duration,
    /// Most consumers' groups kept; heartbeats of further groups are ignored.
    pub groups_max: usize,
    /// Most topics kept; a further one is not created.
    pub topics_max: usize,
    /// Most queues of a topic that a request may ask for.
    pub topic_queues_max: u32,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        Self {
            cluster: "DefaultCluster".into(),
            name: "broker-a".into(),
            broker_id: 0,
            advertised: SocketAddr::from((Ipv4Addr::LOCALHOST, 10911)),
            ha_advertised: SocketAddr::from((Ipv4Addr::LOCALHOST, 10912)),
            name_servers: Vec::new(),
            permission: perm::READ | perm::WRITE,
            region: "DefaultRegion".into(),
            trace_on: true,
            trace_topic: false,
            auto_create_topics: true,
            auto_create_groups: true,
            default_topic_queues: 8,
            cluster_topic: true,
            broker_topic: true,
            schedule_queues: 18,
            long_polling: true,
            short_polling: Duration::from_secs(1),
            hold_max: Duration::from_secs(28),
            held_max: 1_000_000,
            recent_log_bytes: 4 << 30,
            go_away: Duration::from_millis(500),
            save_offsets_interval: Duration::from_secs(5),
            offsets_version_step: 500,
            client_expiry: Duration::from_secs(120),
            client_scan_interval: Duration::from_secs(10),
            lock_expiry: Duration::from_secs(60),
            register_interval: Duration::from_secs(30),
            register_timeout: Duration::from_secs(24),
            groups_max: 100_000,
            topics_max: 100_000,
            topic_queues_max: 1024,
        }
    }
}
