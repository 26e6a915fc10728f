//! The broker under test: a process on a temporary store.

use std::collections::HashSet;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Level n waits n seconds.
const LEVELS: &str = "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 11s 12s 13s 14s 15s 16s 17s 18s";

/// How long a start or a clean stop may take.
const START_MAX: Duration = Duration::from_secs(20);

/// A running broker with its embedded name server. Dropped, it is killed and its folder removed.
pub(crate) struct Broker {
    process: Child,
    folder: TempDir,
    port: u16,
    namesrv_port: u16,
}

impl Broker {
    /// Starts a broker whose level n waits n seconds, up to 18.
    pub(crate) fn start() -> Self {
        Self::start_with(&[&format!("messageDelayLevel={LEVELS}")])
    }

    /// Starts a broker with these lines in its configuration.
    pub(crate) fn start_with(lines: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("latermq-interop-").tempdir().expect("a temporary folder");
        let (port, namesrv_port) = (free_port(), free_port());
        let store = folder.path().join("store");
        let mut text = format!(
            "listenPort={port}\nnamesrvListenAddress=127.0.0.1:{namesrv_port}\nstorePathRootDir={}\nmappedFileSizeCommitLog=67108864\n",
            store.display(),
        );
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        fs::write(folder.path().join("broker.conf"), text).expect("a writable folder");
        let process = launch(&folder);
        let mut broker = Self { process, folder, port, namesrv_port };
        broker.wait_until_serving();
        broker
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn namesrv(&self) -> String {
        format!("127.0.0.1:{}", self.namesrv_port)
    }

    /// Where its files are: `broker.conf`, `store` and logs.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// How long its last start took, by its own log.
    pub(crate) fn start_ms(&self) -> u64 {
        let log = fs::read_to_string(self.folder.path().join("broker.log")).expect("a log");
        let started = log.lines().rfind(|line| line.contains("broker started")).expect("a line about the start");
        let elapsed = started.rsplit("elapsed_ms=").next().expect("how long it took");
        elapsed.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number")
    }

    /// Ends the process without a chance to save anything (signal 9).
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("a process to kill");
        self.process.wait().expect("the end of the process");
    }

    /// Asks the process to stop (signal 15) and waits until it did, with exit code 0.
    pub(crate) fn stop(&mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).expect("a process to stop");
        let asked = Instant::now();
        while asked.elapsed() < START_MAX {
            if let Some(status) = self.process.try_wait().expect("the state of the process") {
                assert!(status.success(), "the broker stopped with {status}");
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the broker did not stop within {START_MAX:?}");
    }

    /// Starts the broker again on the same store and ports, after `kill` or `stop`.
    pub(crate) fn start_again(&mut self) {
        self.process = launch(&self.folder);
        self.wait_until_serving();
    }

    fn wait_until_serving(&mut self) {
        let started = Instant::now();
        let listens = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        while !(listens(self.port) && listens(self.namesrv_port)) {
            if let Some(status) = self.process.try_wait().expect("the state of the process") {
                panic!("the broker ended at its start with {status}");
            }
            assert!(started.elapsed() < START_MAX, "the broker does not serve after {START_MAX:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("broker.log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("the end of the broker's log:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
        // It may have ended already, which is all that is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn launch(folder: &TempDir) -> Child {
    let log =
        File::options().create(true).append(true).open(folder.path().join("broker.log")).expect("a writable folder");
    Command::new(env!("CARGO_BIN_EXE_latermq"))
        .arg("broker")
        .arg("-c")
        .arg(folder.path().join("broker.conf"))
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle of the log"))
        .stderr(log)
        .spawn()
        .expect("the latermq binary")
}

/// A port on which nobody listens, nor on the one two below, which a RocketMQ broker uses too. No port is given out twice.
fn free_port() -> u16 {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound listener").port();
        let below = TcpListener::bind((Ipv4Addr::LOCALHOST, port - 2));
        if below.is_ok() && !given.contains(&(port - 2)) && !given.contains(&port) && !given.contains(&(port + 2)) {
            given.insert(port);
            return port;
        }
    }
}
