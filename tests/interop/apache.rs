//! Apache RocketMQ 5.3.3's own broker on the store of a broker under test, in turn with it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::broker::Broker;
use crate::client::{build, built_folder, need, source_folder};

/// How long a start or a stop may take.
const START_MAX: Duration = Duration::from_secs(60);
/// What is set beside the lines of the broker under test: progress and offsets are saved at once, so that a kill loses little of them.
const SETTINGS: &str = "brokerIP1=127.0.0.1\nbrokerClusterName=DefaultCluster\nflushDelayOffsetInterval=200\nflushConsumerOffsetInterval=200\n\
    autoCreateTopicEnable=true\n";

/// A running broker of Apache's, and the name server by which it is found. Dropped, both are killed.
pub(crate) struct Apache {
    broker: Child,
    name_server: Child,
}

/// Fetches the broker's jars, once.
fn jars() -> &'static PathBuf {
    static JARS: OnceLock<PathBuf> = OnceLock::new();
    JARS.get_or_init(|| {
        need("java", "-version", "Java 11 or newer (Debian: default-jre-headless)");
        need("mvn", "-version", "Maven (Debian: maven)");
        let lib = built_folder().join("apache-5.3.3");
        let mut maven = Command::new("mvn");
        let output = format!("-DoutputDirectory={}", lib.display());
        let goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";
        build(maven.args(["-B", "-q", goal, &output]).current_dir(source_folder("apache")));
        lib
    })
}

impl Apache {
    /// Starts Apache's broker on the store and the ports of a broker that does not run.
    pub(crate) fn start_on(broker: &Broker) -> Self {
        let lib = jars();
        let folder = broker.folder();
        let name_server = Command::new(env!("CARGO_BIN_EXE_latermq"))
            .args(["namesrv", "-s", &format!("namesrvListenAddress={}", broker.namesrv())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the latermq binary");
        fs::create_dir_all(folder.join("home/conf")).expect("a writable folder");
        let conf = folder.join("apache.conf");
        let lines = fs::read_to_string(folder.join("broker.conf")).expect("the configuration of the broker");
        let lines = lines.lines().filter(|line| !line.starts_with("namesrvListenAddress"));
        let lines: String = lines.flat_map(|line| [line, "\n"]).collect();
        fs::write(&conf, format!("{lines}{SETTINGS}namesrvAddr={}\n", broker.namesrv())).expect("a writable folder");
        let said = folder.join("apache.out");
        let log = File::create(&said).expect("a writable folder");
        let process = Command::new("java")
            .args(["-Xms384m", "-Xmx384m", "-XX:MaxDirectMemorySize=512m"])
            .arg(format!("-Duser.home={}", folder.display()))
            .arg("-cp")
            .arg(lib.join("*"))
            .args(["org.apache.rocketmq.broker.BrokerStartup", "-c"])
            .arg(conf)
            .env("ROCKETMQ_HOME", folder.join("home"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle of the log"))
            .stderr(log)
            .spawn()
            .expect("java");
        let mut apache = Self { broker: process, name_server };
        let begun = Instant::now();
        while !fs::read_to_string(&said).is_ok_and(|text| text.contains("boot success")) {
            let ended = apache.broker.try_wait().expect("the state of the process");
            let said = || fs::read_to_string(&said).unwrap_or_default();
            assert!(ended.is_none(), "Apache's broker ended at its start:\n{}", said());
            assert!(begun.elapsed() < START_MAX, "Apache's broker does not serve:\n{}", said());
            thread::sleep(Duration::from_millis(100));
        }
        apache
    }

    /// Ends the broker without a chance to save anything (signal 9).
    pub(crate) fn kill(mut self) {
        self.broker.kill().expect("a process to kill");
        self.broker.wait().expect("the end of the process");
    }

    /// Asks the broker to stop (signal 15) and waits until it did.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.broker), Signal::TERM).expect("a process to stop");
        let asked = Instant::now();
        while self.broker.try_wait().expect("the state of the process").is_none() {
            assert!(asked.elapsed() < START_MAX, "Apache's broker does not stop");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        for process in [&mut self.broker, &mut self.name_server] {
            // It may have ended already, which is all that is wanted.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
