//! Headers of SEND_MESSAGE in its two spellings, and of its response.

use super::{codec, header};
use bytes::BytesMut;

use crate::protocol::{Command, Encoding, ExtFields, FrameError, HeaderError, RequestCode, ResponseCode, Text, frame};

/// Header of a send: codes 10 and 324 with long field names, 310, 320 and 325 with one-letter names.
///
/// Source: Apache RocketMQ, `SendMessageRequestHeader`, `SendMessageRequestHeaderV2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendHeader {
    /// Group of the producer.
    pub producer_group: Text,
    /// Topic to send to.
    pub topic: Text,
    /// Topic whose settings a topic created by this send takes over: `TBW102`.
    pub default_topic: Text,
    /// Queues wanted for a topic created by this send.
    pub default_topic_queue_nums: i32,
    /// Queue to send to; below zero the broker picks one.
    pub queue_id: i32,
    /// System flag bits of the message.
    pub sys_flag: i32,
    /// When the producer made the message, in milliseconds since the Unix epoch.
    pub born_timestamp: i64,
    /// The user's own flag, stored as it is.
    pub flag: i32,
    /// Properties, `name 0x01 value 0x02` repeated.
    pub properties: Option<Text>,
    /// How often the message was consumed before; not zero for sends to a retry topic.
    pub reconsume_times: Option<i32>,
    /// Unit mode; of no effect.
    pub unit_mode: Option<bool>,
    /// After how many retries a message sent to a retry topic is dead.
    pub max_reconsume_times: Option<i32>,
    /// Whether the body is a batch of messages.
    pub batch: Option<bool>,
    /// Name of the broker it is meant for.
    pub broker_name: Option<Text>,
}

codec!(SendHeader, decode_long, encode_long {
    producer_group = "producerGroup",
    topic = "topic",
    default_topic = "defaultTopic",
    default_topic_queue_nums = "defaultTopicQueueNums",
    queue_id = "queueId",
    sys_flag = "sysFlag",
    born_timestamp = "bornTimestamp",
    flag = "flag",
    properties = "properties",
    reconsume_times = "reconsumeTimes",
    unit_mode = "unitMode",
    max_reconsume_times = "maxReconsumeTimes",
    batch = "batch",
    broker_name = "bname",
});

codec!(SendHeader, decode_short, encode_short {
    producer_group = "a",
    topic = "b",
    default_topic = "c",
    default_topic_queue_nums = "d",
    queue_id = "e",
    sys_flag = "f",
    born_timestamp = "g",
    flag = "h",
    properties = "i",
    reconsume_times = "j",
    unit_mode = "k",
    max_reconsume_times = "l",
    batch = "m",
    broker_name = "n",
});

impl SendHeader {
    /// Reads the header in the spelling that belongs to the request code.
    ///
    /// # Errors
    /// As [`SendHeader::decode_long`].
    pub fn decode(code: i32, ext: &ExtFields) -> Result<SendHeader, HeaderError> {
        match code {
            RequestCode::SEND_MESSAGE | RequestCode::SEND_REPLY_MESSAGE => SendHeader::decode_long(ext),
            _ => SendHeader::decode_short(ext),
        }
    }
}

header! {
    /// Header of a send's response. Java clients read all but the last three without a look whether they are there.
    ///
    /// Source: Apache RocketMQ, `SendMessageResponseHeader`, `MQClientAPIImpl.processSendResponse`.
    SendReplyHeader {
        /// Offset message id; of a batch the ids joined by commas.
        msg_id: Text = "msgId",
        /// The queue the producer asked for.
        queue_id: i32 = "queueId",
        /// Queue offset of the (first) message.
        queue_offset: i64 = "queueOffset",
        /// The message's `UNIQ_KEY`.
        transaction_id: Option<Text> = "transactionId",
        /// Region of the broker.
        region: Option<Text> = "MSG_REGION",
        /// Whether clients should trace.
        trace_on: Option<bool> = "TRACE_ON",
    }
}

impl SendReplyHeader {
    /// Appends the frame of a response with this header: what [`SendReplyHeader::encode`] and [`frame::encode`] make, without detours.
    ///
    /// # Errors
    /// As [`frame::encode`].
    pub fn encode_frame(&self, opaque: i32, encoding: Encoding, output: &mut BytesMut) -> Result<(), FrameError> {
        let (Encoding::Json, Some(id), Some(region), Some(trace_on)) =
            (encoding, &self.transaction_id, &self.region, self.trace_on)
        else {
            let command = Command::response(ResponseCode::SUCCESS).with_ext(self.encode());
            return frame::encode(&Command { opaque, encoding, ..command }, output);
        };
        let (mut queue_id, mut queue_offset) = (itoa::Buffer::new(), itoa::Buffer::new());
        let (queue_id, queue_offset) = (queue_id.format(self.queue_id), queue_offset.format(self.queue_offset));
        frame::encode_send_reply(opaque, [&self.msg_id, queue_id, queue_offset, id, region], trace_on, output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_encoded_at_once_is_the_frame_of_its_command() {
        let id = Some(Text::from("key \"1\""));
        for (transaction_id, trace_on, encoding) in [
            (id.clone(), true, Encoding::Json),
            (id.clone(), false, Encoding::Json),
            (None, true, Encoding::Json),
            (id, false, Encoding::Binary),
        ] {
            let reply = SendReplyHeader {
                msg_id: "7F0000010000FFFF0000000000000042".into(),
                queue_id: 3,
                queue_offset: i64::MAX,
                transaction_id,
                region: Some("DefaultRegion".into()),
                trace_on: Some(trace_on),
            };
            let mut at_once = BytesMut::new();
            reply.encode_frame(-5, encoding, &mut at_once).unwrap();

            let command = Command::response(ResponseCode::SUCCESS).with_ext(reply.encode());
            let command = Command { opaque: -5, encoding, ..command };
            assert_eq!(at_once, frame::encode_whole(&command).unwrap());
        }
    }
}
