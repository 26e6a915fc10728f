//! `latermq topic`: creates, deletes and lists topics.

use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use serde_json::json;

use super::{
    cluster::{Cluster, ClusterArgs, block_on},
    failure::Failure,
    print::{self, Output},
};
use crate::{
    model::{DLQ_PREFIX, RETRY_PREFIX, is_system_topic},
    protocol::{
        Command, RequestCode,
        body::TopicList,
        header::{CreateTopicHeader, TopicHeader},
    },
};

/// Create, delete and list topics
#[derive(Debug, Args)]
pub(super) struct TopicArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a topic on every broker, or change it if it exists
    ///
    /// A send creates a topic too, unless autoCreateTopicEnable is false. Go consumers do not start on a topic that does not exist yet:
    /// create it first.
    Create(CreateArgs),
    /// Delete a topic from every broker and name server
    ///
    /// Its messages are gone at once; messages that wait for their time are no longer delivered to it.
    Delete(DeleteArgs),
    /// List topics with their brokers and queues
    List(ListArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Its name: letters, digits and - _ % |
    topic: String,
    /// Queues on each broker: the most consumers of one group that can share its messages
    #[arg(short, long, default_value_t = 8, value_parser = clap::value_parser!(i32).range(1..=65_535))]
    queues: i32,
    /// What may be done: 2 send, 4 read, 6 both
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(i32).range(0..=7))]
    perm: i32,
    /// Only on the broker of this name
    #[arg(short, long, value_name = "NAME")]
    broker: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    /// Its name
    topic: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Also topics of the system, retry topics and dead-letter topics
    #[arg(short, long)]
    all: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(args: &TopicArgs) -> Result<(), Failure> {
    block_on(async {
        match &args.action {
            Action::Create(args) => create(args).await,
            Action::Delete(args) => delete(args).await,
            Action::List(args) => list(args).await,
        }
    })
}

async fn create(args: &CreateArgs) -> Result<(), Failure> {
    let cluster = Cluster::new(&args.cluster)?;
    let mut masters = cluster.masters().await?;
    if let Some(wanted) = &args.broker {
        masters.retain(|name, _| name == wanted);
        if masters.is_empty() {
            return Err(Failure::failed(format!("the name server knows no broker {wanted}")));
        }
    }
    for (name, address) in &masters {
        let header = CreateTopicHeader {
            topic: args.topic.as_str().into(),
            default_topic: "TBW102".into(),
            read_queue_nums: args.queues,
            write_queue_nums: args.queues,
            perm: args.perm,
            topic_filter_type: "SINGLE_TAG".into(),
            topic_sys_flag: Some(0),
            order: Some(false),
            attributes: None,
            force: None,
        };
        cluster.call(address, Command::request(RequestCode::UPDATE_AND_CREATE_TOPIC).with_ext(header.encode())).await?;
        print::line(format!("{} has {} queues on {name}", args.topic, args.queues))?;
    }
    Ok(())
}

async fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let cluster = Cluster::new(&args.cluster)?;
    if cluster.route(&args.topic).await?.is_none() {
        return Err(Failure::failed(format!("there is no topic {}", args.topic)));
    }
    let header = TopicHeader { topic: args.topic.as_str().into(), cluster_name: None };
    for (name, address) in cluster.masters().await? {
        cluster.call(&address, Command::request(RequestCode::DELETE_TOPIC_IN_BROKER).with_ext(header.encode())).await?;
        print::line(format!("{} is deleted from {name}", args.topic))?;
    }
    for server in cluster.name_servers() {
        cluster.call(server, Command::request(RequestCode::DELETE_TOPIC_IN_NAMESRV).with_ext(header.encode())).await?;
    }
    Ok(())
}

async fn list(args: &ListArgs) -> Result<(), Failure> {
    let cluster = Cluster::new(&args.cluster)?;
    let request = Command::request(RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER);
    let mut topics = cluster.read_from_name_server::<TopicList>(request).await?.topic_list;
    let masters = cluster.masters().await.unwrap_or_default();
    topics.retain(|topic| args.all || !is_of_the_system(topic, &masters));
    topics.sort_unstable();

    let progress = ProgressBar::new(topics.len() as u64);
    progress.enable_steady_tick(Duration::from_secs(1));
    let mut rows = Vec::new();
    let mut values = Vec::new();
    for topic in &topics {
        let route = cluster.route(topic).await?.unwrap_or_default();
        for queues in &route.queue_datas {
            let (broker, read, write, perm) =
                (&queues.broker_name, queues.read_queue_nums, queues.write_queue_nums, queues.perm);
            rows.push(vec![topic.clone(), broker.clone(), read.to_string(), write.to_string(), words(perm)]);
            values.push(
                json!({"topic": topic, "broker": broker, "readQueues": read, "writeQueues": write, "perm": perm}),
            );
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    match args.output {
        Output::Json => print::json(&values.into())?,
        Output::Text => print::table(&["TOPIC", "BROKER", ">READ QUEUES", ">WRITE QUEUES", "MAY"], &rows)?,
    }
    Ok(())
}

/// Whether a topic is there without anybody having made it: of the system, of a group, or named like a broker or its cluster.
fn is_of_the_system(topic: &str, masters: &std::collections::BTreeMap<String, String>) -> bool {
    is_system_topic(topic)
        || topic.starts_with(RETRY_PREFIX)
        || topic.starts_with(DLQ_PREFIX)
        || topic == "DefaultCluster"
        || topic.ends_with("_REPLY_TOPIC")
        || masters.contains_key(topic)
}

fn words(perm: i32) -> String {
    let words: Vec<&str> =
        [(2, "send"), (4, "read")].into_iter().filter(|(bit, _)| perm & bit != 0).map(|(_, word)| word).collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}
