//! `latermq bench`: loads any RocketMQ broker and says what it found.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use super::{
    failure::Failure,
    print::{self, Output},
};
use crate::bench::{
    self, BenchError, ConsumeOptions, Crowd, DrainOptions, LatenessOptions, Levels, Load, Pace, Report, RestartOptions,
};

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
    /// Fill a level, let all fall due while the broker is down, start it and measure until all are restored
    Drain(ManagedArgs),
    /// Leave messages waiting, restart the broker, and measure until it answers a send
    Restart(ManagedArgs),
}

#[derive(Debug, Clone, Args)]
struct LoadArgs {
    /// The broker, host:port
    #[arg(short, long, default_value = "127.0.0.1:10911")]
    address: String,
    /// Connections, each on a thread of its own
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536), conflicts_with = "rate")]
    in_flight: u32,
    /// Messages a second, instead of as fast as the broker answers
    #[arg(long)]
    rate: Option<f64>,
    /// Bytes of each body
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(..=4_194_304))]
    body: u32,
    /// Messages of one request
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
    /// Delay levels and their weights, such as 1:50,3:30,18:20; level 0 is none
    #[arg(short, long, default_value = "0")]
    levels: Levels,
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
    #[arg(short, long)]
    count: Option<u64>,
    /// Ill-behaved clients beside: idle, announce, trickle, deaf or churn, and how many, as in deaf:1000
    #[arg(long)]
    crowd: Option<Crowd>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Clone, Args)]
struct ConsumeArgs {
    /// The broker, host:port
    #[arg(short, long, default_value = "127.0.0.1:10911")]
    address: String,
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
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Clone, Args)]
struct ManagedArgs {
    /// The command that starts the broker and stays in the foreground, such as "latermq broker -c broker.conf"
    #[arg(long)]
    broker: String,
    /// Kill the broker instead of stopping it
    #[arg(long)]
    kill: bool,
    /// How many restarts
    #[arg(long, default_value_t = 3)]
    times: u32,
    #[command(flatten)]
    load: LoadArgs,
}

impl LoadArgs {
    fn load(&self) -> Result<Load, Failure> {
        let seconds = |name: &str, value: f64| {
            Duration::try_from_secs_f64(value)
                .map_err(|_| Failure::misused(format!("--{name} must be a number of seconds, not {value}")))
        };
        if self.rate.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            return Err(Failure::misused("--rate must be above zero"));
        }
        let warm_up = if self.count.is_some() { Duration::ZERO } else { seconds("warm-up", self.warm_up)? };
        let most =
            if self.count.is_some() { Duration::from_secs(24 * 3600) } else { seconds("seconds", self.seconds)? };
        Ok(Load {
            address: self.address.clone(),
            connections: self.connections.into(),
            pace: self.rate.map_or(Pace::InFlight(self.in_flight as usize), Pace::Rate),
            body_bytes: self.body as usize,
            batch: self.batch.into(),
            topic_prefix: self.topic.clone(),
            topics: self.topics as usize,
            queues: self.queues.into(),
            levels: self.levels.clone(),
            warm_up,
            duration: most,
            count: self.count,
            crowd: self.crowd,
        })
    }
}

pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.what {
        What::Send(args) => {
            let load = args.load()?;
            report(args.output, |progress| bench::send(&load, progress))
        }
        What::Consume(args) => {
            let options = ConsumeOptions {
                address: args.address.clone(),
                topic: args.topic.clone(),
                queues: args.queues.into(),
                pull: args.pull.into(),
                times: args.times,
            };
            report(args.output, |progress| bench::consume(&options, progress))
        }
        What::Lateness(args) => {
            let options = LatenessOptions { load: args.load()? };
            if options.load.levels.levels().is_empty() {
                return Err(Failure::misused("--levels must name a delay level"));
            }
            report(args.output, |progress| bench::lateness(&options, progress))
        }
        What::Drain(args) => {
            let options = DrainOptions { broker: args.broker.clone(), load: counted(&args.load)?, kill: args.kill };
            report(args.load.output, |progress| bench::drain(&options, progress))
        }
        What::Restart(args) => {
            let options = RestartOptions {
                broker: args.broker.clone(),
                load: counted(&args.load)?,
                kill: args.kill,
                times: args.times,
            };
            report(args.load.output, |progress| bench::restart(&options, progress))
        }
    }
}

fn counted(args: &LoadArgs) -> Result<Load, Failure> {
    if args.count.is_none() {
        return Err(Failure::misused("--count must say how many messages to leave waiting"));
    }
    args.load()
}

/// Runs a measurement while the number of messages is shown, and prints its report.
fn report(output: Output, measure: impl FnOnce(&AtomicU64) -> Result<Report, BenchError>) -> Result<(), Failure> {
    let progress = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicBool::new(false));
    let shown = thread::spawn({
        let (progress, done) = (Arc::clone(&progress), Arc::clone(&done));
        move || show(&progress, &done)
    });
    let measured = measure(&progress);
    done.store(true, Ordering::Relaxed);
    // It only draws.
    let _ = shown.join();
    let report = measured.map_err(|error| Failure::failed(super::failure::chain(&error)))?;
    match output {
        Output::Json => {
            print::json(&serde_json::to_value(&report).map_err(|error| Failure::failed(error.to_string()))?)?;
        }
        Output::Text => report.lines().iter().try_for_each(print::line)?,
    }
    Ok(())
}

fn show(progress: &AtomicU64, done: &AtomicBool) {
    // indicatif draws only on a terminal.
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} messages, {msg}/s, {elapsed}") {
        bar.set_style(style);
    }
    let mut before = (Instant::now(), 0);
    while !done.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(100));
        let (now, messages) = (Instant::now(), progress.load(Ordering::Relaxed));
        bar.set_position(messages);
        let elapsed = now.duration_since(before.0);
        if elapsed >= Duration::from_secs(1) {
            bar.set_message(format!("{:.0}", (messages.saturating_sub(before.1)) as f64 / elapsed.as_secs_f64()));
            before = (now, messages);
        }
    }
    bar.finish_and_clear();
}
