//! Sends that are not delayed, and finding what was sent.

use std::collections::HashSet;

use serde_json::json;

use crate::broker::Broker;
use crate::client::{Client, Message};
use crate::{QUIET, SOON, with_clients};

with_clients! {
    plain_messages_arrive_once: java_5, java_4, go;
    async_and_one_way_sends_arrive: java_5, java_4, go;
    a_batch_of_100_arrives_whole_and_in_order: java_5;
    the_first_send_creates_the_topic: java_5, java_4, go;
    a_message_is_found_by_key_and_by_id: java_5, java_4;
}

fn plain_messages_arrive_once(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "plain", 4);
    let consumer = client.consume(&broker, json!({"group": "plain_group", "topic": "plain"}));

    let sent = client.send(&broker, json!({"topic": "plain", "key": "p", "count": 100, "tag": "T"}));

    let received = consumer.take(100, SOON);
    consumer.expect_nothing_for(QUIET);
    for sent in &sent {
        let received = received.iter().find(|message| message.key == sent.key).expect("each key");
        assert_eq!(sent.status, "SEND_OK");
        assert_eq!((received.queue_id, received.queue_offset), (sent.queue_id, sent.queue_offset));
        assert_eq!((&received.unique_key, &received.offset_msg_id), (&sent.unique_key, &sent.offset_msg_id));
        assert_eq!((received.crc, received.tag.as_str()), (sent.crc, "T"));
    }
}

fn async_and_one_way_sends_arrive(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "modes", 4);
    let consumer = client.consume(&broker, json!({"group": "modes_group", "topic": "modes"}));

    let sent = client.send(&broker, json!({"topic": "modes", "key": "async", "count": 50, "mode": "async"}));
    client.send(&broker, json!({"topic": "modes", "key": "oneway", "count": 50, "mode": "oneway"}));

    assert!(sent.iter().all(|sent| sent.status == "SEND_OK"), "{sent:?}");
    assert_eq!(keys(&consumer.take(100, SOON)).len(), 100);
    consumer.expect_nothing_for(QUIET);
}

fn a_batch_of_100_arrives_whole_and_in_order(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "batches", 4);

    let answer = client.run(&broker, json!({"do": "batch", "topic": "batches", "key": "b", "count": 100}));

    let messages = client.pull(&broker, "batches");
    assert_eq!(answer[0]["status"], "SEND_OK");
    let ids: Vec<&str> = answer[0]["offsetMsgId"].as_str().expect("an id").split(',').collect();
    assert_eq!(ids, messages.iter().map(|message| message.offset_msg_id.as_str()).collect::<Vec<_>>());
    for (i, message) in messages.iter().enumerate() {
        assert_eq!((message.key.as_str(), message.queue_offset), (format!("b-{i}").as_str(), i as u64));
    }
}

fn the_first_send_creates_the_topic(client: &Client) {
    let broker = Broker::start();

    client.send(&broker, json!({"topic": "unheard_of", "key": "first"}));

    assert_eq!(client.pull(&broker, "unheard_of")[0].key, "first");
}

fn a_message_is_found_by_key_and_by_id(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "found", 1);
    let plain = client.send(&broker, json!({"topic": "found", "key": "now"})).remove(0);
    let consumer = client.consume(&broker, json!({"group": "found_group", "topic": "found"}));
    consumer.take(1, SOON);

    let by_key = client.run(&broker, json!({"do": "query", "topic": "found", "key": "now"}));
    let by_offset_id = client.run(&broker, json!({"do": "view", "topic": "found", "msgId": plain.offset_msg_id}));
    let by_unique_key = client.run(&broker, json!({"do": "view", "topic": "found", "msgId": plain.unique_key}));
    for answer in [by_key, by_offset_id, by_unique_key] {
        let message = Message::from(answer[0].clone());
        assert_eq!(
            (&message.unique_key, &message.offset_msg_id, message.crc),
            (&plain.unique_key, &plain.offset_msg_id, plain.crc)
        );
    }

    // A delayed message lies in the schedule topic until it is due, and cannot be found in its own.
    let delayed = client.send(&broker, json!({"topic": "found", "key": "later", "level": 2})).remove(0);
    let waiting = client.run(&broker, json!({"do": "view", "topic": "found", "msgId": delayed.offset_msg_id}));
    assert_eq!(waiting[0]["topic"], "SCHEDULE_TOPIC_XXXX");
    client.try_run(&broker, json!({"do": "query", "topic": "found", "key": "later"})).expect_err("nothing to find yet");
    consumer.take(1, SOON);
    let delivered = client.run(&broker, json!({"do": "query", "topic": "found", "key": "later"}));
    assert_eq!(delivered.len(), 1);
    assert_eq!(delivered[0]["uniqueKey"], delayed.unique_key);
}

fn keys(messages: &[Message]) -> HashSet<&str> {
    messages.iter().map(|message| message.key.as_str()).collect()
}
