//! A store that changes hands: from Apache RocketMQ 5.3.3 to this broker, back, and to this broker again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::apache::Apache;
use crate::broker::Broker;
use crate::client::{Client, Kind, Message};
use crate::{QUIET, SOON};

/// How long it takes until both brokers have saved progress and offsets.
const SAVED: Duration = Duration::from_secs(1);

/// Level n waits n seconds, but level 3, on which first retries wait: long enough to see them wait.
const LINES: [&str; 3] = [
    "brokerName=interchange",
    "messageDelayLevel=1s 2s 9s 4s 5s 6s 7s 8s 9s 10s 11s 12s 13s 14s 15s 16s 17s 18s",
    "mappedFileSizeConsumeQueue=20000",
];

/// A store that changes hands is sound, whoever had it.
fn expect_sound(broker: &Broker) {
    let store = broker.folder().join("store");
    let conf = broker.folder().join("broker.conf");
    let mut check = Command::new(env!("CARGO_BIN_EXE_latermq"));
    let output = check.arg("check").arg(store).arg("-c").arg(conf).output().expect("the latermq binary");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
}

/// How often each key lies in a topic.
fn counted(messages: &[Message]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for message in messages {
        *counts.entry(message.key.clone()).or_default() += 1;
    }
    counts
}

/// Waits until so many messages lie in a topic.
fn wait_until_there(client: &Client, broker: &Broker, topic: &str, count: usize) {
    let begun = Instant::now();
    // Apache's broker is known to the name server only some seconds after its start.
    let pull = json!({"do": "pull", "topic": topic, "group": "interop_pull"});
    while client.try_run(broker, pull.clone()).map_or(0, |found| found.len()) < count && begun.elapsed() < SOON {
        thread::sleep(Duration::from_millis(300));
    }
}

/// Waits until so many messages lie in a topic, and then a moment longer; each lies there once, and those with a level came in time.
fn expect_once(client: &Client, broker: &Broker, topic: &str, count: usize) -> Vec<Message> {
    wait_until_there(client, broker, topic, count);
    thread::sleep(QUIET);
    let messages = client.pull(broker, topic);
    let counts = counted(&messages);
    assert!(counts.values().all(|count| *count == 1), "some came again: {counts:?}");
    assert_eq!(messages.len(), count, "{counts:?}");
    for message in &messages {
        if let Some(level) = message.property("DELAY").and_then(|level| level.parse::<u64>().ok()) {
            assert!(message.stored >= message.born + level * 1_000, "{message:?} came early");
        }
    }
    messages
}

/// Waits until Apache's broker has written down how far it is: it begins with that ten seconds after its start.
fn wait_until_saved(broker: &Broker) {
    let said = |file: &str, what: &str| {
        let path = broker.folder().join("store/config").join(file);
        fs::read_to_string(path).is_ok_and(|text| text.contains(what))
    };
    let begun = Instant::now();
    while !(said("delayOffset.json", "1:10") && said("consumerOffset.json", "handed@readers")) {
        assert!(begun.elapsed() < SOON, "Apache's broker saves nothing");
        thread::sleep(Duration::from_millis(200));
    }
    thread::sleep(SAVED);
}

/// A store of Apache's with normal, delivered, waiting and retried messages, which this broker has taken over after a kill: Apache's
/// work stands, what waited comes at its time.
fn taken_over(client: &Client) -> Broker {
    let mut broker = Broker::start_with(&LINES);
    broker.stop();

    let apache = Apache::start_on(&broker);
    client.create_topic(&broker, "handed", 4);
    client.create_topic(&broker, "tried", 4);
    let consumer = client.consume(&broker, json!({"group": "readers", "topic": "handed"}));
    client.send(&broker, json!({"topic": "handed", "key": "normal", "count": 10}));
    client.send(&broker, json!({"topic": "handed", "key": "delivered", "count": 10, "level": 1}));
    consumer.take(20, SOON);
    consumer.stop();
    wait_until_saved(&broker);
    client.send(&broker, json!({"topic": "handed", "key": "waiting", "count": 10, "level": 8}));
    let retrying = client.consume(&broker, json!({"group": "retriers", "topic": "tried", "failures": 1}));
    client.send(&broker, json!({"topic": "tried", "key": "retried"}));
    retrying.take(1, SOON);
    thread::sleep(SAVED);
    retrying.stop();
    thread::sleep(SAVED);
    // A killed Apache may leave its `delayOffset.json` empty beside the `.bak`.
    apache.kill();

    broker.start_again();
    let retrying = client.consume(&broker, json!({"group": "retriers", "topic": "tried"}));
    let retried = retrying.take(1, SOON).remove(0);
    assert_eq!((retried.key.as_str(), retried.reconsume_times), ("retried", 1));
    retrying.expect_nothing_for(QUIET);
    retrying.stop();
    expect_once(client, &broker, "handed", 30);
    let consumer = client.consume(&broker, json!({"group": "readers", "topic": "handed"}));
    let mut read: Vec<String> = consumer.take(10, SOON).into_iter().map(|message| message.key).collect();
    read.sort();
    assert!(read.iter().all(|key| key.starts_with("waiting")), "the group goes on where it stopped: {read:?}");
    consumer.expect_nothing_for(QUIET);
    consumer.stop();
    broker
}

/// Apache takes the store back after a clean stop: what waits comes at its time, what this broker delivered does not come again.
fn handed_back(client: &Client, broker: &mut Broker) -> Apache {
    client.send(broker, json!({"topic": "handed", "key": "ours", "count": 5}));
    client.send(broker, json!({"topic": "handed", "key": "ours-delivered", "count": 5, "level": 1}));
    expect_once(client, broker, "handed", 40);
    client.send(broker, json!({"topic": "handed", "key": "ours-waiting", "count": 10, "level": 7}));
    thread::sleep(SAVED);
    broker.stop();
    expect_sound(broker);

    let apache = Apache::start_on(broker);
    expect_once(client, broker, "handed", 50);
    apache
}

/// This broker takes the store back after Apache stopped: what Apache delivered does not come again, what still waits comes at its time.
fn taken_back(client: &Client, broker: &mut Broker, apache: Apache) {
    client.send(broker, json!({"topic": "handed", "key": "theirs-delivered", "count": 10, "level": 1}));
    expect_once(client, broker, "handed", 60);
    client.send(broker, json!({"topic": "handed", "key": "theirs-waiting", "count": 10, "level": 15}));
    apache.stop();
    expect_sound(broker);

    broker.start_again();
    expect_once(client, broker, "handed", 70);
    let consumer = client.consume(broker, json!({"group": "readers", "topic": "handed"}));
    let read = consumer.take(20, SOON);
    assert!(read.iter().all(|message| message.key.starts_with("theirs")), "the group goes on: {read:?}");
    consumer.expect_nothing_for(QUIET);
    consumer.stop();
    broker.stop();
    expect_sound(broker);
}

/// store 24: topics, groups, offsets and what waits survive the way from Apache to us and back.
#[test]
fn store_24_a_store_goes_from_apache_to_us_and_back_and_again_to_us_and_each_message_comes_once_and_in_time() {
    let client = Client::shared(Kind::java_5);
    let mut broker = taken_over(client);

    let apache = handed_back(client, &mut broker);

    let consumer = client.consume(&broker, json!({"group": "readers", "topic": "handed"}));
    let read = consumer.take(20, SOON);
    assert!(read.iter().all(|message| message.key.starts_with("ours")), "the group goes on where it stopped: {read:?}");
    consumer.expect_nothing_for(QUIET);
    consumer.stop();

    taken_back(client, &mut broker, apache);
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a writable folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, copied) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &copied);
        } else {
            fs::copy(&path, &copied).expect("a readable file");
        }
    }
}

/// Apache writes down how far it is from ten seconds after its start on. Killed before, it leaves no `delayOffset.json`, or an empty one, and
/// only the log tells what it delivered.
#[test]
fn store_24_what_apache_delivered_before_it_first_wrote_that_down_does_not_come_again() {
    let client = Client::shared(Kind::java_5);
    let mut broker = Broker::start_with(&LINES);
    client.create_topic(&broker, "handed", 4);
    client.send(&broker, json!({"topic": "handed", "key": "ours-delivered", "count": 10, "level": 2}));
    client.send(&broker, json!({"topic": "handed", "key": "ours-waiting", "count": 10, "level": 18}));
    broker.stop();

    let apache = Apache::start_on(&broker);
    client.send(&broker, json!({"topic": "handed", "key": "delivered", "count": 10, "level": 1}));
    wait_until_there(client, &broker, "handed", 20);
    client.send(&broker, json!({"topic": "handed", "key": "waiting", "count": 10, "level": 8}));
    apache.kill();
    let (store, killed) = (broker.folder().join("store"), broker.folder().join("killed"));
    copy(&store, &killed);

    for written in [None, Some("")] {
        fs::remove_dir_all(&store).expect("a folder");
        copy(&killed, &store);
        // However long that took, as after a kill within ten seconds.
        let config = store.join("config");
        for file in ["delayOffset.json", "delayOffset.json.bak"] {
            // It may not be there, which is all that is wanted.
            let _ = fs::remove_file(config.join(file));
        }
        if let Some(text) = written {
            fs::write(config.join("delayOffset.json"), text).expect("a writable folder");
        }

        broker.start_again();

        expect_once(client, &broker, "handed", 40);
        broker.stop();
        expect_sound(&broker);
    }
}
