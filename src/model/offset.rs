//! Positions: in the commit log and in a queue.

use std::fmt;

/// A byte position in the commit log, counted from the first byte ever written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PhysicalOffset(pub u64);

/// The position of a message within its queue, counted in messages from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QueueOffset(pub u64);

impl PhysicalOffset {
    /// The start of the log.
    pub const ZERO: Self = Self(0);

    /// The position `bytes` further on.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// How many bytes lie between `earlier` and here; 0 if `earlier` is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl QueueOffset {
    /// The first message of a queue.
    pub const ZERO: Self = Self(0);

    /// The offset `messages` further on.
    #[must_use]
    pub fn plus(self, messages: u64) -> Self {
        Self(self.0 + messages)
    }
}

impl fmt::Display for PhysicalOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for QueueOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
