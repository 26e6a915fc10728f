//! Questions about queues and messages: codes 12, 14, 15 and 29 to 33.

use super::{
    Broker,
    blocking::blocking,
    failure::{Answer, Failure, success},
    groups,
    topics::unknown,
};
use crate::{
    model::{PhysicalOffset, QueueId, QueueOffset, Timestamp},
    protocol::{
        Command, HeaderError, ResponseCode,
        header::{
            EarliestTimeReplyHeader, OffsetReplyHeader, QueryConsumerOffsetHeader, QueryMessageHeader,
            QueryMessageReplyHeader, QueueHeader, SearchOffsetHeader, UpdateConsumerOffsetHeader, ViewMessageHeader,
        },
    },
    store::{Boundary, QueueRange},
};

/// Code 14: the stored offset of a group. A group without one begins at 0 in a queue whose first message is there and recent; else the
/// client decides where to begin.
pub(super) fn consumer_offset(broker: &Broker, request: &Command) -> Answer {
    let header = QueryConsumerOffsetHeader::decode(&request.ext)?;
    let (group, topic) = (header.consumer_group.as_str(), header.topic.as_str());
    if let Some(offset) = broker.offsets.get(group, topic, header.queue_id) {
        return Ok(offset_reply(offset));
    }
    let queue_id = QueueId(u32::try_from(header.queue_id).unwrap_or(u32::MAX));
    if header.set_zero_if_not_found != Some(false) && begins_at_zero(broker, topic, queue_id) {
        return Ok(offset_reply(0));
    }
    let remark = "Not found, maybe this group consumer boot first";
    Err(Failure::new(ResponseCode::QUERY_NOT_FOUND, remark))
}

fn begins_at_zero(broker: &Broker, topic: &str, queue_id: QueueId) -> bool {
    let range = broker.store.queue_range(topic, queue_id).unwrap_or_default();
    if range.min != QueueOffset::ZERO || range.max == QueueOffset::ZERO {
        return false;
    }
    let first = broker.store.queue_entries(topic, queue_id, QueueOffset::ZERO, 1);
    let (_, end) = broker.store.log_range();
    first.first().is_some_and(|entry| end.since(entry.position) <= broker.options().recent_log_bytes)
}

/// Code 15: a group stores an offset.
pub(super) fn update_consumer_offset(broker: &Broker, request: &Command) -> Answer {
    let header = UpdateConsumerOffsetHeader::decode(&request.ext)
        .map_err(|error: HeaderError| Failure::new(ResponseCode::INVALID_PARAMETER, error.to_string()))?;
    let (group, topic) = (header.consumer_group.as_str(), header.topic.as_str());
    if broker.groups.get(group).is_none() {
        return Err(groups::unknown(group));
    }
    let config = broker.topics.get(topic).ok_or_else(|| unknown(topic))?;
    // A topic that another broker left may have more queues than a request may ask for.
    let max = broker.options().topic_queues_max.max(u32::try_from(config.read_queue_nums).unwrap_or(0));
    if u32::try_from(header.queue_id).is_ok_and(|queue_id| queue_id < max) {
        broker.offsets.commit(group, topic, header.queue_id, header.commit_offset);
        return Ok(success());
    }
    let remark = format!("queueId is {}, allowed are 0 to {}", header.queue_id, max - 1);
    Err(Failure::new(ResponseCode::INVALID_PARAMETER, remark))
}

/// Code 29: the offset of the first message stored at or after a time.
pub(super) fn search_offset(broker: &Broker, request: &Command) -> Answer {
    let header = SearchOffsetHeader::decode(&request.ext)?;
    let upper = header.boundary_type.as_deref().is_some_and(|text| text.eq_ignore_ascii_case("upper"));
    let boundary = if upper { Boundary::Upper } else { Boundary::Lower };
    let Ok(queue_id) = u32::try_from(header.queue_id) else {
        return Ok(offset_reply(0));
    };
    let time = Timestamp(header.timestamp);
    let offset = blocking(|| broker.store.offset_at(&header.topic, QueueId(queue_id), time, boundary));
    Ok(offset_reply(signed(offset.0)))
}

/// Code 30: the offset that the next message of a queue will get.
pub(super) fn max_offset(broker: &Broker, request: &Command) -> Answer {
    Ok(offset_reply(signed(queue_range(broker, request)?.max.0)))
}

/// Code 31: the offset of the first message of a queue.
pub(super) fn min_offset(broker: &Broker, request: &Command) -> Answer {
    Ok(offset_reply(signed(queue_range(broker, request)?.min.0)))
}

/// Code 32: the store time of the first message of a queue.
pub(super) fn earliest_time(broker: &Broker, request: &Command) -> Answer {
    let header = QueueHeader::decode(&request.ext)?;
    let range = queue_range(broker, request)?;
    let time = u32::try_from(header.queue_id)
        .ok()
        .filter(|_| range.max > range.min)
        .and_then(|queue_id| blocking(|| broker.store.stored_at(&header.topic, QueueId(queue_id), range.min)));
    let ext = EarliestTimeReplyHeader { timestamp: time.map_or(-1, |time| time.0) }.encode();
    Ok(success().with_ext(ext))
}

/// Code 33: the message at a position of the log.
pub(super) fn view_message(broker: &Broker, request: &Command) -> Answer {
    let header = ViewMessageHeader::decode(&request.ext)?;
    let position = u64::try_from(header.offset).ok().map(PhysicalOffset);
    match position.and_then(|position| blocking(|| broker.store.record_at(position))) {
        Some(record) => Ok(success().with_body(record.bytes().clone())),
        None => {
            let remark = format!("can not find message by the offset, {}", header.offset);
            Err(Failure::new(ResponseCode::SYSTEM_ERROR, remark))
        }
    }
}

/// Code 12: the messages of a topic with a key.
pub(super) fn query_message(broker: &Broker, request: &Command) -> Answer {
    let header = QueryMessageHeader::decode(&request.ext)?;
    let max = broker.store.options().query_count_max.max(1);
    // Of a unique key the client wants all there are and picks itself.
    let wanted = if header.unique_key_query == Some(true) { max } else { usize::try_from(header.max_num).unwrap_or(0) };
    let (begin, end) = (Timestamp(header.begin_timestamp), Timestamp(header.end_timestamp));
    let found = blocking(|| broker.store.query(&header.topic, &header.key, wanted.clamp(1, max), begin, end));
    if found.records.is_empty() {
        let remark = "can not find message, maybe time range not correct";
        return Err(Failure::new(ResponseCode::QUERY_NOT_FOUND, remark));
    }
    let ext = QueryMessageReplyHeader {
        index_last_update_timestamp: found.index_updated_at.0,
        index_last_update_phyoffset: signed(found.index_updated_to.0),
    };
    Ok(success().with_ext(ext.encode()).with_body(found.records))
}

fn queue_range(broker: &Broker, request: &Command) -> Result<QueueRange, Failure> {
    let header = QueueHeader::decode(&request.ext)?;
    let queue_id = u32::try_from(header.queue_id).ok();
    Ok(queue_id.and_then(|queue_id| broker.store.queue_range(&header.topic, QueueId(queue_id))).unwrap_or_default())
}

fn offset_reply(offset: i64) -> Command {
    success().with_ext(OffsetReplyHeader { offset }.encode())
}

fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}
