//! The command as a person or a script meets it: help, exit codes, messages, and a broker from start to stop.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long a line of a log is waited for before the test fails.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let output = latermq(&["--help"]);

    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    for command in ["broker", "namesrv", "send", "consume", "levels", "topic", "parked", "check", "demo", "bench"] {
        assert!(text.lines().any(|line| line.trim_start().starts_with(command)), "{command} is missing:\n{text}");
        let help = latermq(&[command, "--help"]);
        assert_eq!(help.status.code(), Some(0));
        assert!(stdout(&help).contains("Usage:"));
    }
    assert!(text.contains("Exit codes"), "{text}");
}

/// Scripts trust the exit codes of a check: 2 is damage and nothing else.
#[test]
fn a_check_ends_with_zero_for_a_sound_store_one_if_it_could_not_check_and_two_for_damage() {
    let folder = TempDir::new().unwrap();
    for archive in ["store-5.3.3", "store-5.3.3-killed"] {
        let path = format!("{}/tests/fixtures/stores/{archive}.tar.gz", env!("CARGO_MANIFEST_DIR"));
        let bytes = flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap());
        tar::Archive::new(bytes).unpack(folder.path()).unwrap();
        let store = folder.path().join(archive);
        let store = store.to_str().unwrap();
        let shape = ["-s", "maxHashSlotNum=500", "-s", "maxIndexNum=400"];
        let check = |more: &[&str]| latermq(&[&["check", store], &shape[..], more].concat());

        let sound = check(&["-o", "json"]);
        assert_eq!(sound.status.code(), Some(0), "{}", stderr(&sound));
        let value: Value = serde_json::from_str(&stdout(&sound)).unwrap();
        assert_eq!(value["sound"], true);
        assert_eq!(value["store"]["stoppedCleanly"], archive == "store-5.3.3");
        assert!(value["store"]["log"]["records"].as_u64().unwrap() > 400);
        // Index files of another configuration keep nothing else from being checked; a repair would build them wrong.
        let without_configuration = latermq(&["check", store]);
        assert_eq!(without_configuration.status.code(), Some(0), "{}", stderr(&without_configuration));
        assert!(stdout(&without_configuration).contains("the index was not looked at; name the broker.conf"));
        let repair = latermq(&["check", store, "--repair"]);
        assert_eq!(repair.status.code(), Some(1));
        assert!(stderr(&repair).contains("name the broker.conf of this store"), "{}", stderr(&repair));

        let file =
            std::fs::OpenOptions::new().write(true).open(format!("{store}/commitlog/00000000000000000000")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0x55; 16], 5_000).unwrap();
        drop(file);
        let damaged = check(&["--for-apache"]);
        assert_eq!(damaged.status.code(), Some(2));
        assert!(stdout(&damaged).contains("DAMAGE  commit log: "), "{}", stdout(&damaged));
        assert!(stderr(&damaged).contains("the store is damaged"), "{}", stderr(&damaged));
        assert_eq!(check(&["--repair"]).status.code(), Some(2), "the log itself cannot be repaired");
    }
    for arguments in
        [&["check"][..], &["check", "/nonexistent"], &["check", "--nonsense"], &["check", "/tmp", "-s", "x"]]
    {
        assert_eq!(latermq(arguments).status.code(), Some(1), "{arguments:?}");
    }
    assert_eq!(latermq(&["check", "--help"]).status.code(), Some(0));
}

#[test]
fn a_check_writes_nothing_and_does_not_run_while_a_broker_has_the_store() {
    let folder = TempDir::new().unwrap();
    let (mut broker, name_server) = Server::start_broker(folder.path(), &["-s", "messageDelayLevel=7s 900d"]);
    let store = folder.path().join("store");
    let sent = latermq(&["send", "orders", "text", "-l", "2", "-n", &name_server]);
    assert_eq!(sent.status.code(), Some(0), "{}", stderr(&sent));
    let output = latermq(&["check", store.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("another broker is running on this store"), "{}", stderr(&output));
    assert_eq!(broker.stop(), Some(0));

    let modified = |store: &Path| {
        let entries = std::fs::read_dir(store).unwrap().map(|entry| entry.unwrap());
        let mut times: Vec<_> =
            entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().modified().unwrap())).collect();
        times.sort();
        times
    };
    let before = modified(&store);
    let output = latermq(&["check", store.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert_eq!(modified(&store), before);
    // Without the configuration: what was stored tells how long it waits, not the default table.
    let text = stdout(&latermq(&["check", store.to_str().unwrap(), "--for-apache"]));
    let row: Vec<&str> = text.lines().find(|line| line.contains("days")).unwrap().split_whitespace().collect();
    assert_eq!(row[..3], ["2", "900d", "1"], "{text}");
    assert_eq!(row[row.len() - 5..], ["in", "899", "days", "23", "h"], "{text}");
    assert!(text.contains("is said for the default table"), "{text}");
    assert!(text.contains("the last of them 899 days 23 h early"), "{text}");
}

#[test]
fn wrong_arguments_end_with_code_two() {
    for arguments in [
        &[][..],
        &["nonsense"],
        &["broker", "--nonsense"],
        &["send"],
        &["send", "t", "b", "-l", "0"],
        &["send", "t", "b", "-p", "x"],
        &["send", "t", "b", "-n", "garbage"],
        &["topic", "list", "-n", "127.0.0.1:9876;localhost:x"],
        &["parked", "restore"],
        &["parked", "restore", "--all", "--level", "3"],
    ] {
        assert_eq!(latermq(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_wrong_configuration_ends_with_code_two_and_names_every_error() {
    let folder = TempDir::new().unwrap();
    let conf = folder.path().join("broker.conf");
    std::fs::write(&conf, "listenPort = 99999\n\naclEnable=true\nflushDiskType=NEVER\n").unwrap();

    let output = latermq(&["broker", "-c", conf.to_str().unwrap(), "--set", "listenAddress"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr(&output), "latermq: command line: \"listenAddress\": must be key=value\n");

    let output = latermq(&["broker", "-c", conf.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let file = conf.display();
    let lines: Vec<String> = stderr(&output).lines().map(str::to_owned).collect();
    assert_eq!(lines[0], format!("latermq: {file} line 1: listenPort = 99999: must be a number from 0 to 65535"));
    assert_eq!(
        lines[1],
        format!("latermq: {file} line 4: flushDiskType = NEVER: must be one of ASYNC_FLUSH, SYNC_FLUSH")
    );
    assert!(lines[2].starts_with(&format!("latermq: {file} line 3: aclEnable = true: not supported yet")), "{lines:?}");
}

#[test]
fn schedule_4_a_bad_level_stops_the_start_and_is_named_with_file_key_token_and_position() {
    let folder = TempDir::new().unwrap();
    let conf = folder.path().join("broker.conf");
    std::fs::write(&conf, "messageDelayLevel=1s  5s\n").unwrap();

    let output =
        latermq(&["broker", "-c", conf.to_str().unwrap(), "-s", &store_in(folder.path()), "-s", "listenPort=0"]);

    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    let wanted = format!("latermq: {} line 1: messageDelayLevel = 1s  5s: token 2 \"\" at column 4", conf.display());
    assert!(text.lines().any(|line| line.starts_with(&wanted)), "{text}");
    assert!(!folder.path().join("store").exists());
}

#[test]
fn a_configuration_file_that_is_not_there_ends_with_code_two() {
    let output = latermq(&["broker", "-c", "/nonexistent/broker.conf"]);

    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/nonexistent/broker.conf"));
}

#[test]
fn a_segment_smaller_than_the_largest_record_stops_the_start() {
    let folder = TempDir::new().unwrap();

    let output = latermq(&[
        "broker",
        "-s",
        &store_in(folder.path()),
        "-s",
        "listenPort=0",
        "-s",
        "mappedFileSizeCommitLog=65536",
    ]);

    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("command line: mappedFileSizeCommitLog = 65536: "), "{}", stderr(&output));
}

#[test]
fn print_config_shows_what_is_in_force_and_where_it_comes_from() {
    let output = command(&["broker", "--print-config", "-s", "listenPort=1234", "-n", "10.0.0.1:9876"])
        .env("LATERMQ_MESSAGE_DELAY_LEVEL", "1s 2s")
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    for lines in [
        "# command line\nlistenPort=1234\n",
        "# command line\nnamesrvAddr=10.0.0.1:9876\n",
        "# environment variable LATERMQ_MESSAGE_DELAY_LEVEL\nmessageDelayLevel=1s 2s\n",
        "\nbindAddress=127.0.0.1\n",
    ] {
        assert!(text.contains(lines), "{lines:?} is missing:\n{text}");
    }
}

#[test]
fn without_a_name_server_commands_end_with_code_one_and_say_who_does_not_answer() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");

    for arguments in [&["topic", "list"][..], &["send", "t", "b"], &["levels"], &["consume", "t"]] {
        let output = latermq(&[arguments, &["-n", &address]].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(&address), "{}", stderr(&output));
    }
}

#[test]
fn a_name_server_alone_starts_answers_and_stops() {
    let mut server = Server::start(&["namesrv", "--listen", "127.0.0.1:0", "-s", "logFormat=json"]);
    let started = server.wait_for("name server started");
    let address = started["address"].as_str().unwrap().to_owned();

    let list = latermq(&["topic", "list", "-n", &address, "-o", "json"]);
    let levels = latermq(&["levels", "-n", &address]);

    assert_eq!((list.status.code(), stdout(&list).as_str()), (Some(0), "[]\n"));
    assert_eq!(levels.status.code(), Some(1));
    assert!(stderr(&levels).contains("knows no broker"));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_broker_carries_messages_from_send_to_consume_and_stops_with_code_zero() {
    let folder = TempDir::new().unwrap();
    let (mut broker, name_server) = Server::start_broker(folder.path(), &["-s", "messageDelayLevel=1s 2s"]);

    let created = latermq(&["topic", "create", "orders", "-q", "2", "-n", &name_server]);
    assert_eq!(created.status.code(), Some(0), "{}", stderr(&created));
    for arguments in [&["at once", "-t", "a", "-k", "k1"][..], &["later", "-l", "1", "-p", "colour=blue"]] {
        let sent = latermq(&[&["send", "orders", "-n", &name_server, "-o", "json"], arguments].concat());
        assert_eq!(sent.status.code(), Some(0), "{}", stderr(&sent));
        assert_eq!(json(&sent)["status"], "SEND_OK");
    }
    let consumed = latermq(&["consume", "orders", "-n", &name_server, "-c", "2", "-i", "20", "-o", "json"]);
    assert_eq!(consumed.status.code(), Some(0), "{}", stderr(&consumed));
    let messages: Vec<Value> = stdout(&consumed).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&messages[0]["body"], &messages[0]["properties"]["TAGS"], &messages[0]["latenessMs"]),
        (&"at once".into(), &"a".into(), &Value::Null)
    );
    assert_eq!(
        (&messages[1]["body"], &messages[1]["properties"]["colour"], &messages[1]["level"]),
        (&"later".into(), &"blue".into(), &1.into())
    );
    assert!(messages[1]["latenessMs"].as_i64().unwrap() >= 0);

    let again = latermq(&["consume", "orders", "-n", &name_server, "-c", "1", "-i", "1"]);
    assert_eq!(again.status.code(), Some(1), "what was printed comes again: {}", stdout(&again));

    let levels = latermq(&["levels", "-n", &name_server, "-o", "json"]);
    let levels = json(&levels);
    assert_eq!(levels.as_array().unwrap().len(), 2);
    assert_eq!((&levels[1]["delayMs"], &levels[1]["pending"]), (&2000.into(), &0.into()));

    assert_eq!(broker.stop(), Some(0));
    assert!(!folder.path().join("store/abort").exists());
}

#[test]
fn parked_messages_are_listed_restored_once_and_known_afterwards() {
    let folder = TempDir::new().unwrap();
    let (mut broker, name_server) = Server::start_broker(folder.path(), &["-s", "messageDelayLevel=1s 2s"]);
    let run = |arguments: &[&str]| latermq(&[arguments, &["-n", &name_server]].concat());
    let list_until = |wanted: &dyn Fn(&Output) -> bool| {
        let until = Instant::now() + PATIENCE;
        loop {
            let listed = run(&["parked", "list", "-o", "json"]);
            if wanted(&listed) {
                return listed;
            }
            assert!(Instant::now() < until, "{}", stdout(&listed));
        }
    };
    let states = |output: &Output| {
        let found = json(output);
        let states = found.as_array().unwrap().iter().map(|parked| parked["state"].as_str().unwrap().to_owned());
        states.collect::<Vec<_>>()
    };
    assert_eq!(run(&["topic", "create", "orders"]).status.code(), Some(0));
    for body in ["a", "b"] {
        let sent = run(&["send", "orders", body, "-l", "1", "-t", "blue", "-k", "k1", "-p", "colour=red"]);
        assert_eq!(sent.status.code(), Some(0), "{}", stderr(&sent));
    }
    assert_eq!(run(&["topic", "delete", "orders"]).status.code(), Some(0));
    let listed = list_until(&|listed| states(listed).len() == 2);
    let listed = json(&listed);
    assert_eq!((&listed[0]["reason"], &listed[0]["topic"]), (&"topic deleted".into(), &"orders".into()));
    assert_eq!((&listed[0]["level"], &listed[1]["queueOffset"]), (&1.into(), &1.into()));
    let first = listed[0]["id"].as_str().unwrap();

    let without_topic = run(&["parked", "restore", "--all", "-o", "json"]);
    assert_eq!((without_topic.status.code(), states(&without_topic)), (Some(1), vec!["left".to_owned(); 2]));
    assert_eq!(run(&["topic", "create", "orders"]).status.code(), Some(0));
    let dry = run(&["parked", "restore", "--id", first, "--dry-run", "-o", "json"]);
    assert_eq!((dry.status.code(), states(&dry)), (Some(0), vec!["would be restored".to_owned()]));
    assert_eq!(run(&["parked", "restore", "--level", "2"]).status.code(), Some(1), "nothing was chosen");

    let restored = run(&["parked", "restore", "--id", first, "-o", "json"]);
    assert_eq!(
        (restored.status.code(), states(&restored)),
        (Some(0), vec!["restored".to_owned()]),
        "{}",
        stderr(&restored)
    );
    let is_known = |output: &Output| states(output) == ["restored before", "parked"];
    // At once: a restore ends when what it sent can be found.
    assert!(is_known(&run(&["parked", "list", "-o", "json"])));
    let all = run(&["parked", "restore", "--topic", "orders", "-o", "json"]);
    assert_eq!((all.status.code(), states(&all)), (Some(0), vec!["restored before".to_owned(), "restored".to_owned()]));
    let consumed = run(&["consume", "orders", "-i", "2", "-o", "json"]);
    let messages: Vec<Value> = stdout(&consumed).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut bodies: Vec<&str> = messages.iter().map(|message| message["body"].as_str().unwrap()).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, ["a", "b"], "each once");
    let properties = &messages[0]["properties"];
    assert_eq!(
        (&properties["TAGS"], &properties["colour"], &properties["DELAY"]),
        (&"blue".into(), &"red".into(), &Value::Null)
    );
    assert!(properties["KEYS"].as_str().unwrap().starts_with("k1 parked-"), "{properties}");
    assert_eq!((&properties["REAL_TOPIC"], &properties["PARKED_REASON"]), (&Value::Null, &Value::Null));
    assert!(messages.iter().any(|message| message["properties"]["UNIQ_KEY"] == *first));
    assert_eq!(broker.stop(), Some(0));
}

#[test]
fn levels_tell_how_many_messages_wait_and_when_the_next_is_due() {
    let folder = TempDir::new().unwrap();
    let (mut broker, name_server) = Server::start_broker(folder.path(), &["-s", "messageDelayLevel=1s 1h"]);
    let sent = latermq(&["send", "orders", "much later", "-l", "2", "-c", "3", "-n", &name_server]);
    assert_eq!(sent.status.code(), Some(0), "{}", stderr(&sent));

    // A message counts as waiting a moment after its send was answered.
    let asked = (0..100).map(|_| json(&latermq(&["levels", "-n", &name_server, "-o", "json"])));
    let levels = asked.into_iter().find(|levels| levels[1]["pending"] == 3).expect("three messages wait");

    let next_at = levels[1]["nextDeliverAt"].as_i64().unwrap();
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    assert!((now..=now + 3_600_000).contains(&next_at), "{next_at} is not within an hour from {now}");
    assert_eq!(broker.stop(), Some(0));
}

#[test]
fn a_broker_registers_with_an_outside_name_server_and_leaves_it_when_it_stops() {
    let folder = TempDir::new().unwrap();
    let mut outside = Server::start(&["namesrv", "--listen", "127.0.0.1:0", "-s", "logFormat=json"]);
    let address = outside.wait_for("name server started")["address"].as_str().unwrap().to_owned();

    let (mut broker, told) = Server::start_broker(folder.path(), &["-n", &address]);
    outside.wait_for("broker registered");
    let sent = latermq(&["send", "orders", "by way of another", "-n", &address]);
    let consumed = latermq(&["consume", "orders", "-c", "1", "-i", "20", "-n", &address]);

    assert_eq!(told, address);
    assert_eq!(sent.status.code(), Some(0), "{}", stderr(&sent));
    assert!(stdout(&consumed).contains("by way of another"), "{}", stderr(&consumed));
    assert_eq!(broker.stop(), Some(0));
    outside.wait_for("broker unregistered");
    assert_eq!(outside.stop(), Some(0));
}

#[test]
fn a_broker_that_cannot_open_its_folder_says_which_and_why() {
    let output = latermq(&["broker", "-s", "storePathRootDir=/proc/nowhere", "-s", "listenPort=0"]);

    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("latermq: cannot open the folder of the store /proc/nowhere: "), "{text}");
    assert!(text.contains("(key storePathRootDir, command line)"), "{text}");
}

#[test]
fn a_second_broker_on_the_same_store_is_refused_in_words() {
    let folder = TempDir::new().unwrap();
    let (mut first, _) = Server::start_broker(folder.path(), &[]);

    let second = latermq(&[
        "broker",
        "-s",
        &store_in(folder.path()),
        "-s",
        "listenPort=0",
        "-s",
        "namesrvListenAddress=127.0.0.1:0",
    ]);

    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("another broker is running on this store"), "{}", stderr(&second));
    assert_eq!(first.stop(), Some(0));
}

#[test]
fn a_port_in_use_ends_the_start_and_the_store_is_closed_cleanly() {
    let folder = TempDir::new().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();

    let output = latermq(&[
        "broker",
        "-s",
        &store_in(folder.path()),
        "-s",
        "listenPort=0",
        "-s",
        &format!("namesrvListenAddress={address}"),
    ]);

    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("cannot listen on {address}")), "{}", stderr(&output));
    assert!(!folder.path().join("store/abort").exists());
}

#[test]
fn the_start_log_tells_version_file_address_store_levels_and_flush_policy() {
    let folder = TempDir::new().unwrap();
    let conf = folder.path().join("broker.conf");
    std::fs::write(
        &conf,
        "messageDelayLevel=1s 90s\nflushDiskType=SYNC_FLUSH\nlistenPort=0\nnamesrvListenAddress=127.0.0.1:0\nfoo=1\n",
    )
    .unwrap();

    let mut broker = Server::start(&[
        "broker",
        "-c",
        conf.to_str().unwrap(),
        "-s",
        &store_in(folder.path()),
        "-s",
        "logFormat=json",
    ]);
    broker.wait_for("broker started");

    let log = broker.seen.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let store = folder.path().join("store").display().to_string();
    for needle in [
        env!("CARGO_PKG_VERSION"),
        conf.to_str().unwrap(),
        "\"advertised\":\"127.0.0.1:",
        &store,
        "1 = 1s, 2 = 90s",
        "SYNC_FLUSH",
        "unknown key foo",
        "open_files_max",
    ] {
        assert!(log.contains(needle), "{needle} is missing:\n{log}");
    }
    assert!(!log.contains("state file absent"), "a new store has none: {log}");
    assert_eq!(broker.stop(), Some(0));
}

#[test]
fn the_demo_shows_a_message_of_each_level_and_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();

    let output = command(&["demo"]).env("TMPDIR", folder.path()).output().unwrap();

    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let text = stdout(&output);
    for level in 1..=5 {
        assert!(text.contains(&format!("I asked for level {level}")), "{text}");
    }
    assert!(!text.contains('\u{1b}'), "colours although this is no terminal: {text:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A command in an environment that sets nothing.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latermq"));
    command.args(arguments).stdin(Stdio::null()).env_clear().env("HOME", "/nonexistent");
    command
}

fn latermq(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(output), stderr(output)))
}

fn store_in(folder: &Path) -> String {
    format!("storePathRootDir={}", folder.join("store").display())
}

/// A running command that logs JSON to standard error; killed when dropped.
struct Server {
    process: Child,
    lines: Receiver<String>,
    seen: Vec<Value>,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut process = command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let stderr = process.stderr.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { process, lines, seen: Vec::new() }
    }

    /// A broker on free ports with a small store in `folder`; gives the address of its name server too.
    fn start_broker(folder: &Path, arguments: &[&str]) -> (Self, String) {
        let store = store_in(folder);
        let usual = [
            "broker",
            "-s",
            &store,
            "-s",
            "listenPort=0",
            "-s",
            "namesrvListenAddress=127.0.0.1:0",
            "-s",
            "logFormat=json",
        ];
        let small = ["-s", "mappedFileSizeCommitLog=16777216", "-s", "maxHashSlotNum=1000", "-s", "maxIndexNum=4000"];
        let mut broker = Self::start(&[&usual[..], &small, arguments].concat());
        let name_server = broker.wait_for("serving")["name_server"].as_str().unwrap().to_owned();
        (broker, name_server)
    }

    /// The line with this message.
    fn wait_for(&mut self, message: &str) -> Value {
        loop {
            let line = self
                .lines
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("{message:?} does not come after {:?}", self.seen));
            let value: Value = serde_json::from_str(&line).unwrap_or(Value::String(line));
            self.seen.push(value.clone());
            if value["message"] == message {
                return value;
            }
        }
    }

    /// Asks it to stop; gives its exit code.
    fn stop(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        self.process.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
