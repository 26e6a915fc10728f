use std::net::SocketAddr;

use bytes::Bytes;
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::model::{
    MessageDraft, PhysicalOffset, Properties, QueueId, QueueOffset, RETRY_PREFIX, SysFlag, Timestamp, Topic,
};

/// Version 1, both hosts 127.0.0.1.
const GOLDEN_A: &str = "00000091daa320a73610a686000000030000000000000000000000070000000000001000000000000000018bcfe568007f000001\
    0000d4310000018bcfe5687b7f00000100002a9f0000000000000000000000000000000568656c6c6f09546f7069635465737400\
    28554e49515f4b45590137463030303030313030303102544147530154616741024b455953016b3102";
/// The last 20 bytes of the same record with a checksum property.
const GOLDEN_B_TAIL: &str = "5f5f43524333322301 33303234333534313131 02";

const PLACE: Place = Place {
    queue_offset: QueueOffset(7),
    physical_offset: PhysicalOffset(4096),
    stored_at: Timestamp(1_700_000_000_123),
    prepared_offset: 0,
};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The message all golden records hold.
fn golden_draft() -> MessageDraft {
    let mut properties = Properties::new();
    properties.set("UNIQ_KEY", "7F0000010001");
    properties.set("TAGS", "TagA");
    properties.set("KEYS", "k1");
    MessageDraft {
        topic: Topic::from("TopicTest"),
        queue_id: QueueId(3),
        flag: 0,
        sys_flag: SysFlag(0),
        born_at: Timestamp(1_700_000_000_000),
        born_host: "127.0.0.1:54321".parse().unwrap(),
        store_host: "127.0.0.1:10911".parse().unwrap(),
        reconsume_times: 0,
        prepared_offset: 0,
        properties,
        body: Bytes::from_static(b"hello"),
    }
}

fn record_of(draft: &MessageDraft, place: &Place) -> Vec<u8> {
    let mut out = b"before".to_vec();
    let range = encode(draft, &mut out).unwrap();
    assert_eq!(range.len(), encoded_bytes(draft).unwrap());
    assert_eq!(range.end, out.len());
    patch(&mut out[range.clone()], place);
    out[range].to_vec()
}

/// Version 2 of the golden record. The encoder uses version 2 only for long topics, so this one is made by hand.
fn golden_c() -> Vec<u8> {
    let mut record = hex(GOLDEN_A);
    record[3] = 0x92;
    record[7] = 0xAB;
    record.insert(layout::BODY_AT + 5, 0);
    record
}

#[test]
fn store_1_golden_record_a_decodes_to_its_fields() {
    let bytes = hex(GOLDEN_A);

    let record = RecordView::parse(&bytes).unwrap();

    assert_eq!(record.total_bytes(), 145);
    assert_eq!(record.version(), Version::V1);
    assert_eq!(record.body_crc(), 907_060_870);
    assert_eq!(record.queue_id(), QueueId(3));
    assert_eq!(record.flag(), 0);
    assert_eq!(record.queue_offset(), QueueOffset(7));
    assert_eq!(record.physical_offset(), PhysicalOffset(4096));
    assert_eq!(record.end(), PhysicalOffset(4096 + 145));
    assert_eq!(record.sys_flag(), SysFlag(0));
    assert_eq!(record.born_at(), Timestamp(1_700_000_000_000));
    assert_eq!(record.born_host(), "127.0.0.1:54321".parse().unwrap());
    assert_eq!(record.stored_at(), Timestamp(1_700_000_000_123));
    assert_eq!(record.store_host(), "127.0.0.1:10911".parse().unwrap());
    assert_eq!(record.reconsume_times(), 0);
    assert_eq!(record.prepared_offset(), 0);
    assert_eq!(record.body(), b"hello");
    assert_eq!(record.topic(), "TopicTest");
    assert_eq!(record.properties().get("TAGS"), Some("TagA"));
    assert!(record.body_is_sound());
    assert_eq!(record.property_crc_is_sound(), None);
    assert_eq!(record.message_id().to_string(), "7F00000100002A9F0000000000001000");
}

#[test]
fn store_1_golden_record_a_encodes_to_identical_bytes() {
    assert_eq!(record_of(&golden_draft(), &PLACE), hex(GOLDEN_A));
}

#[test]
fn store_2_golden_record_b_verifies_its_checksum_until_any_byte_changes() {
    let mut draft = golden_draft();
    let tail = hex(GOLDEN_B_TAIL);
    draft.properties = Properties::from_text([draft.properties.as_bytes(), &tail].concat());

    let bytes = record_of(&draft, &PLACE);

    assert_eq!(bytes.len(), 0xA5);
    assert_eq!(RecordView::parse(&bytes).unwrap().property_crc_is_sound(), Some(true));
    for at in 0..bytes.len() - tail.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let sound = RecordView::parse(&changed).ok().and_then(RecordView::property_crc_is_sound);
        assert_ne!(sound, Some(true), "byte {at}");
    }
}

#[test]
fn store_3_golden_record_c_of_version_2_decodes() {
    let bytes = golden_c();

    let record = RecordView::parse(&bytes).unwrap();

    assert_eq!(record.total_bytes(), 146);
    assert_eq!(record.version(), Version::V2);
    assert_eq!(record.topic(), "TopicTest");
    assert_eq!(record.properties().get("KEYS"), Some("k1"));
}

#[test]
fn store_3_golden_record_d_with_ipv6_hosts_has_an_id_of_56_digits() {
    let mut draft = golden_draft();
    draft.born_host = "[::1]:54321".parse().unwrap();
    draft.store_host = "[::1]:10911".parse().unwrap();

    let bytes = record_of(&draft, &PLACE);
    let record = RecordView::parse(&bytes).unwrap();

    assert_eq!(record.total_bytes(), 169);
    assert_eq!(record.sys_flag(), SysFlag(0x30));
    assert_eq!((record.born_host(), record.store_host()), (draft.born_host, draft.store_host));
    assert_eq!(record.stored_at(), PLACE.stored_at);
    assert_eq!(record.message_id().to_string(), "0000000000000000000000000000000100002A9F0000000000001000");
}

#[test]
fn store_4_the_body_checksum_is_crc_32_without_its_highest_bit() {
    // B85
    assert_eq!(body_crc(b"123456789"), 1_274_296_614);
    assert_eq!(body_crc(b"hello"), 907_060_870);
    assert_eq!(body_crc(b""), 0);
}

#[test]
fn store_5_a_retry_topic_of_128_bytes_makes_a_version_2_record() {
    let mut draft = golden_draft();
    draft.topic = Topic::new(format!("{RETRY_PREFIX}{}", "g".repeat(121)));

    let bytes = record_of(&draft, &PLACE);
    let record = RecordView::parse(&bytes).unwrap();

    assert_eq!(bytes[4..8], layout::MAGIC_V2.to_be_bytes());
    assert_eq!(bytes[layout::BODY_AT + 5..][..2], [0, 128]);
    assert_eq!(record.topic(), draft.topic.as_str());
    assert_eq!(record.properties().get("KEYS"), Some("k1"));
}

#[test]
fn store_5_topics_beyond_their_limit_are_refused() {
    let encoded = |topic: String| {
        let draft = MessageDraft { topic: Topic::new(topic), ..golden_draft() };
        encode(&draft, &mut Vec::new()).map(|range| range.len())
    };

    assert_eq!(encoded("t".repeat(127)), Ok(145 - 9 + 127));
    assert_eq!(encoded("t".repeat(128)), Err(RecordError::TooLong { field: "topic", bytes: 128, max: 127 }));
    assert_eq!(encoded(format!("{RETRY_PREFIX}{}", "g".repeat(248))), Ok(146 - 9 + 255));
    assert_eq!(
        encoded(format!("{RETRY_PREFIX}{}", "g".repeat(249))),
        Err(RecordError::TooLong { field: "topic", bytes: 256, max: 255 })
    );
    assert_eq!(encoded(String::new()), Err(RecordError::TopicEmpty));
}

#[test]
fn store_6_properties_of_32767_bytes_are_stored_and_one_more_is_refused() {
    let draft = |bytes: usize| MessageDraft { properties: Properties::from_text(vec![b'x'; bytes]), ..golden_draft() };

    let bytes = record_of(&draft(32_767), &PLACE);
    let mut out = b"before".to_vec();
    let refused = encode(&draft(32_768), &mut out);

    assert_eq!(RecordView::parse(&bytes).unwrap().properties().as_bytes().len(), 32_767);
    assert_eq!(refused, Err(RecordError::TooLong { field: "properties", bytes: 32_768, max: 32_767 }));
    assert_eq!(out, b"before");
}

#[test]
fn a_queue_id_that_is_no_java_int_is_refused() {
    let draft = MessageDraft { queue_id: QueueId(1 << 31), ..golden_draft() };

    let refused = encoded_bytes(&draft);

    assert_eq!(refused, Err(RecordError::OutOfRange { field: "queue id", found: 1 << 31 }));
}

#[test]
fn the_ipv6_bits_follow_the_addresses_whatever_the_draft_says() {
    let draft = MessageDraft {
        sys_flag: SysFlag(SysFlag::BORN_HOST_V6 | SysFlag::COMPRESSED),
        store_host: "[2001:db8::7]:10911".parse().unwrap(),
        ..golden_draft()
    };

    let bytes = record_of(&draft, &Place { prepared_offset: -5, ..PLACE });
    let record = RecordView::parse(&bytes).unwrap();

    assert_eq!(record.sys_flag(), SysFlag(SysFlag::STORE_HOST_V6 | SysFlag::COMPRESSED));
    assert_eq!((record.born_host(), record.store_host()), (draft.born_host, draft.store_host));
    assert_eq!((record.stored_at(), record.prepared_offset()), (PLACE.stored_at, -5));
}

#[test]
fn a_changed_body_is_not_sound() {
    let mut bytes = hex(GOLDEN_A);
    bytes[layout::BODY_AT] ^= 1;

    assert!(!RecordView::parse(&bytes).unwrap().body_is_sound());
}

#[test]
fn each_field_that_cannot_be_is_named() {
    let broken = |at: usize, with: &[u8]| {
        let mut bytes = hex(GOLDEN_A);
        bytes[at..at + with.len()].copy_from_slice(with);
        RecordView::parse(&bytes).unwrap_err()
    };

    assert_eq!(broken(0, &[0xFF]), RecordError::Overrun { said: 0xFF00_0091_u32.cast_signed(), left: 145 });
    assert_eq!(broken(3, &[0x92]), RecordError::Overrun { said: 146, left: 145 });
    assert_eq!(broken(3, &[0x90]), RecordError::Length { field: "properties", said: 40, left: 39 });
    assert_eq!(broken(7, &[0]), RecordError::Magic { found: 0xDAA3_2000 });
    assert_eq!(
        broken(layout::QUEUE_ID_AT, &[0x80]),
        RecordError::OutOfRange { field: "queue id", found: -2_147_483_645 }
    );
    assert_eq!(broken(layout::BORN_HOST_AT + 5, &[1]), RecordError::OutOfRange { field: "born host", found: 0x1_D431 });
    assert_eq!(broken(layout::BODY_LENGTH_AT, &[0xFF; 4]), RecordError::Length { field: "body", said: -1, left: 57 });
    assert_eq!(broken(layout::BODY_AT + 5, &[0x80]), RecordError::Length { field: "topic", said: -128, left: 51 });
    assert_eq!(broken(layout::BODY_AT + 6, &[0xFF]), RecordError::TopicText);
    let properties_at = layout::BODY_AT + 5 + 10;
    assert_eq!(broken(properties_at, &[0, 39]), RecordError::Total { said: 145, found: 144 });
    assert_eq!(broken(properties_at, &[0xFF, 0xFF]), RecordError::Length { field: "properties", said: -1, left: 40 });
}

#[test]
fn the_kind_of_a_frame_shows_in_its_first_eight_bytes() {
    assert_eq!(kind(&hex(GOLDEN_A)[..8]), Frame::Record { bytes: 145 });
    assert_eq!(kind(&golden_c()), Frame::Record { bytes: 146 });
    assert_eq!(kind(&hex("00000018 cbd43194")), Frame::Blank { bytes: 24 });
    assert_eq!(kind(&blank(8)), Frame::Blank { bytes: 8 });
    assert_eq!(kind(&hex("00000007 cbd43194")), Frame::Bad);
    assert_eq!(kind(&hex("ffffffff cbd43194")), Frame::Bad);
    assert_eq!(kind(&hex("0000005b daa320a7")), Frame::Bad);
    assert_eq!(kind(&[0; 64]), Frame::Bad);
    assert_eq!(kind(&hex(GOLDEN_A)[..7]), Frame::Bad);
}

#[test]
fn store_8_a_blank_says_how_much_is_left_of_the_segment() {
    assert_eq!(blank(24), *hex("00000018 cbd43194").as_slice());
}

#[test]
fn a_record_shares_the_memory_of_the_log() {
    let log = Bytes::from([record_of(&golden_draft(), &PLACE), b"behind".to_vec()].concat());

    let record = Record::parse(&log).unwrap();

    assert_eq!(record.bytes().len(), 145);
    assert_eq!(record.body().as_ptr(), log[layout::BODY_AT..].as_ptr());
    assert_eq!(record.topic().as_str(), "TopicTest");
    assert_eq!(record.bytes(), &record_of(&record.to_draft(), &PLACE));
}

#[test]
fn a_pull_reply_is_read_record_by_record_up_to_the_first_bad_one() {
    let record = record_of(&golden_draft(), &PLACE);
    let reply = [record.as_slice(), &golden_c(), &record[..100]].concat();

    let records: Vec<_> = Records::new(reply.into()).collect();

    assert_eq!(records.len(), 3);
    assert_eq!(records[1].as_ref().unwrap().view().version(), Version::V2);
    assert_eq!(records[2].as_ref().unwrap_err(), &RecordError::Overrun { said: 145, left: 100 });
}

#[test]
fn remoting_offset_ids_of_both_lengths_are_read_back() {
    for (host, digits) in [("127.0.0.1:10911", 32), ("[2001:db8::7]:65535", 56)] {
        let id = MessageId { store_host: host.parse().unwrap(), physical_offset: PhysicalOffset(i64::MAX as u64) };

        let text = id.to_string();

        assert_eq!(text.len(), digits);
        assert_eq!(text.parse(), Ok(id));
        assert_eq!(text.to_lowercase().parse(), Ok(id));
    }
}

#[test]
fn texts_that_are_no_offset_id_are_refused_with_the_reason() {
    let parse = |text: &str| text.parse::<MessageId>().unwrap_err();

    assert_eq!(parse(""), MessageIdError::Length { found: 0 });
    assert_eq!(parse("7F00000100002A9F000000000000100"), MessageIdError::Length { found: 31 });
    assert_eq!(parse("7F00000100002A9F000000000000100G"), MessageIdError::Digit { at: 31 });
    assert_eq!(parse("+F00000100002A9F0000000000001000"), MessageIdError::Digit { at: 0 });
    assert_eq!(parse("7F00000100012A9F0000000000001000"), MessageIdError::Port { found: 0x1_2A9F });
    assert_eq!(parse("7F00000100002A9F8000000000001000"), MessageIdError::Offset);
    // 32 bytes, but a character in the middle of the cut.
    assert!(matches!("ä".repeat(16).parse::<MessageId>(), Err(MessageIdError::Digit { at: 0 })));
}

fn member(flag: i32, body: &'static [u8], properties: &'static [u8]) -> BatchMember {
    BatchMember { flag, body: Bytes::from_static(body), properties: Bytes::from_static(properties) }
}

#[test]
fn remoting_batch_bytes_are_those_of_a_client() {
    let batch = encode_batch(&[member(5, b"b0", b"A\x011\x02"), member(0, b"", b"")]).unwrap();

    let wanted = "0000001c 00000000 00000000 00000005 00000002 6230 0004 41013102 \
        00000016 00000000 00000000 00000000 00000000 0000";
    assert_eq!(batch, hex(wanted));
}

#[test]
fn each_fault_of_a_batch_is_named_with_its_member() {
    let batch = encode_batch(&[member(5, b"b0", b"A\x011\x02"), member(0, b"xyz", b"")]).unwrap();
    let broken = |at: usize, with: &[u8]| {
        let mut bytes = batch.to_vec();
        bytes[at..at + with.len()].copy_from_slice(with);
        decode_batch(&bytes.into()).unwrap_err()
    };

    assert_eq!(broken(28, &[0xFF]), BatchError::Overrun { member: 1, said: -16_777_191, left: 25 });
    assert_eq!(broken(31, &[21]), BatchError::Overrun { member: 1, said: 21, left: 25 });
    assert_eq!(broken(31, &[26]), BatchError::Overrun { member: 1, said: 26, left: 25 });
    assert_eq!(broken(47, &[4]), BatchError::Length { member: 1, field: "body", said: 4, left: 3 });
    assert_eq!(broken(52, &[1]), BatchError::Length { member: 1, field: "properties", said: 1, left: 0 }.clone());
    assert_eq!(broken(23, &[3]), BatchError::Total { member: 0, left: 1 });
    assert_eq!(decode_batch(&Bytes::new()), Err(BatchError::Empty));
    assert_eq!(decode_batch(&batch.slice(..40)), Err(BatchError::Overrun { member: 1, said: 22, left: 12 }));
    let properties = Bytes::from(vec![b'x'; 32_768]);
    let too_long = encode_batch(&[BatchMember { properties, ..BatchMember::default() }]);
    assert_eq!(too_long, Err(BatchError::TooLong { member: 0, field: "properties", bytes: 32_768, max: 32_767 }));
}

fn any_topic() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z0-9_%|-]{1,127}",
        "[a-z]{1,248}".prop_map(|group| format!("{RETRY_PREFIX}{group}")),
        "\\PC{1,20}",
    ]
    .prop_filter("short enough", |topic| topic.len() <= 127 || topic.starts_with(RETRY_PREFIX))
}

prop_compose! {
    fn any_draft()(
        topic in any_topic(),
        queue_id in 0..=i32::MAX as u32,
        (flag, sys_flag, reconsume_times) in any::<(i32, i32, i32)>(),
        (born_at, prepared_offset) in any::<(i64, i64)>(),
        (born_host, store_host) in any::<(SocketAddr, SocketAddr)>(),
        properties in vec(any::<u8>(), 0..200),
        body in vec(any::<u8>(), 0..300),
    ) -> MessageDraft {
        // A record has no room for the flow and the scope of an IPv6 address.
        let plain = |host: SocketAddr| SocketAddr::new(host.ip(), host.port());
        MessageDraft {
            topic: Topic::new(topic),
            queue_id: QueueId(queue_id),
            flag,
            sys_flag: SysFlag(sys_flag),
            born_at: Timestamp(born_at),
            born_host: plain(born_host),
            store_host: plain(store_host),
            reconsume_times,
            prepared_offset,
            properties: Properties::from_text(properties),
            body: body.into(),
        }
    }
}

prop_compose! {
    fn any_place()(
        queue_offset in 0..=i64::MAX as u64,
        physical_offset in 0..=i64::MAX as u64 / 2,
        stored_at in any::<i64>(),
        prepared_offset in any::<i64>(),
    ) -> Place {
        Place {
            queue_offset: QueueOffset(queue_offset),
            physical_offset: PhysicalOffset(physical_offset),
            stored_at: Timestamp(stored_at),
            prepared_offset,
        }
    }
}

prop_compose! {
    fn any_member()(
        flag in any::<i32>(),
        body in vec(any::<u8>(), 0..40),
        properties in vec(any::<u8>(), 0..40),
    ) -> BatchMember {
        BatchMember { flag, body: body.into(), properties: properties.into() }
    }
}

/// Reads everything a record has, so that a position beyond its end would show.
fn read_all(record: RecordView<'_>) {
    let _ = (record.bytes(), record.version(), record.flag(), record.end(), record.born_at(), record.stored_at());
    let _ = (record.reconsume_times(), record.prepared_offset(), record.body_is_sound());
    let _ = (record.property_crc_is_sound(), record.message_id().to_string(), record.properties().to_pairs());
    let _ = format!("{record:?}");
}

proptest! {
    #[test]
    fn what_is_encoded_is_read_back(draft in any_draft(), place in any_place()) {
        let bytes = record_of(&draft, &place);

        let record = RecordView::parse(&bytes).unwrap();

        let v6 = SysFlag::BORN_HOST_V6 | SysFlag::STORE_HOST_V6;
        prop_assert_eq!(record.topic(), draft.topic.as_str());
        prop_assert_eq!(record.queue_id(), draft.queue_id);
        prop_assert_eq!(record.flag(), draft.flag);
        prop_assert_eq!(record.sys_flag().0 & !v6, draft.sys_flag.0 & !v6);
        prop_assert_eq!(record.born_at(), draft.born_at);
        prop_assert_eq!(record.born_host(), draft.born_host);
        prop_assert_eq!(record.store_host(), draft.store_host);
        prop_assert_eq!(record.reconsume_times(), draft.reconsume_times);
        prop_assert_eq!(record.properties().as_bytes(), draft.properties.as_bytes());
        prop_assert_eq!(record.body(), &draft.body[..]);
        prop_assert!(record.body_is_sound());
        let found = Place {
            queue_offset: record.queue_offset(),
            physical_offset: record.physical_offset(),
            stored_at: record.stored_at(),
            prepared_offset: record.prepared_offset(),
        };
        prop_assert_eq!(found, place);
        let record = Record::parse(&Bytes::from(bytes.clone())).unwrap();
        prop_assert_eq!(record_of(&record.to_draft(), &place), bytes);
    }

    #[test]
    fn every_prefix_of_a_record_is_an_error(draft in any_draft()) {
        let bytes = record_of(&draft, &PLACE);

        for end in 0..bytes.len() {
            prop_assert!(RecordView::parse(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn mutated_records_never_panic(
        draft in any_draft(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = record_of(&draft, &PLACE);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }

        let _ = kind(&bytes);
        if let Ok(record) = RecordView::parse(&bytes) {
            read_all(record);
        }
    }

    #[test]
    fn arbitrary_bytes_behind_a_magic_never_panic(
        mut bytes in vec(any::<u8>(), 92..400),
        version_2: bool,
        total: bool,
    ) {
        let magic = if version_2 { layout::MAGIC_V2 } else { layout::MAGIC_V1 };
        bytes[4..8].copy_from_slice(&magic.to_be_bytes());
        if total {
            let total = u32::try_from(bytes.len()).unwrap();
            bytes[..4].copy_from_slice(&total.to_be_bytes());
        }

        if let Ok(record) = RecordView::parse(&bytes) {
            read_all(record);
        }
    }

    #[test]
    fn a_batch_is_read_back(members in vec(any_member(), 1..6)) {
        let batch = encode_batch(&members).unwrap();

        prop_assert_eq!(decode_batch(&batch), Ok(members));
    }

    #[test]
    fn a_prefix_of_a_batch_is_an_error_unless_it_ends_between_messages(members in vec(any_member(), 1..4)) {
        let batch = encode_batch(&members).unwrap();
        let ends: Vec<usize> =
            (1..=members.len()).map(|count| encode_batch(&members[..count]).unwrap().len()).collect();

        for end in 0..=batch.len() {
            prop_assert_eq!(decode_batch(&batch.slice(..end)).is_ok(), ends.contains(&end));
        }
    }

    #[test]
    fn mutated_batches_never_panic(
        members in vec(any_member(), 1..4),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut batch = encode_batch(&members).unwrap().to_vec();
        for (at, value) in changes {
            let at = at.index(batch.len());
            batch[at] = value;
        }

        let _ = decode_batch(&batch.into());
    }

    #[test]
    fn arbitrary_texts_are_no_panic_as_an_offset_id(text in "\\PC{0,60}|[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}") {
        let _ = text.parse::<MessageId>();
    }
}
