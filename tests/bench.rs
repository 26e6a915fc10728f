//! Each sub-command of `latermq bench` against a built broker: not how fast, but whether its report is true.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// The delay levels of these tests.
const LEVELS: &str = "1s 2s 1h";

#[test]
fn acknowledged_messages_are_what_the_log_grew_by_with_either_header_one_by_one_and_in_batches() {
    let broker = Broker::start();
    for (header, batch) in [("json", "1"), ("binary", "1"), ("json", "8"), ("binary", "8")] {
        let args = ["send", "-n", "1600", "--header", header, "--batch", batch, "--body", "100", "--queues", "3"];
        let report = broker.bench(&args);

        assert_eq!((&report["acknowledged"], &report["messages"]), (&1600.into(), &1600.into()), "{report}");
        assert_eq!(report["log"]["queued"], 1600, "{report}");
        assert!(report["log"]["bytes"].as_u64().unwrap() > 1600 * 100, "{report}");
        assert_eq!(report["latencies"]["answer"]["count"], 1600 / batch.parse::<u32>().unwrap());
        assert!(report["errors"].as_object().unwrap().is_empty());
    }
}

#[test]
fn a_delayed_send_fills_the_level_and_an_unwilling_broker_is_an_error_and_no_message() {
    let broker = Broker::start();
    let report = broker.bench(&["send", "-n", "300", "--levels", "3", "--answer", "async"]);
    assert_eq!((&report["acknowledged"], &report["log"]["queued"]), (&300.into(), &300.into()), "{report}");

    let report = broker.bench(&["send", "-n", "10", "-c", "1", "--levels", "3", "--body", "100000"]);
    let errors: Vec<_> = report["errors"].as_object().unwrap().iter().collect();
    assert_eq!((&report["acknowledged"], &report["log"]["queued"]), (&0.into(), &0.into()), "{report}");
    assert_eq!((errors.len(), &errors[0].1[0]), (1, &10.into()), "{report}");
}

#[test]
fn at_a_fixed_rate_latencies_count_from_the_time_each_message_was_due() {
    let broker = Broker::start();
    let svg = broker.folder.path().join("send.svg");
    let plot = svg.to_str().unwrap();
    let args = ["send", "--rate", "500", "-s", "1.5", "--warm-up", "0.5", "--plot", plot, "--label", "pending=0"];
    let report = broker.bench(&args);

    // The number due in that time, whatever the machine did.
    assert!((740..=760).contains(&report["messages"].as_u64().unwrap()), "{report}");
    assert_eq!(report["latencies"]["written after its time"]["count"], report["latencies"]["answer"]["count"]);
    assert_eq!(report["labels"]["pending"], "0");
    let pid = u64::from(broker.process.id());
    assert!(report["broker"]["rssAnon"].as_u64().unwrap() > 0, "the broker is found by its port: {pid}");
    let picture = fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("latency in ms, by percentile"));
}

#[test]
fn consume_counts_every_message_as_often_as_it_reads() {
    let broker = Broker::start();
    broker.bench(&["send", "-n", "1000", "--queues", "2"]);
    for header in ["json", "binary"] {
        let report = broker.bench(&["consume", "--queues", "2", "--times", "3", "--header", header]);
        assert_eq!(report["messages"], 3000, "{report}");
        // A pull gives at most 32; each queue ends with a pull that finds nothing.
        assert_eq!(report["latencies"]["pull"]["count"], 3 * 2 * (500_u32.div_ceil(32) + 1), "{report}");
    }
}

#[test]
fn lateness_and_soak_follow_every_message_and_find_no_broken_promise() {
    let broker = Broker::start();
    let report = broker.bench(&["lateness", "-n", "400", "--levels", "1,2"]);
    assert_eq!(report["latencies"]["late, store time"]["count"], 400, "{report}");
    assert_eq!(report["latencies"]["late, received"]["count"], 400, "{report}");

    let report = broker.bench(&["soak", "-n", "600", "--topics", "2", "--queues", "2", "--levels", "0:1,1:1,2:1"]);
    let sound = "acknowledged received lost repeated early outOfOrder withoutWaitingRecord".split(' ');
    let values: Vec<&Value> = sound.map(|name| &report["ledger"][name]).collect();
    assert_eq!(values, [600, 600, 0, 0, 0, 0, 0], "{report}");
    let count = |name: &str| report["latencies"][name]["count"].as_u64().unwrap();
    assert!((190..=210).contains(&count("no delay, received")), "one in three, {report}");
    assert_eq!(count("no delay, received") + count("late, store time"), 600);
}

#[test]
fn a_burst_counts_what_was_due_in_its_second_and_what_was_stored_by_its_end() {
    let broker = Broker::start();
    let report = broker.bench(&["burst", "-n", "2000", "--levels", "1,2"]);

    let figure = |name: &str| report["figures"][name].as_f64().unwrap();
    assert_eq!((&report["acknowledged"], figure("missing")), (&2000.into(), 0.0), "{report}");
    let due = figure("messages due in the second");
    assert!(due > 0.0 && due <= 2000.0 && figure("stored again by its end") <= due, "{report}");
    assert_eq!(report["latencies"]["late, store time"]["count"].as_f64(), Some(due));
}

#[test]
fn a_drained_level_is_restored_whole_and_consumed_whole_stopped_or_killed() {
    for more in [&[][..], &["--kill", "--consumers", "--beside", "200"]] {
        let folder = TempDir::new().unwrap();
        let address = free_address();
        let start = start_command(folder.path(), address);
        let args = ["drain", "--start", &start, "--levels", "2", "-n", "1000", "-a", &address.to_string()];
        let report = bench(&[&args[..], more].concat());

        let figure = |name: &str| report["figures"][name].as_f64().unwrap();
        assert_eq!((&report["acknowledged"], figure("missing")), (&1000.into(), 0.0), "{report}");
        let before = figure("restored before the stop");
        assert_eq!(report["messages"].as_f64().unwrap() + before, 1000.0, "{report}");
        assert_eq!(figure("consumed"), 1000.0, "{report}");
        let (answered, restored) = (figure("seconds until it answered"), figure("seconds until the last was restored"));
        assert!(0.0 < answered && answered <= restored, "{report}");
        assert!(restored <= figure("seconds until the last was consumed"), "{report}");
        assert_eq!(more.is_empty(), report["figures"]["sent a second beside"].is_null(), "{report}");
    }
}

#[test]
fn each_restart_is_measured_until_a_send_is_answered() {
    for (more, name) in [(&[][..], "stop"), (&["--kill"], "kill")] {
        let folder = TempDir::new().unwrap();
        let address = free_address();
        let start = start_command(folder.path(), address);
        let listens = address.to_string();
        let args = ["restart", "--start", &start, "--levels", "3", "-n", "500", "--times", "2", "-a", &listens];
        let report = bench(&[&args[..], more].concat());

        assert_eq!(report["acknowledged"], 500, "{report}");
        assert_eq!(report["latencies"]["start until a send"]["count"], 2, "{report}");
        assert_eq!(report["latencies"][name]["count"], 2, "{report}");
        assert!(TcpListener::bind(address).is_ok(), "the broker is stopped at the end");
    }
}

#[test]
fn curves_are_drawn_from_what_runs_printed() {
    let broker = Broker::start();
    let results = broker.folder.path().join("results.jsonl");
    let mut lines = String::new();
    for body in ["16", "1024"] {
        let report = broker.bench(&["send", "-n", "100", "--body", body, "--label", &format!("body={body}")]);
        lines.push_str(&format!("{report}\n"));
    }
    fs::write(&results, lines).unwrap();
    let svg = broker.folder.path().join("body.svg");
    let args = ["plot", results.to_str().unwrap(), "--by", "body", "--plot", svg.to_str().unwrap()];
    let output = run(&args);

    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let picture = fs::read_to_string(svg).unwrap();
    assert!(["messages a second, by body", "p99 in ms, by body"].iter().all(|caption| picture.contains(caption)));
    let args = ["plot", results.to_str().unwrap(), "--by", "pending", "--plot", "/nonexistent"];
    assert_eq!(run(&args).status.code(), Some(1));
}

#[test]
fn a_report_for_people_names_every_percentile_and_both_processes_and_shows_no_progress_to_a_file() {
    let broker = Broker::start();
    let output = run(&["send", "-n", "200", "-a", &broker.address.to_string()]);

    let text = String::from_utf8(output.stdout).unwrap();
    for word in
        ["p50", "p90", "p99", "p99.9", "p99.99", "max", "generator", "broker", "RssAnon", "RssFile", "the log grew"]
    {
        assert!(text.contains(word), "{word} is missing:\n{text}");
    }
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn what_cannot_be_measured_ends_with_code_two_and_what_does_not_answer_with_one() {
    for args in [
        &["send", "--rate", "0"][..],
        &["send", "--rate", "5", "--in-flight", "3"],
        &["lateness", "--levels", "0"],
        &["restart", "--start", "true"],
        &["drain", "-n", "1"],
        &["soak", "--label", "x"],
        &["plot"],
    ] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
    let nobody = free_address().to_string();
    assert_eq!(run(&["send", "-a", &nobody]).status.code(), Some(1));
    assert_eq!(run(&["drain", "--start", "false", "-l", "1", "-n", "1", "-a", &nobody]).status.code(), Some(1));
}

/// A running broker; killed when dropped.
struct Broker {
    process: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Broker {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let settings = settings(folder.path(), "127.0.0.1:0".parse().unwrap());
        let settings: Vec<&str> = settings.iter().flat_map(|setting| ["-s", setting]).collect();
        let mut process = command(&[&["broker", "-s", "logFormat=json"][..], &settings].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = loop {
            let line = lines.next().expect("a broker that serves");
            let value: Value = serde_json::from_str(&line).unwrap_or_default();
            if value["message"] == "serving" {
                break value["advertised"].as_str().unwrap().parse().unwrap();
            }
        };
        // So that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address, folder }
    }

    /// The report of a bench that succeeds.
    fn bench(&self, args: &[&str]) -> Value {
        bench(&[args, &["-a", &self.address.to_string()]].concat())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn settings(folder: &Path, address: SocketAddr) -> Vec<String> {
    vec![
        format!("storePathRootDir={}", folder.join("store").display()),
        format!("listenPort={}", address.port()),
        "namesrvListenAddress=127.0.0.1:0".into(),
        format!("messageDelayLevel={LEVELS}"),
        "mappedFileSizeCommitLog=16777216".into(),
        "maxMessageSize=65536".into(),
        "maxHashSlotNum=1000".into(),
        "maxIndexNum=4000".into(),
    ]
}

fn start_command(folder: &Path, address: SocketAddr) -> String {
    let settings = settings(folder, address).into_iter().map(|setting| format!(" -s '{setting}'"));
    format!("{} broker{}", env!("CARGO_BIN_EXE_latermq"), settings.collect::<String>())
}

/// An address that was free a moment ago, for a broker that is started more than once.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The report of a bench that succeeds.
fn bench(args: &[&str]) -> Value {
    let output = run(&[args, &["-o", "json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {said}{}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn run(args: &[&str]) -> Output {
    command(&[&["bench"], args].concat()).output().unwrap()
}

/// A command in an environment that sets nothing.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latermq"));
    command.args(args).stdin(Stdio::null()).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
    command
}
