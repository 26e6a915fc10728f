//! What shall go wrong in a directory in memory, and a count of what happened.

use std::{
    io,
    path::{Path, PathBuf},
};

/// A kind of operation that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Listing, opening, reading, slicing.
    Read = 1,
    /// Writing, zeroing, changing the length.
    Write,
    /// Syncing a file or a folder.
    Sync,
    /// Creating a file or a folder.
    Create,
    /// Renaming.
    Rename,
    /// Removing.
    Remove,
}

/// What becomes of one operation.
pub(super) enum Verdict {
    Go,
    /// It fails with this error.
    Fault(io::Error),
    /// The machine stops in the middle of it.
    Crash,
}

struct Fault {
    operation: Operation,
    folder: PathBuf,
    after: u64,
    kind: io::ErrorKind,
    times: u64,
}

/// Decides what becomes of each operation.
#[derive(Default)]
pub(super) struct Faults {
    faults: Vec<Fault>,
    steps: u64,
    crash_at: Option<u64>,
    stopped: bool,
    trace: Trace,
}

/// A running hash of all operations (FNV-1a).
struct Trace(u64);

impl Faults {
    /// An operation begins. `details` only go into the trace.
    pub(super) fn begin(&mut self, operation: Operation, path: &Path, details: &[u64]) -> io::Result<Verdict> {
        self.check_running()?;
        self.trace.add(&[operation as u8]);
        self.trace.add(path.as_os_str().as_encoded_bytes());
        for detail in details {
            self.trace.add(&detail.to_be_bytes());
        }
        if operation != Operation::Read {
            self.steps += 1;
            if self.crash_at.is_some_and(|step| self.steps >= step) {
                self.stopped = true;
                return Ok(Verdict::Crash);
            }
        }
        for fault in &mut self.faults {
            if fault.operation != operation || fault.times == 0 || !path.starts_with(&fault.folder) {
                continue;
            }
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            fault.times -= 1;
            return Ok(Verdict::Fault(io::Error::new(fault.kind, "injected fault")));
        }
        Ok(Verdict::Go)
    }

    pub(super) fn check_running(&self) -> io::Result<()> {
        if self.stopped { Err(stopped()) } else { Ok(()) }
    }

    pub(super) fn add(&mut self, operation: Operation, folder: PathBuf, after: u64, kind: io::ErrorKind, times: u64) {
        self.faults.push(Fault { operation, folder, after, kind, times });
    }

    pub(super) fn heal(&mut self) {
        self.faults.clear();
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    pub(super) fn crash_at(&mut self, step: u64) {
        self.crash_at = Some(step);
    }

    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.stopped
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace.0
    }
}

/// The error of all that is tried after the machine stopped.
pub(super) fn stopped() -> io::Error {
    io::Error::other("the machine has stopped")
}

impl Default for Trace {
    fn default() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }
}

impl Trace {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}
