//! Consumer retry, code 36: a consumer failed and gives a message back.

use super::{
    Broker,
    blocking::blocking,
    failure::{Failure, success},
    perm,
    send::{MAX_RECONSUME_VERSION, answer_when_durable},
};
use crate::{
    model::{PhysicalOffset, QueueId, SCHEDULE_TOPIC, dlq_topic, names, retry_topic},
    protocol::{Command, ResponseCode, header::SendBackHeader},
    record::MessageId,
    remoting::Responder,
};

/// The level of the first retry; each further one waits a level longer.
const FIRST_RETRY_LEVEL: i32 = 3;

/// Topics whose messages are not yet anybody's: given back, one would come before its time, or uncommitted.
const NOT_GIVEN_BACK: [&str; 2] = [SCHEDULE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC"];

/// Stores the message for its group's retry topic, delayed, or among its dead letters; answers when it is durable.
pub(super) fn handle(broker: &Broker, request: &Command, responder: Responder) {
    match store(broker, request) {
        Ok(Some(end)) => answer_when_durable(broker, end, responder, success()),
        Ok(None) => responder.reply(success()),
        Err(failure) => responder.reply(failure.into_command()),
    }
}

fn store(broker: &Broker, request: &Command) -> Result<Option<PhysicalOffset>, Failure> {
    let header = SendBackHeader::decode(&request.ext)?;
    let group = header.group.as_str();
    let config = broker.groups.get_or_create(group)?;
    if broker.options().permission & perm::WRITE == 0 {
        let remark = format!("the broker[{}] sending message is forbidden", broker.options().advertised.ip());
        return Err(Failure::new(ResponseCode::NO_PERMISSION, remark));
    }
    let Some(queues) = u32::try_from(config.retry_queue_nums).ok().filter(|&queues| queues > 0) else {
        return Ok(None);
    };
    let retry = retry_topic(group);
    let topic = broker.topics.ensure(&retry, queues)?;
    if topic.perm & perm::WRITE == 0 {
        let remark = format!("the topic[{retry}] sending message is forbidden");
        return Err(Failure::new(ResponseCode::NO_PERMISSION, remark));
    }

    let missing =
        || Failure::new(ResponseCode::SYSTEM_ERROR, format!("look message by offset failed, {}", header.offset));
    let position = PhysicalOffset(u64::try_from(header.offset).map_err(|_| missing())?);
    let record = blocking(|| broker.store.record_at(position)).ok_or_else(missing)?;
    let view = record.view();
    if NOT_GIVEN_BACK.contains(&view.topic()) {
        let remark = format!("no consumer was given the message at {position} of topic {}", view.topic());
        return Err(Failure::new(ResponseCode::SYSTEM_ERROR, remark));
    }
    let origin = MessageId { store_host: view.store_host(), physical_offset: position }.to_string();

    let mut draft = record.to_draft();
    if !draft.properties.contains(names::RETRY_TOPIC) {
        let topic = draft.topic.clone();
        draft.properties.set(names::RETRY_TOPIC, topic.as_str());
    }
    // Kept with the message as RocketMQ does; this answer waits all the same.
    draft.properties.set(names::WAIT, "false");
    if !draft.properties.contains(names::ORIGIN_MESSAGE_ID) {
        draft.properties.set(names::ORIGIN_MESSAGE_ID, origin);
    }
    let says = header.max_reconsume_times.filter(|_| request.version >= MAX_RECONSUME_VERSION);
    let max = says.unwrap_or(config.retry_max_times);
    if draft.reconsume_times >= max || header.delay_level < 0 {
        let dead = dlq_topic(group);
        broker.topics.ensure(&dead, 1)?;
        draft.topic = dead;
        draft.queue_id = QueueId(0);
        draft.properties.set(names::DELAY, "0");
    } else {
        let level = match header.delay_level {
            0 => FIRST_RETRY_LEVEL.saturating_add(draft.reconsume_times),
            level => level,
        };
        draft.topic = retry;
        draft.queue_id = QueueId(fastrand::u32(..queues));
        draft.properties.set(names::DELAY, level.to_string());
    }
    draft.reconsume_times = draft.reconsume_times.saturating_add(1);
    draft.prepared_offset = 0;
    draft.store_host = broker.options().advertised;
    let appended = blocking(|| broker.store.append(draft)).map_err(|error| {
        let failure = Failure::from(error);
        // The client sends the message itself when this fails, whatever the reason.
        Failure::new(ResponseCode::SYSTEM_ERROR, failure.remark)
    })?;
    Ok(Some(appended.end))
}
