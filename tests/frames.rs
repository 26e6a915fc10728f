//! Frames recorded between official RocketMQ clients (Java 5.3.3 and 4.9.8, Go) and Apache RocketMQ 5.3.3: each must decode to the
//! recorded values. The files in `fixtures/frames` hold one frame a line with its header as another decoder saw it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::BytesMut;
use latermq::protocol::body::{
    CheckClientRequest, ClusterInfo, ConsumerIds, HeartbeatData, KvTable, LockBatchReply, LockBatchRequest,
    MessageQueue, SubscriptionGroupConfig, SubscriptionGroups, TopicConfig, TopicConfigs, TopicList, TopicRouteData,
};
use latermq::protocol::header::*;
use latermq::protocol::json::{self, Dialect, ObjectKey};
use latermq::protocol::{Command, Encoding, ExtFields, HeaderError, RequestCode, frame};
use serde::de::DeserializeOwned;
use serde_json::Value;

const FILES: [&str; 4] = [
    include_str!("fixtures/frames/frames-java-5.3.3.jsonl"),
    include_str!("fixtures/frames/frames-java-4.9.8.jsonl"),
    include_str!("fixtures/frames/frames-java-5.3.3-binary.jsonl"),
    include_str!("fixtures/frames/frames-go.jsonl"),
];

struct Recorded {
    frame: Vec<u8>,
    header: Value,
    kind: String,
    request_code: i32,
    body_bytes: usize,
}

fn recorded() -> Vec<Recorded> {
    let lines: Vec<&str> = FILES.iter().flat_map(|file| file.lines()).collect();
    assert_eq!(lines.len(), 724);
    let read = |line: &&str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let hex = line["frame"].as_str().unwrap();
        Recorded {
            frame: (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect(),
            kind: line["kind"].as_str().unwrap().to_owned(),
            request_code: line["requestCode"].as_i64().unwrap() as i32,
            body_bytes: line["bodyLength"].as_u64().unwrap() as usize,
            header: line["header"].take(),
        }
    };
    lines.iter().map(read).collect()
}

fn decode(frame: &[u8]) -> Command {
    let mut input = BytesMut::from(frame);
    let command = frame::decode(&mut input).unwrap().unwrap();
    assert!(input.is_empty());
    command
}

#[test]
fn every_recorded_frame_decodes_to_the_recorded_values() {
    for recorded in recorded() {
        let command = decode(&recorded.frame);
        let header = &recorded.header;
        let binary = recorded.frame[4] == 1;

        assert_eq!(i64::from(command.code), header["code"], "{header}");
        assert_eq!(i64::from(command.opaque), header["opaque"], "{header}");
        assert_eq!(i64::from(command.flag), header["flag"], "{header}");
        assert_eq!(i64::from(command.version), header["version"], "{header}");
        assert_eq!(
            command.remark.as_deref().unwrap_or_default(),
            header["remark"].as_str().unwrap_or_default(),
            "{header}"
        );
        assert_eq!(command.encoding, if binary { Encoding::Binary } else { Encoding::Json });
        match &header["language"] {
            Value::String(name) => assert_eq!(command.language.name(), name),
            code => assert_eq!(u64::from(command.language.0), *code),
        }
        let ext: Vec<(&str, &str)> = command.ext.iter().collect();
        let wanted = header["extFields"].as_object();
        let wanted: Vec<(&str, &str)> =
            wanted.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect();
        assert_eq!(ext, wanted, "{header}");
        assert_eq!(command.body.len(), recorded.body_bytes, "{header}");
        assert_eq!(command.is_response(), recorded.kind == "response");
        assert_eq!(command.is_oneway(), recorded.kind == "oneway");
    }
}

#[test]
fn every_recorded_binary_header_is_written_with_the_same_bytes() {
    let mut count = 0;
    for recorded in recorded().iter().filter(|recorded| recorded.frame[4] == 1) {
        count += 1;
        assert_eq!(frame::encode_whole(&decode(&recorded.frame)).unwrap(), recorded.frame, "{}", recorded.header);
    }
    assert_eq!(count, 28);
}

#[test]
fn every_recorded_json_header_survives_writing_and_reading() {
    for recorded in recorded() {
        let command = decode(&recorded.frame);
        assert_eq!(decode(&frame::encode_whole(&command).unwrap()), command);
    }
}

#[test]
fn every_prefix_of_a_recorded_frame_needs_more() {
    for recorded in recorded() {
        let step = 1 + recorded.frame.len() / 500;
        for end in (0..recorded.frame.len()).step_by(step) {
            let mut input = BytesMut::from(&recorded.frame[..end]);
            assert_eq!(frame::decode(&mut input), Ok(None));
        }
    }
}

#[test]
fn recorded_frames_with_a_flipped_bit_never_panic() {
    for recorded in recorded() {
        let step = 1 + recorded.frame.len() / 300;
        for at in (0..recorded.frame.len()).step_by(step) {
            let mut input = BytesMut::from(&recorded.frame[..]);
            input[at] ^= 1 << (at % 8);
            let _ = frame::decode(&mut input);
        }
    }
}

/// What a typed header writes must be what it was read from, save the fields it does not know.
fn check(command: &Command, typed: Result<ExtFields, HeaderError>) {
    let typed = typed.unwrap_or_else(|error| panic!("{error} in {command:?}"));
    for (name, value) in typed.iter() {
        assert_eq!(command.ext.get(name), Some(value), "{name} of {command:?}");
    }
    assert!(!typed.is_empty() || command.ext.is_empty(), "{command:?}");
}

#[test]
fn every_recorded_request_of_a_served_code_has_a_typed_header() {
    use RequestCode as Code;
    let mut count = 0;
    for recorded in recorded().iter().filter(|recorded| recorded.kind != "response") {
        let command = decode(&recorded.frame);
        let ext = &command.ext;
        count += 1;
        match command.code {
            Code::SEND_MESSAGE | Code::SEND_REPLY_MESSAGE => {
                check(&command, SendHeader::decode_long(ext).map(|h| h.encode_long()));
            }
            Code::SEND_MESSAGE_V2 | Code::SEND_BATCH_MESSAGE | Code::SEND_REPLY_MESSAGE_V2 => {
                check(&command, SendHeader::decode_short(ext).map(|h| h.encode_short()));
            }
            Code::PULL_MESSAGE | Code::LITE_PULL_MESSAGE => {
                check(&command, PullHeader::decode(ext).map(|h| h.encode()));
            }
            Code::QUERY_MESSAGE => check(&command, QueryMessageHeader::decode(ext).map(|h| h.encode())),
            Code::VIEW_MESSAGE_BY_ID => check(&command, ViewMessageHeader::decode(ext).map(|h| h.encode())),
            Code::QUERY_CONSUMER_OFFSET => check(&command, QueryConsumerOffsetHeader::decode(ext).map(|h| h.encode())),
            Code::UPDATE_CONSUMER_OFFSET => {
                check(&command, UpdateConsumerOffsetHeader::decode(ext).map(|h| h.encode()));
            }
            Code::SEARCH_OFFSET_BY_TIMESTAMP => check(&command, SearchOffsetHeader::decode(ext).map(|h| h.encode())),
            Code::GET_MAX_OFFSET | Code::GET_MIN_OFFSET | Code::GET_EARLIEST_MSG_STORETIME => {
                check(&command, QueueHeader::decode(ext).map(|h| h.encode()));
            }
            Code::CONSUMER_SEND_MSG_BACK => check(&command, SendBackHeader::decode(ext).map(|h| h.encode())),
            Code::UNREGISTER_CLIENT => check(&command, UnregisterClientHeader::decode(ext).map(|h| h.encode())),
            Code::GET_CONSUMER_LIST_BY_GROUP
            | Code::NOTIFY_CONSUMER_IDS_CHANGED
            | Code::GET_CONSUMER_CONNECTION_LIST => {
                check(&command, ConsumerGroupHeader::decode(ext).map(|h| h.encode()));
            }
            Code::UPDATE_AND_CREATE_TOPIC => check(&command, CreateTopicHeader::decode(ext).map(|h| h.encode())),
            Code::DELETE_TOPIC_IN_BROKER | Code::DELETE_TOPIC_IN_NAMESRV | Code::GET_TOPIC_CONFIG => {
                check(&command, TopicHeader::decode(ext).map(|h| h.encode()));
            }
            Code::GET_SUBSCRIPTIONGROUP_CONFIG => check(&command, GroupHeader::decode(ext).map(|h| h.encode())),
            Code::DELETE_SUBSCRIPTIONGROUP => check(&command, DeleteGroupHeader::decode(ext).map(|h| h.encode())),
            Code::GET_ROUTEINFO_BY_TOPIC => check(&command, RouteHeader::decode(ext).map(|h| h.encode())),
            Code::GET_TOPICS_BY_CLUSTER => check(&command, ClusterHeader::decode(ext).map(|h| h.encode())),
            Code::PUT_KV_CONFIG | Code::GET_KV_CONFIG | Code::DELETE_KV_CONFIG => {
                check(&command, KvHeader::decode(ext).map(|h| h.encode()));
            }
            _ => count -= 1,
        }
    }
    assert!(count > 150, "only {count} requests were checked");
}

#[test]
fn every_recorded_answer_to_a_served_code_has_a_typed_header() {
    use RequestCode as Code;
    let mut count = 0;
    for recorded in recorded().iter().filter(|recorded| recorded.kind == "response") {
        let command = decode(&recorded.frame);
        let ext = &command.ext;
        count += 1;
        match (recorded.request_code, command.code) {
            (Code::SEND_MESSAGE | Code::SEND_MESSAGE_V2 | Code::SEND_BATCH_MESSAGE, 0) => {
                check(&command, SendReplyHeader::decode(ext).map(|h| h.encode()));
            }
            (Code::PULL_MESSAGE | Code::LITE_PULL_MESSAGE, 0 | 19 | 20 | 21) => {
                check(&command, PullReplyHeader::decode(ext).map(|h| h.encode()));
            }
            (Code::QUERY_MESSAGE, 0) => check(&command, QueryMessageReplyHeader::decode(ext).map(|h| h.encode())),
            (
                Code::QUERY_CONSUMER_OFFSET
                | Code::SEARCH_OFFSET_BY_TIMESTAMP
                | Code::GET_MAX_OFFSET
                | Code::GET_MIN_OFFSET,
                0,
            ) => {
                check(&command, OffsetReplyHeader::decode(ext).map(|h| h.encode()));
            }
            (Code::GET_EARLIEST_MSG_STORETIME, 0) => {
                check(&command, EarliestTimeReplyHeader::decode(ext).map(|h| h.encode()));
            }
            (Code::HEART_BEAT, 0) => check(&command, HeartbeatReplyHeader::decode(ext).map(|h| h.encode())),
            _ => count -= 1,
        }
    }
    assert!(count > 60, "only {count} answers were checked");
}

/// Reads a body and writes it again; the bytes must be the same.
fn check_body<T: DeserializeOwned + serde::Serialize>(command: &Command, dialect: Dialect) {
    let body = command.body.to_bytes();
    let typed: T =
        json::from_slice(&body).unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&body)));
    let written = json::parse(&json::to_vec(dialect, &typed)).unwrap();
    assert_eq!(written, json::parse(&body).unwrap(), "code {}", command.code);
}

#[test]
fn recorded_bodies_survive_reading_and_writing() {
    use RequestCode as Code;
    let mut count = 0;
    for recorded in recorded().iter().filter(|recorded| recorded.body_bytes > 0) {
        let command = decode(&recorded.frame);
        count += 1;
        match (recorded.request_code, recorded.kind == "response") {
            (Code::HEART_BEAT, false) => {
                let heartbeat: HeartbeatData = json::from_slice(&command.body.to_bytes()).unwrap();
                assert!(!heartbeat.client_id.is_empty());
            }
            (Code::CHECK_CLIENT_CONFIG, false) => check_body::<CheckClientRequest>(&command, Dialect::Fastjson),
            (Code::LOCK_BATCH_MQ | Code::UNLOCK_BATCH_MQ, false) => {
                let request: LockBatchRequest = json::from_slice(&command.body.to_bytes()).unwrap();
                assert!(!request.mq_set.is_empty());
            }
            (Code::LOCK_BATCH_MQ, true) => check_body::<LockBatchReply>(&command, Dialect::Fastjson),
            (Code::GET_ROUTEINFO_BY_TOPIC, true) => {
                check_body::<TopicRouteData>(&command, Dialect::Standard);
                let route: TopicRouteData = json::from_slice(&command.body.to_bytes()).unwrap();
                assert!(route.broker_datas[0].broker_addrs.contains_key(&0));
            }
            (Code::GET_BROKER_CLUSTER_INFO, true) => check_body::<ClusterInfo>(&command, Dialect::Fastjson),
            (Code::GET_CONSUMER_LIST_BY_GROUP, true) => check_body::<ConsumerIds>(&command, Dialect::Fastjson),
            (Code::GET_ALL_TOPIC_LIST_FROM_NAMESERVER | Code::GET_TOPICS_BY_CLUSTER, true) => {
                check_body::<TopicList>(&command, Dialect::Fastjson);
            }
            (Code::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, false) | (Code::GET_SUBSCRIPTIONGROUP_CONFIG, true) => {
                let group: SubscriptionGroupConfig = json::from_slice(&command.body.to_bytes()).unwrap();
                assert!(!group.group_name.is_empty());
            }
            (Code::GET_ALL_SUBSCRIPTIONGROUP_CONFIG, true) => {
                let groups: SubscriptionGroups = json::from_slice(&command.body.to_bytes()).unwrap();
                assert!(!groups.subscription_group_table.is_empty());
            }
            (Code::GET_TOPIC_CONFIG, true) => check_body::<TopicConfig>(&command, Dialect::Fastjson),
            (Code::GET_ALL_TOPIC_CONFIG, true) => {
                let topics: TopicConfigs = json::from_slice(&command.body.to_bytes()).unwrap();
                assert!(topics.topic_config_table.contains_key("TBW102"));
            }
            (Code::GET_BROKER_RUNTIME_INFO, true) => check_body::<KvTable>(&command, Dialect::Fastjson),
            _ => count -= 1,
        }
    }
    assert!(count > 60, "only {count} bodies were checked");
}

#[test]
fn remoting_73_the_recorded_reset_body_with_object_keys_is_written_with_the_same_bytes() {
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ResetOffsets {
        offset_table: std::collections::BTreeMap<ObjectKey<MessageQueue>, i64>,
    }
    let mut count = 0;
    for recorded in
        recorded().iter().filter(|recorded| recorded.request_code == RequestCode::RESET_CONSUMER_CLIENT_OFFSET)
    {
        let body = decode(&recorded.frame).body.to_bytes();
        let offsets: ResetOffsets = json::from_slice(&body).unwrap();
        assert_eq!(json::to_vec(Dialect::Fastjson, &offsets), body);
        count += 1;
    }
    assert!(count > 0);
}
