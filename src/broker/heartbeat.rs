//! Clients come, stay and leave: codes 34, 35 and 38.

use std::sync::Arc;

use super::{
    Broker, Subscription,
    clients::Client,
    consumers::GroupKind,
    failure::{Answer, Failure, check_client_id, read_json, success},
};
use crate::{
    model::{Topic, retry_topic},
    protocol::{
        Command, ResponseCode,
        body::{ConsumerData, ConsumerIds, HeartbeatData, SubscriptionData},
        header::{ConsumerGroupHeader, HeartbeatReplyHeader, UnregisterClientHeader},
        json::{self, Dialect},
    },
    remoting::Connection,
};

/// Code 34: a client tells its groups. Consumer groups and their retry topics are created, and members are told of changes, before the
/// answer.
pub(super) fn heartbeat(broker: &Broker, connection: &Arc<Connection>, request: &Command) -> Answer {
    let heartbeat: HeartbeatData = read_json(request)?;
    check_client_id(&heartbeat.client_id)?;
    let client = Client {
        client_id: heartbeat.client_id.as_str().into(),
        language: request.language,
        version: request.version,
        connection: Arc::clone(connection),
    };
    let (now, max) = (broker.now(), broker.options().groups_max);
    for producer in &heartbeat.producer_data_set {
        if !broker.producers.heard(&producer.group_name, &client, now, max) {
            tracing::debug!(client_id = %client.client_id, groups_max = max, "producer group not taken");
        }
    }
    for consumer in heartbeat.consumer_data_set {
        hear_consumer(broker, &client, consumer);
    }
    // Heartbeats without subscriptions are not asked for: after a restart there would be none to fall back on.
    let ext = HeartbeatReplyHeader { is_support_heart_beat_v2: false, is_sub_change: true }.encode();
    Ok(success().with_ext(ext))
}

fn hear_consumer(broker: &Broker, client: &Client, consumer: ConsumerData) {
    let group = consumer.group_name;
    let config = match broker.groups.get_or_create(&group) {
        Ok(config) => config,
        Err(Failure { remark, .. }) => {
            tracing::debug!(group, client_id = %client.client_id, error = remark, "consumer group not taken");
            return;
        }
    };
    if let Some(queues) = u32::try_from(config.retry_queue_nums).ok().filter(|&queues| queues > 0)
        && let Err(Failure { remark, .. }) = broker.topics.ensure(&retry_topic(&group), queues)
    {
        tracing::warn!(group, error = remark, "retry topic not created");
    }
    let kind = GroupKind {
        consume_type: consumer.consume_type,
        message_model: consumer.message_model,
        consume_from_where: consumer.consume_from_where,
    };
    let subscriptions = consumer.subscription_data_set.into_iter().filter_map(|data| subscription(&group, data));
    let max = broker.options().groups_max;
    match broker.consumers.heard(&group, kind, subscriptions.collect(), client, broker.now(), max) {
        Some(true) if config.notify_consumer_ids_changed_enable => broker.consumers.notify(&group),
        Some(_) => {}
        None => tracing::warn!(group, groups_max = max, "too many connected groups, heartbeat ignored"),
    }
}

fn subscription(group: &str, data: SubscriptionData) -> Option<Subscription> {
    let topic = Topic::new(data.topic);
    let by_tag = data.expression_type.is_empty() || data.expression_type == super::subscription::TAG;
    // The tags may be missing where the expression is there.
    let read = if by_tag && data.tags_set.is_empty() {
        Subscription::parse(topic, &data.sub_string, data.sub_version)
    } else {
        Subscription::with_tags(topic, &data.sub_string, data.tags_set, &data.expression_type, data.sub_version)
    };
    read.map_err(|error| tracing::warn!(group, %error, "subscription left out")).ok()
}

/// Code 35: a client leaves a group.
pub(super) fn unregister(broker: &Broker, connection: &Connection, request: &Command) -> Answer {
    let header = UnregisterClientHeader::decode(&request.ext)?;
    if let Some(group) = header.producer_group.as_deref() {
        broker.producers.unregister(group, connection.id());
    }
    if let Some(group) = header.consumer_group.as_deref()
        && broker.consumers.unregister(group, connection.id())
    {
        notify(broker, group);
    }
    Ok(success())
}

/// Code 38: who is in a group.
pub(super) fn list(broker: &Broker, request: &Command) -> Answer {
    let header = ConsumerGroupHeader::decode(&request.ext)?;
    let ids = broker.consumers.client_ids(&header.consumer_group);
    if ids.is_empty() {
        let remark = format!("no consumer for this group, {}", header.consumer_group);
        return Err(Failure::new(ResponseCode::SYSTEM_ERROR, remark));
    }
    let ids = ConsumerIds { consumer_id_list: ids.iter().map(|id| id.as_ref().to_owned()).collect() };
    Ok(success().with_body(json::to_vec(Dialect::Fastjson, &ids)))
}

/// A connection is gone: its client leaves every group without a word.
pub(super) fn closed(broker: &Broker, connection: u64) {
    broker.producers.closed(connection);
    for group in broker.consumers.closed(connection) {
        notify(broker, &group);
    }
}

/// Forgets clients that are silent; to be called every few seconds.
pub(super) fn expire(broker: &Broker) {
    let (now, expiry) = (broker.now(), broker.options().client_expiry);
    broker.producers.expire(now, expiry);
    for group in broker.consumers.expire(now, expiry) {
        tracing::warn!(group = %group, "consumer is silent, its group is told");
        notify(broker, &group);
    }
}

fn notify(broker: &Broker, group: &str) {
    if broker.groups.get(group).is_none_or(|config| config.notify_consumer_ids_changed_enable) {
        broker.consumers.notify(group);
    }
}
