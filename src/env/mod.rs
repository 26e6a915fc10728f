//! The only doors outside: clocks, the directory and its files. All unsafe code of the crate is in `fs_map.rs`.
//!
//! Everything above takes an [`Env`], so that a test can move time instead of sleeping and can lose what was not synced.

mod clock;
mod clock_system;
mod clock_test;
mod directory;
mod fs;
mod fs_map;
mod memory;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

pub use clock::{BootId, Clock};
pub use clock_system::SystemClock;
pub use clock_test::TestClock;
pub use directory::{Allocation, Directory, Entry, EntryKind, File, Lock, Soundness, Space};
pub use fs::FsDirectory;
pub use memory::{Forbidden, MemoryDirectory, Operation};

/// What the rest of the broker is given of the outside world.
#[derive(Clone)]
pub struct Env {
    /// Wall clock and boot-time clock.
    pub clock: Arc<dyn Clock>,
    /// The store's folder.
    pub directory: Arc<dyn Directory>,
    /// Called when a promise can no longer be kept (a failed sync, a panic inside the append section): the process must end with this
    /// reason on stderr and a non-zero exit. It may return; the store accepts nothing afterwards.
    pub fatal: Arc<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env").finish_non_exhaustive()
    }
}
