use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{
    env::BootId,
    model::Timestamp,
    namesrv::routes::tests::registration,
    protocol::{Encoding, body::TopicConfig, body::TopicConfigs},
};

#[derive(Default)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn wall(&self) -> Timestamp {
        Timestamp::EPOCH
    }

    fn since_boot(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn boot_id(&self) -> BootId {
        BootId::default()
    }
}

struct Rig {
    server: Arc<NameServer>,
    clock: Arc<TestClock>,
    connection: Arc<Connection>,
}

fn rig(options: NameServerOptions) -> Rig {
    let clock = Arc::new(TestClock::default());
    let address = ([127, 0, 0, 1], 1).into();
    let server = NameServer::new(options, Arc::clone(&clock) as Arc<dyn Clock>);
    Rig { server, clock, connection: Connection::unconnected(address, address) }
}

impl Rig {
    fn ask(&self, request: Command) -> Command {
        let responder = Responder::new(&self.connection, &request);
        self.server.handle(&self.connection, request, responder);
        self.connection.take_sent().pop().unwrap()
    }

    fn route(&self, topic: &str, version: i32) -> Command {
        self.ask(Command { version, ..request(105, &[("topic", topic)]) })
    }
}

fn request(code: i32, ext: &[(&'static str, &str)]) -> Command {
    Command::request(code).with_ext(ext.iter().copied().collect())
}

fn text(response: &Command) -> String {
    String::from_utf8(response.body.to_bytes().to_vec()).unwrap()
}

fn register_request(topics: &[&str], compressed: bool) -> Command {
    let table = topics.iter().map(|topic| {
        let config = TopicConfig { topic_name: (*topic).into(), ..TopicConfig::default() };
        ((*topic).to_owned(), config)
    });
    let body = RegisterBrokerBody {
        filter_server_list: Vec::new(),
        topic_config_serialize_wrapper: TopicConfigs {
            data_version: DataVersion { counter: 3, state_version: 0, timestamp: 5 },
            topic_config_table: table.collect(),
        },
    }
    .encode(compressed);
    let header = RegisterBrokerHeader {
        broker_name: "b".into(),
        broker_addr: "10.0.0.9:10911".into(),
        cluster_name: "C".into(),
        ha_server_addr: "10.0.0.9:10912".into(),
        broker_id: 0,
        heartbeat_timeout_ms: None,
        enable_acting_master: None,
        compressed: Some(compressed),
        body_crc32: Some(body_crc32(&body)),
    };
    Command::request(103).with_ext(header.encode()).with_body(body)
}

#[test]
fn remoting_13_a_topic_without_a_route_is_answered_with_17() {
    let response = rig(NameServerOptions::default()).route("T", 479);

    assert_eq!(response.code, 17);
    assert!(response.remark.unwrap().starts_with("No topic route info in name server for the topic: T"));
}

#[test]
fn remoting_14_15_route_data_comes_in_the_dialect_of_the_client() {
    let rig = rig(NameServerOptions::default());
    rig.server.register(registration("a", 1, &["T"], 1));

    assert!(text(&rig.route("T", 317)).contains(r#""brokerAddrs":{0:"10.0.0.1:1"}"#));
    assert!(text(&rig.route("T", 401)).contains(r#""brokerAddrs":{"0":"10.0.0.1:1"}"#));
    let asks = request(105, &[("topic", "T"), ("acceptStandardJsonOnly", "true")]);
    assert!(text(&rig.ask(Command { version: 317, ..asks })).contains(r#"{"0":"#));
}

#[test]
fn a_new_groups_retry_topic_is_routed_to_the_broker_of_this_process_and_not_created() {
    let options = NameServerOptions { retry_routes_to: Some("a".into()), ..NameServerOptions::default() };
    let rig = rig(options);
    assert_eq!(rig.route("%RETRY%new", 479).code, 17, "its broker is not there yet");
    rig.server.register(registration("a", 1, &["T"], 1));

    let route: TopicRouteData = json::from_slice(&rig.route("%RETRY%new", 479).body.to_bytes()).unwrap();

    assert_eq!((route.queue_datas[0].read_queue_nums, route.queue_datas[0].write_queue_nums), (1, 1));
    assert_eq!(route.broker_datas[0].broker_addrs[&0], "10.0.0.1:1");
    assert_eq!(rig.route("%DLQ%new", 479).code, 17);
    assert!(!text(&rig.ask(request(206, &[]))).contains("RETRY"));
}

#[test]
fn remoting_18_19_clusters_and_topics_are_listed() {
    let rig = rig(NameServerOptions::default());
    rig.server.register(registration("a", 1, &["TBW102", "%RETRY%g", "T"], 1));

    assert_eq!(
        text(&rig.ask(request(106, &[]))),
        r#"{"brokerAddrTable":{"a":{"brokerAddrs":{0:"10.0.0.1:1"},"brokerName":"a","cluster":"C","enableActingMaster":false}},"clusterAddrTable":{"C":["a"]}}"#
    );
    assert_eq!(text(&rig.ask(request(206, &[]))), r#"{"topicList":["%RETRY%g","T","TBW102"]}"#);
    assert_eq!(text(&rig.ask(request(224, &[("cluster", "C")]))), r#"{"topicList":["%RETRY%g","T","TBW102"]}"#);
    assert_eq!(text(&rig.ask(request(224, &[("cluster", "D")]))), r#"{"topicList":[]}"#);
    assert_eq!(text(&rig.ask(request(304, &[]))), r#"{"brokerAddr":"10.0.0.1:1","topicList":["C","a"]}"#);
}

#[test]
fn remoting_20_key_value_entries_round_trip() {
    let rig = rig(NameServerOptions::default());
    let entry = [("namespace", "n"), ("key", "k")];
    assert_eq!(rig.ask(request(101, &entry)).code, 22);

    assert_eq!(rig.ask(request(100, &[("namespace", "n"), ("key", "k"), ("value", "v")])).code, 0);

    assert_eq!(rig.ask(request(101, &entry)).ext.get("value"), Some("v"));
    assert_eq!(text(&rig.ask(request(219, &[("namespace", "n")]))), r#"{"table":{"k":"v"}}"#);
    assert_eq!(rig.ask(request(219, &[("namespace", "m")])).code, 22);
    assert_eq!(rig.ask(request(102, &entry)).code, 0);
    assert_eq!(rig.ask(request(101, &entry)).code, 22);
}

#[test]
fn remoting_21_write_permission_is_wiped_and_restored_with_counts() {
    let rig = rig(NameServerOptions::default());
    rig.server.register(registration("a", 1, &["T", "U"], 1));

    assert_eq!(rig.ask(request(205, &[("brokerName", "a")])).ext.get("wipeTopicCount"), Some("2"));
    assert!(text(&rig.route("T", 479)).contains(r#""perm":4"#));
    assert_eq!(rig.ask(request(327, &[("brokerName", "a")])).ext.get("addTopicCount"), Some("2"));
    assert!(text(&rig.route("T", 479)).contains(r#""perm":6"#));
}

#[test]
fn remoting_22_a_topic_deleted_on_request_has_no_route() {
    let rig = rig(NameServerOptions::default());
    rig.server.register(registration("a", 1, &["T"], 1));

    assert_eq!(rig.ask(request(216, &[("topic", "T"), ("clusterName", "")])).code, 0);
    assert_eq!(rig.ask(request(216, &[("topic", "absent")])).code, 0);

    assert_eq!(rig.route("T", 479).code, 17);
}

#[test]
fn remoting_23_a_compressed_registration_is_taken_and_a_wrong_checksum_is_not() {
    let rig = rig(NameServerOptions::default());
    let mut wrong = register_request(&["T", "U"], true);
    wrong.ext.set("bodyCrc32", 1);

    let refused = rig.ask(wrong);
    assert_eq!((refused.code, refused.remark.as_deref()), (1, Some("crc32 not match")));
    assert_eq!(rig.route("T", 479).code, 17);

    let taken = rig.ask(register_request(&["T", "U"], true));
    assert_eq!((taken.code, text(&taken).as_str()), (0, r#"{"table":{}}"#));
    assert!(text(&rig.route("T", 479)).contains("10.0.0.9:10911"));
}

#[test]
fn remoting_24_brokers_vanish_with_their_connection_or_after_silence() {
    let rig = rig(NameServerOptions::default());
    rig.ask(register_request(&["T", "U"], false));

    rig.clock.0.store(119, Ordering::Relaxed);
    rig.server.tick();
    assert_eq!(rig.route("T", 479).code, 0);
    rig.clock.0.store(120, Ordering::Relaxed);
    rig.server.tick();
    assert_eq!(rig.route("T", 479).code, 17);

    rig.ask(register_request(&["T", "U"], false));
    rig.server.closed(&rig.connection);
    assert_eq!(rig.route("T", 479).code, 17);
}

#[test]
fn a_broker_of_this_process_never_expires() {
    let rig = rig(NameServerOptions::default());
    rig.server.register(registration("a", 1, &["T"], 1));

    rig.clock.0.store(1_000_000, Ordering::Relaxed);
    rig.server.tick();

    assert_eq!(rig.route("T", 479).code, 0);
    rig.server.unregister("C", "10.0.0.1:1");
    assert_eq!(rig.route("T", 479).code, 17);
}

#[test]
fn a_broker_learns_whether_its_data_version_changed() {
    let rig = rig(NameServerOptions::default());
    let broker = [("brokerName", "b"), ("brokerAddr", "10.0.0.9:10911"), ("clusterName", "C"), ("brokerId", "0")];
    let asks = |body: &'static str| rig.ask(request(322, &broker).with_body(body));
    let same = r#"{"counter":3,"stateVersion":0,"timestamp":5}"#;
    assert_eq!(asks(same).ext.get("changed"), Some("true"), "it never registered");
    rig.ask(register_request(&["T", "U"], false));

    let answer = asks(same);

    assert_eq!((answer.ext.get("changed"), text(&answer).as_str()), (Some("false"), same));
    assert_eq!(asks(r#"{"counter":4,"stateVersion":0,"timestamp":5}"#).ext.get("changed"), Some("true"));
}

#[test]
fn a_broker_that_unregisters_is_gone_at_once() {
    let rig = rig(NameServerOptions::default());
    rig.ask(register_request(&["T", "U"], false));

    let broker = [("brokerName", "b"), ("brokerAddr", "10.0.0.9:10911"), ("clusterName", "C"), ("brokerId", "0")];
    assert_eq!(rig.ask(request(104, &broker)).code, 0);

    assert_eq!(rig.route("T", 479).code, 17);
}

#[test]
fn the_requests_of_a_broker_are_not_supported_and_bad_headers_are_named() {
    let rig = rig(NameServerOptions::default());

    assert_eq!(rig.ask(request(310, &[])).code, 3);
    let response = rig.ask(Command { encoding: Encoding::Binary, ..request(105, &[]) });
    assert_eq!((response.code, response.encoding), (1, Encoding::Binary));
    assert!(response.remark.unwrap().contains("topic"));
}
