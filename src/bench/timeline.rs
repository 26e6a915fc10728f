//! A run in equal parts of time, filled by many threads.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use hdrhistogram::Histogram;

use super::report::Moment;

/// Most parts of a run: what a plot can show.
const PARTS_MAX: u32 = 600;

/// Latencies and messages of each part of a run.
pub(super) struct Timeline {
    part: Duration,
    parts: Mutex<Vec<Part>>,
}

struct Part {
    latencies: Histogram<u32>,
    messages: u64,
}

/// What one thread saw in the current part.
pub(super) struct Current<'a> {
    timeline: &'a Timeline,
    nth: usize,
    seen: Part,
}

impl Part {
    fn new() -> Self {
        let latencies = Histogram::new_with_max(600_000_000_000, 2).expect("bounds and digits that the format allows");
        Self { latencies, messages: 0 }
    }
}

impl Timeline {
    /// Parts of a second, or longer ones if the run is long.
    pub(super) fn new(expected: Duration) -> Self {
        Self { part: Duration::from_secs(1).max(expected / PARTS_MAX), parts: Mutex::default() }
    }

    /// A thread's own place to count in.
    pub(super) fn current(&self) -> Current<'_> {
        Current { timeline: self, nth: 0, seen: Part::new() }
    }

    /// All parts but the last, which may have been short; the only one is kept.
    pub(super) fn moments(self, run: Duration) -> Vec<Moment> {
        let parts = self.parts.into_inner().unwrap_or_else(PoisonError::into_inner);
        let whole = (run.as_nanos() / self.part.as_nanos().max(1)) as usize;
        let only = parts.len() == 1;
        let ms = |nanos: u64| nanos as f64 / 1e6;
        let moment = |(nth, part): (usize, &Part)| Moment {
            second: (self.part * (nth as u32 + 1)).as_secs_f64(),
            per_second: part.messages as f64
                / if only { run.min(self.part) } else { self.part }.as_secs_f64().max(1e-9),
            p50: ms(part.latencies.value_at_quantile(0.5)),
            p99: ms(part.latencies.value_at_quantile(0.99)),
            max: ms(part.latencies.max()),
        };
        parts.iter().enumerate().take(whole.max(1)).map(moment).collect()
    }
}

impl Current<'_> {
    /// Says how late it is, before anything is counted.
    pub(super) fn at(&mut self, since_begun: Duration) {
        let nth = (since_begun.as_nanos() / self.timeline.part.as_nanos().max(1)) as usize;
        if nth != self.nth {
            self.hand_over();
            self.nth = nth;
        }
    }

    /// Counts an answer for `messages` that took `nanos`.
    pub(super) fn count(&mut self, nanos: u64, messages: u64) {
        self.seen.latencies.saturating_record(nanos);
        self.seen.messages += messages;
    }

    fn hand_over(&mut self) {
        if self.seen.messages == 0 || self.nth > 2 * PARTS_MAX as usize {
            return;
        }
        let mut parts = self.timeline.parts.lock().unwrap_or_else(PoisonError::into_inner);
        while parts.len() <= self.nth {
            parts.push(Part::new());
        }
        // Both have the same bounds.
        let _ = parts[self.nth].latencies.add(&self.seen.latencies);
        parts[self.nth].messages += self.seen.messages;
        self.seen.latencies.reset();
        self.seen.messages = 0;
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        self.hand_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_the_messages_that_all_threads_counted_in_it() {
        let timeline = Timeline::new(Duration::from_secs(3));
        for _ in 0..2 {
            let mut current = timeline.current();
            for tenth in 0..25 {
                current.at(Duration::from_millis(tenth * 100));
                current.count(1_000_000 * (tenth + 1), 3);
            }
        }
        let moments = timeline.moments(Duration::from_millis(2500));

        let counted: Vec<(f64, f64)> = moments.iter().map(|moment| (moment.second, moment.per_second)).collect();
        assert_eq!(counted, [(1.0, 60.0), (2.0, 60.0)]);
        assert!(moments[0].max < 11.0 && moments[1].p50 > 11.0, "{moments:?}");
    }
}
