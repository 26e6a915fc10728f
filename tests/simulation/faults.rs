//! What goes wrong: failing and full disks, damaged and unreadable bytes, lost and garbled files, a log of another day.

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use latermq::{
    delay::{PAUSE_MAX, READ_PATIENCE},
    env::{Directory, EntryKind, Operation},
    model::SCHEDULE_TOPIC,
};

use crate::{
    clients::Offsets,
    ledger::{Id, Ledger},
    machine::{End, Process, SEGMENT_BYTES},
    reader::Reader,
    workload::{Simulation, outcome},
};

/// How long a waiting record that cannot be read is tried again before it is parked.
const PARK_AFTER: Duration = Duration::from_secs(600);
/// Files that say how far the log was durable: without them what a power loss tore cannot be told from damage.
const CHECKPOINTS: [&str; 4] = ["checkpoint", "abort", "latermq.checkpoint", "latermq.checkpoint.bak"];
/// Our own checkpoint, whole, and with RocketMQ's.
const CHECKPOINT_SETS: [&[&str]; 2] = [
    &["latermq.checkpoint", "latermq.checkpoint.bak"],
    &["latermq.checkpoint", "latermq.checkpoint.bak", "checkpoint"],
];

/// The world as it was: a copy of all files, and what was known then.
pub(crate) struct Backup {
    directory: latermq::env::MemoryDirectory,
    ledger: Ledger,
    reader: Reader,
    offsets: Offsets,
}

impl Simulation {
    // Failing disks.

    pub(crate) fn plan_fault(&mut self) {
        let operations = [
            Operation::Read,
            Operation::Write,
            Operation::Sync,
            Operation::Create,
            Operation::Rename,
            Operation::Remove,
        ];
        let operation = *self.rng.choice(&operations).unwrap();
        let folder = *self.rng.choice(&["", "commitlog", "consumequeue", "index", "config"]).unwrap();
        let is_write = matches!(operation, Operation::Write | Operation::Create);
        let kind = if is_write && self.rng.bool() { ErrorKind::StorageFull } else { ErrorKind::Other };
        let far = if self.rng.bool() { 6 } else { 60 };
        let (after, times) = (self.rng.u64(..far), self.rng.u64(1..4));
        self.machine.directory.fail_under(Path::new(folder), operation, after, kind, times);
        self.faulty = true;
        self.say(&format!("{operation:?} under {folder:?} fails {times} times after {after}: {kind:?}"));
        self.act_while_faulty(operation == Operation::Read, 0..u64::MAX);
    }

    /// The log fails as messages come together: what one of them cannot have the others may.
    pub(crate) fn send_together_while_log_fails(&mut self) {
        let operation = *self.rng.choice(&[Operation::Write, Operation::Write, Operation::Create]).unwrap();
        let kind = if self.rng.bool() { ErrorKind::StorageFull } else { ErrorKind::Other };
        let (after, times) = (self.rng.u64(..4), self.rng.u64(1..4));
        self.machine.directory.fail_under(Path::new("commitlog"), operation, after, kind, times);
        self.faulty = true;
        self.say(&format!("{operation:?} of the log fails {times} times after {after}: {kind:?}"));
        for _ in 0..3 {
            if !self.machine.must_end() {
                self.send_together();
            }
        }
        self.heal();
    }

    /// An old segment cannot be read for a while.
    pub(crate) fn segment_unreadable(&mut self) {
        let Some(range) = self.draw_old_bytes() else { return };
        let base = range.start / SEGMENT_BYTES * SEGMENT_BYTES;
        let path = segment_path(base);
        self.machine.directory.fail_under(&path, Operation::Read, 0, ErrorKind::Other, u64::MAX);
        self.faulty = true;
        self.say(&format!("{} cannot be read", path.display()));
        self.act_while_faulty(true, base..base + SEGMENT_BYTES);
    }

    /// Goes on while the disk fails, and then heals it.
    fn act_while_faulty(&mut self, reads_fail: bool, range: Range<u64>) {
        // A step forward of the wall clock counts as time.
        let since = self.machine.elapsed + self.machine.forward;
        self.reads_fail = reads_fail;
        for _ in 0..self.rng.u32(1..12) {
            self.act_without_faults();
            self.settle();
            if !self.faulty {
                break;
            }
        }
        self.reads_fail = false;
        let lasted = self.machine.elapsed + self.machine.forward - since;
        if reads_fail && (lasted >= READ_PATIENCE || !self.unreadable.is_empty()) {
            // A waiting message that cannot be read for so long is set aside, and the others of its level go on. So it is at once while another waits
            // that could not be read before: many of them hold up the others but once.
            self.ledger.forget_order();
            if lasted >= PARK_AFTER {
                let waiting = self.reader.waiting().filter(|(_, _, seen)| range.contains(&seen.position.0));
                let waiting: Vec<Id> = waiting.map(|(_, _, seen)| seen.id).collect();
                for (id, message) in &mut self.ledger.messages {
                    message.may_be_parked |= range.end == u64::MAX || waiting.contains(id);
                }
            }
        }
        if self.faulty {
            self.heal();
            self.settle();
        }
    }

    /// What fell due is restored and read, old segments go, and then the power: what was not synced must not be missed.
    pub(crate) fn delete_and_lose_power(&mut self) {
        self.machine.advance(Duration::from_secs(self.rng.u64(7_200..10_000)));
        for _ in 0..4 {
            self.tick();
        }
        while !self.machine.must_end() && self.machine.process().store.dispatch_once(u64::MAX) {}
        self.settle();
        self.retain();
        let end = End::PowerLoss(self.rng.u64(..));
        self.end(end);
    }

    /// Queues cannot be read while restored records are dispatched.
    pub(crate) fn reads_fail_at_dispatch(&mut self) {
        let end = self.draw_end();
        self.end(end);
        self.machine.advance(Duration::from_secs(self.rng.u64(1..20)));
        for _ in 0..3 {
            self.tick();
        }
        self.sync();
        self.collect_answers();
        if !self.machine.must_end() {
            let (after, times) = (self.rng.u64(..3), self.rng.u64(1..4));
            let directory = &self.machine.directory;
            directory.fail_under(Path::new("consumequeue"), Operation::Read, after, ErrorKind::Other, times);
            self.faulty = true;
            self.dispatch();
            self.heal();
        }
    }

    /// The log cannot be synced; the next process goes on with what the last one left in memory, until the power goes.
    pub(crate) fn sync_fails(&mut self) {
        self.faulty = true;
        self.machine.directory.fail_under(Path::new("commitlog"), Operation::Sync, 0, ErrorKind::Other, 1);
        self.say("a sync of the log fails");
        self.send_some_large();
        self.sync();
        self.collect_answers();
        self.cease(End::Kill);
        self.restart();
        self.work();
        self.settle();
        self.send_some_large();
        self.work();
        self.settle();
        let end = End::PowerLoss(self.rng.u64(..));
        self.end(end);
    }

    /// The disk is full for a while; what waits may hold all segments, so that nothing can be deleted.
    pub(crate) fn fill_disk(&mut self) {
        let is_pinned = self.rng.bool();
        if is_pinned {
            for _ in 0..self.rng.u32(1..8) {
                let level = self.rng.u32(6..9);
                self.send_one(level);
            }
            self.sync();
            self.settle();
        }
        let Ok(space) = self.machine.directory.space() else { return };
        let used = space.total - space.free;
        let capacity = if is_pinned { used * 100 / self.rng.u64(91..=100) } else { used + self.rng.u64(..100_000) };
        self.machine.directory.set_capacity(capacity);
        self.full = true;
        self.say(&format!("the disk has {used} of {capacity} bytes in use"));
        if is_pinned && !self.machine.must_end() {
            self.retain();
            self.refuse_sends();
        }
        for _ in 0..self.rng.u32(1..12) {
            self.act_without_faults();
            self.settle();
        }
        self.heal();
        self.settle();
    }

    /// What falls due while the log takes nothing arrives once it does, without a restart.
    pub(crate) fn log_takes_nothing(&mut self) {
        let process = self.machine.process().clone();
        let mut waiting = Vec::new();
        for _ in 0..self.rng.u32(1..5) {
            let level = self.rng.u32(1..4);
            waiting.push(self.send_one(level));
        }
        self.work();
        self.settle();
        if self.runs(&process) {
            let kind = if self.rng.bool() { ErrorKind::StorageFull } else { ErrorKind::Other };
            let times = self.rng.u64(1..4);
            self.machine.directory.fail_under(Path::new("commitlog"), Operation::Write, 0, kind, times);
            self.faulty = true;
            self.say(&format!("the log takes nothing {times} times: {kind:?}"));
            self.pass_what(&waiting);
            self.tick();
            self.settle();
        }
        if self.runs(&process) {
            self.heal();
            self.all_arrive(&process, &waiting);
        }
    }

    /// The first of some messages of a level cannot be read for a moment as all of them fall due: the others wait for it.
    pub(crate) fn unreadable_for_a_moment(&mut self) {
        let process = self.machine.process().clone();
        let level = self.rng.u32(1..4);
        let waiting: Vec<Id> = (0..14).map(|_| self.send_large(level)).collect();
        self.work();
        self.settle();
        let end = |id: &Id| self.ledger.message(*id).end.map(|end| end.0 / SEGMENT_BYTES);
        let (Some(first), Some(last)) = (end(&waiting[0]), end(&waiting[13])) else { return };
        if !self.runs(&process) || first == last {
            return;
        }
        self.pass_what(&waiting);
        let path = segment_path(first * SEGMENT_BYTES);
        self.machine.directory.fail_under(&path, Operation::Read, 0, ErrorKind::Other, u64::MAX);
        (self.faulty, self.reads_fail) = (true, true);
        self.say(&format!("{} cannot be read for a moment", path.display()));
        for _ in 0..20 {
            if self.runs(&process) {
                self.tick();
                self.machine.advance(READ_PATIENCE / 30);
            }
        }
        self.reads_fail = false;
        self.settle();
        if self.runs(&process) {
            self.heal();
            self.all_arrive(&process, &waiting);
        }
        if self.runs(&process) && self.unreadable.is_empty() {
            let position =
                |id: &Id| self.reader.delivered().find(|(_, _, seen)| seen.id == *id).map(|found| found.2.position);
            let arrived: Vec<_> = waiting.iter().filter_map(position).collect();
            assert!(arrived.is_sorted(), "messages {waiting:?} arrived out of order, at {arrived:?}");
        }
    }

    /// The disk is filled with messages that wait until one is refused: what was taken finds room when it is due.
    pub(crate) fn fill_disk_until_refused(&mut self) {
        let process = self.machine.process().clone();
        self.work();
        self.settle();
        let Ok(space) = self.machine.directory.space() else { return };
        let waits: u64 = self.reader.waiting().map(|(_, _, seen)| seen.end.since(seen.position)).sum();
        let used = space.total - space.free;
        let capacity = used + 2 * waits + self.rng.u64(4..9) * SEGMENT_BYTES;
        self.machine.directory.set_capacity(capacity);
        self.full = true;
        self.say(&format!("the disk has {used} of {capacity} bytes in use"));
        // What is free is looked at now and then.
        self.retain();
        let mut waiting = Vec::new();
        while self.runs(&process) && waiting.len() < 300 {
            let level = self.rng.u32(1..4);
            let id = self.send_large(level);
            if self.ledger.message(id).end.is_none() {
                break;
            }
            waiting.push(id);
            self.sync();
            self.dispatch();
            self.settle();
        }
        if self.runs(&process) {
            // Files of queues and index, small as they are, are large beside segments as short as these.
            self.machine.directory.set_capacity(capacity + SEGMENT_BYTES);
            self.pass_what(&waiting);
            self.all_arrive(&process, &waiting);
        }
        self.heal();
        self.settle();
    }

    /// Lets the time pass that messages wait.
    fn pass_what(&mut self, waiting: &[Id]) {
        let longest = waiting.iter().map(|id| self.ledger.message(*id).delay).max().unwrap_or_default();
        self.machine.advance(longest + Duration::from_secs(1));
    }

    /// Whether a process still runs, and nothing ends it.
    fn runs(&self, process: &Process) -> bool {
        self.machine.is_running()
            && !self.machine.must_end()
            && Arc::ptr_eq(&process.store, &self.machine.process().store)
    }

    /// All that was taken of messages that are due arrives, unless the process ends before.
    fn all_arrive(&mut self, process: &Process, due: &[Id]) {
        let mut missing = Vec::new();
        for _ in 0..12 {
            self.work_all();
            self.settle();
            if !self.runs(process) {
                return;
            }
            let seen = self.reader.delivered().chain(self.reader.parked()).map(|(_, _, seen)| seen.id);
            let seen: BTreeSet<Id> = seen.collect();
            let is_missing = |id: &&Id| self.ledger.message(**id).end.is_some() && !seen.contains(id);
            missing = due.iter().filter(is_missing).copied().collect();
            if missing.is_empty() {
                return;
            }
            self.retain();
            self.machine.advance(PAUSE_MAX);
        }
        panic!("messages {missing:?} do not arrive while the process runs");
    }

    /// While the store says that it takes nothing, it takes nothing.
    fn refuse_sends(&mut self) {
        let Some(reason) = self.machine.process().store.not_writable() else { return };
        self.say(&format!("sends are refused: {reason}"));
        let message = self.draw_message(0);
        let id = self.ledger.sending(message);
        assert!(self.machine.process().store.append(self.ledger.draft(id)).is_err(), "message {id} was taken");
    }

    /// The disk works again, and has room.
    fn heal(&mut self) {
        self.machine.directory.heal();
        self.machine.directory.set_capacity(1 << 40);
        (self.faulty, self.full) = (false, false);
        self.say("the disk is well");
        if !self.machine.must_end() {
            // What is tried again now and then.
            self.machine.process().store.dispatch_once(u64::MAX);
            self.reader.queues_wait = false;
            self.settle();
        }
        if !self.machine.must_end() {
            let retained = self.machine.process().store.retain_once();
            self.say(&format!("retain: {}", outcome(&retained)));
        }
    }

    // Damaged bytes.

    /// Some bytes of a segment behind which another one holds durable records: often the head of a record.
    fn draw_old_bytes(&mut self) -> Option<Range<u64>> {
        self.sync();
        while !self.machine.must_end() && self.machine.process().store.dispatch_once(u64::MAX) {}
        self.settle();
        if self.machine.must_end() || self.faulty {
            return None;
        }
        self.reader.read(&self.machine, &self.ledger);
        let store = &self.machine.process().store;
        let newest = store.durable().0.saturating_sub(1) / SEGMENT_BYTES * SEGMENT_BYTES;
        let first = store.log_range().0.0;
        if store.durable() < store.log_range().1 || newest <= first {
            return None;
        }
        let heads = self.reader.positions().filter(|position| (first..newest).contains(position));
        let head = self.rng.choice(heads.collect::<Vec<_>>());
        let start = match head {
            Some(head) if self.rng.bool() => head + self.rng.u64(..88),
            _ => self.rng.u64(first..newest),
        };
        let bytes = match self.rng.u32(..4) {
            0 | 1 => 1,
            2 => self.rng.u64(1..600),
            _ => 4_096,
        };
        let segment_end = start / SEGMENT_BYTES * SEGMENT_BYTES + SEGMENT_BYTES;
        Some(start..(start + bytes).min(segment_end))
    }

    /// Bytes of an old segment are damaged, under the running process or between two; or the disk cannot read a page for ever.
    pub(crate) fn damage(&mut self) {
        let Some(range) = self.draw_old_bytes() else { return };
        let is_down = self.rng.bool();
        if is_down {
            let end = self.draw_end();
            self.end_without_restart(end);
        }
        let base = range.start / SEGMENT_BYTES * SEGMENT_BYTES;
        let within = range.start - base..range.end - base;
        let path = segment_path(base);
        if self.rng.u32(..4) == 0 {
            let page = within.start / 4_096 * 4_096..(within.start / 4_096 + 1) * 4_096;
            self.machine.directory.make_unreadable(&path, page.clone()).unwrap();
            self.say(&format!("page {page:?} of {base} cannot be read any more"));
            self.unreadable.push((path, page.clone()));
            self.note_damage(base + page.start..base + page.end);
        } else {
            let mask = if self.rng.bool() { 1 << self.rng.u32(..8) } else { self.rng.u8(1..) };
            self.machine.directory.damage(&path, within, mask).unwrap();
            self.say(&format!("bytes {range:?} are damaged with {mask:#x}"));
            self.note_damage(range);
        }
        if is_down {
            self.restart();
        }
    }

    /// A record behind the checkpoint is damaged, and the process killed: what stands behind it is no torn tail, as the machine stays up.
    pub(crate) fn damage_behind_checkpoint(&mut self) {
        self.work();
        self.checkpoint();
        let from = self.machine.process().store.log_range().1.0;
        for _ in 0..self.rng.u32(2..6) {
            let level = self.rng.u32(..4);
            self.send_one(level);
        }
        self.work();
        self.settle();
        if self.machine.must_end() || self.machine.process().store.log_range().1.0 <= from {
            return;
        }
        self.reader.read(&self.machine, &self.ledger);
        let mut heads: Vec<u64> = self.reader.positions().filter(|position| *position >= from).collect();
        heads.sort_unstable();
        // The last one stays sound: it shows that the log goes on.
        let Some(at) = heads.len().checked_sub(2).map(|last| self.rng.usize(..=last)) else { return };
        let start = self.rng.u64(heads[at]..heads[at + 1]);
        self.end_without_restart(End::Kill);
        let base = start / SEGMENT_BYTES * SEGMENT_BYTES;
        self.machine.directory.damage(&segment_path(base), start - base..start - base + 1, 0x5A).unwrap();
        self.say(&format!("byte {start} behind the checkpoint is damaged"));
        self.note_damage(start..start + 1);
        self.tail_damaged = true;
        self.restart();
        loop {
            self.sync();
            self.checkpoint();
            if !self.machine.must_end() {
                break;
            }
            self.settle();
        }
        self.tail_damaged = false;
    }

    fn note_damage(&mut self, range: Range<u64>) {
        let delivered: Vec<Id> = self.reader.delivered().map(|(_, _, seen)| seen.id).collect();
        for (id, waits) in self.reader.damaged(range) {
            let message = self.ledger.message_mut(id);
            message.unordered = true;
            // What waits may be lost or parked; what was restored may come again.
            message.damaged |= waits && !delivered.contains(&id);
        }
    }

    /// An operator gives up pages that cannot be read, so that the store opens.
    pub(crate) fn give_up_unreadable(&mut self) {
        let pages = std::mem::take(&mut self.unreadable);
        for (path, page) in &pages {
            // It may have been deleted since.
            if let Ok(segment) = self.machine.directory.open(path) {
                segment.write_at(page.start, &[0; 4_096]).unwrap();
                segment.sync().unwrap();
            }
        }
        self.say(&format!("{} unreadable pages are given up", pages.len()));
    }

    // Lost files.

    /// Removes, cuts or garbles files that can be made again from the log.
    pub(crate) fn lose_derived(&mut self) {
        for _ in 0..self.rng.u32(1..3) {
            match self.rng.u32(..6) {
                0 if !self.power_lost => {
                    let set = *self.rng.choice(&CHECKPOINT_SETS).unwrap();
                    set.iter().for_each(|path| self.lose(Path::new(path)));
                }
                1 => {
                    let folder = *self.rng.choice(&["index", "config", "consumequeue"]).unwrap();
                    self.lose(Path::new(folder));
                }
                2 => self.believe_no_tag_code(),
                _ => {
                    let mut files = Vec::new();
                    files_below(&self.machine.directory, Path::new(""), &mut files);
                    files.retain(|path| {
                        !path.starts_with("commitlog")
                            && path != Path::new("lock")
                            && !(self.power_lost && CHECKPOINTS.iter().any(|checkpoint| path == Path::new(checkpoint)))
                    });
                    let Some(file) = self.rng.choice(files) else { return };
                    match self.rng.u32(..4) {
                        0 => self.garble(&file),
                        1 if file.starts_with("consumequeue") => self.lose(file.parent().unwrap()),
                        _ => self.lose(&file),
                    }
                }
            }
        }
    }

    fn lose(&mut self, path: &Path) {
        self.say(&format!("{} is lost", path.display()));
        self.note_lost(path);
        self.machine.directory.remove(path).unwrap();
        // The folder may be gone itself.
        let _ = self.machine.directory.sync_folder(path.parent().unwrap_or(Path::new("")));
    }

    /// A state file or an index file is cut, empty, full of zeros or of anything; a queue file is cut.
    fn garble(&mut self, path: &Path) {
        let bytes = self.machine.directory.read(path).unwrap().unwrap_or_default();
        let kind = if path.starts_with("consumequeue") { 0 } else { self.rng.u32(..4) };
        let garbled = match kind {
            0 => bytes[..bytes.len() / 2].to_vec(),
            1 => Vec::new(),
            2 => vec![0; bytes.len()],
            _ => bytes.iter().map(|byte| byte ^ self.rng.u8(..)).collect(),
        };
        self.say(&format!("{} is garbled ({kind})", path.display()));
        self.note_lost(path);
        self.machine.directory.write(path, &garbled).unwrap();
    }

    /// What follows from the loss of a file for what can be expected.
    fn note_lost(&mut self, path: &Path) {
        self.derived_lost = true;
        let is_lost = |file: &str| {
            let file = Path::new(file);
            file.starts_with(path) || path.to_string_lossy() == format!("{}.bak", file.display())
        };
        self.offsets_lost |= is_lost("config/consumerOffset.json");
        if is_lost("config/deletedTopics.json") {
            self.reader.deletions_lost();
        }
        // Which steps of the clock it had seen.
        self.machine.clock_lost |= is_lost("latermq.checkpoint");
        self.checkpoint_lost |= CHECKPOINTS.iter().any(|checkpoint| is_lost(checkpoint));
        self.reader.queues_lost |= path.starts_with("consumequeue");
        self.index_lost |= path.starts_with("index");
    }

    /// The tag codes of the schedule topic are wrong: its messages fall due a second early, as far as they say.
    fn believe_no_tag_code(&mut self) {
        let mut files = Vec::new();
        files_below(&self.machine.directory, &Path::new("consumequeue").join(SCHEDULE_TOPIC), &mut files);
        for path in files {
            let mut bytes = self.machine.directory.read(&path).unwrap().unwrap_or_default();
            for entry in bytes.chunks_exact_mut(20).filter(|entry| entry[..12] != [0; 12]) {
                let (_, tag_code) = entry.split_last_chunk_mut::<8>().unwrap();
                *tag_code = (i64::from_be_bytes(*tag_code) - 1_000).to_be_bytes();
            }
            self.machine.directory.write(&path, &bytes).unwrap();
        }
        self.tag_codes_wrong = true;
        self.say("tag codes are wrong");
    }

    /// Keeps a copy of all files; or puts the last one back, but for our checkpoint, which is then one of another log.
    pub(crate) fn back_up(&mut self) {
        let Some(backup) = self.backup.take().filter(|_| self.rng.bool()) else {
            if self.faulty || self.full || self.reader.has_damage() || self.planned_end.is_some() {
                return;
            }
            self.backup = Some(Backup {
                directory: self.machine.directory.kill(),
                ledger: self.ledger.clone(),
                reader: self.reader.clone(),
                offsets: self.offsets.clone(),
            });
            return self.say("all files are copied");
        };
        self.end_without_restart(End::Kill);
        let read = |path| (path, self.machine.directory.read(Path::new(path)).unwrap());
        let kept = ["checkpoint", "latermq.checkpoint", "latermq.checkpoint.bak"].map(read);
        self.machine.directory = backup.directory;
        for (path, bytes) in kept {
            match bytes {
                Some(bytes) => self.machine.directory.write(Path::new(path), &bytes).unwrap(),
                None => self.machine.directory.remove(Path::new(path)).unwrap(),
            }
        }
        // The checkpoint, which matches it perhaps, says that this was synced; whoever copies files over a store waits for them to be on the disk.
        sync_all(&self.machine.directory);
        (self.ledger, self.reader) = (backup.ledger, backup.reader);
        self.offsets = backup.offsets;
        (self.offsets_lost, self.checkpoint_lost, self.machine.clock_lost) = (true, true, true);
        self.derived_lost = true;
        self.unreadable.clear();
        self.say("the copy is put back");
        self.restart();
    }
}

pub(crate) fn segment_path(base: u64) -> PathBuf {
    Path::new("commitlog").join(format!("{base:020}"))
}

/// Makes all that is on a disk durable.
fn sync_all(directory: &dyn Directory) {
    let mut files = Vec::new();
    files_below(directory, Path::new(""), &mut files);
    for file in files {
        directory.open(&file).and_then(|file| file.sync()).unwrap();
        file.ancestors().skip(1).for_each(|folder| directory.sync_folder(folder).unwrap());
    }
}

fn files_below(directory: &dyn Directory, folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in directory.list(folder).unwrap() {
        let path = folder.join(&entry.name);
        match entry.kind {
            EntryKind::Folder => files_below(directory, &path, found),
            _ => found.push(path),
        }
    }
}
