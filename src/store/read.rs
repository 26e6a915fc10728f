//! Reading: pulls from a queue, searches by time, queries by key.

use std::{collections::HashSet, io, sync::Arc};

use bytes::Bytes;

use super::{
    MessageStore, QueueEntry,
    consume_queue::ConsumeQueue,
    mend::{Mended, leads_to},
    segment::Segment,
};
use crate::{
    env::Soundness,
    model::{PhysicalOffset, QueueId, QueueOffset, Timestamp, Topic, names},
    record::{Record, RecordView},
};

/// Most entries of a queue that one pull looks at while it finds nothing that is wanted.
///
/// Source: Apache RocketMQ, `maxFilterMessageSize` (16,000 bytes of entries).
const SCAN_ENTRIES_MAX: usize = 800;

/// The offsets of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueRange {
    /// The first message still there.
    pub min: QueueOffset,
    /// One behind the last message that can be read.
    pub max: QueueOffset,
}

/// What to read from a queue.
#[derive(Debug, Clone, Copy)]
pub struct PullQuery<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The queue.
    pub queue_id: QueueId,
    /// The first message wanted; signed as it comes from a client.
    pub offset: i64,
    /// Most records.
    pub count_max: usize,
    /// Most bytes, besides the first record.
    pub bytes_max: usize,
}

/// How a pull went. Names as in RocketMQ's `GetMessageStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullStatus {
    /// There are records.
    Found,
    /// Entries were scanned; none passed the filter.
    NoMatchedMessage,
    /// The records were deleted; go on at the next offset.
    MessageWasRemoving,
    /// There is no such queue.
    NoMatchedLogicQueue,
    /// The queue never held a message.
    NoMessageInQueue,
    /// The offset lies before the first message.
    OffsetTooSmall,
    /// The offset is the one that the next message will get.
    OffsetOverflowOne,
    /// The offset lies further behind the last message.
    OffsetOverflowBadly,
}

/// What a pull found.
#[derive(Debug, Clone)]
pub struct Pulled {
    /// How it went.
    pub status: PullStatus,
    /// Where to go on.
    pub next_offset: i64,
    /// The queue's offsets.
    pub range: QueueRange,
    /// Records as they lie in the log; neighbours may share one slice.
    pub records: Vec<Bytes>,
    /// How many records.
    pub count: usize,
    /// Whether the records can still be believed, asked before they are written out and after: see [`Pulled::are_sound`].
    pub soundness: Vec<Soundness>,
    /// Why nothing was found though there is something: it cannot be read now. A later try may succeed.
    pub failure: Option<String>,
}

impl Pulled {
    /// Whether the records still are what was verified: a page of the log may turn out unreadable while they wait to be written out.
    pub fn are_sound(&self) -> bool {
        self.soundness.iter().all(Soundness::holds)
    }
}

/// What a query by key found.
#[derive(Debug, Clone, Default)]
pub struct Queried {
    /// The records, each whole, newest first.
    pub records: Vec<Bytes>,
    /// End time of the newest index file.
    pub index_updated_at: Timestamp,
    /// End position of the newest index file.
    pub index_updated_to: PhysicalOffset,
}

/// Which end of a run of equal times a search by time wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Boundary {
    /// The first message stored at or after the time.
    #[default]
    Lower,
    /// The last message stored at or before the time.
    Upper,
}

impl MessageStore {
    /// Reads from a queue what `wants` (asked with each entry's tag code) lets pass.
    pub fn pull(&self, query: &PullQuery<'_>, wants: &dyn Fn(i64) -> bool) -> Pulled {
        let queue = self.dispatcher.queues.get(query.topic, query.queue_id);
        let range = queue.as_ref().map_or(QueueRange::default(), |queue| queue.range());
        let (min, max) = (signed(range.min), signed(range.max));
        let nothing = |status, next_offset| Pulled {
            status,
            next_offset,
            range,
            records: Vec::new(),
            count: 0,
            soundness: Vec::new(),
            failure: None,
        };
        let Some(queue) = queue else { return nothing(PullStatus::NoMatchedLogicQueue, 0) };
        match query.offset {
            // Those before it could not be written into the queue yet; nobody who has read them is sent back.
            offset if offset > max && offset <= signed(queue.next_offset()) => {
                nothing(PullStatus::OffsetOverflowOne, offset)
            }
            _ if max == 0 => nothing(PullStatus::NoMessageInQueue, 0),
            offset if offset < min => nothing(PullStatus::OffsetTooSmall, min),
            offset if offset == max => nothing(PullStatus::OffsetOverflowOne, offset),
            offset if offset > max => nothing(PullStatus::OffsetOverflowBadly, max),
            _ => self.pull_entries(query, &queue, range, wants),
        }
    }

    fn pull_entries(
        &self,
        query: &PullQuery<'_>,
        queue: &ConsumeQueue,
        range: QueueRange,
        wants: &dyn Fn(i64) -> bool,
    ) -> Pulled {
        let count_max = query.count_max.clamp(1, self.options.pull_count_max);
        let bytes_max = query.bytes_max.min(self.options.pull_bytes_max);
        let from = QueueOffset(u64::try_from(query.offset).unwrap_or(0));
        let mut chosen = Chosen::default();
        let mut gone = false;
        let mut failure = None;
        let mut at = from;
        'scan: while at < range.max
            && at.0 - from.0 < SCAN_ENTRIES_MAX.max(count_max) as u64
            && chosen.count < count_max
        {
            let entries = self.queue_entries_of(queue, at, count_max);
            if entries.is_empty() {
                break;
            }
            for mut entry in entries {
                let is_full = chosen.count >= count_max || chosen.bytes + entry.bytes as usize > bytes_max;
                if chosen.count > 0 && is_full {
                    break 'scan;
                }
                // Zeros are no entry; what stands for a missing record is written as such.
                let is_passed_over = entry == QueueEntry::BLANK || !entry.is_blank() && !wants(entry.tag_code);
                let mut judged = if is_passed_over { Judged::Unwanted } else { self.judge(queue, at, &entry) };
                if let Judged::Disagrees = judged {
                    match self.mend(queue, at) {
                        Ok(Mended::Entry(mended)) => {
                            entry = mended;
                            judged =
                                if wants(entry.tag_code) { self.judge(queue, at, &entry) } else { Judged::Unwanted };
                        }
                        Ok(Mended::Hopeless) => {}
                        // Not passed over: the next pull finds it.
                        Ok(Mended::Later) => break 'scan,
                        Err(error) => judged = Judged::Unreadable(error),
                    }
                }
                match judged {
                    Judged::Leads(segment, soundness) => chosen.add(at, &entry, segment, soundness),
                    Judged::Unwanted => {}
                    Judged::Gone | Judged::Disagrees => gone = true,
                    Judged::Unreadable(error) => {
                        // What cannot be read now is not passed over for a while: a later pull may find it.
                        let (topic, queue_id) = (query.topic, query.queue_id.0);
                        let segment =
                            self.log.segment_at(entry.position).map_or(entry.position, |segment| segment.base);
                        if !self.patience.is_over(segment, self.env.clock.since_boot()) {
                            tracing::error!(topic, queue_id, queue_offset = at.0, %error, "cannot read a message");
                            failure = Some(error.to_string());
                            break 'scan;
                        }
                        let physical_offset = entry.position.0;
                        tracing::error!(
                            topic, queue_id, queue_offset = at.0, physical_offset, %error,
                            "a message could not be read for so long that consumers pass it over"
                        );
                        gone = true;
                    }
                }
                at = at.plus(1);
            }
        }

        let mut records = Vec::with_capacity(chosen.runs.len());
        let (mut count, mut soundness) = (0, Vec::new());
        for run in chosen.runs {
            match slice_of(&run) {
                Ok((slice, holds)) => {
                    records.push(slice);
                    count += run.count;
                    soundness.extend(holds);
                }
                Err(error) => {
                    at = run.from;
                    failure = Some(error.to_string());
                    break;
                }
            }
        }
        let status = match (count, gone) {
            (0, true) => PullStatus::MessageWasRemoving,
            (0, false) => PullStatus::NoMatchedMessage,
            _ => PullStatus::Found,
        };
        let failure = failure.filter(|_| count == 0 && at == from);
        Pulled { status, next_offset: signed(at), range, records, count, soundness, failure }
    }

    /// What is where the entry says. A client would drop all that follows a damaged record.
    fn judge(&self, queue: &ConsumeQueue, at: QueueOffset, entry: &QueueEntry) -> Judged {
        if !entry.is_blank() && entry.position < self.log.first() {
            return Judged::Gone;
        }
        if entry.is_blank() || entry.end() > self.readable() {
            return Judged::Disagrees;
        }
        let Some(segment) = self.log.segment_at(entry.position) else { return Judged::Gone };
        if entry.end() > segment.end() {
            return Judged::Disagrees;
        }
        let soundness = segment.file.soundness();
        let leads = segment.read(entry.position, entry.bytes as usize, |bytes| {
            RecordView::parse(bytes).is_ok_and(|record| leads_to(record, queue, at, entry) && record.body_is_sound())
        });
        match leads {
            Ok(true) => Judged::Leads(segment, soundness),
            Ok(false) => Judged::Disagrees,
            Err(error) => Judged::Unreadable(error),
        }
    }

    /// The offsets of a queue; `None` if there is no such queue.
    pub fn queue_range(&self, topic: &str, queue_id: QueueId) -> Option<QueueRange> {
        self.dispatcher.queues.get(topic, queue_id).map(|queue| queue.range())
    }

    /// The offset that the next message of a queue gets. Behind the end of its range as long as entries could not be written, as on a full disk.
    pub fn next_queue_offset(&self, topic: &str, queue_id: QueueId) -> QueueOffset {
        let queue = self.dispatcher.queues.get(topic, queue_id);
        queue.map_or(QueueOffset(0), |queue| queue.next_offset().max(queue.range().max))
    }

    /// Every queue there is.
    pub fn queues(&self) -> Vec<(Topic, QueueId, QueueRange)> {
        self.dispatcher
            .queues
            .all()
            .iter()
            .map(|queue| (queue.topic().clone(), queue.queue_id(), queue.range()))
            .collect()
    }

    /// The entries of a queue from `from` on, at most `count_max`; fewer at the end of the queue or of a file.
    pub fn queue_entries(
        &self,
        topic: &str,
        queue_id: QueueId,
        from: QueueOffset,
        count_max: usize,
    ) -> Vec<QueueEntry> {
        let queue = self.dispatcher.queues.get(topic, queue_id);
        queue.map_or(Vec::new(), |queue| self.queue_entries_of(&queue, from, count_max))
    }

    /// As [`MessageStore::queue_entries`], but a failed read is told apart from entries that are not there.
    ///
    /// # Errors
    /// As the directory gives them: a later try may succeed.
    pub fn try_queue_entries(
        &self,
        topic: &str,
        queue_id: QueueId,
        from: QueueOffset,
        count_max: usize,
    ) -> io::Result<Vec<QueueEntry>> {
        let Some(queue) = self.dispatcher.queues.get(topic, queue_id) else { return Ok(Vec::new()) };
        let entries = queue.read(from, count_max)?;
        if entries.is_empty() && queue.unwritten_from().is_some() && from < queue.next_offset() {
            return Err(io::Error::other("the entries of the queue are not written yet"));
        }
        Ok(entries)
    }

    fn queue_entries_of(&self, queue: &ConsumeQueue, from: QueueOffset, count_max: usize) -> Vec<QueueEntry> {
        queue.read(from, count_max).unwrap_or_else(|error| {
            let (topic, queue_id) = (queue.topic(), queue.queue_id());
            tracing::error!(%topic, queue_id = queue_id.0, queue_offset = from.0, %error, "cannot read a consume queue");
            Vec::new()
        })
    }

    /// The queue offset of the record that ends at `end`, if the queue has an entry of it.
    pub fn queue_offset_of_end(&self, topic: &str, queue_id: QueueId, end: PhysicalOffset) -> Option<QueueOffset> {
        self.dispatcher.queues.get(topic, queue_id)?.find_end(end).ok().flatten()
    }

    /// The offset of the first message stored at or after `time` (or the last at or before it, see [`Boundary`]), clamped to the queue.
    pub fn offset_at(&self, topic: &str, queue_id: QueueId, time: Timestamp, boundary: Boundary) -> QueueOffset {
        let Some(range) = self.queue_range(topic, queue_id) else { return QueueOffset::ZERO };
        let is_before = |stored_at: Timestamp| match boundary {
            Boundary::Lower => stored_at < time,
            Boundary::Upper => stored_at <= time,
        };
        let (mut low, mut high) = (range.min, range.max);
        while low < high {
            let middle = QueueOffset(low.0 + (high.0 - low.0) / 2);
            // A message that cannot be read counts as an old one: retention may have taken it.
            if self.stored_at(topic, queue_id, middle).is_none_or(is_before) {
                low = middle.plus(1);
            } else {
                high = middle;
            }
        }
        match boundary {
            Boundary::Lower => low,
            Boundary::Upper => QueueOffset(low.0.saturating_sub(1)).max(range.min),
        }
    }

    /// The store time of the message at an offset, if it is there.
    pub fn stored_at(&self, topic: &str, queue_id: QueueId, offset: QueueOffset) -> Option<Timestamp> {
        let entry = self
            .dispatcher
            .queues
            .get(topic, queue_id)?
            .entry(offset)
            .ok()
            .flatten()
            .filter(|entry| !entry.is_blank())?;
        if entry.end() > self.readable() {
            return None;
        }
        let stored_at = |bytes: &[u8]| RecordView::parse(bytes).ok().map(RecordView::stored_at);
        self.log.read(entry.position, entry.bytes as usize, stored_at).ok()?
    }

    /// The record that begins at `position`, checked; `None` if none does.
    pub fn record_at(&self, position: PhysicalOffset) -> Option<Record> {
        self.log.record_at(position, self.readable()).unwrap_or_else(|error| {
            tracing::error!(physical_offset = position.0, %error, "cannot read the commit log");
            None
        })
    }

    /// Says that a range of the log will be read soon. A hint, nothing more.
    pub fn will_need(&self, from: PhysicalOffset, to: PhysicalOffset) {
        if let Some(segment) = self.log.segment_at(from) {
            segment.file.will_need(from.since(segment.base)..to.min(segment.end()).since(segment.base));
        }
    }

    /// Finds records of a topic by key or unique key, stored in `[begin, end]`, newest first.
    pub fn query(&self, topic: &str, key: &str, count_max: usize, begin: Timestamp, end: Timestamp) -> Queried {
        let Some(index) = &self.dispatcher.index else { return Queried::default() };
        let count_max = count_max.min(self.options.query_count_max);
        let (index_updated_at, index_updated_to) = index.end();
        let mut queried = Queried { records: Vec::new(), index_updated_at, index_updated_to };
        let mut seen = HashSet::new();
        let read = index.query(topic, key, begin, end, |position| {
            // The index keeps only a hash of the key, and a message may have one key twice.
            let Some(record) = self.record_at(position).filter(|_| seen.insert(position)) else { return true };
            let view = record.view();
            let has_key = view.properties().get(names::UNIQ_KEY) == Some(key)
                || view.properties().get(names::KEYS).is_some_and(|keys| keys.split(' ').any(|found| found == key));
            if view.topic() == topic && has_key && (begin..=end).contains(&view.stored_at()) {
                queried.records.push(record.bytes().clone());
            }
            queried.records.len() < count_max
        });
        if let Err(error) = read {
            tracing::error!(topic, %error, "cannot read the index");
        }
        queried
    }
}

/// What an entry leads to.
enum Judged {
    /// The record of its queue and offset, where it lies, and what it takes to believe it later.
    Leads(Arc<Segment>, Soundness),
    /// Nothing that the pull wants.
    Unwanted,
    /// A part of the log that is gone.
    Gone,
    /// A part of the log that cannot be read now.
    Unreadable(io::Error),
    /// Something else.
    Disagrees,
}

/// The entries of an answer.
#[derive(Default)]
struct Chosen {
    runs: Vec<Run>,
    count: usize,
    bytes: usize,
}

/// Neighbours in the log.
struct Run {
    /// Queue offset of the first.
    from: QueueOffset,
    position: PhysicalOffset,
    bytes: usize,
    count: usize,
    /// Where they were verified: they can be read although retention removes it meanwhile.
    segment: Arc<Segment>,
    /// Taken before the first was verified.
    soundness: Soundness,
}

impl Chosen {
    fn add(&mut self, at: QueueOffset, entry: &QueueEntry, segment: Arc<Segment>, soundness: Soundness) {
        let bytes = entry.bytes as usize;
        self.count += 1;
        self.bytes += bytes;
        match self.runs.last_mut() {
            Some(run)
                if run.position.plus(run.bytes as u64) == entry.position && Arc::ptr_eq(&run.segment, &segment) =>
            {
                run.bytes += bytes;
                run.count += 1;
            }
            _ => self.runs.push(Run { from: at, position: entry.position, bytes, count: 1, segment, soundness }),
        }
    }
}

/// The bytes of verified records: as they are mapped, or a copy if that does not hold any more.
fn slice_of(run: &Run) -> io::Result<(Bytes, Option<Soundness>)> {
    let sight = run.segment.sight(run.position, run.bytes)?;
    if run.soundness.holds() {
        Ok((sight.bytes, Some(run.soundness.clone())))
    } else {
        Ok((run.segment.copy(run.position, run.bytes)?, None))
    }
}

fn signed(offset: QueueOffset) -> i64 {
    i64::try_from(offset.0).unwrap_or(i64::MAX)
}
