use super::*;
use crate::protocol::{ExtFields, RequestCode, Text};

#[test]
fn remoting_26_long_and_short_names_give_the_same_header() {
    let header = SendHeader {
        producer_group: Text::from("g"),
        topic: Text::from("T"),
        default_topic: Text::from("TBW102"),
        default_topic_queue_nums: 4,
        queue_id: -1,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        flag: 3,
        properties: Some(Text::from("DELAY\u{1}3\u{2}")),
        reconsume_times: Some(0),
        unit_mode: Some(false),
        max_reconsume_times: None,
        batch: None,
        broker_name: None,
    };
    let long = header.encode_long();
    let short = header.encode_short();
    assert_eq!(long.get("bornTimestamp"), Some("1700000000000"));
    assert_eq!(short.get("g"), Some("1700000000000"));
    assert_eq!(SendHeader::decode(RequestCode::SEND_MESSAGE, &long).as_ref(), Ok(&header));
    assert_eq!(SendHeader::decode(RequestCode::SEND_MESSAGE_V2, &short).as_ref(), Ok(&header));
}

#[test]
fn remoting_28_max_reconsume_times_may_be_absent_zero_or_sixteen() {
    let mut ext: ExtFields =
        [("a", "g"), ("b", "T"), ("c", "TBW102"), ("d", "4"), ("e", "0"), ("f", "0"), ("g", "1"), ("h", "0")]
            .into_iter()
            .collect();
    assert_eq!(SendHeader::decode_short(&ext).unwrap().max_reconsume_times, None);
    ext.set("l", "0");
    assert_eq!(SendHeader::decode_short(&ext).unwrap().max_reconsume_times, Some(0));
    ext.set("l", "16");
    assert_eq!(SendHeader::decode_short(&ext).unwrap().max_reconsume_times, Some(16));
}

#[test]
fn a_missing_field_is_named() {
    let ext: ExtFields = [("topic", "T")].into_iter().collect();
    assert_eq!(QueueHeader::decode(&ext).unwrap_err().field, "queueId");
}

#[test]
fn unknown_fields_are_passed_over() {
    let ext: ExtFields = [("topic", "T"), ("nsd", "true"), ("ns", ""), ("lo", "false")].into_iter().collect();
    assert_eq!(TopicHeader::decode(&ext).unwrap().topic, "T");
}

#[test]
fn remoting_60_a_pull_answer_always_carries_its_four_offsets() {
    let header = PullReplyHeader {
        suggest_which_broker_id: 0,
        next_begin_offset: 5,
        min_offset: 0,
        max_offset: i64::MAX,
        forbidden_type: None,
    };
    let ext = header.encode();
    assert_eq!(ext.len(), 4);
    assert_eq!(PullReplyHeader::decode(&ext), Ok(header));
}
