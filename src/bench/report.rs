//! What a run found.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::usage::Usage;

/// A generator that waited less than this share of the time was itself the bottleneck.
const IDLE_SHARE_MIN: f64 = 0.03;

/// Figures of one run.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What was done.
    pub name: String,
    /// To whom.
    pub address: String,
    /// How long was counted.
    pub seconds: f64,
    /// How many messages.
    pub messages: u64,
    /// Messages a second.
    pub per_second: f64,
    /// Bodies in MB a second.
    pub megabytes_per_second: f64,
    /// Errors: response code, how often, and the first remark.
    pub errors: BTreeMap<i64, (u64, String)>,
    /// Latencies by what they are of.
    pub latencies: BTreeMap<String, Latencies>,
    /// What this generator used.
    pub generator: Usage,
    /// What the broker used, if its process could be seen.
    pub broker: Option<Usage>,
    /// Share of the time that the generator's threads waited for the broker.
    pub generator_idle: f64,
    /// Further figures.
    pub figures: BTreeMap<String, f64>,
    /// What the reader must know.
    pub remarks: Vec<String>,
}

/// A distribution, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
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
}

impl Latencies {
    /// The distribution of a histogram of nanoseconds.
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let ms = |nanos: u64| nanos as f64 / 1e6;
        let at = |quantile| ms(histogram.value_at_quantile(quantile));
        if histogram.is_empty() {
            return Self::default();
        }
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

    /// Says so if the generator and not the broker set the pace.
    pub(super) fn judge(&mut self, idle: f64) {
        self.generator_idle = idle;
        if idle < IDLE_SHARE_MIN {
            self.remarks.push(format!(
                "the generator was the bottleneck: its threads waited for the broker only {:.1} % of the time",
                idle * 100.0
            ));
        }
    }

    /// CPU seconds per million messages.
    pub fn cpu_per_million(&self, usage: &Usage) -> f64 {
        usage.cpu_seconds * 1e6 / (self.messages.max(1) as f64)
    }

    /// The report for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{} to {}: {} messages in {:.2} s = {:.0}/s, {:.1} MB/s of bodies",
            self.name, self.address, self.messages, self.seconds, self.per_second, self.megabytes_per_second
        )];
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
        let process = |name: &str, usage: &Usage| {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            format!(
                "{name:<10} {:.2} CPU s, {:.2} per million; RssAnon {:.1} MiB, RssFile {:.1} MiB; {:.0} bytes written a message",
                usage.cpu_seconds,
                self.cpu_per_million(usage),
                mib(usage.rss_anon),
                mib(usage.rss_file),
                usage.written_bytes as f64 / self.messages.max(1) as f64
            )
        };
        lines.push(process("generator", &self.generator));
        lines.extend(self.broker.as_ref().map(|usage| process("broker", usage)));
        lines.extend(self.figures.iter().map(|(name, value)| format!("{name}: {value:.3}")));
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
    histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
}
