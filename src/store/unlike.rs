//! Old segments that are not as they should be, shown as if they were: one that was cut, one that cannot be opened. Nothing is appended to either.

use std::{
    io,
    ops::Range,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;

use crate::env::{Allocation, Directory, File, Soundness};

/// A file that is too short: it reads as if it went on with zeros.
pub(super) struct Short {
    file: Arc<dyn File>,
    bytes: u64,
}

/// A file that could not be opened. Each read tries again, so that all goes on once it can be.
pub(super) struct Closed {
    directory: Arc<dyn Directory>,
    path: PathBuf,
    bytes: u64,
    file: OnceLock<Arc<dyn File>>,
}

impl Short {
    /// A file that has fewer than `bytes`.
    pub(super) fn new(file: Arc<dyn File>, bytes: u64) -> Self {
        Self { file, bytes }
    }
}

impl Closed {
    /// The file at `path`, which has so many bytes.
    pub(super) fn new(directory: Arc<dyn Directory>, path: PathBuf, bytes: u64) -> Self {
        Self { directory, path, bytes, file: OnceLock::new() }
    }

    fn open(&self) -> io::Result<&Arc<dyn File>> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let opened = self.directory.open_to_read(&self.path)?;
        tracing::info!(path = self.directory.display(&self.path), "a file that could not be opened can be read now");
        Ok(self.file.get_or_init(|| opened))
    }
}

impl File for Short {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(unchangeable())
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        check_within(self.bytes, position, into.len())?;
        let there = self.file.bytes().saturating_sub(position);
        let there = usize::try_from(there).unwrap_or(usize::MAX).min(into.len());
        into[there..].fill(0);
        if there == 0 { Ok(()) } else { self.file.read_at(position, &mut into[..there]) }
    }

    fn slice(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        if position.saturating_add(bytes as u64) <= self.file.bytes() {
            return self.file.slice(position, bytes);
        }
        let mut copy = vec![0; bytes];
        self.read_at(position, &mut copy)?;
        Ok(copy.into())
    }

    fn data_end(&self, from: u64) -> u64 {
        self.file.data_end(from).min(self.file.bytes())
    }

    fn soundness(&self) -> Soundness {
        self.file.soundness()
    }

    fn zero(&self, _: Range<u64>) -> io::Result<()> {
        Err(unchangeable())
    }

    fn set_bytes(&self, _: u64, _: Allocation) -> io::Result<()> {
        Err(unchangeable())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn will_need(&self, range: Range<u64>) {
        self.file.will_need(range);
    }
}

impl File for Closed {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(unchangeable())
    }

    fn read_at(&self, position: u64, into: &mut [u8]) -> io::Result<()> {
        check_within(self.bytes, position, into.len())?;
        self.open()?.read_at(position, into)
    }

    // By copying: the soundness of a map would have to be taken before there is one.
    fn slice(&self, position: u64, bytes: usize) -> io::Result<Bytes> {
        let mut copy = vec![0; bytes];
        self.read_at(position, &mut copy)?;
        Ok(copy.into())
    }

    fn zero(&self, _: Range<u64>) -> io::Result<()> {
        Err(unchangeable())
    }

    fn set_bytes(&self, _: u64, _: Allocation) -> io::Result<()> {
        Err(unchangeable())
    }

    // Nothing was written.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn will_need(&self, _: Range<u64>) {}
}

fn check_within(file_bytes: u64, position: u64, bytes: usize) -> io::Result<()> {
    let is_within = position.checked_add(bytes as u64).is_some_and(|end| end <= file_bytes);
    if is_within { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn unchangeable() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "nothing is written to an old segment")
}
