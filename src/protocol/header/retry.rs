//! Header of CONSUMER_SEND_MSG_BACK.

use super::header;
use crate::protocol::Text;

header! {
    /// Header of code 36: a consumer failed and wants the message again.
    ///
    /// Source: Apache RocketMQ, `ConsumerSendMsgBackRequestHeader`.
    SendBackHeader {
        /// Physical offset of the message.
        offset: i64 = "offset",
        /// Group of the consumer.
        group: Text = "group",
        /// Level to wait at; 0 lets the broker choose, below zero the message is dead.
        delay_level: i32 = "delayLevel",
        /// Offset id of the first message.
        origin_msg_id: Option<Text> = "originMsgId",
        /// Topic the message was consumed from.
        origin_topic: Option<Text> = "originTopic",
        /// Unit mode; of no effect.
        unit_mode: Option<bool> = "unitMode",
        /// After how many retries the message is dead; counts for clients of version 121 and later.
        max_reconsume_times: Option<i32> = "maxReconsumeTimes",
    }
}
