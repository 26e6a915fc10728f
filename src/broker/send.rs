//! Sending: codes 10, 310 and, for batches, 320.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Broker,
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
    store::Appended,
};

/// Clients from this version on say themselves after how many retries a message is dead: 3.4.9.
pub(super) const MAX_RECONSUME_VERSION: i32 = 121;
/// `DELAY` of a message that goes to the dead letters: not delayed.
const NO_DELAY: &str = "-1";

/// What was stored, as the producer is told.
struct Stored {
    reply: SendReplyHeader,
    end: PhysicalOffset,
    waits: bool,
}

/// Answers a send: at once, or when it is durable.
pub(super) fn handle(broker: &Broker, connection: &Connection, request: &Command, responder: Responder) {
    match store(broker, connection, request) {
        Err(failure) => responder.reply(failure.into_command().with_ext(trace_fields(broker))),
        Ok(stored) => {
            let response = success().with_ext(stored.reply.encode());
            answer_when_durable(broker, stored.end, stored.waits, responder, response);
        }
    }
}

/// Answers with `response` once everything before `end` is durable, or at once if the answer need not wait.
pub(super) fn answer_when_durable(
    broker: &Broker,
    end: PhysicalOffset,
    waits: bool,
    responder: Responder,
    response: Command,
) {
    if !waits || !broker.store.waits_for_sync() {
        responder.reply(response);
        return;
    }
    let callback = move |durable: Result<(), crate::store::StoreError>| match durable {
        Ok(()) => responder.reply(response),
        Err(error) => responder.fail(ResponseCode::SERVICE_NOT_AVAILABLE, format!("message not made durable: {error}")),
    };
    broker.store.when_durable(end, Box::new(callback));
}

fn store(broker: &Broker, connection: &Connection, request: &Command) -> Result<Stored, Failure> {
    let is_batch = request.code == RequestCode::SEND_BATCH_MESSAGE;
    let header = SendHeader::decode(request.code, &request.ext)?;
    let topic = check_topic(broker, &header)?;
    let queue_id = choose_queue(&header, &topic)?;
    let (version, body) = (request.version, request.body.to_bytes());
    if is_batch || header.batch == Some(true) {
        store_batch(broker, connection, &header, queue_id, &body)
    } else {
        store_one(broker, connection, &header, version, queue_id, body)
    }
}

/// The topic of a send, created if need be.
fn check_topic(broker: &Broker, header: &SendHeader) -> Result<Arc<TopicConfig>, Failure> {
    let topic = header.topic.as_str();
    let options = broker.options();
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

fn store_one(
    broker: &Broker,
    connection: &Connection,
    header: &SendHeader,
    version: i32,
    queue_id: QueueId,
    body: Bytes,
) -> Result<Stored, Failure> {
    if body.is_empty() {
        return Err(Failure::new(ResponseCode::MESSAGE_ILLEGAL, "the message body is empty"));
    }
    let mut draft = draft(broker, connection, header, queue_id, header.flag, properties(header), body)?;
    redirect_dead_letter(broker, header, version, &mut draft)?;
    let unique_key = draft.properties.get(names::UNIQ_KEY).map(Text::from);
    let waits = waits(&draft.properties);
    let appended = blocking(|| broker.store.append(draft))?;
    Ok(Stored { reply: reply(broker, queue_id, &[appended], unique_key), end: appended.end, waits })
}

fn store_batch(
    broker: &Broker,
    connection: &Connection,
    header: &SendHeader,
    queue_id: QueueId,
    body: &Bytes,
) -> Result<Stored, Failure> {
    let illegal = |remark: String| Failure::new(ResponseCode::MESSAGE_ILLEGAL, remark);
    if header.topic.starts_with(RETRY_PREFIX) {
        return Err(illegal("batch request does not support retry group ".into()));
    }
    let max = broker.store.options().body_bytes_max;
    if body.len() > max {
        return Err(illegal(format!("the batch has {} bytes, more than maxMessageSize = {max}", body.len())));
    }
    let envelope = properties(header);
    let members = decode_batch(body).map_err(|error| illegal(error.to_string()))?;
    let drafts = members.into_iter().map(|member| {
        if member.body.is_empty() {
            return Err(illegal("the body of a message of the batch is empty".into()));
        }
        draft(broker, connection, header, queue_id, member.flag, Properties::from(member.properties), member.body)
    });
    let drafts = drafts.collect::<Result<Vec<_>, _>>()?;
    let unique_key = envelope.get(names::UNIQ_KEY).map(Text::from);
    let waits = waits(&envelope) && drafts.iter().all(|draft| waits(&draft.properties));
    let appended = blocking(|| broker.store.append_batch(&envelope, drafts))?;
    let end = appended.last().map_or(PhysicalOffset::ZERO, |last| last.end);
    Ok(Stored { reply: reply(broker, queue_id, &appended, unique_key), end, waits })
}

fn draft(
    broker: &Broker,
    connection: &Connection,
    header: &SendHeader,
    queue_id: QueueId,
    flag: i32,
    mut properties: Properties,
    body: Bytes,
) -> Result<MessageDraft, Failure> {
    let sys_flag = SysFlag(header.sys_flag & !SysFlag::OF_THE_BROKER);
    // Until transactions exist nobody would ever end this one.
    if properties.get(names::TRAN_MSG).is_some_and(|value| value.eq_ignore_ascii_case("true")) || !sys_flag.is_queued()
    {
        let remark = format!("the broker[{}] does not support transactional messages yet", broker.options().name);
        return Err(Failure::new(ResponseCode::NO_PERMISSION, remark));
    }
    properties.remove(names::POP_CK);
    if !properties.contains(names::UNIQ_KEY) {
        properties.set(names::UNIQ_KEY, broker.unique_keys.next(broker.store.now()));
    }
    properties.set(names::MSG_REGION, &broker.options().region);
    properties.set(names::TRACE_ON, if broker.options().trace_on { "true" } else { "false" });
    properties.set(names::CLUSTER, &broker.options().cluster);
    Ok(MessageDraft {
        topic: Topic::new(header.topic.as_str()),
        queue_id,
        flag,
        sys_flag,
        born_at: Timestamp(header.born_timestamp),
        born_host: connection.peer(),
        store_host: broker.options().advertised,
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
    Properties::from_text(header.properties.as_ref().map(|text| text.as_bytes().to_vec()).unwrap_or_default())
}

/// Whether the producer wants its answer only when the message is durable.
fn waits(properties: &Properties) -> bool {
    properties.get(names::WAIT).is_none_or(|value| !value.eq_ignore_ascii_case("false"))
}

fn reply(broker: &Broker, queue_id: QueueId, appended: &[Appended], transaction_id: Option<Text>) -> SendReplyHeader {
    let ids: Vec<_> = appended
        .iter()
        .map(|appended| {
            let id = MessageId { store_host: broker.options().advertised, physical_offset: appended.position };
            id.to_string()
        })
        .collect();
    let first = appended.first().map_or(0, |first| first.queue_offset.0);
    SendReplyHeader {
        msg_id: ids.join(",").into(),
        queue_id: i32::try_from(queue_id.0).unwrap_or(i32::MAX),
        queue_offset: i64::try_from(first).unwrap_or(i64::MAX),
        transaction_id,
        region: Some(broker.options().region.as_str().into()),
        trace_on: Some(broker.options().trace_on),
    }
}

fn trace_fields(broker: &Broker) -> ExtFields {
    let mut ext = ExtFields::with_capacity(2);
    ext.push("MSG_REGION", broker.options().region.as_str());
    ext.push("TRACE_ON", broker.options().trace_on);
    ext
}
