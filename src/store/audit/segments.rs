//! The log, read in order through a buffer.

use std::{io, sync::Arc};

use super::{
    super::{StoreError, StoreOptions, scan::next_sound, segment::Segment},
    Findings, io_error,
};
use crate::{
    env::{EntryKind, Env, File},
    model::PhysicalOffset,
    record::{Frame, kind, layout::BLANK_BYTES_MIN},
};

/// Bytes read at once.
const WINDOW_BYTES: usize = 4 << 20;
/// Longest record that is believed to be one: longer bodies than this were never allowed.
const RECORD_BYTES_MAX: usize = 128 << 20;
/// What may come on top of the largest body in a record.
const RECORD_OVERHEAD_BYTES: usize = 128 << 10;
/// How far a failed read is stepped over at once: a page of the system.
const PAGE_BYTES: u64 = 4096;

/// A file of the log.
pub(super) struct SegmentFile {
    pub(super) base: PhysicalOffset,
    /// The length that it should have.
    pub(super) bytes: u64,
    pub(super) modified_ms: i64,
    name: String,
}

impl SegmentFile {
    /// The position behind its last byte.
    pub(super) fn end(&self) -> PhysicalOffset {
        self.base.plus(self.bytes)
    }
}

/// Finds the segments, oldest first.
pub(super) fn find_segments(
    env: &Env,
    options: &StoreOptions,
    unclean: bool,
    findings: &mut Findings,
) -> Result<Vec<SegmentFile>, StoreError> {
    let directory = &*env.directory;
    let folder = &options.commit_log_folder;
    let listed = directory.list(folder).map_err(|source| io_error(directory, "list", folder, source))?;
    let mut found = Vec::new();
    for entry in listed {
        let path = folder.join(&entry.name);
        match Segment::parse_name(&entry.name).filter(|_| entry.kind == EntryKind::File) {
            Some(base) => found.push((base, entry)),
            None => findings.note(
                "files",
                path.display(),
                "is no segment of the log, and is left alone; Apache RocketMQ does not start with it",
            ),
        }
    }
    let count = found.len();
    let is_right_length = found.iter().any(|(_, entry)| entry.bytes == options.segment_bytes);
    let mut segments = Vec::new();
    for (index, (base, entry)) in found.into_iter().enumerate() {
        let path = folder.join(&entry.name);
        let bytes = options.segment_bytes;
        let is_newest = index + 1 == count;
        if entry.bytes == 0 && is_newest && count > 1 {
            findings.mends("commit log", path.display(), "is empty; the next start removes it");
            continue;
        }
        if entry.bytes > bytes && is_right_length {
            let text = format!(
                "has {} bytes, more than the {bytes} of a segment; those behind are not used, and Apache RocketMQ does not start with it",
                entry.bytes
            );
            findings.note("commit log", path.display(), &text);
        } else if entry.bytes > bytes || !base.0.is_multiple_of(bytes) {
            return Err(StoreError::FileLength {
                path: directory.display(&path),
                found: entry.bytes,
                wanted: bytes,
                key: "mappedFileSizeCommitLog",
            });
        }
        if entry.bytes < bytes {
            let text = format!("has {} of {bytes} bytes", entry.bytes);
            if is_newest && unclean {
                findings.mends("commit log", path.display(), &format!("{text}; the next start makes it whole"));
            } else {
                findings.damage("commit log", path.display(), &text);
            }
        }
        segments.push(SegmentFile { base, bytes, modified_ms: entry.modified_ms, name: entry.name });
    }
    for segment in &mut segments {
        segment.name = folder.join(&segment.name).to_string_lossy().into_owned();
    }
    Ok(segments)
}

/// Reads one segment.
pub(super) struct SegmentReader {
    file: Arc<dyn File>,
    base: PhysicalOffset,
    /// The length that the file has.
    bytes: u64,
    buffer: Vec<u8>,
    /// Where in the file the buffer begins.
    at: u64,
}

impl SegmentReader {
    pub(super) fn open(env: &Env, segment: &SegmentFile) -> Result<Self, StoreError> {
        let path = std::path::Path::new(&segment.name);
        let file = env.directory.open(path).map_err(|source| io_error(&*env.directory, "open", path, source))?;
        let bytes = file.bytes().min(segment.bytes);
        Ok(Self { file, base: segment.base, bytes, buffer: Vec::new(), at: 0 })
    }

    /// The bytes from a position on: all of the record that begins there, if one does, and a little more.
    pub(super) fn record_at(&mut self, position: PhysicalOffset) -> io::Result<&[u8]> {
        let offset = position.since(self.base);
        let start = self.window(offset, BLANK_BYTES_MIN)?;
        if let Frame::Record { bytes } = kind(start)
            && (bytes as usize) <= RECORD_BYTES_MAX
        {
            return self.window(offset, bytes as usize + BLANK_BYTES_MIN);
        }
        self.window(offset, BLANK_BYTES_MIN)
    }

    /// The bytes from an offset on, at least so many if the file has them.
    fn window(&mut self, offset: u64, wanted: usize) -> io::Result<&[u8]> {
        let wanted = usize::try_from(self.bytes.saturating_sub(offset)).map_or(wanted, |left| left.min(wanted));
        let inside = offset.checked_sub(self.at).and_then(|skipped| usize::try_from(skipped).ok());
        if let Some(skipped) = inside.filter(|skipped| skipped + wanted <= self.buffer.len()) {
            return Ok(&self.buffer[skipped..]);
        }
        let left = usize::try_from(self.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let bytes = wanted.max(WINDOW_BYTES).min(left);
        self.buffer.resize(bytes, 0);
        self.at = offset;
        let next = offset + bytes as u64;
        self.file.will_need(next..(next + WINDOW_BYTES as u64).min(self.bytes));
        if let Err(error) = self.file.read_at(offset, &mut self.buffer) {
            self.buffer.clear();
            // A smaller part may be readable.
            let bytes = wanted.min(left);
            self.buffer.resize(bytes, 0);
            if self.file.read_at(offset, &mut self.buffer).is_err() {
                self.buffer.clear();
                return Err(error);
            }
        }
        Ok(&self.buffer)
    }

    /// The first position from `position` on at which a page can be read.
    pub(super) fn readable_behind(&mut self, position: PhysicalOffset) -> PhysicalOffset {
        let mut offset = position.since(self.base);
        let mut page = [0; PAGE_BYTES as usize];
        while offset < self.bytes {
            let bytes = (self.bytes - offset).min(PAGE_BYTES - offset % PAGE_BYTES);
            let bytes = usize::try_from(bytes).unwrap_or(page.len());
            if self.file.read_at(offset, &mut page[..bytes]).is_ok() {
                break;
            }
            offset += bytes as u64;
        }
        self.base.plus(offset)
    }

    /// The next sound record behind a position.
    pub(super) fn next_sound(
        &mut self,
        position: PhysicalOffset,
        body_bytes_max: usize,
    ) -> Result<Option<PhysicalOffset>, StoreError> {
        let longest = body_bytes_max + RECORD_OVERHEAD_BYTES;
        let mut offset = position.since(self.base);
        while offset < self.bytes {
            let from = self.base.plus(offset);
            match self.window(offset, longest + WINDOW_BYTES) {
                Ok(window) => {
                    if let Some(distance) = next_sound(window, from) {
                        return Ok(Some(from.plus(distance as u64)));
                    }
                    // A record that begins in the last part may be cut by the window.
                    let length = window.len() as u64;
                    if offset + length >= self.bytes {
                        return Ok(None);
                    }
                    offset += length.saturating_sub(longest as u64).max(1);
                }
                Err(_) => offset = self.readable_behind(from.plus(1)).since(self.base).max(offset + 1),
            }
        }
        Ok(None)
    }

    /// The first byte from a position on that is not zero.
    pub(super) fn first_written(&mut self, position: PhysicalOffset) -> Option<PhysicalOffset> {
        let mut offset = position.since(self.base);
        while offset < self.bytes {
            let Ok(window) = self.window(offset, WINDOW_BYTES) else { return Some(self.base.plus(offset)) };
            // Compared in blocks first: nearly all is zero.
            let blocks = window.chunks(PAGE_BYTES as usize);
            let mut at = 0;
            for block in blocks {
                if block.iter().fold(0, |any, byte| any | byte) != 0 {
                    let inside = block.iter().position(|&byte| byte != 0).unwrap_or(0);
                    return Some(self.base.plus(offset + (at + inside) as u64));
                }
                at += block.len();
            }
            offset += at as u64;
            if at == 0 {
                break;
            }
        }
        None
    }
}
