//! The message record: the same bytes in the commit log and in a pull reply. (Placeholder until the codec lands: replace this file whole.)

/// A record borrowed from the log.
#[derive(Debug, Clone, Copy)]
pub struct RecordView<'a>(&'a [u8]);

impl RecordView<'_> {
    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// Why bytes are not a record, or a draft cannot become one.
#[derive(Debug, thiserror::Error)]
#[error("bad record")]
pub struct RecordError;
