//! What a connection still has to write.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use tokio::net::TcpStream;

use crate::protocol::{Command, FrameError, frame};

/// Bodies up to this size are copied behind their header; a slice of their own would cost more.
const COPIED_BODY_BYTES: usize = 512;
/// Most slices handed to one write.
const SLICES_PER_WRITE: usize = 64;

/// Encoded frames in the order they go out: headers and small bodies share buffers, larger bodies are slices of where they lie.
#[derive(Default)]
pub(super) struct Output {
    slices: VecDeque<Bytes>,
    /// Comes after all `slices`.
    open: BytesMut,
    bytes: usize,
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
        } else {
            self.seal();
            self.slices.extend(command.body.into_slices().filter(|slice| !slice.is_empty()));
        }
        Ok(())
    }

    fn seal(&mut self) {
        if !self.open.is_empty() {
            self.slices.push_back(self.open.split().freeze());
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
            let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE];
            let count = self.slices.len().min(SLICES_PER_WRITE);
            for (io, slice) in slices.iter_mut().zip(&self.slices) {
                *io = IoSlice::new(slice);
            }
            match stream.try_write_vectored(&slices[..count]) {
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

    fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while let Some(first) = self.slices.front_mut() {
            if written < first.len() {
                first.advance(written);
                return;
            }
            written -= first.len();
            self.slices.pop_front();
        }
    }
}
