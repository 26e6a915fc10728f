//! The beginning of a file that is longer than it should be.

use std::{io, ops::Range, sync::Arc};

use bytes::Bytes;

use crate::env::{Allocation, File, Soundness};

/// A file of which only the first bytes count: what lies behind them is left alone.
pub(super) struct Head {
    file: Arc<dyn File>,
    bytes: u64,
}

impl Head {
    /// The first `bytes` of a file that has more.
    pub(super) fn new(file: Arc<dyn File>, bytes: u64) -> Self {
        Self { file, bytes }
    }

    fn check(&self, position: u64, bytes: usize, beyond: io::ErrorKind) -> io::Result<()> {
        let is_within = position.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes);
        if is_within { Ok(()) } else { Err(beyond.into()) }
    }
}

impl File for Head {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(position, bytes.len(), io::ErrorKind::InvalidInput)?;
        self.file.write_at(position, bytes)
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        self.check(position, into.len(), io::ErrorKind::UnexpectedEof)?;
        self.file.read_at(position, into)
    }

    fn slice(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        self.check(position, bytes, io::ErrorKind::UnexpectedEof)?;
        self.file.slice(position, bytes)
    }

    fn soundness(&self) -> Soundness {
        self.file.soundness()
    }

    fn zero(&self, range: Range<u64>) -> io::Result<()> {
        self.file.zero(range.start.min(self.bytes)..range.end.min(self.bytes))
    }

    fn set_bytes(&self, bytes: u64, allocation: Allocation) -> io::Result<()> {
        self.file.set_bytes(bytes, allocation)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn will_need(&self, range: Range<u64>) {
        self.file.will_need(range);
    }
}
