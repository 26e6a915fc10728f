//! Typed bodies: the JSON that requests, responses and state files carry.
//!
//! Fields stand in the order RocketMQ writes them. Unknown members are passed over, absent ones get their default. Read with
//! [`json::from_slice`](super::json::from_slice), written with [`json::to_vec`](super::json::to_vec).

mod group;
mod heartbeat;
mod lists;
mod lock;
mod registration;
mod route;
mod topic;

pub use group::{SubscriptionGroupConfig, SubscriptionGroups};
pub use heartbeat::{
    CheckClientRequest, ConsumeFromWhere, ConsumeType, ConsumerData, HeartbeatData, MessageModel, ProducerData,
    SubscriptionData,
};
pub use lists::{ConsumerIds, ConsumerOffsets, DelayOffsets, KvTable, TopicList};
pub use lock::{LockBatchReply, LockBatchRequest, MessageQueue};
pub use registration::{REGISTRATION_BYTES_MAX, RegisterBrokerBody, RegistrationError, body_crc32};
pub use route::{BrokerData, ClusterInfo, QueueData, TopicRouteData};
pub use topic::{DataVersion, TopicConfig, TopicConfigs};
