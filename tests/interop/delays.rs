//! Delayed messages: on time, never early, in order.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;

use crate::broker::Broker;
use crate::client::{Client, Message};
use crate::{LATE_MAX, QUIET, SOON, with_clients};

with_clients! {
    one_message_per_level_arrives_on_time_and_never_early: java_5, java_4, go;
    three_thousand_delayed_messages_keep_their_order_in_each_level: java_5;
    a_level_beyond_the_last_waits_as_long_as_the_last: java_5, java_4, go;
    a_delayed_body_of_the_largest_size_arrives_whole: java_5;
    tags_select_delayed_messages_too: java_5, java_4, go;
}

fn one_message_per_level_arrives_on_time_and_never_early(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "levels", 4);
    let consumer = client.consume(&broker, json!({"group": "levels_group", "topic": "levels"}));
    // The client takes its queues a moment after its start.
    client.send(&broker, json!({"topic": "levels", "key": "warm-up"}));
    consumer.take(1, SOON);

    let levels: Vec<u64> = (1..=18).collect();
    let sent =
        client.send(&broker, json!({"topic": "levels", "key": "level", "count": 18, "level": levels, "tag": "T"}));

    for (level, received) in levels.iter().zip(consumer.take(18, Duration::from_secs(18) + SOON)) {
        let sent = &sent[(level - 1) as usize];
        assert_eq!(received.key, sent.key, "the messages come in the order of their levels");
        assert_on_time(&received, level * 1_000);
        assert_eq!((received.topic.as_str(), received.queue_id, received.crc), ("levels", sent.queue_id, sent.crc));
        assert_eq!((received.unique_key.as_str(), received.tag.as_str()), (sent.unique_key.as_str(), "T"));
        assert_eq!(received.property("DELAY"), Some(level.to_string().as_str()));
        assert_eq!(received.property("REAL_TOPIC"), Some("levels"));
        assert_eq!(received.property("REAL_QID"), Some(sent.queue_id.to_string().as_str()));
        assert_ne!(
            received.offset_msg_id, sent.offset_msg_id,
            "the restored record is another one than the waiting one"
        );
    }
    consumer.expect_nothing_for(QUIET);
}

fn three_thousand_delayed_messages_keep_their_order_in_each_level(client: &Client) {
    let broker = Broker::start();
    for topic in ["fifo_a", "fifo_b"] {
        client.create_topic(&broker, topic, 4);
    }
    let consumer = client.consume(&broker, json!({"group": "fifo_group", "topic": ["fifo_a", "fifo_b"]}));

    // Message i goes to level i mod 3 + 1, and to both topics in turn.
    client.send(&broker, json!({"topic": ["fifo_a", "fifo_b"], "key": "f", "count": 3_000, "level": [1, 2, 3]}));
    consumer.take(3_000, Duration::from_secs(60));
    consumer.expect_nothing_for(QUIET);

    let mut restored = client.pull(&broker, "fifo_a");
    restored.extend(client.pull(&broker, "fifo_b"));
    assert_eq!(restored.len(), 3_000);
    restored.sort_by(|a, b| a.offset_msg_id.cmp(&b.offset_msg_id)); // by position in the commit log
    let mut last = HashMap::new();
    for message in &restored {
        let number: u64 = message.key.trim_start_matches("f-").parse().expect("a number");
        let level = number % 3 + 1;
        assert_eq!(message.property("DELAY"), Some(level.to_string().as_str()));
        assert!(message.stored >= message.born + level * 1_000, "{message:?} came early");
        let before = last.insert(level, number);
        assert!(before < Some(number), "level {level}: {number} came after {before:?}");
    }
}

fn a_level_beyond_the_last_waits_as_long_as_the_last(client: &Client) {
    let broker = Broker::start_with(&["messageDelayLevel=1s 2s 3s"]);
    client.create_topic(&broker, "beyond", 1);
    let consumer = client.consume(&broker, json!({"group": "beyond_group", "topic": "beyond"}));
    client.send(&broker, json!({"topic": "beyond", "key": "warm-up"}));
    consumer.take(1, SOON);

    client.send(&broker, json!({"topic": "beyond", "key": "b", "count": 3, "level": [4, 99, i32::MAX]}));

    for message in consumer.take(3, SOON) {
        assert_on_time(&message, 3_000);
        assert_eq!(message.property("DELAY"), Some("3"));
    }
}

fn a_delayed_body_of_the_largest_size_arrives_whole(client: &Client) {
    const LARGEST: usize = 4 << 20;
    let broker = Broker::start();
    client.create_topic(&broker, "large", 1);
    let consumer = client.consume(&broker, json!({"group": "large_group", "topic": "large"}));

    let sent =
        client.send(&broker, json!({"topic": "large", "key": "largest", "level": 1, "bytes": LARGEST})).remove(0);
    let refused =
        client.send(&broker, json!({"topic": "large", "key": "larger", "level": 1, "bytes": LARGEST + 1})).remove(0);

    let received = consumer.take(1, SOON).remove(0);
    assert_eq!((received.bytes, received.crc), (LARGEST, sent.crc));
    assert_eq!(refused.code, Some(13));
    consumer.expect_nothing_for(QUIET * 2);
}

fn tags_select_delayed_messages_too(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "tags", 4);
    let consumer = client.consume(&broker, json!({"group": "tags_group", "topic": "tags", "tags": "A || B"}));

    for tag in ["A", "B", "C", "D"] {
        client.send(&broker, json!({"topic": "tags", "key": format!("now-{tag}"), "tag": tag}));
        client.send(&broker, json!({"topic": "tags", "key": format!("later-{tag}"), "tag": tag, "level": 2}));
    }

    let mut keys: Vec<String> = consumer.take(4, SOON).into_iter().map(|message| message.key).collect();
    keys.sort();
    assert_eq!(keys, ["later-A", "later-B", "now-A", "now-B"]);
    consumer.expect_nothing_for(QUIET);
}

/// Asserts that a message with this delay was neither early nor late. It was born no later than its waiting record was stored.
pub(crate) fn assert_on_time(message: &Message, delay_ms: u64) {
    assert!(
        message.stored >= message.born + delay_ms,
        "{} ms early: {message:?}",
        message.born + delay_ms - message.stored
    );
    let lateness = Duration::from_millis(message.received.saturating_sub(message.born + delay_ms));
    assert!(lateness < LATE_MAX, "{lateness:?} late: {message:?}");
}
