//! A broker on a store in memory, with the level scheduler, driven step by step.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use latermq::{
    broker::{Broker, BrokerOptions, Resolved, Topics},
    config::{ConfigFile, LiveConfig, Settings, Sources},
    delay::{DelayOptions, LevelScheduler, RealQueue, RealTopics},
    env::{Clock, Directory, Env, MemoryDirectory, TestClock},
    model::{PhysicalOffset, Properties, QueueId, Timestamp, Topic},
    protocol::{
        Command, RequestCode,
        body::{ConsumerData, HeartbeatData, MessageModel, ProducerData, SubscriptionData},
        header::{PullHeader, PullReplyHeader, SendHeader, SendReplyHeader, pull_flag},
        json::{self, Dialect},
    },
    record::{Record, Records},
    remoting::{Connection, Handler, Responder},
    store::{MessageStore, Plugin, StoreOptions},
};

/// Where the broker under test is reached.
pub(crate) const ADDRESS: &str = "127.0.0.1:10911";

pub(crate) struct Rig {
    pub(crate) clock: TestClock,
    pub(crate) directory: MemoryDirectory,
    pub(crate) store: Arc<MessageStore>,
    pub(crate) scheduler: Arc<LevelScheduler>,
    pub(crate) broker: Arc<Broker>,
    /// The connection that requests come by.
    pub(crate) client: Arc<Connection>,
    pub(crate) fatal: Arc<Mutex<Vec<String>>>,
    options: BrokerOptions,
    store_options: StoreOptions,
    delay_options: DelayOptions,
    pub(crate) config: Option<Arc<Config>>,
}

/// The sources of a configuration, with a file in memory.
#[derive(Default)]
pub(crate) struct Config {
    pub(crate) file: Mutex<Vec<u8>>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) has_no_file: bool,
    /// The file cannot be written now.
    pub(crate) write_fails: AtomicBool,
    pub(crate) writes: AtomicUsize,
}

impl Config {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.file.lock().unwrap().clone()).unwrap()
    }

    fn sources(&self) -> Sources {
        Sources {
            file: (!self.has_no_file).then(|| ("broker.conf".to_owned(), self.file.lock().unwrap().clone())),
            environment: self.environment.clone(),
            host_name: "broker-a".to_owned(),
            ..Sources::default()
        }
    }

    fn settings(&self) -> Settings {
        Settings::load(&self.sources()).unwrap().settings
    }
}

struct File(Arc<Config>);

impl ConfigFile for File {
    fn read(&self) -> io::Result<Vec<u8>> {
        Ok(self.0.file.lock().unwrap().clone())
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        if self.0.write_fails.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.writes.fetch_add(1, Ordering::Relaxed);
        *self.0.file.lock().unwrap() = bytes.to_vec();
        Ok(())
    }
}

#[derive(Default)]
struct LateTopics(OnceLock<Arc<Topics>>);

impl RealTopics for LateTopics {
    fn resolve(&self, topic: &str, queue_id: u32, waiting_since: PhysicalOffset) -> RealQueue {
        match self.0.get().unwrap().resolve(topic, QueueId(queue_id), waiting_since) {
            Resolved::Queue(queue_id) => RealQueue::Deliver(queue_id),
            Resolved::Deleted => RealQueue::Deleted,
        }
    }
}

pub(crate) fn store_options() -> StoreOptions {
    StoreOptions {
        segment_bytes: 256 * 1024,
        queue_file_bytes: 20_000,
        index_slots: 100,
        index_entries: 400,
        body_bytes_max: 64 * 1024,
        ..StoreOptions::default()
    }
}

pub(crate) fn rig() -> Rig {
    rig_with(BrokerOptions::default(), store_options())
}

pub(crate) fn rig_with(options: BrokerOptions, store_options: StoreOptions) -> Rig {
    rig_with_delays(options, store_options, DelayOptions::default())
}

/// A broker whose `messageDelayLevel` is `levels`.
pub(crate) fn rig_with_levels(levels: &str) -> Rig {
    let delay_options = DelayOptions { levels: levels.parse().unwrap(), ..DelayOptions::default() };
    rig_with_delays(BrokerOptions::default(), store_options(), delay_options)
}

fn rig_with_delays(options: BrokerOptions, store_options: StoreOptions, delay_options: DelayOptions) -> Rig {
    let clock = TestClock::new(Timestamp(1_700_000_000_000));
    clock.advance(Duration::from_secs(1000));
    let directory = MemoryDirectory::with_clock(Arc::new(clock.clone()) as Arc<dyn Clock>);
    open(clock, directory, options, store_options, delay_options, None)
}

/// A broker with a configuration.
pub(crate) fn rig_of(config: Config) -> Rig {
    let clock = TestClock::new(Timestamp(1_700_000_000_000));
    clock.advance(Duration::from_secs(1000));
    let directory = MemoryDirectory::with_clock(Arc::new(clock.clone()) as Arc<dyn Clock>);
    let config = Some(Arc::new(config));
    open(clock, directory, BrokerOptions::default(), store_options(), DelayOptions::default(), config)
}

/// A broker whose configuration file says so.
pub(crate) fn rig_configured(file: &str) -> Rig {
    rig_of(Config { file: Mutex::new(file.as_bytes().to_vec()), ..Config::default() })
}

fn open(
    clock: TestClock,
    directory: MemoryDirectory,
    mut options: BrokerOptions,
    store_options: StoreOptions,
    mut delay_options: DelayOptions,
    config: Option<Arc<Config>>,
) -> Rig {
    if let Some(config) = &config {
        let settings = config.settings();
        delay_options = settings.delay_options().unwrap();
        options = settings.broker_options(ADDRESS.parse().unwrap(), delay_options.levels.max().number());
    }
    let fatal: Arc<Mutex<Vec<String>>> = Arc::default();
    let reasons = Arc::clone(&fatal);
    let env = Env {
        clock: Arc::new(clock.clone()),
        directory: Arc::new(directory.clone()) as Arc<dyn Directory>,
        fatal: Arc::new(move |reason| reasons.lock().unwrap().push(reason.to_owned())),
    };
    let topics = Arc::new(LateTopics::default());
    let scheduler = Arc::new(LevelScheduler::new(delay_options.clone(), Arc::clone(&topics) as Arc<dyn RealTopics>));
    let plugins = vec![Arc::clone(&scheduler) as Arc<dyn Plugin>];
    let store = MessageStore::open(store_options.clone(), env, plugins).unwrap();
    let broker = Broker::new(options.clone(), Arc::clone(&store));
    assert!(topics.0.set(Arc::clone(broker.topics())).is_ok());
    if let Some(config) = &config {
        let file = (!config.has_no_file).then(|| Arc::new(File(Arc::clone(config))) as Arc<dyn ConfigFile>);
        let live = LiveConfig::new(config.sources(), config.settings(), file, ADDRESS.parse().unwrap());
        broker.set_configuration(Arc::new(live));
    }
    Rig {
        clock,
        directory,
        store,
        scheduler,
        broker,
        client: connection(),
        fatal,
        options,
        store_options,
        delay_options,
        config,
    }
}

/// A connection of another client.
pub(crate) fn connection() -> Arc<Connection> {
    let peer: SocketAddr = ([10, 0, 0, 7], 4000).into();
    Connection::unconnected(peer, ADDRESS.parse().unwrap())
}

impl Rig {
    /// Sends a request and takes its answer, if it is answered at once.
    pub(crate) fn ask_now(&self, connection: &Arc<Connection>, request: Command) -> Option<Command> {
        let opaque = request.opaque;
        let responder = Responder::new(connection, &request);
        self.broker.handle(connection, request, responder);
        // Pushes may come before the answer; they stay for those who look for them.
        let (mut answers, pushes): (Vec<_>, Vec<_>) =
            connection.take_sent().into_iter().partition(|sent| sent.is_response() && sent.opaque == opaque);
        pushes.into_iter().for_each(|push| connection.send(push));
        answers.pop()
    }

    pub(crate) fn ask(&self, request: Command) -> Command {
        self.ask_now(&Arc::clone(&self.client), request).expect("the request is answered at once")
    }

    /// Makes what was stored readable, restores what is due, and makes that readable too.
    pub(crate) fn step(&self) {
        self.dispatch();
        while self.scheduler.next_deadline().is_some_and(|deadline| deadline <= self.store.now()) {
            self.scheduler.tick(self.store.now());
            self.dispatch();
        }
    }

    pub(crate) fn dispatch(&self) {
        while self.store.dispatch_once(u64::MAX) {}
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// Stops and opens again, as a clean restart does.
    pub(crate) fn restart(self) -> Rig {
        self.broker.save();
        self.store.stop().unwrap();
        self.reopen()
    }

    /// Stops cleanly, lets somebody change the files, and opens again.
    pub(crate) fn restart_after(self, change: impl FnOnce(&MemoryDirectory)) -> Rig {
        self.broker.save();
        self.store.stop().unwrap();
        change(&self.directory);
        self.reopen()
    }

    /// Opens again what a kill leaves.
    pub(crate) fn kill(mut self) -> Rig {
        self.directory = self.directory.kill();
        self.reopen()
    }

    fn reopen(self) -> Rig {
        let Rig { clock, directory, options, store_options, delay_options, store, broker, config, .. } = self;
        drop((broker, store));
        open(clock, directory, options, store_options, delay_options, config)
    }

    pub(crate) fn reopen_with(self, options: BrokerOptions) -> Rig {
        self.broker.save();
        self.store.stop().unwrap();
        Rig { options, ..self }.reopen()
    }

    /// Sends a message and makes it readable; gives the answer.
    pub(crate) fn send(&self, message: Message) -> Command {
        let answer = self.ask(message.request());
        self.step();
        answer
    }

    pub(crate) fn sent(&self, message: Message) -> SendReplyHeader {
        let answer = self.send(message);
        assert_eq!(answer.code, 0, "{:?}", answer.remark);
        SendReplyHeader::decode(&answer.ext).unwrap()
    }

    /// A heartbeat of a consumer with subscriptions (topic, expression).
    pub(crate) fn join(&self, connection: &Arc<Connection>, client_id: &str, group: &str, topics: &[(&str, &str)]) {
        let heartbeat = heartbeat(client_id, group, topics);
        assert_eq!(self.ask_now(connection, heartbeat_request(&heartbeat)).unwrap().code, 0);
    }

    /// Pulls with the subscription in the request.
    pub(crate) fn pull(&self, topic: &str, queue_id: i32, offset: i64) -> Command {
        self.ask(PullHeader { ..pull_header("TOOLS_CONSUMER", topic, queue_id, offset) }.request())
    }

    /// The records of a queue from an offset on.
    pub(crate) fn records(&self, topic: &str, queue_id: i32, offset: i64) -> Vec<Record> {
        let answer = self.pull(topic, queue_id, offset);
        if answer.code == 0 { records(&answer) } else { Vec::new() }
    }

    /// Every record of a queue.
    pub(crate) fn all_records(&self, topic: &str, queue_id: i32) -> Vec<Record> {
        let mut all: Vec<Record> = Vec::new();
        loop {
            let offset = all.last().map_or(0, |last| last.view().queue_offset().0 as i64 + 1);
            let more = self.records(topic, queue_id, offset);
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }
}

pub(crate) fn records(answer: &Command) -> Vec<Record> {
    Records::new(answer.body.to_bytes()).map(Result::unwrap).collect()
}

pub(crate) fn reply(answer: &Command) -> PullReplyHeader {
    PullReplyHeader::decode(&answer.ext).unwrap()
}

pub(crate) fn text(answer: &Command) -> String {
    String::from_utf8(answer.body.to_bytes().to_vec()).unwrap()
}

pub(crate) fn request(code: i32, ext: &[(&'static str, &str)]) -> Command {
    Command::request(code).with_ext(ext.iter().copied().collect())
}

pub(crate) fn heartbeat(client_id: &str, group: &str, topics: &[(&str, &str)]) -> HeartbeatData {
    let retry = format!("%RETRY%{group}");
    let subscription = |(topic, expression): (&str, &str)| SubscriptionData {
        expression_type: "TAG".into(),
        sub_string: expression.into(),
        sub_version: 1,
        tags_set: expression.split("||").filter(|tag| *tag != "*").map(str::to_owned).collect(),
        topic: topic.into(),
        ..SubscriptionData::default()
    };
    let subscriptions = topics.iter().copied().chain([(retry.as_str(), "*")]).map(subscription);
    HeartbeatData {
        client_id: client_id.into(),
        consumer_data_set: vec![ConsumerData {
            group_name: group.into(),
            message_model: MessageModel::Clustering,
            subscription_data_set: subscriptions.collect(),
            ..ConsumerData::default()
        }],
        producer_data_set: vec![ProducerData { group_name: "CLIENT_INNER_PRODUCER".into() }],
        ..HeartbeatData::default()
    }
}

pub(crate) fn heartbeat_request(heartbeat: &HeartbeatData) -> Command {
    Command::request(RequestCode::HEART_BEAT).with_body(json::to_vec(Dialect::Fastjson, heartbeat))
}

/// A pull that carries `*` and may not be held.
pub(crate) fn pull_header(group: &str, topic: &str, queue_id: i32, offset: i64) -> PullHeader {
    PullHeader {
        consumer_group: group.into(),
        topic: topic.into(),
        queue_id,
        queue_offset: offset,
        max_msg_nums: 32,
        sys_flag: pull_flag::SUBSCRIPTION,
        commit_offset: 0,
        suspend_timeout_ms: 15_000,
        subscription: Some("*".into()),
        sub_version: 0,
        expression_type: None,
        max_msg_bytes: None,
        broker_name: None,
    }
}

pub(crate) trait PullRequest {
    fn request(&self) -> Command;
    /// The same pull, allowed to be held.
    fn held(self) -> Self;
    fn tags(self, expression: &str) -> Self;
}

impl PullRequest for PullHeader {
    fn request(&self) -> Command {
        Command::request(RequestCode::PULL_MESSAGE).with_ext(self.encode())
    }

    fn held(mut self) -> Self {
        self.sys_flag |= pull_flag::SUSPEND;
        self
    }

    fn tags(mut self, expression: &str) -> Self {
        self.subscription = Some(expression.into());
        self
    }
}

/// A message to send.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) header: SendHeader,
    pub(crate) body: Vec<u8>,
    pub(crate) code: i32,
    pub(crate) version: i32,
    pub(crate) properties: Properties,
}

pub(crate) fn message(topic: &str) -> Message {
    let header = SendHeader {
        producer_group: "pg".into(),
        topic: topic.into(),
        default_topic: "TBW102".into(),
        default_topic_queue_nums: 4,
        queue_id: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_123,
        flag: 7,
        properties: None,
        reconsume_times: Some(0),
        unit_mode: Some(false),
        max_reconsume_times: None,
        batch: Some(false),
        broker_name: None,
    };
    let mut properties = Properties::new();
    properties.set("UNIQ_KEY", "KEY0");
    properties.set("WAIT", "true");
    Message { header, body: b"hello".to_vec(), code: RequestCode::SEND_MESSAGE_V2, version: 479, properties }
}

impl Message {
    pub(crate) fn queue(mut self, queue_id: i32) -> Self {
        self.header.queue_id = queue_id;
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.set(name, value);
        self
    }

    pub(crate) fn level(self, level: i32) -> Self {
        self.property("DELAY", &level.to_string())
    }

    pub(crate) fn tag(self, tag: &str) -> Self {
        self.property("TAGS", tag)
    }

    pub(crate) fn reconsumed(mut self, times: i32, max: Option<i32>) -> Self {
        self.header.reconsume_times = Some(times);
        self.header.max_reconsume_times = max;
        self
    }

    pub(crate) fn request(&self) -> Command {
        let mut header = self.header.clone();
        if header.properties.is_none() {
            header.properties = Some(String::from_utf8(self.properties.as_bytes().to_vec()).unwrap().into());
        }
        let ext = match self.code {
            RequestCode::SEND_MESSAGE => header.encode_long(),
            _ => header.encode_short(),
        };
        Command { version: self.version, ..Command::request(self.code) }.with_ext(ext).with_body(self.body.clone())
    }
}

/// A topic, as the store names it.
pub(crate) fn max(rig: &Rig, topic: &str, queue_id: u32) -> u64 {
    let topic = Topic::from(topic);
    rig.store.queue_range(&topic, QueueId(queue_id)).map_or(0, |range| range.max.0)
}
