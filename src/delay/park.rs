//! Parking: what can never be restored leaves a marker, so that progress passes it without losing trace of it.
//!
//! A marker is a record of topic [`PARKING_TOPIC`], its queue that of the level in the schedule topic. It carries the origin of the waiting
//! record, as a restored record does, and what can still be read of it: body, flag, born time and host, properties. `DELAY`, `REAL_TOPIC` and
//! `REAL_QID` are always there; if the waiting record does not say a real topic, it is the parking topic itself. [`PARKED_REASON`] says why.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;

use super::{
    entries::end_of,
    restore::{DelayProperties, Source, Unrestorable, draft},
    stamp::Stamp,
};
use crate::{
    model::{MessageDraft, PARKING_TOPIC, Properties, SysFlag, Timestamp, Topic, names},
    record::{Record, encoded_bytes},
};

/// The property of a marker that says why its message is parked.
pub const PARKED_REASON: &str = "PARKED_REASON";

/// The marker for a waiting record, of which `record` is what can be read.
pub(super) fn marker(source: &Source, record: Option<&Record>, reason: Unrestorable, now: Timestamp) -> MessageDraft {
    let queue_id = source.level.queue_id();
    let topic = Topic::from(PARKING_TOPIC);
    let mut marker = match record {
        Some(record) => draft(source, record, topic, queue_id),
        None => MessageDraft {
            topic,
            queue_id,
            flag: 0,
            sys_flag: SysFlag::default(),
            born_at: now,
            born_host: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            store_host: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            reconsume_times: 0,
            prepared_offset: Stamp::origin(source.generation, end_of(&source.entry)).to_field(),
            properties: Properties::new(),
            body: Bytes::new(),
        },
    };
    let properties = record.map(|record| record.view().properties());
    let known = properties.map(DelayProperties::of).unwrap_or_default();
    let real_topic = known.real_topic.unwrap_or(PARKING_TOPIC);
    let real_queue = known.real_queue.unwrap_or(queue_id.0).to_string();
    let level = source.level.number().to_string();
    let reason = reason.to_string();
    let sure = [
        (names::DELAY, &*level),
        (names::REAL_TOPIC, real_topic),
        (names::REAL_QID, &real_queue),
        (PARKED_REASON, &reason),
    ];
    for (name, value) in sure {
        marker.properties.set(name, value);
    }
    if encoded_bytes(&marker).is_err() {
        // The properties are full: the ids stay.
        marker.properties = Properties::new();
        let unique_key = properties.and_then(|properties| properties.get(names::UNIQ_KEY)).unwrap_or_default();
        for (name, value) in sure.into_iter().chain([(names::UNIQ_KEY, unique_key)]) {
            marker.properties.set(name, value);
        }
    }
    marker
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        delay::{DelayLevel, stamp::Generation},
        model::{PhysicalOffset, QueueId, SCHEDULE_TOPIC},
        record::encode,
        store::QueueEntry,
    };

    fn source(bytes: usize) -> Source {
        Source {
            level: DelayLevel::new(2).unwrap(),
            generation: Generation(3),
            queue_offset: 0,
            entry: QueueEntry { position: PhysicalOffset(100), bytes: bytes as u32, tag_code: 0 },
            longest: Duration::ZERO,
        }
    }

    fn origin(bytes: u64) -> i64 {
        Stamp::origin(Generation(3), PhysicalOffset(100 + bytes)).to_field()
    }

    #[test]
    fn the_marker_of_an_unreadable_record_still_names_it() {
        let marker = marker(&source(77), None, Unrestorable::Unreadable, Timestamp(9));

        assert_eq!(
            (marker.topic.as_str(), marker.queue_id, marker.prepared_offset),
            (PARKING_TOPIC, QueueId(1), origin(77))
        );
        let known = DelayProperties::of(marker.properties.view());
        assert_eq!(known.level, DelayLevel::new(2));
        assert_eq!((known.real_topic, known.real_queue), (Some(PARKING_TOPIC), Some(1)));
        assert_eq!(marker.properties.get(PARKED_REASON), Some("unreadable"));
    }

    #[test]
    fn a_marker_keeps_what_can_be_read_and_fits_a_record_even_if_the_properties_are_full() {
        for filler in [10, 32_700] {
            let mut waiting = MessageDraft {
                topic: Topic::from(SCHEDULE_TOPIC),
                body: Bytes::from_static(b"body"),
                ..marker(&source(1), None, Unrestorable::Unreadable, Timestamp(9))
            };
            waiting.properties = Properties::new();
            waiting.properties.set("REAL_TOPIC", "orders");
            waiting.properties.set("UNIQ_KEY", "id");
            waiting.properties.set("filler", "x".repeat(filler));
            let mut bytes = Vec::new();
            encode(&waiting, &mut bytes).unwrap();
            let bytes = Bytes::from(bytes);

            let marker = marker(
                &source(bytes.len()),
                Some(&Record::parse(&bytes).unwrap()),
                Unrestorable::RealTopic,
                Timestamp(9),
            );

            encoded_bytes(&marker).unwrap();
            assert_eq!(marker.prepared_offset, origin(bytes.len() as u64));
            assert_eq!(&marker.body[..], b"body");
            assert_eq!(marker.properties.get("REAL_TOPIC"), Some("orders"));
            assert_eq!(marker.properties.get("UNIQ_KEY"), Some("id"));
            assert_eq!(marker.properties.contains("filler"), filler == 10);
        }
    }
}
