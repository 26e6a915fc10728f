//! What tools ask.

use std::{path::Path, time::Duration};

use latermq::{
    broker::SUPPORTED_CODES,
    env::Directory,
    protocol::{RequestCode, json},
    remoting::Handler,
};
use serde_json::Value;

use crate::rig::{PullRequest, Rig, connection, max, message, pull_header, records, request, rig, text};

fn create<'a>(topic: &'a str, queues: &'a str, attributes: &'a str) -> Vec<(&'static str, &'a str)> {
    vec![
        ("topic", topic),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", queues),
        ("writeQueueNums", queues),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
        ("attributes", attributes),
    ]
}

fn body(rig: &Rig, code: i32, ext: &[(&'static str, &str)]) -> Value {
    let answer = rig.ask(request(code, ext));
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
    json::parse(&answer.body.to_bytes()).unwrap()
}

#[test]
fn remoting_5_every_listed_code_is_served_and_any_other_is_answered_with_its_name() {
    // B125
    let rig = rig();
    for code in 1..=400 {
        let answer = rig.ask_now(&connection(), request(code, &[])).unwrap();
        assert_eq!(answer.code == 3, !SUPPORTED_CODES.contains(&code), "code {code}: {:?}", answer.remark);
    }

    let answer = rig.ask(request(RequestCode::END_TRANSACTION, &[]));
    assert!(answer.remark.unwrap().contains("END_TRANSACTION"));
    assert_eq!(rig.ask(request(9999, &[])).code, 3);
    assert_eq!(rig.ask(request(200_050, &[])).code, 3);
}

#[test]
fn remoting_77_a_created_topic_is_shown_everywhere() {
    let rig = rig();
    assert_eq!(rig.ask(request(351, &[("topic", "T")])).code, 17);

    assert_eq!(rig.ask(request(17, &create("T", "3", "+message.type=DELAY"))).code, 0);

    let shown = body(&rig, 351, &[("topic", "T")]);
    assert_eq!((&shown["readQueueNums"], &shown["attributes"]["message.type"]), (&3.into(), &"DELAY".into()));
    assert_eq!(body(&rig, 21, &[])["topicConfigTable"]["T"], shown);
    assert_eq!(rig.ask(request(17, &create("T", "5", "-message.type"))).code, 0);
    let changed = text(&rig.ask(request(351, &[("topic", "T")])));
    assert!(changed.contains(r#""attributes":{}"#) && changed.contains(r#""writeQueueNums":5"#));
}

#[test]
fn topics_that_cannot_be_are_not_created() {
    let rig = rig();
    let code = |ext: &[(&'static str, &str)]| rig.ask(request(17, ext)).code;

    assert_eq!(code(&create("a.b", "1", "")), 29);
    assert_eq!(code(&create("TBW102", "1", "")), 29);
    assert_eq!(code(&create("DefaultCluster", "1", "")), 29);
    assert_eq!(code(&create("T", "-1", "")), 29);
    assert_eq!(code(&create("T", "100000", "")), 29);
    assert_eq!(code(&create("T", "x", "")), 1);
    assert_eq!(code(&create("T", "1", "+nonsense")), 1);
    assert!(rig.broker.topics().get("T").is_none());
}

#[test]
fn a_deleted_topic_is_gone_with_its_queues_and_offsets() {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    rig.sent(message("T"));
    rig.ask(request(15, &[("consumerGroup", "g"), ("topic", "T"), ("queueId", "0"), ("commitOffset", "1")]));

    assert_eq!(rig.ask(request(215, &[("topic", "T")])).code, 0);

    assert_eq!((max(&rig, "T", 0), rig.pull("T", 0, 0).code), (0, 17));
    assert_eq!(body(&rig, 43, &[])["offsetTable"].as_object().unwrap().len(), 0);
    assert_eq!(rig.ask(request(215, &[("topic", "T")])).code, 0, "deleting again is no error");
    assert_eq!(rig.ask(request(215, &[("topic", "TBW102")])).code, 29);
    assert_eq!(rig.ask(request(215, &[("topic", " ")])).code, 29);
    rig.sent(message("T"));
    assert_eq!(rig.records("T", 0, 0)[0].view().queue_offset().0, 0);
}

/// A deletion of the topic NUL made `deletedTopics.json` unreadable, and with it all deletions before.
#[test]
fn deleting_a_topic_that_cannot_be_or_is_not_stores_nothing() {
    let rig = rig();
    let long = "x".repeat(300);
    for name in ["\0", "\0{\"a\":1", "../../config", "a.b", "..", &long] {
        assert_eq!(rig.ask(request(215, &[("topic", name)])).code, 29, "{name:?}");
    }
    assert_eq!(rig.ask(request(215, &[("topic", "Unknown")])).code, 0);

    assert_eq!(rig.directory.read(Path::new("config/deletedTopics.json")).unwrap(), None);
}

#[test]
fn what_waits_for_a_topic_is_not_delivered_once_the_topic_was_deleted_on_request() {
    let rig = rig();
    rig.sent(message("T").level(3));
    assert_eq!(rig.ask(request(215, &[("topic", "T")])).code, 0);
    rig.sent(message("T").level(3).body("after"));
    let rig = rig.restart();

    rig.advance(Duration::from_secs(10));
    rig.step();

    let delivered = rig.records("T", 0, 0);
    assert_eq!(delivered.len(), 1);
    assert_eq!(delivered[0].view().body(), b"after");
}

#[test]
fn what_waits_for_a_topic_that_is_unknown_or_has_fewer_queues_now_is_delivered() {
    let rig = rig();
    rig.ask(request(17, &create("T", "8", "")));
    rig.sent(message("T").queue(7).level(3));
    rig.ask(request(17, &create("T", "3", "")));

    rig.advance(Duration::from_secs(10));
    rig.step();

    assert_eq!(max(&rig, "T", 1), 1, "7 mod 3");
}

#[test]
fn the_topic_that_keeps_parked_messages_can_be_pulled() {
    let rig = rig();
    rig.sent(message("T").level(3));
    rig.ask(request(215, &[("topic", "T")]));
    rig.advance(Duration::from_secs(10));
    rig.step();

    let parked = rig.ask(pull_header("g", latermq::delay::PARKING_TOPIC, 2, 0).request());

    assert_eq!(records(&parked).len(), 1, "{:?}", parked.remark);
}

#[test]
fn the_topic_that_keeps_parked_messages_has_a_queue_for_each_level_from_the_start() {
    let rig = rig();

    let parking = body(&rig, 351, &[("topic", latermq::delay::PARKING_TOPIC)]);

    assert!(parking["readQueueNums"].as_i64().unwrap() >= 18, "{parking}");
    assert_eq!(parking["perm"], 4, "clients only read it");
}

#[test]
fn remoting_19_system_topics_are_listed() {
    let listed = body(&rig(), 305, &[]);

    let listed: Vec<_> = listed["topicList"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    for name in ["TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"] {
        assert!(listed.contains(&name), "{name}");
    }
}

#[test]
fn remoting_81_a_message_is_found_by_its_position() {
    let rig = rig();
    let sent = rig.sent(message("T"));
    let id: latermq::record::MessageId = sent.msg_id.parse().unwrap();

    let found = rig.ask(request(33, &[("offset", id.physical_offset.0.to_string().as_str())]));

    assert_eq!(records(&found)[0].view().physical_offset(), id.physical_offset);
    for bad in ["7", "99999999", "-1"] {
        let answer = rig.ask(request(33, &[("offset", bad)]));
        assert_eq!(answer.code, 1);
        assert_eq!(answer.remark.unwrap(), format!("can not find message by the offset, {bad}"));
    }
}

#[test]
fn remoting_82_messages_are_found_by_key_and_unique_key() {
    let rig = rig();
    rig.sent(message("T").property("KEYS", "order-1 order-2").property("UNIQ_KEY", "U1"));
    rig.sent(message("T").property("KEYS", "order-2").property("UNIQ_KEY", "U2"));
    let ask = |key: &str, unique: &str| {
        let ext = [
            ("topic", "T"),
            ("key", key),
            ("maxNum", "64"),
            ("beginTimestamp", "0"),
            ("endTimestamp", "9223372036854775807"),
            ("_UNIQUE_KEY_QUERY", unique),
        ];
        rig.ask(request(12, &ext))
    };

    assert_eq!(records(&ask("order-2", "false")).len(), 2);
    let unique = ask("U1", "true");
    assert_eq!(records(&unique).len(), 1);
    assert!(
        unique.ext.get("indexLastUpdateTimestamp").is_some() && unique.ext.get("indexLastUpdatePhyoffset").is_some()
    );
    assert_eq!(ask("absent", "false").code, 22);
}

#[test]
fn remoting_85_all_groups_come_without_being_asked_for_one_and_a_single_one_is_created() {
    let rig = rig();

    assert_eq!(body(&rig, 352, &[("group", "new")])["retryMaxTimes"], 16);
    let all = body(&rig, 201, &[]);
    assert!(all["subscriptionGroupTable"]["TOOLS_CONSUMER"].is_object());
    assert!(all["subscriptionGroupTable"]["new"].is_object() && all["dataVersion"].is_object());
    assert_eq!(rig.ask(request(200, &[]).with_body(r#"{"groupName":""}"#)).code, 1);
}

#[test]
fn schedule_51_remoting_87_delay_offsets_come_by_level_without_quotes() {
    let rig = rig();
    assert!(text(&rig.ask(request(45, &[]))).contains(r#""offsetTable":{"#));
    rig.sent(message("T").level(3));
    rig.advance(Duration::from_secs(10));
    rig.step();
    rig.sent(message("T").level(3));

    let offsets = text(&rig.ask(request(45, &[])));

    assert!(offsets.contains("3:1"), "{offsets}");
}

#[test]
fn schedule_52_remoting_76_figures_of_the_broker_are_numbers_where_tools_want_numbers() {
    let rig = rig();
    rig.sent(message("T").level(3));
    rig.sent(message("T").level(3));

    let info = body(&rig, 28, &[]);
    let table = info["table"].as_object().unwrap();

    assert_eq!(table["scheduleMessageOffset_3"], "0,2");
    assert!(table.values().all(Value::is_string));
    for key in ["earliestMessageTimeStamp", "commitLogDiskRatio", "timerReadBehind", "msgPutTotalTodayNow"] {
        assert!(table[key].as_str().unwrap().parse::<f64>().is_ok(), "{key}");
    }
    for key in ["putTps", "getTotalTps"] {
        let rates = table[key].as_str().unwrap().split(' ');
        assert_eq!(rates.filter(|rate| rate.parse::<f64>().is_ok()).count(), 3, "{key}");
    }
    assert_eq!(table["brokerVersionDesc"], "V5_3_3");
}

#[test]
fn remoting_78_89_lag_and_offsets_are_keyed_by_queue() {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    rig.sent(message("T"));
    rig.sent(message("T"));
    rig.ask(request(15, &[("consumerGroup", "g"), ("topic", "T"), ("queueId", "0"), ("commitOffset", "1")]));

    let stats = text(&rig.ask(request(202, &[("topic", "T")])));
    let lag = text(&rig.ask(request(208, &[("consumerGroup", "g")])));

    assert!(stats.contains(r#"{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":"#), "{stats}");
    assert!(stats.contains(r#""maxOffset":2"#));
    assert!(
        lag.contains(r#"{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"brokerOffset":2,"consumerOffset":1,"#),
        "{lag}"
    );
    assert!(text(&rig.ask(request(43, &[]))).contains(r#""T@g":{0:1}"#));
    assert_eq!(rig.ask(request(202, &[("topic", "absent")])).code, 17);
    assert_eq!(body(&rig, 300, &[("topic", "T")])["groupList"][0], "g");
}

#[test]
fn remoting_79_80_connected_clients_are_shown() {
    let rig = rig();
    assert_eq!(rig.ask(request(203, &[("consumerGroup", "g")])).code, 206);
    assert_eq!(rig.ask(request(204, &[("producerGroup", "pg")])).code, 1);
    rig.join(&rig.client, "c", "g", &[("T", "A||B")]);

    let shown = body(&rig, 203, &[("consumerGroup", "g")]);

    assert_eq!(shown["consumeType"], "CONSUME_PASSIVELY");
    assert_eq!(shown["messageModel"], "CLUSTERING");
    assert_eq!(shown["consumeFromWhere"], "CONSUME_FROM_LAST_OFFSET");
    assert_eq!(shown["connectionSet"][0]["clientId"], "c");
    assert_eq!(shown["subscriptionTable"]["T"]["tagsSet"][1], "B");
    let producers = body(&rig, 204, &[("producerGroup", "CLIENT_INNER_PRODUCER")]);
    assert_eq!(producers["connectionSet"][0]["language"], "JAVA");
    assert!(body(&rig, 328, &[])["data"]["CLIENT_INNER_PRODUCER"].is_array());
    rig.broker.closed(&rig.client);
    assert_eq!(rig.ask(request(203, &[("consumerGroup", "g")])).code, 206);
}

#[test]
fn remoting_88_a_deleted_group_takes_its_offsets_along_if_asked() {
    let rig = rig();
    for (ext, left) in [("none", 1), ("cleanOffset", 0), ("removeOffset", 0)] {
        rig.join(&rig.client, "c", "g", &[("T", "*")]);
        rig.sent(message("T"));
        rig.ask(request(15, &[("consumerGroup", "g"), ("topic", "T"), ("queueId", "0"), ("commitOffset", "1")]));

        assert_eq!(rig.ask(request(207, &[("groupName", "g"), (ext, "true")])).code, 0);

        assert_eq!(body(&rig, 43, &[])["offsetTable"].as_object().unwrap().len(), left, "{ext}");
    }
}
