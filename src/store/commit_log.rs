//! The one append-only log that holds every record.
//!
//! It owns the segments, the append lock and what is decided under it: store time, positions and queue offsets. It does not know what is
//! derived from the log (queues, index), nor when it is synced.
//!
//! # Invariants
//!
//! - A record lies whole in one segment, and leaves at least 8 bytes of it free; a full segment ends with a blank.
//! - A segment is synced before the next one takes its first record: only the newest can have a torn tail.
//! - Bytes below [`CommitLog::written`] are finished and never change. Bytes above it are zero, or will be overwritten, or are made zero
//!   before anything shorter could be written over them.
//! - A refused append takes no queue offset.
//!
//! Locks, in this order: the writer, the spare, the list of segments.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use super::{
    AppendError, Appended, Mark, Placement, Plugin, StoreError, StoreOptions,
    clock::StoreClock,
    head::Head,
    health::Health,
    obstacle::clear,
    room::{RECORD_EXTRA_BYTES, is_full},
    segment::Segment,
    threads::panic_text,
    unlike::{Closed, Short},
};
use crate::{
    env::{Allocation, Directory, EntryKind, Env, File},
    model::{MessageDraft, PhysicalOffset, QueueId, QueueOffset, Timestamp, Topic},
    mutation::Mutation,
    record::{Frame, Place, Record, RecordView, blank, encode, kind, layout::BLANK_BYTES_MIN, patch, readdress},
};

/// Most space that a new segment leaves to others.
const MARGIN_BYTES_MAX: u64 = 64 << 20;

/// Queue offsets that the next messages get.
pub(super) type QueueOffsets = HashMap<Topic, TopicOffsets, foldhash::fast::RandomState>;
/// Those of one topic.
pub(super) type TopicOffsets = HashMap<QueueId, u64, foldhash::fast::RandomState>;

/// The commit log; see the module.
pub(super) struct CommitLog {
    env: Env,
    folder: PathBuf,
    segment_bytes: u64,
    health: Arc<Health>,
    clock: StoreClock,
    writer: Mutex<Writer>,
    segments: RwLock<Vec<Arc<Segment>>>,
    spare: Mutex<Option<Arc<Segment>>>,
    /// Whether there is one, for who does not want to wait until one is made.
    has_spare: AtomicBool,
    written: AtomicU64,
    /// What was found when it was opened.
    found: FoundSegments,
}

/// Segments that are not as they should be.
#[derive(Default)]
pub(super) struct FoundSegments {
    /// Old ones that were cut, and where: zeros stand for what is gone, until [`CommitLog::make_whole`].
    pub(super) cut: Vec<Range<PhysicalOffset>>,
    /// First positions of those that cannot be written.
    unwritable: BTreeSet<PhysicalOffset>,
}

/// What the append lock guards.
#[derive(Default)]
struct Writer {
    position: PhysicalOffset,
    current: Option<Arc<Segment>>,
    queue_offsets: QueueOffsets,
    /// What failed appends left behind, to be made zero before the next one.
    unclean: Vec<(Arc<Segment>, Range<PhysicalOffset>)>,
    /// When the last append was.
    stored_at: Option<Timestamp>,
}

/// Drafts encoded before the lock is taken.
#[derive(Default)]
pub(super) struct Encoded {
    bytes: Vec<u8>,
    records: Vec<EncodedRecord>,
    /// How much room the records take in the log, also when they are written a second time.
    pub(super) room_bytes: u64,
}

#[derive(Clone)]
struct EncodedRecord {
    range: Range<usize>,
    topic: Topic,
    queue_id: QueueId,
    queued: bool,
    prepared_offset: i64,
    mark: Option<(usize, Mark)>,
}

impl Encoded {
    /// None yet, with room for these drafts.
    pub(super) fn with_room_for(drafts: &[MessageDraft]) -> Self {
        let bytes = |draft: &MessageDraft| draft.body.len() + draft.properties.len() + RECORD_EXTRA_BYTES as usize;
        Self {
            bytes: Vec::with_capacity(drafts.iter().map(bytes).sum()),
            records: Vec::with_capacity(drafts.len()),
            room_bytes: 0,
        }
    }

    /// Encodes a draft behind those already there. `mark` is the index of the plugin that marked it, and its mark.
    pub(super) fn push(&mut self, draft: &MessageDraft, mark: Option<(usize, Mark)>) -> Result<(), AppendError> {
        let range = encode(draft, &mut self.bytes)?;
        // A marked record will be written once more by its plugin.
        let once_more = if mark.is_some() { range.len() as u64 + RECORD_EXTRA_BYTES } else { 0 };
        self.room_bytes += range.len() as u64 + once_more;
        self.records.push(EncodedRecord {
            range,
            topic: draft.topic.clone(),
            queue_id: draft.queue_id,
            queued: draft.sys_flag.is_queued(),
            prepared_offset: draft.prepared_offset,
            mark,
        });
        Ok(())
    }

    /// Puts a record behind those already there, with another topic, queue and prepared offset: see [`readdress`].
    pub(super) fn push_readdressed(
        &mut self,
        record: RecordView<'_>,
        topic: &Topic,
        queue_id: QueueId,
        prepared_offset: i64,
    ) -> Result<(), AppendError> {
        let range = readdress(record, topic, queue_id, prepared_offset, &mut self.bytes)?;
        self.room_bytes += range.len() as u64;
        let queued = record.sys_flag().is_queued();
        self.records.push(EncodedRecord { range, topic: topic.clone(), queue_id, queued, prepared_offset, mark: None });
        Ok(())
    }

    /// Makes room for more.
    pub(super) fn reserve(&mut self, records: usize, bytes: usize) {
        self.records.reserve(records);
        self.bytes.reserve(bytes);
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// What there is now, for [`Encoded::truncate`].
    pub(super) fn mark(&self) -> EncodedMark {
        EncodedMark { bytes: self.bytes.len(), records: self.records.len(), room_bytes: self.room_bytes }
    }

    /// How much room those take that came since.
    pub(super) fn room_bytes_since(&self, mark: &EncodedMark) -> u64 {
        self.room_bytes - mark.room_bytes
    }

    /// Takes out those that came since.
    pub(super) fn truncate(&mut self, mark: &EncodedMark) {
        self.bytes.truncate(mark.bytes);
        self.records.truncate(mark.records);
        self.room_bytes = mark.room_bytes;
    }

    /// Each of them by itself.
    pub(super) fn split(&self) -> Vec<Self> {
        let one = |record: &EncodedRecord| Self {
            bytes: self.bytes[record.range.clone()].to_vec(),
            records: vec![EncodedRecord { range: 0..record.range.len(), ..record.clone() }],
            room_bytes: 0,
        };
        self.records.iter().map(one).collect()
    }
}

/// See [`Encoded::mark`].
pub(super) struct EncodedMark {
    bytes: usize,
    records: usize,
    room_bytes: u64,
}

impl CommitLog {
    /// Opens the segments that are there. Where the log goes on is not yet known: see [`CommitLog::resume`].
    pub(super) fn open(env: Env, options: &StoreOptions, health: Arc<Health>) -> Result<Self, StoreError> {
        let (segments, found) = open_segments(&env, &options.commit_log_folder, options.segment_bytes)?;
        Ok(Self {
            folder: options.commit_log_folder.clone(),
            segment_bytes: options.segment_bytes,
            health,
            clock: StoreClock::new(env.clock.clone()),
            writer: Mutex::default(),
            segments: RwLock::new(segments),
            spare: Mutex::new(None),
            has_spare: AtomicBool::new(false),
            written: AtomicU64::new(0),
            found,
            env,
        })
    }

    /// What was found when it was opened.
    pub(super) fn found(&self) -> &FoundSegments {
        &self.found
    }

    /// Sees to it that what is appended at `end` can be written.
    pub(super) fn check_writable(&self, end: PhysicalOffset) -> Result<(), StoreError> {
        let segment = self.segment_at(end).filter(|segment| self.found.unwritable.contains(&segment.base));
        segment.map_or(Ok(()), |segment| {
            let path = self.env.directory.display(&segment.path);
            let reason = "new messages go there; let the user of the broker read and write it";
            let source = io::Error::new(io::ErrorKind::PermissionDenied, reason);
            Err(StoreError::Io { action: "write to", path, source })
        })
    }

    /// Gives old segments that were cut their length, for those who look at the files. What fails changes nothing else.
    pub(super) fn make_whole(&self) {
        for cut in &self.found.cut {
            let Some(segment) = self.segment_at(cut.start) else { continue };
            let extended = || {
                let file = self.env.directory.open(&segment.path)?;
                file.set_bytes(self.segment_bytes, Allocation::Sparse)?;
                file.sync()
            };
            if let Err(error) = extended() {
                let path = self.env.directory.display(&segment.path);
                tracing::warn!(path, %error, "cannot give a segment that was cut its length");
            }
        }
    }

    /// Says where the log goes on, and which queue offsets come next. Before that nothing may be appended.
    pub(super) fn resume(&self, position: PhysicalOffset, queue_offsets: QueueOffsets) {
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner) =
            Writer { position, queue_offsets, ..Writer::default() };
        self.written.store(position.0, Ordering::SeqCst);
    }

    /// Says during recovery how far the log has been read and found sound.
    pub(super) fn recovered_to(&self, position: PhysicalOffset) {
        self.written.store(position.0, Ordering::SeqCst);
    }

    /// Cuts the log at `end`: later segments are removed, the rest of the one that holds `end` is made zero, both durable.
    pub(super) fn cut(&self, end: PhysicalOffset) -> Result<(), StoreError> {
        let failed = |action, segment: &Segment| {
            let path = self.env.directory.display(&segment.path);
            move |source| StoreError::Io { action, path, source }
        };
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        while let Some(segment) = segments.pop_if(|segment| segment.base >= end) {
            tracing::info!(segment = %segment.base, "removing a segment behind the end of the log");
            self.env.directory.remove(&segment.path).map_err(failed("remove", &segment))?;
            self.env.directory.sync_folder(&self.folder).map_err(failed("remove", &segment))?;
        }
        if let Some(segment) =
            segments.last().filter(|segment| segment.end() > end && !Mutation::TailNotCleared.is_on())
        {
            let range = end.since(segment.base)..segment.file.bytes();
            segment.file.zero(range).map_err(failed("clear the end of", segment))?;
            segment.file.sync().map_err(failed("sync", segment))?;
        }
        Ok(())
    }

    /// The store's own time.
    pub(super) fn clock(&self) -> &StoreClock {
        &self.clock
    }

    /// The position behind the newest record.
    pub(super) fn written(&self) -> PhysicalOffset {
        PhysicalOffset(self.written.load(Ordering::SeqCst))
    }

    /// The position behind the newest record, once no append is under way.
    pub(super) fn end(&self) -> PhysicalOffset {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).position
    }

    /// The first position still there.
    pub(super) fn first(&self) -> PhysicalOffset {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).first().map_or(self.written(), |s| s.base)
    }

    /// The segments, oldest first.
    pub(super) fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The segment that holds `position`.
    pub(super) fn segment_at(&self, position: PhysicalOffset) -> Option<Arc<Segment>> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let after = segments.partition_point(|segment| segment.base <= position);
        segments[..after].last().filter(|segment| position < segment.end()).cloned()
    }

    /// Shows finished bytes of the log, which must lie in one segment below [`CommitLog::written`], see [`Segment::read`].
    pub(super) fn read<T>(&self, position: PhysicalOffset, bytes: usize, look: impl Fn(&[u8]) -> T) -> io::Result<T> {
        self.segment_at(position).ok_or(io::ErrorKind::NotFound)?.read(position, bytes, look)
    }

    /// The record that begins at `position` and ends before `limit`: `None` if none does, or if it is damaged.
    pub(super) fn record_at(&self, position: PhysicalOffset, limit: PhysicalOffset) -> io::Result<Option<Record>> {
        let Some(segment) = self.segment_at(position) else { return Ok(None) };
        let left = usize::try_from(limit.min(segment.end()).since(position)).unwrap_or(usize::MAX);
        if left < BLANK_BYTES_MIN {
            return Ok(None);
        }
        let Frame::Record { bytes } = segment.read(position, BLANK_BYTES_MIN, kind)? else { return Ok(None) };
        let bytes = bytes as usize;
        if bytes > left {
            return Ok(None);
        }
        // A copy: it stays what was verified, whatever becomes of the file.
        let record = Record::parse(&segment.read(position, bytes, Bytes::copy_from_slice)?).ok();
        Ok(record.filter(|record| is_record_at(record.view(), position)))
    }

    /// Appends records under one lock. With `together` all lie in one segment.
    ///
    /// When this returns an error, nothing was stored. A panic inside stops the store.
    pub(super) fn append(
        &self,
        encoded: &mut Encoded,
        plugins: &[Arc<dyn Plugin>],
        together: bool,
    ) -> Result<Vec<Appended>, AppendError> {
        let Ok(mut writer) = self.writer.lock() else {
            return Err(AppendError::Failed { reason: "an append panicked".into() });
        };
        self.health.check()?;
        let appended = catch_unwind(AssertUnwindSafe(|| {
            Self::clean(&mut writer).map_err(AppendError::Io)?;
            let mut attempt = Attempt { from: writer.position, ..Attempt::default() };
            let appended = self.append_locked(&mut writer, encoded, plugins, together, &mut attempt);
            if appended.is_err() {
                self.undo(&mut writer, encoded, &attempt);
            }
            appended
        }));
        appended.unwrap_or_else(|panic| {
            let reason = format!("a panic inside the append section: {}", panic_text(&*panic));
            self.health.fail(&reason);
            Err(AppendError::Failed { reason })
        })
    }

    fn append_locked(
        &self,
        writer: &mut Writer,
        encoded: &mut Encoded,
        plugins: &[Arc<dyn Plugin>],
        together: bool,
        attempt: &mut Attempt,
    ) -> Result<Vec<Appended>, AppendError> {
        let now = self.clock.now();
        let stored_at = if Mutation::StoreTimeOutsideLock.is_on() { writer.stored_at.unwrap_or(now) } else { now };
        writer.stored_at = Some(now);
        let total = encoded.bytes.len() as u64;
        if together && total + BLANK_BYTES_MIN as u64 > self.segment_bytes {
            return Err(AppendError::BatchTooLarge { found: total, max: self.segment_bytes - BLANK_BYTES_MIN as u64 });
        }
        self.make_room(writer, if together { total } else { 0 }, attempt)?;

        let mut appended = Vec::with_capacity(encoded.records.len());
        attempt.placed.reserve(encoded.records.len());
        let mut run = 0..0;
        for (index, record) in encoded.records.iter().enumerate() {
            let bytes = record.range.len() as u64;
            let end_of_run = writer.position.plus(run.len() as u64);
            let left = writer.current.as_ref().map_or(0, |segment| segment.end().since(end_of_run));
            if bytes + BLANK_BYTES_MIN as u64 > left {
                Self::write(writer, &encoded.bytes[run.clone()], attempt)?;
                run = record.range.start..record.range.start;
                self.make_room(writer, bytes, attempt)?;
            }
            let position = writer.position.plus(run.len() as u64);
            let queue_offset = if record.queued {
                QueueOffset(next_queue_offset(&mut writer.queue_offsets, record))
            } else {
                QueueOffset::ZERO
            };
            attempt.counted = index + 1;
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            let prepared_offset = record.mark.map_or(record.prepared_offset, |(plugin, mark)| {
                plugins[plugin].place(mark, &Placement { stored_at, position, bytes, queue_offset })
            });
            let place = Place { queue_offset, physical_offset: position, stored_at, prepared_offset };
            patch(&mut encoded.bytes[record.range.clone()], &place);
            attempt.placed.push(position..position.plus(u64::from(bytes)));
            run.end = record.range.end;
            appended.push(Appended { position, end: position.plus(u64::from(bytes)), queue_offset, stored_at });
        }
        Self::write(writer, &encoded.bytes[run], attempt)?;
        self.written.store(writer.position.0, Ordering::SeqCst);
        Ok(appended)
    }

    /// Writes finished records at the writer's position and moves it.
    fn write(writer: &mut Writer, bytes: &[u8], attempt: &mut Attempt) -> Result<(), AppendError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let Some(segment) = &writer.current else { return Err(AppendError::Io(io::ErrorKind::NotFound.into())) };
        attempt.touch(segment, writer.position, bytes.len());
        segment.file.write_at(writer.position.since(segment.base), bytes).map_err(AppendError::Io)?;
        writer.position = writer.position.plus(bytes.len() as u64);
        Ok(())
    }

    /// Sees to it that `bytes` more and a blank fit into the current segment: ends it and goes on to the next one otherwise.
    fn make_room(&self, writer: &mut Writer, bytes: u64, attempt: &mut Attempt) -> Result<(), AppendError> {
        if writer.current.is_none() && writer.position.0.is_multiple_of(self.segment_bytes) {
            writer.current = Some(self.next_segment(writer.position)?);
        } else if writer.current.is_none() {
            writer.current = self.segment_at(writer.position);
        }
        let Some(segment) = writer.current.clone() else { return Err(AppendError::Io(io::ErrorKind::NotFound.into())) };
        let left = segment.end().since(writer.position);
        if bytes + BLANK_BYTES_MIN as u64 <= left {
            return Ok(());
        }

        let next = self.next_segment(segment.end())?;
        if left > 0 {
            let blank = blank(u32::try_from(left).unwrap_or(u32::MAX));
            attempt.touch(&segment, writer.position, blank.len());
            segment.file.write_at(writer.position.since(segment.base), &blank).map_err(AppendError::Io)?;
        }
        if !Mutation::SegmentUnsynced.is_on()
            && let Err(error) = segment.file.sync()
        {
            let reason = format!("cannot sync {}: {error}", self.env.directory.display(&segment.path));
            self.health.fail(&reason);
            return Err(AppendError::Failed { reason });
        }
        attempt.rolled_into.push(next.clone());
        writer.position = segment.end();
        writer.current = Some(next);
        Ok(())
    }

    /// The segment that begins at `base`: one that a refused append left, the spare one, or a new one.
    fn next_segment(&self, base: PhysicalOffset) -> Result<Arc<Segment>, AppendError> {
        if let Some(segment) = self.segment_at(base) {
            return Ok(segment);
        }
        // Held while a segment is made, so that nobody makes the same one at the same time.
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_spare.store(false, Ordering::Relaxed);
        let segment = match spare.take().filter(|spare| spare.base == base) {
            Some(spare) => spare,
            None => Arc::new(self.create_segment(base, 0).map_err(AppendError::Io)?),
        };
        self.segments.write().unwrap_or_else(PoisonError::into_inner).push(segment.clone());
        Ok(segment)
    }

    /// Creates a segment, its blocks reserved, its existence durable. Beside the margin it leaves `kept` bytes of the disk.
    fn create_segment(&self, base: PhysicalOffset, kept: u64) -> io::Result<Segment> {
        let path = Segment::path_in(&self.folder, base);
        // An attempt in vain would take the last space from the others for a while.
        let space = self.env.directory.space_of(&self.folder);
        if space.is_ok_and(|space| space.free < self.segment_bytes + self.margin_bytes() + kept) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = match self.env.directory.create(&path, self.segment_bytes, Allocation::Real) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Half made by a creation that failed in the middle: nothing but the newest segment can have this name.
                self.env.directory.remove(&path)?;
                self.env.directory.create(&path, self.segment_bytes, Allocation::Real)?
            }
            created => created?,
        };
        file.sync()?;
        if !Mutation::SegmentNameUnsynced.is_on() {
            self.env.directory.sync_folder(&self.folder)?;
        }
        tracing::info!(segment = %base, "segment created");
        Ok(Segment { base, file, path })
    }

    /// Bytes of the log that can be written without asking the file system for space: the rest of the newest segment, and the spare one.
    pub(super) fn ready_bytes(&self) -> u64 {
        let spare = self.has_spare.load(Ordering::Relaxed);
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let newest = segments.last().map_or(0, |segment| segment.end().since(self.written()));
        newest + if spare { self.segment_bytes } else { 0 }
    }

    /// Space that no new segment takes: it is left to queues, index and state files.
    pub(super) fn margin_bytes(&self) -> u64 {
        (self.segment_bytes / 16).min(MARGIN_BYTES_MAX)
    }

    /// Creates the segment after the newest one ahead of time, unless it is there. Beside the margin it leaves `kept` bytes of the disk.
    pub(super) fn prepare_spare(&self, kept: u64) -> io::Result<()> {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let base = {
            let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
            segments.last().map_or(self.written(), |segment| segment.end())
        };
        if spare.as_ref().is_none_or(|spare| spare.base != base) {
            *spare = Some(Arc::new(self.create_segment(base, kept)?));
            self.has_spare.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes the spare segment: for a clean stop, and to have space for what lets older ones go.
    pub(super) fn drop_spare(&self) -> io::Result<()> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.has_spare.store(false, Ordering::Relaxed);
        if let Some(spare) = spare {
            self.env.directory.remove(&spare.path)?;
            self.env.directory.sync_folder(&self.folder)?;
        }
        Ok(())
    }

    /// Removes the oldest segment, unless it is the only one.
    pub(super) fn remove_oldest(&self) -> io::Result<Option<Arc<Segment>>> {
        let oldest = {
            let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
            if segments.len() < 2 {
                return Ok(None);
            }
            segments[0].clone()
        };
        self.env.directory.remove(&oldest.path)?;
        self.env.directory.sync_folder(&self.folder)?;
        self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(0);
        Ok(Some(oldest))
    }

    /// Forgets the queue offsets of a topic: its next message is the first. Gives them, and the position from which on that is so.
    pub(super) fn forget_topic(&self, topic: &str) -> (PhysicalOffset, Option<TopicOffsets>) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let offsets = writer.queue_offsets.remove(topic);
        (writer.position, offsets)
    }

    /// Takes back [`CommitLog::forget_topic`], but for queues that have begun anew since.
    pub(super) fn remember_topic(&self, topic: &str, offsets: Option<TopicOffsets>) {
        let Some(offsets) = offsets else { return };
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let now = writer.queue_offsets.entry(Topic::from(topic)).or_default();
        for (queue_id, next) in offsets {
            now.entry(queue_id).or_insert(next);
        }
    }

    /// Takes back what a failed append did: positions, queue offsets, and the bytes that a shorter record might not cover. From its last record
    /// to its first: if the process is killed meanwhile, what is left has no record behind one that is gone. If they cannot be made zero now,
    /// the next append does it first, and fails as long as it cannot.
    fn undo(&self, writer: &mut Writer, encoded: &Encoded, attempt: &Attempt) {
        for record in encoded.records[..attempt.counted].iter().filter(|record| record.queued) {
            if let Some(next) = queue_offset_entry(&mut writer.queue_offsets, record) {
                *next -= u64::from(!Mutation::OffsetsNotTakenBack.is_on());
            }
        }
        writer.position = attempt.from;
        writer.current = None;
        // The last is made zero first.
        let placed = attempt.placed.iter().filter_map(|placed| Some((self.segment_at(placed.start)?, placed.clone())));
        writer.unclean.extend(attempt.rolled_into.iter().map(|segment| (segment.clone(), segment.base..segment.end())));
        writer.unclean.extend(attempt.touched.clone());
        writer.unclean.extend(placed);
        if let Err(error) = Self::clean(writer) {
            let path = self.env.directory.display(&self.folder);
            tracing::error!(path, %error, "cannot take back a failed append; nothing is appended until that is possible");
        }
    }

    /// Makes zero what failed appends left.
    fn clean(writer: &mut Writer) -> io::Result<()> {
        while let Some((segment, range)) = writer.unclean.last() {
            segment.file.zero(range.start.since(segment.base)..range.end.since(segment.base))?;
            writer.unclean.pop();
        }
        Ok(())
    }
}

/// Whether a record is the one that was written at `position`, and its body as it was.
pub(super) fn is_record_at(record: RecordView<'_>, position: PhysicalOffset) -> bool {
    record.physical_offset() == position && (record.body_is_sound() || Mutation::RestoreUnverified.is_on())
}

/// Opens the segments of a folder, oldest first, and says which are not as they should be.
///
/// A newest file that is empty is removed, one that is too short (a half-made one) is made whole; another one that is too short was cut, if the
/// rest shows that; of one that is too long the first bytes count if others are right; any other length is refused, since records could not be told
/// apart. An old one that cannot be written is only read, and one that cannot be opened is tried again with each read. What has the name of a segment
/// and is no file is moved away; other strange files are left alone.
fn open_segments(
    env: &Env,
    folder: &Path,
    segment_bytes: u64,
) -> Result<(Vec<Arc<Segment>>, FoundSegments), StoreError> {
    let directory = &env.directory;
    let io = |action, path: &Path| {
        let path = directory.display(path);
        move |source| StoreError::Io { action, path, source }
    };
    let mut found = Vec::new();
    for entry in directory.list(folder).map_err(io("list", folder))? {
        let path = folder.join(&entry.name);
        match Segment::parse_name(&entry.name) {
            Some(base) if entry.kind == EntryKind::File => found.push((base, entry.bytes)),
            Some(base) if base.0.is_multiple_of(segment_bytes) => {
                clear(&**directory, &path).map_err(io("move", &path))?;
            }
            _ => tracing::warn!(
                path = directory.display(&folder.join(&entry.name)),
                "ignoring a strange file in the commit log"
            ),
        }
    }
    let newest = found.last().map(|(base, _)| *base);
    // If some have the right length, a short one was cut; else the length was changed.
    let is_right_length = found.iter().any(|(_, bytes)| *bytes == segment_bytes);
    let is_cut = |bytes: u64| bytes < segment_bytes && is_right_length;
    for (base, bytes) in &found {
        let is_short = *bytes < segment_bytes && newest == Some(*base);
        let is_long = *bytes > segment_bytes && is_right_length;
        if *bytes != segment_bytes && !is_short && !is_cut(*bytes) && !is_long || !base.0.is_multiple_of(segment_bytes)
        {
            let path = directory.display(&Segment::path_in(folder, *base));
            let key = "mappedFileSizeCommitLog";
            return Err(StoreError::FileLength { path, found: *bytes, wanted: segment_bytes, key });
        }
    }
    let mut segments: Vec<Arc<Segment>> = Vec::new();
    let mut unlike = FoundSegments::default();
    for (base, bytes) in found {
        let path = Segment::path_in(folder, base);
        let is_newest = newest == Some(base);
        if bytes == 0 && is_newest {
            tracing::warn!(segment = %base, "removing an empty segment");
            directory.remove(&path).and_then(|()| directory.sync_folder(folder)).map_err(io("remove", &path))?;
            continue;
        }
        let file = match directory.open(&path) {
            Err(error) if !is_newest => {
                unlike.unwritable.insert(base);
                open_old(directory, &path, bytes, &error)
            }
            opened => opened.map_err(io("open", &path))?,
        };
        let file: Arc<dyn File> = if bytes > segment_bytes {
            let behind = bytes - segment_bytes;
            tracing::error!(
                path = directory.display(&path),
                bytes,
                wanted = segment_bytes,
                behind,
                "a segment of the commit log is too long; what lies behind its length is not looked at"
            );
            Arc::new(Head::new(file, segment_bytes))
        } else {
            file
        };
        let file = if bytes >= segment_bytes {
            file
        } else if is_newest {
            tracing::warn!(segment = %base, bytes, "making a short segment whole");
            let extended = file.set_bytes(segment_bytes, Allocation::Real).or_else(|error| {
                // Without its blocks it can be read; what is appended may then find no space.
                if is_full(&error) { file.set_bytes(segment_bytes, Allocation::Sparse) } else { Err(error) }
            });
            extended.and_then(|()| file.sync()).map_err(io("extend", &path))?;
            file
        } else {
            let (from, to) = (base.plus(bytes), base.plus(segment_bytes));
            tracing::error!(
                from = from.0,
                to = to.0,
                path = directory.display(&path),
                "a segment of the commit log was cut short; what lay behind is lost"
            );
            unlike.cut.push(from..to);
            Arc::new(Short::new(file, segment_bytes))
        };
        if let Some(before) = segments.last().filter(|before| before.end() != base) {
            tracing::error!(
                from = before.end().0,
                to = base.0,
                "segments of the commit log are missing; their messages are lost"
            );
        }
        segments.push(Arc::new(Segment { base, file, path }));
    }
    Ok((segments, unlike))
}

/// An old segment that could not be opened to be written: nothing is.
fn open_old(directory: &Arc<dyn Directory>, path: &Path, bytes: u64, error: &io::Error) -> Arc<dyn File> {
    let name = directory.display(path);
    match directory.open_to_read(path) {
        Ok(file) => {
            tracing::warn!(path = name, %error, "an old segment of the commit log can only be read");
            file
        }
        Err(error) => {
            tracing::error!(path = name, %error, "an old segment of the commit log cannot be opened; what lies in it is waited for");
            Arc::new(Closed::new(Arc::clone(directory), path.to_owned(), bytes))
        }
    }
}

/// What one append did so far, to take it back.
#[derive(Default)]
struct Attempt {
    from: PhysicalOffset,
    touched: Option<(Arc<Segment>, Range<PhysicalOffset>)>,
    rolled_into: Vec<Arc<Segment>>,
    counted: usize,
    /// Where its records lie, or were about to.
    placed: Vec<Range<PhysicalOffset>>,
}

impl Attempt {
    /// Remembers that a range of the segment with the append's start is being written; a later segment is taken back whole.
    fn touch(&mut self, segment: &Arc<Segment>, position: PhysicalOffset, bytes: usize) {
        let end = position.plus(bytes as u64);
        match &mut self.touched {
            Some((touched, range)) if touched.base == segment.base => range.end = range.end.max(end),
            Some(_) => {}
            None if self.rolled_into.is_empty() => self.touched = Some((segment.clone(), position..end)),
            None => {}
        }
    }
}

fn queue_offset_entry<'a>(offsets: &'a mut QueueOffsets, record: &EncodedRecord) -> Option<&'a mut u64> {
    offsets.get_mut(record.topic.as_str())?.get_mut(&record.queue_id)
}

/// Takes the next offset of a record's queue.
fn next_queue_offset(offsets: &mut QueueOffsets, record: &EncodedRecord) -> u64 {
    if let Some(next) = queue_offset_entry(offsets, record) {
        let taken = *next;
        *next += 1;
        return taken;
    }
    offsets.entry(record.topic.clone()).or_default().insert(record.queue_id, 1);
    0
}
