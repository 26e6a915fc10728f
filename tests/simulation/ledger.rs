//! What was sent, and what was acknowledged.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use latermq::{
    model::{MessageDraft, PhysicalOffset, Properties, QueueId, SysFlag, Timestamp, Topic, names},
    protocol::{Command, RequestCode, header::SendHeader},
    record::{BatchMember, encode_batch},
};

/// Number of a message, unique in a simulation.
pub(crate) type Id = u64;

/// All messages ever sent.
#[derive(Default, Clone)]
pub(crate) struct Ledger {
    pub(crate) messages: BTreeMap<Id, Message>,
    /// What a consumer gave back: the number of the first message, and how often it was given back.
    given_back: BTreeMap<(Id, i32), Id>,
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
    /// The producer also sets properties that only the broker may set.
    pub(crate) spoofed: bool,
    /// Real time when it was sent, and how much the wall clock had seemed to go on.
    pub(crate) sent_at: (Duration, Duration),
    /// Where its record ends, if the append was answered.
    pub(crate) end: Option<PhysicalOffset>,
    /// Whether the producer was told that it is stored.
    pub(crate) acknowledged: bool,
    /// Whether that was promised to outlast a power loss.
    pub(crate) durable: bool,
    /// It could not be read for a while: others of its level may overtake it.
    pub(crate) unordered: bool,
    /// Its topic was deleted while it waited, or it could not be read for too long: it may be parked.
    pub(crate) may_be_parked: bool,
    /// It was not durable when the power went, and nobody had promised that it was.
    pub(crate) excused: bool,
    /// Its bytes were damaged while it waited: it may be lost or parked, and that is reported.
    pub(crate) damaged: bool,
    /// Anything may become of it: its topic was being deleted when it may not have been read yet.
    pub(crate) exempt: bool,
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
            spoofed: false,
            sent_at: (Duration::ZERO, Duration::ZERO),
            end: None,
            acknowledged: false,
            durable: false,
            unordered: false,
            may_be_parked: false,
            excused: false,
            damaged: false,
            exempt: false,
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

    /// Writes down that a consumer gives a message back, as `message`, before it does; `None` if it did so before.
    pub(crate) fn giving_back(&mut self, first: Id, times: i32, message: Message) -> Option<Id> {
        if self.given_back.contains_key(&(first, times)) {
            return None;
        }
        let id = self.sending(message);
        self.given_back.insert((first, times), id);
        Some(id)
    }

    /// The message of a record.
    pub(crate) fn id_of(&self, keys: Id, reconsume_times: i32) -> Option<Id> {
        if reconsume_times == 0 {
            return self.messages.contains_key(&keys).then_some(keys);
        }
        self.given_back.get(&(keys, reconsume_times)).copied()
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

    fn properties(&self, id: Id) -> Properties {
        let message = self.message(id);
        let mut properties = Properties::new();
        properties.set(names::KEYS, id.to_string());
        properties.set(names::UNIQ_KEY, format!("U{id}"));
        if message.spoofed {
            properties.set(names::REAL_TOPIC, "spoofed");
            properties.set(names::REAL_QID, "77");
        }
        if message.level > 0 {
            properties.set(names::DELAY, message.level.to_string());
        }
        properties
    }

    /// The draft that is sent for a message.
    pub(crate) fn draft(&self, id: Id) -> MessageDraft {
        let message = self.message(id);
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
            properties: self.properties(id),
            body: message.body(),
        }
    }

    /// The header of the request that sends a message.
    pub(crate) fn header(&self, id: Id) -> SendHeader {
        let message = self.message(id);
        SendHeader {
            producer_group: "producers".into(),
            topic: message.topic.as_str().into(),
            default_topic: "TBW102".into(),
            default_topic_queue_nums: 2,
            queue_id: i32::try_from(message.queue_id).unwrap(),
            sys_flag: 0,
            born_timestamp: 1,
            flag: 7,
            properties: Some(text(&self.properties(id)).into()),
            reconsume_times: Some(0),
            unit_mode: Some(false),
            max_reconsume_times: None,
            batch: Some(false),
            broker_name: None,
        }
    }

    /// The request that sends messages: one, or several of one queue as a batch.
    pub(crate) fn request(&self, ids: &[Id]) -> Command {
        let [id] = ids else {
            let members = ids.iter().map(|id| BatchMember {
                flag: 7,
                body: self.message(*id).body(),
                properties: Bytes::copy_from_slice(self.properties(*id).as_bytes()),
            });
            let body = encode_batch(&members.collect::<Vec<_>>()).unwrap();
            let header = SendHeader { batch: Some(true), properties: None, ..self.header(ids[0]) };
            return Command::request(RequestCode::SEND_BATCH_MESSAGE).with_ext(header.encode_short()).with_body(body);
        };
        send_request(&self.header(*id), self.message(*id).body())
    }
}

/// The request that sends one message.
pub(crate) fn send_request(header: &SendHeader, body: Bytes) -> Command {
    Command::request(RequestCode::SEND_MESSAGE_V2).with_ext(header.encode_short()).with_body(body)
}

fn text(properties: &Properties) -> String {
    String::from_utf8(properties.as_bytes().to_vec()).unwrap()
}
