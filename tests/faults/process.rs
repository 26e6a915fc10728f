//! The broker under test: a process of its own, on a folder of its own, on ports that it picks itself.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    net::SocketAddr,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::client::Client;

/// How long a start or a clean stop may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks at a log.
const LOOK: Duration = Duration::from_millis(2);
/// The delay levels of most tests: short ones, eighteen as in RocketMQ.
pub(crate) const LEVELS: &str = "1s 2s 3s 1s 2s 3s 1s 2s 3s 1s 2s 3s 1s 2s 3s 1s 2s 3s";
/// Length of a commit log segment: with bodies of at most [`BODY_BYTES_MAX`] as short as is allowed, so that segments are often full.
pub(crate) const SEGMENT_BYTES: u64 = 98_304;
/// Largest body.
pub(crate) const BODY_BYTES_MAX: usize = 32_768;

/// Where a broker runs, and with what settings.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    folder: PathBuf,
    settings: Vec<(String, String)>,
    /// The program, and the user that it runs as, if not this one.
    program: PathBuf,
    user: Option<u32>,
}

/// A process. Dropped, it is killed.
pub(crate) struct Broker {
    process: Child,
    log: PathBuf,
    /// Where its own lines begin in the log.
    log_from: u64,
    began: Instant,
}

/// A broker that serves.
pub(crate) struct Serving {
    pub(crate) broker: Broker,
    pub(crate) address: SocketAddr,
    /// How long the start took.
    pub(crate) started_in: Duration,
}

impl Place {
    /// A place in `folder` with small files and short intervals. `settings` come on top.
    pub(crate) fn new(folder: &Path, settings: &[(&str, &str)]) -> Self {
        let store = folder.join("store");
        let segment_bytes = SEGMENT_BYTES.to_string();
        let body_bytes_max = BODY_BYTES_MAX.to_string();
        let usual = [
            ("storePathRootDir", store.to_str().unwrap()),
            ("listenPort", "0"),
            ("namesrvListenAddress", ""),
            ("logFormat", "json"),
            ("messageDelayLevel", LEVELS),
            ("mappedFileSizeCommitLog", &segment_bytes),
            ("maxMessageSize", &body_bytes_max),
            ("mappedFileSizeConsumeQueue", "2000"),
            ("maxHashSlotNum", "500"),
            ("maxIndexNum", "2000"),
            ("flushConsumeQueueThoroughInterval", "300"),
            ("flushConsumerOffsetInterval", "100"),
            ("cleanResourceInterval", "100"),
            // The disk on which the tests run may be full enough for these.
            ("diskMaxUsedSpaceRatio", "100"),
            ("diskSpaceCleanForciblyRatio", "100"),
            ("diskSpaceWarningLevelRatio", "100"),
        ];
        let program = PathBuf::from(env!("CARGO_BIN_EXE_latermq"));
        let mut place = Self { folder: folder.to_owned(), settings: Vec::new(), program, user: None };
        for (key, value) in usual.iter().chain(settings) {
            place.set(key, value);
        }
        place
    }

    /// Sets a key for the starts from now on.
    pub(crate) fn set(&mut self, key: &str, value: &str) {
        self.settings.retain(|(known, _)| known != key);
        self.settings.push((key.to_owned(), value.to_owned()));
    }

    /// Lets the broker run as another user, from a copy of the program that this user can reach.
    pub(crate) fn run_as(&mut self, user: u32, program: &Path) {
        self.user = Some(user);
        self.program = program.to_owned();
    }

    /// The folder of the store.
    pub(crate) fn store(&self) -> PathBuf {
        let root = self.settings.iter().find(|(key, _)| key == "storePathRootDir");
        PathBuf::from(&root.unwrap().1)
    }

    /// Starts the process and waits for nothing.
    pub(crate) fn spawn(&self) -> Broker {
        let log = self.folder.join("broker.log");
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let log_from = file.metadata().unwrap().len();
        let mut command = Command::new(&self.program);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command.arg("broker").current_dir("/");
        for (key, value) in &self.settings {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        let process = command
            .env_clear()
            .env("HOME", "/nonexistent")
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        Broker { process, log, log_from, began: Instant::now() }
    }

    /// Starts the broker, which must then serve.
    pub(crate) fn start(&self) -> Serving {
        self.try_start().unwrap_or_else(|(status, log)| panic!("the broker ended at its start with {status}:\n{log}"))
    }

    /// Starts the broker; if it ends instead of serving, gives its exit status and its log.
    pub(crate) fn try_start(&self) -> Result<Serving, (ExitStatus, String)> {
        let mut log_from = None;
        loop {
            let mut broker = self.spawn();
            // What an attempt before this one said of the store counts, too.
            broker.log_from = *log_from.get_or_insert(broker.log_from);
            match broker.wait_until_serving() {
                Ok(address) => {
                    let started_in = broker.began.elapsed();
                    return Ok(Serving { broker, address, started_in });
                }
                // A connection of somebody else got the port in the moment between choosing and taking it.
                Err((_, log)) if log.lines().last().is_some_and(|line| line.contains("cannot listen on")) => {}
                Err(ended) => return Err(ended),
            }
        }
    }
}

impl Broker {
    /// What it wrote so far.
    pub(crate) fn log(&self) -> String {
        let mut file = File::open(&self.log).unwrap();
        file.seek(SeekFrom::Start(self.log_from)).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until it serves; if it ends instead, gives its exit status and its log.
    pub(crate) fn wait_until_serving(&mut self) -> Result<SocketAddr, (ExitStatus, String)> {
        loop {
            let ended = self.process.try_wait().unwrap();
            let log = self.log();
            let serving = log.lines().find(|line| line.contains("\"message\":\"serving\"") && line.ends_with('}'));
            if let Some(line) = serving {
                let line: Value = serde_json::from_str(line).unwrap();
                return Ok(line["advertised"].as_str().unwrap().parse().unwrap());
            }
            if let Some(status) = ended {
                return Err((status, log));
            }
            assert!(self.began.elapsed() < PATIENCE, "the broker does not serve after {PATIENCE:?}:\n{log}");
            thread::sleep(LOOK);
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Ends it at once (signal 9).
    pub(crate) fn kill(mut self) {
        // If it ended by itself, that must not go unseen.
        if let Some(status) = self.process.try_wait().unwrap() {
            panic!("the broker ended by itself with {status}:\n{}", self.log());
        }
        self.process.kill().unwrap();
        let status = self.process.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{}", self.log());
    }

    /// As [`Broker::kill`], for one that may just be ending.
    pub(crate) fn kill_if_running(mut self) {
        let _ = self.process.kill();
        self.process.wait().unwrap();
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Asks it to stop (signal 15), and waits until it did, with exit code 0. Gives its log.
    pub(crate) fn stop(mut self) -> String {
        self.signal(Signal::TERM);
        let asked = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                assert!(status.success(), "the broker stopped with {status}:\n{}", self.log());
                return self.log();
            }
            assert!(asked.elapsed() < PATIENCE, "the broker does not stop within {PATIENCE:?}:\n{}", self.log());
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended already, which is all that is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Serving {
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address).unwrap()
    }

    pub(crate) fn kill(self) {
        self.broker.kill();
    }

    pub(crate) fn stop(self) -> String {
        self.broker.stop()
    }
}

/// A folder that is removed at the end, on the disk of the build (not on a file system in memory, as `/tmp` may be).
pub(crate) fn folder() -> tempfile::TempDir {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(target).unwrap();
    tempfile::Builder::new().prefix("faults-").tempdir_in(target).unwrap()
}

/// A folder in memory, if there is one: for tests of what becomes of files, where syncs only take time.
pub(crate) fn fast_folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("latermq-faults-").tempdir_in("/dev/shm").unwrap_or_else(|_| folder())
}

/// Tries again until something is so.
pub(crate) fn wait_until(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < patience, "not within {patience:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
