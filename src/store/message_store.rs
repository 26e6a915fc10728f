//! The store as the broker sees it.

use std::sync::Arc;

use bytes::Bytes;

use super::{AppendError, Figure, Plugin, SettingChange, StateFile, StoreError, StoreOptions};
use crate::{
    env::Env,
    model::{MessageDraft, PhysicalOffset, Properties, QueueId, QueueOffset, Timestamp},
};

/// Keeps messages: commit log, consume queues, index and the plugins attached to them.
///
/// Without threads until [`MessageStore::start`]: a test drives it by [`MessageStore::dispatch_once`] and [`MessageStore::sync_once`].
pub struct MessageStore {}

/// Where a message lies that was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// First byte of the record.
    pub position: PhysicalOffset,
    /// Position behind the record: durable when the store's durable position has reached it.
    pub end: PhysicalOffset,
    /// Its place in its queue.
    pub queue_offset: QueueOffset,
    /// Its store time.
    pub stored_at: Timestamp,
}

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

/// Told when messages can be read.
pub trait ArrivalListener: Send + Sync {
    /// A message can be read from a queue; `max` is the queue's new maximum. Runs on the dispatching thread: hand over, do not work.
    fn arrived(&self, topic: &str, queue_id: QueueId, max: QueueOffset, tag_code: i64);
}

/// Called when a position is durable, or never will be.
pub type DurableCallback = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

impl MessageStore {
    /// Opens a store: takes the lock, reads the checkpoint, recovers log, queues, index and plugins.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(options: StoreOptions, env: Env, plugins: Vec<Arc<dyn Plugin>>) -> Result<Arc<Self>, StoreError> {
        let _ = (options, env, plugins);
        todo!()
    }

    /// Starts the threads of the store and its plugins.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn start(self: &Arc<Self>) -> Result<(), StoreError> {
        todo!()
    }

    /// Stops cleanly: plugins, dispatch, sync, checkpoint, lock. Appends are refused from now on.
    ///
    /// # Errors
    /// What could not be saved.
    pub fn stop(&self) -> Result<(), StoreError> {
        todo!()
    }

    /// Appends one message. It is in the log when this returns, but not yet durable: see [`MessageStore::when_durable`].
    ///
    /// # Errors
    /// See [`AppendError`]; nothing was stored then.
    pub fn append(&self, draft: MessageDraft) -> Result<Appended, AppendError> {
        let _ = draft;
        todo!()
    }

    /// Appends the members of a batch, which share topic and queue, under one lock, in one segment. `envelope` holds the properties of the
    /// batch itself.
    ///
    /// # Errors
    /// See [`AppendError`]; no member was stored then.
    pub fn append_batch(&self, envelope: &Properties, drafts: Vec<MessageDraft>) -> Result<Vec<Appended>, AppendError> {
        let _ = (envelope, drafts);
        todo!()
    }

    pub(super) fn append_past_plugins(&self, drafts: &[MessageDraft]) -> Result<Vec<Appended>, AppendError> {
        let _ = drafts;
        todo!()
    }

    /// Whether an answer must wait for durability ([`super::FlushPolicy::Sync`]).
    pub fn waits_for_sync(&self) -> bool {
        todo!()
    }

    /// Calls back once everything before `end` is durable, at once if it is; asks for a sync. Callbacks run on the syncing thread.
    pub fn when_durable(&self, end: PhysicalOffset, callback: DurableCallback) {
        let _ = (end, callback);
        todo!()
    }

    /// Everything before this position is durable.
    pub fn durable(&self) -> PhysicalOffset {
        todo!()
    }

    /// The oldest position still there, and the position behind the newest record.
    pub fn log_range(&self) -> (PhysicalOffset, PhysicalOffset) {
        todo!()
    }

    /// How many bytes of the log are not dispatched yet.
    pub fn dispatch_behind_bytes(&self) -> u64 {
        todo!()
    }

    /// The store's own time: it never falls, whatever the wall clock does.
    pub fn now(&self) -> Timestamp {
        todo!()
    }

    /// What the store was opened with.
    pub fn env(&self) -> &Env {
        todo!()
    }

    /// The store's options.
    pub fn options(&self) -> &StoreOptions {
        todo!()
    }

    /// Reads from a queue what `wants` (asked with each entry's tag code) lets pass.
    pub fn pull(&self, query: &PullQuery<'_>, wants: &dyn Fn(i64) -> bool) -> Pulled {
        let _ = (query, wants);
        todo!()
    }

    /// The offsets of a queue; `None` if there is no such queue.
    pub fn queue_range(&self, topic: &str, queue_id: QueueId) -> Option<QueueRange> {
        let _ = (topic, queue_id);
        todo!()
    }

    /// Every queue there is.
    pub fn queues(&self) -> Vec<(crate::model::Topic, QueueId, QueueRange)> {
        todo!()
    }

    /// The entries of a queue from `from` on, at most `count_max`; fewer at the end of the queue or of a file.
    pub fn queue_entries(
        &self,
        topic: &str,
        queue_id: QueueId,
        from: QueueOffset,
        count_max: usize,
    ) -> Vec<super::QueueEntry> {
        let _ = (topic, queue_id, from, count_max);
        todo!()
    }

    /// The offset of the first message stored at or after `time` (or the last at or before it, see [`Boundary`]), clamped to the queue.
    pub fn offset_at(&self, topic: &str, queue_id: QueueId, time: Timestamp, boundary: Boundary) -> QueueOffset {
        let _ = (topic, queue_id, time, boundary);
        todo!()
    }

    /// The store time of the message at an offset, if it is there.
    pub fn stored_at(&self, topic: &str, queue_id: QueueId, offset: QueueOffset) -> Option<Timestamp> {
        let _ = (topic, queue_id, offset);
        todo!()
    }

    /// The record that begins at `position`, checked; `None` if none does.
    pub fn record_at(&self, position: PhysicalOffset) -> Option<Bytes> {
        let _ = position;
        todo!()
    }

    /// Finds records of a topic by key or unique key, stored in `[begin, end]`, newest first.
    pub fn query(&self, topic: &str, key: &str, count_max: usize, begin: Timestamp, end: Timestamp) -> Queried {
        let _ = (topic, key, count_max, begin, end);
        todo!()
    }

    /// Who is told when messages can be read. Set once, before [`MessageStore::start`].
    pub fn set_arrival_listener(&self, listener: Arc<dyn ArrivalListener>) {
        let _ = listener;
        todo!()
    }

    /// Removes the queues of a topic; its records stay in the log until retention. A later message begins at queue offset 0.
    ///
    /// # Errors
    /// As the directory gives them.
    pub fn delete_topic(&self, topic: &str) -> Result<(), StoreError> {
        let _ = topic;
        todo!()
    }

    /// A small JSON file of the folder `config`, kept with a `.bak`.
    pub fn state_file(&self, name: &str) -> StateFile {
        let _ = name;
        todo!()
    }

    /// Asks the plugins about a change of a setting; the first that knows the key decides.
    pub fn change_setting(&self, key: &str, value: &str) -> SettingChange {
        let _ = (key, value);
        todo!()
    }

    /// The figures of the store and its plugins.
    pub fn figures(&self) -> Vec<Figure> {
        todo!()
    }

    /// Why the store takes no messages now (disk full, failed, stopped); `None` if it does.
    pub fn not_writable(&self) -> Option<AppendError> {
        todo!()
    }

    /// Dispatches records up to the readable position, at most `bytes_max` bytes of log; says whether there is more.
    pub fn dispatch_once(&self, bytes_max: u64) -> bool {
        let _ = bytes_max;
        todo!()
    }

    /// Syncs what was written and releases those who wait.
    ///
    /// # Errors
    /// [`StoreError::Failed`]: the store accepts no more appends.
    pub fn sync_once(&self) -> Result<(), StoreError> {
        todo!()
    }

    /// Syncs log, queues and index, and writes the checkpoint.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn checkpoint_once(&self) -> Result<(), StoreError> {
        todo!()
    }

    /// Deletes what retention allows; gives the number of deleted segments.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn retain_once(&self) -> Result<usize, StoreError> {
        todo!()
    }
}
