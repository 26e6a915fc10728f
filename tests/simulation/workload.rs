//! What happens, drawn from the seed.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use latermq::{
    delay::{DelayLevel, LevelTable, PAUSE_MAX},
    env::{Clock, Directory},
    model::{Properties, Timestamp},
    protocol::Command,
    store::{AppendError, FlushPolicy, Grade, SettingChange, StoreError},
};

use crate::{
    clients::{Offsets, Pending},
    faults::Backup,
    ledger::{Id, Ledger, Message},
    machine::{BODY_BYTES_MAX, End, Machine, QUEUES, Settings, mix},
    oracle,
    reader::Reader,
    runner::History,
};

/// Real topics.
const TOPICS: [&str; 3] = ["orders", "bills", "%RETRY%group"];
/// Tables of levels that a process may be started with.
const TABLES: [&str; 5] = [
    "1s 5s 10s 30s 1m 10m 1h 1d",
    "1s 5s 10s 30s 1m 10m 1h 1d",
    "2s 3s 10s",
    "1h 1m 1s 1s 1s",
    "5s 1s 1h 30s 2m 10m 1d 2d 3s",
];
/// Actions of a simulation.
const ACTIONS: u32 = 250;

/// One simulated world.
pub(crate) struct Simulation {
    pub(crate) rng: fastrand::Rng,
    pub(crate) machine: Machine,
    pub(crate) ledger: Ledger,
    pub(crate) reader: Reader,
    history: History,
    verbose: bool,
    /// What becomes of the machine when it stops at a planned step.
    pub(crate) planned_end: Option<End>,
    /// The power went, and no process has recovered since.
    pub(crate) power_lost: bool,
    /// A checkpoint was removed, and no process has recovered since.
    pub(crate) checkpoint_lost: bool,
    /// Records behind the checkpoint are damaged: a power loss now, and they would look torn.
    pub(crate) tail_damaged: bool,
    /// Something that is derived was removed or changed, and no process has recovered since.
    pub(crate) derived_lost: bool,
    /// Tag codes of the schedule topic are wrong; no start writes them anew.
    pub(crate) tag_codes_wrong: bool,
    /// Whether more goes wrong, so that what guards against it is noticed when it is missing.
    pub(crate) is_harsh: bool,
    /// Whether operations on the disk fail now and then.
    pub(crate) faulty: bool,
    /// Whether the disk is full.
    pub(crate) full: bool,
    /// Answers of syncs to those who wait.
    answers: Arc<Mutex<Vec<(Id, bool)>>>,
    last_store_time: Timestamp,
    trace: u64,
    /// Requests without an answer.
    pub(crate) pending: BTreeMap<i32, Pending>,
    pub(crate) next_opaque: i32,
    /// The answer to who waits for it.
    pub(crate) answered: Option<Command>,
    pub(crate) offsets: Offsets,
    /// When the broker last saved them, as far as it ticked.
    pub(crate) offsets_saved_at: Duration,
    /// Their file was removed: they may be older, or gone.
    pub(crate) offsets_lost: bool,
    /// The index lost a file: not all is found any more.
    pub(crate) index_lost: bool,
    /// Pages that the disk cannot read any more.
    pub(crate) unreadable: Vec<(PathBuf, Range<u64>)>,
    /// Reads of the log fail: what cannot be read for long enough is parked.
    pub(crate) reads_fail: bool,
    /// The store reported damage.
    damage_reported: bool,
    pub(crate) backup: Option<Backup>,
}

impl Simulation {
    /// The world of a seed, which writes down what it does.
    pub(crate) fn new(seed: u64, history: History, verbose: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let settings = Settings { flush_policy: flush_policy(&mut rng), levels: levels(&mut rng) };
        Self {
            machine: Machine::new(settings),
            rng,
            ledger: Ledger::default(),
            reader: Reader::default(),
            history,
            verbose,
            planned_end: None,
            power_lost: false,
            checkpoint_lost: false,
            tail_damaged: false,
            derived_lost: false,
            tag_codes_wrong: false,
            is_harsh: false,
            faulty: false,
            full: false,
            answers: Arc::default(),
            last_store_time: Timestamp(i64::MIN),
            trace: seed,
            pending: BTreeMap::new(),
            next_opaque: 0,
            answered: None,
            offsets: Offsets::new(),
            offsets_saved_at: Duration::ZERO,
            offsets_lost: false,
            index_lost: false,
            unreadable: Vec::new(),
            reads_fail: false,
            damage_reported: false,
            backup: None,
        }
    }

    /// The same world, where more goes wrong.
    pub(crate) fn harsh(self) -> Self {
        Self { is_harsh: true, ..self }
    }

    /// Lets everything happen; gives a hash of all that did.
    pub(crate) fn run(mut self) -> u64 {
        self.restart();
        for _ in 0..ACTIONS {
            self.act();
            self.settle();
        }
        self.judge();
        mix(self.trace, self.machine.trace())
    }

    /// A fixed piece of work during which the machine stops at a step, counted from 1; then everything arrives. Says whether the step was reached.
    pub(crate) fn run_fixed(mut self, step: u64, end: End) -> bool {
        self.machine.directory.crash_at(step);
        self.planned_end = Some(end);
        self.work_fixed();
        let reached = self.machine.directory.has_stopped();
        self.collect_answers();
        self.after_quietly(end);
        self.judge();
        reached
    }

    /// As [`Simulation::run_fixed`], but then some files are lost, and the machine stops again at a step of the recovery. Says whether that was
    /// reached.
    pub(crate) fn run_recovery(mut self, first: (u64, End), lost: &[&str], step: u64, end: End) -> bool {
        self.machine.directory.crash_at(first.0);
        self.planned_end = Some(first.1);
        self.work_fixed();
        self.collect_answers();
        self.cease(first.1);
        lost.iter().for_each(|file| self.machine.directory.remove(Path::new(file)).unwrap());
        (self.offsets_lost, self.derived_lost) = (true, !lost.is_empty());
        self.machine.directory.crash_at(step);
        let started = self.machine.start();
        let reached = self.machine.directory.has_stopped();
        assert!(reached || started.is_ok(), "{started:?}");
        self.collect_answers();
        self.after_quietly(end);
        self.judge();
        reached
    }

    /// Lets everything arrive, stops, and judges.
    fn judge(&mut self) {
        self.drain();
        if let Err(wrong) = oracle::judge(&self.ledger, &self.reader) {
            panic!("{wrong}");
        }
        self.machine.stop().expect("no fault is planned");
        self.audit();
    }

    fn work_fixed(&mut self) {
        let started = self.machine.start().is_ok();
        for round in 0..4 {
            if !started || self.machine.must_end() {
                break;
            }
            self.settle_unless_ended();
            for level in [0, 1, 2, 3, 3, 1] {
                self.send_one(level);
            }
            self.sync();
            self.work();
            self.machine.advance(Duration::from_secs(4));
            self.tick();
            self.send_batch();
            self.work();
            if round % 2 == 1 {
                self.checkpoint();
            }
            if round == 2 && !self.machine.must_end() {
                let _ = self.machine.stop();
                self.collect_answers();
                if self.machine.must_end() || self.machine.start().is_err() {
                    break;
                }
            }
        }
    }

    pub(crate) fn say(&mut self, what: &str) {
        self.trace = what.bytes().fold(self.trace, |trace, byte| mix(trace, u64::from(byte)));
        let what = format!("{what} [{:x}]", self.machine.trace());
        if self.verbose {
            eprintln!("{what}");
        }
        self.history.lock().unwrap().push(what);
    }

    fn act(&mut self) {
        match self.rng.u32(..100) {
            86 if self.is_harsh => self.unreadable_for_a_moment(),
            87 if self.is_harsh => self.log_takes_nothing(),
            88 if self.is_harsh => self.fill_disk_until_refused(),
            89 if self.is_harsh => self.damage_behind_checkpoint(),
            85 => self.send_together_while_log_fails(),
            90 => self.jump_and_lose_power(),
            91 => self.damage(),
            92 => self.segment_unreadable(),
            93 => self.back_up(),
            94 => self.delete_topic(),
            95 => self.delete_and_lose_power(),
            96 => self.reads_fail_at_dispatch(),
            97 => self.sync_fails(),
            98 => self.plan_fault(),
            99 => self.fill_disk(),
            _ => self.act_without_faults(),
        }
    }

    pub(crate) fn act_without_faults(&mut self) {
        match self.rng.u32(..100) {
            0..17 => self.send(),
            17..21 => self.send_together(),
            21..24 => self.send_batch(),
            24..26 => self.send_illegal(),
            26..28 => self.send_illegal_request(),
            28..33 => self.consume(),
            33 => self.query(),
            34..36 => self.save_offsets(),
            36..48 => self.sync(),
            48..63 => self.dispatch(),
            63..77 => self.tick(),
            77..83 => self.advance(),
            83..85 => self.step_wall(),
            85 => self.follow_clock(),
            86..88 => self.checkpoint(),
            88..90 => self.retain(),
            90..93 => self.plan_stop(),
            93..95 => {
                let end = self.draw_end();
                self.end(end);
            }
            95 => self.stop_cleanly(),
            96 => self.change_levels(),
            _ => self.work(),
        }
    }

    // Sending.

    pub(crate) fn draw_message(&mut self, level: u32) -> Message {
        let settings = &self.machine.settings;
        let level = i32::try_from(level).ok().and_then(|level| settings.levels.clamp(level));
        let delay = level.and_then(|level| settings.levels.duration(level)).unwrap_or_default();
        let bytes = match self.rng.u32(..10) {
            0..5 => self.rng.usize(..200),
            5..9 => self.rng.usize(..3_000),
            _ => self.rng.usize(..BODY_BYTES_MAX),
        };
        let byte = self.rng.u8(..);
        let topic = self.rng.choice(TOPICS).unwrap();
        let queue_id = if topic.starts_with('%') { 0 } else { self.rng.u32(..QUEUES) };
        Message {
            level: level.map_or(0, DelayLevel::number),
            delay,
            sent_at: (self.machine.elapsed, self.machine.forward),
            spoofed: self.rng.u32(..8) == 0,
            ..Message::new(topic, queue_id, (byte, bytes + 1))
        }
    }

    fn send(&mut self) {
        for _ in 0..self.rng.u32(1..4) {
            let level = if self.rng.u32(..4) == 0 { 0 } else { self.rng.u32(1..12) };
            self.send_one(level);
        }
    }

    /// Some messages of more than a page.
    pub(crate) fn send_some_large(&mut self) {
        for _ in 0..3 {
            let level = self.rng.u32(..3);
            self.send_large(level);
        }
    }

    /// A message of more than a page.
    pub(crate) fn send_large(&mut self, level: u32) -> Id {
        let mut message = self.draw_message(level);
        message.fill.1 = self.rng.usize(4_000..=BODY_BYTES_MAX);
        self.send_message(message)
    }

    pub(crate) fn send_one(&mut self, level: u32) -> Id {
        let message = self.draw_message(level);
        self.send_message(message)
    }

    fn send_message(&mut self, message: Message) -> Id {
        let id = self.ledger.sending(message);
        // The store itself takes messages of topics that the broker does not know; only a broker gives them queues.
        let is_known = self.machine.process().broker.topics().get(&self.ledger.message(id).topic).is_some();
        if self.rng.bool() || !is_known {
            self.send_request(&[id]);
            return id;
        }
        let appended = self.machine.process().store.append(self.ledger.draft(id));
        self.sent(&[id], appended.map(|appended| vec![appended.end]));
        id
    }

    fn send_batch(&mut self) {
        let mut first = self.draw_message(0);
        let mut ids = Vec::new();
        for _ in 0..self.rng.u32(1..8) {
            let message = Message { topic: first.topic.clone(), queue_id: first.queue_id, ..self.draw_message(0) };
            ids.push(self.ledger.sending(message.clone()));
            first = message;
        }
        if !first.topic.starts_with('%') && self.ledger.request(&ids).body.len() <= BODY_BYTES_MAX {
            return self.send_request(&ids);
        }
        // Past the broker only for topics that it knows, as in [`Simulation::send_message`].
        if self.machine.process().broker.topics().get(&first.topic).is_none() && !self.create_topic(&first.topic) {
            return;
        }
        let drafts = ids.iter().map(|id| self.ledger.draft(*id)).collect();
        let appended = self.machine.process().store.append_batch(&Properties::new(), drafts);
        self.sent(&ids, appended.map(|appended| appended.iter().map(|appended| appended.end).collect()));
    }

    fn sent(&mut self, ids: &[Id], appended: Result<Vec<latermq::model::PhysicalOffset>, AppendError>) {
        match appended {
            Ok(ends) => {
                self.say(&format!(
                    "send {ids:?} level {} for {:?} ends {ends:?}",
                    self.ledger.message(ids[0]).level,
                    self.ledger.message(ids[0]).delay
                ));
                for (id, end) in ids.iter().zip(&ends) {
                    self.ledger.message_mut(*id).end = Some(*end);
                    let store = &self.machine.process().store;
                    if store.waits_for_sync() {
                        let (id, answers) = (*id, self.answers.clone());
                        let answer = move |durable: Result<(), StoreError>| {
                            answers.lock().unwrap().push((id, durable.is_ok()));
                        };
                        store.when_durable(*end, Box::new(answer));
                    } else {
                        self.ledger.acknowledge(*id, false);
                    }
                }
            }
            Err(error) => {
                self.say(&format!("send {ids:?} failed: {error}"));
                assert!(self.may_fail(), "a send failed without a fault: {error}");
            }
        }
    }

    fn send_illegal(&mut self) {
        let message = self.draw_message(1);
        let id = self.ledger.sending(message);
        let mut draft = self.ledger.draft(id);
        let kind = self.rng.u32(..4);
        match kind {
            0 => draft.body = Bytes::from(vec![1; BODY_BYTES_MAX + 1]),
            1 => draft.properties.set("DELAY", "x"),
            2 => draft.topic = "SCHEDULE_TOPIC_XXXX".into(),
            _ => draft.properties.set("long", vec![b'x'; 40_000]),
        }
        let refused = self.machine.process().store.append(draft).is_err();
        self.say(&format!("send {id} illegally ({kind})"));
        assert!(refused, "an illegal message of kind {kind} was taken");
    }

    // The steps of the threads.

    pub(crate) fn sync(&mut self) {
        let synced = self.machine.process().store.sync_once();
        self.say(&format!("sync: {}", outcome(&synced)));
        assert!(synced.is_ok() || self.may_fail(), "{synced:?}");
    }

    pub(crate) fn dispatch(&mut self) {
        let bytes_max = if self.rng.bool() { u64::MAX } else { self.rng.u64(1..20_000) };
        let more = self.machine.process().store.dispatch_once(bytes_max);
        self.say(&format!("dispatch {bytes_max}: more {more}"));
    }

    pub(crate) fn tick(&mut self) {
        for _ in 0..self.rng.u32(1..4) {
            let process = self.machine.process();
            let tick = process.scheduler.tick(process.store.now());
            self.say(&format!("tick: {tick:?}"));
            let may_be_parked =
                self.ledger.messages.values().any(|message| message.may_be_parked || message.exempt || message.damaged);
            assert!(tick.parked == 0 || may_be_parked || self.reads_fail, "a message was parked");
        }
    }

    /// What the threads of an idle broker do.
    pub(crate) fn work(&mut self) {
        self.sync();
        while !self.machine.must_end() && self.machine.process().store.dispatch_once(u64::MAX) {}
        self.follow_clock();
        self.tick();
        self.save_offsets();
    }

    /// Works until nothing is due any more.
    pub(crate) fn work_all(&mut self) {
        for _ in 0..1_000 {
            if self.machine.must_end() {
                return;
            }
            self.work();
            let process = self.machine.process();
            let tick = process.scheduler.tick(process.store.now());
            if tick.restored + tick.parked == 0 {
                return;
            }
        }
        panic!("there is no end of what is due");
    }

    fn follow_clock(&mut self) {
        let followed = self.machine.process().store.follow_clock();
        self.say(&format!("follow the clock: {followed:?}"));
        assert!(followed.is_ok() || self.may_fail(), "{followed:?}");
    }

    pub(crate) fn checkpoint(&mut self) {
        let done = self.machine.process().store.checkpoint_once();
        self.say(&format!("checkpoint: {}", outcome(&done)));
        assert!(done.is_ok() || self.may_fail(), "{done:?}");
    }

    pub(crate) fn retain(&mut self) {
        if self.faulty {
            // Readers do not read while the disk fails, and must not miss what is deleted.
            return;
        }
        let done = self.machine.process().store.retain_once();
        self.say(&format!("retain: {}", outcome(&done)));
        assert!(done.is_ok() || self.may_fail(), "{done:?}");
    }

    // Faults.

    /// Whether an operation may fail now.
    pub(crate) fn may_fail(&self) -> bool {
        self.machine.must_end() || self.faulty || self.full
    }

    // Time.

    fn advance(&mut self) {
        let ms = match self.rng.u32(..10) {
            0..3 => self.rng.u64(..1_000),
            3..6 => self.rng.u64(..10_000),
            6..8 => self.rng.u64(..120_000),
            8 => self.rng.u64(..4_000_000),
            _ => self.rng.u64(..100_000_000),
        };
        self.machine.advance(Duration::from_millis(ms));
        self.say(&format!("advance {ms} ms"));
    }

    fn step_wall(&mut self) {
        let unit = *self.rng.choice(&[1_000, 3_600_000, 86_400_000]).unwrap();
        match self.rng.u32(..5) {
            0 => self.machine.set_wall(Timestamp(0)),
            1 | 2 => self.machine.step_wall(self.rng.i64(0..3 * unit)),
            _ => self.machine.step_wall(-self.rng.i64(0..unit)),
        }
        self.say(&format!("wall clock at {}", self.machine.clock.wall()));
    }

    /// The wall clock is set forward, and the power goes while store time follows, or soon after.
    fn jump_and_lose_power(&mut self) {
        self.sync();
        let behind = self.machine.process().store.now().0 - self.machine.clock.wall().0;
        self.machine.step_wall(behind + self.rng.i64(1_001..40_000_000));
        self.say(&format!("wall clock at {}", self.machine.clock.wall()));
        self.machine.directory.crash_at(self.machine.directory.steps() + self.rng.u64(1..12));
        self.planned_end = Some(End::PowerLoss(self.rng.u64(..)));
        self.follow_clock();
        if !self.machine.must_end() {
            self.tick();
        }
    }

    /// The table of levels changes while the process runs.
    fn change_levels(&mut self) {
        let table = *self.rng.choice(&TABLES).unwrap();
        let is_legal = self.rng.u32(..4) != 0;
        let value = if is_legal { table.to_owned() } else { format!("{table} 0s") };
        let changed = self.machine.process().store.change_setting("messageDelayLevel", &value);
        self.say(&format!("levels {value:?}: {changed:?}"));
        assert_eq!(changed == SettingChange::Accepted, is_legal, "{value:?}: {changed:?}");
        if is_legal {
            self.machine.settings.levels = table.parse().unwrap();
        }
    }

    // Ends.

    pub(crate) fn draw_end(&mut self) -> End {
        if self.checkpoint_lost || self.tail_damaged || self.rng.bool() {
            End::Kill
        } else {
            End::PowerLoss(self.rng.u64(..))
        }
    }

    fn plan_stop(&mut self) {
        let step = self.machine.directory.steps() + self.rng.u64(1..30);
        self.machine.directory.crash_at(step);
        self.planned_end = Some(self.draw_end());
        self.say(&format!("machine will stop at step {step}"));
    }

    fn stop_cleanly(&mut self) {
        if self.machine.must_end() {
            return;
        }
        let stopped = self.machine.stop();
        self.say(&format!("stop: {}", outcome(&stopped)));
        self.collect_answers();
        if self.machine.must_end() {
            let end = self.planned_end.take().unwrap_or(End::Kill);
            self.after(end);
        } else {
            assert!(stopped.is_ok() || self.may_fail(), "{stopped:?}");
            if !self.may_fail() {
                self.offsets_are_saved();
            }
            let end = if self.rng.bool() { Some(self.draw_end()) } else { None };
            match end {
                Some(end) => self.after(end),
                None => {
                    self.audit();
                    self.restart();
                }
            }
        }
    }

    /// Ends the process, and starts the next one.
    pub(crate) fn end(&mut self, end: End) {
        self.collect_answers();
        self.after(end);
    }

    fn after(&mut self, end: End) {
        self.cease(end);
        self.restart();
    }

    /// Ends the process, and leaves the machine without one.
    pub(crate) fn end_without_restart(&mut self, end: End) {
        self.collect_answers();
        self.cease(end);
    }

    /// As [`Simulation::after`], but nothing else happens before the next process runs.
    fn after_quietly(&mut self, end: End) {
        self.cease(end);
        self.machine.start().expect("the store opens");
        self.derived_lost = false;
        self.check_offsets();
    }

    pub(crate) fn cease(&mut self, end: End) {
        self.planned_end = None;
        self.faulty = false;
        self.say(&format!("{end:?}"));
        self.pending.clear();
        let durable = self.machine.end(end);
        if matches!(end, End::PowerLoss(_)) {
            self.power_lost = true;
            self.ledger.lose_unsynced(durable);
            self.reader.forget_unsynced(durable);
        }
        self.audit();
    }

    /// Nothing that happens to the machine damages a store, but for what the test itself damages.
    fn audit(&self) {
        if self.derived_lost || !self.unreadable.is_empty() {
            return;
        }
        let Some(audited) = self.machine.audit() else { return };
        for range in &audited.damaged {
            let found = range.from..range.to;
            assert!(self.reader.is_hit(&found), "an audit finds damage at {found:?}: {:?}", audited.findings.list);
        }
        let wrong = audited.findings.list.iter().filter(|finding| {
            let is_tag_code = finding.part == "queue" && finding.text.contains("has the tag code");
            // Of a topic whose deletion nobody knows of any more all that was stored may come back, or the part behind the checkpoint.
            let is_forgotten = finding.part == "queue"
                && finding.text.contains("has no entry for the record")
                && self.reader.is_unsure(finding.place.split('/').next().unwrap_or_default());
            finding.grade == Grade::Damage && !(self.tag_codes_wrong && is_tag_code) && !is_forgotten
        });
        let wrong: Vec<_> = wrong.collect();
        assert!(wrong.is_empty() || self.reader.has_damage(), "an audit finds: {wrong:?}");
    }

    fn settle_unless_ended(&mut self) {
        if !self.machine.must_end() {
            self.settle();
        }
    }

    /// Starts a process, however often that is interrupted.
    pub(crate) fn restart(&mut self) {
        let may_lose = !self.faulty && !self.tail_damaged && self.planned_end.is_none();
        if may_lose && self.rng.u32(..12) == 0 {
            self.lose_derived();
        }
        if self.rng.u32(..4) == 0 {
            self.machine.settings.levels = levels(&mut self.rng);
        }
        if self.rng.u32(..5) == 0 {
            self.machine.settings.flush_policy = flush_policy(&mut self.rng);
        }
        if self.rng.u32(..3) == 0 {
            self.advance();
        }
        if self.rng.u32(..5) == 0 {
            self.plan_stop();
        }
        let started = self.machine.start();
        self.say(&format!("start {:?}: {}", self.machine.settings, outcome(&started)));
        if let Err(error) = started {
            if !self.may_fail() && !self.unreadable.is_empty() {
                let end = self.planned_end.take().unwrap_or(End::Kill);
                self.cease(end);
                self.give_up_unreadable();
                return self.restart();
            }
            assert!(self.may_fail(), "the store does not open: {error:?}");
            if self.full {
                self.machine.directory.set_capacity(1 << 40);
                self.full = false;
            }
            let end = self.planned_end.take().unwrap_or(End::Kill);
            self.after(end);
        } else {
            (self.power_lost, self.checkpoint_lost, self.derived_lost) = (false, false, false);
            self.reader.queues_wait = self.full;
            self.offsets_saved_at = self.machine.elapsed;
            // The process may end before anything else is looked at.
            self.note_reports();
            self.check_offsets();
        }
    }

    /// Takes note of whether the process reported damage.
    fn note_reports(&mut self) {
        self.damage_reported |= self.machine.process().figure("damagedRanges") > 0.0;
    }

    /// After each action: answers, the end of the process, what must always hold.
    pub(crate) fn settle(&mut self) {
        self.collect_answers();
        if self.machine.must_end() {
            let reasons = self.machine.fatal_reasons();
            assert!(
                reasons.is_empty() || self.planned_end.is_some() || self.faulty || self.full,
                "the process ended without a fault: {reasons:?}"
            );
            let end = self.planned_end.unwrap_or(End::Kill);
            self.end(end);
            // What the next process dispatched as it began is read before anything can be deleted.
            return self.settle();
        }
        self.machine.note_durable();
        self.note_reports();
        let store = &self.machine.process().store;
        let (first, written) = store.log_range();
        assert!(first <= store.durable() && store.durable() <= written, "{first} {} {written}", store.durable());
        if !self.faulty {
            self.reader.read(&self.machine, &self.ledger);
        }
    }

    pub(crate) fn collect_answers(&mut self) {
        for (id, durable) in self.answers.lock().unwrap().drain(..) {
            if durable {
                self.ledger.acknowledge(id, true);
            }
        }
        if self.machine.is_running() {
            for answer in self.machine.process().answers() {
                self.answered(answer);
            }
        }
    }

    /// The end of the world: no more faults, all time passes, everything arrives.
    fn drain(&mut self) {
        self.say("drain");
        if self.planned_end.is_some() {
            self.end(End::Kill);
            while self.planned_end.is_some() {
                self.end(End::Kill);
            }
        }
        for _ in 0..4_000 {
            self.sync();
            while self.machine.process().store.dispatch_once(u64::MAX) {}
            let process = self.machine.process().clone();
            let tick = process.scheduler.tick(process.store.now());
            if tick.restored + tick.parked > 0 {
                self.settle();
                continue;
            }
            match tick.next_deadline {
                None => break,
                // What cannot be read is tried again every few milliseconds, until it is set aside.
                Some(next) => {
                    self.machine.advance(
                        next.since(process.store.now()).max(Duration::from_millis(50)) + Duration::from_millis(1),
                    );
                }
            }
        }
        self.settle();
        self.machine.advance(Duration::from_secs(30 * 86_400));
        // What cannot be read is tried for a while before it is parked.
        let mut rounds = 0;
        while rounds < 4 || rounds < 100 && self.machine.waits() {
            self.work();
            self.machine.work();
            self.machine.advance(PAUSE_MAX);
            rounds += 1;
        }
        self.settle();
        self.reader.read_again(&self.machine, &self.ledger);
        if let Err(silent) = oracle::all_reported(&self.ledger, &self.reader) {
            assert!(self.damage_reported, "{silent}");
        }
        let last = self.machine.process().store.now();
        assert!(last >= self.last_store_time);
    }
}

fn flush_policy(rng: &mut fastrand::Rng) -> FlushPolicy {
    if rng.bool() { FlushPolicy::Sync } else { FlushPolicy::Async }
}

fn levels(rng: &mut fastrand::Rng) -> LevelTable {
    rng.choice(TABLES).unwrap().parse().expect("a table of levels")
}

pub(crate) fn outcome<T, E: std::fmt::Debug>(result: &Result<T, E>) -> String {
    match result {
        Ok(_) => "done".into(),
        Err(error) => format!("{error:?}"),
    }
}
