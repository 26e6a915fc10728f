//! What tools ask: topics, groups, settings and the state of the broker.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    Broker, Subscription,
    blocking::blocking,
    clients::Member,
    failure::{Answer, Failure, read_json, success},
    topics::unknown,
};
use crate::{
    model::{QueueId, QueueOffset},
    protocol::{
        Command, ResponseCode, VERSION,
        body::{
            CheckClientRequest, ConsumeFromWhere, ConsumeType, DataVersion, DelayOffsets, KvTable, MessageModel,
            MessageQueue, SubscriptionData, SubscriptionGroupConfig, TopicConfig, TopicList,
        },
        header::{ConsumerGroupHeader, CreateTopicHeader, DeleteGroupHeader, GroupHeader, TopicHeader},
        json::{self, Dialect, ObjectKey},
    },
    store::{FigureValue, QueueRange},
};

/// Name before the level in the figures of the delay levels: `delivered,max`.
const LEVEL_FIGURE: &str = "scheduleMessageOffset_";
/// How versions are shown to tools.
const VERSION_NAME: &str = "V5_3_3";

/// Code 17: create or change a topic.
pub(super) fn update_topic(broker: &Broker, request: &Command) -> Answer {
    let header = CreateTopicHeader::decode(&request.ext)?;
    let before = broker.topics.get(&header.topic).map(|config| config.attributes.clone()).unwrap_or_default();
    let config = TopicConfig {
        attributes: change_attributes(before, header.attributes.as_deref().unwrap_or_default())?,
        order: header.order.unwrap_or(false),
        perm: header.perm,
        read_queue_nums: header.read_queue_nums,
        topic_filter_type: header.topic_filter_type.into(),
        topic_name: header.topic.into(),
        topic_sys_flag: header.topic_sys_flag.unwrap_or(0),
        write_queue_nums: header.write_queue_nums,
        ..TopicConfig::default()
    };
    blocking(|| broker.topics.update(config))?;
    Ok(success())
}

/// `+key=value,-key`: adds or removes attributes.
fn change_attributes(
    mut attributes: BTreeMap<String, String>,
    text: &str,
) -> Result<BTreeMap<String, String>, Failure> {
    for change in text.split(',').map(str::trim).filter(|change| !change.is_empty()) {
        let wrong =
            || Failure::new(ResponseCode::SYSTEM_ERROR, format!("attribute {change:?} is neither +key=value nor -key"));
        if let Some(added) = change.strip_prefix('+') {
            let (key, value) = added.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(wrong)?;
            attributes.insert(key.into(), value.into());
        } else {
            attributes.remove(change.strip_prefix('-').filter(|key| !key.is_empty()).ok_or_else(wrong)?);
        }
    }
    Ok(attributes)
}

/// Code 215: delete a topic.
pub(super) fn delete_topic(broker: &Broker, request: &Command) -> Answer {
    let topic = TopicHeader::decode(&request.ext)?.topic;
    blocking(|| broker.topics.delete(&topic))?;
    broker.offsets.remove_topic(&topic);
    // Else a stop now would bring them back, and a group would begin behind what is stored for the next topic of this name.
    blocking(|| broker.offsets.save()).map_err(|error| {
        Failure::new(ResponseCode::SYSTEM_ERROR, format!("topic deleted, but not its consumer offsets: {error}"))
    })?;
    for held in broker.hold.topic_gone(&topic) {
        super::pull::answer_held(broker, held);
    }
    Ok(success())
}

/// Code 21: all topics.
pub(super) fn all_topics(broker: &Broker) -> Answer {
    Ok(body(&broker.topics.all()))
}

/// Code 351: one topic.
pub(super) fn topic(broker: &Broker, request: &Command) -> Answer {
    let header = TopicHeader::decode(&request.ext)?;
    let config = broker.topics.get(&header.topic).ok_or_else(|| unknown(&header.topic))?;
    Ok(body(&*config))
}

/// Code 305: the topics that belong to the broker.
pub(super) fn system_topics(broker: &Broker) -> Answer {
    Ok(body(&TopicList { broker_addr: None, topic_list: broker.topics.system_topics() }))
}

/// Code 202: the offsets of each queue of a topic.
pub(super) fn topic_stats(broker: &Broker, request: &Command) -> Answer {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct TopicStats {
        offset_table: BTreeMap<ObjectKey<MessageQueue>, TopicOffset>,
        topic_put_tps: f64,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct TopicOffset {
        last_update_timestamp: i64,
        max_offset: i64,
        min_offset: i64,
    }
    let topic = TopicHeader::decode(&request.ext)?.topic;
    let config = broker.topics.get(&topic).ok_or_else(|| unknown(&topic))?;
    let queues = 0..config.read_queue_nums.max(config.write_queue_nums);
    let offset_table = queues.map(|queue_id| {
        let range = queue_range(broker, &topic, queue_id);
        let offset = TopicOffset {
            last_update_timestamp: stored_before(broker, &topic, queue_id, signed(range.max.0)),
            max_offset: signed(range.max.0),
            min_offset: signed(range.min.0),
        };
        (ObjectKey(queue_name(broker, &topic, queue_id)), offset)
    });
    Ok(body(&TopicStats { offset_table: blocking(|| offset_table.collect()), topic_put_tps: 0.0 }))
}

/// Code 300: the groups that read a topic or have read it.
pub(super) fn groups_of_topic(broker: &Broker, request: &Command) -> Answer {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct GroupList {
        group_list: Vec<String>,
    }
    let topic = TopicHeader::decode(&request.ext)?.topic;
    let mut groups = broker.offsets.groups_of(&topic);
    groups.extend(broker.consumers.groups_of(&topic).iter().map(|group| group.as_ref().to_owned()));
    Ok(body(&GroupList { group_list: groups.into_iter().collect() }))
}

/// Code 200: create or change a group.
pub(super) fn update_group(broker: &Broker, request: &Command) -> Answer {
    let config: SubscriptionGroupConfig = read_json(request)?;
    blocking(|| broker.groups.update(config))?;
    Ok(success())
}

/// Code 201: all groups.
pub(super) fn all_groups(broker: &Broker) -> Answer {
    Ok(body(&broker.groups.all()))
}

/// Code 352: one group.
pub(super) fn group(broker: &Broker, request: &Command) -> Answer {
    let header = GroupHeader::decode(&request.ext)?;
    Ok(body(&*broker.groups.get_or_create(&header.group)?))
}

/// Code 207: delete a group, and its offsets if asked for.
pub(super) fn delete_group(broker: &Broker, request: &Command) -> Answer {
    let header = DeleteGroupHeader::decode(&request.ext)?;
    blocking(|| broker.groups.delete(&header.group_name))?;
    if header.clean_offset == Some(true) || header.remove_offset == Some(true) {
        broker.offsets.remove_group(&header.group_name);
    }
    Ok(success())
}

/// Code 203: who is connected as a consumer of a group.
pub(super) fn consumer_connections(broker: &Broker, request: &Command) -> Answer {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ConsumerConnection {
        connection_set: Vec<Connected>,
        consume_from_where: ConsumeFromWhere,
        consume_type: ConsumeType,
        message_model: MessageModel,
        subscription_table: BTreeMap<String, SubscriptionData>,
    }
    let header = ConsumerGroupHeader::decode(&request.ext)?;
    let Some(group) = broker.consumers.group(&header.consumer_group) else {
        let remark = format!("the consumer group[{}] not online", header.consumer_group);
        return Err(Failure::new(ResponseCode::CONSUMER_NOT_ONLINE, remark));
    };
    let subscriptions =
        group.subscriptions.iter().map(|subscription| (subscription.topic.as_str().to_owned(), data(subscription)));
    Ok(body(&ConsumerConnection {
        connection_set: group.members.iter().map(connected).collect(),
        consume_from_where: group.kind.consume_from_where,
        consume_type: group.kind.consume_type,
        message_model: group.kind.message_model,
        subscription_table: subscriptions.collect(),
    }))
}

/// Code 204: who is connected as a producer of a group.
pub(super) fn producer_connections(broker: &Broker, request: &Command) -> Answer {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ProducerConnection {
        connection_set: Vec<Connected>,
    }
    let group = request.ext.required("producerGroup")?;
    let members = broker.producers.members(group);
    if members.is_empty() {
        let remark = format!("the producer group[{group}] not exist");
        return Err(Failure::new(ResponseCode::SYSTEM_ERROR, remark));
    }
    Ok(body(&ProducerConnection { connection_set: members.iter().map(connected).collect() }))
}

/// Code 328: all connected producers.
pub(super) fn all_producers(broker: &Broker) -> Answer {
    #[derive(Serialize)]
    struct ProducerTable {
        data: BTreeMap<String, Vec<Producer>>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Producer {
        client_id: String,
        language: &'static str,
        last_update_timestamp: i64,
        #[serde(rename = "remoteIP")]
        remote_ip: String,
        version: i32,
    }
    let (now, wall) = (broker.now(), broker.store.env().clock.wall());
    let producer = |member: &Member| Producer {
        client_id: member.client.client_id.as_ref().to_owned(),
        language: member.client.language.name(),
        last_update_timestamp: wall.0 - signed(now.saturating_sub(member.seen_at).as_millis()),
        remote_ip: member.client.connection.peer().ip().to_string(),
        version: member.client.version,
    };
    let groups = broker.producers.groups();
    let data = groups
        .into_iter()
        .map(|group| (group.as_ref().to_owned(), broker.producers.members(&group).iter().map(producer).collect()));
    Ok(body(&ProducerTable { data: data.collect() }))
}

/// Code 208: how far a group is behind in each queue.
pub(super) fn consume_stats(broker: &Broker, request: &Command) -> Answer {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ConsumeStats {
        consume_tps: f64,
        offset_table: BTreeMap<ObjectKey<MessageQueue>, ConsumeOffset>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ConsumeOffset {
        broker_offset: i64,
        consumer_offset: i64,
        last_timestamp: i64,
        pull_offset: i64,
    }
    let group = request.ext.required("consumerGroup")?;
    let asked = request.ext.get("topic").filter(|topic| !topic.is_empty());
    let mut topics = broker.offsets.topics_of(group);
    if let Some(asked) = asked {
        topics = [asked.into()].into();
    }
    // A topic that the group does not read any more is not shown.
    let connected = broker.consumers.group(group);
    topics.retain(|topic| {
        connected.as_ref().is_none_or(|group| group.subscriptions.iter().any(|known| known.topic == *topic))
    });
    let mut offset_table = BTreeMap::new();
    for topic in topics {
        let Some(config) = broker.topics.get(&topic) else {
            continue;
        };
        for queue_id in 0..config.read_queue_nums {
            let broker_offset = signed(queue_range(broker, &topic, queue_id).max.0);
            let consumer_offset = broker.offsets.get(group, &topic, queue_id).unwrap_or(0).max(0);
            let offset = ConsumeOffset {
                broker_offset,
                consumer_offset,
                last_timestamp: stored_before(broker, &topic, queue_id, consumer_offset),
                pull_offset: consumer_offset,
            };
            offset_table.insert(ObjectKey(queue_name(broker, &topic, queue_id)), offset);
        }
    }
    Ok(body(&ConsumeStats { consume_tps: 0.0, offset_table }))
}

/// Code 43: all consumer offsets.
pub(super) fn all_consumer_offsets(broker: &Broker) -> Answer {
    Ok(body(&broker.offsets.all()))
}

/// Code 45: how far each delay level has been delivered.
pub(super) fn delay_offsets(broker: &Broker) -> Answer {
    let mut offset_table = BTreeMap::new();
    for figure in broker.store.figures() {
        let level = figure.name.strip_prefix(LEVEL_FIGURE).and_then(|level| level.parse().ok());
        let FigureValue::Text(text) = figure.value else {
            continue;
        };
        let delivered = text.split(',').next().and_then(|delivered| delivered.parse().ok());
        if let (Some(level), Some(delivered)) = (level, delivered) {
            offset_table.insert(level, delivered);
        }
    }
    Ok(body(&DelayOffsets { data_version: DataVersion::default(), offset_table }))
}

/// Code 46: whether a subscription that is not by tags can be served.
pub(super) fn check_client(request: &Command) -> Answer {
    let asked: CheckClientRequest = read_json(request)?;
    let kind = asked.subscription_data.expression_type;
    if kind.is_empty() || kind == super::subscription::TAG {
        return Ok(success());
    }
    let remark = format!("The broker does not support consumer to filter message by {kind}");
    Err(Failure::new(ResponseCode::SYSTEM_ERROR, remark))
}

/// Code 28: figures about the broker, all as text.
pub(super) fn runtime_info(broker: &Broker) -> Answer {
    let store = &broker.store;
    let env = store.env();
    let (oldest, end) = store.log_range();
    let wall = env.clock.wall();
    let uptime = broker.now().saturating_sub(broker.started_at);
    let mut table = BTreeMap::new();
    let mut put = |key: &str, value: String| {
        table.insert(key.to_owned(), value);
    };
    put("brokerVersionDesc", VERSION_NAME.into());
    put("brokerVersion", VERSION.to_string());
    put("brokerActive", "true".into());
    put("bootTimestamp", (wall.0 - signed(uptime.as_millis())).to_string());
    put("runtime", format!("[ {} seconds ]", uptime.as_secs()));
    put("startAcceptSendRequestTimeStamp", "0".into());
    put("commitLogMinOffset", oldest.0.to_string());
    put("commitLogMaxOffset", end.0.to_string());
    put("dispatchBehindBytes", store.invisible_bytes().to_string());
    put("remainHowManyDataToFlush", format!("{} B", end.since(store.durable())));
    put("remainHowManyDataToCommit", "0 B".into());
    put("remainTransientStoreBufferNumbs", "0".into());
    put("dispatchMaxBuffer", "0".into());
    put("pageCacheLockTimeMills", "0".into());
    let earliest = blocking(|| store.record_at(oldest)).map(|record| record.view().stored_at().0);
    put("earliestMessageTimeStamp", earliest.unwrap_or(-1).to_string());
    if let Ok(space) = blocking(|| env.directory.space()) {
        #[allow(clippy::cast_precision_loss, reason = "percent of a disk")]
        let ratio = space.used_percent() as f64 / 100.0;
        put("commitLogDiskRatio", ratio.to_string());
        put("consumeQueueDiskRatio", ratio.to_string());
        put("commitLogDirCapacity", format!("Total : {} B, Free : {} B.", space.total, space.free));
    }
    for key in ["putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"] {
        put(key, "0.0 0.0 0.0".into());
    }
    for kind in ["msgPutTotal", "msgGetTotal"] {
        for when in ["YesterdayMorning", "TodayMorning", "TodayNow"] {
            put(&format!("{kind}{when}"), "0".into());
        }
    }
    for pool in ["send", "pull", "litePull", "query", "ack"] {
        put(&format!("{pool}ThreadPoolQueueSize"), "0".into());
        put(&format!("{pool}ThreadPoolQueueCapacity"), "0".into());
        put(&format!("{pool}ThreadPoolQueueHeadWaitTimeMills"), "0".into());
    }
    for key in ["timerReadBehind", "timerOffsetBehind", "timerCongestNum"] {
        put(key, "0".into());
    }
    put("timerEnqueueTps", "0.0".into());
    put("timerDequeueTps", "0.0".into());
    put("heldPulls", broker.hold.len().to_string());
    for (name, value) in broker.remoting.get().map(|figures| figures.named()).into_iter().flatten() {
        put(name, value.to_string());
    }
    let unsaved = broker.topics.save_failures() + broker.groups.save_failures() + broker.offsets.save_failures();
    put("stateFileFailures", unsaved.to_string());
    for figure in store.figures() {
        let labels: Vec<_> = figure.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let key = if labels.is_empty() { figure.name } else { format!("{}{{{}}}", figure.name, labels.join(",")) };
        put(
            &key,
            match figure.value {
                FigureValue::Number(number) => number.to_string(),
                FigureValue::Text(text) => text,
            },
        );
    }
    Ok(body(&KvTable { table }))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Connected {
    client_addr: String,
    client_id: String,
    language: &'static str,
    version: i32,
}

fn connected(member: &Member) -> Connected {
    let client = &member.client;
    Connected {
        client_addr: client.connection.peer().to_string(),
        client_id: client.client_id.as_ref().to_owned(),
        language: client.language.name(),
        version: client.version,
    }
}

fn data(subscription: &Subscription) -> SubscriptionData {
    SubscriptionData {
        class_filter_mode: false,
        code_set: subscription.code_set().filter_map(|code| i32::try_from(code).ok()).collect(),
        expression_type: subscription.expression_type.clone(),
        sub_string: subscription.expression.clone(),
        sub_version: subscription.version,
        tags_set: subscription.tags.clone(),
        topic: subscription.topic.as_str().into(),
    }
}

fn queue_name(broker: &Broker, topic: &str, queue_id: i32) -> MessageQueue {
    MessageQueue { broker_name: broker.options().name.clone(), queue_id, topic: topic.into() }
}

fn queue_range(broker: &Broker, topic: &str, queue_id: i32) -> QueueRange {
    let queue_id = u32::try_from(queue_id).ok().map(QueueId);
    queue_id.and_then(|queue_id| broker.store.queue_range(topic, queue_id)).unwrap_or_default()
}

/// Store time of the message before a queue offset; 0 if there is none.
fn stored_before(broker: &Broker, topic: &str, queue_id: i32, queue_offset: i64) -> i64 {
    let queue_id = u32::try_from(queue_id).ok().map(QueueId);
    let before = u64::try_from(queue_offset).ok().and_then(|offset| offset.checked_sub(1)).map(QueueOffset);
    let (Some(queue_id), Some(before)) = (queue_id, before) else {
        return 0;
    };
    broker.store.stored_at(topic, queue_id, before).map_or(0, |time| time.0)
}

fn body<T: Serialize>(value: &T) -> Command {
    success().with_body(json::to_vec(Dialect::Fastjson, value))
}

fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
