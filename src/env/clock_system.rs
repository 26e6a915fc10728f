//! The clocks of the machine.

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};
use tracing::warn;

use super::{BootId, Clock};
use crate::model::Timestamp;

/// Where Linux says which boot this is.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// How often both clocks are read to get two values of one moment.
const READINGS: u32 = 5;

/// The machine's own clocks: `CLOCK_REALTIME`, and `CLOCK_BOOTTIME`, which also counts the hours the machine was suspended.
#[derive(Debug, Clone)]
pub struct SystemClock {
    boot_id: BootId,
}

impl SystemClock {
    /// Reads which boot this is. Where that cannot be read, each clock gets an id of its own: every start then counts as one after a reboot,
    /// which is safe, only less exact.
    pub fn new() -> Self {
        let boot_id = match fs::read_to_string(BOOT_ID_FILE) {
            Ok(text) => BootId(text.trim().to_owned()),
            Err(error) => {
                warn!(%error, file = BOOT_ID_FILE, "boot id unknown, taking this start for a reboot");
                BootId(format!("unknown-{:016x}", fastrand::u64(..)))
            }
        };
        Self { boot_id }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        Timestamp(match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => millis(after),
            Err(before) => -millis(before.duration()),
        })
    }

    fn since_boot(&self) -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    fn both(&self) -> (Timestamp, Duration) {
        let read = |_| {
            let before = self.since_boot();
            let wall = SystemTime::now();
            (self.since_boot().saturating_sub(before), before, wall)
        };
        // A pause between the two readings would look like a step of the wall clock.
        let readings = (0..READINGS).map(read);
        let Some((_, since_boot, wall)) = readings.min_by_key(|(pause, ..)| *pause) else {
            return (self.wall(), self.since_boot());
        };
        match wall.duration_since(UNIX_EPOCH) {
            Ok(after) => {
                let fraction = Duration::from_nanos(u64::from(after.subsec_nanos() % 1_000_000));
                (Timestamp(i64::try_from(after.as_millis()).unwrap_or(i64::MAX)), since_boot.saturating_sub(fraction))
            }
            Err(before) => (Timestamp(-i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX)), since_boot),
        }
    }

    fn boot_id(&self) -> BootId {
        self.boot_id.clone()
    }

    fn utc_offset_seconds(&self) -> i32 {
        jiff::tz::TimeZone::system().to_offset(jiff::Timestamp::now()).seconds()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_of_one_boot_agree_on_its_id_and_do_not_go_back() {
        let clock = SystemClock::new();

        let earlier = clock.since_boot();

        assert!(clock.since_boot() >= earlier);
        assert!(earlier > Duration::ZERO);
        assert_eq!(clock.boot_id(), SystemClock::new().boot_id());
        assert!(!clock.boot_id().0.is_empty());
        assert!(clock.wall() > Timestamp(1_700_000_000_000));
    }
}
