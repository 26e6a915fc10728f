//! Reading many records of the log that lie close together.

use std::{io, sync::Arc};

use bytes::Bytes;

use super::{MessageStore, commit_log::is_record_at, segment::Segment};
use crate::{
    model::PhysicalOffset,
    record::{Frame, RecordView, kind},
};

/// Reads records one after the other; what they have in common is looked up once for those of one segment.
pub struct RecordReader<'a> {
    store: &'a MessageStore,
    /// A segment and what of it is finished, as it is mapped.
    seen: Option<(Arc<Segment>, Bytes)>,
    /// A copy of the last record: it stays what was verified, whatever becomes of the file.
    record: Vec<u8>,
}

impl MessageStore {
    /// Reads many records.
    pub fn record_reader(&self) -> RecordReader<'_> {
        RecordReader { store: self, seen: None, record: Vec::new() }
    }
}

impl RecordReader<'_> {
    /// The record that begins at `position`, checked; `None` if none does.
    ///
    /// # Errors
    /// As the directory gives them: a later try may succeed.
    pub fn read(&mut self, position: PhysicalOffset) -> io::Result<Option<RecordView<'_>>> {
        if self.copy_mapped(position).is_none() {
            let Some(record) = self.store.log.record_at(position, self.store.readable())? else { return Ok(None) };
            self.record.clear();
            self.record.extend_from_slice(record.bytes());
        }
        Ok(RecordView::parse(&self.record).ok().filter(|record| is_record_at(*record, position)))
    }

    /// Copies the record out of the map; `None` if it must be read otherwise.
    fn copy_mapped(&mut self, position: PhysicalOffset) -> Option<()> {
        let is_seen = |(segment, bytes): &(Arc<Segment>, Bytes)| {
            (segment.base..segment.base.plus(bytes.len() as u64)).contains(&position)
        };
        if !self.seen.as_ref().is_some_and(is_seen) {
            let segment = self.store.log.segment_at(position)?;
            let finished = self.store.readable().min(segment.end()).since(segment.base);
            let finished = usize::try_from(finished).ok()?;
            let bytes = segment.file.mapped().filter(|map| map.len() >= finished)?.slice(..finished);
            self.seen = Some((segment, bytes));
        }
        let (segment, bytes) = self.seen.as_ref()?;
        let soundness = segment.file.soundness();
        let bytes = bytes.get(usize::try_from(position.since(segment.base)).ok()?..)?;
        let Frame::Record { bytes: total } = kind(bytes) else { return None };
        self.record.clear();
        self.record.extend_from_slice(bytes.get(..total as usize)?);
        if soundness.holds() {
            return Some(());
        }
        // The file is mapped anew for the next one.
        self.seen = None;
        None
    }
}
