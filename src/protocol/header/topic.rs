//! Headers of the requests about topics and groups.

use super::header;
use crate::protocol::Text;

header! {
    /// Header of code 17, UPDATE_AND_CREATE_TOPIC.
    ///
    /// Source: Apache RocketMQ, `CreateTopicRequestHeader`.
    CreateTopicHeader {
        /// Topic to create or change.
        topic: Text = "topic",
        /// Template topic; of no effect.
        default_topic: Text = "defaultTopic",
        /// Queues that consumers read.
        read_queue_nums: i32 = "readQueueNums",
        /// Queues that producers write.
        write_queue_nums: i32 = "writeQueueNums",
        /// Permission bits: 4 read, 2 write, 1 inherit.
        perm: i32 = "perm",
        /// `SINGLE_TAG` or `MULTI_TAG`.
        topic_filter_type: Text = "topicFilterType",
        /// Bit 0 unit, bit 1 unit subscription.
        topic_sys_flag: Option<i32> = "topicSysFlag",
        /// Whether the topic is an order topic; absent counts as false.
        order: Option<bool> = "order",
        /// `+key=value,-key`; 5.x clients only.
        attributes: Option<Text> = "attributes",
        /// Unused.
        force: Option<bool> = "force",
    }
}

header! {
    /// Header of the requests that only name a topic: 215, 216, 217, 202, 300, 351 and others.
    TopicHeader {
        /// The topic.
        topic: Text = "topic",
        /// Cluster; 216 of 5.x clients only.
        cluster_name: Option<Text> = "clusterName",
    }
}

header! {
    /// Header of code 352, GET_SUBSCRIPTIONGROUP_CONFIG, and others that name a group.
    GroupHeader {
        /// The group.
        group: Text = "group",
    }
}

header! {
    /// Header of code 207, DELETE_SUBSCRIPTIONGROUP.
    DeleteGroupHeader {
        /// The group.
        group_name: Text = "groupName",
        /// Whether its offsets go too, as 5.x calls it.
        clean_offset: Option<bool> = "cleanOffset",
        /// Whether its offsets go too, as 4.9 calls it.
        remove_offset: Option<bool> = "removeOffset",
    }
}
