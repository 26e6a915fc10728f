//! What clients ask of the broker: sends of every kind, pulls, commits of offsets, messages given back, queries, topics deleted and created.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use latermq::{
    delay::DelayLevel,
    env::{Directory, MemoryDirectory},
    model::{PhysicalOffset, QueueId, dlq_topic, names, retry_topic},
    protocol::{
        Command, RequestCode,
        header::{
            CreateTopicHeader, OffsetReplyHeader, PullHeader, PullReplyHeader, QueryConsumerOffsetHeader,
            QueryMessageHeader, SendBackHeader, SendHeader, TopicHeader, UpdateConsumerOffsetHeader, pull_flag,
        },
    },
    record::{self, Frame, Record, Records},
};

use crate::{
    faults::segment_path,
    ledger::{Id, Message, send_request},
    machine::{BODY_BYTES_MAX, QUEUES, SEGMENT_BYTES},
    reader::{Queue, Sighting, is_internal},
    workload::Simulation,
};

/// Consumer groups.
const GROUPS: [&str; 2] = ["group", "others"];
/// The level of a first retry.
const FIRST_RETRY_LEVEL: i32 = 3;
/// Kinds of illegal requests that send one message, and then a batch.
const ILLEGAL_SINGLE: u32 = 10;
const ILLEGAL_BATCH: u32 = 2;
/// After how many retries a message is dead.
const RETRIES_MAX: i32 = 16;

/// What a request was that is not answered yet.
pub(crate) enum Pending {
    Send(Vec<Id>),
    /// One that must be refused.
    Illegal(u32),
    GiveBack(Id),
    /// Whoever asked takes the answer himself.
    Now,
}

/// What is known of a group's offset in a queue: what a restart may find, the newest last.
pub(crate) type Offsets = BTreeMap<(&'static str, Queue), Vec<Option<i64>>>;

impl Simulation {
    /// Sends a request; its answer may come now or later.
    pub(crate) fn request(&mut self, request: Command, pending: Pending) -> i32 {
        let request = self.number(request, pending);
        self.machine.process().send(request);
        self.next_opaque
    }

    /// Gives a request its number.
    fn number(&mut self, mut request: Command, pending: Pending) -> Command {
        self.next_opaque += 1;
        request.opaque = self.next_opaque;
        self.pending.insert(self.next_opaque, pending);
        request
    }

    /// Asks for what is answered at once.
    pub(crate) fn ask(&mut self, request: Command) -> Command {
        let opaque = self.request(request, Pending::Now);
        self.collect_answers();
        self.answered.take_if(|answer| answer.opaque == opaque).expect("it is answered at once")
    }

    /// Sends messages through the broker.
    pub(crate) fn send_request(&mut self, ids: &[Id]) {
        let before = self.machine.process().store.log_range().1;
        self.request(self.ledger.request(ids), Pending::Send(ids.to_vec()));
        self.note_appended(ids, before);
        self.say(&format!("request send {ids:?} level {}", self.ledger.message(ids[0]).level));
        self.collect_answers();
    }

    /// Sends messages, each by itself, that come to the broker together; perhaps one among them is illegal.
    pub(crate) fn send_together(&mut self) {
        let count = self.rng.usize(2..=6);
        let illegal = if self.rng.u32(..3) == 0 { Some(self.rng.usize(..count)) } else { None };
        let before = self.machine.process().store.log_range().1;
        let (mut ids, mut requests) = (Vec::new(), Vec::new());
        for at in 0..count {
            if illegal == Some(at) {
                let kind = self.rng.u32(..ILLEGAL_SINGLE);
                let (_, request) = self.illegal_request(kind);
                requests.push((request, Pending::Illegal(kind)));
                continue;
            }
            let level = if self.rng.u32(..3) == 0 { 0 } else { self.rng.u32(1..12) };
            let message = self.draw_message(level);
            let id = self.ledger.sending(message);
            ids.push(id);
            requests.push((self.ledger.request(&[id]), Pending::Send(vec![id])));
        }
        let requests = requests.into_iter().map(|(request, pending)| self.number(request, pending)).collect();
        self.machine.process().send_together(requests);
        let ends = self.ends_behind(before);
        for id in &ids {
            self.ledger.message_mut(*id).end = ends.get(id).copied();
        }
        self.say(&format!("send {ids:?} together, an illegal one at {illegal:?}; stored {ends:?}"));
        self.collect_answers();
    }

    /// Which messages lie behind a position of the log, and where each ends.
    fn ends_behind(&self, from: PhysicalOffset) -> BTreeMap<Id, PhysicalOffset> {
        let end = self.machine.process().store.log_range().1;
        // A copy can be read whatever becomes of the disk.
        let disk = if end > from { self.machine.directory.kill() } else { MemoryDirectory::new() };
        let (mut at, mut ends) = (from, BTreeMap::new());
        while at < end {
            let base = at.0 / SEGMENT_BYTES * SEGMENT_BYTES;
            let segment = Bytes::from(disk.read(&segment_path(base)).unwrap().expect("the segment is there"));
            let rest = segment.slice(usize::try_from(at.0 - base).unwrap()..);
            match record::kind(&rest) {
                Frame::Record { .. } => {
                    let record = Record::parse(&rest).expect("what was appended can be read");
                    let view = record.view();
                    let keys = view.properties().get(names::KEYS).and_then(|id| id.parse().ok()).expect("a number");
                    let id = self.ledger.id_of(keys, view.reconsume_times()).expect("it was sent");
                    assert_eq!(ends.insert(id, view.end()), None, "message {id} was appended twice");
                    at = view.end();
                }
                _ => at = PhysicalOffset(base + SEGMENT_BYTES),
            }
        }
        ends
    }

    /// If the log grew, then by these messages.
    fn note_appended(&mut self, ids: &[Id], before: PhysicalOffset) {
        let end = self.machine.process().store.log_range().1;
        for id in ids {
            self.ledger.message_mut(*id).end = (end > before).then_some(end);
        }
    }

    /// An answer to a request.
    pub(crate) fn answered(&mut self, answer: Command) {
        let pending = self.pending.remove(&answer.opaque).expect("each request is answered once");
        let waits = self.machine.process().store.waits_for_sync();
        let ids = match pending {
            Pending::Now => {
                self.answered = Some(answer);
                return;
            }
            Pending::Illegal(kind) => {
                assert!(answer.code != 0, "an illegal request of kind {kind} was taken");
                return;
            }
            Pending::Send(ids) => ids,
            Pending::GiveBack(id) => vec![id],
        };
        if answer.code == 0 {
            for id in ids {
                assert!(self.ledger.message(id).end.is_some(), "message {id} is acknowledged, and not in the log");
                self.ledger.acknowledge(id, waits);
            }
            return;
        }
        self.say(&format!("{ids:?} refused with {}: {:?}", answer.code, answer.remark));
        let is_stored = ids.iter().any(|id| self.ledger.message(*id).end.is_some());
        assert!(!is_stored || self.machine.must_end(), "{ids:?} refused, and in the log: {:?}", answer.remark);
        let gives_back_what_is_gone = answer.remark.as_deref().is_some_and(|remark| remark.starts_with("look message"));
        assert!(
            self.may_fail() || gives_back_what_is_gone,
            "{ids:?} refused without a fault: {} {:?}",
            answer.code,
            answer.remark
        );
    }

    /// A request that a broker must refuse.
    pub(crate) fn send_illegal_request(&mut self) {
        let kind = self.rng.u32(..ILLEGAL_SINGLE + ILLEGAL_BATCH);
        let (id, request) = self.illegal_request(kind);
        let answer = self.ask(request);
        self.say(&format!("request send {id} illegally ({kind}): {}", answer.code));
        assert!(answer.code != 0, "an illegal request of kind {kind} was taken");
    }

    fn illegal_request(&mut self, kind: u32) -> (Id, Command) {
        let mut message = self.draw_message(1);
        message.topic = "orders".into();
        let id = self.ledger.sending(message);
        let header = self.ledger.header(id);
        let body = self.ledger.message(id).body();
        let with = |property: &str| {
            let properties = format!("{}{property}", header.properties.as_deref().unwrap_or_default());
            SendHeader { properties: Some(properties.into()), ..header.clone() }
        };
        let (header, body) = match kind {
            0 => (header, Bytes::new()),
            1 => (header, Bytes::from(vec![1; BODY_BYTES_MAX + 1])),
            2 => (SendHeader { queue_id: 9, ..header }, body),
            3 => (SendHeader { topic: "SCHEDULE_TOPIC_XXXX".into(), ..header }, body),
            4 => (SendHeader { topic: "no/topic".into(), ..header }, body),
            5 => (SendHeader { topic: "t".repeat(200).into(), ..header }, body),
            6 => (with("DELAY\u{1}x\u{2}"), body),
            7 => (with("NUL\u{1}a\u{0}b\u{2}"), body),
            8 => (with(&format!("long\u{1}{}\u{2}", "x".repeat(33_000))), body),
            9 => (with("TRAN_MSG\u{1}true\u{2}"), body),
            10 => (SendHeader { batch: Some(true), ..header }, body),
            _ => {
                // A batch with a member that is to wait.
                let request = self.ledger.request(&[id, id]);
                (SendHeader { batch: Some(true), properties: None, ..header }, request.body.to_bytes())
            }
        };
        (id, send_request(&header, body))
    }

    // Consuming.

    fn draw_queue(&mut self) -> Option<Queue> {
        let queues = self.machine.process().store.queues();
        let real = queues.into_iter().filter(|(topic, ..)| !is_internal(topic));
        let mut queues: Vec<Queue> = real.map(|(topic, queue_id, _)| (topic.as_str().to_owned(), queue_id.0)).collect();
        queues.sort();
        self.rng.choice(queues)
    }

    /// A consumer pulls from where its group is, commits, and gives some of it back.
    pub(crate) fn consume(&mut self) {
        if !self.faulty {
            self.reader.read(&self.machine, &self.ledger);
        }
        let Some(queue) = self.draw_queue() else { return };
        let group = self.rng.choice(GROUPS).unwrap();
        let known = self.offsets.get(&(group, queue.clone())).and_then(|values| *values.last()?);
        let header = PullHeader {
            consumer_group: group.into(),
            topic: queue.0.as_str().into(),
            queue_id: i32::try_from(queue.1).unwrap(),
            queue_offset: known.unwrap_or(0),
            max_msg_nums: self.rng.i32(1..20),
            sys_flag: pull_flag::SUBSCRIPTION,
            commit_offset: 0,
            suspend_timeout_ms: 15_000,
            subscription: Some("*".into()),
            sub_version: 0,
            expression_type: None,
            max_msg_bytes: None,
            broker_name: None,
        };
        let answer = self.ask(Command::request(RequestCode::PULL_MESSAGE).with_ext(header.encode()));
        let pulled: Vec<Sighting> = if answer.code == 0 { self.check_pulled(&queue, &answer) } else { Vec::new() };
        let next = PullReplyHeader::decode(&answer.ext).map_or(0, |reply| reply.next_begin_offset);
        self.say(&format!("{group} pulls from {queue:?} at {known:?}: {} {next}", answer.code));
        if answer.code != 0 && next == 0 {
            return;
        }
        // Now and then a consumer commits nonsense.
        let commits = if self.rng.u32(..8) == 0 { self.rng.i64(-3..200) } else { next };
        self.commit(group, &queue, commits);
        for sighting in pulled {
            if self.rng.u32(..8) == 0 && !self.machine.must_end() {
                self.give_back(group, &sighting);
            }
        }
    }

    /// What is pulled is what is in the queue.
    fn check_pulled(&self, queue: &Queue, answer: &Command) -> Vec<Sighting> {
        let records = Records::new(answer.body.to_bytes()).map(|record| record.expect("a pulled record can be read"));
        let seen = self.reader.queues.get(queue);
        let known = records.filter_map(|record| {
            // While the disk fails nothing is read ahead.
            let position = record.view().physical_offset();
            let sighting = seen?.iter().flatten().find(|sighting| sighting.position == position)?;
            // One that was restored from a damaged record may have another key: once given back nobody could tell which it is.
            let is_known = self.ledger.id_of(sighting.keys, sighting.reconsume_times) == Some(sighting.id);
            if self.reader.is_damaged(sighting) || !is_known {
                return None;
            }
            assert_eq!(sighting.bytes_crc, crc32fast::hash(record.bytes()), "pulled from {queue:?}: {sighting:?}");
            Some(sighting.clone())
        });
        known.collect()
    }

    fn commit(&mut self, group: &'static str, queue: &Queue, offset: i64) {
        let (topic, queue_id) = (queue.0.as_str().into(), i32::try_from(queue.1).unwrap());
        let header =
            UpdateConsumerOffsetHeader { consumer_group: group.into(), topic, queue_id, commit_offset: offset };
        let answer = self.ask(Command::request(RequestCode::UPDATE_CONSUMER_OFFSET).with_ext(header.encode()));
        self.say(&format!("{group} commits {offset} in {queue:?}: {}", answer.code));
        if answer.code != 0 {
            assert!(self.may_fail() || self.machine.process().broker.topics().get(&queue.0).is_none(), "{answer:?}");
            return;
        }
        let within = offset.clamp(0, self.queue_end(queue));
        self.offsets.entry((group, queue.clone())).or_insert_with(|| vec![None]).push(Some(within));
    }

    fn queue_end(&self, queue: &Queue) -> i64 {
        let range = self.machine.process().store.queue_range(&queue.0, QueueId(queue.1));
        i64::try_from(range.unwrap_or_default().max.0).unwrap()
    }

    /// What a group's offset is.
    fn offset_of(&mut self, group: &str, queue: &Queue) -> Option<i64> {
        let header = QueryConsumerOffsetHeader {
            consumer_group: group.into(),
            topic: queue.0.as_str().into(),
            queue_id: i32::try_from(queue.1).unwrap(),
            set_zero_if_not_found: Some(false),
        };
        let answer = self.ask(Command::request(RequestCode::QUERY_CONSUMER_OFFSET).with_ext(header.encode()));
        (answer.code == 0).then(|| OffsetReplyHeader::decode(&answer.ext).unwrap().offset)
    }

    /// A process has started: every offset must be one that was committed since the offsets were last saved, within its queue.
    pub(crate) fn check_offsets(&mut self) {
        if self.may_fail() {
            // The file may not have been read.
            self.offsets_lost |= !self.offsets.is_empty();
            return;
        }
        for (key, values) in std::mem::take(&mut self.offsets) {
            let (group, queue) = &key;
            let found = self.offset_of(group, queue);
            let mut end = self.queue_end(queue);
            if self.reader.queues_wait {
                // What a queue could not be given yet was read all the same.
                end = end.max(found.unwrap_or(0).min(self.reader.seen_to(queue)));
            }
            assert!(
                found.is_none_or(|found| (0..=end).contains(&found)),
                "{group} at {found:?} of {queue:?}, which ends at {end}"
            );
            let is_known = values.iter().any(|value| value.map(|value| value.min(end)) == found);
            assert!(is_known || self.offsets_lost, "{group} at {found:?} of {queue:?}, not at one of {values:?}");
            self.offsets.insert(key, vec![found]);
        }
        self.offsets_lost = false;
    }

    /// The broker saves offsets when it is time.
    pub(crate) fn save_offsets(&mut self) {
        self.machine.process().broker.tick();
        self.say("broker ticks");
        let now = self.machine.elapsed;
        if now >= self.offsets_saved_at + Duration::from_secs(5) {
            if !self.may_fail() {
                self.offsets_are_saved();
            }
            self.offsets_saved_at = now;
        }
    }

    pub(crate) fn offsets_are_saved(&mut self) {
        for values in self.offsets.values_mut() {
            values.drain(..values.len() - 1);
        }
    }

    /// A consumer gives a message back.
    fn give_back(&mut self, group: &str, sighting: &Sighting) {
        let times = sighting.reconsume_times;
        let asked = if self.rng.u32(..4) == 0 { self.rng.i32(-1..9) } else { 0 };
        let level = if asked == 0 { FIRST_RETRY_LEVEL + times } else { asked };
        let level = self.machine.settings.levels.clamp(level).filter(|_| asked >= 0 && times < RETRIES_MAX);
        let topic = if level.is_some() { retry_topic(group) } else { dlq_topic(group) };
        let message = Message {
            level: level.map_or(0, DelayLevel::number),
            delay: level.and_then(|level| self.machine.settings.levels.duration(level)).unwrap_or_default(),
            sent_at: (self.machine.elapsed, self.machine.forward),
            ..Message::new(topic.as_str(), 0, self.ledger.message(sighting.id).fill)
        };
        let Some(id) = self.ledger.giving_back(sighting.keys, times + 1, message) else { return };
        let header = SendBackHeader {
            offset: i64::try_from(sighting.position.0).unwrap(),
            group: group.into(),
            delay_level: asked,
            origin_msg_id: None,
            origin_topic: None,
            unit_mode: Some(false),
            max_reconsume_times: Some(RETRIES_MAX),
        };
        let before = self.machine.process().store.log_range().1;
        let request = Command::request(RequestCode::CONSUMER_SEND_MSG_BACK).with_ext(header.encode());
        self.request(request, Pending::GiveBack(id));
        self.note_appended(&[id], before);
        self.say(&format!("{group} gives {} back as {id} at {asked}", sighting.id));
        self.collect_answers();
    }

    /// A message that was read is found by its key.
    pub(crate) fn query(&mut self) {
        let first = self.machine.process().store.log_range().0;
        let candidates: Vec<(String, Sighting)> = self
            .reader
            .delivered()
            .filter(|(queue, _, seen)| {
                seen.position >= first && !self.reader.is_damaged(seen) && self.reader.queues.contains_key(*queue)
            })
            .map(|(queue, _, seen)| (queue.0.clone(), seen.clone()))
            .collect();
        let Some((topic, sighting)) = self.rng.choice(candidates) else { return };
        let header = QueryMessageHeader {
            topic: topic.as_str().into(),
            key: format!("U{}", sighting.keys).into(),
            max_num: 64,
            begin_timestamp: 0,
            end_timestamp: i64::MAX,
            unique_key_query: None,
        };
        let answer = self.ask(Command::request(RequestCode::QUERY_MESSAGE).with_ext(header.encode()));
        self.say(&format!("query of {} in {topic}: {}", sighting.id, answer.code));
        let found = Records::new(answer.body.to_bytes())
            .any(|record| record.expect("a found record can be read").view().physical_offset() == sighting.position);
        assert!(
            found || self.faulty || self.index_lost,
            "message {} of {topic} is not found: {sighting:?}",
            sighting.id
        );
    }

    // Topics.

    /// A topic is deleted on request, and perhaps created again.
    pub(crate) fn delete_topic(&mut self) {
        let topic = *self.rng.choice(&["orders", "bills", "%RETRY%group"]).unwrap();
        if self.rng.bool() {
            self.sync();
            while !self.machine.must_end() && self.machine.process().store.dispatch_once(u64::MAX) {}
            self.settle();
        }
        if self.machine.must_end() {
            return;
        }
        if !self.faulty {
            self.reader.read(&self.machine, &self.ledger);
        }
        let store = &self.machine.process().store;
        let all_read = !self.faulty && store.dispatch_behind_bytes() == 0 && store.durable() == store.log_range().1;
        let header = TopicHeader { topic: topic.into(), cluster_name: None };
        let answer = self.ask(Command::request(RequestCode::DELETE_TOPIC_IN_BROKER).with_ext(header.encode()));
        self.say(&format!("delete {topic}: {} {:?}", answer.code, answer.remark));
        let is_deleted = answer.code == 0;
        assert!(is_deleted || self.may_fail(), "{topic} is not deleted: {:?}", answer.remark);
        let read: std::collections::BTreeSet<Id> = self.reader.delivered().map(|(_, _, seen)| seen.id).collect();
        for (id, message) in &mut self.ledger.messages {
            if message.topic == topic && !read.contains(id) {
                message.may_be_parked = true;
                message.exempt |= !all_read || !is_deleted;
            }
        }
        if is_deleted {
            self.reader.topic_deleted(topic);
        } else {
            self.reader.topic_perhaps_deleted(topic);
        }
        for ((_, queue), values) in &mut self.offsets {
            if queue.0 == topic {
                if is_deleted {
                    values.clear();
                }
                values.push(None);
            }
        }
        if self.rng.bool() && !self.machine.must_end() {
            self.create_topic(topic);
        }
    }

    /// Creates a topic; whether the broker has it now.
    pub(crate) fn create_topic(&mut self, topic: &str) -> bool {
        let queues = i32::try_from(if topic.starts_with('%') { 1 } else { QUEUES }).unwrap();
        let header = CreateTopicHeader {
            topic: topic.into(),
            default_topic: "TBW102".into(),
            read_queue_nums: queues,
            write_queue_nums: queues,
            perm: 6,
            topic_filter_type: "SINGLE_TAG".into(),
            topic_sys_flag: None,
            order: None,
            attributes: None,
            force: None,
        };
        let answer = self.ask(Command::request(RequestCode::UPDATE_AND_CREATE_TOPIC).with_ext(header.encode()));
        self.say(&format!("create {topic}: {}", answer.code));
        assert!(answer.code == 0 || self.may_fail(), "{topic} is not created: {:?}", answer.remark);
        answer.code == 0
    }
}
