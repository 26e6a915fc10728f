//! The scheduler as the store sees it.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    DelayOptions, LEVELS_KEY, PARK_AFTER_KEY, RealTopics, Tick, admission,
    driver::{Bell, Driver},
    figures::figures,
    generations::Generations,
    levels::{DelayLevel, LevelTable},
    scheduler::Scheduler,
    stamp::Stamp,
};
use crate::{
    model::{MessageDraft, PhysicalOffset, Timestamp},
    record::RecordView,
    store::{
        Admission, AdmitContext, Dispatched, Figure, Mark, Owed, Placement, Plugin, PluginError, Refusal,
        SettingChange, StoreHandle,
    },
};

/// Name of the plugin: in logs and in the checkpoint.
pub(super) const NAME: &str = "levels";
/// Bits of a mark that hold how long the message waits, in milliseconds; the level lies above them. A longest delay fits.
const WAIT_BITS: u32 = 48;
const _: () =
    assert!(super::levels::DELAY_MS_MAX < 1 << WAIT_BITS && super::levels::LEVELS_MAX < 1 << (64 - WAIT_BITS));

/// Delivers messages with a delay level when they are due; a plugin of the store.
///
/// Without a thread until [`Plugin::start`]: a test drives it by [`LevelScheduler::tick`].
///
/// Each lock is taken alone: `generations` under the append lock or during recovery.
pub struct LevelScheduler {
    scheduler: Arc<Scheduler>,
    generations: Mutex<Generations>,
    driver: Mutex<Option<Driver>>,
    bell: Mutex<Option<Arc<Bell>>>,
}

impl LevelScheduler {
    /// A scheduler for a table of levels; `topics` says where due messages go.
    pub fn new(options: DelayOptions, topics: Arc<dyn RealTopics>) -> Self {
        Self {
            scheduler: Arc::new(Scheduler::new(options, topics)),
            generations: Mutex::default(),
            driver: Mutex::default(),
            bell: Mutex::default(),
        }
    }

    /// Restores one batch of one level, if one is due at `now`, which must not be later than the store's own time. The thread calls this in
    /// a loop.
    ///
    /// # Panics
    /// If the store's time fell: a message would be early.
    pub fn tick(&self, now: Timestamp) -> Tick {
        self.scheduler.tick(now)
    }

    /// When there is something to do next; a time in the past if there is something to do now.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.scheduler.next_deadline()
    }

    /// The options in force.
    pub fn options(&self) -> Arc<DelayOptions> {
        self.scheduler.options()
    }

    /// Wakes the thread, if there is one.
    fn ring(&self) {
        if let Some(bell) = &*self.bell.lock().unwrap_or_else(PoisonError::into_inner) {
            bell.ring();
        }
    }
}

impl Plugin for LevelScheduler {
    fn name(&self) -> &'static str {
        NAME
    }

    fn admit(&self, draft: &mut MessageDraft, context: &AdmitContext<'_>) -> Result<Admission, Refusal> {
        // The message waits as long as the table says now, also if another is in force before it is stored.
        let table = &self.scheduler.options().levels;
        let level = admission::admit(table, draft, context)?;
        Ok(level.map_or(Admission::Pass, |level| Admission::Marked(mark(level, table.wait(level)))))
    }

    fn place(&self, mark: Mark, place: &Placement) -> i64 {
        let Some((level, wait)) = marked(mark) else { return 0 };
        let deliver_at = place.stored_at.plus(wait);
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = generations.place(level, deliver_at.since(place.stored_at));
        Stamp::waiting(generation, deliver_at).to_field()
    }

    fn attach(&self, store: StoreHandle) {
        self.scheduler.attach(store);
    }

    fn recover(&self, state: Option<&[u8]>) -> Result<bool, PluginError> {
        let believed = self.scheduler.recover(state);
        let mut generations = Generations::default();
        for (level, generation, duration) in self.scheduler.generations() {
            generations.found(level, generation, duration);
        }
        *self.generations.lock().unwrap_or_else(PoisonError::into_inner) = generations;
        Ok(believed)
    }

    fn tag_code(&self, record: &RecordView<'_>, existing: Option<i64>) -> Option<i64> {
        self.scheduler.tag_code(record, existing)
    }

    fn dispatched(&self, records: &[Dispatched<'_>]) {
        for (level, generation, duration) in self.scheduler.dispatched(records) {
            self.generations.lock().unwrap_or_else(PoisonError::into_inner).found(level, generation, duration);
        }
    }

    fn round_ended(&self) {
        if self.scheduler.round_ended() {
            self.ring();
        }
    }

    fn recovered(&self) {
        self.scheduler.recovered();
    }

    fn clock_jumped(&self, by: Duration) {
        self.scheduler.clock_jumped(by);
        self.ring();
    }

    fn pinned_from(&self) -> Option<PhysicalOffset> {
        self.scheduler.pinned_from()
    }

    fn owes(&self) -> Owed {
        self.scheduler.owes()
    }

    fn state(&self) -> Vec<u8> {
        self.scheduler.to_state()
    }

    fn export(&self) -> io::Result<()> {
        self.scheduler.export()
    }

    fn change_setting(&self, key: &str, value: &str) -> SettingChange {
        let before = self.scheduler.options();
        let options = match key {
            LEVELS_KEY => match value.parse::<LevelTable>() {
                Ok(levels) => DelayOptions { levels, ..DelayOptions::clone(&before) },
                Err(error) => return SettingChange::Refused(error.to_string()),
            },
            PARK_AFTER_KEY => match value.parse() {
                Ok(ms) => DelayOptions { park_after: Duration::from_millis(ms), ..DelayOptions::clone(&before) },
                Err(_) => return SettingChange::Refused(format!("{key} = {value}: must be a number of milliseconds")),
            },
            _ => return SettingChange::NotMine,
        };
        if before.levels != options.levels {
            tracing::info!(before = %before.levels, now = %options.levels, "delay levels changed; what waits keeps its time");
        }
        self.scheduler.set_options(options);
        SettingChange::Accepted
    }

    fn figures(&self) -> Vec<Figure> {
        figures(&self.scheduler)
    }

    fn start(&self) -> Result<(), PluginError> {
        tracing::info!(levels = %self.scheduler.options().levels, "delay levels");
        let driver = Driver::start(self.scheduler.clone()).map_err(|error| PluginError {
            plugin: NAME,
            reason: format!("cannot start the thread of the scheduler: {error}"),
        })?;
        *self.bell.lock().unwrap_or_else(PoisonError::into_inner) = Some(driver.bell());
        *self.driver.lock().unwrap_or_else(PoisonError::into_inner) = Some(driver);
        Ok(())
    }

    fn stop(&self) {
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(driver) = driver {
            driver.stop();
        }
        *self.bell.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// What a draft of this level that waits so long is marked with.
fn mark(level: DelayLevel, wait: Duration) -> Mark {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).min((1 << WAIT_BITS) - 1);
    Mark(u64::from(level.number()) << WAIT_BITS | wait_ms)
}

/// Takes a [`mark`] apart.
fn marked(mark: Mark) -> Option<(DelayLevel, Duration)> {
    let level = u32::try_from(mark.0 >> WAIT_BITS).ok().and_then(DelayLevel::new)?;
    Some((level, Duration::from_millis(mark.0 & ((1 << WAIT_BITS) - 1))))
}
