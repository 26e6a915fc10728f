//! Bringing a store back after any kind of stop.
//!
//! Recovery starts from our checkpoint: below its position P everything is durable in log, queues, index and plugin states. Without a checkpoint
//! that matches log, queues and index, P is the beginning of the log. Every record from P on is verified and dispatched again; entries that
//! are already there are written again, to the same effect.
//!
//! # A bad record
//!
//! A segment is synced before the next takes its first record. So a bad record is a **torn tail** only in the newest segment that holds records
//! and only above the last position recorded as durable: there the log is cut, the rest made zero and synced before anything is appended.
//! Anywhere else it is **damage**: recovery reports the range and goes on at the next sound record; nothing is cut. A page of an older segment that
//! cannot be read is damage, too, until it can be read again: see [`HOLES_FILE`]. But if nothing of a segment that must be read can be, the store does
//! not open, since a disk may come back.
//!
//! A tail is torn in its middle only by a power loss. If our checkpoint was written since the machine booted, all that was written is still
//! there: records are written one after the other, so that only the last write can be cut short. A bad record with a sound one behind it is
//! damage then, also above the checkpoint.
//!
//! Behind our checkpoint a record is bad, too, if its queue offset is neither the next of its queue nor 0. Without one that is so in all segments
//! but the newest. In both cases it is sound all the same if the record behind it in its queue counts on from there: the queue began anew, and damage
//! swallowed its first record.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    ops::Range,
    path::Path,
    process,
    sync::{Arc, PoisonError},
};

use bytes::Bytes;

use super::{
    MessageStore, QueueEntry, StateFile, StoreError,
    checkpoint::{Checkpoint, Derived, FoundCheckpoint, LastRecord, OUR_CHECKPOINT},
    clock::LastTimes,
    commit_log::QueueOffsets,
    dispatch::first_error,
    message_store::{ABORT_FILE, last_record},
    obstacle::{clearing, is_denied},
    room::is_full,
    scan::{Found, Located, look, next_sound},
    segment::{Segment, Sight},
};
use crate::{
    env::{Allocation, Soundness},
    model::{PhysicalOffset, QueueId, QueueOffset, Timestamp, Topic},
    mutation::Mutation,
    record::{RecordView, layout::BLANK_BYTES_MIN},
};

/// Most records of one round of dispatch during recovery.
const ROUND_RECORDS_MAX: usize = 4096;
/// Bytes of a segment that are made sure of at once; half of it is more than the largest record.
const WINDOW_BYTES: usize = 64 << 20;
/// Bytes of which one is read to see whether they can be: a page, or a part of one.
const PAGE_BYTES: usize = 4096;
/// Segments behind the end of the log that queue entries are believed to have led to; farther ones are junk.
const LOST_SEGMENTS_MAX: u64 = 64;
/// Which parts of the log were missing at an earlier start, segments or what was cut from one: pairs of positions, the missing part lies between.
pub const GAPS_FILE: &str = "missingSegments.json";
/// Which parts of the log could not be read when recovery came by, as [`GAPS_FILE`]. Once they can be read, the whole log is scanned: nobody knows what
/// lies in them.
pub const HOLES_FILE: &str = "unreadableParts.json";
/// What is reported where a queue goes on behind offsets that no record has.
const LACKS_RECORDS: &str = "lacks records of a queue before this position";
/// How often a page is read before it counts as one that cannot be.
const PAGE_TRIES: u32 = 3;
/// Most pages that are tried in vain before any could be read.
const PAGES_IN_VAIN_MAX: usize = 1024;
/// Most bytes that are written again at once.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// What is known of how far the log was durable before the stop.
#[derive(Clone, Copy)]
enum DurableFloor {
    /// Everything below a position; all that was written if the machine was not booted since.
    Position { durable: PhysicalOffset, same_boot: bool },
    /// Every record stored at or before a time.
    Time(Timestamp),
    /// All of it: the last stop was a clean one.
    Everything,
    /// Nothing.
    Unknown,
}

/// Where recovery begins to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recovery {
    /// At our checkpoint, if it can be believed.
    FromCheckpoint,
    /// At the beginning of the log: queues and index are built anew. What our checkpoint says of the log counts all the same.
    Rebuild,
}

/// Recovers log, queues, index and plugins, and makes the store ready to append.
pub(super) fn recover(store: &MessageStore, from: Recovery) -> Result<(), StoreError> {
    let abort = Path::new(ABORT_FILE);
    let directory = &store.env.directory;
    let unclean = directory.read(abort).unwrap_or(Some(Vec::new())).is_some();
    let mark = || directory.write(abort, process::id().to_string().as_bytes());
    let marked = clearing(&**directory, &[abort], mark).or_else(|error| {
        // That it exists is all it says.
        if is_denied(&error) {
            return directory.remove(abort).and_then(|()| mark());
        }
        // That it exists is what counts, and a file without bytes needs no space.
        if !is_full(&error) {
            return Err(error);
        }
        tracing::error!(%error, path = directory.display(Path::new("")), "the disk is full; the broker serves what it has, and takes messages when there is room");
        let exists = directory.read(abort).is_ok_and(|bytes| bytes.is_some());
        if exists { Ok(()) } else { directory.create(abort, 0, Allocation::Sparse).map(drop) }
    });
    let marked = marked.and_then(|()| directory.sync_folder(Path::new("")));
    marked.map_err(|source| store.io_error("write", abort, source))?;

    let segments = store.log.segments();
    let first = segments.first().map_or(PhysicalOffset::ZERO, |segment| segment.base);
    let found = store.checkpoint_files.load();
    store.log.clock().begin(found.as_ref().map(|found| &found.checkpoint.clock));
    if found.is_none() && !segments.is_empty() && store.checkpoint_files.are_absent() {
        tracing::warn!(
            path = directory.display(Path::new(OUR_CHECKPOINT)),
            "there is a commit log, but no checkpoint of latermq: it was lost, or Apache RocketMQ wrote the store. The whole log is scanned; steps of the wall clock before this start are not known, what waits may be early by as much"
        );
    }
    let rocketmq = match &found {
        Some(found) => Some(found.checkpoint.rocketmq),
        None => store.checkpoint_files.load_rocketmq(),
    };
    let matches = found.as_ref().is_some_and(|found| matches_log(store, &segments, &found.checkpoint));
    let loaded = found.and_then(FoundCheckpoint::believed);
    let known = loaded.as_ref().map(|checkpoint| (checkpoint.log_first, checkpoint.position));
    if let Some(unmatched) = loaded.as_ref().filter(|_| !matches) {
        // Of a log that lost its end, whole queues still tell what was there.
        store.dispatcher.queues.rewind(unmatched.position)?;
        find_whole_queues(store, unmatched);
    }
    let mut checkpoint = loaded.filter(|_| matches);
    let matching = checkpoint.clone();
    // What it says of the log stays true, whatever became of queues, index and plugins.
    let boot_id = store.env.clock.boot_id();
    let durable_to = checkpoint.as_ref().map(|checkpoint| (checkpoint.position, checkpoint.clock.boot_id == boot_id));
    if from == Recovery::Rebuild {
        checkpoint = None;
    }
    // Also where it will not count: whole queues tell what was lost.
    let matches_derived = match &checkpoint {
        Some(believed) => matches_derived(store, believed)?,
        None => false,
    };
    let gaps = Gaps::find(store, &segments);
    if gaps.are_news {
        for &(from, to) in &gaps.missing {
            store.report_damage(PhysicalOffset(from), PhysicalOffset(to), "is missing");
        }
    }
    if checkpoint.is_some() && gaps.are_news {
        tracing::error!(
            "segments are missing from the middle of the log, or were cut; scanning all of it, and restoring again what was restored there"
        );
        checkpoint = None;
    }
    let holes = Holes::load(store);
    if checkpoint.is_some() && holes.can_be_read(store) {
        tracing::warn!(
            "a part of the log that could not be read at an earlier start can be read again; scanning all of it"
        );
        checkpoint = None;
    }
    if !matches_derived {
        checkpoint = None;
    }
    if !recover_plugins(store, checkpoint.as_ref())? {
        checkpoint = None;
    }
    let floor = match durable_to {
        Some((durable, same_boot)) => DurableFloor::Position { durable, same_boot },
        None if !unclean => DurableFloor::Everything,
        None => {
            let said = store.checkpoint_files.load_rocketmq();
            let said = said.map(|rocketmq| rocketmq.log_time.min(rocketmq.queue_time));
            // Of zeros, as a damaged file has and one that was never written to, nothing follows: not that all of the log may be torn.
            said.filter(|said| *said > Timestamp::EPOCH).map_or(DurableFloor::Unknown, DurableFloor::Time)
        }
    };
    let (from, last) =
        checkpoint.as_ref().map_or((first, None), |checkpoint| (checkpoint.position, checkpoint.last_record));
    if checkpoint.is_none() {
        if let Some(matching) = matching {
            disown(store, matching)?;
        }
        store.dispatcher.queues.rewind(first)?;
        if let Some(index) = &store.dispatcher.index {
            index.clear()?;
        }
    }

    if let Some((log_first, _)) = known.filter(|(log_first, _)| *log_first < first && !segments.is_empty()) {
        store.report_damage(log_first, first, "is missing");
    }
    for segment in segments.iter().filter(|segment| segment.end() <= from) {
        report_damaged_start(store, segment);
    }
    let scan = scan(store, &segments, from, last, floor, checkpoint.is_some())?;
    let end = scan.end;
    if !scan.holes.is_empty() {
        store.dispatcher.queues.keep_leading_into(&scan.holes)?;
    }
    if let Some((_, position)) = known.filter(|(_, position)| *position > end) {
        store.report_damage(end, position, "is missing");
    }
    let changed = unclean || checkpoint.is_none() || end != from;
    if changed {
        report_lost_end(store, known.map_or(end, |(_, position)| position.max(end)));
    }
    if changed && let Some(fault) = first_error(store.dispatcher.queues.cut()) {
        // No checkpoint passes it, and it is tried again with the next round.
        store.dispatcher.report(Some(&fault));
    }
    store.log.check_writable(end)?;
    if changed || segments.last().is_some_and(|segment| segment.base >= end) {
        store.log.cut(end)?;
    }
    // Before a checkpoint counts what lies in them as dispatched.
    holes.save(&scan.holes, from == first);
    first_error(store.dispatcher.queues.set_min_position(first)).map_or(Ok(()), Err)?;
    finish_deletions(store)?;
    let is_clock_new = store.log.clock().resume(&scan.times, rocketmq.map(|said| said.log_time), end);
    store.log.resume(end, queue_offsets(store));
    for segment in segments.iter().filter(|segment| segment.base < end && segment.end() > from) {
        if segment.end() >= end && !Mutation::KeepGivenUpPages.is_on() {
            let written = write_again(segment, from.max(segment.base), end);
            written.map_err(|source| store.io_error("write", &segment.path, source))?;
        }
        segment.file.sync().map_err(|source| store.io_error("sync", &segment.path, source))?;
    }
    store.durability.recovered_to(end);
    for plugin in &store.dispatcher.plugins {
        plugin.recovered();
    }
    tracing::info!(
        from = from.0,
        physical_offset = end.0,
        records = scan.records,
        clean = !unclean,
        "commit log recovered"
    );
    *store.checkpointing.lock().unwrap_or_else(PoisonError::into_inner) = checkpoint;
    if changed || is_clock_new {
        // A new clock twice, so that the version before holds it, too.
        let again = || if is_clock_new { store.save_clock_again() } else { Ok(()) };
        if let Err(error) = store.checkpoint_once().and_then(|()| again()) {
            if store.health.failure().is_some() {
                return Err(error);
            }
            // The one before is as true, only further back; a later one is tried soon.
            tracing::error!(error = &error as &dyn std::error::Error, "cannot write a checkpoint; trying again");
            return Ok(());
        }
    }
    gaps.were_seen();
    store.log.make_whole();
    Ok(())
}

/// Reports what followed the end of the log and is gone, as queue entries tell that are about to be cut. What fails here changes nothing else.
fn report_lost_end(store: &MessageStore, end: PhysicalOffset) {
    let reach = store.options.segment_bytes.saturating_mul(LOST_SEGMENTS_MAX);
    match store.dispatcher.queues.pointed_to(end, reach) {
        Ok(None) => {}
        Ok(Some(to)) => store.report_damage(end, to, "that queue entries lead to is gone"),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot read queues beyond the end of the log");
        }
    }
}

/// What is missing between two segments, or was cut from one.
struct Gaps {
    file: StateFile,
    text: String,
    /// Those between segments.
    missing: Vec<(u64, u64)>,
    /// No start has seen them.
    are_news: bool,
}

impl Gaps {
    fn find(store: &MessageStore, segments: &[Arc<Segment>]) -> Self {
        let missing = segments.windows(2).map(|pair| (pair[0].end().0, pair[1].base.0));
        let missing: Vec<(u64, u64)> = missing.filter(|(from, to)| from != to).collect();
        let cut = store.log.found().cut.iter().map(|cut| (cut.start.0, cut.end.0));
        let gaps: Vec<(u64, u64)> = missing.iter().copied().chain(cut).collect();
        let file = store.state_file(GAPS_FILE);
        let mut are_news = false;
        if !gaps.is_empty() {
            let seen = pairs(&file);
            are_news = gaps.iter().any(|gap| !seen.contains(gap));
        }
        Self { file, text: serde_json::to_string(&gaps).unwrap_or_default(), missing, are_news }
    }

    /// The next start may believe its checkpoint although they are there.
    fn were_seen(&self) {
        if self.are_news
            && let Err(error) = self.file.save(&self.text)
        {
            tracing::warn!(%error, "cannot write down which segments are missing; the next start scans the whole log, too");
        }
    }
}

/// Pairs of positions from a file; none if it cannot be read.
fn pairs(file: &StateFile) -> Vec<(u64, u64)> {
    let parse = |text: &str| serde_json::from_str::<Vec<(u64, u64)>>(text).map_err(|error| error.to_string());
    file.load(parse).value().unwrap_or_default()
}

/// Parts of the log that could not be read when recovery came by.
struct Holes {
    file: StateFile,
    known: Vec<(u64, u64)>,
}

impl Holes {
    fn load(store: &MessageStore) -> Self {
        let file = store.state_file(HOLES_FILE);
        let exists = store
            .env
            .directory
            .list(Path::new("config"))
            .is_ok_and(|listed| listed.iter().any(|entry| entry.name.starts_with(HOLES_FILE)));
        let known = if exists { pairs(&file) } else { Vec::new() };
        Self { file, known }
    }

    /// Whether one of them can be read.
    fn can_be_read(&self, store: &MessageStore) -> bool {
        self.known.iter().any(|&(from, to)| {
            let from = PhysicalOffset(from);
            let segment = store.log.segment_at(from);
            let segment = segment.filter(|segment| to > from.0 && to <= segment.end().0);
            segment.is_some_and(|segment| {
                let bytes = usize::try_from(to - from.0).unwrap_or(usize::MAX);
                segment.copy(from, bytes).is_ok()
            })
        })
    }

    /// Writes down what could not be read now; if the scan was one of the whole log, nothing else is left.
    fn save(&self, found: &[Range<PhysicalOffset>], was_whole: bool) {
        let mut left = if was_whole { Vec::new() } else { self.known.clone() };
        left.extend(found.iter().map(|hole| (hole.start.0, hole.end.0)));
        if left != self.known
            && let Err(error) = self.file.save(&serde_json::to_string(&left).unwrap_or_default())
        {
            tracing::error!(path = self.file.display(), %error, "cannot write down which parts of the log could not be read; once they can be, remove latermq.checkpoint and its .bak to have all of it scanned");
        }
    }
}

/// Removes queues of deleted topics that a stop left.
fn finish_deletions(store: &MessageStore) -> Result<(), StoreError> {
    for (topic, deleted) in store.dispatcher.deletions.all() {
        let queues = store.dispatcher.queues.all().into_iter().filter(|queue| **queue.topic() == *topic);
        for queue in queues.filter(|queue| queue.end_position().is_none_or(|end| end <= deleted)) {
            tracing::info!(topic, queue_id = queue.queue_id().0, "removing a queue of a deleted topic");
            store.dispatcher.queues.delete_queue(&topic, queue.queue_id())?;
        }
    }
    Ok(())
}

/// Takes back what a checkpoint says of queues, index and plugins, before they are made anew. Were the process killed on the way, the next one
/// would find them as the checkpoint counts them, and take for durable what was never synced. What it says of the log stays.
fn disown(store: &MessageStore, checkpoint: Checkpoint) -> Result<(), StoreError> {
    let disowned = Checkpoint { derived: Derived::UNKNOWN, plugins: BTreeMap::new(), ..checkpoint };
    // Twice, so that the version before says no more.
    let saved = store.checkpoint_files.save(&disowned).and_then(|()| store.checkpoint_files.save(&disowned));
    match saved {
        Err(StoreError::Io { source, .. }) if is_full(&source) => {
            tracing::error!(error = %source, "cannot take back the checkpoint on a full disk; it must not be killed before the rebuild is done");
            Ok(())
        }
        saved => saved,
    }
}

/// Gives the plugins their states; says whether recovery may start from the checkpoint.
fn recover_plugins(store: &MessageStore, checkpoint: Option<&Checkpoint>) -> Result<bool, StoreError> {
    let plugins = &store.dispatcher.plugins;
    if let Some(checkpoint) = checkpoint
        && plugins.iter().all(|plugin| checkpoint.plugins.contains_key(plugin.name()))
    {
        let mut believed = true;
        for plugin in plugins {
            believed &= plugin.recover(checkpoint.plugins.get(plugin.name()).map(Vec::as_slice))?;
        }
        if believed {
            return Ok(true);
        }
        tracing::warn!("the state of a plugin in the checkpoint cannot be read; scanning the whole log");
    }
    for plugin in plugins {
        plugin.recover(None)?;
    }
    Ok(false)
}

/// Whether the record that a checkpoint names stands where it says.
fn matches_log(store: &MessageStore, segments: &[Arc<Segment>], checkpoint: &Checkpoint) -> bool {
    let first = segments.first().map_or(PhysicalOffset::ZERO, |segment| segment.base);
    let end = segments.last().map_or(PhysicalOffset::ZERO, |segment| segment.end());
    let found = match &checkpoint.last_record {
        None => checkpoint.position == first || checkpoint.position == PhysicalOffset::ZERO,
        Some(last) => {
            let position = PhysicalOffset(last.position);
            checkpoint.position <= end
                && position >= first
                && matches!(store.log.record_at(position, end), Ok(Some(record))
                    if last_record(&Located { position, record: record.view() }) == *last)
        }
    };
    if !found {
        tracing::warn!(
            physical_offset = checkpoint.position.0,
            "the checkpoint does not match the commit log; scanning the whole log"
        );
    }
    (found && checkpoint.position >= first) || Mutation::CheckpointOfAnotherLog.is_on()
}

/// Lets queues and index end at the checkpoint; says whether they then hold what it counted. If not, a part was removed since.
fn matches_derived(store: &MessageStore, checkpoint: &Checkpoint) -> Result<bool, StoreError> {
    store.dispatcher.queues.rewind(checkpoint.position)?;
    if let Some(index) = &store.dispatcher.index {
        match index.truncate_from(checkpoint.position) {
            // To remove it needs no space; what cannot be written anew is written when there is room.
            Err(StoreError::Io { source, path, .. }) if is_full(&source) => {
                tracing::error!(error = %source, path, "cannot cut the index; scanning the whole log to build it again");
                return Ok(false);
            }
            cut => cut?,
        }
    }
    // What belongs to a queue entry, if that can be told.
    let judge = |topic: &str, queue_id: QueueId, at: u64, entry: &QueueEntry| {
        let first = store.log.first();
        if entry.position < first {
            return Some(true);
        }
        let record = store.log.record_at(entry.position, entry.end().max(first)).ok()??;
        let view = record.view();
        let place = (view.topic(), view.queue_id(), view.queue_offset().0, view.total_bytes());
        Some(place == (topic, queue_id, at, entry.bytes))
    };
    if store.dispatcher.queues.have_damaged_files(false, judge)? {
        tracing::warn!("queue files are damaged; scanning the whole log to build them again");
        return Ok(false);
    }
    if store.dispatcher.index.as_ref().is_some_and(|index| !index.is_whole()) {
        tracing::warn!("index files are damaged; scanning the whole log to build them again");
        return Ok(false);
    }
    let found = find_whole_queues(store, checkpoint);
    if found != checkpoint.derived {
        // If a file shows which, its name is worth a line.
        store.dispatcher.queues.have_damaged_files(true, judge)?;
        tracing::warn!(?found, counted = ?checkpoint.derived, "queues or index are not those of the checkpoint; scanning the whole log");
    }
    Ok(found == checkpoint.derived || Mutation::CheckpointOfAnotherLog.is_on())
}

/// Compares queues that end at a checkpoint with what it counted, and takes note if all their entries are there. Gives what there is.
fn find_whole_queues(store: &MessageStore, checkpoint: &Checkpoint) -> Derived {
    let found = store.dispatcher.derived();
    let of_queues = |derived: &Derived| (derived.queues, derived.entries, derived.first_entries);
    if of_queues(&found) == of_queues(&checkpoint.derived) {
        store.queues_whole_to.store(checkpoint.position.0, std::sync::atomic::Ordering::Relaxed);
    }
    found
}

/// Looks at the start of a segment that recovery does not read otherwise, and reports what is damaged there, or that it cannot be read.
fn report_damaged_start(store: &MessageStore, segment: &Segment) {
    let look = || {
        if store.log.record_at(segment.base, segment.end())?.is_some() {
            return Ok(None);
        }
        let bytes = usize::try_from(segment.file.bytes()).unwrap_or(usize::MAX);
        segment.read(segment.base, bytes, |bytes| Some(next_sound(bytes, segment.base).unwrap_or(bytes.len())))
    };
    match look() {
        Ok(None) => {}
        Ok(Some(skipped)) => {
            store.report_damage(segment.base, segment.base.plus(skipped as u64), "is damaged");
        }
        // It may be read later; whoever needs it tries again.
        Err::<_, io::Error>(error) => {
            let path = store.env.directory.display(&segment.path);
            tracing::error!(segment = %segment.base, path, %error, "cannot read a segment of the commit log");
        }
    }
}

/// Writes what was read once more. Where a sync failed before the stop, pages may be read that no later sync makes durable, unless they are
/// written again. That can only be so in the newest segment: the others were synced before the next took its first record.
fn write_again(segment: &Segment, from: PhysicalOffset, to: PhysicalOffset) -> io::Result<()> {
    let mut at = from;
    let mut bytes = vec![0; WRITE_BYTES_MAX];
    while at < to {
        let count = usize::try_from(to.since(at)).map_or(WRITE_BYTES_MAX, |left| left.min(WRITE_BYTES_MAX));
        segment.file.read_at(at.since(segment.base), &mut bytes[..count])?;
        segment.file.write_at(at.since(segment.base), &bytes[..count])?;
        at = at.plus(count as u64);
    }
    Ok(())
}

/// A part of a segment, looked at bit by bit.
struct Window<'a> {
    segment: &'a Segment,
    start: PhysicalOffset,
    /// As it is mapped; a copy once that cannot be read.
    sight: Sight,
    /// How far every page was touched.
    seen: usize,
    /// Whether what cannot be read is damage.
    may_have_holes: bool,
    /// What cannot be read, in bytes of the window, which has zeros there.
    holes: Vec<Range<usize>>,
}

impl<'a> Window<'a> {
    fn new(segment: &'a Segment, start: PhysicalOffset, bytes: usize, may_have_holes: bool) -> io::Result<Self> {
        let sight = Sight { bytes: Bytes::new(), soundness: Soundness::default() };
        let mut window = Self { segment, start, sight, seen: 0, may_have_holes, holes: Vec::new() };
        match segment.sight(start, bytes) {
            Ok(sight) => window.sight = sight,
            Err(error) => window.read_around_holes(bytes, error)?,
        }
        Ok(window)
    }

    fn has(&self, to: usize) -> bool {
        self.seen >= to.min(self.sight.bytes.len())
    }

    /// Sees to it that every page before `to` can be read: through the map as long as that works. A plain read tells what is wrong, and reads
    /// holes for which there is no space.
    fn see(&mut self, to: usize) -> io::Result<()> {
        let to = to.min(self.sight.bytes.len());
        if to > self.seen {
            let sum = self.sight.bytes[self.seen..to].iter().step_by(PAGE_BYTES).fold(0_u8, |sum, byte| sum ^ byte);
            std::hint::black_box(sum);
            self.seen = to;
            if self.sight.check().is_err() {
                let bytes = self.sight.bytes.len();
                match self.segment.copy(self.start, bytes) {
                    Ok(copy) => self.show(copy),
                    Err(error) => self.read_around_holes(bytes, error)?,
                }
            }
        }
        Ok(())
    }

    fn show(&mut self, copy: Bytes) {
        self.seen = copy.len();
        self.sight = Sight { bytes: copy, soundness: Soundness::default() };
    }

    /// Reads page by page what cannot be read as a whole. If nothing can be read it is no damage: it may be a disk that comes back.
    fn read_around_holes(&mut self, bytes: usize, error: io::Error) -> io::Result<()> {
        if !self.may_have_holes {
            return Err(error);
        }
        let mut copy = vec![0; bytes];
        let mut at = 0;
        let mut has_read = false;
        while at < bytes {
            let within = self.start.plus(at as u64).since(self.segment.base);
            let to = bytes.min(at + PAGE_BYTES - usize::try_from(within).unwrap_or(0) % PAGE_BYTES);
            let mut tries = (0..PAGE_TRIES).map(|_| self.segment.file.read_at(within, &mut copy[at..to]));
            if tries.any(|read| read.is_ok()) {
                has_read = true;
            } else {
                copy[at..to].fill(0);
                self.holes.push(at..to);
            }
            if !has_read && self.holes.len() >= PAGES_IN_VAIN_MAX {
                return Err(error);
            }
            at = to;
        }
        if !has_read && bytes > 0 {
            return Err(error);
        }
        self.show(copy.into());
        Ok(())
    }

    /// Whether a part of a range cannot be read.
    fn has_hole(&self, at: usize, bytes: usize) -> bool {
        self.holes.iter().any(|hole| hole.start < at + bytes && hole.end > at)
    }
}

struct Scanned {
    end: PhysicalOffset,
    /// The store times of the last records.
    times: LastTimes,
    records: u64,
    /// Records that could not be read lie in these parts.
    holes: Vec<Range<PhysicalOffset>>,
}

/// Verifies and dispatches everything from `from` on; `knows_queues` says that the queues hold all before it.
fn scan(
    store: &MessageStore,
    segments: &[Arc<Segment>],
    from: PhysicalOffset,
    mut last: Option<LastRecord>,
    floor: DurableFloor,
    knows_queues: bool,
) -> Result<Scanned, StoreError> {
    let newest = newest_with_records(store, segments)?;
    let mut end = from;
    let mut records = 0;
    let mut holes = Vec::new();
    let mut times = LastTimes::default();
    last.iter().for_each(|last| times.saw(Timestamp(last.stored_at)));
    let mut next_offsets = NextOffsets {
        next: HashMap::new(),
        has_gaps: !matches!(floor, DurableFloor::Position { .. }),
        knows_queues,
        seen: 0,
    };
    'segments: for segment in segments.iter().filter(|segment| segment.end() > from) {
        let is_newest = newest.is_none_or(|newest| segment.base >= newest);
        let start = from.max(segment.base);
        // A segment is missing before this one: offsets go on behind a gap.
        next_offsets.has_gaps |= start > end;
        let left = usize::try_from(segment.end().since(start)).unwrap_or(usize::MAX);
        let failed = |source| store.io_error("read", &segment.path, source);
        // What was never written need not be read.
        let written = segment.file.data_end(start.since(segment.base)).saturating_sub(start.since(segment.base));
        let written = left.min(usize::try_from(written).unwrap_or(usize::MAX));
        let mut window = Window::new(segment, start, written, !is_newest).map_err(failed)?;
        let (mut at, mut torn) = (0, false);
        while at < left && !torn {
            window.see(at + WINDOW_BYTES).map_err(failed)?;
            let bytes = window.sight.bytes.clone();
            let mut round = Vec::new();
            let mut wants_all = false;
            while at < left && !torn && round.len() < ROUND_RECORDS_MAX && window.has(at + WINDOW_BYTES / 2) {
                let position = start.plus(at as u64);
                let mut doubted = None;
                let is_torn_tail = is_newest
                    && matches!(floor, DurableFloor::Position { durable, same_boot: false } if position >= durable);
                let may_be_torn = is_newest
                    && match floor {
                        DurableFloor::Position { durable, same_boot } => {
                            position >= durable && (!same_boot || Mutation::DamageTakenForTornTail.is_on())
                        }
                        // Of a single record the time may be damaged.
                        DurableFloor::Time(floor) => times.confirmed().is_some_and(|time| time > floor),
                        DurableFloor::Everything | DurableFloor::Unknown => false,
                    };
                let found = match look(&bytes[at..], position, segment.end().since(position), true) {
                    // Its header has no checksum.
                    Found::Record(record) if window.has_hole(at, record.total_bytes() as usize) => Found::Bad,
                    Found::Record(record) if !may_be_torn && next_offsets.begins_anew(store, record) => {
                        if !window.has(left) {
                            // What is behind it matters.
                            wants_all = true;
                            break;
                        }
                        // If its queue goes on behind it as it did before, its offset is damaged: believed, it would cost all before it.
                        let expected = next_offsets.expected(store, record);
                        let next = next_of_queue(&bytes[at..], segment, record);
                        if next.is_some_and(|next| next != 1 && next >= expected) {
                            Found::Bad
                        } else {
                            next_offsets.take(store, record, is_torn_tail);
                            Found::Record(record)
                        }
                    }
                    // What we wrote behind our checkpoint counts on without a gap, or begins anew. Without one, nothing is cut for this.
                    Found::Record(record)
                        if (matches!(floor, DurableFloor::Position { .. }) || !is_newest)
                            && !next_offsets.take(store, record, is_torn_tail) =>
                    {
                        doubted = Some(record);
                        Found::Bad
                    }
                    found => found,
                };
                match found {
                    Found::Record(record) => {
                        times.saw(record.stored_at());
                        round.push(Located { position, record });
                        at += record.total_bytes() as usize;
                    }
                    Found::SegmentEnd => at = left,
                    Found::Bad => {
                        if may_be_torn {
                            torn = true;
                        } else if !window.has(left) {
                            // What is behind it matters.
                            wants_all = true;
                            break;
                        } else if let Some(record) = doubted.filter(|record| {
                            goes_on(&bytes[at..], segments, segment, *record, next_offsets.expected(store, *record))
                        }) {
                            next_offsets.begin_anew(record);
                            times.saw(record.stored_at());
                            round.push(Located { position, record });
                            at += record.total_bytes() as usize;
                        } else {
                            let sound_behind = next_sound(&bytes[at..], position);
                            match sound_behind.or((!is_newest).then_some(left - at)) {
                                None => torn = true,
                                Some(skipped) => {
                                    window.sight.check().map_err(failed)?;
                                    next_offsets.has_gaps = true;
                                    let part = position..position.plus(skipped as u64);
                                    if window.has_hole(at, skipped) {
                                        store.report_damage(part.start, part.end, "cannot be read");
                                        holes.push(part);
                                    } else {
                                        store.report_damage(part.start, part.end, "is damaged");
                                    }
                                    at += skipped;
                                }
                            }
                        }
                    }
                }
            }
            window.sight.check().map_err(failed)?;
            let position = start.plus(at as u64);
            if torn && bytes[at..].iter().take(BLANK_BYTES_MIN).any(|byte| *byte != 0) {
                store.cut_tails.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                tracing::warn!(
                    physical_offset = position.0,
                    "the last write to the log was cut short; the log ends before it"
                );
            }
            store.log.recovered_to(position);
            store.durability.recovered_to(position);
            store.dispatcher.round(&round, true);
            records += round.len() as u64;
            last = round.last().map(last_record).or(last);
            {
                let mut dispatching = store.dispatching.lock().unwrap_or_else(PoisonError::into_inner);
                dispatching.position = position;
                dispatching.last = last;
            }
            store.dispatched.store(position.0, std::sync::atomic::Ordering::Release);
            if wants_all {
                window.see(left).map_err(failed)?;
            }
        }
        let position = start.plus(at as u64);
        end = position;
        if torn {
            break 'segments;
        }
    }
    {
        let mut dispatching = store.dispatching.lock().unwrap_or_else(PoisonError::into_inner);
        dispatching.position = end;
        dispatching.last = last;
        store.dispatched.store(end.0, std::sync::atomic::Ordering::Release);
    }
    Ok(Scanned { end, times, records, holes })
}

/// The queue offsets that records must have. No checksum covers that field, and a wrong one would harm the entries of sound records.
struct NextOffsets {
    next: HashMap<(Topic, QueueId), Expected>,
    /// Offsets may be missing: records were lost on the way, or nothing is known of the log.
    has_gaps: bool,
    /// The queues hold all that was before the first record.
    knows_queues: bool,
    /// Records so far.
    seen: u64,
}

/// What the next record of a queue must have.
struct Expected {
    next: u64,
    /// The last record, if it left offsets out: it may itself be the one that is wrong.
    doubted: Option<Doubted>,
}

/// A record that left offsets out.
struct Doubted {
    /// What the next offset was before it.
    next_before: u64,
    /// Where it lies.
    lies: Range<PhysicalOffset>,
}

impl NextOffsets {
    /// Whether a record has the next offset of its queue, or the first of all. Where the queues do not hold what was before, the first record of
    /// each is believed.
    ///
    /// A record that leaves out no more offsets than there were records is right all the same: the one before it in its queue had damage in its
    /// topic, queue or flags, which have no checksum, and went elsewhere. Not so where a write may have been torn: then it is left of an earlier one.
    fn take(&mut self, store: &MessageStore, record: RecordView<'_>, may_be_torn: bool) -> bool {
        let (topic, position) = (record.topic(), record.physical_offset());
        let unnoticed = if may_be_torn { 0 } else { self.seen };
        self.seen += 1;
        // What a deleted topic held says nothing of the queues that came after it.
        if !record.sys_flag().is_queued() || store.dispatcher.deletions.covers(topic, position) {
            return true;
        }
        let (queue_id, found) = (record.queue_id(), record.queue_offset().0);
        let key = (Topic::from(topic), queue_id);
        let is_first = !self.next.contains_key(&key);
        // One that holds nothing is as good as none, unless it goes on here: its entries may all have expired.
        let is_unknown = || {
            let queue = store.dispatcher.queues.get(topic, queue_id);
            queue.is_none_or(|queue| {
                queue.end().is_none() && ![queue.next_offset(), queue.range().max].contains(&QueueOffset(found))
            })
        };
        // Where a write may have been torn the log would end here: rather a queue too many, if only that of a topic whose deletion was forgotten.
        if is_first && found != 0 && self.knows_queues && !self.has_gaps && !may_be_torn && is_unknown() {
            if found > unnoticed {
                return false;
            }
            store.report_damage(position, position, LACKS_RECORDS);
        }
        let lies = position..record.end();
        let expected = self.next.entry(key).or_insert_with(|| {
            let end = store.dispatcher.queues.get(topic, queue_id).and_then(|queue| queue.end());
            match end.map_or(0, |end| end.0) {
                // The queue may have lost its end.
                end if end == 0 || found > end && !self.knows_queues => {
                    Expected { next: found, doubted: Some(Doubted { next_before: end, lies: lies.clone() }) }
                }
                end => Expected { next: end, doubted: None },
            }
        });
        let is_gap = found > expected.next && (self.has_gaps || found - expected.next <= unnoticed);
        if is_gap && !self.has_gaps {
            store.report_damage(position, position, LACKS_RECORDS);
        }
        let contradicted =
            expected.doubted.take_if(|doubted| (doubted.next_before..expected.next).contains(&found) && found != 0);
        if let Some(doubted) = &contradicted {
            store.report_damage(doubted.lies.start, doubted.lies.end, "has a queue offset that is not its queue's");
        }
        let is_next = found == expected.next || found == 0 || is_gap || contradicted.is_some();
        if is_next {
            // What was in doubt is not any more once another record follows it.
            let doubted = if is_gap {
                Some(Doubted { next_before: expected.next, lies })
            } else {
                expected.doubted.take().filter(|_| is_first)
            };
            *expected = Expected { next: found + 1, doubted };
        }
        is_next
    }

    /// The offset that the next record of a record's queue should have.
    fn expected(&self, store: &MessageStore, record: RecordView<'_>) -> u64 {
        let key = (Topic::from(record.topic()), record.queue_id());
        let in_queue =
            || store.dispatcher.queues.get(&key.0, key.1).and_then(|queue| queue.end()).map_or(0, |end| end.0);
        self.next.get(&key).map_or_else(in_queue, |expected| expected.next)
    }

    /// Whether a record begins its queue anew although nobody knows that its topic was deleted.
    fn begins_anew(&self, store: &MessageStore, record: RecordView<'_>) -> bool {
        let was_deleted = || store.dispatcher.deletions.position(record.topic());
        record.queue_offset().0 == 0
            && record.sys_flag().is_queued()
            && self.expected(store, record) > 0
            && was_deleted().is_none()
    }

    /// A queue begins anew with a record that has not the next offset.
    fn begin_anew(&mut self, record: RecordView<'_>) {
        let key = (Topic::from(record.topic()), record.queue_id());
        self.next.insert(key, Expected { next: record.queue_offset().0 + 1, doubted: None });
    }
}

/// Whether the next record of the same queue counts on from this one, with which `bytes` begin: then it is no damaged offset, but the queue began
/// anew. Records between the two may be damaged: two in a row that ascend below what was `expected` are enough. It is looked for in the same segment,
/// and in the one behind.
fn goes_on(bytes: &[u8], segments: &[Arc<Segment>], segment: &Segment, record: RecordView<'_>, expected: u64) -> bool {
    let behind = record.queue_offset().0.saturating_add(1);
    let in_next_segment = || {
        let next = segments.iter().find(|next| next.base == segment.end())?;
        let sight = next.sight(next.base, usize::try_from(next.file.bytes()).ok()?).ok()?;
        let found = first_of_queue(&sight.bytes, next.base, next, record);
        found.filter(|_| sight.check().is_ok())
    };
    let next = next_of_queue(bytes, segment, record).or_else(in_next_segment);
    next.is_some_and(|next| next == behind || (behind..expected).contains(&next))
}

/// The queue offset of the next sound record of the same queue in the same segment; `bytes` begin with the record.
fn next_of_queue(bytes: &[u8], segment: &Segment, record: RecordView<'_>) -> Option<u64> {
    first_of_queue(&bytes[record.total_bytes() as usize..], record.end(), segment, record)
}

/// The queue offset of the first sound record in `bytes` that has the queue of `record`. They begin at `from`, in this segment.
fn first_of_queue(bytes: &[u8], from: PhysicalOffset, segment: &Segment, record: RecordView<'_>) -> Option<u64> {
    let mut at = 0;
    while at < bytes.len() {
        let position = from.plus(at as u64);
        match look(&bytes[at..], position, segment.end().since(position), true) {
            Found::Record(next) if next.queue_id() == record.queue_id() && next.topic() == record.topic() => {
                return Some(next.queue_offset().0);
            }
            Found::Record(other) => at += other.total_bytes() as usize,
            Found::SegmentEnd => return None,
            Found::Bad => at += next_sound(&bytes[at..], position)?,
        }
    }
    None
}

/// The newest segment whose first bytes are a sound record.
fn newest_with_records(store: &MessageStore, segments: &[Arc<Segment>]) -> Result<Option<PhysicalOffset>, StoreError> {
    for segment in segments.iter().rev() {
        let found = store.log.record_at(segment.base, segment.end());
        if found.map_err(|source| store.io_error("read", &segment.path, source))?.is_some() {
            return Ok(Some(segment.base));
        }
    }
    Ok(None)
}

/// The offsets that the next message of each queue gets.
fn queue_offsets(store: &MessageStore) -> QueueOffsets {
    let mut offsets = QueueOffsets::default();
    for queue in store.dispatcher.queues.all() {
        offsets
            .entry(queue.topic().clone())
            .or_default()
            .insert(queue.queue_id(), queue.range().max.max(queue.next_offset()).0);
    }
    offsets
}
