//! What a connection still has to write.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use tokio::net::TcpStream;

use crate::protocol::{Command, FrameError, Guard, frame};

/// Bodies up to this size are copied behind their header; a slice of their own would cost more.
const COPIED_BODY_BYTES: usize = 512;
/// Most slices handed to one write.
const SLICES_PER_WRITE: usize = 64;

/// Encoded frames in the order they go out: headers and small bodies share buffers, larger bodies are slices of where they lie.
///
/// A body with a guard is written only as long as that says yes. If it does not, the connection ends, and the peer asks again over another.
#[derive(Default)]
pub(super) struct Output {
    slices: VecDeque<Slice>,
    /// A body that was copied is not what it should be.
    is_broken: bool,
    /// Comes after all `slices`.
    open: BytesMut,
    bytes: usize,
}

struct Slice {
    bytes: Bytes,
    guard: Option<Guard>,
}

impl Slice {
    fn is_sound(&self) -> bool {
        self.guard.as_ref().is_none_or(|guard| guard())
    }
}

impl Output {
    /// Bytes not yet taken by the socket.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// The command does not fit a frame; nothing is added.
    pub(super) fn push(&mut self, command: Command) -> Result<(), FrameError> {
        let before = self.open.len();
        frame::encode(&command, &mut self.open)?;
        self.bytes += self.open.len() - before + command.body.len();
        if command.body.len() <= COPIED_BODY_BYTES {
            for slice in command.body.slices() {
                self.open.extend_from_slice(slice);
            }
            self.is_broken |= command.body.guard().is_some_and(|guard| !guard());
        } else {
            self.seal();
            let guard = command.body.guard().cloned();
            let slices = command.body.into_slices().filter(|slice| !slice.is_empty());
            self.slices.extend(slices.map(|bytes| Slice { bytes, guard: guard.clone() }));
        }
        Ok(())
    }

    /// Adds whole frames.
    pub(super) fn push_frames(&mut self, frames: BytesMut) {
        if !frames.is_empty() {
            self.bytes += frames.len();
            self.seal();
            self.slices.push_back(Slice { bytes: frames.freeze(), guard: None });
        }
    }

    fn seal(&mut self) {
        if !self.open.is_empty() {
            self.slices.push_back(Slice { bytes: self.open.split().freeze(), guard: None });
        }
    }

    /// Writes as much as the socket takes now; tells how many bytes that were.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn write_to(&mut self, stream: &TcpStream) -> io::Result<usize> {
        self.seal();
        let mut total = 0;
        while !self.slices.is_empty() {
            let count = self.slices.len().min(SLICES_PER_WRITE);
            self.check(count)?;
            let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE];
            for (io, slice) in slices.iter_mut().zip(&self.slices) {
                *io = IoSlice::new(&slice.bytes);
            }
            let written = stream.try_write_vectored(&slices[..count]);
            self.check(count)?;
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    total += written;
                    self.advance(written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    /// Whether the next slices are what they should be.
    fn check(&self, count: usize) -> io::Result<()> {
        if self.is_broken || !self.slices.iter().take(count).all(Slice::is_sound) {
            return Err(io::Error::other("the messages of an answer cannot be read any more"));
        }
        Ok(())
    }

    fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while let Some(first) = self.slices.front_mut() {
            if written < first.bytes.len() {
                first.bytes.advance(written);
                return;
            }
            written -= first.bytes.len();
            self.slices.pop_front();
        }
    }
}
