//! The figures of the README, taken with an official client. Run on a quiet machine:
//!
//! `cargo test --release --features interop --test interop measurements -- --ignored --nocapture`

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;
use serde_json::json;

use crate::SOON;
use crate::broker::Broker;
use crate::client::{Client, Kind, Message};

/// Messages sent before those that are measured, so that the client's code is compiled.
const WARM_UP: usize = 100;
/// Messages that are measured.
const MEASURED: usize = 500;
/// Pause between two of them.
const PAUSE: Duration = Duration::from_millis(23);
/// How long an idle broker is looked at.
const IDLE: Duration = Duration::from_secs(20);
/// The name of the scheduler's thread.
const SCHEDULER: &str = "delay-scheduler";

#[test]
#[ignore = "measures; it asserts nothing about time"]
fn measurements() {
    let client = Client::shared(Kind::java_5);
    let mut broker = Broker::start();
    client.create_topic(&broker, "lateness", 4);

    let rest = anonymous_kib(broker.pid());
    let [late_stored, late_received] = lateness(client, &broker);
    broker.stop();
    let started: Vec<u64> = (0..5)
        .map(|_| {
            broker.start_again();
            let elapsed = broker.start_ms();
            broker.stop();
            elapsed
        })
        .collect();
    broker.start_again();
    thread::sleep(Duration::from_secs(2));
    let (before, wakes_before, since) = (cpu_ticks(broker.pid()), wakes(broker.pid()), Instant::now());
    thread::sleep(IDLE);
    let ticks = cpu_ticks(broker.pid()) - before;
    let percent = ticks as f64 / clock_ticks_per_second() as f64 / since.elapsed().as_secs_f64() * 100.0;
    let binary = fs::metadata(env!("CARGO_BIN_EXE_latermq")).expect("the binary").len();

    println!("| what | figure |");
    println!("| --- | --- |");
    println!("| lateness in the store, level 1, {MEASURED} messages | {late_stored} |");
    println!("| lateness at the listener of the Java client | {late_received} |");
    println!("| start on a small store, until the broker serves | {started:?} ms |");
    println!("| CPU of an idle broker over {} s | {percent:.2} % of a core |", IDLE.as_secs());
    println!("| wake-ups of the scheduler's thread in that time | {} |", wakes(broker.pid()) - wakes_before);
    println!("| RssAnon at rest | {:.1} MiB |", rest as f64 / 1024.0);
    println!("| size of the binary | {:.1} MB |", binary as f64 / 1e6);
}

/// From the deadline to the store time of the restored record, and to the moment the client's listener is called.
fn lateness(client: &Client, broker: &Broker) -> [String; 2] {
    let consumer = client.consume(broker, json!({"group": "lateness_group", "topic": "lateness"}));
    client.send(broker, json!({"topic": "lateness", "key": "first"}));
    consumer.take(1, SOON);
    for _ in 0..WARM_UP + MEASURED {
        client.send(broker, json!({"topic": "lateness", "key": "late", "level": 1}));
        thread::sleep(PAUSE);
    }
    let received = consumer.take(WARM_UP + MEASURED, SOON);
    let waiting = client.pull(broker, "SCHEDULE_TOPIC_XXXX");
    let stored: HashMap<&str, u64> = waiting.iter().map(|waited| (waited.unique_key.as_str(), waited.stored)).collect();
    let due = |message: &Message| stored[message.unique_key.as_str()] + 1_000;
    [
        percentiles(received[WARM_UP..].iter().map(|message| message.stored - due(message)).collect()),
        percentiles(received[WARM_UP..].iter().map(|message| message.received - due(message)).collect()),
    ]
}

fn percentiles(mut late: Vec<u64>) -> String {
    late.sort_unstable();
    let at = |percent: usize| late[(late.len() - 1) * percent / 100];
    format!("p50 {} ms, p90 {} ms, p99 {} ms, max {} ms", at(50), at(90), at(99), at(100))
}

fn anonymous_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a running broker");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a running broker");
    let behind_name = stat.rsplit(')').next().expect("a name in brackets");
    behind_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

/// How often the scheduler's thread went to sleep.
fn wakes(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a running broker");
    let is_scheduler =
        |thread: &Path| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == SCHEDULER);
    let scheduler = threads.flatten().map(|thread| thread.path()).find(|thread| is_scheduler(thread)).expect(SCHEDULER);
    let status = fs::read_to_string(scheduler.join("status")).expect("a running thread");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a count");
    line.trim().parse().expect("a number")
}
