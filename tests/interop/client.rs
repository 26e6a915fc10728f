//! The client programs: how they are built, started and told what to do.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::SOON;
use crate::broker::Broker;

/// How long a command may take.
const COMMAND_MAX: Duration = Duration::from_secs(120);

/// Which official client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the names stand in the names of tests")]
pub(crate) enum Kind {
    /// Java, the current major version.
    java_5,
    /// Java, the last of the major version before it.
    java_4,
    /// Go.
    go,
}

impl Kind {
    /// Builds the program, unless this test run did already, and says how to start it.
    fn program(self) -> Command {
        static BUILT: Mutex<Option<HashMap<Kind, Vec<String>>>> = Mutex::new(None);
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        let words = built.get_or_insert_default().entry(self).or_insert_with(|| match self {
            Self::java_5 => build_java("5.3.3"),
            Self::java_4 => build_java("4.9.8"),
            Self::go => build_go(),
        });
        let mut program = Command::new(&words[0]);
        program.args(&words[1..]);
        program
    }
}

fn build_java(version: &str) -> Vec<String> {
    let target = built_folder().join(format!("java-{version}"));
    need("javac", "-version", "a Java development kit, 11 or newer (Debian: default-jdk-headless)");
    need("mvn", "-version", "Maven (Debian: maven)");
    let mut maven = Command::new("mvn");
    maven.args([
        "-B",
        "-q",
        &format!("-Drocketmq.version={version}"),
        &format!("-Dtarget={}", target.display()),
        "compile",
    ]);
    build(maven.current_dir(source_folder("java")));
    let class_path = format!("{0}/classes:{0}/lib/*", target.display());
    let home = format!("-Duser.home={}", target.display()); // where the client keeps its log and the offsets of broadcasting
    ["java", "-Xmx512m", "-XX:+UseSerialGC", &home, "-cp", &class_path, "Interop"].map(str::to_owned).to_vec()
}

fn build_go() -> Vec<String> {
    let program = built_folder().join("go");
    need("go", "version", "Go 1.19 or newer (Debian: golang)");
    let mut go = Command::new("go");
    go.arg("build").arg("-o").arg(&program).arg(".");
    build(go.current_dir(source_folder("go")));
    vec![program.display().to_string()]
}

pub(crate) fn need(tool: &str, version: &str, what: &str) {
    let found = Command::new(tool).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(found.is_ok_and(|status| status.success()), "`{tool}` does not run; the interop tests need {what}");
}

pub(crate) fn build(command: &mut Command) {
    let output = command.output().expect("a tool that was found to run");
    assert!(
        output.status.success(),
        "{command:?} failed:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

pub(crate) fn built_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop")
}

pub(crate) fn source_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(name)
}

type Waiting = Arc<Mutex<HashMap<u64, Sender<Value>>>>;

/// A running client program.
pub(crate) struct Client {
    kind: Kind,
    process: Mutex<Child>,
    commands: Mutex<ChildStdin>,
    waiting: Waiting,
    next_id: AtomicU64,
}

impl Client {
    /// The program that serves all tests; it ends with the test run.
    pub(crate) fn shared(kind: Kind) -> &'static Self {
        static JAVA_5: OnceLock<Client> = OnceLock::new();
        static JAVA_4: OnceLock<Client> = OnceLock::new();
        static GO: OnceLock<Client> = OnceLock::new();
        let shared = match kind {
            Kind::java_5 => &JAVA_5,
            Kind::java_4 => &JAVA_4,
            Kind::go => &GO,
        };
        shared.get_or_init(|| Self::start(kind))
    }

    /// A process of its own, which a test may kill.
    pub(crate) fn start(kind: Kind) -> Self {
        let mut process = kind
            .program()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a client that was built");
        let commands = process.stdin.take().expect("piped");
        let events = BufReader::new(process.stdout.take().expect("piped"));
        let waiting = Waiting::default();
        let receivers = Arc::clone(&waiting);
        thread::spawn(move || {
            for line in events.lines().map_while(Result::ok) {
                let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
                let id = event["id"].as_u64().expect("events carry the id of their command");
                if let Some(sender) = receivers.lock().unwrap_or_else(PoisonError::into_inner).get(&id) {
                    // Nobody may listen to a consumer any more.
                    let _ = sender.send(event);
                }
            }
            receivers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        Self { kind, process: Mutex::new(process), commands: Mutex::new(commands), waiting, next_id: AtomicU64::new(1) }
    }

    /// Which client it is.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Ends the process without a word to the broker (signal 9).
    pub(crate) fn kill(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.kill().expect("a process to kill");
        process.wait().expect("the end of the process");
    }

    /// Gives a command and returns what it prints until it is done.
    pub(crate) fn run(&self, broker: &Broker, command: Value) -> Vec<Value> {
        self.begin(broker, command).finish()
    }

    /// As `run`; the error is the last event of a command that failed.
    pub(crate) fn try_run(&self, broker: &Broker, command: Value) -> Result<Vec<Value>, Value> {
        self.begin(broker, command).try_finish()
    }

    /// Gives a command and returns at once.
    pub(crate) fn begin(&self, broker: &Broker, mut command: Value) -> Events {
        command["namesrv"] = json!(broker.namesrv());
        command["broker"] = json!(broker.address());
        self.give(command)
    }

    fn give(&self, mut command: Value) -> Events {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        command["id"] = json!(id);
        let (sender, receiver) = channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        if writeln!(commands, "{command}").is_err() {
            // It has ended; whoever waits for an event is told.
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
        Events { kind: self.kind, command, receiver }
    }

    pub(crate) fn create_topic(&self, broker: &Broker, topic: &str, queues: u32) {
        self.run(broker, json!({"do": "createTopic", "topic": topic, "queues": queues}));
    }

    /// Sends what the command says and returns the results in the order they came.
    pub(crate) fn send(&self, broker: &Broker, mut command: Value) -> Vec<Sent> {
        command["do"] = json!("send");
        self.run(broker, command)
            .into_iter()
            .map(|event| serde_json::from_value(event).expect("the result of a send"))
            .collect()
    }

    /// Starts a push consumer.
    pub(crate) fn consume<'a>(&'a self, broker: &Broker, mut command: Value) -> Consumer<'a> {
        let name =
            format!("consumer-{}-{}", self.next_id.load(Ordering::Relaxed), broker.namesrv().replace([':', '.'], "-"));
        command["do"] = json!("consume");
        command["name"] = json!(name);
        let events = self.begin(broker, command);
        // A message may come before the start is done.
        let mut early = Vec::new();
        loop {
            let event = events
                .receiver
                .recv_timeout(COMMAND_MAX)
                .unwrap_or_else(|end| panic!("{:?}: no start of {}: {end}", self.kind, events.command));
            if event["done"].is_null() {
                early.push(event);
            } else {
                assert!(event["error"].is_null(), "{:?}: {} failed: {event}", self.kind, events.command);
                break;
            }
        }
        Consumer { client: self, name, early: Mutex::new(early), events }
    }

    /// Everything that lies in a topic now.
    pub(crate) fn pull(&self, broker: &Broker, topic: &str) -> Vec<Message> {
        let pulled = self.run(broker, json!({"do": "pull", "topic": topic, "group": "interop_pull"}));
        pulled.into_iter().map(Message::from).collect()
    }

    /// The messages of a dead letter queue, once there are `count` of them.
    pub(crate) fn pull_dead(&self, broker: &Broker, group: &str, count: usize) -> Vec<Message> {
        let begun = Instant::now();
        loop {
            // Until the first message there is no such topic.
            let command = json!({"do": "pull", "topic": format!("%DLQ%{group}"), "group": "interop_pull"});
            let pulled = self.try_run(broker, command).unwrap_or_default();
            if pulled.len() >= count {
                return pulled.into_iter().map(Message::from).collect();
            }
            assert!(begun.elapsed() < SOON, "{:?}: {} of {count} dead letters of {group}", self.kind, pulled.len());
            thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have ended already, which is all that is wanted.
        let _ = process.kill();
        let _ = process.wait();
    }
}

/// What a command prints.
pub(crate) struct Events {
    kind: Kind,
    command: Value,
    receiver: Receiver<Value>,
}

impl Events {
    /// What it prints from now on until it is done.
    pub(crate) fn finish(self) -> Vec<Value> {
        let (kind, command) = (self.kind, self.command.clone());
        self.try_finish().unwrap_or_else(|failure| panic!("{kind:?}: {command} failed: {failure}"))
    }

    /// As `finish`; the error is the last event of a command that failed.
    fn try_finish(self) -> Result<Vec<Value>, Value> {
        let begun = Instant::now();
        let mut printed = Vec::new();
        loop {
            let left = COMMAND_MAX.saturating_sub(begun.elapsed());
            let Ok(event) = self.receiver.recv_timeout(left) else {
                panic!("{:?}: no end of {}", self.kind, self.command);
            };
            match (&event["done"], &event["error"]) {
                (Value::Null, _) => printed.push(event),
                (_, Value::Null) => return Ok(printed),
                (_, _) => return Err(event),
            }
        }
    }
}

/// A running push consumer.
pub(crate) struct Consumer<'a> {
    client: &'a Client,
    name: String,
    early: Mutex<Vec<Value>>,
    events: Events,
}

impl Consumer<'_> {
    /// The next `count` messages, in the order they came.
    pub(crate) fn take(&self, count: usize, within: Duration) -> Vec<Message> {
        let messages = self.take_up_to(count, within);
        assert_eq!(
            messages.len(),
            count,
            "{:?}: {} got fewer messages than expected within {within:?}; the last is {:?}",
            self.client.kind,
            self.events.command,
            messages.last(),
        );
        messages
    }

    /// As many of the next `count` messages as come in time.
    pub(crate) fn take_up_to(&self, count: usize, within: Duration) -> Vec<Message> {
        let begun = Instant::now();
        let mut messages = Vec::new();
        while messages.len() < count {
            match self.next(within.saturating_sub(begun.elapsed())) {
                Some(message) => messages.push(message),
                None => break,
            }
        }
        messages
    }

    /// The next message, if one comes in time and before the client ends.
    pub(crate) fn next(&self, within: Duration) -> Option<Message> {
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        if !early.is_empty() {
            return Some(Message::from(early.remove(0)));
        }
        self.events.receiver.recv_timeout(within).ok().map(Message::from)
    }

    /// Fails if another message comes within this time.
    pub(crate) fn expect_nothing_for(&self, quiet: Duration) {
        if let Some(message) = self.next(quiet) {
            panic!("{:?}: {} got one message too many: {message:?}", self.client.kind, self.events.command);
        }
    }

    /// Stops the consumer and returns what it got before it stopped.
    pub(crate) fn stop(self) -> Vec<Message> {
        self.client.give(self.stop_command()).finish();
        self.take_up_to(usize::MAX, Duration::ZERO)
    }

    fn stop_command(&self) -> Value {
        json!({"do": "stop", "name": self.name})
    }
}

impl Drop for Consumer<'_> {
    fn drop(&mut self) {
        // Stopping it twice does no harm.
        self.client.give(self.stop_command());
    }
}

/// A message as a consumer got it; times in milliseconds since the Unix epoch.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Message {
    pub(crate) topic: String,
    pub(crate) queue_id: u32,
    pub(crate) queue_offset: u64,
    #[serde(default)]
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) tag: String,
    pub(crate) bytes: usize,
    pub(crate) crc: u32,
    pub(crate) properties: HashMap<String, String>,
    pub(crate) reconsume_times: u32,
    pub(crate) born: u64,
    pub(crate) stored: u64,
    pub(crate) received: u64,
    pub(crate) unique_key: String,
    pub(crate) offset_msg_id: String,
}

impl From<Value> for Message {
    fn from(event: Value) -> Self {
        serde_json::from_value(event.clone()).unwrap_or_else(|error| panic!("{event} is not a message: {error}"))
    }
}

impl Message {
    /// The property, or nothing.
    pub(crate) fn property(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(String::as_str)
    }
}

/// What became of a send.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Sent {
    /// `SEND_OK`, another status, or `REFUSED`.
    pub(crate) status: String,
    pub(crate) key: String,
    pub(crate) queue_id: u32,
    pub(crate) queue_offset: u64,
    pub(crate) offset_msg_id: String,
    pub(crate) unique_key: String,
    pub(crate) crc: u32,
    /// The response code, if the broker refused it.
    pub(crate) code: Option<i32>,
    /// What the client says, if refused.
    pub(crate) error: String,
}
