//! What only the broker may set: a producer that sets it all the same changes nothing by it.

use std::time::Duration;

use latermq::{
    model::Properties,
    protocol::{Command, RequestCode},
    record::{BatchMember, Record, encode_batch},
};

use crate::rig::{Message, Rig, max, message, request, rig};

const SCHEDULE: &str = "SCHEDULE_TOPIC_XXXX";
/// Topics to which no client sends.
const CLOSED: [&str; 9] = [
    SCHEDULE,
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "rmq_sys_parked_delayed",
    "rmq_sys_wheel_timer",
    "rmq_sys_anything",
];
/// Real queues as a producer may spoof them.
const QUEUES: [&str; 5] = ["0", "99999", "-1", "x", "2147483648"];

fn long(message: Message) -> Message {
    Message { code: RequestCode::SEND_MESSAGE, ..message }
}

/// A batch of one message with these properties, in an envelope with those.
fn batch(topic: &str, properties: &Properties, envelope: Properties) -> Command {
    let member =
        BatchMember { flag: 0, body: b"hello".to_vec().into(), properties: properties.as_bytes().to_vec().into() };
    let mut batch = message(topic).body(encode_batch(&[member]).unwrap());
    batch.header.batch = Some(true);
    Message { properties: envelope, code: RequestCode::SEND_BATCH_MESSAGE, ..batch }.request()
}

fn spoofed(mut message: Message, queue: &str) -> Message {
    for (name, value) in [("REAL_TOPIC", "other"), ("REAL_QID", queue)] {
        message = message.property(name, value);
    }
    message
}

fn has(record: &Record, name: &str) -> bool {
    record.view().properties().get_bytes(name).is_some()
}

/// Nothing came by a spoofed name.
fn assert_nothing_elsewhere(rig: &Rig, case: &str) {
    assert!(rig.broker.topics().get("other").is_none(), "{case}");
    assert_eq!(max(rig, "other", 0), 0, "{case}");
    let figures = rig.store.figures();
    let parked = figures.iter().filter(|figure| figure.name == "delayParked" || figure.name == "delaySkipped");
    for figure in parked {
        assert_eq!(figure.value, latermq::store::FigureValue::Number(0.0), "{case}: {figure:?}");
    }
}

#[test]
fn b123_a_real_topic_set_by_a_producer_is_removed_in_every_form_of_a_send() {
    for queue in QUEUES {
        let rig = rig();
        let plain = spoofed(message("T"), queue);
        let requests = [
            plain.request(),
            long(plain.clone()).request(),
            batch("T", &plain.properties, Properties::new()),
            batch("T", &Properties::new(), plain.properties.clone()),
            plain.clone().level(0).request(),
            plain.clone().level(-1).request(),
        ];
        let count = requests.len();
        for request in requests {
            let answer = rig.ask(request);
            assert_eq!(answer.code, 0, "{:?}", answer.remark);
        }
        rig.step();
        rig.advance(Duration::from_secs(3 * 3600));
        rig.step();

        let records = rig.records("T", 0, 0);
        assert_eq!(records.len(), count);
        for record in records {
            assert!(!has(&record, "REAL_TOPIC") && !has(&record, "REAL_QID"), "{record:?}");
            assert_eq!(record.view().prepared_offset(), 0);
        }
        assert_nothing_elsewhere(&rig, queue);
    }
}

#[test]
fn b123_a_delayed_message_goes_to_the_topic_it_was_sent_to_whatever_its_properties_say() {
    for queue in QUEUES {
        let rig = rig();
        for send in [spoofed(message("T"), queue).level(1), long(spoofed(message("T").queue(1), queue).level(1))] {
            assert_eq!(rig.send(send).code, 0);
        }
        rig.advance(Duration::from_secs(1));
        rig.step();

        assert_eq!((rig.records("T", 0, 0).len(), rig.records("T", 1, 0).len()), (1, 1));
        assert_nothing_elsewhere(&rig, queue);
    }
}

/// Twice the same name: the last counts for readers, so the one before must not survive as the only one.
#[test]
fn names_that_come_twice_hide_nothing() {
    let rig = rig();
    let raw = |text: &str| {
        let mut message = message("T");
        message.header.properties = Some(text.to_owned().into());
        message.request()
    };
    let twice =
        "REAL_TOPIC\u{1}other\u{2}KEYS\u{1}k\u{2}REAL_TOPIC\u{1}other\u{2}REAL_QID\u{1}1\u{2}REAL_QID\u{1}2\u{2}";
    for (level, wait) in [("0", 0), ("1", 1)] {
        let before = rig.records("T", 0, 0).len();
        let answer = rig.ask(raw(&format!("{twice}DELAY\u{1}9\u{2}DELAY\u{1}{level}\u{2}REAL_TOPIC\u{1}\u{2}")));
        assert_eq!(answer.code, 0, "{:?}", answer.remark);
        rig.step();
        assert_eq!(rig.records("T", 0, 0).len(), before + usize::from(wait == 0));
        rig.advance(Duration::from_secs(wait));
        rig.step();
        let records = rig.records("T", 0, 0);
        assert_eq!(records.len(), before + 1, "level {level}");
        let text = records[before].view().properties().as_bytes().to_vec();
        let count = |name: &[u8]| text.windows(name.len()).filter(|found| *found == name).count();
        assert_eq!((count(b"other"), count(b"DELAY")), (0, usize::from(wait == 1) + 2 * usize::from(wait == 0)));
    }
    assert_nothing_elsewhere(&rig, "twice");
}

#[test]
fn b123_nobody_sends_to_a_topic_that_is_the_brokers_own() {
    let rig = rig();
    for topic in CLOSED {
        let spoofed = spoofed(message(topic), "0");
        for request in [
            spoofed.request(),
            long(spoofed.clone()).request(),
            spoofed.clone().level(1).request(),
            batch(topic, &spoofed.properties, Properties::new()),
        ] {
            let answer = rig.ask(request);
            assert_eq!(answer.code, 16, "{topic}: {:?}", answer.remark);
        }
        for queue_id in 0..18 {
            assert_eq!(max(&rig, topic, queue_id), 0, "{topic}");
        }
    }
    rig.advance(Duration::from_secs(3 * 3600));
    rig.step();
    assert_nothing_elsewhere(&rig, "closed topics");
}

#[test]
fn b80_half_messages_are_refused_also_with_a_level_and_in_a_batch() {
    let rig = rig();
    for half in [message("T").property("TRAN_MSG", "true"), message("T").property("TRAN_MSG", "TRUE").level(3)] {
        assert_eq!(rig.send(half.clone()).code, 16);
        assert_eq!(rig.ask(batch("T", &half.properties, Properties::new())).code, 16);
    }
    for (flag, level) in [(4, 0), (4, 3), (12, 0), (12, 3)] {
        let mut half = message("T").level(level);
        half.header.sys_flag = flag;
        assert_eq!(rig.send(half).code, 16, "sysFlag {flag}");
    }
    assert_eq!((max(&rig, "T", 0), max(&rig, "RMQ_SYS_TRANS_HALF_TOPIC", 0), max(&rig, SCHEDULE, 2)), (0, 0, 0));
}

#[test]
fn b81_a_batch_that_asks_for_a_delay_anywhere_is_refused_whole() {
    let rig = rig();
    for (name, value) in [
        ("DELAY", "1"),
        ("DELAY", "x"),
        ("TIMER_DELAY_SEC", "1"),
        ("TIMER_DELAY_MS", "1"),
        ("TIMER_DELIVER_MS", "1900000000000"),
    ] {
        let mut asks = Properties::new();
        asks.set(name, value);
        assert_eq!(rig.ask(batch("T", &asks, Properties::new())).code, 13, "{name} within");
        assert_eq!(rig.ask(batch("T", &Properties::new(), asks)).code, 13, "{name} around");
    }
    rig.step();
    rig.advance(Duration::from_secs(60));
    rig.step();
    assert_eq!((max(&rig, "T", 0), max(&rig, SCHEDULE, 0)), (0, 0));
}

#[test]
fn b84_a_delayed_message_that_asks_to_be_fanned_out_has_no_early_copy() {
    let rig = rig();
    let fanned = message("T")
        .level(1)
        .property("INNER_MULTI_DISPATCH", "%LMQ%a,%LMQ%b,other")
        .property("INNER_MULTI_QUEUE_OFFSET", "0,0,0");
    assert_eq!(rig.send(fanned).code, 0);
    for topic in ["T", "%LMQ%a", "%LMQ%b", "other"] {
        assert_eq!(max(&rig, topic, 0), 0, "{topic}");
    }
    rig.advance(Duration::from_secs(1));
    rig.step();
    assert_eq!((max(&rig, "T", 0), max(&rig, "%LMQ%a", 0)), (1, 0));
    assert_nothing_elsewhere(&rig, "fanned out");
}

#[test]
fn header_fields_of_the_broker_are_the_brokers() {
    let rig = rig();
    let mut sent = message("T");
    sent.header.sys_flag = 0x10 | 0x20 | 0x40 | 0x80 | 0x1;
    for name in ["preparedTransactionOffset", "storeTimestamp", "storeHost", "queueOffset", "physicalOffset", "msgId"] {
        let mut request = sent.request();
        request.ext.push(name, "281474976710657");
        assert_eq!(rig.ask(request).code, 0);
    }
    rig.step();

    let records = rig.records("T", 0, 0);
    assert_eq!(records.len(), 6);
    for (at, record) in records.iter().enumerate() {
        let view = record.view();
        assert_eq!((view.sys_flag().0, view.prepared_offset(), view.queue_offset().0), (0x1, 0, at as u64));
        assert_eq!((view.stored_at(), view.store_host()), (rig.store.now(), crate::rig::ADDRESS.parse().unwrap()));
    }
}

#[test]
fn properties_that_the_broker_adds_are_not_the_producers() {
    let rig = rig();
    let sent = message("T").property("MSG_REGION", "mine").property("TRACE_ON", "mine").property("CLUSTER", "mine");
    assert_eq!(rig.send(sent.property("1ST_POP_TIME", "5").property("POP_CK", "0 0 0 0 0 T")).code, 0);

    let record = rig.records("T", 0, 0).remove(0);
    let get = |name: &str| record.view().properties().get(name).map(str::to_owned);
    assert_eq!(get("MSG_REGION").as_deref(), Some("DefaultRegion"));
    assert_eq!(get("TRACE_ON").as_deref(), Some("true"));
    assert_eq!(get("CLUSTER").as_deref(), Some("DefaultCluster"));
    assert_eq!(get("POP_CK"), None);
}

/// A consumer gives back what it was given. A waiting message given back would come at the time of its retry, long before its own.
#[test]
fn a_message_that_waits_cannot_be_given_back() {
    let rig = rig();
    rig.sent(message("T").level(18));
    let waits = rig.records(SCHEDULE, 17, 0).remove(0);
    let offset = waits.view().physical_offset().0.to_string();

    for level in ["0", "1", "-1"] {
        let back = [("offset", offset.as_str()), ("group", "g"), ("delayLevel", level), ("originTopic", "T")];
        let answer = rig.ask(request(36, &back));
        assert_eq!(answer.code, 1, "{:?}", answer.remark);
    }

    rig.step();
    rig.advance(Duration::from_secs(3600));
    rig.step();
    for topic in ["T", "%RETRY%g", "%DLQ%g"] {
        assert_eq!(max(&rig, topic, 0), 0, "{topic}");
    }
}

#[test]
fn what_is_given_back_lands_in_its_groups_topics_whatever_its_fields_say() {
    let rig = rig();
    rig.sent(spoofed(message("T"), "9").property("RETRY_TOPIC", "other").property("ORIGIN_MESSAGE_ID", "spoofed"));
    let offset = rig.records("T", 0, 0)[0].view().physical_offset().0.to_string();
    for (level, topic) in [("1", "%RETRY%g"), ("-1", "%DLQ%g")] {
        let back = [
            ("offset", offset.as_str()),
            ("group", "g"),
            ("delayLevel", level),
            ("originTopic", "other"),
            ("originMsgId", "x"),
            ("topic", "other"),
            ("queueId", "77"),
        ];
        assert_eq!(rig.ask(request(36, &back)).code, 0);
        rig.step();
        rig.advance(Duration::from_secs(1));
        rig.step();
        assert_eq!(rig.records(topic, 0, 0).len(), 1, "{topic}");
    }
    assert_nothing_elsewhere(&rig, "send-back");
    // A consumer that sends its retry itself.
    let retry = spoofed(message("%RETRY%g"), "5").level(1).reconsumed(1, Some(16));
    assert_eq!(rig.send(retry).code, 0);
    rig.advance(Duration::from_secs(1));
    rig.step();
    assert_eq!(rig.records("%RETRY%g", 0, 0).len(), 2);
    assert_nothing_elsewhere(&rig, "own retry");
}
