//! Headers of QUERY_MESSAGE and VIEW_MESSAGE_BY_ID.

use super::header;
use crate::protocol::Text;

/// Ext field that says that the key of a query is a unique key: the value of `unique_key_query`.
pub const UNIQUE_KEY_QUERY: &str = "_UNIQUE_KEY_QUERY";

header! {
    /// Header of code 12.
    ///
    /// Source: Apache RocketMQ, `QueryMessageRequestHeader`.
    QueryMessageHeader {
        /// Topic to search.
        topic: Text = "topic",
        /// Key or unique key.
        key: Text = "key",
        /// Most messages wanted.
        max_num: i32 = "maxNum",
        /// Earliest store time, in milliseconds.
        begin_timestamp: i64 = "beginTimestamp",
        /// Latest store time, in milliseconds.
        end_timestamp: i64 = "endTimestamp",
        /// Whether the key is a unique key.
        unique_key_query: Option<bool> = "_UNIQUE_KEY_QUERY",
    }
}

header! {
    /// Header of a query's response.
    ///
    /// Source: Apache RocketMQ, `QueryMessageResponseHeader`.
    QueryMessageReplyHeader {
        /// Store time of the last message in the index.
        index_last_update_timestamp: i64 = "indexLastUpdateTimestamp",
        /// Physical offset of the last message in the index.
        index_last_update_phyoffset: i64 = "indexLastUpdatePhyoffset",
    }
}

header! {
    /// Header of code 33.
    ///
    /// Source: Apache RocketMQ, `ViewMessageRequestHeader`.
    ViewMessageHeader {
        /// Physical offset of the message.
        offset: i64 = "offset",
        /// Topic it should belong to; 5.x clients only.
        topic: Option<Text> = "topic",
    }
}
