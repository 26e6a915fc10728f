//! Headers of PULL_MESSAGE and LITE_PULL_MESSAGE.

use super::header;
use crate::protocol::Text;

/// Bits of a pull's `sys_flag`.
pub mod pull_flag {
    /// `commit_offset` holds an offset to commit.
    pub const COMMIT_OFFSET: i32 = 1;
    /// The broker may hold the pull until a message comes.
    pub const SUSPEND: i32 = 2;
    /// The subscription travels in the pull itself.
    pub const SUBSCRIPTION: i32 = 4;
    /// Class filter; obsolete.
    pub const CLASS_FILTER: i32 = 8;
    /// The pull comes from a lite pull consumer.
    pub const LITE_PULL: i32 = 16;
}

header! {
    /// Header of codes 11 and 361.
    ///
    /// Source: Apache RocketMQ, `PullMessageRequestHeader`.
    PullHeader {
        /// Group of the consumer.
        consumer_group: Text = "consumerGroup",
        /// Topic to read.
        topic: Text = "topic",
        /// Queue to read.
        queue_id: i32 = "queueId",
        /// First queue offset wanted.
        queue_offset: i64 = "queueOffset",
        /// Most messages wanted.
        max_msg_nums: i32 = "maxMsgNums",
        /// See [`pull_flag`].
        sys_flag: i32 = "sysFlag",
        /// Consumer offset to commit, if the flag says so.
        commit_offset: i64 = "commitOffset",
        /// How long the pull may be held, in milliseconds.
        suspend_timeout_ms: i64 = "suspendTimeoutMillis",
        /// Subscription expression, if the flag says so.
        subscription: Option<Text> = "subscription",
        /// Version of the subscription.
        sub_version: i64 = "subVersion",
        /// `TAG` or `SQL92`; absent means `TAG`.
        expression_type: Option<Text> = "expressionType",
        /// Most bytes wanted; 5.x clients only.
        max_msg_bytes: Option<i32> = "maxMsgBytes",
        /// Name of the broker it is meant for.
        broker_name: Option<Text> = "bname",
    }
}

header! {
    /// Header of a pull's response. The first four must be there whatever the code.
    ///
    /// Source: Apache RocketMQ, `PullMessageResponseHeader`.
    PullReplyHeader {
        /// From which broker id to pull next: 0 is the master.
        suggest_which_broker_id: i64 = "suggestWhichBrokerId",
        /// From which queue offset to pull next.
        next_begin_offset: i64 = "nextBeginOffset",
        /// First queue offset there is.
        min_offset: i64 = "minOffset",
        /// Queue offset the next message will get.
        max_offset: i64 = "maxOffset",
        /// Who forbade the pull, with code 16: 1 broker, 2 group, 3 topic, 4 broadcast, 5 subscription.
        forbidden_type: Option<i32> = "forbiddenType",
    }
}
