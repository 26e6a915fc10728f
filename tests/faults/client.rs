//! A client of the broker: one connection, one thread, no retries. What is not answered is not known.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, SystemTime},
};

use bytes::BytesMut;
use latermq::{
    model::{Properties, names},
    protocol::{
        Command, RequestCode, ResponseCode,
        body::{KvTable, TopicConfigs},
        frame,
        header::{
            CreateTopicHeader, OffsetReplyHeader, PullHeader, PullReplyHeader, QueryConsumerOffsetHeader, QueueHeader,
            SendBackHeader, SendHeader, SendReplyHeader, TopicHeader, UpdateConsumerOffsetHeader, pull_flag,
        },
        json,
    },
    record::{BatchMember, Record, Records, encode_batch},
};

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The group of whoever reads a queue without being a consumer.
const READER: &str = "reader";

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    input: BytesMut,
    opaque: i32,
}

/// A message to send.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) topic: String,
    pub(crate) queue_id: i32,
    /// 0: it does not wait.
    pub(crate) level: usize,
    pub(crate) key: String,
    pub(crate) bytes: usize,
}

/// The answer to a pull.
pub(crate) struct Pulled {
    pub(crate) records: Vec<Record>,
    pub(crate) next: i64,
    pub(crate) min: i64,
    pub(crate) max: i64,
}

impl Message {
    pub(crate) fn new(topic: &str, queue_id: i32, level: usize, key: impl Into<String>) -> Self {
        Self { topic: topic.to_owned(), queue_id, level, key: key.into(), bytes: 100 }
    }

    pub(crate) fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// The body: its key, again and again.
    pub(crate) fn body(&self) -> Vec<u8> {
        self.key.bytes().chain([b' ']).cycle().take(self.bytes.max(1)).collect()
    }

    fn properties(&self) -> Properties {
        let mut properties = Properties::new();
        properties.set(names::KEYS, &self.key);
        properties.set(names::UNIQ_KEY, &self.key);
        properties.set(names::WAIT, "true");
        if self.level > 0 {
            properties.set(names::DELAY, self.level.to_string());
        }
        properties
    }

    fn header(&self, properties: &Properties, batch: bool) -> SendHeader {
        SendHeader {
            producer_group: "producers".into(),
            topic: self.topic.as_str().into(),
            default_topic: "TBW102".into(),
            default_topic_queue_nums: 4,
            queue_id: self.queue_id,
            sys_flag: 0,
            born_timestamp: now_ms(),
            flag: 0,
            properties: Some(String::from_utf8(properties.as_bytes().to_vec()).unwrap().into()),
            reconsume_times: Some(0),
            unit_mode: Some(false),
            max_reconsume_times: None,
            batch: Some(batch),
            broker_name: None,
        }
    }

    pub(crate) fn request(&self) -> Command {
        let header = self.header(&self.properties(), false);
        Command::request(RequestCode::SEND_MESSAGE_V2).with_ext(header.encode_short()).with_body(self.body())
    }

    /// One request for messages that do not wait and share topic and queue.
    pub(crate) fn batch_request(messages: &[Self]) -> Command {
        let member = |message: &Self| BatchMember {
            flag: 0,
            body: message.body().into(),
            properties: message.properties().as_bytes().to_vec().into(),
        };
        let members: Vec<BatchMember> = messages.iter().map(member).collect();
        let header = messages[0].header(&Properties::new(), true);
        Command::request(RequestCode::SEND_BATCH_MESSAGE)
            .with_ext(header.encode_short())
            .with_body(encode_batch(&members).unwrap())
    }
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Self { stream, input: BytesMut::new(), opaque: 0 })
    }

    /// Sends a request; gives the number that its answer will have.
    pub(crate) fn ask(&mut self, mut command: Command) -> io::Result<i32> {
        self.opaque += 1;
        command.opaque = self.opaque;
        let frame = frame::encode_whole(&command).map_err(io::Error::other)?;
        self.stream.write_all(&frame)?;
        Ok(self.opaque)
    }

    /// The next answer.
    pub(crate) fn answer(&mut self) -> io::Result<Command> {
        loop {
            while let Some(command) = frame::decode(&mut self.input).map_err(io::Error::other)? {
                if command.is_response() {
                    return Ok(command);
                }
            }
            let mut bytes = [0; 64 * 1024];
            match self.stream.read(&mut bytes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.input.extend_from_slice(&bytes[..count]),
            }
        }
    }

    pub(crate) fn call(&mut self, command: Command) -> io::Result<Command> {
        let opaque = self.ask(command)?;
        let answer = self.answer()?;
        assert_eq!(answer.opaque, opaque, "an answer to something else: {answer:?}");
        Ok(answer)
    }

    /// As [`Client::call`]; an answer that says no is an error.
    fn done(&mut self, command: Command) -> io::Result<Command> {
        let code = command.code;
        let answer = self.call(command)?;
        if answer.code == ResponseCode::SUCCESS {
            Ok(answer)
        } else {
            Err(io::Error::other(format!("request {code} was answered with {}: {:?}", answer.code, answer.remark)))
        }
    }

    /// Sends a message; an error if it was not answered SEND_OK.
    pub(crate) fn send(&mut self, message: &Message) -> io::Result<SendReplyHeader> {
        let answer = self.done(message.request())?;
        SendReplyHeader::decode(&answer.ext).map_err(io::Error::other)
    }

    /// One pull, held by the broker for at most `hold`.
    pub(crate) fn pull(&mut self, topic: &str, queue_id: i32, offset: i64, hold: Duration) -> io::Result<Pulled> {
        let may_be_held = if hold.is_zero() { 0 } else { pull_flag::SUSPEND };
        let header = PullHeader {
            consumer_group: READER.into(),
            topic: topic.into(),
            queue_id,
            queue_offset: offset,
            max_msg_nums: 32,
            sys_flag: pull_flag::SUBSCRIPTION | may_be_held,
            commit_offset: 0,
            suspend_timeout_ms: i64::try_from(hold.as_millis()).unwrap(),
            subscription: Some("*".into()),
            sub_version: 0,
            expression_type: None,
            max_msg_bytes: None,
            broker_name: None,
        };
        let answer = self.call(Command::request(RequestCode::PULL_MESSAGE).with_ext(header.encode()))?;
        let found = answer.code == ResponseCode::SUCCESS;
        let nothing =
            [ResponseCode::PULL_NOT_FOUND, ResponseCode::PULL_RETRY_IMMEDIATELY, ResponseCode::PULL_OFFSET_MOVED];
        if !found && !nothing.contains(&answer.code) {
            let remark = answer.remark.unwrap_or_default();
            return Err(io::Error::other(format!("a pull of {topic} {queue_id}: {} {remark}", answer.code)));
        }
        let reply = PullReplyHeader::decode(&answer.ext).map_err(io::Error::other)?;
        let body = if found { answer.body.to_bytes() } else { bytes::Bytes::new() };
        let records = Records::new(body).collect::<Result<_, _>>().map_err(io::Error::other)?;
        Ok(Pulled { records, next: reply.next_begin_offset, min: reply.min_offset, max: reply.max_offset })
    }

    /// Every record of a queue, from its first offset on.
    pub(crate) fn read_all(&mut self, topic: &str, queue_id: i32) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        let mut offset = 0;
        loop {
            let pulled = self.pull(topic, queue_id, offset, Duration::ZERO)?;
            let is_last = pulled.records.is_empty() && pulled.next <= offset;
            records.extend(pulled.records);
            if is_last || pulled.next >= pulled.max {
                return Ok(records);
            }
            offset = pulled.next;
        }
    }

    pub(crate) fn create_topic(&mut self, topic: &str, queues: i32) -> io::Result<()> {
        let header = CreateTopicHeader {
            topic: topic.into(),
            default_topic: "TBW102".into(),
            read_queue_nums: queues,
            write_queue_nums: queues,
            perm: 6,
            topic_filter_type: "SINGLE_TAG".into(),
            topic_sys_flag: Some(0),
            order: Some(false),
            attributes: None,
            force: None,
        };
        self.done(Command::request(RequestCode::UPDATE_AND_CREATE_TOPIC).with_ext(header.encode())).map(drop)
    }

    pub(crate) fn delete_topic(&mut self, topic: &str) -> io::Result<()> {
        let header = TopicHeader { topic: topic.into(), cluster_name: None };
        self.done(Command::request(RequestCode::DELETE_TOPIC_IN_BROKER).with_ext(header.encode())).map(drop)
    }

    /// The topics there are, and how many queues each has.
    pub(crate) fn topics(&mut self) -> io::Result<BTreeMap<String, i32>> {
        let answer = self.done(Command::request(RequestCode::GET_ALL_TOPIC_CONFIG))?;
        let configs: TopicConfigs = json::from_slice(&answer.body.to_bytes()).map_err(io::Error::other)?;
        Ok(configs.topic_config_table.into_iter().map(|(topic, config)| (topic, config.read_queue_nums)).collect())
    }

    pub(crate) fn create_group(&mut self, group: &str) -> io::Result<()> {
        let body = format!("{{\"groupName\":\"{group}\"}}");
        self.done(Command::request(RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP).with_body(body)).map(drop)
    }

    pub(crate) fn groups(&mut self) -> io::Result<Vec<String>> {
        let answer = self.done(Command::request(RequestCode::GET_ALL_SUBSCRIPTIONGROUP_CONFIG))?;
        let table: serde_json::Value = json::from_slice(&answer.body.to_bytes()).map_err(io::Error::other)?;
        let groups = table["subscriptionGroupTable"].as_object().cloned().unwrap_or_default();
        Ok(groups.keys().cloned().collect())
    }

    pub(crate) fn commit(&mut self, group: &str, topic: &str, queue_id: i32, offset: i64) -> io::Result<()> {
        let header = UpdateConsumerOffsetHeader {
            consumer_group: group.into(),
            topic: topic.into(),
            queue_id,
            commit_offset: offset,
        };
        self.done(Command::request(RequestCode::UPDATE_CONSUMER_OFFSET).with_ext(header.encode())).map(drop)
    }

    /// The consumer offset of a group; `None` if it has none.
    pub(crate) fn committed(&mut self, group: &str, topic: &str, queue_id: i32) -> io::Result<Option<i64>> {
        let header = QueryConsumerOffsetHeader {
            consumer_group: group.into(),
            topic: topic.into(),
            queue_id,
            set_zero_if_not_found: Some(false),
        };
        let answer = self.call(Command::request(RequestCode::QUERY_CONSUMER_OFFSET).with_ext(header.encode()))?;
        if answer.code == ResponseCode::QUERY_NOT_FOUND {
            return Ok(None);
        }
        OffsetReplyHeader::decode(&answer.ext).map(|reply| Some(reply.offset)).map_err(io::Error::other)
    }

    /// The offset that the next message of a queue gets.
    pub(crate) fn max_offset(&mut self, topic: &str, queue_id: i32) -> io::Result<i64> {
        let header = QueueHeader { topic: topic.into(), queue_id, committed: None };
        let answer = self.done(Command::request(RequestCode::GET_MAX_OFFSET).with_ext(header.encode()))?;
        OffsetReplyHeader::decode(&answer.ext).map(|reply| reply.offset).map_err(io::Error::other)
    }

    /// Gives a message back for a later retry on a level.
    pub(crate) fn send_back(&mut self, group: &str, physical_offset: u64, level: i32) -> io::Result<()> {
        let header = SendBackHeader {
            offset: i64::try_from(physical_offset).unwrap(),
            group: group.into(),
            delay_level: level,
            origin_msg_id: None,
            origin_topic: None,
            unit_mode: Some(false),
            max_reconsume_times: Some(16),
        };
        self.done(Command::request(RequestCode::CONSUMER_SEND_MSG_BACK).with_ext(header.encode())).map(drop)
    }

    pub(crate) fn figures(&mut self) -> io::Result<BTreeMap<String, String>> {
        let answer = self.done(Command::request(RequestCode::GET_BROKER_RUNTIME_INFO))?;
        json::from_slice::<KvTable>(&answer.body.to_bytes()).map(|info| info.table).map_err(io::Error::other)
    }

    /// How many messages wait, on all levels together.
    pub(crate) fn pending(&mut self) -> io::Result<u64> {
        let figures = self.figures()?;
        let pending = figures.iter().filter(|(name, _)| name.starts_with("delayPending{"));
        Ok(pending.map(|(_, value)| value.parse::<f64>().unwrap() as u64).sum())
    }

    /// The value of a figure without labels; 0 if there is none.
    pub(crate) fn figure(&mut self, name: &str) -> io::Result<f64> {
        Ok(self.figures()?.get(name).map_or(0.0, |value| value.parse().unwrap()))
    }
}

/// The key by which the ledger knows a record.
pub(crate) fn key_of(record: &Record) -> String {
    record.view().properties().get(names::KEYS).unwrap_or("(none)").to_owned()
}

/// The wall clock, in milliseconds since the epoch.
pub(crate) fn now_ms() -> i64 {
    i64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap()
}
