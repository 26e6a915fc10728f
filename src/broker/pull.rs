//! Pulling: codes 11 and 361, answered at once or held until a message comes.

use std::{sync::Arc, time::Duration};

use super::{Broker, Subscription, blocking::blocking, failure::Failure, perm, pull_hold::Wait, topics::unknown};
use crate::{
    env::Soundness,
    model::{QueueId, Topic},
    protocol::{
        Body, Command, ResponseCode,
        header::{PullHeader, PullReplyHeader, pull_flag},
    },
    remoting::Responder,
    store::{PullQuery, PullStatus, Pulled, QueueRange},
};

/// Value of `suggestWhichBrokerId` for "stay".
const STAY_HERE: i64 = 0;
/// Most pulls that one task answers one after the other when many are woken at once.
const WOKEN_PER_TASK: usize = 64;

/// Who forbids a pull: value of `forbiddenType`.
mod forbidden {
    pub(super) const BROKER: i32 = 1;
    pub(super) const GROUP: i32 = 2;
    pub(super) const TOPIC: i32 = 3;
    pub(super) const BROADCAST: i32 = 4;
}

/// A pull that passed all checks.
#[derive(Debug)]
pub(crate) struct Pull {
    topic: Topic,
    queue_id: QueueId,
    offset: i64,
    count_max: usize,
    bytes_max: usize,
    subscription: Arc<Subscription>,
}

/// A held pull with the right to answer it.
#[derive(Debug)]
pub(crate) struct HeldPull {
    pull: Pull,
    responder: Responder,
}

impl HeldPull {
    /// Leaves it to the end of the connection to tell the client.
    pub(super) fn leave_unanswered(self) {
        self.responder.leave_unanswered();
    }
}

/// What a pull is answered with if it is refused.
struct Refused {
    failure: Failure,
    forbidden: Option<i32>,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self { failure, forbidden: None }
    }
}

/// Answers a pull, or holds it.
pub(super) fn handle(broker: &Broker, request: &Command, responder: Responder) {
    let (pull, suspend) = match check(broker, request) {
        Ok(checked) => checked,
        Err(Refused { failure, forbidden }) => {
            let mut response = failure.into_command();
            if let Some(by) = forbidden {
                response.ext.push("forbiddenType", by);
            }
            responder.reply(response);
            return;
        }
    };
    let pulled = query(broker, &pull);
    match suspend {
        Some(suspend) if finds_nothing_yet(&pull, &pulled) => hold(broker, pull, suspend, responder),
        _ => answer(&pull, pulled, responder),
    }
}

/// Answers pulls that were held, with what there is now.
pub(super) fn answer_held(broker: &Broker, held: HeldPull) {
    if held.responder.is_connected() {
        let pulled = query(broker, &held.pull);
        answer(&held.pull, pulled, held.responder);
    }
}

/// Answers many held pulls on tasks of their own.
pub(super) fn spawn_answers(broker: &Arc<Broker>, runtime: &tokio::runtime::Handle, mut held: Vec<HeldPull>) {
    while !held.is_empty() {
        let rest = held.split_off(held.len().min(WOKEN_PER_TASK));
        let (broker, part) = (Arc::clone(broker), std::mem::replace(&mut held, rest));
        runtime.spawn(async move {
            for held in part {
                answer_held(&broker, held);
            }
        });
    }
}

fn check(broker: &Broker, request: &Command) -> Result<(Pull, Option<Duration>), Refused> {
    let header = PullHeader::decode(&request.ext).map_err(Failure::from)?;
    let options = broker.options();
    let (group, topic) = (header.consumer_group.as_str(), header.topic.as_str());
    let refuse = |remark: String, by: i32| {
        Err(Refused { failure: Failure::new(ResponseCode::NO_PERMISSION, remark), forbidden: Some(by) })
    };
    if options.permission & perm::READ == 0 {
        return refuse(
            format!("the broker[{}] pulling message is forbidden", options.advertised.ip()),
            forbidden::BROKER,
        );
    }
    let group_config = broker.groups.get_or_create(group)?;
    if !group_config.consume_enable {
        return refuse(format!("subscription group no permission, {group}"), forbidden::GROUP);
    }
    let config = broker.topics.get(topic).or_else(|| broker.topics.adopt(topic)).ok_or_else(|| unknown(topic))?;
    if config.perm & perm::READ == 0 {
        return refuse(format!("the topic[{topic}] pulling message is forbidden"), forbidden::TOPIC);
    }
    let queue_id = u32::try_from(header.queue_id).ok().filter(|_| header.queue_id < config.read_queue_nums);
    let Some(queue_id) = queue_id else {
        let remark = format!(
            "queueId[{}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{}] consumer:[{}]",
            header.queue_id,
            config.read_queue_nums,
            request.ext.get("clientId").unwrap_or_default()
        );
        return Err(Failure::new(ResponseCode::INVALID_PARAMETER, remark).into());
    };

    let subscription = if header.sys_flag & pull_flag::SUBSCRIPTION != 0 {
        carried_subscription(&header)?
    } else {
        match broker.consumers.subscription(group, topic) {
            None => {
                let remark = format!("the consumer's group info not exist, {group}");
                return Err(Failure::new(ResponseCode::SUBSCRIPTION_NOT_EXIST, remark).into());
            }
            Some(_) if !group_config.consume_broadcast_enable && broker.consumers.is_broadcasting(group) => {
                let remark = format!("the consumer group[{group}] can not consume by broadcast way");
                return refuse(remark, forbidden::BROADCAST);
            }
            Some(None) => {
                let remark = format!("the consumer's subscription not exist, group:{group}, topic:{topic}");
                return Err(Failure::new(ResponseCode::SUBSCRIPTION_NOT_EXIST, remark).into());
            }
            Some(Some(subscription)) if subscription.version < header.sub_version => {
                let remark = "the consumer's subscription not latest";
                return Err(Failure::new(ResponseCode::SUBSCRIPTION_NOT_LATEST, remark).into());
            }
            Some(Some(subscription)) => subscription,
        }
    };
    if !subscription.is_by_tag() {
        let remark =
            format!("The broker does not support consumer to filter message by {}", subscription.expression_type);
        return Err(Failure::new(ResponseCode::SYSTEM_ERROR, remark).into());
    }

    if header.sys_flag & pull_flag::COMMIT_OFFSET != 0 && header.commit_offset >= 0 {
        broker.offsets.commit(group, topic, header.queue_id, header.commit_offset);
    }
    let store_options = broker.store.options();
    let bytes_max = header.max_msg_bytes.and_then(|bytes| usize::try_from(bytes).ok()).filter(|&bytes| bytes > 0);
    let pull = Pull {
        topic: Topic::new(topic),
        queue_id: QueueId(queue_id),
        offset: header.queue_offset,
        count_max: usize::try_from(header.max_msg_nums).unwrap_or(0).clamp(1, store_options.pull_count_max.max(1)),
        bytes_max: bytes_max.unwrap_or(usize::MAX).min(store_options.pull_bytes_max),
        subscription,
    };
    let asked = u64::try_from(header.suspend_timeout_ms).ok().filter(|&ms| ms > 0).map(Duration::from_millis);
    let suspend = asked
        .filter(|_| header.sys_flag & pull_flag::SUSPEND != 0)
        .map(|asked| if options.long_polling { asked.min(options.hold_max) } else { options.short_polling });
    Ok((pull, suspend))
}

fn carried_subscription(header: &PullHeader) -> Result<Arc<Subscription>, Failure> {
    let expression = header.subscription.as_deref().unwrap_or_default();
    let topic = Topic::new(header.topic.as_str());
    let by_tag =
        header.expression_type.as_deref().is_none_or(|kind| kind.is_empty() || kind == super::subscription::TAG);
    let parsed = if by_tag {
        Subscription::parse(topic, expression, header.sub_version)
    } else {
        let kind = header.expression_type.as_deref().unwrap_or_default();
        Subscription::with_tags(topic, expression, Vec::new(), kind, header.sub_version)
    };
    parsed.map(Arc::new).map_err(|error| {
        Failure::new(
            ResponseCode::SUBSCRIPTION_PARSE_FAILED,
            format!("parse the consumer's subscription failed: {error}"),
        )
    })
}

fn query(broker: &Broker, pull: &Pull) -> Pulled {
    let query = PullQuery {
        topic: &pull.topic,
        queue_id: pull.queue_id,
        offset: pull.offset,
        count_max: pull.count_max,
        bytes_max: pull.bytes_max,
    };
    blocking(|| broker.store.pull(&query, &|tag_code| pull.subscription.wants(tag_code)))
}

/// Holds a pull that found nothing. Looks once more afterwards: a message may have come in between, too early to wake it.
fn hold(broker: &Broker, pull: Pull, suspend: Duration, responder: Responder) {
    let wait = Wait {
        topic: pull.topic.clone(),
        queue_id: pull.queue_id,
        offset: pull.offset,
        subscription: Arc::clone(&pull.subscription),
        connection: responder.connection().id(),
        deadline: broker.now() + suspend,
    };
    let (topic, queue_id, offset) = (pull.topic.clone(), pull.queue_id, pull.offset);
    let held = match broker.hold.park(wait, HeldPull { pull, responder }) {
        Err(held) => Some(held),
        Ok((id, is_earliest)) => {
            if is_earliest {
                broker.hold_timer.notify_one();
            }
            let range = broker.store.queue_range(&topic, queue_id).unwrap_or_default();
            let has_come = i64::try_from(range.max.0).is_ok_and(|max| max > offset);
            if has_come || broker.is_stopping() { broker.hold.take(id) } else { None }
        }
    };
    if let Some(held) = held {
        answer_held(broker, held);
    }
}

/// Whether the pull asks for the message that its queue will get next.
fn finds_nothing_yet(pull: &Pull, pulled: &Pulled) -> bool {
    response_code(pull, pulled) == ResponseCode::PULL_NOT_FOUND
}

fn answer(pull: &Pull, pulled: Pulled, responder: Responder) {
    if let Some(reason) = &pulled.failure {
        // The client tries again after a pause; what was found before is not passed over.
        return responder.fail(ResponseCode::SYSTEM_ERROR, format!("the next message cannot be read now: {reason}"));
    }
    let code = response_code(pull, &pulled);
    let QueueRange { min, max } = pulled.range;
    let header = PullReplyHeader {
        suggest_which_broker_id: STAY_HERE,
        next_begin_offset: pulled.next_offset,
        min_offset: i64::try_from(min.0).unwrap_or(i64::MAX),
        max_offset: i64::try_from(max.0).unwrap_or(i64::MAX),
        forbidden_type: None,
    };
    let mut response = Command::response(code).with_remark(status_name(pulled.status)).with_ext(header.encode());
    if code == ResponseCode::SUCCESS {
        let soundness = pulled.soundness;
        let guard = Arc::new(move || soundness.iter().all(Soundness::holds));
        response = response.with_body(Body::from(pulled.records).guarded(guard));
    }
    responder.reply(response);
}

/// The code of each status. An offset that has to be corrected is answered with 21, which makes clients start the queue anew.
fn response_code(pull: &Pull, pulled: &Pulled) -> i32 {
    match pulled.status {
        PullStatus::Found => ResponseCode::SUCCESS,
        PullStatus::NoMatchedMessage | PullStatus::MessageWasRemoving => ResponseCode::PULL_RETRY_IMMEDIATELY,
        PullStatus::OffsetTooSmall | PullStatus::OffsetOverflowBadly => ResponseCode::PULL_OFFSET_MOVED,
        PullStatus::OffsetOverflowOne => ResponseCode::PULL_NOT_FOUND,
        PullStatus::NoMatchedLogicQueue | PullStatus::NoMessageInQueue => {
            if pulled.next_offset == pull.offset {
                ResponseCode::PULL_NOT_FOUND
            } else {
                ResponseCode::PULL_OFFSET_MOVED
            }
        }
    }
}

fn status_name(status: PullStatus) -> &'static str {
    match status {
        PullStatus::Found => "FOUND",
        PullStatus::NoMatchedMessage => "NO_MATCHED_MESSAGE",
        PullStatus::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
        PullStatus::NoMatchedLogicQueue => "NO_MATCHED_LOGIC_QUEUE",
        PullStatus::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
        PullStatus::OffsetTooSmall => "OFFSET_TOO_SMALL",
        PullStatus::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
        PullStatus::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
    }
}
