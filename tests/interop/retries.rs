//! Messages a consumer could not handle: tried again at growing levels, then put aside.

use std::time::Duration;

use serde_json::json;

use crate::broker::Broker;
use crate::client::{Client, Message};
use crate::{QUIET, SOON, with_clients};

/// How much later than due a retry may come. The wait begins only when the broker stores what the client sends back, and a client on
/// a busy machine takes its time for that; a client that does not know the retry topic's route would be late by 20 s.
const RETRY_LATE_MAX: Duration = Duration::from_secs(5);

with_clients! {
    the_first_retry_of_a_new_group_is_on_time: java_5, java_4, go;
    retries_wait_at_growing_levels_and_end_in_the_dead_letter_queue: java_5, java_4, go;
    an_orderly_message_that_keeps_failing_ends_in_the_dead_letter_queue: java_5;
    a_retry_that_the_client_sends_itself_is_delayed_or_dead: java_5;
}

fn the_first_retry_of_a_new_group_is_on_time(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "retried", 4);
    let consumer = client.consume(&broker, json!({"group": "new_group", "topic": "retried", "failures": 1}));

    client.send(&broker, json!({"topic": "retried", "key": "r"}));

    let attempts = consumer.take(2, SOON);
    assert_retried_after(&attempts[0], &attempts[1], 3_000);
    consumer.expect_nothing_for(QUIET);
}

fn retries_wait_at_growing_levels_and_end_in_the_dead_letter_queue(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "dying", 4);
    let consumer = client
        .consume(&broker, json!({"group": "dying_group", "topic": "dying", "failures": 99, "maxReconsumeTimes": 3}));

    let sent = client.send(&broker, json!({"topic": "dying", "key": "d", "level": 1, "tag": "T"})).remove(0);

    let attempts = consumer.take(4, SOON + SOON);
    for (retry, pair) in (1..).zip(attempts.windows(2)) {
        let level = 2 + retry;
        assert_retried_after(&pair[0], &pair[1], u64::from(level) * 1_000);
        assert_eq!(pair[1].reconsume_times, retry);
        assert_eq!(pair[1].property("DELAY"), Some(level.to_string().as_str()));
        assert_eq!(pair[1].property("REAL_TOPIC"), Some("%RETRY%dying_group"));
        assert_eq!((pair[1].key.as_str(), pair[1].tag.as_str(), pair[1].crc), ("d", "T", sent.crc));
    }
    consumer.expect_nothing_for(QUIET);
    let dead = client.pull_dead(&broker, "dying_group", 1).remove(0);
    assert_eq!((dead.key.as_str(), dead.crc, dead.unique_key.as_str()), ("d", sent.crc, sent.unique_key.as_str()));
    assert_eq!(dead.property("RETRY_TOPIC"), Some("dying"));
}

fn an_orderly_message_that_keeps_failing_ends_in_the_dead_letter_queue(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "stuck", 1);
    let consumer = client.consume(
        &broker,
        json!({
            "group": "stuck_group", "topic": "stuck", "orderly": true, "failures": 2, "maxReconsumeTimes": 1, "suspendMillis": 200,
        }),
    );

    client.send(&broker, json!({"topic": "stuck", "key": "s", "count": 2}));

    // Each is tried again in its place before the next one has its turn.
    let keys: Vec<String> = consumer.take(4, SOON).into_iter().map(|message| message.key).collect();
    assert_eq!(keys, ["s-0", "s-0", "s-1", "s-1"]);
    consumer.expect_nothing_for(QUIET * 2);
    let dead: Vec<String> =
        client.pull_dead(&broker, "stuck_group", 2).into_iter().map(|message| message.key).collect();
    assert_eq!(dead, ["s-0", "s-1"]);
}

/// schedule 61: the listener sees the original topic of a delayed retry.
///
/// When a send-back fails, the Java client sends an ordinary message to the retry topic, with all properties of the failed one.
fn a_retry_that_the_client_sends_itself_is_delayed_or_dead(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "fallback", 1);
    let consumer = client.consume(&broker, json!({"group": "fallback_group", "topic": "fallback"}));
    client.send(&broker, json!({"topic": "fallback", "key": "warm-up"}));
    consumer.take(1, SOON);
    let retry = |key: &str, reconsume_times: u32| {
        let properties = json!({
            "RETRY_TOPIC": "fallback", "RECONSUME_TIME": reconsume_times.to_string(), "MAX_RECONSUME_TIMES": "2",
            "REAL_TOPIC": "fallback", "REAL_QID": "0",
        });
        client
            .send(&broker, json!({"topic": "%RETRY%fallback_group", "key": key, "level": 2, "properties": properties}))
            .remove(0)
    };

    let (again, dead) = (retry("again", 2), retry("dead", 3));

    assert_eq!((again.status.as_str(), dead.status.as_str()), ("SEND_OK", "SEND_OK"));
    let received = consumer.take(1, SOON).remove(0);
    assert_eq!((received.key.as_str(), received.topic.as_str(), received.reconsume_times), ("again", "fallback", 2));
    assert!(received.stored >= received.born + 2_000);
    assert_eq!(client.pull_dead(&broker, "fallback_group", 1)[0].key, "dead");
    consumer.expect_nothing_for(QUIET * 2);
}

/// Asserts that a message came again this much later. It was sent back no earlier than it was received.
fn assert_retried_after(before: &Message, again: &Message, delay_ms: u64) {
    assert!(again.stored >= before.received + delay_ms, "retried early: {before:?}, {again:?}");
    let lateness = Duration::from_millis(again.received.saturating_sub(before.received + delay_ms));
    assert!(lateness < RETRY_LATE_MAX, "retried {lateness:?} late: {before:?}, {again:?}");
}
