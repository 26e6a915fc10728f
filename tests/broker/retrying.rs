//! Code 36, and the send that clients fall back on.

use std::{sync::Arc, time::Duration};

use latermq::{
    broker::BrokerOptions,
    protocol::Command,
    record::Record,
    store::{FlushPolicy, StoreOptions},
};

use crate::rig::{Rig, max, message, request, rig, rig_with, store_options};

/// Gives a record back.
fn back(record: &Record, level: i32, max: Option<i32>) -> Command {
    let (offset, level) = (record.view().physical_offset().0.to_string(), level.to_string());
    let mut asks = request(36, &[("offset", offset.as_str()), ("group", "g"), ("delayLevel", level.as_str())]);
    if let Some(max) = max {
        asks.ext.push("maxReconsumeTimes", max);
    }
    asks
}

fn give_back(rig: &Rig, record: &Record, level: i32, max: Option<i32>) -> i32 {
    let code = rig.ask(back(record, level, max)).code;
    rig.step();
    code
}

/// What waits at a level.
fn waiting(rig: &Rig, level: i32) -> Vec<Record> {
    rig.records("SCHEDULE_TOPIC_XXXX", level - 1, 0)
}

fn property(record: &Record, name: &str) -> Option<String> {
    record.view().properties().get(name).map(str::to_owned)
}

fn first(rig: &Rig) -> Record {
    rig.sent(message("T").tag("A"));
    rig.records("T", 0, 0).remove(0)
}

#[test]
fn schedule_55_remoting_67_a_first_retry_waits_at_level_3_and_knows_where_it_came_from() {
    // B70 (RETRY_TOPIC stays; so do REAL_TOPIC and REAL_QID, as in RocketMQ itself)
    let rig = rig();
    let record = first(&rig);

    assert_eq!(give_back(&rig, &record, 0, None), 0);

    let waits = waiting(&rig, 3).remove(0);
    assert_eq!(property(&waits, "REAL_TOPIC").as_deref(), Some("%RETRY%g"));
    rig.advance(Duration::from_secs(10));
    rig.step();
    let retried = rig.records("%RETRY%g", 0, 0).remove(0);
    assert_eq!(retried.view().reconsume_times(), 1);
    assert_eq!(property(&retried, "RETRY_TOPIC").as_deref(), Some("T"));
    assert_eq!(property(&retried, "WAIT").as_deref(), Some("false"));
    assert_eq!(property(&retried, "UNIQ_KEY").as_deref(), Some("KEY0"));
    assert_eq!(property(&retried, "TAGS").as_deref(), Some("A"));
    let origin = latermq::record::MessageId {
        store_host: record.view().store_host(),
        physical_offset: record.view().physical_offset(),
    };
    assert_eq!(property(&retried, "ORIGIN_MESSAGE_ID"), Some(origin.to_string()));
    assert_eq!((retried.view().body(), retried.view().born_at()), (record.view().body(), record.view().born_at()));
}

#[test]
fn schedule_56_a_second_retry_keeps_the_topic_and_id_of_the_first_message() {
    let rig = rig();
    let record = first(&rig);
    give_back(&rig, &record, 0, None);
    rig.advance(Duration::from_secs(10));
    rig.step();
    let once = rig.records("%RETRY%g", 0, 0).remove(0);

    assert_eq!(give_back(&rig, &once, 0, None), 0);

    let waits = waiting(&rig, 4).remove(0);
    for name in ["RETRY_TOPIC", "ORIGIN_MESSAGE_ID"] {
        assert_eq!(property(&waits, name), property(&once, name));
    }
    assert_eq!(waits.view().reconsume_times(), 2);
    assert_eq!(property(&waits, "REAL_TOPIC").as_deref(), Some("%RETRY%g"));
}

#[test]
fn schedule_57_a_level_that_is_asked_for_counts_and_a_negative_one_means_dead() {
    let rig = rig();
    let record = first(&rig);

    give_back(&rig, &record, 5, None);
    assert_eq!(waiting(&rig, 5).len(), 1);

    give_back(&rig, &record, -1, None);
    assert_eq!(rig.records("%DLQ%g", 0, 0).len(), 1);
}

#[test]
fn remoting_68_a_delayed_message_becomes_a_dead_letter_at_once() {
    let rig = rig();
    rig.sent(message("T").level(3));
    rig.advance(Duration::from_secs(10));
    rig.step();
    let delivered = rig.records("T", 0, 0).remove(0);

    give_back(&rig, &delivered, -1, None);

    assert_eq!(rig.records("%DLQ%g", 0, 0).len(), 1);
}

#[test]
fn schedule_61_a_delayed_message_that_is_tried_again_tells_the_client_its_own_topic() {
    let rig = rig();
    rig.sent(message("T").level(1));
    rig.advance(Duration::from_secs(1));
    rig.step();
    let delivered = rig.records("T", 0, 0).remove(0);

    assert_eq!(give_back(&rig, &delivered, 0, None), 0);
    rig.advance(Duration::from_secs(10));
    rig.step();

    let retried = rig.records("%RETRY%g", 0, 0).remove(0);
    assert_eq!((retried.view().topic(), retried.view().body()), ("%RETRY%g", delivered.view().body()));
    assert_eq!(property(&retried, "RETRY_TOPIC").as_deref(), Some("T"), "a client shows this one to its listener");
    assert_eq!(property(&retried, "DELAY").as_deref(), Some("3"));
}

#[test]
fn schedule_58_remoting_67_after_the_last_retry_a_message_is_dead() {
    // B66
    let rig = rig();
    rig.sent(message("%RETRY%g").reconsumed(15, Some(16)));
    rig.sent(message("%RETRY%g").reconsumed(16, Some(16)));
    let records = rig.records("%RETRY%g", 0, 0);

    assert_eq!(give_back(&rig, &records[0], 0, Some(16)), 0);
    assert_eq!(waiting(&rig, 18).len(), 1);
    assert_eq!(give_back(&rig, &records[1], 0, Some(16)), 0);

    let dead = rig.records("%DLQ%g", 0, 0).remove(0);
    assert_eq!(dead.view().reconsume_times(), 17);
    assert_eq!(property(&dead, "DELAY").as_deref(), Some("0"));
}

#[test]
fn an_old_client_cannot_say_how_often_it_retries() {
    let rig = rig();
    let record = first(&rig);
    let asks = Command { version: 120, ..back(&record, 0, Some(0)) };

    assert_eq!(rig.ask(asks).code, 0);

    rig.step();
    assert_eq!((waiting(&rig, 3).len(), max(&rig, "%DLQ%g", 0)), (1, 0));
}

#[test]
fn schedule_59_a_group_without_retry_queues_drops_what_comes_back() {
    let rig = rig();
    let record = first(&rig);
    assert_eq!(rig.ask(request(200, &[]).with_body(r#"{"groupName":"g","retryQueueNums":0}"#)).code, 0);
    let (_, before) = rig.store.log_range();

    assert_eq!(give_back(&rig, &record, 0, None), 0);

    assert_eq!(rig.store.log_range().1, before);
}

#[test]
fn schedule_59_an_unknown_group_and_an_unreadable_message_are_errors() {
    let rig = rig_with(BrokerOptions { auto_create_groups: false, ..BrokerOptions::default() }, store_options());
    let record = first(&rig);
    assert_eq!(give_back(&rig, &record, 0, None), 26);
    assert_eq!(rig.ask(request(200, &[]).with_body(r#"{"groupName":"g"}"#)).code, 0);

    for offset in ["12345678", "1", "-1"] {
        let asks = request(36, &[("offset", offset), ("group", "g"), ("delayLevel", "0")]);
        assert_eq!(rig.ask(asks).code, 1, "{offset}");
    }
    assert_eq!(give_back(&rig, &record, 0, None), 0);
}

#[test]
fn what_comes_back_is_answered_when_it_is_durable() {
    let options = StoreOptions { flush_policy: FlushPolicy::Sync, ..store_options() };
    let rig = rig_with(BrokerOptions::default(), options);
    let client = Arc::clone(&rig.client);
    assert!(rig.ask_now(&client, message("T").request()).is_none());
    rig.store.sync_once().unwrap();
    client.take_sent();
    rig.step();
    let record = rig.records("T", 0, 0).remove(0);

    assert!(rig.ask_now(&client, back(&record, 0, None)).is_none());
    rig.store.sync_once().unwrap();

    assert_eq!(client.take_sent()[0].code, 0);
}

#[test]
fn schedule_60_remoting_69_a_fallback_send_beyond_the_last_retry_is_a_dead_letter_without_delay() {
    let rig = rig();
    let fallback = |times| message("%RETRY%g").reconsumed(times, Some(16)).level(18).property("RETRY_TOPIC", "T");

    rig.sent(fallback(16));
    assert_eq!((waiting(&rig, 18).len(), max(&rig, "%DLQ%g", 0)), (1, 0));
    rig.sent(fallback(17));

    assert_eq!((waiting(&rig, 18).len(), max(&rig, "%DLQ%g", 0)), (1, 1));
    let go_style = message("%RETRY%g").reconsumed(1, Some(0));
    rig.sent(go_style);
    assert_eq!(max(&rig, "%DLQ%g", 0), 2);
}

#[test]
fn a_fallback_send_of_a_group_that_consumes_in_order_is_a_dead_letter_at_once() {
    let rig = rig();
    let lock = r#"{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}"#;
    rig.ask(request(41, &[]).with_body(lock));

    rig.sent(message("%RETRY%g").reconsumed(1, Some(16)).level(4));
    assert_eq!(max(&rig, "%DLQ%g", 0), 1);
    rig.advance(Duration::from_secs(60));
    rig.sent(message("%RETRY%g").reconsumed(1, Some(16)).level(4));

    assert_eq!((max(&rig, "%DLQ%g", 0), waiting(&rig, 4).len()), (1, 1));
}
