//! `latermq consume`: a member of a consumer group that prints what it gets.
//!
//! It shares the queues of a topic with the other members of its group as RocketMQ's own clients do (averagely, both sides sorted), so it
//! may join a group of Java consumers. It pulls each of its queues with a long poll and commits what was printed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use clap::Args;
use serde_json::json;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::{Instant, sleep},
};
use tracing::warn;

use super::{
    cluster::{Cluster, ClusterArgs, block_on, body, master_of, refusal},
    failure::Failure,
    levels::LevelWords,
    log,
    print::{self, Output, Paint},
    send::now_ms,
};
use crate::{
    model::{SysFlag, java_hash, names},
    protocol::{
        Command, RequestCode, ResponseCode,
        body::{
            ConsumeFromWhere, ConsumeType, ConsumerData, ConsumerIds, HeartbeatData, MessageModel, SubscriptionData,
        },
        header::{
            ConsumerGroupHeader, OffsetReplyHeader, PullHeader, PullReplyHeader, QueryConsumerOffsetHeader,
            QueueHeader, SearchOffsetHeader, UnregisterClientHeader, UpdateConsumerOffsetHeader, pull_flag,
        },
        json,
    },
    record::{Record, Records},
    remoting::{Connection, Handler, Responder, not_supported},
};

/// How long a broker may hold a pull.
const HOLD: Duration = Duration::from_secs(15);
/// How much longer than that an answer is waited for.
const HOLD_GRACE: Duration = Duration::from_secs(10);
/// Pause between two heartbeats and looks at who else is in the group; RocketMQ's clients take 20 s for the latter.
const REBALANCE_INTERVAL: Duration = Duration::from_secs(20);
/// The same while the topic is not there yet.
const WAIT_FOR_TOPIC: Duration = Duration::from_secs(1);
/// Pause between two commits of offsets, as RocketMQ's clients have it.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a pull that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Most messages of one pull.
const PULL_COUNT: i32 = 32;
/// Messages that may wait to be printed; pulls wait when there are more.
const WAITING_MAX: usize = 256;
/// Longest body that is inflated.
const INFLATED_BYTES_MAX: u64 = 64 << 20;
/// Bits of the system flag that say how a body is compressed: 0 and 3 are zlib.
const COMPRESSION_TYPE: i32 = 0x700;
/// zlib, as those bits have it.
const COMPRESSION_ZLIB: i32 = 0x300;
/// Permission bit of a queue that may be read.
const READ: i32 = 4;

/// Receive messages as a member of a consumer group, and print each with its lateness
///
/// The lateness of a delayed message is the time of its arrival here minus the time at which it was born plus the delay of its level.
/// The time at which the broker stored it, from which the broker counts, is not known to a consumer: on two machines whose clocks differ,
/// and for the time it took to send, the number is off by as much. A message that is retried has no lateness.
///
/// Stops with Ctrl-C, after --count messages, or when nothing came for --idle seconds. What was printed is committed.
#[derive(Debug, Clone, Args)]
pub(super) struct ConsumeArgs {
    /// Topic to read; it is waited for if it does not exist yet
    topic: String,
    /// Consumer group: its members share the messages, and it goes on where it stopped
    #[arg(short, long, default_value = "latermq_consume")]
    group: String,
    /// Only messages with this tag; several are separated by ||
    #[arg(short, long, default_value = "*")]
    tag: String,
    /// Where a group that is new begins: first, last, or a time in milliseconds since the epoch
    #[arg(long, default_value = "first", value_parser = begin)]
    from: Begin,
    /// Stop after so many messages
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop when nothing came for so many seconds; with --count this is a failure
    #[arg(short, long, value_name = "SECONDS")]
    idle: Option<u64>,
    /// Longest body that is printed, in characters
    #[arg(long, value_name = "CHARACTERS", default_value_t = 200)]
    body_max: usize,
    /// How to print; json is one object a line, with every property
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Where a group that is new begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    First,
    Last,
    At(i64),
}

/// A queue of the topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Queue {
    broker: String,
    queue_id: i32,
}

/// A message that was received.
pub(super) struct Delivery {
    queue: Queue,
    pub(super) record: Record,
    pub(super) received_at: i64,
}

/// A member of a group.
pub(super) struct Consumer {
    cluster: Arc<Cluster>,
    topic: String,
    group: String,
    client_id: String,
    subscription: SubscriptionData,
    from: Begin,
    members_changed: Arc<Notify>,
    /// Address of each broker that has the topic.
    brokers: BTreeMap<String, String>,
    queues: BTreeMap<Queue, Assigned>,
    deliveries: (mpsc::Sender<Delivery>, mpsc::Receiver<Delivery>),
    has_joined: bool,
    commit_at: Instant,
    rebalance_at: Instant,
}

/// A queue that is ours now.
struct Assigned {
    pull: JoinHandle<()>,
    /// Behind the last message that was printed.
    printed: Option<i64>,
    committed: Option<i64>,
}

/// Told by a broker that members joined or left.
struct MembersChanged(Arc<Notify>);

impl Handler for MembersChanged {
    fn handle(&self, _connection: &Arc<Connection>, request: Command, responder: Responder) {
        if request.code == RequestCode::NOTIFY_CONSUMER_IDS_CHANGED {
            self.0.notify_one();
        }
        responder.reply(not_supported(&request));
    }
}

pub(super) fn run(args: &ConsumeArgs) -> Result<(), Failure> {
    log::start(false, "warn");
    block_on(consume(args))
}

async fn consume(args: &ConsumeArgs) -> Result<(), Failure> {
    let mut consumer = Consumer::new(&args.cluster, &args.topic, &args.group, &args.tag, args.from)?;
    let mut levels: HashMap<String, LevelWords> = HashMap::new();
    let (mut received, mut last_at) = (0, Instant::now());
    let idle = args.idle.map(Duration::from_secs);
    let ended = loop {
        let waits_until = idle.map(|idle| last_at + idle);
        let delivery = tokio::select! {
            delivery = consumer.next() => delivery?,
            () = sleep_until(waits_until) => break match args.count {
                Some(count) => Err(Failure::failed(format!("only {received} of {count} messages came"))),
                None => Ok(()),
            },
            signal = tokio::signal::ctrl_c() => break signal.map_err(Failure::from),
        };
        last_at = Instant::now();
        let broker = &delivery.queue.broker;
        if delivery.record.view().properties().get(names::DELAY).is_some() && !levels.contains_key(broker) {
            let config = match consumer.brokers.get(broker) {
                Some(address) => consumer.cluster.broker_config(address).await.unwrap_or_default(),
                None => HashMap::new(),
            };
            levels.insert(broker.clone(), LevelWords::of(&config));
        }
        if let Err(error) = print(args, &delivery, levels.get(broker)) {
            // Whoever reads our output has seen enough: no failure, and this message was not seen.
            break if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error.into()) };
        }
        consumer.printed(&delivery);
        received += 1;
        if args.count.is_some_and(|count| received >= count) {
            break Ok(());
        }
    };
    consumer.leave().await;
    ended
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

impl Consumer {
    pub(super) fn new(args: &ClusterArgs, topic: &str, group: &str, tags: &str, from: Begin) -> Result<Self, Failure> {
        let members_changed = Arc::new(Notify::new());
        let cluster = Cluster::with_handler(args, Arc::new(MembersChanged(Arc::clone(&members_changed))))?;
        Ok(Self {
            cluster: Arc::new(cluster),
            topic: topic.to_owned(),
            group: group.to_owned(),
            client_id: format!("latermq@{}#{:08x}", std::process::id(), fastrand::u32(..)),
            subscription: subscription(topic, tags),
            from,
            members_changed,
            brokers: BTreeMap::new(),
            queues: BTreeMap::new(),
            deliveries: mpsc::channel(WAITING_MAX),
            has_joined: false,
            commit_at: Instant::now() + COMMIT_INTERVAL,
            rebalance_at: Instant::now(),
        })
    }

    /// The next message. Keeps up the membership meanwhile; nothing is lost when it is dropped half-way.
    ///
    /// # Errors
    /// The group cannot be joined. Once it was, whatever fails is tried again.
    pub(super) async fn next(&mut self) -> Result<Delivery, Failure> {
        loop {
            let members_changed = Arc::clone(&self.members_changed);
            tokio::select! {
                biased;
                () = sleep_until(Some(self.commit_at)) => {
                    self.commit_at = Instant::now() + COMMIT_INTERVAL;
                    self.commit();
                }
                () = sleep_until(Some(self.rebalance_at)) => self.keep_up().await?,
                () = members_changed.notified() => self.keep_up().await?,
                delivery = self.deliveries.1.recv() => {
                    let delivery = delivery.expect("a sender lives in self");
                    // What a queue still held when it went to another member is that member's business.
                    if self.queues.contains_key(&delivery.queue) && self.wants(&delivery.record) {
                        return Ok(delivery);
                    }
                    self.printed(&delivery);
                }
            }
        }
    }

    async fn keep_up(&mut self) -> Result<(), Failure> {
        // Set first: a call that is dropped half-way is made again then.
        self.rebalance_at = Instant::now() + RETRY_PAUSE;
        match self.rebalance().await {
            Ok(pause) => self.rebalance_at = Instant::now() + pause,
            Err(failure) if self.has_joined => warn!(error = %failure, "cannot reach the group, trying again"),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Says that a message was dealt with.
    pub(super) fn printed(&mut self, delivery: &Delivery) {
        if let Some(assigned) = self.queues.get_mut(&delivery.queue) {
            assigned.printed = Some(offset(&delivery.record) + 1);
        }
    }

    /// Commits and leaves the group.
    pub(super) async fn leave(mut self) {
        self.commit();
        for (_, assigned) in std::mem::take(&mut self.queues) {
            assigned.pull.abort();
        }
        let header = UnregisterClientHeader {
            client_id: self.client_id.as_str().into(),
            producer_group: None,
            consumer_group: Some(self.group.as_str().into()),
        };
        for address in self.brokers.values() {
            // Requests of one connection are served in order: the commits are in when this is answered.
            let _ = self
                .cluster
                .ask(address, Command::request(RequestCode::UNREGISTER_CLIENT).with_ext(header.encode()))
                .await;
        }
    }

    /// Tags whose hashes collide with ours come too.
    fn wants(&self, record: &Record) -> bool {
        let tags = &self.subscription.tags_set;
        let tag = record.view().properties().get(names::TAGS).unwrap_or_default();
        tags.is_empty() || tags.iter().any(|wanted| wanted == tag)
    }

    /// Sends a heartbeat, finds out which queues are ours, and pulls these. Gives the time until this should be done again.
    async fn rebalance(&mut self) -> Result<Duration, Failure> {
        let Some(route) = self.cluster.route(&self.topic).await? else {
            return Ok(WAIT_FOR_TOPIC);
        };
        let mut all = BTreeSet::new();
        let mut brokers = BTreeMap::new();
        for data in route.queue_datas.iter().filter(|data| data.perm & READ != 0) {
            if let Some(address) = master_of(&route, &data.broker_name) {
                brokers.insert(data.broker_name.clone(), address.to_owned());
                all.extend(
                    (0..data.read_queue_nums).map(|queue_id| Queue { broker: data.broker_name.clone(), queue_id }),
                );
            }
        }
        self.brokers = brokers;
        let heartbeat = Bytes::from(json::to_vec(json::Dialect::Standard, &self.heartbeat()));
        for address in self.brokers.values() {
            self.cluster.call(address, Command::request(RequestCode::HEART_BEAT).with_body(heartbeat.clone())).await?;
        }
        let Some(any) = self.brokers.values().next() else { return Ok(WAIT_FOR_TOPIC) };
        let header = ConsumerGroupHeader { consumer_group: self.group.as_str().into() };
        let request = Command::request(RequestCode::GET_CONSUMER_LIST_BY_GROUP).with_ext(header.encode());
        let mut members = body::<ConsumerIds>(any, &self.cluster.call(any, request).await?)?.consumer_id_list;
        members.sort_unstable();
        let mine = share(&members, &self.client_id, &all.into_iter().collect::<Vec<_>>());

        self.commit();
        self.queues.retain(|queue, assigned| {
            let stays = mine.contains(queue) && !assigned.pull.is_finished();
            if !stays {
                assigned.pull.abort();
            }
            stays
        });
        for queue in mine {
            if !self.queues.contains_key(&queue) {
                let pull = self.pull_task(&queue);
                self.queues.insert(queue, Assigned { pull, printed: None, committed: None });
            }
        }
        self.has_joined = true;
        Ok(REBALANCE_INTERVAL)
    }

    fn heartbeat(&self) -> HeartbeatData {
        HeartbeatData {
            client_id: self.client_id.clone(),
            consumer_data_set: vec![ConsumerData {
                consume_from_where: match self.from {
                    Begin::First => ConsumeFromWhere::ConsumeFromFirstOffset,
                    Begin::Last => ConsumeFromWhere::ConsumeFromLastOffset,
                    Begin::At(_) => ConsumeFromWhere::ConsumeFromTimestamp,
                },
                consume_type: ConsumeType::ConsumePassively,
                group_name: self.group.clone(),
                message_model: MessageModel::Clustering,
                subscription_data_set: vec![self.subscription.clone()],
                unit_mode: false,
            }],
            ..HeartbeatData::default()
        }
    }

    fn commit(&mut self) {
        for (queue, assigned) in &mut self.queues {
            let Some(offset) = assigned.printed.filter(|offset| assigned.committed != Some(*offset)) else { continue };
            let Some(address) = self.brokers.get(&queue.broker).cloned() else { continue };
            let header = UpdateConsumerOffsetHeader {
                consumer_group: self.group.as_str().into(),
                topic: self.topic.as_str().into(),
                queue_id: queue.queue_id,
                commit_offset: offset,
            };
            let request = Command::request(RequestCode::UPDATE_CONSUMER_OFFSET).with_ext(header.encode()).with_oneway();
            if self.cluster.oneway(&address, request) {
                assigned.committed = Some(offset);
            }
        }
    }

    fn pull_task(&self, queue: &Queue) -> JoinHandle<()> {
        let puller = Puller {
            cluster: Arc::clone(&self.cluster),
            address: self.brokers.get(&queue.broker).cloned().unwrap_or_default(),
            topic: self.topic.clone(),
            group: self.group.clone(),
            subscription: self.subscription.clone(),
            queue: queue.clone(),
            from: self.from,
            deliveries: self.deliveries.0.clone(),
        };
        tokio::spawn(async move {
            let mut warned = false;
            let mut offset = None;
            loop {
                if let Err(failure) = puller.pull(&mut offset).await {
                    if !warned {
                        warn!(queue_id = puller.queue.queue_id, error = %failure, "pull failed, trying again");
                    }
                    warned = true;
                    sleep(RETRY_PAUSE).await;
                } else {
                    warned = false;
                }
            }
        })
    }
}

/// Pulls one queue.
struct Puller {
    cluster: Arc<Cluster>,
    address: String,
    topic: String,
    group: String,
    subscription: SubscriptionData,
    queue: Queue,
    from: Begin,
    deliveries: mpsc::Sender<Delivery>,
}

impl Puller {
    /// Pulls once; the offset moves on.
    async fn pull(&self, offset: &mut Option<i64>) -> Result<(), Failure> {
        let from = match *offset {
            Some(from) => from,
            None => self.first_offset().await?,
        };
        *offset = Some(from);
        let header = PullHeader {
            consumer_group: self.group.as_str().into(),
            topic: self.topic.as_str().into(),
            queue_id: self.queue.queue_id,
            queue_offset: from,
            max_msg_nums: PULL_COUNT,
            sys_flag: pull_flag::SUSPEND | pull_flag::SUBSCRIPTION,
            commit_offset: 0,
            suspend_timeout_ms: i64::try_from(HOLD.as_millis()).unwrap_or(0),
            subscription: Some(self.subscription.sub_string.as_str().into()),
            sub_version: self.subscription.sub_version,
            expression_type: Some("TAG".into()),
            max_msg_bytes: None,
            broker_name: Some(self.queue.broker.as_str().into()),
        };
        let request = Command::request(RequestCode::PULL_MESSAGE).with_ext(header.encode());
        let answer = self.cluster.ask_within(&self.address, request, HOLD + HOLD_GRACE).await?;
        let received_at = now_ms();
        match answer.code {
            ResponseCode::SUCCESS => {
                for record in Records::new(answer.body.to_bytes()) {
                    let record = record.map_err(|error| {
                        Failure::because(format_args!("{} sent a message that cannot be read", self.address), &error)
                    })?;
                    let delivery = Delivery { queue: self.queue.clone(), record, received_at };
                    if self.deliveries.send(delivery).await.is_err() {
                        return Ok(());
                    }
                }
            }
            ResponseCode::PULL_NOT_FOUND | ResponseCode::PULL_RETRY_IMMEDIATELY | ResponseCode::PULL_OFFSET_MOVED => {}
            _ => return Err(refusal(&self.address, RequestCode::PULL_MESSAGE, &answer)),
        }
        *offset = Some(self.header(PullReplyHeader::decode(&answer.ext))?.next_begin_offset);
        Ok(())
    }

    /// Where the group stopped, or where a new one begins.
    async fn first_offset(&self) -> Result<i64, Failure> {
        let (topic, queue_id) = (self.topic.as_str().into(), self.queue.queue_id);
        let header = QueryConsumerOffsetHeader {
            consumer_group: self.group.as_str().into(),
            topic,
            queue_id,
            set_zero_if_not_found: Some(false),
        };
        let request = Command::request(RequestCode::QUERY_CONSUMER_OFFSET).with_ext(header.encode());
        let answer = self.cluster.ask(&self.address, request).await?;
        match answer.code {
            ResponseCode::SUCCESS => return Ok(self.header(OffsetReplyHeader::decode(&answer.ext))?.offset),
            ResponseCode::QUERY_NOT_FOUND => {}
            _ => return Err(refusal(&self.address, RequestCode::QUERY_CONSUMER_OFFSET, &answer)),
        }
        let queue = QueueHeader { topic: self.topic.as_str().into(), queue_id, committed: None };
        let request = match self.from {
            Begin::First => Command::request(RequestCode::GET_MIN_OFFSET).with_ext(queue.encode()),
            Begin::Last => Command::request(RequestCode::GET_MAX_OFFSET).with_ext(queue.encode()),
            Begin::At(timestamp) => {
                let header =
                    SearchOffsetHeader { topic: self.topic.as_str().into(), queue_id, timestamp, boundary_type: None };
                Command::request(RequestCode::SEARCH_OFFSET_BY_TIMESTAMP).with_ext(header.encode())
            }
        };
        let answer = self.cluster.call(&self.address, request).await?;
        Ok(self.header(OffsetReplyHeader::decode(&answer.ext))?.offset)
    }

    fn header<T>(&self, header: Result<T, crate::protocol::HeaderError>) -> Result<T, Failure> {
        header.map_err(|error| {
            Failure::because(format_args!("{} sent an answer that cannot be read", self.address), &error)
        })
    }
}

fn offset(record: &Record) -> i64 {
    i64::try_from(record.view().queue_offset().0).unwrap_or(i64::MAX)
}

fn subscription(topic: &str, expression: &str) -> SubscriptionData {
    let tags: Vec<String> = match expression.trim() {
        "" | "*" => Vec::new(),
        tags => tags.split("||").map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).collect(),
    };
    SubscriptionData {
        code_set: tags.iter().map(|tag| java_hash(tag)).collect(),
        expression_type: "TAG".to_owned(),
        sub_string: if tags.is_empty() { "*".to_owned() } else { tags.join(" || ") },
        sub_version: now_ms(),
        tags_set: tags,
        topic: topic.to_owned(),
        ..SubscriptionData::default()
    }
}

/// The queues of one member: as many as the others have, one more for the first ones; each has neighbours.
///
/// Source: Apache RocketMQ, `AllocateMessageQueueAveragely`.
fn share(members: &[String], me: &str, queues: &[Queue]) -> BTreeSet<Queue> {
    let Some(index) = members.iter().position(|member| member == me) else { return BTreeSet::new() };
    let (each, left) = (queues.len() / members.len(), queues.len() % members.len());
    let begin = index * each + index.min(left);
    let count = each + usize::from(index < left);
    queues[begin..begin + count].iter().cloned().collect()
}

/// How much later than its level says a message came; `None` if it was not delayed, or is a retry.
pub(super) fn lateness_ms(delivery: &Delivery, levels: Option<&LevelWords>) -> Option<(usize, String, i64)> {
    let view = delivery.record.view();
    let level: usize = view.properties().get(names::DELAY)?.parse().ok()?;
    let (word, delay) = levels?.get(level)?;
    if view.reconsume_times() > 0 || view.properties().get(names::RETRY_TOPIC).is_some() {
        return None;
    }
    let due_at = view.born_at().plus(delay).0;
    Some((level, word.to_owned(), delivery.received_at - due_at))
}

fn print(args: &ConsumeArgs, delivery: &Delivery, levels: Option<&LevelWords>) -> io::Result<()> {
    let view = delivery.record.view();
    let lateness = lateness_ms(delivery, levels);
    let body = plain_body(&delivery.record);
    if args.output == Output::Json {
        let properties: serde_json::Map<String, serde_json::Value> = view
            .properties()
            .to_pairs()
            .into_iter()
            .map(|(name, value)| (name.into_owned(), value.into_owned().into()))
            .collect();
        return print::json(&json!({
            "topic": view.topic(), "broker": delivery.queue.broker, "queueId": view.queue_id().0, "queueOffset": view.queue_offset().0,
            "msgId": view.properties().get(names::UNIQ_KEY), "offsetMsgId": view.message_id().to_string(),
            "bornAt": view.born_at().0, "storedAt": view.stored_at().0, "receivedAt": delivery.received_at,
            "reconsumeTimes": view.reconsume_times(), "level": lateness.as_ref().map(|(level, ..)| level),
            "latenessMs": lateness.as_ref().map(|(.., lateness)| lateness), "properties": properties,
            "body": body.as_ref().and_then(|body| std::str::from_utf8(body).ok()),
            "bodyHex": body.as_ref().filter(|body| std::str::from_utf8(body).is_err()).map(|body| hex(body)),
        }));
    }
    let paint = Paint::stdout();
    let place = format!("{}:{} offset {}", delivery.queue.broker, view.queue_id(), view.queue_offset());
    let mut facts = Vec::new();
    if let Some(tag) = view.properties().get(names::TAGS) {
        facts.push(format!("tag {}", print::shown(tag.as_bytes(), 100)));
    }
    if let Some(keys) = view.properties().get(names::KEYS) {
        facts.push(format!("key {}", print::shown(keys.as_bytes(), 100)));
    }
    if view.reconsume_times() > 0 {
        facts.push(format!("retry {}", view.reconsume_times()));
    }
    match lateness {
        Some((level, word, late)) => facts.push(format!("level {level} ({word}), {}", paint_lateness(paint, late))),
        None => {
            if let Some(level) = view.properties().get(names::DELAY) {
                facts.push(format!("level {}", print::shown(level.as_bytes(), 20)));
            }
        }
    }
    let facts = if facts.is_empty() { String::new() } else { format!(" [{}]", facts.join(", ")) };
    let text = body
        .map_or_else(|| format!("({} compressed bytes)", view.body().len()), |body| print::shown(&body, args.body_max));
    print::line(format!("{}{facts} {text}", paint.faint(place)))
}

/// Lateness in words: green when it is small.
pub(super) fn paint_lateness(paint: Paint, late_ms: i64) -> String {
    match late_ms {
        ..0 => paint.bad(format!("{} ms early", -late_ms)),
        0..100 => paint.good(format!("{late_ms} ms late")),
        _ => paint.bad(format!("{late_ms} ms late")),
    }
}

/// The body as the producer had it; `None` if it is compressed in a way that is not read here.
pub(super) fn plain_body(record: &Record) -> Option<Bytes> {
    let view = record.view();
    let flag = view.sys_flag().0;
    if flag & SysFlag::COMPRESSED == 0 {
        return Some(record.body());
    }
    if ![0, COMPRESSION_ZLIB].contains(&(flag & COMPRESSION_TYPE)) {
        return None;
    }
    let mut body = Vec::new();
    let inflated = io::Read::take(flate2::read::ZlibDecoder::new(view.body()), INFLATED_BYTES_MAX);
    io::Read::read_to_end(&mut { inflated }, &mut body).ok()?;
    Some(Bytes::from(body))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn begin(text: &str) -> Result<Begin, String> {
    match text {
        "first" => Ok(Begin::First),
        "last" => Ok(Begin::Last),
        time => {
            time.parse().map(Begin::At).map_err(|_| "must be first, last or milliseconds since the epoch".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(count: i32) -> Vec<Queue> {
        (0..count).map(|queue_id| Queue { broker: "a".to_owned(), queue_id }).collect()
    }

    #[test]
    fn members_share_all_queues_as_rocketmq_does() {
        let members: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();

        let counts: Vec<Vec<i32>> = members
            .iter()
            .map(|member| share(&members, member, &queues(8)).into_iter().map(|queue| queue.queue_id).collect())
            .collect();

        assert_eq!(counts, [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
        assert!(share(&members, "stranger", &queues(8)).is_empty());
        assert!(share(&members, "c", &queues(2)).is_empty());
    }

    #[test]
    fn tags_of_a_subscription_are_hashed_as_java_does() {
        let some = subscription("t", " TagA||TagB ");
        let all = subscription("t", "*");

        assert_eq!((some.sub_string.as_str(), &some.code_set[..]), ("TagA || TagB", &[2_598_919, 2_598_920][..]));
        assert!(all.tags_set.is_empty() && all.sub_string == "*");
    }
}
