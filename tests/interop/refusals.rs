//! What the broker refuses, with the response codes that clients expect.

use serde_json::{Value, json};

use crate::broker::Broker;
use crate::client::Client;
use crate::with_clients;

const SYSTEM_ERROR: i32 = 1;
const REQUEST_CODE_NOT_SUPPORTED: i32 = 3;
const MESSAGE_ILLEGAL: i32 = 13;
const NO_PERMISSION: i32 = 16;

with_clients! {
    illegal_messages_are_refused_and_nothing_is_stored: java_5;
    delays_that_are_no_numbers_are_refused: java_5, java_4, go;
    the_schedule_topic_is_closed_to_producers: java_5;
    unknown_requests_are_named_in_the_answer: java_5;
}

fn illegal_messages_are_refused_and_nothing_is_stored(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "refused", 1);
    let send = |properties: Value| json!({"do": "send", "topic": "refused", "key": "k", "properties": properties});
    let cases = [
        (MESSAGE_ILLEGAL, json!({"do": "batch", "topic": "refused", "key": "k", "count": 3, "delay": "inside"})),
        (MESSAGE_ILLEGAL, json!({"do": "batch", "topic": "refused", "key": "k", "count": 3, "delay": "outside"})),
        (MESSAGE_ILLEGAL, json!({"do": "send", "topic": "refused", "key": "k", "bytes": (4 << 20) + 1})),
        (MESSAGE_ILLEGAL, send(json!({"long": "x".repeat(32_768)}))),
        (MESSAGE_ILLEGAL, send(json!({"nul": "a\0b"}))),
        (SYSTEM_ERROR, send(json!({"TIMER_DELAY_SEC": "1"}))),
        (SYSTEM_ERROR, send(json!({"TIMER_DELAY_MS": "1000"}))),
        (SYSTEM_ERROR, send(json!({"TIMER_DELIVER_MS": "4102444800000"}))),
        (NO_PERMISSION, json!({"do": "half", "topic": "refused", "key": "k"})),
    ];

    for (code, command) in cases {
        assert_eq!(
            refusal(client, &broker, command.clone()),
            Some(code),
            "{}",
            command.to_string().get(..200).unwrap_or_default()
        );
    }

    assert_eq!(client.pull(&broker, "refused").len(), 0);
    assert_eq!(client.send(&broker, json!({"topic": "refused", "key": "legal"}))[0].queue_offset, 0);
}

fn delays_that_are_no_numbers_are_refused(client: &Client) {
    let broker = Broker::start();
    client.create_topic(&broker, "delays", 1);

    for delay in ["abc", "1.5", "99999999999999999999"] {
        let command = json!({"do": "send", "topic": "delays", "key": "k", "properties": {"DELAY": delay}});
        assert_eq!(refusal(client, &broker, command), Some(MESSAGE_ILLEGAL), "DELAY={delay}");
    }

    assert_eq!(client.send(&broker, json!({"topic": "delays", "key": "at once", "level": 0}))[0].queue_offset, 0);
    assert_eq!(client.send(&broker, json!({"topic": "delays", "key": "at once", "level": -1}))[0].queue_offset, 1);
}

fn the_schedule_topic_is_closed_to_producers(client: &Client) {
    let broker = Broker::start();
    // The client would not send this, so it is written by hand: the header of a send, with its short names.
    let header = json!({
        "a": "interop", "b": "SCHEDULE_TOPIC_XXXX", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": "", "j": "0", "k": "false", "m": "false",
    });

    let answer = client.run(&broker, json!({"do": "request", "code": 310, "ext": header, "body": "b"}));

    assert_eq!(answer[0]["code"], NO_PERMISSION);
}

fn unknown_requests_are_named_in_the_answer(client: &Client) {
    let broker = Broker::start();

    let answer = client.run(&broker, json!({"do": "request", "code": 9_999}));

    assert_eq!(answer[0]["code"], REQUEST_CODE_NOT_SUPPORTED);
    assert!(answer[0]["remark"].as_str().is_some_and(|remark| remark.contains("9999")), "{answer:?}");
}

/// The response code with which a send was refused, or nothing if it was not.
fn refusal(client: &Client, broker: &Broker, command: Value) -> Option<i32> {
    let answer = match client.try_run(broker, command) {
        Ok(events) => events.into_iter().next()?,
        Err(failure) => failure,
    };
    answer["code"].as_i64().and_then(|code| i32::try_from(code).ok())
}
