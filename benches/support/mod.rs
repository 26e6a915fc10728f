//! What the benches have in common: messages as producers send them, and a broker without threads whose time is moved by hand.

#![allow(dead_code, reason = "each bench uses its own part of this")]

use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use latermq::{
    broker::{Broker, BrokerOptions, Resolved, Topics},
    delay::{DelayOptions, LevelScheduler, LevelTable, RealQueue, RealTopics},
    env::{Env, FsDirectory, TestClock},
    model::{MessageDraft, PhysicalOffset, Properties, QueueId, SysFlag, Timestamp, Topic},
    protocol::{
        Command, RequestCode,
        frame::{self, encode_whole},
        header::{PullHeader, SendHeader, pull_flag},
    },
    remoting::{Connection, Handler, Responder},
    store::{MessageStore, Plugin, StoreOptions},
};

/// When the clock of a bench begins.
pub(crate) const START: Timestamp = Timestamp(1_700_000_000_000);
/// The topic that messages go to.
pub(crate) const TOPIC: &str = "TopicTest";
/// The queue that messages go to.
pub(crate) const QUEUE: QueueId = QueueId(3);
/// The body of a message, if nothing else is said.
pub(crate) const BODY_BYTES: usize = 256;

/// Properties as a Java producer and the broker put them on a message.
pub(crate) fn properties(number: u64, level: Option<u32>) -> Properties {
    let mut properties = Properties::new();
    properties.set("UNIQ_KEY", format!("7F000001000A2A139E28512B{number:08X}"));
    for (name, value) in [
        ("WAIT", "true"),
        ("TAGS", "TagA"),
        ("MSG_REGION", "DefaultRegion"),
        ("TRACE_ON", "true"),
        ("CLUSTER", "DefaultCluster"),
    ] {
        properties.set(name, value);
    }
    properties.set("KEYS", format!("order-{number}"));
    if let Some(level) = level {
        properties.set("DELAY", level.to_string());
    }
    properties
}

/// A message as the broker hands it to the store.
pub(crate) fn draft(number: u64, body_bytes: usize, level: Option<u32>) -> MessageDraft {
    MessageDraft {
        topic: Topic::from(TOPIC),
        queue_id: QUEUE,
        flag: 0,
        sys_flag: SysFlag(0),
        born_at: START,
        born_host: ([127, 0, 0, 1], 54321).into(),
        store_host: ([127, 0, 0, 1], 10911).into(),
        reconsume_times: 0,
        prepared_offset: 0,
        properties: properties(number, level),
        body: body(body_bytes),
    }
}

fn body(bytes: usize) -> Bytes {
    let mut rng = fastrand::Rng::with_seed(1);
    std::iter::repeat_with(|| rng.u8(..)).take(bytes).collect()
}

/// A send of one message as our client writes it.
pub(crate) fn send(number: u64, level: Option<u32>) -> Command {
    let properties = properties(number, level);
    let header = SendHeader {
        producer_group: "latermq_send".into(),
        topic: TOPIC.into(),
        default_topic: "TBW102".into(),
        default_topic_queue_nums: 4,
        queue_id: 3,
        sys_flag: 0,
        born_timestamp: START.0,
        flag: 0,
        properties: Some(String::from_utf8_lossy(properties.as_bytes()).into_owned().into()),
        reconsume_times: Some(0),
        unit_mode: Some(false),
        max_reconsume_times: None,
        batch: Some(false),
        broker_name: Some("broker-a".into()),
    };
    Command::request(RequestCode::SEND_MESSAGE_V2).with_ext(header.encode_short()).with_body(body(BODY_BYTES))
}

/// A pull of at most `count` messages as our client writes it.
pub(crate) fn pull(offset: i64, count: i32) -> Command {
    let header = PullHeader {
        consumer_group: "latermq_consume".into(),
        topic: TOPIC.into(),
        queue_id: 3,
        queue_offset: offset,
        max_msg_nums: count,
        sys_flag: pull_flag::SUBSCRIPTION,
        commit_offset: 0,
        suspend_timeout_ms: 15_000,
        subscription: Some("*".into()),
        sub_version: 0,
        expression_type: Some("TAG".into()),
        max_msg_bytes: None,
        broker_name: Some("broker-a".into()),
    };
    Command::request(RequestCode::PULL_MESSAGE).with_ext(header.encode())
}

/// A broker with its store and its scheduler, without threads and sockets.
pub(crate) struct World {
    pub(crate) clock: TestClock,
    pub(crate) store: Arc<MessageStore>,
    pub(crate) scheduler: Arc<LevelScheduler>,
    pub(crate) broker: Arc<Broker>,
    pub(crate) connection: Arc<Connection>,
    /// The number of the next message.
    next: u64,
}

/// The broker's topics, which there are only once the store is open.
#[derive(Default)]
struct LateTopics(OnceLock<Arc<Topics>>);

impl RealTopics for LateTopics {
    fn resolve(&self, topic: &str, queue_id: u32, waiting_since: PhysicalOffset) -> RealQueue {
        let topics = self.0.get().expect("set before anything is appended");
        match topics.resolve(topic, QueueId(queue_id), waiting_since) {
            Resolved::Queue(queue_id) => RealQueue::Deliver(queue_id),
            Resolved::Deleted => RealQueue::Deleted,
        }
    }
}

/// Store options with files that are small enough to be made and thrown away often.
pub(crate) fn store_options() -> StoreOptions {
    StoreOptions { segment_bytes: 64 << 20, index_slots: 100_000, index_entries: 400_000, ..StoreOptions::default() }
}

impl World {
    /// A broker on the store in a folder, which may be empty.
    pub(crate) fn open(folder: &Path, options: StoreOptions, levels: LevelTable) -> Self {
        let clock = TestClock::new(START);
        let env = Env {
            clock: Arc::new(clock.clone()),
            directory: Arc::new(FsDirectory::open(folder).expect("a folder of our own")),
            fatal: Arc::new(|reason| panic!("the broker would have ended: {reason}")),
        };
        let topics = Arc::new(LateTopics::default());
        let delays = DelayOptions { levels, ..DelayOptions::default() };
        let scheduler = Arc::new(LevelScheduler::new(delays, Arc::clone(&topics) as Arc<dyn RealTopics>));
        let plugins = vec![Arc::clone(&scheduler) as Arc<dyn Plugin>];
        let store = MessageStore::open(options, env, plugins).expect("a sound store");
        let broker = Broker::new(BrokerOptions::default(), Arc::clone(&store));
        let _ = topics.0.set(Arc::clone(broker.topics()));
        let connection = Connection::unconnected(([10, 0, 0, 7], 4000).into(), ([127, 0, 0, 1], 10911).into());
        Self { clock, store, scheduler, broker, connection, next: 0 }
    }

    /// The next `count` messages.
    pub(crate) fn drafts(&mut self, count: usize, body_bytes: usize, level: Option<u32>) -> Vec<MessageDraft> {
        self.numbers(count).map(|number| draft(number, body_bytes, level)).collect()
    }

    /// The next `count` messages as requests, as one read of a connection brings them.
    pub(crate) fn sends(&mut self, count: usize, level: Option<u32>) -> BytesMut {
        let frames = self.numbers(count).map(|number| encode_whole(&send(number, level)).expect("a small frame"));
        frames.fold(BytesMut::new(), |mut input, frame| {
            input.unsplit(frame);
            input
        })
    }

    fn numbers(&mut self, count: usize) -> std::ops::Range<u64> {
        let first = self.next;
        self.next += count as u64;
        first..self.next
    }

    /// Appends messages that may be restored or pulled later.
    pub(crate) fn append(&mut self, count: usize, level: Option<u32>) {
        for draft in self.drafts(count, BODY_BYTES, level) {
            self.store.append(draft).expect("a store that takes messages");
        }
    }

    /// Makes all that was stored readable.
    pub(crate) fn dispatch(&self) {
        while self.store.dispatch_once(u64::MAX) {}
    }

    /// Appends messages at level 1 and lets the second go by for which they wait.
    pub(crate) fn fill_run(&mut self, count: usize) {
        self.dispatch();
        self.append(count, Some(1));
        self.dispatch();
        self.clock.advance(Duration::from_secs(1));
    }

    /// Restores what is due; gives how many messages that were.
    pub(crate) fn restore(&self) -> usize {
        self.scheduler.tick(self.store.now()).restored
    }

    /// Handles the requests that came in one read, as the task of a connection does.
    pub(crate) fn handle(&self, mut input: BytesMut) {
        let mut requests = VecDeque::new();
        while let Some(request) = frame::decode(&mut input).expect("sound frames") {
            let responder = Responder::new(&self.connection, &request);
            requests.push_back((request, responder));
        }
        while !requests.is_empty() {
            self.broker.handle_some(&self.connection, &mut requests);
        }
    }

    /// What was answered since.
    pub(crate) fn answers(&self) -> Vec<Command> {
        self.connection.take_sent()
    }

    /// Handles one request to the end: gives the answer, and its frame without the body.
    pub(crate) fn answer(&self, request: BytesMut) -> (Command, BytesMut) {
        self.handle(request);
        let answer = self.answers().pop().expect("an answer");
        assert_eq!(answer.code, 0, "{:?}", answer.remark);
        let mut frame = BytesMut::new();
        frame::encode(&answer, &mut frame).expect("a small frame");
        (answer, frame)
    }

    /// How many bytes of log there are.
    pub(crate) fn log_bytes(&self) -> u64 {
        let (from, to) = self.store.log_range();
        to.since(from)
    }
}
