//! What waits: for each level the parts of its queue that are not yet restored.
//!
//! A fold over the log. A waiting record makes the last *run* of its level longer, a restored record (or a parking marker) takes the entry it
//! names out of its run. Restores come in queue order, so a run loses its first entry, and memory per waiting message is zero. If an entry is
//! taken out further behind, damage has swallowed the restored records before it: the run splits, and those before are restored again:
//! rather twice than lost.
//!
//! A run is a row of neighbours in the queue with one generation and one duration, hence with ascending deliver times. A run also carries where
//! the scheduler stands in it; that part is not of the fold and not kept.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use serde::{Deserialize, Serialize};

use super::{DelayLevel, levels::LevelTable, longest::Longest, stamp::Generation};
use crate::{
    model::{PhysicalOffset, Timestamp},
    mutation::Mutation,
};

/// Most runs of a level; beyond, nothing is split any more: a restored record that would split a run is not believed, and all of the run is
/// restored again.
pub(super) const RUNS_MAX: usize = 1024;
/// Format of the state in the checkpoint.
const STATE_VERSION: u32 = 1;

/// What waits, level by level.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) levels: BTreeMap<DelayLevel, LevelProgress>,
}

/// What waits in one level.
#[derive(Debug, Default)]
pub(super) struct LevelProgress {
    /// Queue offset behind the last waiting record.
    pub(super) next: u64,
    /// The last generation seen.
    generation: Generation,
    /// Its duration.
    duration: Duration,
    /// How long its messages were told to wait, at the longest.
    longest: Longest,
    /// Bytes of the waiting records in all runs.
    pub(super) pending_bytes: u64,
    /// In queue order, none empty.
    pub(super) runs: Vec<Run>,
}

/// A row of neighbours in a level's queue that wait.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) generation: Generation,
    /// Of its generation; zero for what Apache RocketMQ wrote.
    pub(super) duration: Duration,
    /// The first entry that is not restored.
    pub(super) from: u64,
    /// Behind the last entry.
    pub(super) to: u64,
    /// Where the record of the first entry begins; at the latest there.
    pub(super) position: PhysicalOffset,
    /// Where the scheduler stands.
    pub(super) stand: Stand,
}

/// Where the scheduler stands in a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Stand {
    /// The next entry to restore; those before it are appended, but not all dispatched.
    pub(super) cursor: u64,
    /// When the entry at the cursor is due; `None` until its record was read.
    pub(super) head: Option<Timestamp>,
    /// Set after a failure.
    pub(super) pause: Option<Pause>,
    /// Since when the record at the cursor could not be read, for a fault that may pass.
    pub(super) unread_since: Option<Timestamp>,
    /// The record at the cursor cannot be read, and is not waited for. It is a run of its own then, so that it holds up no others, unless there are too many runs.
    pub(super) aside: bool,
    /// The last batch was refused for a record in it: one at a time, to find which.
    pub(super) alone: bool,
    /// The last batch found no room on the disk: smaller ones may, of so many records at most. None for no such bound.
    pub(super) at_most: Option<usize>,
    /// The record at the cursor was refused for itself: it is parked.
    pub(super) refused: bool,
    /// How many bytes it was served, in the currency of the round robin.
    pub(super) served: u64,
}

/// A break after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pause {
    /// When to try again.
    pub(super) until: Timestamp,
    /// When the first of the failures in a row happened.
    pub(super) since: Timestamp,
    /// How many failures in a row.
    pub(super) failures: u32,
}

/// A waiting record, as it is dispatched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) queue_offset: u64,
    pub(super) position: PhysicalOffset,
    pub(super) bytes: u32,
    pub(super) generation: Generation,
    pub(super) duration: Duration,
    /// When it is due, if its record alone tells.
    pub(super) due: Option<Timestamp>,
}

/// What became of an entry that was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It was the first of its run.
    InOrder,
    /// So many entries before it are not restored: they will be again.
    Skipping(u64),
    /// It does not wait, or not any more.
    NotWaiting,
    /// The level has [`RUNS_MAX`] runs.
    TooManyRuns,
}

impl Run {
    /// When there is something to do: later than every real moment if nothing is left.
    pub(super) fn due(&self) -> Option<Timestamp> {
        if self.stand.cursor >= self.to {
            return None;
        }
        let head = self.stand.head.unwrap_or(Timestamp(i64::MIN));
        Some(self.stand.pause.map_or(head, |pause| pause.until.max(head)))
    }

    /// What all of its neighbours have in common. One whose times are damaged has another duration, and nobody waits for it.
    fn kind(&self) -> (Generation, Duration) {
        (self.generation, self.duration)
    }

    fn takes(&self, waiting: &Waiting) -> bool {
        self.to == waiting.queue_offset
            && (self.kind() == (waiting.generation, waiting.duration) || Mutation::OneCursorForTwoGenerations.is_on())
            && !self.stand.aside
    }
}

impl LevelProgress {
    /// Takes a waiting record. If it is now the first of its run that the scheduler has not restored, says so.
    pub(super) fn add(&mut self, waiting: &Waiting) -> bool {
        if self.begins(waiting.generation) {
            (self.generation, self.duration) = (waiting.generation, waiting.duration);
        }
        self.longest = self.longest.with(waiting.generation, waiting.duration);
        self.next = waiting.queue_offset + 1;
        self.pending_bytes += u64::from(waiting.bytes);
        if let Some(run) = self.runs.last_mut().filter(|run| run.takes(waiting)) {
            run.to += 1;
            let is_head = run.stand.cursor == waiting.queue_offset;
            if is_head {
                run.stand.head = waiting.due;
            }
            return is_head;
        }
        self.runs.push(Run {
            generation: waiting.generation,
            duration: waiting.duration,
            from: waiting.queue_offset,
            to: waiting.queue_offset + 1,
            position: waiting.position,
            stand: Stand { cursor: waiting.queue_offset, head: waiting.due, ..Stand::default() },
        });
        true
    }

    /// Whether a record of this generation would be the first of its generation.
    fn begins(&self, generation: Generation) -> bool {
        generation > self.generation
    }

    /// Drops what waits from this queue offset on: the queue begins anew there. Gives how many that are.
    pub(super) fn cut(&mut self, queue_offset: u64) -> u64 {
        let before = self.pending();
        for run in &mut self.runs {
            run.to = run.to.min(queue_offset);
        }
        self.runs.retain(|run| run.from < run.to);
        self.next = self.next.min(queue_offset);
        if self.runs.is_empty() {
            self.pending_bytes = 0;
        }
        before - self.pending()
    }

    /// Takes out the entry at `queue_offset`, whose record has `bytes` bytes; the entry behind it begins at `next_position`.
    pub(super) fn take(&mut self, queue_offset: u64, bytes: u32, next_position: PhysicalOffset) -> Taken {
        let Some(index) = self.run_at(queue_offset) else { return Taken::NotWaiting };
        let count = self.runs.len();
        let run = &mut self.runs[index];
        let skipped = queue_offset - run.from;
        let before = (skipped > 0).then(|| Run {
            to: queue_offset,
            stand: Stand { cursor: run.from, ..Stand::default() },
            ..run.clone()
        });
        if before.is_some() && count >= RUNS_MAX {
            return Taken::TooManyRuns;
        }
        run.from = queue_offset + 1;
        run.position = next_position;
        if run.stand.cursor < run.from {
            run.stand = Stand { cursor: run.from, ..Stand::default() };
        }
        self.pending_bytes = self.pending_bytes.saturating_sub(u64::from(bytes));
        if run.from == run.to {
            self.runs.remove(index);
        }
        match before {
            None => Taken::InOrder,
            Some(before) => {
                self.runs.insert(index, before);
                Taken::Skipping(skipped)
            }
        }
    }

    /// Sets the entry at `queue_offset` aside, so that it holds up no others; the entry behind it begins at `next_position`.
    pub(super) fn set_aside(&mut self, queue_offset: u64, position: PhysicalOffset, next_position: PhysicalOffset) {
        let Some(index) = self.run_at(queue_offset) else { return };
        let is_full = self.runs.len() + 2 > RUNS_MAX;
        let run = &mut self.runs[index];
        let alone = Stand { cursor: queue_offset, aside: true, ..Stand::default() };
        if run.from == queue_offset && run.to == queue_offset + 1 {
            run.stand = Stand { head: run.stand.head, ..alone };
            return;
        }
        if is_full {
            run.stand.aside = true;
            return;
        }
        let whole = self.runs.remove(index);
        let part = |from, to, position, stand| Run { from, to, position, stand, ..whole.clone() };
        let before =
            part(whole.from, queue_offset, whole.position, Stand { cursor: queue_offset, ..whole.stand.clone() });
        let behind_stand = Stand { cursor: queue_offset + 1, served: whole.stand.served, ..Stand::default() };
        let parts = [
            before,
            part(queue_offset, queue_offset + 1, position, alone),
            part(queue_offset + 1, whole.to, next_position, behind_stand),
        ];
        let parts = parts.into_iter().filter(|run| run.from < run.to);
        self.runs.splice(index..index, parts);
    }

    /// The runs of which something may be restored now. Of each generation only the first that has something left, as a later one would overtake
    /// it: damage can split a row of neighbours. What was set aside holds up none.
    pub(super) fn servable(&self) -> impl Iterator<Item = &Run> {
        let mut begun: Vec<(Generation, Duration)> = Vec::new();
        self.runs.iter().filter(move |run| {
            let has_more = run.stand.cursor < run.to;
            let is_held = !run.stand.aside && begun.contains(&run.kind());
            if has_more && !is_held && !run.stand.aside {
                begun.push(run.kind());
            }
            has_more && !is_held
        })
    }

    /// When there is something to do next.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.servable().filter_map(Run::due).min()
    }

    /// Whether a record that cannot be read now is waited for: not while one is set aside that was waited for.
    pub(super) fn has_patience(&self) -> bool {
        !self.runs.iter().any(|run| run.stand.aside && run.stand.unread_since.is_some())
    }

    /// The run that holds a queue offset.
    pub(super) fn run_at(&self, queue_offset: u64) -> Option<usize> {
        let index = self.runs.partition_point(|run| run.to <= queue_offset);
        self.runs.get(index).is_some_and(|run| run.from <= queue_offset).then_some(index)
    }

    /// The parts of the queue in which the waiting record of a restored one of this generation may be, the likeliest first. No checksum covers the
    /// generation in either record, and where the waiting one ends tells which it is. Not so if the field is what Apache RocketMQ wrote: there
    /// it may be the offset of a half message, so that only its own messages are meant.
    pub(super) fn where_restored_from(&self, generation: Generation) -> Vec<Range<u64>> {
        let newest_first = |is_same: bool| {
            let runs = self.runs.iter().rev().filter(move |run| (run.generation == generation) == is_same);
            runs.map(|run| run.from..run.to)
        };
        let others = newest_first(false).filter(|_| generation != Generation::APACHE);
        newest_first(true).chain(others).collect()
    }

    /// How many messages wait.
    pub(super) fn pending(&self) -> u64 {
        self.runs.iter().map(|run| run.to - run.from).sum()
    }

    /// The oldest queue offset that is not restored.
    pub(super) fn undelivered_from(&self) -> u64 {
        self.runs.first().map_or(self.next, |run| run.from)
    }

    /// How long its messages were told to wait, at the longest.
    pub(super) fn longest(&self) -> Duration {
        self.longest.get()
    }

    /// As [`LevelProgress::longest`], when one more waits.
    pub(super) fn longest_with(&self, generation: Generation, duration: Duration) -> Duration {
        self.longest.with(generation, duration).get()
    }
}

impl Progress {
    /// The longest duration on record for a level: of the table now, and of all that was ever placed.
    pub(super) fn longest(&self, level: DelayLevel, table: &LevelTable) -> Duration {
        let ever = self.levels.get(&level).map_or(Duration::ZERO, LevelProgress::longest);
        ever.max(table.duration(level).unwrap_or_default())
    }

    /// The oldest record that waits.
    pub(super) fn oldest_position(&self) -> Option<PhysicalOffset> {
        self.levels.values().flat_map(|level| &level.runs).map(|run| run.position).min()
    }

    /// The state for the checkpoint, as JSON. Runs that belong together are written as one, so that the same log always gives the same state.
    pub(super) fn to_state(&self) -> Vec<u8> {
        let levels = self.levels.iter().map(|(level, progress)| LevelState {
            level: level.number(),
            next: progress.next,
            generation: progress.generation,
            duration_ms: ms(progress.duration),
            longest_ms: ms(progress.longest()),
            pending_bytes: progress.pending_bytes,
            runs: merged(&progress.runs),
        });
        let state = ProgressState { version: STATE_VERSION, levels: levels.collect() };
        serde_json::to_vec(&state).unwrap_or_default()
    }

    /// Reads what [`Progress::to_state`] wrote; `None` if it is something else.
    pub(super) fn from_state(state: &[u8]) -> Option<Self> {
        let state: ProgressState = serde_json::from_slice(state).ok()?;
        if state.version != STATE_VERSION {
            return None;
        }
        let levels = state.levels.into_iter().map(|level| {
            let runs: Option<Vec<Run>> = level.runs.into_iter().map(RunState::into_run).collect();
            let runs = runs.filter(|runs| {
                runs.windows(2).all(|pair| pair[0].to <= pair[1].from)
                    && runs.last().is_none_or(|run| run.to <= level.next)
            })?;
            let progress = LevelProgress {
                next: level.next,
                generation: level.generation,
                duration: Duration::from_millis(level.duration_ms),
                longest: Longest::from_sure(Duration::from_millis(level.longest_ms)),
                pending_bytes: level.pending_bytes,
                runs,
            };
            Some((DelayLevel::new(level.level)?, progress))
        });
        levels.collect::<Option<_>>().map(|levels| Self { levels })
    }

    /// The last generation of each level and its duration.
    pub(super) fn generations(&self) -> impl Iterator<Item = (DelayLevel, Generation, Duration)> {
        self.levels.iter().map(|(&level, progress)| (level, progress.generation, progress.duration))
    }
}

#[derive(Serialize, Deserialize)]
struct ProgressState {
    version: u32,
    levels: Vec<LevelState>,
}

#[derive(Serialize, Deserialize)]
struct LevelState {
    level: u32,
    next: u64,
    generation: Generation,
    duration_ms: u64,
    longest_ms: u64,
    pending_bytes: u64,
    runs: Vec<RunState>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct RunState {
    pub(super) generation: Generation,
    pub(super) duration_ms: u64,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) position: u64,
}

impl RunState {
    fn into_run(self) -> Option<Run> {
        (self.from < self.to).then(|| Run {
            generation: self.generation,
            duration: Duration::from_millis(self.duration_ms),
            from: self.from,
            to: self.to,
            position: PhysicalOffset(self.position),
            stand: Stand { cursor: self.from, ..Stand::default() },
        })
    }
}

/// Runs that belong together as one.
pub(super) fn merged(runs: &[Run]) -> Vec<RunState> {
    let mut merged: Vec<RunState> = Vec::new();
    for run in runs {
        let from = if Mutation::ProgressFromCursor.is_on() { run.stand.cursor } else { run.from };
        if from == run.to {
            continue;
        }
        let (generation, duration_ms) = (run.generation, ms(run.duration));
        match merged
            .last_mut()
            .filter(|last| last.to == run.from && last.generation == generation && last.duration_ms == duration_ms)
        {
            Some(last) => last.to = run.to,
            None => {
                merged.push(RunState { generation, duration_ms, from, to: run.to, position: run.position.0 });
            }
        }
    }
    merged
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const BYTES: u32 = 100;

    fn waiting(queue_offset: u64, generation: u16) -> Waiting {
        Waiting {
            queue_offset,
            position: PhysicalOffset(queue_offset * u64::from(BYTES)),
            bytes: BYTES,
            generation: Generation(generation),
            duration: Duration::from_secs(u64::from(generation)),
            due: Some(Timestamp(queue_offset.cast_signed())),
        }
    }

    fn level_of(generations: &[u16]) -> LevelProgress {
        let mut level = LevelProgress::default();
        for (queue_offset, generation) in (0..).zip(generations) {
            level.add(&waiting(queue_offset, *generation));
        }
        level
    }

    fn take(level: &mut LevelProgress, queue_offset: u64) -> Taken {
        level.take(queue_offset, BYTES, PhysicalOffset((queue_offset + 1) * u64::from(BYTES)))
    }

    fn ranges(level: &LevelProgress) -> Vec<(u64, u64)> {
        level.runs.iter().map(|run| (run.from, run.to)).collect()
    }

    #[test]
    fn one_generation_is_one_run_however_many_wait() {
        let level = level_of(&[1; 1000]);

        assert_eq!(ranges(&level), [(0, 1000)]);
        assert_eq!((level.pending(), level.pending_bytes), (1000, 100_000));
    }

    #[test]
    fn each_generation_has_its_own_run_and_deadline() {
        let level = level_of(&[2, 2, 3]);

        assert_eq!(ranges(&level), [(0, 2), (2, 3)]);
        assert_eq!(level.runs[1].due(), Some(Timestamp(2)));
        assert_eq!(level.longest(), Duration::from_secs(3));
    }

    #[test]
    fn an_origin_that_skips_entries_leaves_them_waiting() {
        let mut level = level_of(&[1; 5]);

        assert_eq!(take(&mut level, 0), Taken::InOrder);
        assert_eq!(take(&mut level, 3), Taken::Skipping(2));

        assert_eq!(ranges(&level), [(1, 3), (4, 5)]);
        assert_eq!(take(&mut level, 1), Taken::InOrder);
        assert_eq!(take(&mut level, 1), Taken::NotWaiting);
        assert_eq!(ranges(&level), [(2, 3), (4, 5)]);
        assert_eq!(level.pending_bytes, 200);
    }

    #[test]
    fn beyond_the_most_runs_nothing_is_split() {
        let mut level = level_of(&[1; 3 * RUNS_MAX]);
        for index in 0..RUNS_MAX as u64 - 1 {
            assert_eq!(take(&mut level, index * 2 + 1), Taken::Skipping(1));
        }
        assert_eq!(level.runs.len(), RUNS_MAX);

        assert_eq!(take(&mut level, 2 * RUNS_MAX as u64 + 1), Taken::TooManyRuns);
        assert_eq!(take(&mut level, 0), Taken::InOrder);
    }

    #[test]
    fn what_is_set_aside_holds_up_nothing_and_the_state_does_not_show_it() {
        let mut level = level_of(&[1; 5]);
        let position = |queue_offset: u64| PhysicalOffset(queue_offset * u64::from(BYTES));
        take(&mut level, 0);

        level.set_aside(2, position(2), position(3));

        assert_eq!(ranges(&level), [(1, 2), (2, 3), (3, 5)]);
        assert_eq!(level.runs.iter().map(|run| run.stand.aside).collect::<Vec<_>>(), [false, true, false]);
        let merged = merged(&level.runs);
        assert_eq!((merged.len(), merged[0].from, merged[0].to, merged[0].position), (1, 1, 5, 100));
        level.set_aside(2, position(2), position(3));
        assert_eq!(ranges(&level), [(1, 2), (2, 3), (3, 5)]);
    }

    #[test]
    fn of_a_generation_only_the_first_run_that_is_not_served_to_its_end_is_served() {
        let mut level = level_of(&[1, 1, 1, 1, 1, 2, 2]);
        let servable = |level: &LevelProgress| level.servable().map(|run| run.from).collect::<Vec<_>>();
        take(&mut level, 2);
        assert_eq!(ranges(&level), [(0, 2), (3, 5), (5, 7)]);

        assert_eq!(servable(&level), [0, 5]);
        level.runs[0].stand.cursor = 1;
        assert_eq!(servable(&level), [0, 5]);
        level.runs[0].stand.cursor = 2;
        assert_eq!(servable(&level), [3, 5], "all of the first run is appended");
        level.runs[0].stand = Stand { cursor: 0, aside: true, ..Stand::default() };
        assert_eq!(servable(&level), [0, 3, 5], "nobody waits for what was set aside");
        level.runs[0].stand.aside = false;
        level.runs[0].duration = Duration::ZERO;
        assert_eq!(servable(&level), [0, 3, 5], "nobody waits for what has damaged times");
    }

    #[test]
    fn nothing_joins_a_run_that_was_set_aside() {
        let mut level = level_of(&[1]);
        level.set_aside(0, PhysicalOffset(0), PhysicalOffset(100));

        level.add(&waiting(1, 1));

        assert_eq!(ranges(&level), [(0, 1), (1, 2)]);
    }

    #[test]
    fn a_queue_that_begins_anew_drops_what_waited_from_there_on() {
        let mut level = level_of(&[1, 1, 1, 2, 2]);
        assert_eq!(level.cut(2), 3);
        assert_eq!(ranges(&level), [(0, 2)]);

        assert_eq!(level.cut(0), 2);
        assert_eq!((ranges(&level).len(), level.next, level.pending_bytes), (0, 0, 0));
    }

    #[test]
    fn strange_states_are_not_believed() {
        for state in [
            &b""[..],
            b"{}",
            b"[]",
            br#"{"version":2,"levels":[]}"#,
            br#"{"version":1,"levels":[{"level":0,"next":0,"generation":0,"duration_ms":0,"longest_ms":0,"pending_bytes":0,"runs":[]}]}"#,
            br#"{"version":1,"levels":[{"level":1,"next":3,"generation":0,"duration_ms":0,"longest_ms":0,"pending_bytes":0,"runs":[{"generation":1,"duration_ms":1,"from":2,"to":2,"position":0}]}]}"#,
            br#"{"version":1,"levels":[{"level":1,"next":3,"generation":0,"duration_ms":0,"longest_ms":0,"pending_bytes":0,"runs":[{"generation":1,"duration_ms":1,"from":2,"to":9,"position":0}]}]}"#,
        ] {
            assert!(Progress::from_state(state).is_none(), "{}", String::from_utf8_lossy(state));
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Add(u16),
        Take(prop::sample::Index),
        SetAside(prop::sample::Index),
        Reload,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1..4u16).prop_map(Step::Add),
            3 => any::<prop::sample::Index>().prop_map(Step::Take),
            1 => any::<prop::sample::Index>().prop_map(Step::SetAside),
            1 => Just(Step::Reload),
        ]
    }

    proptest! {
        #[test]
        fn runs_are_the_set_of_what_waits(steps in prop::collection::vec(step(), 0..60)) {
            let level = DelayLevel::new(1).unwrap();
            let mut progress = Progress::default();
            progress.levels.insert(level, LevelProgress::default());
            let mut model = BTreeSet::new();
            let mut next = 0;

            for step in steps {
                let runs = progress.levels.get_mut(&level).unwrap();
                match step {
                    Step::Add(generation) => {
                        runs.add(&waiting(next, generation));
                        model.insert(next);
                        next += 1;
                    }
                    Step::Take(index) if next > 0 => {
                        let at = index.index(next as usize) as u64;
                        let taken = take(runs, at);
                        prop_assert_eq!(taken != Taken::NotWaiting, model.remove(&at));
                    }
                    Step::SetAside(index) if next > 0 => {
                        let at = index.index(next as usize) as u64;
                        runs.set_aside(at, PhysicalOffset(at * 100), PhysicalOffset(at * 100 + 100));
                    }
                    Step::Reload => progress = Progress::from_state(&progress.to_state()).unwrap(),
                    _ => {}
                }
                let runs = &progress.levels[&level];
                let waits: BTreeSet<u64> = runs.runs.iter().flat_map(|run| run.from..run.to).collect();
                prop_assert_eq!(&waits, &model);
                prop_assert_eq!(runs.pending_bytes, model.len() as u64 * 100);
                prop_assert!(runs.runs.iter().all(|run| run.position.0 == run.from * 100));
                prop_assert!(runs.runs.iter().all(|run| (run.from..=run.to).contains(&run.stand.cursor)));
                let first = model.first().copied().unwrap_or(next);
                prop_assert_eq!(runs.undelivered_from(), first);
            }
        }
    }
}
