//! One file of the commit log, named by its first offset.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    env::{File, Soundness},
    model::PhysicalOffset,
};

/// Digits of a segment's file name.
const NAME_DIGITS: usize = 20;

/// Bytes of a segment as they are mapped.
pub(super) struct Sight {
    /// Zeros where a page could not be read.
    pub(super) bytes: Bytes,
    /// Taken before the bytes.
    pub(super) soundness: Soundness,
}

impl Sight {
    /// Says whether what was read of the bytes until now can be believed.
    ///
    /// # Errors
    /// A page could not be read.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.soundness.holds() { Ok(()) } else { Err(io::Error::other("a page of it could not be read")) }
    }
}

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

    /// Finished bytes of the log, which must lie in this segment: not to be believed before [`Sight::check`].
    pub(super) fn sight(&self, position: PhysicalOffset, bytes: usize) -> io::Result<Sight> {
        let soundness = self.file.soundness();
        let bytes = self.file.slice(position.since(self.base), bytes).map_err(|error| self.named(&error))?;
        Ok(Sight { bytes, soundness })
    }

    /// Shows finished bytes to `look` and gives what it made of them, which must not refer to them. If a page of them cannot be read through
    /// the map, they are copied by a plain read and shown once more.
    pub(super) fn read<T>(&self, position: PhysicalOffset, bytes: usize, look: impl Fn(&[u8]) -> T) -> io::Result<T> {
        let sight = self.sight(position, bytes)?;
        let seen = look(&sight.bytes);
        if sight.soundness.holds() { Ok(seen) } else { Ok(look(&self.copy(position, bytes)?)) }
    }

    /// A copy of finished bytes, by a plain read.
    pub(super) fn copy(&self, position: PhysicalOffset, bytes: usize) -> io::Result<Bytes> {
        let mut copy = vec![0; bytes];
        self.file.read_at(position.since(self.base), &mut copy).map_err(|error| self.named(&error))?;
        Ok(copy.into())
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("cannot read {}: {error}", self.path.display()))
    }
}
