//! What a run found.

use std::{collections::BTreeMap, thread, time::Duration};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::usage::Usage;

/// A generator whose busiest thread was awake for more than this share of the time did not wait for the broker.
const BUSY_SHARE: f64 = 0.95;
/// Shorter runs tell nothing about who waited for whom.
const JUDGED_SECONDS_MIN: f64 = 0.1;
/// A broker that used less than this share of what the generator left of all cores could have done more.
const SATURATED_SHARE: f64 = 0.9;
/// Nines of the percentiles of a curve, and steps for each.
const CURVE_NINES: u32 = 5;
const CURVE_STEPS: u32 = 20;

/// Figures of one run.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What was done.
    pub name: String,
    /// To whom.
    pub address: String,
    /// What the user calls this run, for plots: names and values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// How long was counted.
    pub seconds: f64,
    /// How many messages.
    pub messages: u64,
    /// Messages a second.
    pub per_second: f64,
    /// Bodies in MB a second.
    pub megabytes_per_second: f64,
    /// Messages acknowledged in all, those of the warm-up included.
    pub acknowledged: u64,
    /// Errors: response code, how often, and the first remark.
    pub errors: BTreeMap<i64, (u64, String)>,
    /// Latencies by what they are of.
    pub latencies: BTreeMap<String, Latencies>,
    /// What this generator used.
    pub generator: Process,
    /// What the broker used, if its process could be seen.
    pub broker: Option<Process>,
    /// How the log grew, if the broker tells.
    pub log: Option<Growth>,
    /// What became of the messages, where each was followed.
    pub ledger: Option<Account>,
    /// Share of the time for which the generator's busiest thread ran, or wanted to.
    pub generator_busy: f64,
    /// Whether the generator and not the broker set the pace.
    pub generator_was_bottleneck: bool,
    /// Further figures.
    pub figures: BTreeMap<String, f64>,
    /// What the reader must know.
    pub remarks: Vec<String>,
    /// The run in equal parts of time.
    #[serde(skip)]
    pub timeline: Vec<Moment>,
}

/// What a process used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// What it used.
    #[serde(flatten)]
    pub usage: Usage,
    /// CPU seconds per million messages.
    pub cpu_seconds_per_million: f64,
    /// Bytes written to storage for each message.
    pub written_bytes_per_message: f64,
}

/// How a broker's log grew from before the first message to after the last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Growth {
    /// Bytes of the commit log, restored messages included.
    pub bytes: i64,
    /// Messages in the queues of the topics and the levels used, together: a delayed message counts once as it waits, and again when restored.
    pub queued: Option<i64>,
}

/// What became of the messages of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Account {
    /// Messages that were acknowledged.
    pub acknowledged: u64,
    /// Messages received, each counted once.
    pub received: u64,
    /// Acknowledged and not received.
    pub lost: u64,
    /// Received once too often.
    pub repeated: u64,
    /// Stored again before they were due.
    pub early: u64,
    /// Stored again before one that waited ahead of them on the same level, or given out of the order of their queue.
    pub out_of_order: u64,
    /// Received on time as far as can be told, but nothing of how they waited was found.
    pub without_waiting_record: u64,
}

/// A part of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moment {
    /// Its end, in seconds from the start of the run.
    pub second: f64,
    /// Messages a second meanwhile.
    pub per_second: f64,
    /// Median latency in milliseconds.
    pub p50: f64,
    /// 99 % took no longer.
    pub p99: f64,
    /// The most.
    pub max: f64,
}

/// A distribution, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Latencies {
    /// How many.
    pub count: u64,
    /// The least.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// Half took no longer.
    pub p50: f64,
    /// 90 % took no longer.
    pub p90: f64,
    /// 99 % took no longer.
    pub p99: f64,
    /// 99.9 % took no longer.
    pub p999: f64,
    /// 99.99 % took no longer.
    pub p9999: f64,
    /// The most.
    pub max: f64,
    /// Nines (0 is the least, 1 is p90, 2 is p99 …) and milliseconds, for a plot.
    #[serde(skip)]
    pub curve: Vec<(f64, f64)>,
}

impl Latencies {
    /// The distribution of a histogram of nanoseconds.
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let ms = |nanos: u64| nanos as f64 / 1e6;
        let at = |quantile| ms(histogram.value_at_quantile(quantile));
        if histogram.is_empty() {
            return Self::default();
        }
        let nines = (0..=CURVE_NINES * CURVE_STEPS).map(|step| f64::from(step) / f64::from(CURVE_STEPS));
        // Beyond the last message there is nothing to draw.
        let nines = nines.filter(|nines| histogram.len() as f64 >= 10_f64.powf(*nines));
        Self {
            count: histogram.len(),
            min: ms(histogram.min()),
            mean: histogram.mean() / 1e6,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: ms(histogram.max()),
            curve: nines.map(|nines| (nines, at(1.0 - 10_f64.powf(-nines)))).collect(),
        }
    }
}

impl Account {
    /// Whether every promise was kept.
    pub fn is_sound(&self) -> bool {
        self.lost == 0 && self.repeated == 0 && self.early == 0 && self.out_of_order == 0
    }
}

impl Process {
    /// What was used for `messages`.
    pub(super) fn of(usage: Usage, messages: u64) -> Self {
        let messages = messages.max(1) as f64;
        Self {
            usage,
            cpu_seconds_per_million: usage.cpu_seconds * 1e6 / messages,
            written_bytes_per_message: usage.written_bytes as f64 / messages,
        }
    }
}

impl Report {
    /// A report of `messages` in `elapsed`, with bodies of `body_bytes`.
    pub(super) fn new(name: &str, address: &str, messages: u64, elapsed: Duration, body_bytes: usize) -> Self {
        let per_second = messages as f64 / elapsed.as_secs_f64().max(1e-9);
        Self {
            name: name.into(),
            address: address.into(),
            seconds: elapsed.as_secs_f64(),
            messages,
            per_second,
            megabytes_per_second: per_second * body_bytes as f64 / 1e6,
            ..Self::default()
        }
    }

    /// Enters what both processes used, and says so if the generator and not the broker set the pace: its busiest thread was awake for a share
    /// `busy` of the time.
    pub(super) fn judge(&mut self, generator: Usage, broker: Option<Usage>, busy: f64) {
        self.generator = Process::of(generator, self.messages);
        self.broker = broker.map(|usage| Process::of(usage, self.messages));
        self.generator_busy = busy;
        self.generator_was_bottleneck = false;
        if busy < BUSY_SHARE || self.seconds < JUDGED_SECONDS_MIN {
            return;
        }
        let cores = thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        let left = (cores * self.seconds - generator.cpu_seconds).max(1e-9);
        let share = broker.map(|broker| broker.cpu_seconds / left);
        self.generator_was_bottleneck = share.is_none_or(|share| share < SATURATED_SHARE);
        let its = share.map_or_else(
            || "what the broker did meanwhile could not be seen".to_owned(),
            |share| format!("the broker used {:.0} % of the CPU time that was left to it", share * 100.0),
        );
        self.remarks.push(if self.generator_was_bottleneck {
            format!(
                "the generator was the bottleneck: its busiest thread was awake {:.0} % of the time, and {its}",
                busy * 100.0
            )
        } else {
            format!("generator and broker shared all there is of this machine: {its}")
        });
    }

    /// The report for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{} to {}: {} messages in {:.2} s = {:.0}/s, {:.1} MB/s of bodies",
            self.name, self.address, self.messages, self.seconds, self.per_second, self.megabytes_per_second
        )];
        lines.extend(self.labels.iter().map(|(name, value)| format!("{name}: {value}")));
        if !self.latencies.is_empty() {
            lines.push(format!(
                "{:<26}{:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
                "ms", "count", "min", "p50", "p90", "p99", "p99.9", "p99.99", "max"
            ));
        }
        for (name, of) in &self.latencies {
            lines.push(format!(
                "{name:<26}{:>10} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3}",
                of.count, of.min, of.p50, of.p90, of.p99, of.p999, of.p9999, of.max
            ));
        }
        lines.push(format!(
            "{:<26}{:>10} {:>12} {:>12} {:>12} {:>14}",
            "process", "CPU s", "per million", "RssAnon MiB", "RssFile MiB", "bytes/message"
        ));
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        for (name, of) in [("generator", Some(&self.generator)), ("broker", self.broker.as_ref())] {
            lines.extend(of.map(|of| {
                format!(
                    "{name:<26}{:>10.2} {:>12.2} {:>12.1} {:>12.1} {:>14.0}",
                    of.usage.cpu_seconds,
                    of.cpu_seconds_per_million,
                    mib(of.usage.rss_anon),
                    mib(of.usage.rss_file),
                    of.written_bytes_per_message
                )
            }));
        }
        if let Some(Growth { bytes, queued }) = self.log {
            let queued = queued.map_or_else(String::new, |queued| format!(" and {queued} queue entries"));
            lines
                .push(format!("the log grew by {bytes} bytes{queued} for {} acknowledged messages", self.acknowledged));
        }
        if let Some(of) = self.ledger {
            lines.push(format!(
                "ledger: {} acknowledged, {} received; {} lost, {} repeated, {} early, {} out of order",
                of.acknowledged, of.received, of.lost, of.repeated, of.early, of.out_of_order
            ));
            if of.without_waiting_record > 0 {
                lines.push(format!("{} were restored from no record that could be found", of.without_waiting_record));
            }
        }
        lines.extend(self.figures.iter().map(|(name, value)| {
            if value.fract() == 0.0 { format!("{name}: {value:.0}") } else { format!("{name}: {value:.3}") }
        }));
        for (code, (times, remark)) in &self.errors {
            lines.push(format!("error {code}: {times} times, first: {remark}"));
        }
        lines.extend(self.remarks.iter().map(|remark| format!("note: {remark}")));
        lines
    }
}

/// An empty histogram of nanoseconds up to ten minutes.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("bounds and digits that the format allows")
}

/// Counts a time.
pub(super) fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// Milliseconds, of which fewer than none are none.
pub(super) fn late(ms: f64) -> Duration {
    Duration::from_secs_f64((ms / 1e3).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(cpu_seconds: f64) -> Usage {
        Usage { cpu_seconds, ..Usage::default() }
    }

    #[test]
    fn a_generator_that_never_slept_beside_a_broker_that_did_was_the_bottleneck() {
        let cores = thread::available_parallelism().unwrap().get() as f64;
        let report = || Report::new("send", "a", 1_000_000, Duration::from_secs(10), 1);

        let mut alone = report();
        alone.judge(used(1.0), Some(used(2.0 * cores)), 0.99);
        assert!(alone.generator_was_bottleneck);
        assert!(alone.lines().iter().any(|line| line.contains("the generator was the bottleneck")));

        let mut shared = report();
        shared.judge(used(1.0), Some(used(10.0 * cores - 1.1)), 0.99);
        assert!(!shared.generator_was_bottleneck);
        let mut waiting = report();
        waiting.judge(used(1.0), None, 0.5);
        assert!(!waiting.generator_was_bottleneck && waiting.remarks.is_empty());
        assert!((waiting.generator.cpu_seconds_per_million - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_distribution_ends_where_its_last_message_does() {
        let mut of = histogram();
        (1..=100).for_each(|ms| record(&mut of, Duration::from_millis(ms)));
        let latencies = Latencies::of(&of);

        assert!((latencies.p50 - 50.0).abs() < 0.1 && (latencies.p99 - 99.0).abs() < 0.2, "{latencies:?}");
        assert!((latencies.curve.last().unwrap().0 - 2.0).abs() < 1e-9, "{:?}", latencies.curve);
    }
}
