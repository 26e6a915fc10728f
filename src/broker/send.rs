//! Sending: codes 10, 310 and, for batches, 320.

use std::{collections::VecDeque, sync::Arc};

use bytes::{Bytes, BytesMut};

use super::{
    Broker, BrokerOptions,
    blocking::blocking,
    failure::{Failure, success},
    perm,
    topics::{self, is_sendable},
};
use crate::{
    model::{
        MessageDraft, PhysicalOffset, Properties, QueueId, RETRY_PREFIX, SysFlag, Timestamp, Topic, dlq_topic, names,
    },
    protocol::{
        Command, ExtFields, RequestCode, ResponseCode, Text,
        body::TopicConfig,
        header::{SendHeader, SendReplyHeader},
    },
    record::{MessageId, decode_batch},
    remoting::{Connection, Responder},
    store::{Appended, StoreError},
};

/// Clients from this version on say themselves after how many retries a message is dead: 3.4.9.
pub(super) const MAX_RECONSUME_VERSION: i32 = 121;
/// `DELAY` of a message that goes to the dead letters: not delayed.
const NO_DELAY: &str = "-1";

/// Most messages that are appended together.
const TOGETHER_MAX: usize = 256;
/// No more messages are appended together with so many bytes of body.
const TOGETHER_BYTES: usize = 1 << 20;

/// About as many bytes as a reply has.
const FRAME_BYTES: usize = 288;

/// A message on its way into the store.
struct Sent {
    responder: Responder,
    queue_id: QueueId,
    unique_key: Option<Text>,
    waits: bool,
}

/// Whether a request sends one message, so that it may be handled together with others.
pub(super) fn is_single(request: &Command) -> bool {
    match request.code {
        RequestCode::SEND_MESSAGE => request.ext.bool("batch") != Some(true),
        RequestCode::SEND_MESSAGE_V2 => request.ext.bool("m") != Some(true),
        _ => false,
    }
}

/// Takes the sends of one message each off the front of `requests`, appends them together, and answers each: at once, or when it is durable.
pub(super) fn handle_some(
    broker: &Broker,
    connection: &Arc<Connection>,
    requests: &mut VecDeque<(Command, Responder)>,
) {
    let options = broker.options();
    let count_max = requests.len().min(TOGETHER_MAX);
    let mut known = None;
    let (mut sent, mut drafts, mut bytes) = (Vec::with_capacity(count_max), Vec::with_capacity(count_max), 0);
    while sent.len() < count_max && bytes < TOGETHER_BYTES {
        let Some((request, responder)) = requests.pop_front_if(|(request, _)| is_single(request)) else { break };
        match prepare(broker, &options, connection, &request, &mut known) {
            Err(failure) => refuse(&options, responder, failure),
            Ok(draft) => {
                bytes += draft.body.len();
                let [unique_key, wait] = draft.properties.find([names::UNIQ_KEY, names::WAIT]);
                sent.push(Sent {
                    responder,
                    queue_id: draft.queue_id,
                    unique_key: unique_key.and_then(|key| std::str::from_utf8(key).ok()).map(Text::from),
                    waits: waits(wait),
                });
                drafts.push(draft);
            }
        }
    }
    if sent.is_empty() {
        return;
    }
    let appended = blocking(|| broker.store.append_each(drafts));
    let syncs = broker.store.waits_for_sync();
    let (mut at_once, mut when_durable) = (Replies::new(connection, count_max), Replies::new(connection, count_max));
    let mut end = PhysicalOffset::ZERO;
    for (sent, appended) in sent.into_iter().zip(appended) {
        match appended {
            Err(error) => refuse(&options, sent.responder, error.into()),
            Ok(appended) => {
                let reply = reply(&options, sent.queue_id, &[appended], sent.unique_key);
                if sent.waits && syncs {
                    end = end.max(appended.end);
                    when_durable.push(sent.responder, &reply);
                } else {
                    at_once.push(sent.responder, &reply);
                }
            }
        }
    }
    at_once.send();
    if when_durable.is_empty() {
        return;
    }
    broker.store.when_durable(end, Box::new(move |durable| when_durable.send_if(durable)));
}

/// Replies to sends over one connection, ready to be sent together.
struct Replies {
    connection: Arc<Connection>,
    count: usize,
    frames: BytesMut,
    responders: Vec<Responder>,
}

impl Replies {
    /// None yet, with room for `count` once there is one.
    fn new(connection: &Arc<Connection>, count: usize) -> Self {
        Self { connection: Arc::clone(connection), count, frames: BytesMut::new(), responders: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.responders.is_empty()
    }

    fn push(&mut self, responder: Responder, reply: &SendReplyHeader) {
        if self.responders.is_empty() {
            self.frames.reserve(self.count * FRAME_BYTES);
            self.responders.reserve(self.count);
        }
        let (opaque, encoding) = responder.address();
        // One that fits no frame is answered with an error: its responder is dropped.
        if responder.is_oneway() || reply.encode_frame(opaque, encoding, &mut self.frames).is_ok() {
            self.responders.push(responder);
        }
    }

    fn send(self) {
        let count = self.responders.iter().filter(|responder| !responder.is_oneway()).count();
        self.connection.send_frames(&self.frames, count);
        self.responders.into_iter().for_each(Responder::leave_unanswered);
    }

    fn send_if(self, durable: Result<(), StoreError>) {
        match durable {
            Ok(()) => self.send(),
            Err(error) => self.responders.into_iter().for_each(|responder| not_durable(responder, &error)),
        }
    }
}

fn not_durable(responder: Responder, error: &StoreError) {
    responder.fail(ResponseCode::SERVICE_NOT_AVAILABLE, format!("message not made durable: {error}"));
}

/// Answers a send of a batch: at once, or when it is durable.
pub(super) fn handle_batch(broker: &Broker, connection: &Connection, request: &Command, responder: Responder) {
    let options = broker.options();
    match store_batch(broker, &options, connection, request) {
        Err(failure) => refuse(&options, responder, failure),
        Ok((reply, end, waits)) => {
            let response = success().with_ext(reply.encode());
            if waits {
                answer_when_durable(broker, end, responder, response);
            } else {
                responder.reply(response);
            }
        }
    }
}

fn refuse(options: &BrokerOptions, responder: Responder, failure: Failure) {
    responder.reply(failure.into_command().with_ext(trace_fields(options)));
}

/// Answers with `response` once everything before `end` is durable, or at once if answers need not wait.
pub(super) fn answer_when_durable(broker: &Broker, end: PhysicalOffset, responder: Responder, response: Command) {
    if !broker.store.waits_for_sync() {
        responder.reply(response);
        return;
    }
    let callback = move |durable: Result<(), StoreError>| match durable {
        Ok(()) => responder.reply(response),
        Err(error) => not_durable(responder, &error),
    };
    broker.store.when_durable(end, Box::new(callback));
}

/// The draft of a send of one message. `known` is the topic of the message before, which is looked up once.
fn prepare(
    broker: &Broker,
    options: &BrokerOptions,
    connection: &Connection,
    request: &Command,
    known: &mut Option<(Topic, Arc<TopicConfig>)>,
) -> Result<MessageDraft, Failure> {
    let header = SendHeader::decode(request.code, &request.ext)?;
    let name = header.topic.as_str();
    let (topic, config) = match known {
        Some((topic, config)) if topic.as_str() == name => (topic.clone(), config),
        known => {
            let (topic, config) = known.insert((Topic::new(name), check_topic(broker, options, &header)?));
            (topic.clone(), config)
        }
    };
    let queue_id = choose_queue(&header, config)?;
    if request.body.is_empty() {
        return Err(Failure::new(ResponseCode::MESSAGE_ILLEGAL, "the message body is empty"));
    }
    let (properties, body) = (properties(&header), request.body.to_bytes());
    let part = Part { topic, queue_id, flag: header.flag, properties, body };
    let mut draft = draft(broker, options, connection, &header, part)?;
    redirect_dead_letter(broker, &header, request.version, &mut draft)?;
    Ok(draft)
}

/// The topic of a send, created if need be.
fn check_topic(broker: &Broker, options: &BrokerOptions, header: &SendHeader) -> Result<Arc<TopicConfig>, Failure> {
    let topic = header.topic.as_str();
    if options.permission & perm::WRITE == 0 && broker.topics.get(topic).is_some_and(|config| config.order) {
        let remark = format!("the broker[{}] sending message is forbidden", options.advertised.ip());
        return Err(Failure::new(ResponseCode::NO_PERMISSION, remark));
    }
    topics::validate(topic)?;
    if !is_sendable(topic) {
        let remark = format!("Sending message to topic[{topic}] is forbidden.");
        return Err(Failure::new(ResponseCode::NO_PERMISSION, remark));
    }
    broker.topics.get_or_create(topic, &header.default_topic, header.default_topic_queue_nums)
}

/// The queue of a send: the one asked for, or any.
fn choose_queue(header: &SendHeader, topic: &TopicConfig) -> Result<QueueId, Failure> {
    let queues = topic.read_queue_nums.max(topic.write_queue_nums);
    if header.queue_id >= queues {
        let remark = format!(
            "request queueId[{}] is illegal, topic[{}] topicConfig.readQueueNums[{}] writeQueueNums[{}]",
            header.queue_id, header.topic, topic.read_queue_nums, topic.write_queue_nums
        );
        return Err(Failure::new(ResponseCode::INVALID_PARAMETER, remark));
    }
    let any = || fastrand::u32(..u32::try_from(topic.write_queue_nums).unwrap_or(0).max(1));
    Ok(QueueId(u32::try_from(header.queue_id).unwrap_or_else(|_| any())))
}

/// Stores a batch; gives what to answer, its end, and whether the answer waits until that is durable.
fn store_batch(
    broker: &Broker,
    options: &BrokerOptions,
    connection: &Connection,
    request: &Command,
) -> Result<(SendReplyHeader, PhysicalOffset, bool), Failure> {
    let header = SendHeader::decode(request.code, &request.ext)?;
    let envelope = properties(&header);
    let header = &header;
    let topic = check_topic(broker, options, header)?;
    let queue_id = choose_queue(header, &topic)?;
    let body = &request.body.to_bytes();
    let illegal = |remark: String| Failure::new(ResponseCode::MESSAGE_ILLEGAL, remark);
    if header.topic.starts_with(RETRY_PREFIX) {
        return Err(illegal("batch request does not support retry group ".into()));
    }
    let max = broker.store.options().body_bytes_max;
    if body.len() > max {
        return Err(illegal(format!("the batch has {} bytes, more than maxMessageSize = {max}", body.len())));
    }
    let members = decode_batch(body).map_err(|error| illegal(error.to_string()))?;
    let name = Topic::new(header.topic.as_str());
    let drafts = members.into_iter().map(|member| {
        if member.body.is_empty() {
            return Err(illegal("the body of a message of the batch is empty".into()));
        }
        let (properties, body) = (with_room(&member.properties), member.body);
        draft(
            broker,
            options,
            connection,
            header,
            Part { topic: name.clone(), queue_id, flag: member.flag, properties, body },
        )
    });
    let drafts = drafts.collect::<Result<Vec<_>, _>>()?;
    let unique_key = envelope.get(names::UNIQ_KEY).map(Text::from);
    let waits_by = |properties: &Properties| waits(properties.get_bytes(names::WAIT));
    let waits = waits_by(&envelope) && drafts.iter().all(|draft| waits_by(&draft.properties));
    let appended = blocking(|| broker.store.append_batch(&envelope, drafts))?;
    let end = appended.last().map_or(PhysicalOffset::ZERO, |last| last.end);
    Ok((reply(options, queue_id, &appended, unique_key), end, waits))
}

/// What is one message's own.
struct Part {
    topic: Topic,
    queue_id: QueueId,
    flag: i32,
    properties: Properties,
    body: Bytes,
}

fn draft(
    broker: &Broker,
    options: &BrokerOptions,
    connection: &Connection,
    header: &SendHeader,
    part: Part,
) -> Result<MessageDraft, Failure> {
    let Part { topic, queue_id, flag, mut properties, body } = part;
    let sys_flag = SysFlag(header.sys_flag & !SysFlag::OF_THE_BROKER);
    let [transaction, unique_key, receipt, region, trace_on, cluster] = properties.find([
        names::TRAN_MSG,
        names::UNIQ_KEY,
        names::POP_CK,
        names::MSG_REGION,
        names::TRACE_ON,
        names::CLUSTER,
    ]);
    // Until transactions exist nobody would ever end this one.
    if transaction.is_some_and(|value| value.eq_ignore_ascii_case(b"true")) || !sys_flag.is_queued() {
        let remark = format!("the broker[{}] does not support transactional messages yet", options.name);
        return Err(Failure::new(ResponseCode::NO_PERMISSION, remark));
    }
    let is_new = receipt.or(region).or(trace_on).or(cluster).is_none();
    let made = if unique_key.is_some() { None } else { Some(broker.unique_keys.next(broker.store.now())) };
    let own = [
        (names::UNIQ_KEY, made.as_deref().unwrap_or_default().as_bytes()),
        (names::MSG_REGION, options.region.as_bytes()),
        (names::TRACE_ON, if options.trace_on { &b"true"[..] } else { b"false" }),
        (names::CLUSTER, options.cluster.as_bytes()),
    ];
    let own = if made.is_some() { &own } else { &own[1..] };
    if is_new {
        own.iter().for_each(|(name, value)| properties.add(name, value));
    } else {
        properties.replace(&[names::POP_CK], own);
    }
    Ok(MessageDraft {
        topic,
        queue_id,
        flag,
        sys_flag,
        born_at: Timestamp(header.born_timestamp),
        born_host: connection.peer(),
        store_host: options.advertised,
        reconsume_times: header.reconsume_times.unwrap_or(0),
        prepared_offset: 0,
        properties,
        body,
    })
}

/// A message that a consumer sends to its retry topic itself goes to the dead letters when it was retried often enough, and at once when
/// the group consumes in order.
fn redirect_dead_letter(
    broker: &Broker,
    header: &SendHeader,
    version: i32,
    draft: &mut MessageDraft,
) -> Result<(), Failure> {
    let Some(group) = header.topic.strip_prefix(RETRY_PREFIX) else {
        return Ok(());
    };
    let config = broker.groups.get_or_create(group)?;
    let says = header.max_reconsume_times.filter(|_| version >= MAX_RECONSUME_VERSION);
    let max = says.unwrap_or(config.retry_max_times);
    if draft.reconsume_times > max || broker.locks.any(group, broker.now()) {
        let topic = dlq_topic(group);
        broker.topics.ensure(&topic, 1)?;
        draft.topic = topic;
        draft.queue_id = QueueId(0);
        draft.properties.set(names::DELAY, NO_DELAY);
    }
    Ok(())
}

fn properties(header: &SendHeader) -> Properties {
    with_room(header.properties.as_deref().unwrap_or_default().as_bytes())
}

/// A client's properties, with room for those that broker and plugins are about to add.
fn with_room(text: &[u8]) -> Properties {
    const ADDED_BYTES: usize = 160;
    let mut copy = Vec::with_capacity(text.len() + ADDED_BYTES);
    copy.extend_from_slice(text);
    Properties::from_text(copy)
}

/// Whether the producer wants its answer only when the message is durable, by the value of `WAIT`.
fn waits(value: Option<&[u8]>) -> bool {
    value.is_none_or(|value| !value.eq_ignore_ascii_case(b"false"))
}

fn reply(
    options: &BrokerOptions,
    queue_id: QueueId,
    appended: &[Appended],
    transaction_id: Option<Text>,
) -> SendReplyHeader {
    let id = |appended: &Appended| MessageId { store_host: options.advertised, physical_offset: appended.position };
    let msg_id = match appended {
        [one] => Text::from(id(one).write(&mut [0; MessageId::DIGITS_MAX])),
        many => many.iter().map(|one| id(one).to_string()).collect::<Vec<_>>().join(",").into(),
    };
    let first = appended.first().map_or(0, |first| first.queue_offset.0);
    SendReplyHeader {
        msg_id,
        queue_id: i32::try_from(queue_id.0).unwrap_or(i32::MAX),
        queue_offset: i64::try_from(first).unwrap_or(i64::MAX),
        transaction_id,
        region: Some(options.region.as_str().into()),
        trace_on: Some(options.trace_on),
    }
}

fn trace_fields(options: &BrokerOptions) -> ExtFields {
    let mut ext = ExtFields::with_capacity(2);
    ext.push("MSG_REGION", options.region.as_str());
    ext.push("TRACE_ON", options.trace_on);
    ext
}
