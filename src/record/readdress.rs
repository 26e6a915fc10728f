//! A record once more, under another topic and queue.

use std::ops::Range;

use bytes::BufMut;

use super::{
    RecordError, RecordView,
    encode::check,
    layout::{
        MAGIC_AT, MAGIC_V1, MAGIC_V2, PHYSICAL_OFFSET_AT, PREPARED_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT,
        STORED_AT_AT, TOTAL_AT,
    },
};
use crate::model::{QueueId, TOPIC_BYTES_MAX};

/// Appends `record` to `out` with another topic, queue and prepared transaction offset, and says where in `out` it lies.
///
/// All else is as it stands in `record`, the checksum of its body too, byte for byte. Queue offset, physical offset and store time are 0 until
/// [`patch`](super::patch) puts them in. It is of version 2 if the topic has more than 127 bytes, else of version 1.
///
/// # Errors
/// [`RecordError::TooLong`] if the topic is longer than a record of version 2 can say, or the record than any may be; `out` is unchanged then.
pub fn readdress(
    record: RecordView<'_>,
    topic: &str,
    queue_id: QueueId,
    prepared_offset: i64,
    out: &mut Vec<u8>,
) -> Result<Range<usize>, RecordError> {
    let (head, body, properties) = record.around_topic();
    let topic_bytes = i16::try_from(topic.len()).unwrap_or(i16::MAX);
    check("topic", topic.len(), topic_bytes as usize)?;
    let is_long = topic.len() > TOPIC_BYTES_MAX;
    let total = head.len() + body.len() + 1 + usize::from(is_long) + topic.len() + properties.len();
    check("record", total, i32::MAX as usize)?;

    let start = out.len();
    out.reserve(total);
    out.extend_from_slice(head);
    out.extend_from_slice(body);
    if is_long {
        out.put_i16(topic_bytes);
    } else {
        out.put_u8(topic_bytes as u8);
    }
    out.extend_from_slice(topic.as_bytes());
    out.extend_from_slice(properties);

    let (born_extra, hosts_extra) = record.host_extras();
    let copy = &mut out[start..];
    let mut put = |at: usize, value: &[u8]| copy[at..at + value.len()].copy_from_slice(value);
    put(TOTAL_AT, &(total as u32).to_be_bytes());
    put(MAGIC_AT, &(if is_long { MAGIC_V2 } else { MAGIC_V1 }).to_be_bytes());
    put(QUEUE_ID_AT, &queue_id.0.to_be_bytes());
    put(QUEUE_OFFSET_AT, &[0; 8]);
    put(PHYSICAL_OFFSET_AT, &[0; 8]);
    put(STORED_AT_AT + born_extra, &[0; 8]);
    put(PREPARED_OFFSET_AT + hosts_extra, &prepared_offset.to_be_bytes());
    Ok(start..start + total)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        model::{MessageDraft, PhysicalOffset, Properties, QueueOffset, SysFlag, Timestamp, Topic},
        record::{Place, encode, patch},
    };

    #[test]
    fn a_readdressed_record_is_the_one_that_its_draft_would_give() {
        let short = "orders".to_owned();
        let long = format!("%RETRY%{}", "g".repeat(200));
        for (from, to) in [(&short, &long), (&long, &short), (&short, &short)] {
            let draft = MessageDraft {
                topic: Topic::from(from.as_str()),
                queue_id: QueueId(3),
                flag: 7,
                sys_flag: SysFlag(SysFlag::COMPRESSED),
                born_at: Timestamp(5),
                born_host: "[2001:db8::1]:9".parse().unwrap(),
                store_host: ([127, 0, 0, 1], 2).into(),
                reconsume_times: 3,
                prepared_offset: 9,
                properties: Properties::from_text(&b"KEYS\x01k\x02"[..]),
                body: Bytes::from_static(b"body"),
            };
            let mut record = Vec::new();
            encode(&draft, &mut record).unwrap();
            let place = Place {
                queue_offset: QueueOffset(1),
                physical_offset: PhysicalOffset(2),
                stored_at: Timestamp(3),
                prepared_offset: 4,
            };
            patch(&mut record, &place);
            let wanted_draft =
                MessageDraft { topic: Topic::from(to.as_str()), queue_id: QueueId(8), prepared_offset: 77, ..draft };
            let mut wanted = b"before".to_vec();
            let wanted_range = encode(&wanted_draft, &mut wanted).unwrap();

            let mut out = b"before".to_vec();
            let range = readdress(RecordView::parse(&record).unwrap(), to, QueueId(8), 77, &mut out).unwrap();

            assert_eq!((range, out), (wanted_range, wanted), "{from} to {to}");
        }
    }

    #[test]
    fn a_topic_that_no_record_can_hold_changes_nothing() {
        let draft = MessageDraft {
            topic: Topic::from("t"),
            queue_id: QueueId(0),
            flag: 0,
            sys_flag: SysFlag::default(),
            born_at: Timestamp(0),
            born_host: ([127, 0, 0, 1], 2).into(),
            store_host: ([127, 0, 0, 1], 2).into(),
            reconsume_times: 0,
            prepared_offset: 0,
            properties: Properties::new(),
            body: Bytes::new(),
        };
        let mut record = Vec::new();
        encode(&draft, &mut record).unwrap();
        let mut out = Vec::new();

        let refused = readdress(RecordView::parse(&record).unwrap(), &"x".repeat(1 << 15), QueueId(0), 0, &mut out);

        assert!(matches!(refused, Err(RecordError::TooLong { field: "topic", .. })), "{refused:?}");
        assert!(out.is_empty());
    }
}
