//! A clock that a test moves by hand.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{BootId, Clock};
use crate::model::Timestamp;

/// A clock that stands still until it is moved. Clones show the same time.
///
/// The wall clock and the clock since boot are apart, as in a real machine: [`TestClock::advance`] moves both,
/// [`TestClock::step_wall`] only the first.
#[derive(Debug, Clone)]
pub struct TestClock {
    hands: Arc<Mutex<Hands>>,
}

#[derive(Debug)]
struct Hands {
    wall: Timestamp,
    /// What has passed of the wall clock's next millisecond.
    wall_rest: Duration,
    since_boot: Duration,
    boots: u32,
}

impl TestClock {
    /// A clock that shows `wall`, in a machine that has just booted.
    pub fn new(wall: Timestamp) -> Self {
        let hands = Hands { wall, wall_rest: Duration::ZERO, since_boot: Duration::ZERO, boots: 1 };
        Self { hands: Arc::new(Mutex::new(hands)) }
    }

    /// Lets time pass.
    pub fn advance(&self, time: Duration) {
        let mut hands = self.hands();
        let wall = hands.wall_rest + time;
        hands.wall = hands.wall.plus(wall);
        hands.wall_rest = Duration::from_nanos(u64::from(wall.subsec_nanos() % 1_000_000));
        hands.since_boot += time;
    }

    /// Sets the wall clock forward, or back if `ms` is negative, without time passing.
    pub fn step_wall(&self, ms: i64) {
        let mut hands = self.hands();
        hands.wall = Timestamp(hands.wall.0.saturating_add(ms));
    }

    /// Boots the machine again: the clock since boot begins at zero under a new boot id, the wall clock goes on.
    pub fn reboot(&self) {
        let mut hands = self.hands();
        hands.since_boot = Duration::ZERO;
        hands.boots += 1;
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for TestClock {
    fn wall(&self) -> Timestamp {
        self.hands().wall
    }

    fn since_boot(&self) -> Duration {
        self.hands().since_boot
    }

    fn boot_id(&self) -> BootId {
        BootId(format!("boot-{}", self.hands().boots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_for_both_clocks_down_to_the_nanosecond() {
        let clock = TestClock::new(Timestamp(1_000));

        for _ in 0..3 {
            clock.clone().advance(Duration::from_micros(2_500));
        }

        assert_eq!(clock.wall(), Timestamp(1_007));
        assert_eq!(clock.since_boot(), Duration::from_micros(7_500));
        clock.advance(Duration::from_micros(500));
        assert_eq!(clock.wall(), Timestamp(1_008));
    }

    #[test]
    fn a_step_of_the_wall_clock_is_no_time() {
        let clock = TestClock::new(Timestamp(1_000));

        clock.step_wall(-5_000);

        assert_eq!(clock.wall(), Timestamp(-4_000));
        assert_eq!(clock.since_boot(), Duration::ZERO);
    }

    #[test]
    fn a_reboot_has_its_own_id_and_begins_at_zero() {
        let clock = TestClock::new(Timestamp(1_000));
        clock.advance(Duration::from_secs(1));
        let before = clock.boot_id();

        clock.reboot();

        assert_ne!(clock.boot_id(), before);
        assert_eq!((clock.since_boot(), clock.wall()), (Duration::ZERO, Timestamp(2_000)));
    }
}
