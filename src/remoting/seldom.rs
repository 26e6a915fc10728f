//! Log lines that a hostile peer could cause by the thousand: one a second tells.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

/// Shortest time between two lines, in milliseconds.
const PAUSE_MS: u64 = 1_000;

/// Lets one line a second pass, and counts those in between.
#[derive(Debug)]
pub(super) struct Seldom {
    since: Instant,
    /// When the next may pass, in milliseconds.
    next_ms: AtomicU64,
    left_out: AtomicU64,
}

impl Default for Seldom {
    fn default() -> Self {
        Self { since: Instant::now(), next_ms: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }
}

impl Seldom {
    /// Whether a line may pass now; then, how many were left out since the last.
    pub(super) fn pass(&self) -> Option<u64> {
        self.pass_at(u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn pass_at(&self, now_ms: u64) -> Option<u64> {
        let next_ms = self.next_ms.load(Ordering::Relaxed);
        let is_mine = now_ms >= next_ms
            && self.next_ms.compare_exchange(next_ms, now_ms + PAUSE_MS, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_mine {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_passes_and_says_how_many_did_not() {
        let seldom = Seldom::default();
        assert_eq!(seldom.pass_at(5), Some(0));
        assert_eq!((seldom.pass_at(6), seldom.pass_at(1_004)), (None, None));
        assert_eq!(seldom.pass_at(1_005), Some(2));
        assert_eq!(seldom.pass_at(9_000), Some(0));
    }
}
