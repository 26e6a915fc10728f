//! Brokers that stop or are killed while messages wait.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::broker::Broker;
use crate::client::{Client, Message, Sent};
use crate::{QUIET, SOON, with_clients};

/// How long clients may take to find a broker again: some send their next heartbeat only after 30 s.
const RECONNECT_MAX: Duration = Duration::from_secs(75);

with_clients! {
    consumers_go_on_after_a_clean_restart_with_delayed_messages_pending: java_5, java_4, go;
    kill_9_in_the_middle_of_delivery_loses_and_repeats_nothing: java_5, go;
}

fn consumers_go_on_after_a_clean_restart_with_delayed_messages_pending(client: &Client) {
    let mut broker = Broker::start();
    client.create_topic(&broker, "restarted", 4);
    let consumer = client.consume(&broker, json!({"group": "restarted_group", "topic": "restarted"}));
    client.send(&broker, json!({"topic": "restarted", "key": "before", "count": 20}));
    consumer.take(20, SOON);
    client.send(&broker, json!({"topic": "restarted", "key": "pending", "count": 60, "level": [2, 4, 6]}));

    broker.stop();
    // The shortest level falls due while the broker is away, the others after it came back.
    thread::sleep(Duration::from_secs(3));
    broker.start_again();

    let received = consumer.take(60, RECONNECT_MAX);
    assert_eq!(received.iter().map(|message| message.key.as_str()).collect::<HashSet<_>>().len(), 60);
    consumer.expect_nothing_for(QUIET);
    let restored = client.pull(&broker, "restarted");
    assert_eq!(restored.len(), 80, "nothing is repeated");
    for message in restored.iter().filter(|message| message.key.starts_with("pending")) {
        let level: u64 = message.property("DELAY").and_then(|level| level.parse().ok()).expect("a level");
        assert!(message.stored >= message.born + level * 1_000, "{message:?} came early");
    }
}

fn kill_9_in_the_middle_of_delivery_loses_and_repeats_nothing(client: &Client) {
    let mut broker = Broker::start();
    client.create_topic(&broker, "killed", 4);
    let consumer = client.consume(&broker, json!({"group": "killed_group", "topic": "killed"}));
    client.send(&broker, json!({"topic": "killed", "key": "warm-up"}));
    consumer.take(1, SOON);

    // Killed three times while messages are sent and others are delivered.
    let sending = client.begin(
        &broker,
        json!({"do": "send", "topic": "killed", "key": "k", "count": 1_000_000, "millis": 8_000, "level": [1, 2, 3]}),
    );
    consumer.take(300, SOON);
    for _ in 0..3 {
        broker.kill();
        broker.start_again();
        thread::sleep(Duration::from_secs(2));
    }
    let sent: Vec<Sent> = sending
        .finish()
        .into_iter()
        .map(|event| serde_json::from_value(event).expect("the result of a send"))
        .collect();
    let acknowledged: HashSet<&str> =
        sent.iter().filter(|sent| sent.status == "SEND_OK").map(|sent| sent.unique_key.as_str()).collect();

    // A producer that got no answer does not know; every other message is restored once, whatever consumers do.
    let restored = wait_until_restored(client, &broker, &acknowledged);
    let mut times: HashMap<&str, u32> = HashMap::new();
    for message in restored.iter().filter(|message| message.key != "warm-up") {
        *times.entry(&message.unique_key).or_default() += 1;
        let level: u64 = message.property("DELAY").and_then(|level| level.parse().ok()).expect("a level");
        assert!(message.stored >= message.born + level * 1_000, "{message:?} came early");
    }
    let lost = acknowledged.iter().filter(|key| !times.contains_key(*key)).count();
    let repeated = times.values().filter(|times| **times > 1).count();
    assert_eq!(
        (lost, repeated),
        (0, 0),
        "lost and repeated of {} acknowledged, {} restored",
        acknowledged.len(),
        restored.len()
    );
    assert!(acknowledged.len() > 1_000, "only {} of {} sends were acknowledged", acknowledged.len(), sent.len());
}

/// Reads the topic until every acknowledged message was restored, or no more come, and once more for what should not come.
fn wait_until_restored(client: &Client, broker: &Broker, acknowledged: &HashSet<&str>) -> Vec<Message> {
    let begun = Instant::now();
    loop {
        let restored = client.pull(broker, "killed");
        let keys: HashSet<&str> = restored.iter().map(|message| message.unique_key.as_str()).collect();
        if acknowledged.is_subset(&keys) || begun.elapsed() > Duration::from_secs(30) {
            thread::sleep(QUIET * 4);
            return client.pull(broker, "killed");
        }
        thread::sleep(QUIET);
    }
}
