//! A moment of wall-clock time.

use std::{fmt, time::Duration};

/// Milliseconds since the Unix epoch, as RocketMQ stores them (signed 64 bit).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);
    /// Later than every real moment.
    pub const MAX: Self = Self(i64::MAX);

    /// The moment `delay` later, in whole milliseconds; stops at [`Timestamp::MAX`].
    #[must_use]
    pub fn plus(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The moment `time` before, in whole milliseconds; stops at the earliest there is.
    #[must_use]
    pub fn minus(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The time that passed since `earlier`; zero if `earlier` is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
