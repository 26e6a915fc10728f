//! Clients that open connections only to harm: the memory of the built broker stays within its documented bounds, and others are served.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command as Process, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use bytes::BytesMut;
use latermq::{
    model::Properties,
    protocol::{
        Command, FRAME_BYTES_MAX, RequestCode,
        body::KvTable,
        frame,
        header::{PullHeader, SendHeader, pull_flag},
        json,
    },
    remoting::UNSENT_BYTES_FLOOR,
};
use rustix::process::{Resource, getrlimit};
use serde_json::Value;

/// Far longer than anything here takes; only a hanging test meets it.
const PATIENCE: Duration = Duration::from_secs(120);
const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// What the allocator and the threads of a broker may take besides.
const SLACK: u64 = 64 * MIB;
/// What a connection takes that holds nothing: its task, its socket, and room for one short read.
const CONNECTION: u64 = 32 * KIB;
/// `serverUnfinishedBytesMax` and `serverUnsentBytesMax` of these tests.
const TOTAL: u64 = 32 * MIB;

/// A thousand, or what the limit of open files leaves to two processes that the tests run at a time.
fn connections() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / 3).unwrap_or(usize::MAX).min(1_000)
}

struct Broker {
    process: Child,
    lines: Receiver<String>,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Broker {
    fn start(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("storePathRootDir={}", folder.path().join("store").display());
        let total = TOTAL.to_string();
        let (unfinished, unsent) =
            (format!("serverUnfinishedBytesMax={total}"), format!("serverUnsentBytesMax={total}"));
        let usual = [
            store.as_str(),
            "listenPort=0",
            "namesrvListenAddress=",
            "logFormat=json",
            "mappedFileSizeCommitLog=16777216",
            "maxHashSlotNum=1000",
            "maxIndexNum=4000",
            "diskSpaceWarningLevelRatio=100",
            "serverUnsentBytesPerConnection=1048576",
            &unfinished,
            &unsent,
        ];
        let mut process = Process::new(env!("CARGO_BIN_EXE_latermq"));
        process.arg("broker");
        for setting in usual.iter().chain(settings) {
            process.args(["-s", setting]);
        }
        let mut process = process
            .env_clear()
            .env("HOME", "/nonexistent")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stderr = process.stderr.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut broker = Self { process, lines, address: ([127, 0, 0, 1], 0).into(), _folder: folder };
        let serving = broker.wait_for("serving");
        broker.address = serving["advertised"].as_str().unwrap().parse().unwrap();
        broker
    }

    fn wait_for(&self, message: &str) -> Value {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{message:?} does not come"));
            let value: Value = serde_json::from_str(&line).unwrap_or(Value::String(line));
            if value["message"] == message {
                return value;
            }
        }
    }

    /// The lines with this message that came so far.
    fn seen(&self, message: &str) -> usize {
        let lines = self.lines.try_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        lines.filter(|line| line["message"] == message).count()
    }

    fn connect(&self) -> TcpStream {
        // The kernel takes little for a peer that does not read, so that the broker has to keep it.
        let connect = async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4 * 1024).unwrap();
            socket.connect(self.address).await.unwrap().into_std().unwrap()
        };
        let stream = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap().block_on(connect);
        stream.set_nonblocking(false).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(2))).unwrap();
        stream
    }

    fn connect_many(&self) -> Vec<TcpStream> {
        (0..connections()).map(|_| self.connect()).collect()
    }

    /// Memory of its own that it has now.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * KIB
    }

    fn figures(&self) -> BTreeMap<String, String> {
        let answer = Client::new(self).ask(Command::request(RequestCode::GET_BROKER_RUNTIME_INFO));
        json::from_slice::<KvTable>(&answer.body.to_bytes()).unwrap().table
    }

    fn figure(&self, name: &str) -> u64 {
        self.figures()[name].parse().unwrap()
    }

    /// Waits until a figure is as it should be.
    fn wait_until(&self, name: &str, is_so: impl Fn(u64) -> bool) -> u64 {
        let began = std::time::Instant::now();
        loop {
            let value = self.figure(name);
            if is_so(value) {
                return value;
            }
            assert!(began.elapsed() < PATIENCE, "{name} stays at {value}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An honest client.
struct Client {
    stream: TcpStream,
    input: BytesMut,
}

impl Client {
    fn new(broker: &Broker) -> Self {
        let stream = TcpStream::connect(broker.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, input: BytesMut::new() }
    }

    fn ask(&mut self, request: Command) -> Command {
        self.stream.write_all(&frame::encode_whole(&request).unwrap()).unwrap();
        loop {
            if let Some(answer) = frame::decode(&mut self.input).unwrap() {
                return answer;
            }
            let mut bytes = [0; 64 * 1024];
            let read = self.stream.read(&mut bytes).unwrap();
            assert_ne!(read, 0, "an honest client is cut off");
            self.input.extend_from_slice(&bytes[..read]);
        }
    }

    /// Sends a message; gives its position in the log.
    fn send(&mut self, body: &str) -> String {
        let sent = self.sent(body);
        let id = sent.ext.get("msgId").unwrap();
        u64::from_str_radix(&id[id.len() - 16..], 16).unwrap().to_string()
    }

    fn sent(&mut self, body: &str) -> Command {
        let mut properties = Properties::new();
        properties.set("UNIQ_KEY", "K");
        let header = SendHeader {
            producer_group: "pg".into(),
            topic: "T".into(),
            default_topic: "TBW102".into(),
            default_topic_queue_nums: 1,
            queue_id: 0,
            sys_flag: 0,
            born_timestamp: 0,
            flag: 0,
            properties: Some(String::from_utf8(properties.as_bytes().to_vec()).unwrap().into()),
            reconsume_times: None,
            unit_mode: None,
            max_reconsume_times: None,
            batch: None,
            broker_name: None,
        };
        let send =
            Command::request(RequestCode::SEND_MESSAGE_V2).with_ext(header.encode_short()).with_body(body.to_owned());
        let sent = self.ask(send);
        assert_eq!(sent.code, 0, "{:?}", sent.remark);
        sent
    }

    /// Sends a message and reads it.
    fn assert_served(&mut self) {
        let sent = self.sent("body");
        let pull = PullHeader {
            consumer_group: "g".into(),
            topic: "T".into(),
            queue_id: 0,
            queue_offset: sent.ext.i64("queueOffset").unwrap().unwrap(),
            max_msg_nums: 1,
            sys_flag: pull_flag::SUBSCRIPTION | pull_flag::SUSPEND,
            commit_offset: 0,
            suspend_timeout_ms: 20_000,
            subscription: Some("*".into()),
            sub_version: 0,
            expression_type: None,
            max_msg_bytes: None,
            broker_name: None,
        };
        let pulled = self.ask(Command::request(RequestCode::PULL_MESSAGE).with_ext(pull.encode()));
        assert_eq!(pulled.code, 0, "{:?}", pulled.remark);
    }
}

/// The first bytes of a frame as long as is allowed.
fn announcement() -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&u32::try_from(FRAME_BYTES_MAX - 4).unwrap().to_be_bytes());
    bytes[6] = 1;
    bytes
}

#[test]
fn b96_announced_frames_of_16_megabytes_take_no_memory_and_begun_ones_only_up_to_the_bound() {
    let broker = Broker::start(&[]);
    let mut honest = Client::new(&broker);
    honest.assert_served();
    let before = broker.memory();

    let mut hostile = broker.connect_many();
    for stream in &mut hostile {
        stream.write_all(&announcement()).unwrap();
    }
    let count = hostile.len() as u64;
    broker.wait_until("unfinishedFrameBytes", |bytes| bytes >= count * 8);
    honest.assert_served();
    Client::new(&broker).assert_served();
    let announced = broker.memory().saturating_sub(before);
    assert!(announced <= count * CONNECTION + SLACK, "{announced} bytes for {count} announcements");

    // A megabyte of each: a gigabyte, were there no bound.
    let chunk = vec![0; 256 * 1024];
    for _ in 0..4 {
        for stream in &mut hostile {
            // Fails where the broker has had enough.
            let _ = stream.write_all(&chunk);
        }
        honest.assert_served();
    }
    let begun = broker.memory().saturating_sub(before);
    assert!(begun <= 2 * TOTAL + count * CONNECTION + SLACK, "{begun} bytes for {count} begun frames");
    assert!(broker.wait_until("connectionsUnfinishedClosed", |closed| closed > 0) < count);
    assert!(broker.figure("unfinishedFrameBytes") <= TOTAL + count * 4 * KIB);
    let lines = broker.seen("unfinished frames of all connections are too long, connection closed");
    assert!((1..=60).contains(&lines), "{lines} lines: not one for each");

    drop(hostile);
    broker.wait_until("unfinishedFrameBytes", |bytes| bytes == 0);
    honest.assert_served();
}

#[test]
fn b96_connections_that_send_byte_by_byte_take_little_memory() {
    let broker = Broker::start(&[]);
    let mut honest = Client::new(&broker);
    honest.assert_served();
    let before = broker.memory();

    let mut hostile = broker.connect_many();
    let count = hostile.len() as u64;
    let bytes = [&announcement()[..], b"{\"code\":310,\"flag\":0"].concat();
    for (sent, byte) in (1..).zip(&bytes) {
        for stream in &mut hostile {
            stream.write_all(&[*byte]).unwrap();
        }
        broker.wait_until("unfinishedFrameBytes", |bytes| bytes >= count * sent);
        honest.assert_served();
    }

    let taken = broker.memory().saturating_sub(before);
    assert!(taken <= count * CONNECTION + SLACK, "{taken} bytes");
}

#[test]
fn b96_answers_that_nobody_reads_are_bounded_for_each_connection_and_in_all() {
    let broker = Broker::start(&[]);
    let mut honest = Client::new(&broker);
    honest.assert_served();
    let stored = honest.send(&"x".repeat(100_000));
    let view =
        Command::request(RequestCode::VIEW_MESSAGE_BY_ID).with_ext([("offset", stored.as_str())].into_iter().collect());
    let question = frame::encode_whole(&view).unwrap();
    let answer_bytes = honest.ask(view).body.len() as u64;
    assert!(answer_bytes > 100_000);
    let before = broker.memory();

    let mut hostile = broker.connect_many();
    let count = hostile.len() as u64;
    // Each asks for 8 MB, by no more bytes than may wait to be handled.
    let questions = question.repeat(usize::try_from(8 * MIB / answer_bytes).unwrap());
    assert!(count * questions.len() as u64 <= TOTAL);
    for part in hostile.chunks_mut(100) {
        for stream in part {
            let _ = stream.write_all(&questions);
        }
        honest.assert_served();
    }
    broker.wait_until("unsentReplyBytes", |bytes| bytes >= TOTAL / 2);
    let (mut taken, mut unsent) = (0, 0);
    for _ in 0..50 {
        honest.assert_served();
        Client::new(&broker).assert_served();
        taken = taken.max(broker.memory().saturating_sub(before));
        unsent = unsent.max(broker.figure("unsentReplyBytes"));
    }

    let bound =
        2 * (TOTAL + count * (UNSENT_BYTES_FLOOR as u64 + answer_bytes)) + 2 * TOTAL + count * CONNECTION + SLACK;
    assert!(taken <= bound, "{taken} bytes, more than {bound}");
    assert!(unsent <= TOTAL + count * (UNSENT_BYTES_FLOOR as u64 + 2 * answer_bytes), "{unsent} bytes unsent");
    assert!(unsent >= TOTAL / 2, "{unsent}");
    drop(hostile);
    broker.wait_until("unsentReplyBytes", |bytes| bytes <= 2 * answer_bytes);
    honest.assert_served();
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    let broker = Broker::start(&[]);
    let mut honest = Client::new(&broker);
    honest.assert_served();
    let cycle = |count: usize| {
        for number in 0..count {
            let mut stream = broker.connect();
            if number % 2 == 0 {
                stream.write_all(&announcement()[..number % 8]).unwrap();
            }
        }
        broker.wait_until("connections", |connections| connections <= 2);
    };
    cycle(500);
    let before = broker.memory();

    cycle(5_000);

    let taken = broker.memory().saturating_sub(before);
    assert!(taken <= SLACK / 4, "{taken} bytes");
    honest.assert_served();
}

#[test]
fn more_connections_than_allowed_are_closed_and_those_before_are_served() {
    let broker = Broker::start(&["serverConnectionsMax=20"]);
    let mut honest = Client::new(&broker);
    let mut known = Client::new(&broker);
    honest.assert_served();
    let mut open: Vec<TcpStream> = (0..18).map(|_| broker.connect()).collect();

    for _ in 0..200 {
        let mut refused = broker.connect();
        refused.set_read_timeout(Some(PATIENCE)).unwrap();
        // An end or a reset: both say no.
        assert!(matches!(refused.read(&mut [0]), Ok(0) | Err(_)));
    }

    honest.assert_served();
    let answer = known.ask(Command::request(RequestCode::GET_BROKER_RUNTIME_INFO));
    let figures = json::from_slice::<KvTable>(&answer.body.to_bytes()).unwrap().table;
    assert_eq!((figures["connections"].as_str(), figures["connectionsRefused"].as_str()), ("20", "200"));
    let lines = broker.seen("too many connections, one refused");
    assert!((1..100).contains(&lines), "{lines} lines");
    open.clear();
    drop(honest);
    loop {
        // As soon as the broker has noticed.
        let mut again = broker.connect();
        again.set_read_timeout(Some(PATIENCE)).unwrap();
        let question = frame::encode_whole(&Command::request(RequestCode::GET_BROKER_RUNTIME_INFO)).unwrap();
        if again.write_all(&question).is_ok() && matches!(again.read(&mut [0]), Ok(1)) {
            break;
        }
    }
}

#[test]
fn silent_connections_are_closed_after_the_idle_time() {
    let broker = Broker::start(&["serverChannelMaxIdleTimeSeconds=1"]);
    let mut silent: Vec<TcpStream> = (0..50).map(|_| broker.connect()).collect();
    for stream in &mut silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    broker.wait_until("connectionsIdleClosed", |closed| closed == 50);
    Client::new(&broker).assert_served();
}
