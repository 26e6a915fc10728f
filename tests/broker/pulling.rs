//! Codes 11 and 361, and pulls that are held.

use std::{sync::Arc, time::Duration};

use latermq::{
    broker::{BrokerOptions, perm},
    model::java_hash,
    protocol::{
        Command, RequestCode,
        header::{PullHeader, pull_flag},
    },
    remoting::{Connection, Handler},
};

use crate::rig::{
    PullRequest, Rig, connection, max, message, pull_header, records, reply, request, rig, rig_with, store_options,
};

fn at(rig: &Rig, offset: i64) -> Command {
    rig.pull("T", 0, offset)
}

/// Pulls with leave to be held.
fn hold(rig: &Rig, connection: &Arc<Connection>, offset: i64, tags: &str) -> Option<Command> {
    rig.ask_now(connection, pull_header("g", "T", 0, offset).held().tags(tags).request())
}

#[test]
fn remoting_55_58_60_every_status_has_its_code_and_all_four_fields() {
    let rig = rig();
    assert_eq!(rig.ask(request(17, &topic("T", "6"))).code, 0);

    let (empty, beyond_empty) = (at(&rig, 0), at(&rig, 5));
    assert_eq!((empty.code, reply(&empty).next_begin_offset), (19, 0));
    assert_eq!((beyond_empty.code, reply(&beyond_empty).next_begin_offset), (21, 0));

    rig.sent(message("T"));
    rig.sent(message("T"));
    let found = at(&rig, 0);
    let header = reply(&found);
    assert_eq!((found.code, found.remark.as_deref()), (0, Some("FOUND")));
    assert_eq!((header.next_begin_offset, header.min_offset, header.max_offset), (2, 0, 2));
    assert_eq!(header.suggest_which_broker_id, 0);
    let (end, beyond, before) = (at(&rig, 2), at(&rig, 9), at(&rig, -3));
    assert_eq!((end.code, reply(&end).next_begin_offset), (19, 2));
    assert_eq!((beyond.code, reply(&beyond).next_begin_offset), (21, 2));
    assert_eq!((before.code, reply(&before).next_begin_offset), (21, 0));
}

#[test]
fn remoting_59_66_messages_of_other_tags_are_passed_over() {
    let rig = rig();
    for tag in ["A", "B", "C", "A"] {
        rig.sent(message("T").tag(tag));
    }
    rig.sent(message("T"));

    let some = rig.ask(pull_header("g", "T", 0, 0).tags("A||C").request());
    let none = rig.ask(pull_header("g", "T", 0, 1).tags("X").request());

    let tags: Vec<_> =
        records(&some).iter().map(|record| record.view().properties().get("TAGS").unwrap().to_owned()).collect();
    assert_eq!((tags.join(""), reply(&some).next_begin_offset), ("ACA".into(), 5));
    assert_eq!((none.code, reply(&none).next_begin_offset), (20, 5));
}

#[test]
fn remoting_64_no_more_messages_come_than_asked_for_or_allowed() {
    let rig = rig();
    for _ in 0..40 {
        rig.sent(message("T"));
    }

    let ask =
        |count| records(&rig.ask(PullHeader { max_msg_nums: count, ..pull_header("g", "T", 0, 0) }.request())).len();
    assert_eq!((ask(1), ask(10), ask(1024), ask(0)), (1, 10, 32, 1));
    let few_bytes = PullHeader { max_msg_bytes: Some(1), ..pull_header("g", "T", 0, 0) };
    assert_eq!(records(&rig.ask(few_bytes.request())).len(), 1);
}

#[test]
fn remoting_65_records_come_as_they_lie_in_the_log() {
    let rig = rig();
    let sent = rig.sent(message("T"));

    let records = rig.records("T", 0, 0);

    let id: latermq::record::MessageId = sent.msg_id.parse().unwrap();
    assert_eq!(records[0].bytes(), rig.store.record_at(id.physical_offset).unwrap().bytes());
}

#[test]
fn remoting_75_a_lite_pull_is_answered_like_a_pull() {
    let rig = rig();
    rig.sent(message("T"));
    let mut lite = pull_header("g", "T", 0, 0).request();
    lite.code = RequestCode::LITE_PULL_MESSAGE;

    assert_eq!(rig.ask(lite).code, 0);
}

#[test]
fn remoting_61_62_without_a_subscription_in_the_request_the_heartbeat_decides() {
    let rig = rig();
    rig.sent(message("T").tag("A"));
    let bare = PullHeader { sys_flag: 0, subscription: None, ..pull_header("g", "T", 0, 0) };
    assert_eq!(rig.ask(bare.request()).code, 24, "no heartbeat yet");

    rig.join(&rig.client, "c", "g", &[("T", "A")]);

    assert_eq!(rig.ask(bare.request()).code, 0);
    assert_eq!(rig.ask(PullHeader { sub_version: 1, ..bare.clone() }.request()).code, 0);
    assert_eq!(rig.ask(PullHeader { sub_version: 2, ..bare.clone() }.request()).code, 25);
    rig.sent(message("U"));
    assert_eq!(rig.ask(PullHeader { topic: "U".into(), ..bare }.request()).code, 24);
}

#[test]
fn refused_pulls_have_the_codes_clients_expect() {
    let rig = rig();
    rig.sent(message("T"));
    assert_eq!(rig.ask(request(17, &topic("W", "2"))).code, 0);
    let ask = |header: PullHeader| rig.ask(header.request());
    let good = || pull_header("g", "T", 0, 0);

    assert_eq!(ask(PullHeader { topic: "unknown".into(), ..good() }).code, 17);
    assert_eq!(ask(PullHeader { queue_id: 4, ..good() }).code, 29);
    assert_eq!(ask(PullHeader { queue_id: -1, ..good() }).code, 29);
    assert_eq!(ask(good().tags("||")).code, 23);
    let write_only = ask(PullHeader { topic: "W".into(), ..good() });
    assert_eq!((write_only.code, write_only.ext.get("forbiddenType")), (16, Some("3")));
    let sql = ask(PullHeader { expression_type: Some("SQL92".into()), ..good().tags("a > 5") });
    assert_eq!(sql.code, 1);
    assert_eq!(sql.remark.unwrap(), "The broker does not support consumer to filter message by SQL92");
}

#[test]
fn a_broker_that_may_not_be_read_and_a_group_that_may_not_consume_are_refused() {
    let rig = rig();
    rig.sent(message("T"));
    let disabled = r#"{"groupName":"g","consumeEnable":false}"#;
    assert_eq!(rig.ask(request(200, &[]).with_body(disabled)).code, 0);

    let group = rig.ask(pull_header("g", "T", 0, 0).request());
    assert_eq!((group.code, group.ext.get("forbiddenType")), (16, Some("2")));
    let rig = rig.reopen_with(BrokerOptions { permission: perm::WRITE, ..BrokerOptions::default() });
    let broker = rig.ask(pull_header("h", "T", 0, 0).request());
    assert_eq!((broker.code, broker.ext.get("forbiddenType")), (16, Some("1")));
}

#[test]
fn remoting_63_a_pull_commits_the_offset_it_carries() {
    let rig = rig();
    rig.sent(message("T"));
    rig.sent(message("T"));
    let mut commits = pull_header("g", "T", 0, 2);
    commits.commit_offset = 1;
    rig.ask(commits.request());
    let asks = request(14, &[("consumerGroup", "g"), ("topic", "T"), ("queueId", "0"), ("setZeroIfNotFound", "false")]);
    assert_eq!(rig.ask(asks.clone()).code, 22, "the flag says that nothing is to be committed");

    commits.sys_flag |= pull_flag::COMMIT_OFFSET;
    rig.ask(commits.request());

    assert_eq!(rig.ask(asks).ext.get("offset"), Some("1"));
}

#[test]
fn remoting_56_a_held_pull_is_answered_when_a_matching_message_can_be_read() {
    let rig = rig();
    rig.sent(message("T").tag("A"));
    let client = connection();
    assert_eq!(hold(&rig, &client, 1, "B"), None);

    rig.sent(message("T").tag("A"));
    assert_eq!((client.take_sent().len(), rig.broker.held_pulls()), (0, 1));
    rig.sent(message("T").tag("B"));

    let answer = client.take_sent().pop().unwrap();
    assert_eq!((answer.code, reply(&answer).next_begin_offset), (0, 3));
    assert_eq!(records(&answer)[0].view().queue_offset().0, 2);
    assert_eq!(rig.broker.held_pulls(), 0);
}

#[test]
fn a_restored_message_wakes_a_held_pull_at_once() {
    // B51
    let rig = rig();
    rig.sent(message("T").level(3).tag("B"));
    let client = connection();
    assert_eq!(hold(&rig, &client, 0, "B"), None);

    rig.advance(Duration::from_secs(10));
    rig.step();

    let answer = client.take_sent().pop().unwrap();
    assert_eq!((answer.code, records(&answer).len()), (0, 1));
}

#[test]
fn remoting_57_a_held_pull_without_a_message_is_answered_in_time() {
    let rig = rig();
    rig.sent(message("T"));
    let client = connection();
    assert_eq!(hold(&rig, &client, 1, "*"), None);

    rig.advance(Duration::from_millis(14_999));
    rig.broker.answer_expired_pulls();
    assert!(client.take_sent().is_empty());
    rig.advance(Duration::from_millis(501));
    rig.broker.answer_expired_pulls();

    let answer = client.take_sent().pop().unwrap();
    assert_eq!((answer.code, reply(&answer).next_begin_offset), (19, 1));
}

#[test]
fn a_pull_is_never_held_beyond_what_clients_wait() {
    let rig = rig();
    rig.sent(message("T"));
    let client = connection();
    let patient = PullHeader { suspend_timeout_ms: i64::MAX, ..pull_header("g", "T", 0, 1).held() };
    assert_eq!(rig.ask_now(&client, patient.request()), None);

    rig.advance(Duration::from_millis(28_500));
    rig.broker.answer_expired_pulls();

    assert_eq!(client.take_sent()[0].code, 19);
}

#[test]
fn a_held_pull_learns_at_its_end_where_messages_it_did_not_want_end() {
    let rig = rig();
    rig.sent(message("T").tag("A"));
    let client = connection();
    assert_eq!(hold(&rig, &client, 1, "B"), None);
    rig.sent(message("T").tag("A"));

    rig.advance(Duration::from_secs(16));
    rig.broker.answer_expired_pulls();

    let answer = client.take_sent().pop().unwrap();
    assert_eq!((answer.code, reply(&answer).next_begin_offset), (20, 2));
}

#[test]
fn remoting_57_without_leave_to_wait_a_pull_is_answered_at_once() {
    let rig = rig();
    rig.sent(message("T"));

    assert_eq!(at(&rig, 1).code, 19);
    let no_time = PullHeader { suspend_timeout_ms: 0, ..pull_header("g", "T", 0, 1).held() };
    assert_eq!(rig.ask(no_time.request()).code, 19);
}

#[test]
fn with_long_polling_off_a_pull_waits_a_second_at_most() {
    let rig = rig_with(BrokerOptions { long_polling: false, ..BrokerOptions::default() }, store_options());
    rig.sent(message("T"));
    let client = connection();
    assert_eq!(hold(&rig, &client, 1, "*"), None);

    rig.advance(Duration::from_millis(1500));
    rig.broker.answer_expired_pulls();

    assert_eq!(client.take_sent().len(), 1);
}

#[test]
fn held_pulls_go_with_their_connection() {
    let rig = rig();
    rig.sent(message("T"));
    let client = connection();
    hold(&rig, &client, 1, "*");

    client.close();
    rig.broker.closed(&client);
    rig.sent(message("T"));

    assert_eq!((rig.broker.held_pulls(), client.take_sent().len()), (0, 0));
}

#[test]
fn held_pulls_of_a_topic_that_is_deleted_are_answered() {
    let rig = rig();
    rig.sent(message("T"));
    let client = connection();
    hold(&rig, &client, 1, "*");

    assert_eq!(rig.ask(request(215, &[("topic", "T")])).code, 0);

    let answer = client.take_sent().pop().unwrap();
    assert_eq!((answer.code, reply(&answer).next_begin_offset), (21, 0));
}

#[test]
fn a_pull_beyond_the_most_that_are_held_is_answered_at_once() {
    let rig = rig_with(BrokerOptions { held_max: 1, ..BrokerOptions::default() }, store_options());
    rig.sent(message("T"));
    let client = connection();
    assert_eq!(hold(&rig, &client, 1, "*"), None);

    assert_eq!(hold(&rig, &client, 1, "*").unwrap().code, 19);
}

#[test]
fn tags_are_compared_by_the_hash_in_the_queue() {
    let rig = rig();
    // "Aa" and "BB" have the same hash; the client tells them apart.
    assert_eq!(java_hash("Aa"), java_hash("BB"));
    rig.sent(message("T").tag("BB"));

    assert_eq!(records(&rig.ask(pull_header("g", "T", 0, 0).tags("Aa").request())).len(), 1);
    assert_eq!(max(&rig, "T", 0), 1);
}

fn topic<'a>(name: &'a str, perm: &'a str) -> Vec<(&'static str, &'a str)> {
    vec![
        ("topic", name),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "1"),
        ("writeQueueNums", "1"),
        ("perm", perm),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
    ]
}
