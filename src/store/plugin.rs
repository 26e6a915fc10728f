//! The seam: what attaches to a store. The level scheduler is a plugin; a store without plugins is a plain RocketMQ store.
//!
//! # The life of a plugin
//!
//! 1. [`Plugin::attach`] gives it a handle on the store.
//! 2. [`Plugin::recover`] gives back the state it had at the checkpoint; then [`Plugin::dispatched`] is called for every record above it. A
//!    plugin's state is thus a fold over the log: what it must know after a crash it reads from records, not from files of its own.
//! 3. [`Plugin::start`]: from now on it may append. Records go on coming through [`Plugin::dispatched`].
//! 4. [`Plugin::stop`]: it finishes the batch in hand. What was appended until then is still dispatched, and its state saved.
//!
//! # Locks
//!
//! [`Plugin::place`] runs under the append lock: no IO there, and no lock that is held elsewhere across a call into the store. No lock of a
//! plugin may be held while it appends.

use std::{fmt, sync::Arc, time::Duration};

use super::{AppendError, Appended, MessageStore, commit_log::Encoded};
use crate::{
    model::{MessageDraft, PhysicalOffset, Properties, QueueId, QueueOffset, Timestamp, Topic},
    record::RecordView,
};

/// What attaches to a store; see the module.
pub trait Plugin: Send + Sync {
    /// A short name: in logs, and the name of its blob in the checkpoint.
    fn name(&self) -> &'static str;

    /// Sees each draft of a client before it gets an offset, outside of every lock. It may change the draft (topic, queue, properties), or
    /// refuse it. Drafts that a plugin itself appends do not pass here.
    ///
    /// # Errors
    /// The refusal, which the client is told; nothing is stored then.
    fn admit(&self, draft: &mut MessageDraft, context: &AdmitContext<'_>) -> Result<Admission, Refusal> {
        let _ = (draft, context);
        Ok(Admission::Pass)
    }

    /// Called under the append lock for a draft that [`Plugin::admit`] marked, once store time and position are known. Returns the value of
    /// the record's prepared-transaction-offset field.
    fn place(&self, mark: Mark, place: &Placement) -> i64 {
        let _ = (mark, place);
        0
    }

    /// Takes the handle; called once, before anything else.
    fn attach(&self, store: StoreHandle);

    /// Takes back the state of the last checkpoint, as [`Plugin::state`] gave it; `None` if there is none or it does not match the log: then
    /// the whole log follows through [`Plugin::dispatched`].
    ///
    /// # Errors
    /// A reason not to start. A state that cannot be read is not one: answer `Ok(false)`, and the whole log follows.
    fn recover(&self, state: Option<&[u8]>) -> Result<bool, PluginError> {
        let _ = state;
        Ok(true)
    }

    /// The tag code of a record's consume queue entry, where it is not the hash of its tag. `existing` is the tag code of an entry that a
    /// rebuild found in place, for this very record.
    fn tag_code(&self, record: &RecordView<'_>, existing: Option<i64>) -> Option<i64> {
        let _ = (record, existing);
        None
    }

    /// Sees each record once, in log order, when it has its consume queue entry and may be read: those of a round at once. Runs on the
    /// dispatching thread.
    fn dispatched(&self, records: &[Dispatched<'_>]);

    /// Ends a round of dispatch, an empty one too; the moment to wake a thread.
    fn round_ended(&self) {}

    /// Recovery is over: the whole log went through [`Plugin::dispatched`]. The first checkpoint follows.
    fn recovered(&self) {}

    /// The store's own time has jumped forward by `by`, and with it every deadline that [`MessageStore::clock_jumps`] moves. A thread that
    /// sleeps until a store time must look again.
    fn clock_jumped(&self, by: Duration) {
        let _ = by;
    }

    /// The physical offset from which on nothing may be deleted, judged by the records dispatched so far; `None` if nothing is held. The
    /// store syncs what was dispatched before it deletes anything below.
    fn pinned_from(&self) -> Option<PhysicalOffset> {
        None
    }

    /// What of the records dispatched so far it will append once more; room is kept for it.
    fn owes(&self) -> Owed {
        Owed::default()
    }

    /// Its state after all records dispatched so far, kept in the checkpoint.
    fn state(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Writes files that are derived from its state for other tools; called with each checkpoint and at a clean stop.
    ///
    /// # Errors
    /// As the directory gives them; logged by the store.
    fn export(&self) -> std::io::Result<()> {
        Ok(())
    }

    /// Asked before a setting is changed at run time.
    fn change_setting(&self, key: &str, value: &str) -> SettingChange {
        let _ = (key, value);
        SettingChange::NotMine
    }

    /// Named figures about its state, for tools and metrics.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }

    /// Starts its threads. From now on it may append.
    ///
    /// # Errors
    /// A reason not to start.
    fn start(&self) -> Result<(), PluginError> {
        Ok(())
    }

    /// Stops its threads and joins them, after the batch in hand. The store then still calls [`Plugin::dispatched`], [`Plugin::state`] and
    /// [`Plugin::export`], for the last checkpoint.
    fn stop(&self) {}
}

/// What a plugin may ask of the store.
#[derive(Clone)]
pub struct StoreHandle {
    store: std::sync::Weak<MessageStore>,
}

/// What a plugin decided about a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Not its business.
    Pass,
    /// Its own: [`Plugin::place`] is called with this mark, and it will append the message once more (see [`Plugin::owes`]).
    Marked(Mark),
}

/// What a plugin will still append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owed {
    /// How many records.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// To how many queues they go at most, those included that have no files yet.
    pub queues: u64,
}

/// A number by which a plugin recognises its own draft under the append lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(pub u64);

/// How a draft comes to the store.
#[derive(Debug, Clone, Copy)]
pub struct AdmitContext<'a> {
    /// The properties of the batch it is a member of, if it is one.
    pub batch: Option<&'a Properties>,
    /// Largest body the store takes, in bytes.
    pub body_bytes_max: usize,
}

/// Where a record is about to lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Its store time.
    pub stored_at: Timestamp,
    /// Its first byte.
    pub position: PhysicalOffset,
    /// Its length in bytes.
    pub bytes: u32,
    /// Its place in its queue.
    pub queue_offset: QueueOffset,
}

/// A record that has just become readable.
#[derive(Debug, Clone, Copy)]
pub struct Dispatched<'a> {
    /// Its first byte in the log.
    pub position: PhysicalOffset,
    /// The record.
    pub record: &'a RecordView<'a>,
    /// Whether this is a replay during recovery.
    pub replay: bool,
}

impl Dispatched<'_> {
    /// The position behind the record.
    pub fn end(&self) -> PhysicalOffset {
        self.position.plus(u64::from(self.record.total_bytes()))
    }
}

/// Why a draft is refused; a client is told the kind as a response code and the remark.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{remark}")]
pub struct Refusal {
    /// What kind of refusal.
    pub kind: RefusalKind,
    /// In words for the producer.
    pub remark: String,
}

/// Kinds of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// The message breaks a rule (response code 13).
    Illegal,
    /// The message may not be sent there (response code 16).
    NotPermitted,
    /// The message asks for what does not exist (response code 1).
    NotSupported,
}

/// What a plugin says to a change of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingChange {
    /// The key is not one of its keys.
    NotMine,
    /// Accepted, and in force.
    Accepted,
    /// Refused, with the reason for the one who asked.
    Refused(String),
}

/// One figure of a plugin or of the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Name, as a tool shows it: `scheduleMessageOffset_3`, `pending`, …
    pub name: String,
    /// Names and values of its labels, for example `level` = `3`.
    pub labels: Vec<(&'static str, String)>,
    /// Its value.
    pub value: FigureValue,
}

/// The value of a [`Figure`].
#[derive(Debug, Clone, PartialEq)]
pub enum FigureValue {
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

/// Why a plugin cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("{plugin}: {reason}")]
pub struct PluginError {
    /// Its name.
    pub plugin: &'static str,
    /// In words for the one who runs the broker.
    pub reason: String,
}

impl StoreHandle {
    pub(super) fn new(store: std::sync::Weak<MessageStore>) -> Self {
        Self { store }
    }

    /// The store, unless it has been dropped. Hold it no longer than a call.
    pub fn store(&self) -> Option<Arc<MessageStore>> {
        self.store.upgrade()
    }

    /// Appends drafts under one lock, past every [`Plugin::admit`]. Nothing is stored if one of them cannot be.
    ///
    /// # Errors
    /// See [`MessageStore::append`]; [`AppendError::Closed`] once the store is gone.
    pub fn append(&self, drafts: &[MessageDraft]) -> Result<Vec<Appended>, AppendError> {
        let mut records = NewRecords::default();
        drafts.iter().try_for_each(|draft| records.push(draft))?;
        self.append_records(&mut records)
    }

    /// As [`StoreHandle::append`], of records that are built already. They may be appended once.
    ///
    /// # Errors
    /// As [`StoreHandle::append`].
    pub fn append_records(&self, records: &mut NewRecords) -> Result<Vec<Appended>, AppendError> {
        self.store().ok_or(AppendError::Closed)?.append_past_plugins(&mut records.0)
    }
}

/// Records that a plugin is about to append, built where they are written from.
#[derive(Default)]
pub struct NewRecords(Encoded);

impl NewRecords {
    /// Builds the record of a draft behind those already there.
    ///
    /// # Errors
    /// [`AppendError::Record`] if it can have none.
    pub fn push(&mut self, draft: &MessageDraft) -> Result<(), AppendError> {
        self.0.push(draft, None)
    }

    /// Puts a record behind those already there with another topic, queue and prepared transaction offset, and all else as it is: its body must
    /// have been found sound.
    ///
    /// # Errors
    /// [`AppendError::Record`] if it is too long then.
    pub fn push_readdressed(
        &mut self,
        record: RecordView<'_>,
        topic: &Topic,
        queue_id: QueueId,
        prepared_offset: i64,
    ) -> Result<(), AppendError> {
        self.0.push_readdressed(record, topic, queue_id, prepared_offset)
    }

    /// Makes room for so many more records of so many bytes together.
    pub fn reserve(&mut self, records: usize, bytes: usize) {
        self.0.reserve(records, bytes);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for NewRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewRecords").field("records", &self.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreHandle").finish_non_exhaustive()
    }
}
