//! What was sent, and what was acknowledged.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use latermq::model::{MessageDraft, PhysicalOffset, Properties, QueueId, SysFlag, Timestamp, Topic, names};

/// Number of a message, unique in a simulation.
pub(crate) type Id = u64;

/// All messages ever sent.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) messages: BTreeMap<Id, Message>,
}

/// One message as its producer knows it.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) topic: String,
    pub(crate) queue_id: u32,
    /// 0 for a message that does not wait.
    pub(crate) level: u32,
    /// How long it must wait.
    pub(crate) delay: Duration,
    /// Its body: this byte, so many times.
    pub(crate) fill: (u8, usize),
    /// Real time and sum of forward steps when it was sent.
    pub(crate) sent_at: (Duration, Duration),
    /// Where its record ends, if the append was answered.
    pub(crate) end: Option<PhysicalOffset>,
    /// Whether the producer was told that it is stored.
    pub(crate) acknowledged: bool,
    /// Whether that was promised to outlast a power loss.
    pub(crate) durable: bool,
    /// It could not be read for a while: others of its level may overtake it.
    pub(crate) unordered: bool,
    /// It was not durable when the power went, and nobody had promised that it was.
    pub(crate) excused: bool,
}

impl Message {
    /// A message that does not wait.
    pub(crate) fn new(topic: &str, queue_id: u32, fill: (u8, usize)) -> Self {
        Self {
            topic: topic.to_owned(),
            queue_id,
            level: 0,
            delay: Duration::ZERO,
            fill,
            sent_at: (Duration::ZERO, Duration::ZERO),
            end: None,
            acknowledged: false,
            durable: false,
            unordered: false,
            excused: false,
        }
    }

    pub(crate) fn body(&self) -> Bytes {
        Bytes::from(vec![self.fill.0; self.fill.1])
    }
}

impl Ledger {
    /// Writes a new message down before it is sent.
    pub(crate) fn sending(&mut self, message: Message) -> Id {
        let id = self.messages.len() as Id;
        self.messages.insert(id, message);
        id
    }

    /// The producer was told that the message is stored; `durable` if that was promised to outlast a power loss.
    pub(crate) fn acknowledge(&mut self, id: Id, durable: bool) {
        let message = self.message_mut(id);
        message.acknowledged = true;
        message.excused &= !durable;
        message.durable |= durable;
    }

    pub(crate) fn message(&self, id: Id) -> &Message {
        &self.messages[&id]
    }

    pub(crate) fn message_mut(&mut self, id: Id) -> &mut Message {
        self.messages.get_mut(&id).expect("it was sent")
    }

    /// Waiting messages could not be read for a while.
    pub(crate) fn forget_order(&mut self) {
        for message in self.messages.values_mut() {
            message.unordered = true;
        }
    }

    /// The power went: what was not durable, and not promised to be, may be gone.
    pub(crate) fn lose_unsynced(&mut self, durable: PhysicalOffset) {
        for message in self.messages.values_mut() {
            message.excused |= !message.durable && message.end.is_some_and(|end| end > durable);
        }
    }

    /// The draft that is sent for a message.
    pub(crate) fn draft(&self, id: Id) -> MessageDraft {
        let message = self.message(id);
        let mut properties = Properties::new();
        properties.set(names::KEYS, id.to_string());
        properties.set(names::UNIQ_KEY, format!("U{id}"));
        if message.level > 0 {
            properties.set(names::DELAY, message.level.to_string());
        }
        MessageDraft {
            topic: Topic::from(message.topic.as_str()),
            queue_id: QueueId(message.queue_id),
            flag: 7,
            sys_flag: SysFlag::default(),
            born_at: Timestamp(1),
            born_host: ([127, 0, 0, 1], 1).into(),
            store_host: ([127, 0, 0, 1], 2).into(),
            reconsume_times: 0,
            prepared_offset: 0,
            properties,
            body: message.body(),
        }
    }
}
