//! Headers of the requests by which clients join and leave.

use super::header;
use crate::protocol::Text;

header! {
    /// Header of code 35, UNREGISTER_CLIENT.
    UnregisterClientHeader {
        /// Id of the client.
        client_id: Text = "clientID",
        /// Producer group to leave.
        producer_group: Option<Text> = "producerGroup",
        /// Consumer group to leave.
        consumer_group: Option<Text> = "consumerGroup",
    }
}

header! {
    /// Header of codes 38, GET_CONSUMER_LIST_BY_GROUP, 203, and of the push 40, NOTIFY_CONSUMER_IDS_CHANGED.
    ConsumerGroupHeader {
        /// The group.
        consumer_group: Text = "consumerGroup",
    }
}

header! {
    /// Response header of code 34, HEART_BEAT.
    HeartbeatReplyHeader {
        /// Whether heartbeats without subscriptions are understood.
        is_support_heart_beat_v2: bool = "IS_SUPPORT_HEART_BEAT_V2",
        /// Whether the subscriptions known here differ from the client's.
        is_sub_change: bool = "IS_SUB_CHANGE",
    }
}
