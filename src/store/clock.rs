//! The store's own time.
//!
//! S = max(wall clock, previous S + boot time elapsed since). It never falls, also when the wall clock steps back, and it goes on at the
//! pace of the boot-time clock until the wall clock has caught up. A delay is a difference of two values of S.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{env::Clock, model::Timestamp, mutation::Mutation};

/// Gives the store time; see the module.
pub(super) struct StoreClock {
    clock: Arc<dyn Clock>,
    anchor: Mutex<Anchor>,
}

/// A moment at which both clocks were read.
#[derive(Clone, Copy)]
struct Anchor {
    store_time: Timestamp,
    since_boot: Duration,
}

impl StoreClock {
    /// A clock that begins at the wall clock.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let anchor = Anchor { store_time: clock.wall(), since_boot: clock.since_boot() };
        Self { clock, anchor: Mutex::new(anchor) }
    }

    /// Sees to it that no later store time lies before `last`, the last one in the log.
    pub(super) fn not_before(&self, last: Timestamp) {
        if Mutation::StoreTimeForgotten.is_on() {
            return;
        }
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        *anchor = Anchor { store_time: self.clock.wall().max(last), since_boot: self.clock.since_boot() };
    }

    /// The store time now.
    pub(super) fn now(&self) -> Timestamp {
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let since_boot = self.clock.since_boot();
        let elapsed = since_boot.saturating_sub(anchor.since_boot);
        let by_boot_clock = anchor.store_time.plus(elapsed);
        let wall = self.clock.wall();
        if wall > by_boot_clock || Mutation::StoreTimeFromWallClock.is_on() {
            *anchor = Anchor { store_time: wall, since_boot };
            wall
        } else {
            by_boot_clock
        }
    }

    /// How far the store time is ahead of the wall clock.
    pub(super) fn ahead_of_wall(&self) -> Duration {
        self.now().since(self.clock.wall())
    }
}
