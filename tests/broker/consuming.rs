//! Heartbeats, groups, locks and offsets: codes 14, 15, 29 to 35, 38, 41, 42, 46.

use std::{sync::Arc, time::Duration};

use latermq::{
    broker::BrokerOptions,
    protocol::{Command, RequestCode, body::MessageModel},
    remoting::{Connection, Handler},
};

use crate::rig::{Rig, connection, heartbeat, heartbeat_request, message, request, rig, rig_with, store_options, text};

fn ids(rig: &Rig, group: &str) -> Command {
    rig.ask(request(38, &[("consumerGroup", group)]))
}

fn told(connection: &Arc<Connection>) -> usize {
    connection.take_sent().iter().filter(|sent| sent.code == RequestCode::NOTIFY_CONSUMER_IDS_CHANGED).count()
}

fn offset(rig: &Rig, code: i32, queue_id: &str) -> Option<String> {
    let ext = [("consumerGroup", "g"), ("topic", "T"), ("queueId", queue_id)];
    let answer = rig.ask(request(code, &ext));
    answer.ext.get("offset").map(str::to_owned)
}

fn commit(rig: &Rig, offset: &str) -> Command {
    let ext = [("consumerGroup", "g"), ("topic", "T"), ("queueId", "0"), ("commitOffset", offset)];
    rig.ask(request(15, &ext))
}

#[test]
fn remoting_47_a_heartbeat_creates_the_group_and_its_retry_topic() {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "*")]);

    let retry = rig.broker.topics().get("%RETRY%g").unwrap();
    assert_eq!((retry.read_queue_nums, retry.write_queue_nums, retry.perm), (1, 1, 6));
    assert!(text(&rig.ask(request(201, &[]))).contains(r#""groupName":"g""#));
}

#[test]
fn remoting_48_tag_codes_of_java_and_go_are_both_understood() {
    let rig = rig();
    for (client, codes) in [("java", "[2598919]"), ("go", "[\"2598919\"]")] {
        let body = format!(
            r#"{{"clientID":"{client}","consumerDataSet":[{{"groupName":"{client}","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{{"classFilterMode":false,"codeSet":{codes},"expressionType":"TAG","subString":"TagA","subVersion":5,"tagsSet":["TagA"],"topic":"T"}}],"unitMode":false}}],"producerDataSet":[]}}"#
        );
        assert_eq!(rig.ask_now(&connection(), request(34, &[]).with_body(body)).unwrap().code, 0);

        assert!(text(&ids(&rig, client)).contains(client));
    }
}

#[test]
fn remoting_49_a_member_is_listed_once_it_was_heard_of_and_all_are_told_of_a_second() {
    let rig = rig();
    let unknown = ids(&rig, "g");
    assert_eq!(unknown.code, 1);
    assert!(unknown.remark.unwrap().starts_with("no consumer for this group"));
    let (a, b) = (connection(), connection());
    rig.join(&a, "a", "g", &[("T", "*")]);
    assert_eq!(text(&ids(&rig, "g")), r#"{"consumerIdList":["a"]}"#);
    told(&a);

    rig.join(&b, "b", "g", &[("T", "*")]);

    assert_eq!((told(&a), told(&b)), (1, 1));
    assert_eq!(text(&ids(&rig, "g")), r#"{"consumerIdList":["a","b"]}"#);
    rig.join(&a, "a", "g", &[("T", "*")]);
    assert_eq!(told(&a), 0, "nothing changed");
}

#[test]
fn remoting_50_a_client_that_dies_without_a_word_leaves_its_group_at_once() {
    let rig = rig();
    let (a, b) = (connection(), connection());
    rig.join(&a, "a", "g", &[("T", "*")]);
    rig.join(&b, "b", "g", &[("T", "*")]);
    told(&a);

    rig.broker.closed(&b);

    assert_eq!(told(&a), 1);
    assert_eq!(text(&ids(&rig, "g")), r#"{"consumerIdList":["a"]}"#);
}

#[test]
fn a_silent_client_leaves_its_group_after_two_minutes() {
    let rig = rig();
    let (a, b) = (connection(), connection());
    rig.join(&b, "b", "g", &[("T", "*")]);
    rig.advance(Duration::from_secs(60));
    rig.join(&a, "a", "g", &[("T", "*")]);
    told(&a);

    rig.advance(Duration::from_secs(59));
    rig.broker.tick();
    assert_eq!(told(&a), 0);
    rig.advance(Duration::from_secs(10));
    rig.broker.tick();

    assert_eq!(told(&a), 1);
    assert_eq!(text(&ids(&rig, "g")), r#"{"consumerIdList":["a"]}"#);
}

#[test]
fn remoting_51_unregistering_leaves_only_the_named_group() {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    rig.join(&rig.client, "c", "h", &[("T", "*")]);

    assert_eq!(rig.ask(request(35, &[("clientID", "c"), ("consumerGroup", "g")])).code, 0);

    assert_eq!((ids(&rig, "g").code, ids(&rig, "h").code), (1, 0));
}

#[test]
fn members_of_a_broadcasting_group_are_not_told() {
    let rig = rig();
    let (a, b) = (connection(), connection());
    for (connection, id) in [(&a, "a"), (&b, "b")] {
        let mut heartbeat = heartbeat(id, "g", &[("T", "*")]);
        heartbeat.consumer_data_set[0].message_model = MessageModel::Broadcasting;
        rig.ask_now(connection, heartbeat_request(&heartbeat));
    }

    assert_eq!((told(&a), told(&b)), (0, 0));
}

#[test]
fn an_unknown_group_is_passed_over_where_groups_are_not_created() {
    let options = BrokerOptions { auto_create_groups: false, ..BrokerOptions::default() };
    let rig = rig_with(options, store_options());

    rig.join(&rig.client, "c", "g", &[("T", "*")]);

    assert_eq!(ids(&rig, "g").code, 1);
    assert_eq!(rig.ask(request(352, &[("group", "g")])).code, 26);
    assert_eq!(commit(&rig, "1").code, 26);
}

#[test]
fn a_group_whose_name_is_too_long_for_its_retry_topic_is_passed_over() {
    let rig = rig();
    let long = "g".repeat(121);

    rig.join(&rig.client, "c", &long, &[("T", "*")]);

    assert_eq!(ids(&rig, &long).code, 1);
    assert!(rig.broker.topics().get(&format!("%RETRY%{long}")).is_none());
}

#[test]
fn a_heartbeat_that_cannot_be_read_is_answered_with_an_error() {
    let rig = rig();

    assert_eq!(rig.ask(request(34, &[]).with_body("{")).code, 1);
    assert_eq!(rig.ask(request(34, &[])).code, 1);
}

#[test]
fn the_second_kind_of_heartbeat_is_declined() {
    let rig = rig();
    let answer = rig.ask(heartbeat_request(&heartbeat("c", "g", &[])));

    assert_eq!(answer.ext.get("IS_SUPPORT_HEART_BEAT_V2"), Some("false"));
}

#[test]
fn remoting_52_a_new_group_begins_at_zero_only_in_a_queue_that_holds_its_first_message() {
    let rig = rig();
    assert_eq!(rig.ask(request(14, &[("consumerGroup", "g"), ("topic", "T"), ("queueId", "0")])).code, 22);
    rig.sent(message("T"));

    assert_eq!(offset(&rig, 14, "0").as_deref(), Some("0"));
    assert_eq!(offset(&rig, 14, "1"), None, "an empty queue");
    let never_zero = [("consumerGroup", "g"), ("topic", "T"), ("queueId", "0"), ("setZeroIfNotFound", "false")];
    assert_eq!(rig.ask(request(14, &never_zero)).code, 22);
}

#[test]
fn remoting_52_a_new_group_does_not_begin_at_zero_in_a_queue_whose_first_message_is_old() {
    let rig = rig_with(BrokerOptions { recent_log_bytes: 1000, ..BrokerOptions::default() }, store_options());
    rig.sent(message("T"));
    rig.sent(message("U").body(vec![1; 2000]));

    assert_eq!(offset(&rig, 14, "0"), None);
}

#[test]
fn remoting_53_remoting_7_offsets_round_trip_and_a_smaller_one_overwrites() {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    for _ in 0..5 {
        rig.sent(message("T"));
    }

    assert_eq!(commit(&rig, "4").code, 0);
    assert_eq!(offset(&rig, 14, "0").as_deref(), Some("4"));
    assert_eq!(commit(&rig, "2").code, 0);
    let rig = rig.restart();
    assert_eq!(offset(&rig, 14, "0").as_deref(), Some("2"));
}

#[test]
fn an_offset_is_never_beyond_its_queue() {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    rig.sent(message("T"));

    commit(&rig, "1000");
    assert_eq!(offset(&rig, 14, "0").as_deref(), Some("1"));
    commit(&rig, "-5");
    assert_eq!(offset(&rig, 14, "0").as_deref(), Some("0"));
}

#[test]
fn an_offset_for_what_does_not_exist_is_refused() {
    let rig = rig();
    assert_eq!(commit(&rig, "1").code, 26);
    rig.join(&rig.client, "c", "g", &[]);
    assert_eq!(commit(&rig, "1").code, 17);
    rig.sent(message("T"));
    assert_eq!(rig.ask(request(15, &[("consumerGroup", "g"), ("topic", "T"), ("queueId", "0")])).code, 29);
}

#[test]
fn remoting_54_offsets_are_found_by_time() {
    let rig = rig();
    let first = rig.store.now().0;
    for _ in 0..3 {
        rig.sent(message("T"));
        rig.advance(Duration::from_secs(1));
    }
    let at = |time: i64, boundary: &str| {
        let time = time.to_string();
        let ext = [("topic", "T"), ("queueId", "0"), ("timestamp", time.as_str()), ("boundaryType", boundary)];
        rig.ask(request(29, &ext)).ext.get("offset").unwrap().to_owned()
    };

    assert_eq!(at(first - 10, "LOWER"), "0");
    assert_eq!(at(first + 1000, "lower"), "1");
    assert_eq!(at(first + 1001, "LOWER"), "2");
    assert_eq!(at(first + 99_000, "LOWER"), "3");
    assert_eq!(at(first + 1500, "UPPER"), "1");
}

#[test]
fn the_ends_of_a_queue_and_its_oldest_message_are_told() {
    let rig = rig();
    assert_eq!(offset(&rig, 30, "0").as_deref(), Some("0"));
    rig.sent(message("T"));
    let stored_at = rig.store.now().0.to_string();
    rig.sent(message("T"));

    assert_eq!((offset(&rig, 30, "0").as_deref(), offset(&rig, 31, "0").as_deref()), (Some("2"), Some("0")));
    let earliest = |queue_id| rig.ask(request(32, &[("topic", "T"), ("queueId", queue_id)]));
    assert_eq!(earliest("0").ext.get("timestamp"), Some(stored_at.as_str()));
    assert_eq!(earliest("1").ext.get("timestamp"), Some("-1"));
}

#[test]
fn remoting_70_a_locked_queue_belongs_to_one_client() {
    let rig = rig();
    let asks = |client: &str, code: i32| {
        let body = format!(
            r#"{{"clientId":"{client}","consumerGroup":"g","mqSet":[{{"brokerName":"broker-a","queueId":0,"topic":"T"}}],"onlyThisBroker":false}}"#
        );
        rig.ask(request(code, &[]).with_body(body))
    };
    let granted = r#"{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}"#;

    assert_eq!(text(&asks("a", 41)), granted);
    assert_eq!(text(&asks("b", 41)), r#"{"lockOKMQSet":[]}"#);
    rig.advance(Duration::from_secs(60));
    assert_eq!(text(&asks("b", 41)), granted);
    assert_eq!(asks("b", 42).code, 0);
    assert_eq!(text(&asks("a", 41)), granted);
}

#[test]
fn remoting_74_who_asks_for_an_assignment_is_told_that_clients_assign_queues_themselves() {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    let asks = r#"{"clientId":"c","consumerGroup":"g","messageModel":"CLUSTERING","strategyName":"AVG","topic":"T"}"#;

    let answer = rig.ask(request(400, &[]).with_body(asks));

    assert_eq!((answer.code, answer.body.to_bytes().len()), (3, 0));
    assert!(answer.remark.unwrap().contains("QUERY_ASSIGNMENT"));
}

#[test]
fn remoting_71_filters_by_tag_can_be_served_and_others_cannot() {
    let rig = rig();
    let check = |kind: &str| {
        let body = format!(
            r#"{{"clientId":"c","group":"g","subscriptionData":{{"topic":"T","subString":"a > 5","expressionType":"{kind}"}}}}"#
        );
        rig.ask(request(46, &[]).with_body(body))
    };

    assert_eq!(check("TAG").code, 0);
    let sql = check("SQL92");
    assert_eq!(sql.code, 1);
    assert!(sql.remark.unwrap().contains("SQL92"));
}
