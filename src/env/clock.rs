//! The two clocks, never mixed: wall time for promises that survive a reboot, boot time for durations.

use std::time::Duration;

use crate::model::Timestamp;

/// Tells one boot of the machine from another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct BootId(pub String);

/// What time it is.
pub trait Clock: Send + Sync {
    /// The wall clock. It may step in either direction at any moment.
    fn wall(&self) -> Timestamp;

    /// Time since the machine booted, suspended hours included. It never steps.
    fn since_boot(&self) -> Duration;

    /// The wall clock, and what the boot-time clock showed when this millisecond of the wall clock began; rather a moment earlier than later.
    fn both(&self) -> (Timestamp, Duration) {
        (self.wall(), self.since_boot())
    }

    /// Which boot [`Clock::since_boot`] counts from.
    fn boot_id(&self) -> BootId;

    /// How many seconds local time is ahead of UTC now; for hours of the day, nothing else.
    fn utc_offset_seconds(&self) -> i32 {
        0
    }
}
