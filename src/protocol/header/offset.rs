//! Headers of the requests about queue offsets and consumer offsets.

use super::header;
use crate::protocol::Text;

header! {
    /// Header of code 14, QUERY_CONSUMER_OFFSET.
    QueryConsumerOffsetHeader {
        /// Group whose offset is asked for.
        consumer_group: Text = "consumerGroup",
        /// Topic.
        topic: Text = "topic",
        /// Queue.
        queue_id: i32 = "queueId",
        /// When false, an offset that is not stored is never answered with 0.
        set_zero_if_not_found: Option<bool> = "setZeroIfNotFound",
    }
}

header! {
    /// Header of code 15, UPDATE_CONSUMER_OFFSET.
    UpdateConsumerOffsetHeader {
        /// Group whose offset is set.
        consumer_group: Text = "consumerGroup",
        /// Topic.
        topic: Text = "topic",
        /// Queue.
        queue_id: i32 = "queueId",
        /// Next queue offset to consume.
        commit_offset: i64 = "commitOffset",
    }
}

header! {
    /// Header of codes 30, 31 and 32: a queue.
    QueueHeader {
        /// Topic.
        topic: Text = "topic",
        /// Queue.
        queue_id: i32 = "queueId",
        /// Whether only committed messages count; 30 of 5.x clients only.
        committed: Option<bool> = "committed",
    }
}

header! {
    /// Header of code 29, SEARCH_OFFSET_BY_TIMESTAMP.
    SearchOffsetHeader {
        /// Topic.
        topic: Text = "topic",
        /// Queue.
        queue_id: i32 = "queueId",
        /// Store time looked for, in milliseconds.
        timestamp: i64 = "timestamp",
        /// `LOWER` (when absent) or `UPPER`, in any case.
        boundary_type: Option<Text> = "boundaryType",
    }
}

header! {
    /// Response header of codes 14, 29, 30 and 31.
    OffsetReplyHeader {
        /// The offset asked for.
        offset: i64 = "offset",
    }
}

header! {
    /// Response header of code 32.
    EarliestTimeReplyHeader {
        /// Store time of the queue's first message in milliseconds, -1 when there is none.
        timestamp: i64 = "timestamp",
    }
}
