//! What can be set about the level scheduler.

use std::time::Duration;

use super::LevelTable;

/// The key of [`DelayOptions::park_after`].
pub const PARK_AFTER_KEY: &str = "parkAfter";

/// Options of a [`super::LevelScheduler`]. `config` fills it from `broker.conf`.
#[derive(Debug, Clone)]
pub struct DelayOptions {
    /// How long each level waits. Key `messageDelayLevel`.
    pub levels: LevelTable,
    /// How long a waiting record that cannot be read is tried again before it is parked. Key `parkAfter`, in milliseconds; default 10 minutes.
    pub park_after: Duration,
}

impl Default for DelayOptions {
    fn default() -> Self {
        Self { levels: LevelTable::default(), park_after: Duration::from_secs(600) }
    }
}
