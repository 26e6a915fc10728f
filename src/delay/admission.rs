//! What a message must be to be let in, and how one with a delay level is rerouted.
//!
//! Everything that could make a waiting message impossible to restore is refused here, and only here: once a message was accepted, no lower
//! limit of a later day holds it back.
//!
//! Source: Apache RocketMQ, `org.apache.rocketmq.broker.util.HookUtils.handleScheduleMessage`. Where Apache would deliver at once what asked
//! to be delayed (a member of a batch, a timer property without a timer wheel), the message is refused instead.

use super::levels::{DelayLevel, LevelTable};
use crate::{
    model::{MessageDraft, PARKING_TOPIC, Properties, SCHEDULE_TOPIC, Topic, names},
    record::{RecordError, encoded_bytes},
    store::{AdmitContext, Refusal, RefusalKind},
};

/// The topic of half messages; what a delay would restore there nobody ever commits.
pub(super) const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";

/// Properties that ask for an arbitrary deliver time.
const TIMER_NAMES: [&str; 3] = [names::TIMER_DELAY_SEC, names::TIMER_DELAY_MS, names::TIMER_DELIVER_MS];

/// Looks at a client's draft. One with a delay level is rerouted to the schedule topic, and its level comes back.
///
/// # Errors
/// The refusal for the producer; the draft may be changed then.
pub(super) fn admit(
    table: &LevelTable,
    draft: &mut MessageDraft,
    context: &AdmitContext<'_>,
) -> Result<Option<DelayLevel>, Refusal> {
    if draft.topic.as_str() == SCHEDULE_TOPIC || draft.topic.as_str() == PARKING_TOPIC {
        return Err(refusal(RefusalKind::NotPermitted, format!("nobody may send to topic {}", draft.topic)));
    }
    if !draft.sys_flag.is_queued() {
        return Ok(None);
    }

    let asked = Asked::of(&draft.properties)?;
    if let Some(envelope) = context.batch {
        let outside = Asked::of(envelope)?;
        if asked.waits() || outside.waits() {
            return Err(illegal("a batch cannot be delayed, neither as a whole nor a message in it"));
        }
    }
    let Some(level) = table.clamp(asked.level) else {
        if asked.timer {
            return Err(refusal(
                RefusalKind::NotSupported,
                "TIMER_DELAY_SEC, TIMER_DELAY_MS and TIMER_DELIVER_MS are not supported yet: use a delay level".into(),
            ));
        }
        if asked.rerouted {
            draft.properties.replace(&[names::REAL_TOPIC, names::REAL_QID], &[]);
        }
        return Ok(None);
    };
    if draft.topic.as_str() == HALF_TOPIC {
        return Err(refusal(RefusalKind::NotPermitted, "a half message cannot be delayed".into()));
    }
    reroute(draft, asked, level).map_err(|error| illegal(&error.to_string()))?;
    Ok(Some(level))
}

/// Turns a draft into the waiting form. Both forms must be possible as records: the restored one has the properties of the waiting one.
fn reroute(draft: &mut MessageDraft, asked: Asked, level: DelayLevel) -> Result<(), RecordError> {
    let (mut level_text, mut queue_text) = (itoa::Buffer::new(), itoa::Buffer::new());
    let real_topic = draft.topic.clone();
    let new = [
        (names::DELAY, level_text.format(level.number()).as_bytes()),
        (names::REAL_TOPIC, real_topic.as_bytes()),
        (names::REAL_QID, queue_text.format(draft.queue_id.0).as_bytes()),
    ];
    if asked.is_plain && u32::try_from(asked.level) == Ok(level.number()) {
        new[1..].iter().for_each(|(name, value)| draft.properties.add(name, value));
    } else {
        draft.properties.replace(&TIMER_NAMES, &new);
    }
    encoded_bytes(draft)?;
    draft.topic = Topic::from_static(SCHEDULE_TOPIC);
    draft.queue_id = level.queue_id();
    encoded_bytes(draft)?;
    Ok(())
}

/// What properties say about a delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    /// The number in `DELAY`, 0 without one.
    level: i32,
    /// Whether an arbitrary deliver time is asked for. A message that a timer wheel already had, which shows by `TIMER_OUT_MS`, no longer
    /// asks: consumers send such messages back with all their properties.
    timer: bool,
    /// Whether it says where it goes when it waited.
    rerouted: bool,
    /// Whether the level is written as the broker writes it, and nothing stands beside it that the waiting form replaces.
    is_plain: bool,
}

impl Asked {
    fn of(properties: &Properties) -> Result<Self, Refusal> {
        let [delay, timer_out, seconds, ms, deliver_at, topic, queue] = properties.find([
            names::DELAY,
            names::TIMER_OUT_MS,
            names::TIMER_DELAY_SEC,
            names::TIMER_DELAY_MS,
            names::TIMER_DELIVER_MS,
            names::REAL_TOPIC,
            names::REAL_QID,
        ]);
        let level = match delay {
            None => 0,
            Some(text) => std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| illegal("property DELAY must be a whole number of at most 32 bits"))?,
        };
        let timers = seconds.or(ms).or(deliver_at).is_some();
        let rerouted = topic.or(queue).is_some();
        let is_canonical = delay.is_some_and(|text| matches!(text.first(), Some(b'1'..=b'9')));
        Ok(Self {
            level,
            timer: timers && timer_out.is_none(),
            rerouted,
            is_plain: is_canonical && !timers && !rerouted,
        })
    }

    fn waits(self) -> bool {
        self.level > 0 || self.timer
    }
}

fn illegal(remark: &str) -> Refusal {
    refusal(RefusalKind::Illegal, remark.into())
}

fn refusal(kind: RefusalKind, remark: String) -> Refusal {
    Refusal { kind, remark }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::model::{QueueId, SysFlag, Timestamp};

    fn draft(properties: &[(&str, &str)]) -> MessageDraft {
        let mut draft = MessageDraft {
            topic: Topic::from("orders"),
            queue_id: QueueId(2),
            flag: 7,
            sys_flag: SysFlag::default(),
            born_at: Timestamp(5),
            born_host: ([127, 0, 0, 1], 1).into(),
            store_host: ([127, 0, 0, 1], 2).into(),
            reconsume_times: 0,
            prepared_offset: 0,
            properties: Properties::new(),
            body: Bytes::from_static(b"body"),
        };
        for (name, value) in properties {
            draft.properties.set(name, value);
        }
        draft
    }

    fn admit_in(draft: &mut MessageDraft, batch: Option<&Properties>) -> Result<Option<DelayLevel>, RefusalKind> {
        admit(&LevelTable::default(), draft, &AdmitContext { batch, body_bytes_max: 1 << 22 })
            .map_err(|refusal| refusal.kind)
    }

    fn admit_alone(draft: &mut MessageDraft) -> Result<Option<DelayLevel>, RefusalKind> {
        admit_in(draft, None)
    }

    #[test]
    fn schedule_9_without_a_level_above_zero_a_message_passes_as_it_is() {
        for text in ["0", "-1", "-2147483648"] {
            let mut draft = draft(&[("DELAY", text), ("KEYS", "k")]);
            let before = draft.properties.clone();

            assert_eq!(admit_alone(&mut draft), Ok(None));
            assert_eq!(draft.topic.as_str(), "orders");
            assert_eq!(draft.properties, before);
        }
        assert_eq!(admit_alone(&mut draft(&[])), Ok(None));
    }

    #[test]
    fn schedule_10_a_level_reroutes_to_the_schedule_topic() {
        let mut draft = draft(&[("DELAY", "3"), ("WAIT", "true")]);

        assert_eq!(admit_alone(&mut draft), Ok(DelayLevel::new(3)));

        assert_eq!(draft.topic.as_str(), SCHEDULE_TOPIC);
        assert_eq!(draft.queue_id, QueueId(2));
        for (name, value) in [("DELAY", "3"), ("WAIT", "true"), ("REAL_TOPIC", "orders"), ("REAL_QID", "2")] {
            assert_eq!(draft.properties.get(name), Some(value));
        }
    }

    #[test]
    fn schedule_11_a_level_beyond_the_table_is_clamped_and_rewritten() {
        for text in ["19", "2147483647", "+18", "018"] {
            let mut draft = draft(&[("DELAY", text)]);

            assert_eq!(admit_alone(&mut draft), Ok(DelayLevel::new(18)));
            assert_eq!((draft.queue_id, draft.properties.get("DELAY")), (QueueId(17), Some("18")));
        }
    }

    #[test]
    fn schedule_12_a_level_that_is_no_number_is_illegal() {
        for text in ["abc", "1.5", " 3", "2147483648", "-2147483649", "3s"] {
            assert_eq!(admit_alone(&mut draft(&[("DELAY", text)])), Err(RefusalKind::Illegal), "{text}");
        }
        let mut not_utf8 = draft(&[]);
        not_utf8.properties.set("DELAY", [0xFF]);
        assert_eq!(admit_alone(&mut not_utf8), Err(RefusalKind::Illegal));
    }

    #[test]
    fn schedule_13_a_level_wins_over_timer_properties() {
        let mut draft = draft(&[
            ("DELAY", "2"),
            ("TIMER_DELAY_SEC", "60"),
            ("TIMER_DELAY_MS", "60"),
            ("TIMER_DELIVER_MS", "1900000000000"),
        ]);

        assert_eq!(admit_alone(&mut draft), Ok(DelayLevel::new(2)));

        assert!(TIMER_NAMES.into_iter().all(|name| !draft.properties.contains(name)));
    }

    #[test]
    fn a_timer_property_without_a_level_is_not_supported() {
        for name in TIMER_NAMES {
            assert_eq!(admit_alone(&mut draft(&[(name, "1")])), Err(RefusalKind::NotSupported));
            assert_eq!(admit_alone(&mut draft(&[(name, "x"), ("DELAY", "0")])), Err(RefusalKind::NotSupported));
        }
        let mut timed_before = draft(&[("TIMER_DELIVER_MS", "1"), ("TIMER_OUT_MS", "1"), ("DELAY", "0")]);
        assert_eq!(admit_alone(&mut timed_before), Ok(None));
    }

    #[test]
    fn schedule_14_half_and_rolled_back_messages_are_not_rerouted_but_committed_ones_are() {
        for (flag, level) in
            [(SysFlag::PREPARED, None), (SysFlag::ROLLBACK, None), (SysFlag::COMMIT, DelayLevel::new(3))]
        {
            let mut draft = draft(&[("DELAY", "3")]);
            draft.sys_flag = SysFlag(flag | SysFlag::COMPRESSED);

            assert_eq!(admit_alone(&mut draft), Ok(level));
            assert_eq!(draft.topic.as_str() == SCHEDULE_TOPIC, level.is_some());
        }
    }

    #[test]
    fn schedule_15_a_batch_with_a_delay_anywhere_is_illegal() {
        let none = Properties::new();
        for (name, value) in [("DELAY", "1"), ("DELAY", "x"), ("TIMER_DELAY_MS", "1")] {
            let outside = draft(&[(name, value)]).properties;

            assert_eq!(admit_in(&mut draft(&[]), Some(&outside)), Err(RefusalKind::Illegal));
            assert_eq!(admit_in(&mut draft(&[(name, value)]), Some(&none)), Err(RefusalKind::Illegal));
        }
        assert_eq!(admit_in(&mut draft(&[("DELAY", "0")]), Some(&draft(&[("DELAY", "0")]).properties)), Ok(None));
    }

    #[test]
    fn schedule_16_nobody_sends_to_the_topics_of_the_scheduler() {
        for topic in [SCHEDULE_TOPIC, PARKING_TOPIC] {
            let mut draft = draft(&[]);
            draft.topic = Topic::from(topic);
            assert_eq!(admit_alone(&mut draft), Err(RefusalKind::NotPermitted));
        }
        let mut half = draft(&[("DELAY", "1")]);
        half.topic = Topic::from(HALF_TOPIC);
        assert_eq!(admit_alone(&mut half), Err(RefusalKind::NotPermitted));
    }

    #[test]
    fn a_client_cannot_choose_real_topic_or_queue() {
        let spoofed = [("REAL_TOPIC", "other"), ("REAL_QID", "9")];
        let mut plain = draft(&spoofed);
        assert_eq!(admit_alone(&mut plain), Ok(None));
        assert!(plain.properties.is_empty());

        let mut delayed = draft(&[("REAL_TOPIC", "other"), ("REAL_QID", "9"), ("DELAY", "1")]);
        assert_eq!(admit_alone(&mut delayed), Ok(DelayLevel::new(1)));
        assert_eq!(
            (delayed.properties.get("REAL_TOPIC"), delayed.properties.get("REAL_QID")),
            (Some("orders"), Some("2"))
        );
    }

    #[test]
    fn what_could_not_be_stored_in_one_of_its_two_forms_is_illegal() {
        let long_topic = "%RETRY%".to_owned() + &"g".repeat(248);
        let mut retry = draft(&[("DELAY", "1")]);
        retry.topic = Topic::from(long_topic.as_str());
        assert_eq!(admit_alone(&mut retry), Ok(DelayLevel::new(1)));
        assert_eq!(retry.properties.get("REAL_TOPIC"), Some(long_topic.as_str()));

        let mut too_long = draft(&[("DELAY", "1")]);
        too_long.topic = Topic::from("t".repeat(128).as_str());
        assert_eq!(admit_alone(&mut too_long), Err(RefusalKind::Illegal));

        // As such 32,767 bytes of properties are allowed, but the three properties of a waiting message no longer fit.
        let mut full = draft(&[("DELAY", "1"), ("p", &"x".repeat(32_767 - 11))]);
        assert_eq!(full.properties.len(), 32_767);
        assert_eq!(admit_alone(&mut full), Err(RefusalKind::Illegal));
    }
}
