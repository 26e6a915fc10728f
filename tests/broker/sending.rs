//! Codes 10, 310 and 320.

use std::{io, sync::Arc};

use bytes::Bytes;
use latermq::{
    broker::{BrokerOptions, perm},
    env::Operation,
    protocol::{RequestCode, header::SendReplyHeader},
    record::{BatchMember, MessageId, encode_batch},
    store::{FlushPolicy, StoreOptions},
};

use crate::rig::{ADDRESS, Message, Rig, max, message, request, rig, rig_with, store_options};

/// Properties that ask for an arbitrary deliver time.
const TIMERS: [&str; 3] = ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];

fn code_of(rig: &Rig, message: &Message) -> i32 {
    rig.ask(message.request()).code
}

fn batch(topic: &str, members: &[&str]) -> Message {
    let members: Vec<_> = members
        .iter()
        .map(|properties| BatchMember {
            flag: 1,
            body: Bytes::from_static(b"member"),
            properties: Bytes::copy_from_slice(properties.as_bytes()),
        })
        .collect();
    let mut message = message(topic).body(encode_batch(&members).unwrap().to_vec());
    message.code = RequestCode::SEND_BATCH_MESSAGE;
    message.header.batch = Some(true);
    message
}

#[test]
fn remoting_26_short_and_long_names_store_identical_messages() {
    let rig = rig();
    let short = message("T").tag("A");
    let long = Message { code: RequestCode::SEND_MESSAGE, ..short.clone() };

    rig.sent(short);
    rig.sent(long);

    let records = rig.records("T", 0, 0);
    let (first, second) = (records[0].view(), records[1].view());
    assert_eq!(first.properties().to_pairs(), second.properties().to_pairs());
    assert_eq!((first.body(), first.flag(), first.born_at()), (second.body(), second.flag(), second.born_at()));
    assert_eq!(first.born_host(), second.born_host());
}

#[test]
fn remoting_27_the_answer_names_the_message_so_that_it_can_be_found() {
    let rig = rig();
    rig.sent(message("T").queue(2));

    let answer = rig.send(message("T").queue(2));

    let header = SendReplyHeader::decode(&answer.ext).unwrap();
    let id: MessageId = header.msg_id.parse().unwrap();
    assert_eq!(id.store_host, ADDRESS.parse().unwrap());
    assert_eq!(header.msg_id.len(), 32);
    assert_eq!(rig.store.record_at(id.physical_offset).unwrap().view().queue_offset().0, 1);
    assert_eq!((header.queue_id, header.queue_offset), (2, 1));
    assert_eq!(header.transaction_id.as_deref(), Some("KEY0"));
    assert_eq!(answer.ext.get("MSG_REGION"), Some("DefaultRegion"));
    assert_eq!(answer.ext.get("TRACE_ON"), Some("true"));
}

#[test]
fn remoting_28_the_most_retries_in_a_header_matter_only_for_retry_topics() {
    let rig = rig();
    for most in [None, Some(0), Some(16)] {
        rig.sent(message("T").reconsumed(0, most));
    }

    assert_eq!(max(&rig, "T", 0), 3);
}

#[test]
fn remoting_29_properties_with_and_without_last_separator_are_stored_alike() {
    let rig = rig();
    for text in ["K\u{1}v\u{2}UNIQ_KEY\u{1}U\u{2}E\u{1}\u{2}", "K\u{1}v\u{2}E\u{1}\u{2}UNIQ_KEY\u{1}U"] {
        let mut message = message("T");
        message.header.properties = Some(text.into());
        rig.sent(message);
    }

    for record in rig.records("T", 0, 0) {
        let properties = record.view().properties();
        assert_eq!(
            (properties.get("K"), properties.get("E"), properties.get("UNIQ_KEY")),
            (Some("v"), None, Some("U"))
        );
        assert_eq!(properties.get("CLUSTER"), Some("DefaultCluster"));
    }
}

#[test]
fn remoting_30_stored_messages_gain_cluster_region_and_trace_switch_and_lose_a_pop_receipt() {
    let rig = rig();
    rig.sent(message("T").property("POP_CK", "x"));

    let records = rig.records("T", 0, 0);

    let properties = records[0].view().properties();
    assert_eq!(properties.get("CLUSTER"), Some("DefaultCluster"));
    assert_eq!(properties.get("MSG_REGION"), Some("DefaultRegion"));
    assert_eq!(properties.get("TRACE_ON"), Some("true"));
    assert_eq!(properties.get("POP_CK"), None);
}

#[test]
fn a_message_without_a_unique_key_gets_one_and_the_producer_learns_it() {
    let rig = rig();
    let mut without = message("T");
    without.header.properties = Some("".into());

    let reply = rig.sent(without);

    let records = rig.records("T", 0, 0);
    let key = records[0].view().properties().get("UNIQ_KEY").unwrap().to_owned();
    assert_eq!(reply.transaction_id.as_deref(), Some(key.as_str()));
    assert_eq!(key.len(), 32);
}

#[test]
fn remoting_31_a_body_of_the_limit_is_taken_and_one_byte_more_is_not() {
    // B97
    let options = StoreOptions { segment_bytes: 16 << 20, body_bytes_max: 4 << 20, ..store_options() };
    let rig = rig_with(BrokerOptions::default(), options);

    assert_eq!(code_of(&rig, &message("T").body(vec![1; 4 << 20])), 0);
    assert_eq!(code_of(&rig, &message("T").body(vec![1; (4 << 20) + 1])), 13);
    assert_eq!(code_of(&rig, &message("T").body(Vec::new())), 13);
    assert_eq!(code_of(&rig, &message("T").property("big", &"x".repeat(32_768))), 13);
    rig.step();
    assert_eq!(max(&rig, "T", 0), 1);
}

#[test]
fn remoting_32_schedule_16_bad_and_internal_topics_are_refused() {
    let rig = rig();
    let code = |topic: &str| code_of(&rig, &message(topic));

    assert_eq!(code(&"t".repeat(128)), 29);
    assert_eq!(code("a.b"), 29);
    assert_eq!(code(" "), 29);
    for internal in ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT", "rmq_sys_wheel_timer"] {
        assert_eq!(code(internal), 16, "{internal}");
    }
    assert_eq!(code("BenchmarkTest"), 0);
    assert_eq!(code(&"t".repeat(127)), 0);
}

#[test]
fn remoting_33_a_queue_beyond_the_topic_is_refused_and_a_negative_one_means_any() {
    let rig = rig();

    assert_eq!(code_of(&rig, &message("T").queue(4)), 29);
    let reply = rig.sent(message("T").queue(-1));

    let queue_id = u32::try_from(reply.queue_id).unwrap();
    assert!(queue_id < 4);
    assert_eq!(max(&rig, "T", queue_id), 1);
}

#[test]
fn remoting_34_an_unknown_topic_is_created_from_its_template() {
    let rig = rig();
    rig.sent(message("T"));
    let mut wide = message("U");
    wide.header.default_topic_queue_nums = 100;
    rig.sent(wide);

    let (narrow, wide) = (rig.broker.topics().get("T").unwrap(), rig.broker.topics().get("U").unwrap());

    assert_eq!((narrow.read_queue_nums, narrow.write_queue_nums, narrow.perm), (4, 4, 6));
    assert_eq!(wide.write_queue_nums, 8, "never more than TBW102 has");
}

#[test]
fn remoting_34_without_auto_creation_an_unknown_topic_is_refused_and_tbw102_has_no_route() {
    let options = BrokerOptions { auto_create_topics: false, ..BrokerOptions::default() };
    let rig = rig_with(options, store_options());

    let answer = rig.ask(message("T").request());

    assert_eq!((answer.code, answer.remark.as_deref()), (17, Some("topic[T] not exist, apply first please!")));
    assert!(rig.broker.topics().get("TBW102").is_none());
    assert_eq!(code_of(&rig, &message("%RETRY%g")), 0, "retry topics are not the user's");
}

#[test]
fn remoting_25_the_template_topic_has_8_queues_and_lets_others_inherit() {
    let template = rig().broker.topics().get("TBW102").unwrap();

    assert_eq!((template.perm, template.read_queue_nums, template.write_queue_nums), (7, 8, 8));
}

#[test]
fn remoting_35_a_batch_is_stored_message_by_message() {
    let rig = rig();
    rig.sent(message("T"));

    let reply = rig.sent(batch("T", &["UNIQ_KEY\u{1}a\u{2}TAGS\u{1}A", "UNIQ_KEY\u{1}b\u{2}", ""]));

    assert_eq!((reply.msg_id.matches(',').count(), reply.queue_offset), (2, 1));
    let records = rig.records("T", 0, 1);
    assert_eq!(records.len(), 3);
    let view = records[0].view();
    assert_eq!((view.body(), view.flag(), view.queue_offset().0), (&b"member"[..], 1, 1));
    assert_eq!(view.properties().get("TAGS"), Some("A"));
    assert_eq!(view.properties().get("CLUSTER"), Some("DefaultCluster"));
    assert!(records[2].view().properties().get("UNIQ_KEY").is_some());
    let ids: Vec<MessageId> = reply.msg_id.split(',').map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids[2].physical_offset, records[2].view().physical_offset());
}

#[test]
fn remoting_36_batches_to_retry_topics_and_broken_ones_are_refused_whole() {
    let rig = rig();

    assert_eq!(code_of(&rig, &batch("%RETRY%g", &["", ""])), 13);
    let mut broken = batch("T", &["", ""]);
    broken.body.pop();
    assert_eq!(code_of(&rig, &broken), 13);
    assert_eq!(code_of(&rig, &message("T").body(vec![0; 64 * 1024 + 1])), 13);
    rig.step();
    assert_eq!(max(&rig, "T", 0), 0);
}

#[test]
fn schedule_15_a_batch_with_a_delay_anywhere_is_refused_whole() {
    // B81
    let rig = rig();

    assert_eq!(code_of(&rig, &batch("T", &["", "DELAY\u{1}3\u{2}"])), 13);
    assert_eq!(code_of(&rig, &batch("T", &["", ""]).level(3)), 13);
    rig.step();
    assert_eq!(max(&rig, "T", 0), 0);
}

#[test]
fn remoting_37_compression_bits_and_body_stay_as_the_producer_sent_them() {
    let rig = rig();
    for bits in [0x1, 0x101, 0x201] {
        let mut compressed = message("T").body([0x78, 0x9c, 1, 2]);
        compressed.header.sys_flag = bits | 0x30;
        rig.sent(compressed);
    }

    let flags: Vec<_> = rig.records("T", 0, 0).iter().map(|record| record.view().sys_flag().0).collect();

    assert_eq!(flags, [0x1, 0x101, 0x201], "the bits for IPv6 are the broker's own");
}

#[test]
fn half_messages_are_refused_with_a_reason() {
    // B80
    let rig = rig();
    let mut prepared = message("T");
    prepared.header.sys_flag = 0x4;

    for half in [message("T").property("TRAN_MSG", "true"), prepared, batch("T", &["TRAN_MSG\u{1}true\u{2}"])] {
        let answer = rig.ask(half.request());
        assert_eq!(answer.code, 16);
        assert!(answer.remark.unwrap().contains("transactional"));
    }
}

#[test]
fn schedule_9_10_remoting_42_a_delayed_message_waits_and_its_answer_names_the_queue_asked_for() {
    let rig = rig();
    rig.sent(message("T").queue(1).level(0));
    assert_eq!(max(&rig, "T", 1), 1);

    let reply = rig.sent(message("T").queue(2).level(3));

    assert_eq!((reply.queue_id, reply.queue_offset), (2, 0));
    assert_eq!(reply.transaction_id.as_deref(), Some("KEY0"));
    let told = rig.ask(request(30, &[("topic", "T"), ("queueId", "2")]));
    assert_eq!((max(&rig, "T", 2), told.ext.get("offset")), (0, Some("0")));
    let waiting = rig.records("SCHEDULE_TOPIC_XXXX", 2, 0);
    let properties = waiting[0].view().properties();
    assert_eq!((properties.get("REAL_TOPIC"), properties.get("REAL_QID")), (Some("T"), Some("2")));
}

#[test]
fn remoting_38_a_delayed_message_arrives_in_its_queue_after_its_delay() {
    let rig = rig();
    rig.sent(message("T").queue(2).level(3).tag("A"));

    rig.advance(std::time::Duration::from_millis(9_999));
    rig.step();
    assert_eq!(max(&rig, "T", 2), 0);
    rig.advance(std::time::Duration::from_millis(1));
    rig.step();

    let records = rig.records("T", 2, 0);
    let view = records[0].view();
    assert_eq!(view.properties().get("UNIQ_KEY"), Some("KEY0"));
    assert_eq!((view.born_at().0, view.body(), view.flag()), (1_700_000_000_123, &b"hello"[..], 7));
}

#[test]
fn schedule_12_refusals_of_the_scheduler_reach_the_producer() {
    let rig = rig();

    assert_eq!(code_of(&rig, &message("T").property("DELAY", "abc")), 13);
    assert_eq!(code_of(&rig, &message("T").property("TIMER_DELAY_SEC", "60")), 1);
    assert_eq!(code_of(&rig, &message("T").level(2).property("TIMER_DELAY_SEC", "60")), 0);
}

/// A time long gone and one far ahead, a delay, and what is no number.
const TIMER_VALUES: [&str; 4] = ["1", "1900000000000", "60", "x"];

#[test]
fn remoting_39_41_a_timer_without_a_level_is_refused_and_what_was_refused_is_never_delivered() {
    // B43, B62
    let rig = rig();
    let all = TIMERS.iter().fold(message("T"), |message, name| message.property(name, "1"));
    let each = TIMERS.iter().flat_map(|name| TIMER_VALUES.map(|value| message("T").property(name, value)));

    for timed in each.chain([all.clone(), all.level(0)]) {
        let answer = rig.ask(timed.request());
        assert_eq!(answer.code, 1, "{:?}", timed.properties);
        assert!(answer.remark.unwrap().contains("TIMER_DELIVER_MS"));
    }

    rig.advance(std::time::Duration::from_secs(7 * 24 * 3600));
    rig.step();
    let (first, end) = rig.store.log_range();
    assert_eq!((max(&rig, "T", 0), end), (0, first), "nothing is in the log");
}

#[test]
fn remoting_40_a_level_wins_over_timers_which_are_removed() {
    let rig = rig();
    for value in TIMER_VALUES {
        rig.sent(TIMERS.iter().fold(message("T").level(3), |message, name| message.property(name, value)));
    }

    rig.advance(std::time::Duration::from_millis(9_999));
    rig.step();
    assert_eq!(max(&rig, "T", 0), 0);
    rig.advance(std::time::Duration::from_millis(1));
    rig.step();

    let (waited, delivered) = (rig.records("SCHEDULE_TOPIC_XXXX", 2, 0), rig.records("T", 0, 0));
    assert_eq!((waited.len(), delivered.len()), (TIMER_VALUES.len(), TIMER_VALUES.len()));
    for record in waited.iter().chain(&delivered) {
        assert!(TIMERS.iter().all(|name| record.view().properties().get(name).is_none()));
    }
}

#[test]
fn schedule_18_under_synchronous_flush_a_delayed_message_is_answered_once_it_is_durable() {
    let options = StoreOptions { flush_policy: FlushPolicy::Sync, ..store_options() };
    let rig = rig_with(BrokerOptions::default(), options);
    let client = Arc::clone(&rig.client);
    let mut delayed = message("T").queue(1).level(3);
    delayed.properties.remove("WAIT");

    assert!(rig.ask_now(&client, delayed.request()).is_none());
    rig.step();
    assert_eq!(max(&rig, "SCHEDULE_TOPIC_XXXX", 2), 0, "it does not count yet");
    rig.store.sync_once().unwrap();

    let answers = client.take_sent();
    assert_eq!(answers.iter().map(|answer| answer.code).collect::<Vec<_>>(), [0]);
    assert_eq!(answers[0].ext.get("queueId"), Some("1"));
    assert_eq!(rig.store.durable(), rig.store.log_range().1);
    rig.step();
    assert_eq!(max(&rig, "SCHEDULE_TOPIC_XXXX", 2), 1);
}

#[test]
fn a_synchronous_flush_answers_when_the_message_is_durable_unless_the_producer_does_not_wait() {
    let options = StoreOptions { flush_policy: FlushPolicy::Sync, ..store_options() };
    let rig = rig_with(BrokerOptions::default(), options);
    let client = Arc::clone(&rig.client);

    assert!(rig.ask_now(&client, message("T").request()).is_none());
    assert_eq!(rig.ask_now(&client, message("T").property("WAIT", "false").request()).unwrap().code, 0);
    rig.store.sync_once().unwrap();

    let answers = client.take_sent();
    assert_eq!(answers.iter().map(|answer| answer.code).collect::<Vec<_>>(), [0]);
    assert_eq!(answers[0].ext.get("queueOffset"), Some("0"));
}

#[test]
fn a_failed_sync_is_an_error_to_the_producer_and_never_a_success() {
    // B30
    let options = StoreOptions { flush_policy: FlushPolicy::Sync, ..store_options() };
    let rig = rig_with(BrokerOptions::default(), options);
    let client = Arc::clone(&rig.client);
    assert!(rig.ask_now(&client, message("T").request()).is_none());

    rig.directory.fail_after(Operation::Sync, 0, io::ErrorKind::Other, 1);
    assert!(rig.store.sync_once().is_err());

    assert_eq!(client.take_sent()[0].code, 14);
    assert_eq!(code_of(&rig, &message("T")), 14, "nothing is taken any more");
    assert_eq!(rig.fatal.lock().unwrap().len(), 1);
}

#[test]
fn remoting_6_a_oneway_send_is_stored_and_not_answered() {
    let rig = rig();

    let answer = rig.ask_now(&Arc::clone(&rig.client), message("T").request().with_oneway());

    rig.step();
    assert_eq!((answer, max(&rig, "T", 0)), (None, 1));
}

#[test]
fn an_order_topic_of_a_broker_that_may_not_be_written_is_refused() {
    let rig = rig();
    let topic = [
        ("topic", "O"),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "1"),
        ("writeQueueNums", "1"),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("order", "true"),
    ];
    assert_eq!(rig.ask(request(17, &topic)).code, 0);
    rig.sent(message("plain"));

    let rig = rig.reopen_with(BrokerOptions { permission: perm::READ, ..BrokerOptions::default() });

    assert_eq!(code_of(&rig, &message("O")), 16);
    assert_eq!(code_of(&rig, &message("plain")), 0, "as in RocketMQ");
}

#[test]
fn a_header_that_cannot_be_read_is_named() {
    let rig = rig();
    let mut bad = message("T").request();
    bad.ext.set("e", "5.0");

    let answer = rig.ask(bad);

    assert_eq!(answer.code, 1);
    assert!(answer.remark.unwrap().contains("5.0"));
}
