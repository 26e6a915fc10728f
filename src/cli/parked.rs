//! `latermq parked`: messages whose time came but which could not be restored, and sending them again.
//!
//! What was done lies in the messages themselves, nowhere else: what is sent again carries a key made of broker, queue and queue offset of the
//! marker it comes from, and its topic is asked for that key before anything is sent. So a restore that was interrupted is simply run again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use serde_json::json;

use super::{
    cluster::{Cluster, ClusterArgs, block_on, master_of, refusal},
    failure::{Failure, chain},
    print::{self, Output, Paint},
    send::{Outgoing, Producer, now_ms},
};
use crate::{
    delay::PARKED_REASON,
    model::{PARKING_TOPIC, Properties, names},
    protocol::{
        Command, RequestCode, ResponseCode,
        header::{OffsetReplyHeader, PullHeader, PullReplyHeader, QueryMessageHeader, QueueHeader, pull_flag},
    },
    record::{Record, Records},
};

/// Group in whose name markers are read; it commits nothing.
const GROUP: &str = "latermq_parked";
/// Most messages of one pull.
const PULL_COUNT: i32 = 32;
/// How long a pull may take.
const PULL_MAX: Duration = Duration::from_secs(30);
/// Most messages that share a key by chance.
const QUERY_COUNT: i32 = 16;
/// How long a restore waits until what it sent can be found.
const FOUND_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks for that.
const FOUND_PAUSE: Duration = Duration::from_millis(20);
/// What the key of a restored message begins with.
const KEY_PREFIX: &str = "parked";

/// List parked messages, and send them again
///
/// A message is parked when its time has come and it cannot be restored: it could not be read for ten minutes (parkAfter), its topic was deleted
/// meanwhile, or what it says of itself makes no sense. Those behind it went on. A marker in the topic rmq_sys_parked_delayed keeps what can
/// still be read of it, as long as the log keeps messages (fileReservedTime).
#[derive(Debug, Args)]
pub(super) struct ParkedArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List parked messages: why, from where, and whether they were sent again
    List(ListArgs),
    /// Send parked messages to their topics, now
    ///
    /// Nothing is sent without --all, --id, --level or --topic; see first what it would be with --dry-run. What was sent before is not
    /// sent again: each message carries a key (parked-BROKER-QUEUE-OFFSET) by which it is looked for first. That is as good as the broker's index: if a
    /// run is interrupted, wait a second before the next.
    ///
    /// A message whose topic does not exist is left: create the topic, or name another with --to. Of a message that could not be read there is
    /// nothing left to send.
    ///
    /// Exit codes: 0 all that was chosen is restored; 1 something could not be, the others are; 2 wrong arguments.
    Restore(RestoreArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// The topic they were sent to by an earlier restore, if it was not their own
    #[arg(long, value_name = "TOPIC")]
    to: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Args)]
struct RestoreArgs {
    /// All that are parked
    #[arg(long, conflicts_with_all = ["ids", "level", "topic"])]
    all: bool,
    /// Those with this unique id; may be given several times
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// Those that waited on this level
    #[arg(short, long)]
    level: Option<u32>,
    /// Those of this topic
    #[arg(short, long)]
    topic: Option<String>,
    /// Send them to this topic instead of their own
    #[arg(long, value_name = "TOPIC")]
    to: Option<String>,
    /// Only say what would be sent
    #[arg(long)]
    dry_run: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A parked message.
struct Parked {
    broker: String,
    address: String,
    record: Record,
}

/// What became of one.
enum Outcome {
    Parked,
    /// Sent before: topic and offset message id.
    Restored(String, String),
    /// Sent now.
    Sent(String, String),
    /// Would be sent there.
    Would(String),
    /// Cannot be sent, and why.
    Left(String),
}

pub(super) fn run(args: &ParkedArgs) -> Result<(), Failure> {
    match &args.action {
        Action::List(args) => block_on(list(args)),
        Action::Restore(args) => {
            if !args.all && args.ids.is_empty() && args.level.is_none() && args.topic.is_none() {
                return Err(Failure::misused("nothing was chosen: name --all, --id, --level or --topic"));
            }
            block_on(restore(args))
        }
    }
}

async fn list(args: &ListArgs) -> Result<(), Failure> {
    let cluster = Cluster::new(&args.cluster)?;
    let mut rows = Vec::new();
    for parked in find(&cluster).await? {
        let topic = args.to.as_deref().or(parked.real_topic());
        let outcome = match topic {
            Some(topic) => match sent_before(&cluster, &parked, topic).await? {
                Some(id) => Outcome::Restored(topic.to_owned(), id),
                None => Outcome::Parked,
            },
            None => Outcome::Parked,
        };
        rows.push((parked, outcome));
    }
    show(args.output, &rows)
}

async fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    let cluster = Cluster::new(&args.cluster)?;
    let chosen: Vec<Parked> = find(&cluster).await?.into_iter().filter(|parked| parked.is_chosen(args)).collect();
    let mut producers: BTreeMap<String, Option<Producer<'_>>> = BTreeMap::new();
    let mut rows = Vec::new();
    let mut left = 0;
    for parked in chosen {
        let outcome = restore_one(&cluster, args, &parked, &mut producers).await?;
        left += u32::from(matches!(outcome, Outcome::Left(_)));
        rows.push((parked, outcome));
    }
    let unseen = wait_until_found(&cluster, &rows).await?;
    show(args.output, &rows)?;
    if unseen > 0 {
        return Err(Failure::failed(format!(
            "{unseen} messages were sent, but cannot be found yet: before \"latermq parked list\" shows them as restored, another restore would send them again"
        )));
    }
    match left {
        0 if rows.is_empty() && !args.all => Err(Failure::failed("no parked message is the one that was chosen")),
        0 => Ok(()),
        left => Err(Failure::failed(format!("{left} of {} messages could not be restored", rows.len()))),
    }
}

/// Waits until what was sent can be found, so that another restore sends none of it again; gives how many could not.
async fn wait_until_found(cluster: &Cluster, rows: &[(Parked, Outcome)]) -> Result<usize, Failure> {
    let until = Instant::now() + FOUND_MAX;
    let mut unseen = 0;
    // Newest first: where it is found, those before it nearly always are.
    for (parked, outcome) in rows.iter().rev() {
        let Outcome::Sent(topic, _) = outcome else { continue };
        while sent_before(cluster, parked, topic).await?.is_none() {
            if Instant::now() >= until {
                unseen += 1;
                break;
            }
            tokio::time::sleep(FOUND_PAUSE).await;
        }
    }
    Ok(unseen)
}

async fn restore_one<'a>(
    cluster: &'a Cluster,
    args: &RestoreArgs,
    parked: &Parked,
    producers: &mut BTreeMap<String, Option<Producer<'a>>>,
) -> Result<Outcome, Failure> {
    if !parked.is_readable() {
        return Ok(Outcome::Left("nothing of it could be read".to_owned()));
    }
    let Some(topic) = args.to.as_deref().or(parked.real_topic()) else {
        return Ok(Outcome::Left("it does not say its topic: name one with --to".to_owned()));
    };
    if !producers.contains_key(topic) {
        // A topic that was deleted is not created again by the way.
        let exists = cluster.route(topic).await?.is_some();
        let producer = if exists { Some(Producer::new(cluster, topic).await?) } else { None };
        producers.insert(topic.to_owned(), producer);
    }
    let Some(Some(producer)) = producers.get_mut(topic) else {
        return Ok(Outcome::Left(format!("there is no topic {topic}: create it, or name another with --to")));
    };
    if let Some(id) = sent_before(cluster, parked, topic).await? {
        return Ok(Outcome::Restored(topic.to_owned(), id));
    }
    if args.dry_run {
        return Ok(Outcome::Would(topic.to_owned()));
    }
    match producer.send_again(&parked.outgoing(topic), &parked.record).await {
        Ok(sent) => Ok(Outcome::Sent(topic.to_owned(), sent.message_id)),
        Err(failure) => Ok(Outcome::Left(failure.to_string())),
    }
}

impl Parked {
    /// Whether more is left of it than that it was there.
    fn is_readable(&self) -> bool {
        let properties = self.record.view().properties();
        properties.get(names::UNIQ_KEY).is_some() || !self.record.view().body().is_empty()
    }

    /// The topic it was sent to, if it is known.
    fn real_topic(&self) -> Option<&str> {
        self.record.view().properties().get(names::REAL_TOPIC).filter(|topic| *topic != PARKING_TOPIC)
    }

    fn unique_id(&self) -> &str {
        self.record.view().properties().get(names::UNIQ_KEY).unwrap_or("")
    }

    fn level(&self) -> u32 {
        self.record.view().queue_id().0 + 1
    }

    fn reason(&self) -> &str {
        self.record.view().properties().get(PARKED_REASON).unwrap_or("unknown")
    }

    fn is_chosen(&self, args: &RestoreArgs) -> bool {
        (args.ids.is_empty() || args.ids.iter().any(|id| id == self.unique_id()))
            && args.level.is_none_or(|level| level == self.level())
            && args.topic.as_deref().is_none_or(|topic| self.real_topic() == Some(topic))
    }

    /// By which what was sent again is found.
    fn key(&self) -> String {
        let view = self.record.view();
        let broker = self.broker.replace(char::is_whitespace, "_");
        format!("{KEY_PREFIX}-{broker}-{}-{}", view.queue_id().0, view.queue_offset().0)
    }

    /// The message as it was sent first, with one key more and without what made it wait.
    fn outgoing(&self, topic: &str) -> Outgoing {
        let mut properties = Properties::from_text(self.record.view().properties().as_bytes());
        for name in [names::DELAY, names::REAL_TOPIC, names::REAL_QID, PARKED_REASON] {
            properties.remove(name);
        }
        let keys = properties.get(names::KEYS).map(|keys| format!("{keys} ")).unwrap_or_default();
        properties.set(names::KEYS, format!("{keys}{}", self.key()));
        Outgoing { topic: topic.to_owned(), body: self.record.body(), properties }
    }
}

/// All markers of all brokers, level by level, oldest first.
async fn find(cluster: &Cluster) -> Result<Vec<Parked>, Failure> {
    let Some(route) = cluster.route(PARKING_TOPIC).await? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for data in &route.queue_datas {
        let Some(address) = master_of(&route, &data.broker_name) else { continue };
        for queue_id in 0..data.read_queue_nums {
            find_in(cluster, &data.broker_name, address, queue_id, &mut found).await?;
        }
    }
    Ok(found)
}

async fn find_in(
    cluster: &Cluster,
    broker: &str,
    address: &str,
    queue_id: i32,
    found: &mut Vec<Parked>,
) -> Result<(), Failure> {
    let unreadable = |error: &dyn std::error::Error| {
        Failure::failed(format!("{address} sent an answer that cannot be read: {}", chain(error)))
    };
    let offset = async |code: i32| {
        let header = QueueHeader { topic: PARKING_TOPIC.into(), queue_id, committed: None };
        let answer = cluster.call(address, Command::request(code).with_ext(header.encode())).await?;
        Ok::<_, Failure>(OffsetReplyHeader::decode(&answer.ext).map_err(|error| unreadable(&error))?.offset)
    };
    let mut at = offset(RequestCode::GET_MIN_OFFSET).await?;
    let end = offset(RequestCode::GET_MAX_OFFSET).await?;
    while at < end {
        let header = PullHeader {
            consumer_group: GROUP.into(),
            topic: PARKING_TOPIC.into(),
            queue_id,
            queue_offset: at,
            max_msg_nums: PULL_COUNT,
            sys_flag: pull_flag::SUBSCRIPTION,
            commit_offset: 0,
            suspend_timeout_ms: 0,
            subscription: Some("*".into()),
            sub_version: now_ms(),
            expression_type: Some("TAG".into()),
            max_msg_bytes: None,
            broker_name: Some(broker.into()),
        };
        let request = Command::request(RequestCode::PULL_MESSAGE).with_ext(header.encode());
        let answer = cluster.ask_within(address, request, PULL_MAX).await?;
        match answer.code {
            ResponseCode::SUCCESS => {
                for record in Records::new(answer.body.to_bytes()) {
                    let record = record.map_err(|error| unreadable(&error))?;
                    found.push(Parked { broker: broker.to_owned(), address: address.to_owned(), record });
                }
            }
            ResponseCode::PULL_RETRY_IMMEDIATELY | ResponseCode::PULL_OFFSET_MOVED => {}
            ResponseCode::PULL_NOT_FOUND => return Ok(()),
            _ => return Err(refusal(address, RequestCode::PULL_MESSAGE, &answer)),
        }
        let next = PullReplyHeader::decode(&answer.ext).map_err(|error| unreadable(&error))?.next_begin_offset;
        // An answer that does not get on would be asked for ever.
        at = next.max(at + 1);
    }
    Ok(())
}

/// The id of the message by which a parked one was sent again to a topic, if it was.
async fn sent_before(cluster: &Cluster, parked: &Parked, topic: &str) -> Result<Option<String>, Failure> {
    let key = parked.key();
    let header = QueryMessageHeader {
        topic: topic.into(),
        key: key.as_str().into(),
        max_num: QUERY_COUNT,
        begin_timestamp: 0,
        end_timestamp: i64::MAX,
        unique_key_query: None,
    };
    let Some(route) = cluster.route(topic).await? else { return Ok(None) };
    for data in &route.broker_datas {
        // It may have gone to any broker of the topic.
        let address = master_of(&route, &data.broker_name).unwrap_or(&parked.address);
        let request = Command::request(RequestCode::QUERY_MESSAGE).with_ext(header.encode());
        let answer = cluster.ask(address, request).await?;
        match answer.code {
            ResponseCode::SUCCESS => {}
            ResponseCode::QUERY_NOT_FOUND => continue,
            _ => return Err(refusal(address, RequestCode::QUERY_MESSAGE, &answer)),
        }
        // The index keeps hashes: others may be found by them.
        for record in Records::new(answer.body.to_bytes()).flatten() {
            let view = record.view();
            let keys = view.properties().get(names::KEYS).unwrap_or("");
            if view.topic() == topic && keys.split(' ').any(|found| found == key) {
                return Ok(Some(view.message_id().to_string()));
            }
        }
    }
    Ok(None)
}

fn show(output: Output, rows: &[(Parked, Outcome)]) -> Result<(), Failure> {
    let paint = Paint::stdout();
    if output == Output::Json {
        let values = rows.iter().map(|(parked, outcome)| {
            let view = parked.record.view();
            let (state, topic, id, why) = match outcome {
                Outcome::Parked => ("parked", None, None, None),
                Outcome::Restored(topic, id) => ("restored before", Some(topic), Some(id), None),
                Outcome::Sent(topic, id) => ("restored", Some(topic), Some(id), None),
                Outcome::Would(topic) => ("would be restored", Some(topic), None, None),
                Outcome::Left(why) => ("left", None, None, Some(why)),
            };
            json!({
                "broker": parked.broker, "level": parked.level(), "queueOffset": view.queue_offset().0,
                "reason": parked.reason(), "topic": parked.real_topic(), "id": parked.unique_id(),
                "parkedAt": view.stored_at().0, "bornAt": view.born_at().0, "bodyBytes": view.body().len(),
                "key": parked.key(), "state": state, "sentTo": topic, "offsetMsgId": id, "why": why,
            })
        });
        return Ok(print::json(&values.collect())?);
    }
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|(parked, outcome)| {
            let state = match outcome {
                Outcome::Parked => "parked".to_owned(),
                Outcome::Restored(topic, _) => paint.faint(format!("restored before, to {topic}")),
                Outcome::Sent(topic, _) => paint.good(format!("restored to {topic}")),
                Outcome::Would(topic) => format!("would be restored to {topic}"),
                Outcome::Left(why) => paint.bad(format!("left: {why}")),
            };
            vec![
                parked.broker.clone(),
                parked.level().to_string(),
                parked.record.view().queue_offset().0.to_string(),
                print::shown(parked.real_topic().unwrap_or("?").as_bytes(), 60),
                print::shown(parked.unique_id().as_bytes(), 40),
                parked.reason().to_owned(),
                state,
            ]
        })
        .collect();
    Ok(print::table(&["BROKER", ">LEVEL", ">OFFSET", "TOPIC", "ID", "REASON", "STATE"], &rows)?)
}
