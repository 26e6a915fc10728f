//! Consumers: pull and push, in order, in groups that grow and shrink.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::broker::Broker;
use crate::client::{Client, Consumer, Message};
use crate::{QUIET, SOON, with_clients};

with_clients! {
    pull_consumers_read_plain_and_delayed_messages: java_5, java_4, go;
    a_lite_pull_consumer_goes_on_where_it_committed: java_5, java_4;
    broadcasting_gives_every_message_to_every_consumer: java_5, java_4;
    two_orderly_consumers_keep_the_order_of_each_queue: java_5, java_4, go;
    no_message_is_lost_while_consumers_join_leave_and_die: java_5, go;
}

fn pull_consumers_read_plain_and_delayed_messages(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "pulled", 2);
    let consumer = client.consume(&broker, json!({"group": "pulled_group", "topic": "pulled"}));

    client.send(&broker, json!({"topic": "pulled", "key": "p", "count": 100}));
    client.send(&broker, json!({"topic": "pulled", "key": "d", "count": 100, "level": 1}));
    consumer.take(200, SOON);

    let pulled = client.pull(&broker, "pulled");
    let keys: HashSet<&str> = pulled.iter().map(|message| message.key.as_str()).collect();
    assert_eq!((pulled.len(), keys.len()), (200, 200));
    assert_each_queue_in_order(&pulled);
}

fn a_lite_pull_consumer_goes_on_where_it_committed(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "lite", 1);
    let poll = |count: u32| {
        let events = client.run(
            &broker,
            json!({"do": "litePull", "topic": "lite", "group": "lite_group", "count": count, "millis": 40_000}),
        );
        events.into_iter().map(|event| Message::from(event).key).collect::<Vec<_>>()
    };

    client.send(&broker, json!({"topic": "lite", "key": "now"}));
    client.send(&broker, json!({"topic": "lite", "key": "later", "level": 2}));
    let first = poll(2);
    client.send(&broker, json!({"topic": "lite", "key": "after"}));
    let second = poll(1);

    assert_eq!(first, ["now", "later"]);
    assert_eq!(second, ["after"]);
}

fn broadcasting_gives_every_message_to_every_consumer(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "broadcast", 4);
    let consumers = [0, 1]
        .map(|_| client.consume(&broker, json!({"group": "broadcast_group", "topic": "broadcast", "broadcast": true})));
    client.send(&broker, json!({"topic": "broadcast", "key": "b", "count": 20, "level": 1}));
    client.send(&broker, json!({"topic": "broadcast", "key": "c", "count": 20}));

    for consumer in &consumers {
        let keys: HashSet<String> = consumer.take(40, SOON).into_iter().map(|message| message.key).collect();
        assert_eq!(keys.len(), 40);
        consumer.expect_nothing_for(QUIET);
    }
}

fn two_orderly_consumers_keep_the_order_of_each_queue(client: &Client) {
    // Locks live 60 s by default. Clients renew theirs every 20 s.
    let broker = Broker::start_with(&["rebalanceLockMaxLiveTime=25000"]);
    client.create_topic(&broker, "orderly", 4);
    let consumers =
        [0, 1].map(|_| client.consume(&broker, json!({"group": "orderly_group", "topic": "orderly", "orderly": true})));

    client.send(&broker, json!({"topic": "orderly", "key": "now", "count": 200}));
    client.send(&broker, json!({"topic": "orderly", "key": "later", "count": 200, "level": 2}));

    // The first may lock all queues before it knows of the second, and the Go client never gives such a lock back: the second waits
    // until the lock expires, and for its next look 20 s later.
    let begun = Instant::now();
    let mut received = Vec::new();
    while received.len() < 400 && begun.elapsed() < Duration::from_secs(150) {
        for consumer in &consumers {
            received.extend(consumer.take_up_to(400 - received.len(), Duration::from_millis(50)));
        }
    }
    for consumer in &consumers {
        consumer.expect_nothing_for(QUIET);
    }
    let keys: HashSet<&str> = received.iter().map(|message| message.key.as_str()).collect();
    assert_eq!(keys.len(), 400);
    received.sort_by_key(|message| message.received);
    assert_each_queue_in_order(&received);
}

fn no_message_is_lost_while_consumers_join_leave_and_die(client: &Client) {
    let broker = Broker::start();
    let process = Client::start(client.kind());
    client.create_topic(&broker, "shared", 8);
    let mut expected = HashSet::new();
    let mut seen = HashSet::new();
    let mut send = |key: &str, count: u32, levels: &[u32]| {
        let sent = client.send(&broker, json!({"topic": "shared", "key": key, "count": count, "level": levels}));
        expected.extend(sent.into_iter().map(|sent| sent.key));
    };
    let consume = |client| Client::consume(client, &broker, json!({"group": "shared_group", "topic": "shared"}));
    // A consumer has joined when it gets one of the messages sent to all queues.
    let mut joined = |consumer: &Consumer<'_>, send: &mut dyn FnMut(&str, u32, &[u32]), name: &str| {
        for round in 0..100 {
            send(&format!("{name}-{round}"), 8, &[0]);
            if let Some(message) = consumer.next(Duration::from_millis(500)) {
                seen.insert(message.key);
                return;
            }
        }
        panic!("the {name} consumer gets no share of the messages");
    };

    let first = consume(client);
    joined(&first, &mut send, "first");
    let second = consume(client);
    send("while-two-share", 100, &[0, 1, 2]);
    joined(&second, &mut send, "second");
    let third = consume(&process);
    send("while-three-share", 100, &[0, 1, 2]);
    joined(&third, &mut send, "third");
    send("before-a-death", 100, &[0, 1, 2]);
    process.kill();
    send("after-a-death", 100, &[0, 1, 2]);
    let of_the_second = second.stop();
    send("when-one-is-left", 100, &[0, 1, 2]);

    // What the dead one had taken and not reported comes again, so repeats are right here, losses never.
    let keys = |messages: Vec<Message>| messages.into_iter().map(|message| message.key).collect::<Vec<_>>();
    seen.extend(keys(of_the_second));
    seen.extend(keys(third.take_up_to(usize::MAX, Duration::ZERO)));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) && !expected.is_subset(&seen) {
        seen.extend(keys(first.take_up_to(1, QUIET)));
    }
    let lost: Vec<&String> = expected.difference(&seen).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
}

fn assert_each_queue_in_order(messages: &[Message]) {
    let mut last = HashMap::new();
    for message in messages {
        let before = last.insert(message.queue_id, message.queue_offset);
        assert!(
            before < Some(message.queue_offset),
            "queue {}: {} after {before:?}",
            message.queue_id,
            message.queue_offset
        );
    }
}
