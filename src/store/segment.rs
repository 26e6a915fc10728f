//! One file of the commit log, named by its first offset.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use crate::{env::File, model::PhysicalOffset};

/// Digits of a segment's file name.
const NAME_DIGITS: usize = 20;

/// One file of the commit log.
pub(super) struct Segment {
    /// Position of its first byte in the log.
    pub(super) base: PhysicalOffset,
    /// The file, of the length that the configuration gives every segment.
    pub(super) file: Arc<dyn File>,
    /// Where it lies.
    pub(super) path: PathBuf,
}

impl Segment {
    /// The file name of the segment that begins at `base`.
    pub(super) fn name(base: PhysicalOffset) -> String {
        format!("{:0NAME_DIGITS$}", base.0)
    }

    /// The first offset that a file name stands for; `None` if it is not the name of a segment.
    pub(super) fn parse_name(name: &str) -> Option<PhysicalOffset> {
        (name.len() == NAME_DIGITS && name.bytes().all(|b| b.is_ascii_digit()))
            .then(|| name.parse().ok().map(PhysicalOffset))
            .flatten()
    }

    /// The path of the segment that begins at `base`.
    pub(super) fn path_in(folder: &Path, base: PhysicalOffset) -> PathBuf {
        folder.join(Self::name(base))
    }

    /// Position behind its last byte.
    pub(super) fn end(&self) -> PhysicalOffset {
        self.base.plus(self.file.bytes())
    }

    /// Finished bytes of the log, which must lie in this segment.
    pub(super) fn slice(&self, position: PhysicalOffset, bytes: usize) -> io::Result<Bytes> {
        self.file.slice(position.since(self.base), bytes)
    }
}
