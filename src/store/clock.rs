//! The store's own time, S.
//!
//! A delay is a difference of two values of S, so S must not run faster than time passes. It runs at the pace of the boot-time clock alone: it
//! never falls, and hours of suspension count. (Linux slews the wall clock and the boot-time clock alike; their difference changes only when
//! somebody sets the wall clock.)
//!
//! # Jumps
//!
//! S should still show what a clock on the wall shows, so it follows a forward step of the wall clock by a *recorded jump*: a threshold X
//! and an amount J. Before the jump S is below X, after it X or later; so every message with a store time below X was stored before the jump,
//! and its deadline moves by J as S does. Nobody is early, nobody late. When S is behind the wall clock by more than [`JUMP_MIN`],
//! [`MessageStore::follow_clock`](super::MessageStore::follow_clock)
//!
//! 1. takes J = wall - S, X = S + J, and holds S below X: whoever asks for the time then waits for the next step, which is only long if the
//!    disk needs longer than J;
//! 2. writes the jump and the new anchor (boot, boot time, X) into our checkpoint;
//! 3. lets S follow. If the second step fails, S does not: the jump is taken back and tried again later.
//!
//! A step by more than [`LARGE_JUMP`] is followed only after it has lasted [`LARGE_JUMP_LASTS`]: it may be a mistake that is put right at once.
//!
//! A jump counts as long as something stored before it may wait. At most [`JUMPS_MAX`] are kept: beyond, neighbours become one with the
//! later threshold and both amounts, and what was stored between them is late by the first amount.
//!
//! # After a restart
//!
//! In the same boot S goes on from the anchor as if nothing had happened. After a reboot only the wall clock is left: S begins there, but
//! never before the last store time in the log, nor before a threshold. If the log is ahead of the anchor (the newest checkpoint is lost, or
//! Apache RocketMQ wrote meanwhile by a wall clock that was set forward), S begins at the last store time by a jump.
//!
//! # Whether the log is believed
//!
//! No checksum covers a store time, and a damaged one at the end of the log would make all that waits early. So the last store time in the log counts
//! only as far as something else confirms it: the wall clock, S on record, RocketMQ's checkpoint, or the second latest of the last
//! [`CONFIRMING_RECORDS`] records, since store times in the log never fall. (After the wall clock was set back, and all checkpoints are lost, the records
//! alone confirm one another.) What lies beyond, up to [`UNCONFIRMED_MAX`], is followed by a jump: store time does not fall if it is right, and what waits
//! keeps its time if it is damage. More is taken for damage: S begins at what is confirmed.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    env::{BootId, Clock, Directory},
    model::{PhysicalOffset, Timestamp},
    mutation::Mutation,
};

/// S follows the wall clock when it is behind by more than this.
pub const JUMP_MIN: Duration = Duration::from_secs(1);
/// A step by more than this must last before it is followed.
pub const LARGE_JUMP: Duration = Duration::from_secs(24 * 3600);
/// How long it must last, by the boot-time clock.
pub const LARGE_JUMP_LASTS: Duration = Duration::from_secs(60);
/// How many records at the end of the log confirm one another's store times.
pub(super) const CONFIRMING_RECORDS: usize = 8;
/// A last store time in the log that is later by more than this than all that confirms it is damage.
pub(super) const UNCONFIRMED_MAX: Duration = LARGE_JUMP;
/// Most jumps kept.
pub const JUMPS_MAX: usize = 64;

/// Gives the store time; see the module.
pub(super) struct StoreClock {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Told when a jump is recorded, or given up.
    recorded: Condvar,
}

struct State {
    anchor: Anchor,
    jumps: ClockJumps,
    /// The threshold of a jump that is being recorded: S stays below.
    held_below: Option<Timestamp>,
    /// The anchor is of this boot.
    same_boot: bool,
    /// Since when, by the boot-time clock, the wall clock is ahead by more than [`LARGE_JUMP`].
    large_since: Option<Duration>,
    /// Jumps followed since the start.
    followed: u64,
    /// How far store time was ahead of the wall clock when that was looked at last.
    ahead: Duration,
    /// Steps back of the wall clock seen since the start.
    steps_back: u64,
}

/// A moment at which both clocks were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Anchor {
    store_time: Timestamp,
    since_boot: Duration,
}

/// What must outlast the process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ClockState {
    /// The boot that `since_boot` counts from.
    pub(super) boot_id: BootId,
    /// The boot-time clock at a moment.
    pub(super) since_boot: Duration,
    /// Store time at this moment.
    pub(super) store_time: Timestamp,
    pub(super) jumps: ClockJumps,
}

/// The jumps of store time that count: for the deadlines of what was stored before them.
///
/// Few, ascending; a clone is cheap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClockJumps(Arc<[ClockJump]>);

/// One jump of store time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ClockJump {
    /// What has a store time below this, in milliseconds since the epoch, was stored before the jump.
    pub(super) below_ms: i64,
    /// By how many milliseconds store time jumped.
    pub(super) by_ms: u64,
    /// Everything behind this position of the log was stored after the jump; absent until that is known.
    pub(super) end: Option<u64>,
}

/// The store times of the last records of the log.
#[derive(Debug, Clone, Default)]
pub(super) struct LastTimes(VecDeque<Timestamp>);

/// A jump that is due: the store time at a moment, and where it is to jump then.
#[derive(Debug, Clone, Copy)]
pub(super) struct DueJump {
    to: Anchor,
    pub(super) by: Duration,
}

/// A jump that is being recorded. Dropped without [`Recording::follow`], store time goes on without it.
pub(super) struct Recording<'a> {
    clock: &'a StoreClock,
    to: Anchor,
    jumps: ClockJumps,
}

impl LastTimes {
    /// Takes note of the next record.
    pub(super) fn saw(&mut self, stored_at: Timestamp) {
        if self.0.len() == CONFIRMING_RECORDS {
            self.0.pop_front();
        }
        self.0.push_back(stored_at);
    }

    /// That of the last record.
    pub(super) fn last(&self) -> Option<Timestamp> {
        self.0.back().copied()
    }

    /// The latest that another record confirms: the second latest.
    pub(super) fn confirmed(&self) -> Option<Timestamp> {
        let [mut latest, mut second] = [None, None];
        for time in self.0.iter().copied().map(Some) {
            second = second.max(latest.min(time));
            latest = latest.max(time);
        }
        second
    }
}

impl ClockJumps {
    pub(super) fn new(jumps: &[ClockJump]) -> Self {
        Self(jumps.into())
    }

    pub(super) fn as_slice(&self) -> &[ClockJump] {
        &self.0
    }

    /// The jumps that the checkpoint of a store in `directory` holds, or the one before if it cannot be read; for tools that look at a store
    /// while no broker runs on it. None if there is no checkpoint.
    pub fn load(directory: &Arc<dyn Directory>) -> Self {
        let found = super::checkpoint::CheckpointFiles::new(directory.clone()).load();
        found.map_or_else(Self::default, |found| found.checkpoint.clock.jumps)
    }

    /// When a message is due that was stored at `stored_at` and was to be delivered at `said`: later by all jumps since.
    pub fn due(&self, stored_at: Timestamp, said: Timestamp) -> Timestamp {
        if Mutation::ClockJumpsForgotten.is_on() {
            return said;
        }
        let later = self.0.iter().rev().take_while(|jump| stored_at.0 < jump.below_ms);
        later.fold(said, |due, jump| due.plus(Duration::from_millis(jump.by_ms)))
    }

    /// As [`ClockJumps::due`] said at the store time `at`, when later jumps were not known.
    pub fn due_as_of(&self, stored_at: Timestamp, said: Timestamp, at: Timestamp) -> Timestamp {
        // Something may have been stored at the very threshold before the jump: what was read last there counts as before.
        let known = self.0.iter().filter(|jump| stored_at.0 < jump.below_ms && jump.below_ms < at.0);
        known.fold(said, |due, jump| due.plus(Duration::from_millis(jump.by_ms)))
    }

    /// One more jump. Of too many, the two neighbours become one of which the first is the shortest.
    fn with(&self, jump: ClockJump) -> Self {
        let mut jumps = self.0.to_vec();
        jumps.push(jump);
        jumps.sort_by_key(|jump| jump.below_ms);
        while jumps.len() > JUMPS_MAX {
            let earlier = (0..jumps.len() - 1).min_by_key(|&at| jumps[at].by_ms).unwrap_or(0);
            let by_ms = jumps.remove(earlier).by_ms;
            jumps[earlier].by_ms = jumps[earlier].by_ms.saturating_add(by_ms);
        }
        Self(jumps.into())
    }

    fn latest(&self) -> Timestamp {
        Timestamp(self.0.last().map_or(i64::MIN, |jump| jump.below_ms))
    }
}

impl State {
    fn at(&self, since_boot: Duration) -> Timestamp {
        self.anchor.store_time.plus(since_boot.saturating_sub(self.anchor.since_boot))
    }

    /// What was stored before the jumps whose end is not known ends at `end`.
    fn set_ends(&mut self, end: PhysicalOffset) {
        self.replace_jumps(|jumps| {
            for jump in jumps {
                jump.end = jump.end.or(Some(end.0));
            }
        });
    }

    fn replace_jumps(&mut self, change: impl FnOnce(&mut Vec<ClockJump>)) {
        let mut jumps = self.jumps.0.to_vec();
        change(&mut jumps);
        self.jumps = ClockJumps(jumps.into());
    }
}

impl StoreClock {
    /// A clock that begins at the wall clock.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let (store_time, since_boot) = clock.both();
        let anchor = Anchor { store_time, since_boot };
        let state = State {
            anchor,
            jumps: ClockJumps::default(),
            held_below: None,
            same_boot: false,
            large_since: None,
            followed: 0,
            ahead: Duration::ZERO,
            steps_back: 0,
        };
        Self { clock, state: Mutex::new(state), recorded: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on after what the last process left, as far as that can be said before the log is read.
    pub(super) fn begin(&self, saved: Option<&ClockState>) {
        let (wall, since_boot) = self.clock.both();
        let boot_id = self.clock.boot_id();
        let mut state = self.state();
        state.jumps = saved.map_or_else(ClockJumps::default, |saved| saved.jumps.clone());
        state.same_boot = saved.is_some_and(|saved| saved.boot_id == boot_id && saved.since_boot <= since_boot);
        state.anchor = match saved {
            Some(saved) if state.same_boot => Anchor { store_time: saved.store_time, since_boot: saved.since_boot },
            Some(saved) => Anchor { store_time: wall.max(saved.store_time).max(saved.jumps.latest()), since_boot },
            None => Anchor { store_time: wall, since_boot },
        };
    }

    /// Goes on behind the last store times in the log, which ends at `end`, as far as they are confirmed: see the module. `on_record` is the store time
    /// of the last record by RocketMQ's checkpoint. Says whether the state must be saved before anything is appended.
    pub(super) fn resume(&self, log: &LastTimes, on_record: Option<Timestamp>, end: PhysicalOffset) -> bool {
        let (wall, since_boot) = self.clock.both();
        let mut state = self.state();
        let by_records = log.confirmed().unwrap_or(Timestamp(i64::MIN));
        let mut last = log.last().unwrap_or(Timestamp(i64::MIN)).max(by_records);
        let others = on_record.into_iter().chain([by_records, wall]);
        let confirmed = others.fold(state.at(since_boot), Timestamp::max);
        if last.since(confirmed) > UNCONFIRMED_MAX {
            tracing::error!(
                found_ms = last.0,
                confirmed_ms = confirmed.0,
                "the last record in the log has a store time that nothing confirms; it is taken for damage, and store time begins before it"
            );
            last = by_records;
        }
        if Mutation::StoreTimeForgotten.is_on() {
            last = Timestamp(i64::MIN);
        }
        let behind = last.since(state.at(since_boot));
        if behind > Duration::ZERO {
            let jump = if state.same_boot { behind } else { last.since(confirmed) };
            if jump > Duration::ZERO {
                tracing::warn!(
                    by_ms = jump.as_millis(),
                    "the log is ahead of the store time on record; store time jumps there, and what waits is due later by as much"
                );
                state.jumps = state.jumps.with(ClockJump { below_ms: last.0, by_ms: ms(jump), end: None });
                state.followed += 1;
            }
            state.anchor = Anchor { store_time: last, since_boot };
        }
        state.set_ends(end);
        !state.same_boot || behind > Duration::ZERO
    }

    /// The store time now.
    pub(super) fn now(&self) -> Timestamp {
        if Mutation::StoreTimeFromWallClock.is_on() {
            return self.clock.wall();
        }
        let mut state = self.state();
        loop {
            let now = state.at(self.clock.since_boot());
            if state.held_below.is_none_or(|below| now < below) {
                return now;
            }
            state = self.recorded.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What the boot-time clock shows when store time reaches `time`, unless there is a jump before.
    pub(super) fn since_boot_at(&self, time: Timestamp) -> Duration {
        let Anchor { store_time, since_boot } = self.state().anchor;
        since_boot + time.since(store_time)
    }

    /// How many milliseconds the store time is ahead of the wall clock; negative if it is behind.
    pub(super) fn ahead_of_wall_ms(&self) -> i64 {
        self.now().0.saturating_sub(self.clock.wall().0)
    }

    /// The jumps that count. Never older than a store time asked for before.
    pub(super) fn jumps(&self) -> ClockJumps {
        self.state().jumps.clone()
    }

    /// How many jumps were followed since the start.
    pub(super) fn followed(&self) -> u64 {
        self.state().followed
    }

    /// How many steps back of the wall clock were seen since the start.
    pub(super) fn steps_back(&self) -> u64 {
        self.state().steps_back
    }

    /// What must outlast the process. Its store time is that of now: in another boot it confirms that of every record before.
    pub(super) fn to_save(&self) -> ClockState {
        let state = self.state();
        // By whole milliseconds, so that the anchor stands for the same clock.
        let passed = self.clock.since_boot().saturating_sub(state.anchor.since_boot).as_millis();
        let passed = Duration::from_millis(u64::try_from(passed).unwrap_or(0));
        let Anchor { store_time, since_boot } = state.anchor;
        let anchor = Anchor { store_time: store_time.plus(passed), since_boot: since_boot + passed };
        self.with_anchor(anchor, state.jumps.clone())
    }

    fn with_anchor(&self, anchor: Anchor, jumps: ClockJumps) -> ClockState {
        let Anchor { store_time, since_boot } = anchor;
        ClockState { boot_id: self.clock.boot_id(), since_boot, store_time, jumps }
    }

    /// The jump that is due, if one is.
    pub(super) fn due_jump(&self) -> Option<DueJump> {
        let (wall, since_boot) = self.clock.both();
        let mut state = self.state();
        let ahead = state.at(since_boot).since(wall);
        if ahead > state.ahead + JUMP_MIN {
            state.steps_back += 1;
            tracing::warn!(
                by_ms = (ahead - state.ahead).as_millis(),
                ahead_of_wall_ms = ahead.as_millis(),
                "the wall clock was set back; store time goes on at its pace, and nobody is late by it"
            );
        }
        state.ahead = ahead;
        let by = wall.since(state.at(since_boot));
        if by <= LARGE_JUMP {
            state.large_since = None;
        } else {
            let first_seen = *state.large_since.get_or_insert(since_boot);
            if since_boot.saturating_sub(first_seen) < LARGE_JUMP_LASTS {
                return None;
            }
        }
        (by > JUMP_MIN).then_some(DueJump { to: Anchor { store_time: wall, since_boot }, by })
    }

    /// Begins to record a jump: until [`Recording::follow`], or until it is given up, store time stays below its threshold. `None` if it has
    /// come there already.
    pub(super) fn record(&self, jump: DueJump) -> Option<Recording<'_>> {
        let mut state = self.state();
        let below = jump.to.store_time;
        if state.at(self.clock.since_boot()) >= below {
            return None;
        }
        state.held_below = Some(below);
        let jumps = state.jumps.with(ClockJump { below_ms: below.0, by_ms: ms(jump.by), end: None });
        Some(Recording { clock: self, to: jump.to, jumps })
    }

    /// What was stored before the last jumps ends at `end`.
    pub(super) fn jumped_before(&self, end: PhysicalOffset) {
        self.state().set_ends(end);
    }

    /// Forgets the jumps before which nothing was stored that waits: all that waits begins at `waiting_from` or later.
    pub(super) fn forget_before(&self, waiting_from: PhysicalOffset) {
        let mut state = self.state();
        let is_over = |jump: &ClockJump| jump.end.is_some_and(|end| end <= waiting_from.0);
        if state.jumps.0.iter().any(is_over) {
            state.replace_jumps(|jumps| jumps.retain(|jump| !is_over(jump)));
        }
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Recording<'_> {
    /// The state to save.
    pub(super) fn to_save(&self) -> ClockState {
        self.clock.with_anchor(self.to, self.jumps.clone())
    }

    /// The jump is recorded: store time follows.
    pub(super) fn follow(self) {
        let mut state = self.clock.state();
        state.anchor = self.to;
        state.jumps = self.jumps.clone();
        state.large_since = None;
        state.followed += 1;
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.clock.state().held_below = None;
        self.clock.recorded.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::env::TestClock;

    const BEGIN: Timestamp = Timestamp(1_700_000_000_000);
    const HOUR_MS: i64 = 3_600_000;
    const DAY_MS: i64 = 24 * HOUR_MS;

    fn clocks() -> (TestClock, StoreClock) {
        let clock = TestClock::new(BEGIN);
        let store_clock = StoreClock::new(Arc::new(clock.clone()));
        store_clock.begin(None);
        assert!(store_clock.resume(&LastTimes::default(), None, PhysicalOffset(0)), "nothing of it is saved");
        (clock, store_clock)
    }

    fn advance(clock: &TestClock, ms: i64) {
        clock.advance(Duration::from_millis(ms.try_into().unwrap()));
    }

    fn follow(clock: &StoreClock) -> Option<i64> {
        let jump = clock.due_jump()?;
        clock.record(jump)?.follow();
        i64::try_from(jump.by.as_millis()).ok()
    }

    #[test]
    fn store_time_is_never_behind_the_wall_clock_by_a_part_of_a_millisecond() {
        for _ in 0..50 {
            let system = Arc::new(crate::env::SystemClock::new());
            let store_clock = StoreClock::new(system.clone());
            store_clock.begin(None);
            for _ in 0..200 {
                let wall = system.wall();
                assert!(store_clock.now() >= wall);
            }
            thread::sleep(Duration::from_micros(300));
        }
    }

    fn plus(ms: i64) -> Timestamp {
        Timestamp(BEGIN.0 + ms)
    }

    fn jump(below_ms: i64, by_ms: u64) -> ClockJump {
        ClockJump { below_ms, by_ms, end: Some(0) }
    }

    #[test]
    fn store_time_goes_with_the_boot_clock_and_follows_only_by_jumps() {
        let (clock, store_clock) = clocks();
        clock.step_wall(HOUR_MS);
        advance(&clock, 10);

        assert_eq!((store_clock.now(), store_clock.ahead_of_wall_ms()), (plus(10), -HOUR_MS));
        assert_eq!(follow(&store_clock), Some(HOUR_MS));
        assert_eq!((store_clock.now(), store_clock.ahead_of_wall_ms()), (plus(10 + HOUR_MS), 0));

        clock.step_wall(-2 * HOUR_MS);
        advance(&clock, 10);
        assert_eq!(follow(&store_clock), None);
        assert_eq!((store_clock.now(), store_clock.ahead_of_wall_ms()), (plus(20 + HOUR_MS), 2 * HOUR_MS));
    }

    #[test]
    fn a_difference_of_a_second_is_not_followed() {
        let (clock, store_clock) = clocks();
        clock.step_wall(1_000);
        assert_eq!(follow(&store_clock), None);

        clock.step_wall(1);
        assert_eq!(follow(&store_clock), Some(1_001));
    }

    #[test]
    fn a_step_of_more_than_a_day_is_followed_after_a_minute() {
        let (clock, store_clock) = clocks();
        clock.step_wall(DAY_MS + 1);
        assert_eq!(follow(&store_clock), None);
        advance(&clock, 59_999);
        assert_eq!(follow(&store_clock), None);
        clock.step_wall(-DAY_MS);
        assert_eq!(follow(&store_clock), None, "it was put right");

        clock.step_wall(2 * DAY_MS);
        assert_eq!(follow(&store_clock), None, "another step, another minute");
        advance(&clock, 60_000);
        assert_eq!(follow(&store_clock), Some(2 * DAY_MS + 1));
    }

    #[test]
    fn the_boot_clock_says_when_store_time_reaches_a_deadline() {
        let (clock, store_clock) = clocks();
        clock.advance(Duration::from_micros(12_345_600));
        clock.step_wall(HOUR_MS);
        follow(&store_clock);

        let at = store_clock.since_boot_at(Timestamp(store_clock.now().0 + 5));

        clock.advance(at - clock.since_boot() - Duration::from_nanos(1));
        let before = store_clock.now();
        clock.advance(Duration::from_nanos(1));
        assert_eq!(store_clock.now().0, before.0 + 1);
    }

    #[test]
    fn while_a_jump_is_recorded_store_time_stays_below_its_threshold() {
        let (clock, store_clock) = clocks();
        clock.step_wall(2_000);
        let recording = store_clock.record(store_clock.due_jump().unwrap()).unwrap();
        advance(&clock, 1_999);
        assert_eq!(store_clock.now(), plus(1_999));
        advance(&clock, 1);

        thread::scope(|scope| {
            let (told, tells) = mpsc::channel();
            let store_clock = &store_clock;
            scope.spawn(move || told.send(store_clock.now()));
            assert!(tells.recv_timeout(Duration::from_millis(20)).is_err(), "it waits");
            recording.follow();
            assert_eq!(tells.recv(), Ok(plus(4_000)));
        });
    }

    #[test]
    fn a_jump_that_is_given_up_leaves_no_trace() {
        let (clock, store_clock) = clocks();
        clock.step_wall(2_000);
        drop(store_clock.record(store_clock.due_jump().unwrap()));
        advance(&clock, 2_000);

        assert_eq!((store_clock.now(), store_clock.jumps()), (plus(2_000), ClockJumps::default()));
    }

    #[test]
    fn what_was_stored_before_a_jump_is_due_later_by_it() {
        let jumps = ClockJumps::new(&[jump(100, 5), jump(200, 70)]);
        let due = |stored_at, said| jumps.due(Timestamp(stored_at), Timestamp(said)).0;

        assert_eq!([due(0, 300), due(99, 300), due(100, 300), due(199, 300), due(200, 300)], [375, 375, 370, 370, 300]);
        assert_eq!(due(0, i64::MAX), i64::MAX);
    }

    #[test]
    fn of_too_many_jumps_neighbours_become_one_that_makes_nobody_early() {
        let mut all = Vec::new();
        let mut jumps = ClockJumps::default();
        for number in 0..3 * JUMPS_MAX as i64 {
            all.push(jump(number * 100_000, 2_000 + (number as u64 * 7) % 50));
            jumps = jumps.with(*all.last().unwrap());
        }

        assert_eq!(jumps.as_slice().len(), JUMPS_MAX);
        let exact = ClockJumps::new(&all);
        for stored_at in (0..3 * JUMPS_MAX as i64 * 100_000).step_by(50_000).map(Timestamp) {
            assert!(jumps.due(stored_at, Timestamp(0)) >= exact.due(stored_at, Timestamp(0)));
        }
        let before_all = Timestamp(-1);
        assert_eq!(jumps.due(before_all, Timestamp(0)), exact.due(before_all, Timestamp(0)));
        let last = Timestamp(all.last().unwrap().below_ms);
        assert_eq!(jumps.due(last, last), last);
    }

    #[test]
    fn jumps_before_all_that_waits_are_forgotten() {
        let (clock, store_clock) = clocks();
        clock.step_wall(HOUR_MS);
        follow(&store_clock);
        store_clock.forget_before(PhysicalOffset(u64::MAX));
        assert_eq!(store_clock.jumps().as_slice().len(), 1, "where it ends is not known");
        store_clock.jumped_before(PhysicalOffset(500));

        store_clock.forget_before(PhysicalOffset(499));
        assert_eq!(store_clock.jumps().as_slice().len(), 1);
        store_clock.forget_before(PhysicalOffset(500));
        assert_eq!(store_clock.jumps(), ClockJumps::default());
    }

    /// A clock of the next process.
    fn next(clock: &TestClock, saved: &ClockState, last: Timestamp) -> (StoreClock, bool) {
        let next = StoreClock::new(Arc::new(clock.clone()));
        next.begin(Some(saved));
        let to_save = next.resume(&times(&[last, last]), None, PhysicalOffset(700));
        (next, to_save)
    }

    fn times(records: &[Timestamp]) -> LastTimes {
        let mut times = LastTimes::default();
        records.iter().for_each(|time| times.saw(*time));
        times
    }

    #[test]
    fn the_latest_store_time_that_another_record_confirms_is_the_second_latest_of_the_last() {
        let confirmed = |records: &[i64]| times(&records.iter().map(|&ms| plus(ms)).collect::<Vec<_>>()).confirmed();

        assert_eq!([confirmed(&[]), confirmed(&[7])], [None, None]);
        assert_eq!(confirmed(&[1, 2, 3]), Some(plus(2)));
        assert_eq!(confirmed(&[1, DAY_MS, 3]), Some(plus(3)));
        assert_eq!(confirmed(&[1, 2, -DAY_MS]), Some(plus(1)));
        assert_eq!(confirmed(&[5, 5]), Some(plus(5)));
        let many: Vec<i64> = [9_000, 9_000].into_iter().chain(0..CONFIRMING_RECORDS as i64).collect();
        assert_eq!(confirmed(&many), Some(plus(CONFIRMING_RECORDS as i64 - 2)), "only the last count");
    }

    /// Without a checkpoint, in a machine whose wall clock shows `BEGIN`: where store time begins, and by which jumps.
    fn begins(records: &[i64], on_record: Option<i64>) -> (i64, Vec<u64>) {
        let clock = StoreClock::new(Arc::new(TestClock::new(BEGIN)));
        clock.begin(None);
        let records: Vec<Timestamp> = records.iter().map(|&ms| plus(ms)).collect();
        assert!(clock.resume(&times(&records), on_record.map(plus), PhysicalOffset(700)));
        let jumps = clock.jumps().as_slice().iter().map(|jump| jump.by_ms).collect();
        (clock.now().0 - BEGIN.0, jumps)
    }

    #[test]
    fn a_last_store_time_far_beyond_all_that_confirms_it_is_not_believed() {
        let far = 40 * DAY_MS;

        assert_eq!(begins(&[-30, -20, far], None), (0, vec![]));
        assert_eq!(begins(&[far], None), (0, vec![]), "nothing confirms it");
        assert_eq!(begins(&[50, 60, i64::MAX - BEGIN.0], None), (60, vec![]), "the wall clock was set back, too");
        assert_eq!(begins(&[-30, far, -20], None), (0, vec![]), "one before the last");
    }

    #[test]
    fn a_last_store_time_beyond_the_wall_clock_is_believed_as_far_as_it_is_confirmed_and_followed_by_a_jump_beyond() {
        let far = 40 * DAY_MS;

        assert_eq!(begins(&[far - 9, far - 1, far], None), (far, vec![1]), "the wall clock was set back");
        assert_eq!(begins(&[far, far], None), (far, vec![]));
        assert_eq!(begins(&[far], Some(far)), (far, vec![]));
        assert_eq!(begins(&[-20, HOUR_MS], None), (HOUR_MS, vec![HOUR_MS as u64]));
        assert_eq!(begins(&[far, far - 3, -far], None), (far - 3, vec![]), "the last one is damaged downwards");
        assert_eq!(begins(&[-20], Some(far)), (0, vec![]), "RocketMQ's checkpoint alone says nothing");
    }

    #[test]
    fn a_checkpoint_confirms_the_store_time_of_every_record_before_it() {
        let (clock, store_clock) = clocks();
        clock.advance(Duration::from_micros(10 * DAY_MS as u64 * 1_000 + 700));
        let (saved, last) = (store_clock.to_save(), store_clock.now());
        clock.advance(Duration::from_micros(1_300));
        let (same_boot, _) = next(&clock, &saved, last);
        assert_eq!((same_boot.now(), store_clock.now()), (plus(10 * DAY_MS + 2), plus(10 * DAY_MS + 2)));
        clock.reboot();
        clock.step_wall(-20 * DAY_MS);
        let again = StoreClock::new(Arc::new(clock.clone()));
        again.begin(Some(&saved));

        again.resume(&times(&[last]), None, PhysicalOffset(700));

        assert_eq!((again.now(), again.jumps()), (last, ClockJumps::default()));
    }

    #[test]
    fn in_the_same_boot_store_time_goes_on_as_if_nothing_had_happened() {
        let (clock, store_clock) = clocks();
        clock.advance(Duration::from_micros(999));
        clock.step_wall(HOUR_MS);
        follow(&store_clock);
        let saved = store_clock.to_save();
        for step in [0, HOUR_MS, -HOUR_MS, 40 * DAY_MS] {
            clock.step_wall(step);
            clock.advance(Duration::from_micros(1_234_567));

            let (next, to_save) = next(&clock, &saved, plus(HOUR_MS));

            assert_eq!((next.now(), to_save), (store_clock.now(), false), "the wall clock stepped by {step}");
            assert_eq!(next.jumps().as_slice(), [ClockJump { end: Some(700), ..saved.jumps.as_slice()[0] }]);
        }
    }

    #[test]
    fn a_log_that_is_ahead_of_the_clock_on_record_is_a_jump() {
        let (clock, store_clock) = clocks();
        let saved = store_clock.to_save();
        advance(&clock, 10);

        let (next, to_save) = next(&clock, &saved, plus(HOUR_MS));

        assert_eq!((next.now(), to_save), (plus(HOUR_MS), true));
        assert_eq!(next.jumps().due(plus(HOUR_MS - 1), plus(HOUR_MS)), plus(2 * HOUR_MS - 10));
        assert_eq!(next.jumps().due(plus(HOUR_MS), plus(HOUR_MS)), plus(HOUR_MS));
    }

    #[test]
    fn in_another_boot_store_time_begins_at_the_wall_clock_but_behind_all_that_was() {
        let (clock, store_clock) = clocks();
        clock.step_wall(HOUR_MS);
        follow(&store_clock);
        let saved = store_clock.to_save();
        clock.reboot();
        for (step, last, begin) in [
            (0, 0, HOUR_MS),
            (HOUR_MS, HOUR_MS, 2 * HOUR_MS),
            (-2 * HOUR_MS, HOUR_MS + 5, HOUR_MS + 5),
            (-DAY_MS, 0, HOUR_MS),
        ] {
            clock.step_wall(step);

            let (next, to_save) = next(&clock, &saved, plus(last));

            assert_eq!((next.now(), to_save), (plus(begin), true));
            assert_eq!(next.jumps().as_slice().len(), 1, "what waits since before the jump keeps it");
        }
    }

    #[test]
    fn a_boot_clock_that_is_behind_the_record_is_that_of_another_boot() {
        let (clock, store_clock) = clocks();
        let saved = ClockState { since_boot: Duration::from_secs(1), ..store_clock.to_save() };
        clock.step_wall(HOUR_MS);

        let (next, to_save) = next(&clock, &saved, plus(0));

        assert_eq!((next.now(), to_save), (plus(HOUR_MS), true));
    }
}
