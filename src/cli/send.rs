//! `latermq send`: sends messages, delayed or not.

use std::{
    io::{self, IsTerminal, Read},
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{
    cluster::{Cluster, ClusterArgs, block_on, master_of, refusal},
    failure::{Failure, chain},
    print::{self, Output, Paint},
};
use crate::{
    model::{Properties, names},
    protocol::{
        Command, RequestCode, ResponseCode, Text,
        body::TopicRouteData,
        header::{SendHeader, SendReplyHeader},
    },
    record::{Record, RecordView},
};

/// The topic whose route a producer uses for a topic that does not exist yet.
const TEMPLATE_TOPIC: &str = "TBW102";
/// Queues that a producer asks for when its send creates the topic.
const QUEUES_WANTED: i32 = 4;
/// Producer group of this command.
const PRODUCER_GROUP: &str = "latermq_send";
/// Beyond so many messages only the sum is printed.
const LINES_MAX: u64 = 100;
/// Bits of the system flag that say whether and how a body is compressed.
const COMPRESSION_BITS: i32 = 0x701;
/// Permission bit of a queue that may be written.
const WRITE: i32 = 2;

/// Send messages, delayed or not
///
/// The body is the argument BODY, or the file named by --file, or else what comes from standard input.
#[derive(Debug, Clone, Args)]
pub(super) struct SendArgs {
    /// Topic to send to; a broker creates it unless told otherwise
    topic: String,
    /// Body of the message
    body: Option<String>,
    /// Read the body from a file; - is standard input
    #[arg(short, long, value_name = "PATH", conflicts_with = "body")]
    file: Option<PathBuf>,
    /// Delay level, from 1 on: see `latermq levels`. Without it the message is delivered at once
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..))]
    level: Option<u32>,
    /// Tag, by which consumers filter
    #[arg(short, long, value_parser = plain)]
    tag: Option<String>,
    /// Key, by which the message can be found; may be given several times
    #[arg(short, long = "key", value_name = "KEY", value_parser = plain)]
    keys: Vec<String>,
    /// Property of your own; may be given several times
    #[arg(short, long = "property", value_name = "NAME=VALUE", value_parser = property)]
    properties: Vec<(String, String)>,
    /// Send it so many times
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// What a producer sends, again and again.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    pub(super) topic: String,
    pub(super) body: Bytes,
    pub(super) properties: Properties,
}

/// Where a message went.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) message_id: String,
    pub(super) unique_id: String,
    pub(super) broker: String,
    pub(super) queue_id: i32,
    pub(super) queue_offset: i64,
    /// SEND_OK, or what did not happen although the message was stored.
    pub(super) status: &'static str,
}

/// Sends messages of one topic, queue after queue.
pub(super) struct Producer<'a> {
    cluster: &'a Cluster,
    queues: Vec<(String, String, i32)>,
    next: usize,
}

pub(super) fn run(args: &SendArgs) -> Result<(), Failure> {
    let mut properties = Properties::new();
    for (name, value) in &args.properties {
        properties.set(name, value);
    }
    if let Some(level) = args.level {
        properties.set(names::DELAY, level.to_string());
    }
    if let Some(tag) = &args.tag {
        properties.set(names::TAGS, tag);
    }
    if !args.keys.is_empty() {
        properties.set(names::KEYS, args.keys.join(" "));
    }
    let outgoing = Outgoing { topic: args.topic.clone(), body: body(args)?, properties };
    block_on(send(args, &outgoing))
}

async fn send(args: &SendArgs, outgoing: &Outgoing) -> Result<(), Failure> {
    let cluster = Cluster::new(&args.cluster)?;
    let mut producer = Producer::new(&cluster, &args.topic).await?;
    let progress = ProgressBar::new(args.count);
    progress.set_style(
        ProgressStyle::with_template("{bar:40} {pos}/{len} messages, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let began = std::time::Instant::now();
    let paint = Paint::stdout();
    for number in 1..=args.count {
        let sent = producer.send(outgoing).await.map_err(|failure| match failure {
            Failure::Failed(text) if number > 1 => Failure::Failed(format!("{text} (after {} messages)", number - 1)),
            other => other,
        })?;
        if args.output == Output::Json {
            print::json(&json!({
                "topic": args.topic, "status": sent.status, "msgId": sent.unique_id, "offsetMsgId": sent.message_id,
                "broker": sent.broker, "queueId": sent.queue_id, "queueOffset": sent.queue_offset,
            }))?;
        } else if args.count <= LINES_MAX {
            let place = format!("{}:{} offset {}", sent.broker, sent.queue_id, sent.queue_offset);
            print::line(format!("{} {} {}", paint.good(sent.status), sent.unique_id, paint.faint(place)))?;
        } else if number % 64 == 0 && began.elapsed() > Duration::from_secs(1) {
            progress.set_position(number);
        }
    }
    progress.finish_and_clear();
    if args.output == Output::Text && args.count > LINES_MAX {
        print::line(format!("{} messages sent in {:.1} s", args.count, began.elapsed().as_secs_f64()))?;
    }
    Ok(())
}

impl<'a> Producer<'a> {
    /// Finds the queues of a topic, or where the topic can be created.
    pub(super) async fn new(cluster: &'a Cluster, topic: &str) -> Result<Self, Failure> {
        let (route, queues_max) = match cluster.route(topic).await? {
            Some(route) => (route, i32::MAX),
            None => match cluster.route(TEMPLATE_TOPIC).await? {
                Some(route) => (route, QUEUES_WANTED),
                None => {
                    return Err(Failure::failed(format!(
                        "there is no topic {topic}, and no broker that creates topics"
                    )));
                }
            },
        };
        let queues = writable_queues(&route, queues_max);
        if queues.is_empty() {
            return Err(Failure::failed(format!("no broker takes messages of topic {topic} now")));
        }
        let next = fastrand::usize(..queues.len());
        Ok(Self { cluster, queues, next })
    }

    /// Sends a new message.
    pub(super) async fn send(&mut self, outgoing: &Outgoing) -> Result<Sent, Failure> {
        self.send_as(outgoing, None).await
    }

    /// Sends a message that was sent before: its unique id, flags, time of birth and count of retries stay.
    pub(super) async fn send_again(&mut self, outgoing: &Outgoing, first: &Record) -> Result<Sent, Failure> {
        self.send_as(outgoing, Some(first)).await
    }

    async fn send_as(&mut self, outgoing: &Outgoing, first: Option<&Record>) -> Result<Sent, Failure> {
        let (broker, address, queue_id) = &self.queues[self.next % self.queues.len()];
        self.next = self.next.wrapping_add(1);
        let client = self.cluster.client(address).await?;
        let mut properties = outgoing.properties.clone();
        let kept = first.and(properties.get(names::UNIQ_KEY)).map(str::to_owned);
        let unique_id = kept.unwrap_or_else(|| unique_id(client.connection().local()));
        let first = first.map(Record::view);
        properties.set(names::UNIQ_KEY, &unique_id);
        properties.set(names::WAIT, "true");
        let header = SendHeader {
            producer_group: PRODUCER_GROUP.into(),
            topic: outgoing.topic.as_str().into(),
            default_topic: TEMPLATE_TOPIC.into(),
            default_topic_queue_nums: QUEUES_WANTED,
            queue_id: *queue_id,
            sys_flag: first.map_or(0, |first| first.sys_flag().0 & COMPRESSION_BITS),
            born_timestamp: first.map_or_else(now_ms, |first| first.born_at().0),
            flag: first.map_or(0, RecordView::flag),
            properties: Some(Text::from(String::from_utf8_lossy(properties.as_bytes()).into_owned())),
            reconsume_times: Some(first.map_or(0, RecordView::reconsume_times)),
            unit_mode: Some(false),
            max_reconsume_times: None,
            batch: Some(false),
            broker_name: Some(broker.as_str().into()),
        };
        let request = Command::request(RequestCode::SEND_MESSAGE_V2)
            .with_ext(header.encode_short())
            .with_body(outgoing.body.clone());
        let answer = self.cluster.ask(address, request).await?;
        let status = match answer.code {
            ResponseCode::SUCCESS => "SEND_OK",
            ResponseCode::FLUSH_DISK_TIMEOUT => "FLUSH_DISK_TIMEOUT",
            ResponseCode::FLUSH_SLAVE_TIMEOUT => "FLUSH_SLAVE_TIMEOUT",
            ResponseCode::SLAVE_NOT_AVAILABLE => "SLAVE_NOT_AVAILABLE",
            _ => return Err(refusal(address, RequestCode::SEND_MESSAGE_V2, &answer)),
        };
        let reply = SendReplyHeader::decode(&answer.ext).map_err(|error| {
            Failure::failed(format!("{address} sent an answer that cannot be read: {}", chain(&error)))
        })?;
        Ok(Sent {
            message_id: reply.msg_id.as_str().to_owned(),
            unique_id,
            broker: broker.clone(),
            queue_id: reply.queue_id,
            queue_offset: reply.queue_offset,
            status,
        })
    }
}

/// Broker name, address of its master and queue id of every queue that may be written.
fn writable_queues(route: &TopicRouteData, queues_max: i32) -> Vec<(String, String, i32)> {
    let mut queues = Vec::new();
    for data in route.queue_datas.iter().filter(|data| data.perm & WRITE != 0) {
        if let Some(address) = master_of(route, &data.broker_name) {
            let count = data.write_queue_nums.min(queues_max);
            queues.extend((0..count).map(|queue_id| (data.broker_name.clone(), address.to_owned(), queue_id)));
        }
    }
    queues
}

/// The producer's own id of a message, 32 hexadecimal digits: address, process, random bytes, time and random bytes.
fn unique_id(local: SocketAddr) -> String {
    let address = match local.ip() {
        IpAddr::V4(address) => u32::from(address),
        IpAddr::V6(_) => fastrand::u32(..),
    };
    let process = std::process::id() & 0xffff;
    let time = now_ms() & 0xffff_ffff;
    format!("{address:08X}{process:04X}{:08X}{time:08X}{:04X}", fastrand::u32(..), fastrand::u16(..))
}

fn body(args: &SendArgs) -> Result<Bytes, Failure> {
    if let Some(body) = &args.body {
        return Ok(Bytes::from(body.clone()));
    }
    match &args.file {
        Some(path) if path.as_os_str() != "-" => std::fs::read(path)
            .map(Bytes::from)
            .map_err(|error| Failure::misused(format!("cannot read {}: {error}", path.display()))),
        None if io::stdin().is_terminal() => {
            Err(Failure::misused("no body: give it as an argument, with --file, or on standard input"))
        }
        _ => {
            let mut body = Vec::new();
            io::stdin()
                .lock()
                .read_to_end(&mut body)
                .map_err(|error| Failure::because("cannot read standard input", &error))?;
            Ok(Bytes::from(body))
        }
    }
}

fn property(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((plain(name)?, plain(value)?))
}

/// Text that a property can hold.
fn plain(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(['\0', '\u{1}', '\u{2}']) {
        return Err("must not be empty, nor hold the bytes 0, 1 and 2".to_owned());
    }
    Ok(text.to_owned())
}

/// The wall clock, in milliseconds since the epoch.
pub(super) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
