//! `latermq bench`: loads any RocketMQ broker and says what it found.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::{
    failure::Failure,
    limits,
    print::{self, Output},
};
use crate::{
    bench::{self, BenchError, ConsumeOptions, Crowd, DrainOptions, Levels, Load, Pace, Report, RestartOptions},
    protocol::Encoding,
};

/// Messages a second of a run that follows each message, unless it says otherwise.
const FOLLOWED_RATE: f64 = 1000.0;
/// The mix of a soak.
const SOAK_LEVELS: &str = "0:2,1:2,2:1";
/// The levels of a burst, and how many messages.
const BURST_LEVELS: &str = "1,2,3";
const BURST_COUNT: u64 = 100_000;
/// Requests in flight on each connection.
const IN_FLIGHT: u32 = 64;

/// Load a broker and measure it
///
/// The broker may be latermq or Apache RocketMQ; both are loaded by the same bytes. Latencies are from the moment a request was written (with
/// --rate: from the moment it should have been) to its answer. The broker's process is found by its port if it runs on this machine.
#[derive(Debug, Clone, Args)]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    /// Send as fast as the broker answers, or at a fixed rate
    Send(LoadArgs),
    /// Pull every message of a topic
    Consume(ConsumeArgs),
    /// Send delayed messages at a rate, and tell how late each was stored again and received
    Lateness(LoadArgs),
    /// Send messages that are all due in the same second, and tell how many of them were stored again by its end
    Burst(LoadArgs),
    /// Send, delay and consume at once for a time with a ledger: lost, repeated, early, out of order; any of them ends with code 1
    Soak(LoadArgs),
    /// Fill a level, let all fall due while the broker is down, start it and measure until all are restored, and consumed
    Drain(DrainArgs),
    /// Leave messages waiting, restart the broker, and measure from its start until it answers a send
    Restart(RestartArgs),
    /// Draw curves from a file with a report in JSON on each line
    Plot(PlotArgs),
}

/// What becomes of a report.
#[derive(Debug, Clone, Args)]
struct ReportArgs {
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Draw latency percentiles, and the run over time, into this SVG file
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Put a label into the report, for `bench plot`; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
}

/// When a send is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AnswerWhen {
    /// When the message is as durable as flushDiskType says
    Sync,
    /// As soon as the broker has it, even with SYNC_FLUSH (the property WAIT=false)
    Async,
}

/// How headers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Header {
    /// As JSON, as clients do unless told otherwise
    Json,
    /// RocketMQ's binary header
    Binary,
}

#[derive(Debug, Clone, Args)]
struct LoadArgs {
    /// The broker, host:port
    #[arg(short, long, default_value = "127.0.0.1:10911")]
    address: String,
    /// The broker's process, if it does not listen at that port of this machine itself
    #[arg(long)]
    pid: Option<u32>,
    /// Connections, each on a thread of its own
    #[arg(short, long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Requests in flight on each connection: 64 unless there is a rate
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536), conflicts_with = "rate")]
    in_flight: Option<u32>,
    /// Messages a second, instead of as fast as the broker answers; lateness and soak have 1000 unless told otherwise
    #[arg(long)]
    rate: Option<f64>,
    /// Bytes of each body
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(..=4_194_304))]
    body: u32,
    /// Messages of one request
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
    /// Delay levels and their weights, such as 1:50,3:30,18:20; level 0 is none, and the default of send
    #[arg(short, long)]
    levels: Option<Levels>,
    /// When a send is answered
    #[arg(long, value_enum, default_value_t = AnswerWhen::Sync)]
    answer: AnswerWhen,
    /// How headers are written
    #[arg(long, value_enum, default_value_t = Header::Json)]
    header: Header,
    /// Topics are named by this and a number
    #[arg(long, default_value = "bench")]
    topic: String,
    /// How many topics
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    topics: u32,
    /// Queues of each topic
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    queues: u16,
    /// Seconds to send
    #[arg(short, long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds to send before anything is counted
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Stop after so many messages; then all are counted
    #[arg(short = 'n', long)]
    count: Option<u64>,
    /// Ill-behaved clients beside: idle, announce, trickle, deaf or churn, and how many, as in deaf:1000
    #[arg(long)]
    crowd: Option<Crowd>,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Debug, Clone, Args)]
struct ConsumeArgs {
    /// The broker, host:port
    #[arg(short, long, default_value = "127.0.0.1:10911")]
    address: String,
    /// The broker's process, if it does not listen at that port of this machine itself
    #[arg(long)]
    pid: Option<u32>,
    /// The topic
    #[arg(long, default_value = "bench0")]
    topic: String,
    /// Its queues, each pulled over a connection of its own
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    queues: u16,
    /// Most messages of one pull
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    pull: u16,
    /// Read everything so many times
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// How headers are written
    #[arg(long, value_enum, default_value_t = Header::Json)]
    header: Header,
    #[command(flatten)]
    report: ReportArgs,
}

/// A broker that the run starts and stops itself.
#[derive(Debug, Clone, Args)]
struct BrokerArgs {
    /// The command that starts the broker and stays in the foreground, such as "latermq broker -c broker.conf", for the shell
    #[arg(long, alias = "broker", value_name = "COMMAND")]
    start: String,
    /// Kill the broker instead of stopping it
    #[arg(long)]
    kill: bool,
}

#[derive(Debug, Clone, Args)]
struct DrainArgs {
    #[command(flatten)]
    broker: BrokerArgs,
    /// Consume from the start on; otherwise only after all is restored
    #[arg(long)]
    consumers: bool,
    /// Send so many messages without a delay a second meanwhile
    #[arg(long, value_name = "RATE")]
    beside: Option<f64>,
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Debug, Clone, Args)]
struct RestartArgs {
    #[command(flatten)]
    broker: BrokerArgs,
    /// How many restarts
    #[arg(long, default_value_t = 3)]
    times: u32,
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Debug, Clone, Args)]
struct PlotArgs {
    /// The file with the reports
    results: PathBuf,
    /// The label that says what grew
    #[arg(long, value_name = "LABEL")]
    by: String,
    /// The label that tells one line from another
    #[arg(long, value_name = "LABEL")]
    series: Option<String>,
    /// The SVG file
    #[arg(long, value_name = "FILE")]
    plot: PathBuf,
}

impl LoadArgs {
    /// What to send; `levels` and `rate` unless told otherwise.
    fn load(&self, levels: Levels, rate: Option<f64>) -> Result<Load, Failure> {
        let seconds = |name: &str, value: f64| {
            Duration::try_from_secs_f64(value)
                .map_err(|_| Failure::misused(format!("--{name} must be a number of seconds, not {value}")))
        };
        let rate = self.rate.or(rate.filter(|_| self.in_flight.is_none()));
        if rate.is_some_and(|rate| !is_rate(rate)) {
            return Err(Failure::misused("--rate must be above zero"));
        }
        let warm_up = if self.count.is_some() { Duration::ZERO } else { seconds("warm-up", self.warm_up)? };
        let most =
            if self.count.is_some() { Duration::from_secs(24 * 3600) } else { seconds("seconds", self.seconds)? };
        Ok(Load {
            address: self.address.clone(),
            connections: self.connections.into(),
            pace: rate.map_or(Pace::InFlight(self.in_flight.unwrap_or(IN_FLIGHT) as usize), Pace::Rate),
            body_bytes: self.body as usize,
            batch: self.batch.into(),
            topic_prefix: self.topic.clone(),
            topics: self.topics as usize,
            queues: self.queues.into(),
            levels: self.levels.clone().unwrap_or(levels),
            wait_stored: self.answer == AnswerWhen::Sync,
            encoding: self.header.into(),
            pid: self.pid,
            warm_up,
            duration: most,
            count: self.count,
            crowd: self.crowd,
        })
    }

    /// The same, for what needs a level.
    fn delayed(&self, levels: Option<&str>, rate: Option<f64>) -> Result<Load, Failure> {
        let none = Levels::none();
        let levels = levels.and_then(|levels| levels.parse().ok()).unwrap_or(none);
        let load = self.load(levels, rate)?;
        if load.levels.levels().is_empty() {
            return Err(Failure::misused("--levels must name a delay level"));
        }
        Ok(load)
    }

    /// The same, for what needs a count.
    fn counted(&self) -> Result<Load, Failure> {
        if self.count.is_none() {
            return Err(Failure::misused("--count must say how many messages to leave waiting"));
        }
        self.delayed(None, None)
    }
}

impl From<Header> for Encoding {
    fn from(header: Header) -> Self {
        match header {
            Header::Json => Self::Json,
            Header::Binary => Self::Binary,
        }
    }
}

fn is_rate(rate: f64) -> bool {
    rate.is_finite() && rate > 0.0
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    limits::raise_open_files();
    match &args.what {
        What::Send(args) => {
            let load = args.load(Levels::none(), None)?;
            report(&args.report, |progress| bench::send(&load, progress))
        }
        What::Consume(args) => {
            let options = ConsumeOptions {
                address: args.address.clone(),
                topic: args.topic.clone(),
                queues: args.queues.into(),
                pull: args.pull.into(),
                times: args.times,
                encoding: args.header.into(),
                pid: args.pid,
            };
            report(&args.report, |progress| bench::consume(&options, progress))
        }
        What::Lateness(args) => {
            let load = args.delayed(None, Some(FOLLOWED_RATE))?;
            report(&args.report, |progress| bench::lateness(&load, progress))
        }
        What::Burst(args) => {
            let mut load = args.delayed(Some(BURST_LEVELS), None)?;
            load.count = load.count.or(Some(BURST_COUNT));
            report(&args.report, |progress| bench::burst(&load, progress))
        }
        What::Soak(args) => {
            let load = args.delayed(Some(SOAK_LEVELS), Some(FOLLOWED_RATE))?;
            report(&args.report, |progress| bench::soak(&load, progress))
        }
        What::Drain(args) => {
            if args.beside.is_some_and(|rate| !is_rate(rate)) {
                return Err(Failure::misused("--beside must be above zero"));
            }
            let options = DrainOptions {
                start: args.broker.start.clone(),
                load: args.load.counted()?,
                kill: args.broker.kill,
                consumers: args.consumers,
                beside: args.beside,
            };
            report(&args.load.report, |progress| bench::drain(&options, progress))
        }
        What::Restart(args) => {
            let options = RestartOptions {
                start: args.broker.start.clone(),
                load: args.load.counted()?,
                kill: args.broker.kill,
                times: args.times,
            };
            report(&args.load.report, |progress| bench::restart(&options, progress))
        }
        What::Plot(args) => {
            let results = std::fs::read_to_string(&args.results)
                .map_err(|error| Failure::because(args.results.display(), &error))?;
            bench::plot_results(&results, &args.by, args.series.as_deref(), &args.plot)
                .map_err(|error| Failure::failed(super::failure::chain(&error)))
        }
    }
}

/// Runs a measurement while the number of messages is shown, and prints its report; a broken promise is a failure.
fn report(args: &ReportArgs, measure: impl FnOnce(&AtomicU64) -> Result<Report, BenchError>) -> Result<(), Failure> {
    let progress = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicBool::new(false));
    let shown = std::io::stderr().is_terminal().then(|| {
        let (progress, done) = (Arc::clone(&progress), Arc::clone(&done));
        thread::spawn(move || show(&progress, &done))
    });
    let measured = measure(&progress);
    done.store(true, Ordering::Relaxed);
    // It only draws.
    let _ = shown.map(thread::JoinHandle::join);
    let failed = |error: BenchError| Failure::failed(super::failure::chain(&error));
    let mut report = measured.map_err(failed)?;
    report.labels = args.label.iter().cloned().collect::<BTreeMap<_, _>>();
    match args.output {
        Output::Json => {
            print::json(&serde_json::to_value(&report).map_err(|error| Failure::failed(error.to_string()))?)?;
        }
        Output::Text => report.lines().iter().try_for_each(print::line)?,
    }
    if let Some(path) = &args.plot {
        bench::plot_report(&report, path).map_err(failed)?;
    }
    match report.ledger {
        Some(account) if !account.is_sound() => Err(Failure::failed("the broker broke a promise; see the ledger")),
        _ => Ok(()),
    }
}

/// Shows once a second how many messages are done.
fn show(progress: &AtomicU64, done: &AtomicBool) {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} messages, {msg}/s, {elapsed}") {
        bar.set_style(style);
    }
    let mut before = (Instant::now(), 0);
    while !done.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50));
        let now = Instant::now();
        let elapsed = now.duration_since(before.0);
        if elapsed >= Duration::from_secs(1) {
            let messages = progress.load(Ordering::Relaxed);
            bar.set_message(format!("{:.0}", messages.saturating_sub(before.1) as f64 / elapsed.as_secs_f64()));
            bar.set_position(messages);
            before = (now, messages);
        }
    }
    bar.finish_and_clear();
}
