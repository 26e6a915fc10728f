//! Bodies of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ.

use serde::{Deserialize, Serialize};

/// A queue of a broker, as clients name it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MessageQueue {
    /// Name of the broker.
    pub broker_name: String,
    /// Number of the queue.
    pub queue_id: i32,
    /// Topic.
    pub topic: String,
}

/// Body of codes 41 and 42.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LockBatchRequest {
    /// Id of the client that wants or gives back the queues.
    pub client_id: String,
    /// Its group.
    pub consumer_group: String,
    /// The queues.
    pub mq_set: Vec<MessageQueue>,
    /// Matters only with replicated locks.
    pub only_this_broker: bool,
}

/// Response body of code 41: the queues the client now holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockBatchReply {
    /// The queues.
    #[serde(rename = "lockOKMQSet")]
    pub lock_ok_mq_set: Vec<MessageQueue>,
}
