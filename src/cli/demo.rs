//! `latermq demo`: the whole way of delayed messages in one command.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::{
    broker::Running,
    cluster::{Cluster, ClusterArgs},
    configure::ConfigArgs,
    consume::{Begin, Consumer, lateness_ms, paint_lateness, plain_body},
    failure::Failure,
    levels::LevelWords,
    listen::StopSignals,
    log,
    print::{self, Paint},
    send::{Outgoing, Producer},
};
use crate::model::{Properties, names};

/// Topic of the demo.
const TOPIC: &str = "demo";
/// Group of the demo.
const GROUP: &str = "demo";
/// Levels of the demo: one message is sent on each.
const LEVELS: &str = "1s 2s 3s 5s 8s";
/// What is set besides: little files, free ports.
const SETTINGS: [(&str, &str); 7] = [
    ("listenPort", "0"),
    ("namesrvListenAddress", "127.0.0.1:0"),
    ("bindAddress", "127.0.0.1"),
    ("mappedFileSizeCommitLog", "16777216"),
    ("maxHashSlotNum", "1000"),
    ("maxIndexNum", "4000"),
    ("messageDelayLevel", LEVELS),
];
/// How much later than its level a message may come before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Show delayed messages at work: a broker on a temporary store, a message on each of several levels, each shown when it comes
///
/// Needs no arguments and leaves nothing behind; takes about eight seconds. Fails if a message comes early, twice or not at all.
#[derive(Debug, Clone, Args)]
pub(super) struct DemoArgs {}

pub(super) fn run(_args: &DemoArgs) -> Result<(), Failure> {
    log::start(false, "error");
    let folder = TemporaryFolder::create()?;
    let mut config = ConfigArgs::default();
    for (key, value) in SETTINGS {
        config.set(key, value);
    }
    config.set("storePathRootDir", &folder.0.to_string_lossy());
    let configured = config.load()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::because("cannot start", &error))?;
    runtime.block_on(async {
        let mut signals = StopSignals::catch()?;
        let running = Running::start(&configured).await?;
        let shown = tokio::select! {
            shown = show(&running) => shown,
            signal = signals.next() => Err(Failure::failed(format!("ended by {signal}"))),
        };
        let stopped = running.stop().await;
        shown.and(stopped)
    })
}

async fn show(running: &Running) -> Result<(), Failure> {
    let paint = Paint::stdout();
    let name_servers = running.name_servers();
    print::line(format!(
        "A broker at {} with its name server at {name_servers}, on a temporary store.",
        running.address()
    ))?;
    print::line(format!("Its delay levels: {}", paint.strong(LEVELS)))?;

    let args = ClusterArgs::of(&name_servers);
    let cluster = Cluster::new(&args)?;
    let levels = LevelWords::of(&cluster.broker_config(&running.address().to_string()).await?);
    let mut consumer = Consumer::new(&args, TOPIC, GROUP, "*", Begin::First)?;
    let mut producer = Producer::new(&cluster, TOPIC).await?;
    let began = Instant::now();
    let words: Vec<&str> = LEVELS.split(' ').collect();
    for (index, word) in words.iter().enumerate() {
        let level = index + 1;
        let mut properties = Properties::new();
        properties.set(names::DELAY, level.to_string());
        let body = Bytes::from(format!("I asked for level {level}"));
        let sent = producer.send(&Outgoing { topic: TOPIC.to_owned(), body, properties }).await?;
        print::line(format!(
            "{:>7.3} s  sent on level {level}, due in {word} {}",
            began.elapsed().as_secs_f64(),
            paint.faint(sent.unique_id)
        ))?;
    }

    let longest = words.len();
    let give_up =
        tokio::time::Instant::now() + levels.get(longest).map_or(Duration::ZERO, |(_, delay)| delay) + PATIENCE;
    let progress = ProgressBar::new(longest as u64);
    progress.set_style(
        ProgressStyle::with_template("{spinner} waiting, {pos} of {len} came")
            .unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    progress.enable_steady_tick(Duration::from_millis(200));
    let mut came = vec![false; longest];
    while came.iter().any(|came| !came) {
        let delivery = tokio::time::timeout_at(give_up, consumer.next()).await.map_err(|_| {
            let missing: Vec<String> =
                came.iter().zip(1..).filter(|(came, _)| !**came).map(|(_, level)| level.to_string()).collect();
            Failure::failed(format!("nothing came on level {}", missing.join(", ")))
        })??;
        consumer.printed(&delivery);
        let Some((level, _, late_ms)) = lateness_ms(&delivery, Some(&levels)) else {
            return Err(Failure::failed("a message came that was not sent"));
        };
        if late_ms < 0 {
            return Err(Failure::failed(format!("the message on level {level} came {} ms early", -late_ms)));
        }
        match came.get_mut(level - 1) {
            Some(came) if !*came => *came = true,
            _ => return Err(Failure::failed(format!("a message came twice on level {level}"))),
        }
        let body = plain_body(&delivery.record).unwrap_or_default();
        let text = format!(
            "{:>7.3} s  {} — {}",
            began.elapsed().as_secs_f64(),
            print::shown(&body, 80),
            paint_lateness(paint, late_ms)
        );
        progress.suspend(|| print::line(text))?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    consumer.leave().await;
    print::line(
        "Every message came once, none before its time. The store is removed. Your own broker: latermq broker",
    )?;
    Ok(())
}

/// A folder of our own, removed when dropped.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn create() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("latermq-demo-{}-{:08x}", std::process::id(), fastrand::u32(..)));
        std::fs::create_dir(&path)
            .map_err(|error| Failure::failed(format!("cannot create the folder {}: {error}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::error!(folder = %self.0.display(), %error, "cannot remove the temporary folder");
        }
    }
}
