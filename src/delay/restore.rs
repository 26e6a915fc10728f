//! From a waiting record to the restored one.
//!
//! The restored record has the real topic and queue; body, flag, system flag, born time and host, store host, reconsume times and properties
//! are those of the waiting record, byte for byte, as Apache RocketMQ writes them. Only the header field *prepared transaction offset* differs:
//! it names the waiting record, see [`super::stamp`].
//!
//! Source: Apache RocketMQ, `org.apache.rocketmq.broker.schedule.ScheduleMessageService.messageTimeUp`.

use std::{collections::HashSet, time::Duration};

use super::{
    DELAY_MS_MAX, DelayLevel, RealQueue, RealTopics,
    admission::HALF_TOPIC,
    entries::end_of,
    stamp::{Generation, Stamp},
};
use crate::{
    model::{
        MessageDraft, PARKING_TOPIC, Properties, PropertiesView, QueueId, SCHEDULE_TOPIC, Timestamp, Topic,
        is_legal_topic, names, pieces,
    },
    mutation::Mutation,
    record::{Record, RecordView},
    store::{ClockJumps, QueueEntry},
};

/// Most topics whose names are kept ready.
const TOPICS_MAX: usize = 4096;

/// A place in a level's queue, and what the scheduler knows about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) level: DelayLevel,
    pub(super) generation: Generation,
    pub(super) queue_offset: u64,
    pub(super) entry: QueueEntry,
    /// The longest duration on record for the level.
    pub(super) longest: Duration,
}

/// What a look at a waiting record gave.
#[derive(Debug)]
pub(super) enum Look {
    /// It is not due yet.
    NotDue(Timestamp),
    /// It is not due yet, as far as can be told: its times are damaged. Nobody should wait for it.
    InDoubt(Timestamp),
    /// Where it goes, and when it was due.
    Restored(Address, Timestamp),
    /// It is due, but can never be restored.
    Never(Unrestorable, Timestamp),
    /// It cannot be read now.
    Unreadable(&'static str),
}

/// In what a restored record differs from the waiting one.
#[derive(Debug)]
pub(super) struct Address {
    pub(super) topic: Topic,
    pub(super) queue_id: QueueId,
    /// The field that names the waiting record.
    pub(super) origin: i64,
}

/// Why a waiting record is parked. The text stands in the marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unrestorable {
    #[error("unreadable")]
    Unreadable,
    #[error("delay level missing or not that of its queue")]
    Level,
    #[error("real topic or queue missing")]
    RealTopic,
    #[error("real topic has no legal name")]
    IllegalTopic,
    #[error("real topic belongs to the broker")]
    Forbidden,
    #[error("topic deleted")]
    Deleted,
    #[error("too long for a record")]
    TooLong,
    #[error("store time and deliver time damaged")]
    Times,
    #[error("refused by the store")]
    Refused,
    #[error("restoring panicked")]
    Panicked,
}

/// Names of real topics, so that each is allocated once.
#[derive(Debug, Default)]
pub(super) struct TopicNames {
    names: HashSet<Topic, foldhash::fast::RandomState>,
}

impl TopicNames {
    /// The topic of this name, if that is a legal one.
    fn legal(&mut self, name: &str) -> Option<Topic> {
        if let Some(topic) = self.names.get(name) {
            return Some(topic.clone());
        }
        if !is_legal_topic(name) {
            return None;
        }
        if self.names.len() >= TOPICS_MAX {
            self.names.clear();
        }
        let topic = Topic::from(name);
        self.names.insert(topic.clone());
        Some(topic)
    }
}

/// The properties of a delayed message that the scheduler reads.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DelayProperties<'a> {
    pub(super) level: Option<DelayLevel>,
    pub(super) real_topic: Option<&'a str>,
    pub(super) real_queue: Option<u32>,
}

impl<'a> DelayProperties<'a> {
    /// Reads them from the end, where the broker puts them; the later of two pairs with one name counts.
    pub(super) fn of(properties: PropertiesView<'a>) -> Self {
        let [mut level, mut real_topic, mut real_queue] = [None; 3];
        for piece in pieces::from_the_end(properties.as_bytes()) {
            let slot = match piece {
                [b'D', ..] => (names::DELAY, &mut level),
                [b'R', _, _, _, _, b'T', ..] => (names::REAL_TOPIC, &mut real_topic),
                [b'R', ..] => (names::REAL_QID, &mut real_queue),
                _ => continue,
            };
            let (name, value) = slot;
            *value = value.or_else(|| pieces::value(piece, name));
            if level.is_some() && real_topic.is_some() && real_queue.is_some() {
                break;
            }
        }
        let number = |value: &[u8]| std::str::from_utf8(value).ok()?.parse::<u32>().ok();
        Self {
            level: level.and_then(number).and_then(DelayLevel::new),
            real_topic: real_topic.and_then(|topic| std::str::from_utf8(topic).ok()),
            real_queue: real_queue.and_then(number),
        }
    }
}

/// When a waiting record is to be delivered, by the store time of when it was stored: what is due moves with the jumps of that.
///
/// `tag_code` is that of its queue entry; it counts only for what Apache RocketMQ wrote. A time before the store time, or later than the
/// longest delay on record allows, is damage: the message then waits as long as that, so that it is never early.
pub(super) fn deliver_at(record: &RecordView<'_>, tag_code: Option<i64>, longest: Duration) -> Timestamp {
    let stored_at = record.stored_at();
    let (said, longest_possible) = said(record, tag_code, longest);
    said.filter(|said| (stored_at..=stored_at.plus(longest_possible)).contains(said))
        .unwrap_or_else(|| stored_at.plus(longest))
}

/// The deliver time that a record says, or the entry of what Apache RocketMQ wrote; and how long it may wait.
fn said(record: &RecordView<'_>, tag_code: Option<i64>, longest: Duration) -> (Option<Timestamp>, Duration) {
    match Stamp::from_field(record.prepared_offset()).deliver_at() {
        Some(said) if !Mutation::TagCodeBelieved.is_on() => (Some(said), longest),
        _ => (tag_code.map(Timestamp), Duration::from_millis(DELAY_MS_MAX)),
    }
}

/// When a waiting record is due: its deliver time, moved by the jumps of store time since it was stored. `None` if its store time and deliver time
/// contradict each other, so that one of them is damaged.
pub(super) fn due(
    record: &RecordView<'_>,
    tag_code: Option<i64>,
    longest: Duration,
    jumps: &ClockJumps,
) -> Option<Timestamp> {
    let stored_at = record.stored_at();
    let (said, longest_possible) = said(record, tag_code, longest);
    let said = said.filter(|said| (stored_at..=stored_at.plus(longest_possible)).contains(said))?;
    Some(jumps.due(stored_at, said))
}

/// When a waiting record is due whose two times contradict each other. Each tells when it is due at the latest; the later one counts, so that it
/// is not early, unless it is later than anything can be due that waits at the store time `latest`. `None` if neither is possible.
fn due_in_doubt(
    record: &RecordView<'_>,
    tag_code: Option<i64>,
    longest: Duration,
    jumps: &ClockJumps,
    latest: Timestamp,
) -> Option<Timestamp> {
    let (said, longest_possible) = said(record, tag_code, longest);
    let last = latest.plus(longest_possible);
    let by_store_time = jumps.due(record.stored_at(), record.stored_at().plus(longest));
    // Its store time is not known: the earliest there can be.
    let by_deliver_time = |said: Timestamp| jumps.due(said.minus(longest), said).min(last);
    let by_deliver_time = said.filter(|said| *said <= last).map(by_deliver_time);
    by_deliver_time.into_iter().chain([by_store_time]).filter(|due| *due <= last).max()
}

/// Looks at the record of a queue entry, which the store has checked (`None` if it could not be read), and restores it if it is due. The jumps
/// must not be older than `now`; `latest` gives the store time, to which `now` may be behind.
pub(super) fn look(
    source: &Source,
    record: Option<RecordView<'_>>,
    now: Timestamp,
    jumps: &ClockJumps,
    latest: &dyn Fn() -> Timestamp,
    topics: &dyn RealTopics,
    names: &mut TopicNames,
) -> Look {
    let Some(record) = record else { return Look::Unreadable("there is no sound record") };
    let is_source = record.topic() == SCHEDULE_TOPIC
        && record.queue_id() == source.level.queue_id()
        && record.queue_offset().0 == source.queue_offset
        && record.total_bytes() == source.entry.bytes
        && record.physical_offset() == source.entry.position;
    if !is_source {
        return Look::Unreadable("the record is another one than the queue entry says");
    }
    let tag_code = Some(source.entry.tag_code);
    let sure = due(&record, tag_code, source.longest, jumps);
    let due = sure.or_else(|| due_in_doubt(&record, tag_code, source.longest, jumps, latest()));
    let Some(due) = due else { return Look::Never(Unrestorable::Times, now) };
    if due > now {
        return if sure.is_some() { Look::NotDue(due) } else { Look::InDoubt(due) };
    }

    let properties = DelayProperties::of(record.properties());
    if properties.level != Some(source.level) {
        return Look::Never(Unrestorable::Level, due);
    }
    let (Some(real_topic), Some(real_queue)) = (properties.real_topic, properties.real_queue) else {
        return Look::Never(Unrestorable::RealTopic, due);
    };
    let Some(topic) = names.legal(real_topic) else {
        return Look::Never(Unrestorable::IllegalTopic, due);
    };
    if [SCHEDULE_TOPIC, HALF_TOPIC, PARKING_TOPIC].contains(&real_topic) {
        return Look::Never(Unrestorable::Forbidden, due);
    }
    let RealQueue::Deliver(queue_id) = topics.resolve(real_topic, real_queue, source.entry.position) else {
        return Look::Never(Unrestorable::Deleted, due);
    };
    Look::Restored(Address { topic, queue_id, origin: origin(source) }, due)
}

/// The field of a restored record, or a marker, that names the waiting one.
pub(super) fn origin(source: &Source) -> i64 {
    Stamp::origin(source.generation, end_of(&source.entry)).to_field()
}

/// The record of a draft, but for topic and queue, is that of the waiting record. The body is not copied.
pub(super) fn draft(source: &Source, whole: &Record, topic: Topic, queue_id: QueueId) -> MessageDraft {
    let record = whole.view();
    MessageDraft {
        topic,
        queue_id,
        flag: record.flag(),
        sys_flag: record.sys_flag(),
        born_at: record.born_at(),
        born_host: record.born_host(),
        store_host: record.store_host(),
        reconsume_times: record.reconsume_times(),
        prepared_offset: origin(source),
        properties: Properties::from_text(record.properties().as_bytes()),
        body: whole.body(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        model::{PhysicalOffset, QueueOffset, SysFlag},
        record::{Place, encode, encoded_bytes, patch},
    };

    struct EveryTopic(RealQueue);

    impl RealTopics for EveryTopic {
        fn resolve(&self, topic: &str, _: u32, _: PhysicalOffset) -> RealQueue {
            assert_ne!(topic, "panics");
            self.0
        }
    }

    const DUE: Timestamp = Timestamp(6_000);
    const POSITION: PhysicalOffset = PhysicalOffset(4_096);

    fn waiting(properties: &[(&str, &str)]) -> MessageDraft {
        let mut draft = MessageDraft {
            topic: Topic::from(SCHEDULE_TOPIC),
            queue_id: QueueId(1),
            flag: 7,
            sys_flag: SysFlag(SysFlag::COMPRESSED),
            born_at: Timestamp(5),
            born_host: "[2001:db8::1]:9".parse().unwrap(),
            store_host: ([127, 0, 0, 1], 2).into(),
            reconsume_times: 3,
            prepared_offset: 0,
            properties: Properties::from_text(&b"KEYS\x01k\x02"[..]),
            body: Bytes::from_static(b"not a zip"),
        };
        for (name, value) in properties {
            draft.properties.set(name, value);
        }
        draft
    }

    fn look_at(draft: &MessageDraft, now: i64, resolved: RealQueue) -> Look {
        let mut bytes = Vec::new();
        encode(draft, &mut bytes).unwrap();
        let stamp = Stamp::waiting(Generation(1), DUE).to_field();
        patch(
            &mut bytes,
            &Place {
                queue_offset: QueueOffset(8),
                physical_offset: POSITION,
                stored_at: Timestamp(1_000),
                prepared_offset: stamp,
            },
        );
        let bytes = Bytes::from(bytes);
        let source = Source {
            level: DelayLevel::new(2).unwrap(),
            generation: Generation(1),
            queue_offset: 8,
            entry: QueueEntry { position: POSITION, bytes: bytes.len() as u32, tag_code: 0 },
            longest: Duration::from_secs(5),
        };
        let record = RecordView::parse(&bytes).unwrap();
        let jumps = ClockJumps::default();
        let latest = || Timestamp(now);
        look(&source, Some(record), latest(), &jumps, &latest, &EveryTopic(resolved), &mut TopicNames::default())
    }

    const REAL: [(&str, &str); 3] = [("DELAY", "2"), ("REAL_TOPIC", "orders"), ("REAL_QID", "6")];

    #[test]
    fn schedule_28_29_31_a_restored_record_goes_to_its_real_queue_and_names_its_origin() {
        let waiting = waiting(&REAL);

        let Look::Restored(restored, due) = look_at(&waiting, 6_000, RealQueue::Deliver(QueueId(2))) else {
            panic!("it is due")
        };

        assert_eq!((restored.topic.as_str(), restored.queue_id, due), ("orders", QueueId(2), DUE));
        let end = POSITION.plus(encoded_bytes(&waiting).unwrap() as u64);
        assert_eq!(restored.origin, Stamp::origin(Generation(1), end).to_field());
    }

    #[test]
    fn schedule_26_a_record_is_not_restored_a_millisecond_too_early() {
        assert!(matches!(
            look_at(&waiting(&REAL), 5_999, RealQueue::Deliver(QueueId(2))),
            Look::NotDue(due) if due == DUE
        ));
    }

    #[test]
    fn schedule_39_what_can_never_be_restored_says_why() {
        let never = |properties: &[(&str, &str)], resolved| match look_at(&waiting(properties), 6_000, resolved) {
            Look::Never(reason, _) => reason,
            look => panic!("{look:?}"),
        };
        let deliver = RealQueue::Deliver(QueueId(0));
        let too_long = "t".repeat(128);
        let with_topic = |topic| [("DELAY", "2"), ("REAL_TOPIC", topic), ("REAL_QID", "6")];

        assert_eq!(never(&REAL[..1], deliver), Unrestorable::RealTopic);
        assert_eq!(never(&REAL[..2], deliver), Unrestorable::RealTopic);
        assert_eq!(never(&REAL[1..], deliver), Unrestorable::Level);
        assert_eq!(never(&[("DELAY", "3"), REAL[1], REAL[2]], deliver), Unrestorable::Level);
        assert_eq!(never(&[REAL[0], REAL[1], ("REAL_QID", "x")], deliver), Unrestorable::RealTopic);
        assert_eq!(never(&with_topic(HALF_TOPIC), deliver), Unrestorable::Forbidden);
        assert_eq!(never(&with_topic(SCHEDULE_TOPIC), deliver), Unrestorable::Forbidden);
        assert_eq!(never(&with_topic(&too_long), deliver), Unrestorable::IllegalTopic);
        assert_eq!(never(&with_topic("a/b"), deliver), Unrestorable::IllegalTopic);
        assert_eq!(never(&REAL, RealQueue::Deleted), Unrestorable::Deleted);
    }

    #[test]
    fn another_record_at_the_entry_s_place_is_not_restored() {
        let other_topic = MessageDraft { topic: Topic::from("orders"), ..waiting(&REAL) };
        let other_queue = MessageDraft { queue_id: QueueId(0), ..waiting(&REAL) };

        for draft in [other_topic, other_queue] {
            assert!(matches!(look_at(&draft, 6_000, RealQueue::Deliver(QueueId(0))), Look::Unreadable(_)));
        }
    }

    #[test]
    fn of_two_times_that_contradict_each_other_the_later_one_that_is_possible_counts() {
        let due = |stored_at: i64, said: i64, latest: i64| {
            let mut bytes = Vec::new();
            encode(&waiting(&REAL), &mut bytes).unwrap();
            let prepared_offset = Stamp::waiting(Generation(1), Timestamp(said)).to_field();
            patch(&mut bytes, &Place { stored_at: Timestamp(stored_at), prepared_offset, ..Place::default() });
            let record = RecordView::parse(&bytes).unwrap();
            let (longest, jumps) = (Duration::from_secs(5), ClockJumps::default());
            assert_eq!(due(&record, None, longest, &jumps), None);
            due_in_doubt(&record, None, longest, &jumps, Timestamp(latest)).map(|due| due.0)
        };
        let far = 1 << 47;

        assert_eq!(due(far, 6_000, 2_000), Some(6_000), "the store time is later than now");
        assert_eq!(due(-far, 6_000, 2_000), Some(6_000), "the store time is long ago");
        assert_eq!(due(1_000, far, 2_000), Some(6_000), "nothing waits so long");
        assert_eq!(due(1_000, 0, 2_000), Some(6_000), "it would have been due before it was stored");
        assert_eq!(due(1_000, 6_999, 2_000), Some(6_999), "either may be wrong");
        assert_eq!(due(far, far - 1, 2_000), None);
    }

    #[test]
    fn a_damaged_deliver_time_makes_nobody_early() {
        let record = |field: i64| {
            let mut bytes = Vec::new();
            encode(&waiting(&REAL), &mut bytes).unwrap();
            let place = Place { stored_at: Timestamp(1_000), prepared_offset: field, ..Place::default() };
            patch(&mut bytes, &place);
            bytes
        };
        let due = |field: i64, tag_code| {
            deliver_at(&RecordView::parse(&record(field)).unwrap(), tag_code, Duration::from_secs(5))
        };
        let ours = |ms| Stamp::waiting(Generation(1), Timestamp(ms)).to_field();

        assert_eq!(due(ours(3_000), Some(1)), Timestamp(3_000), "the record counts, not the entry");
        assert_eq!(due(ours(999), None), Timestamp(6_000));
        assert_eq!(due(ours(6_001), None), Timestamp(6_000));
        assert_eq!(due(0, Some(900_000)), Timestamp(900_000), "the entry of what Apache wrote is believed");
        assert_eq!(due(0, Some(12)), Timestamp(6_000));
        assert_eq!(due(0, None), Timestamp(6_000));
        assert_eq!(due(-1, None), Timestamp(6_000));
    }
}
