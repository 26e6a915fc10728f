//! A table kept in a state file.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{blocking::blocking, failure::Failure};
use crate::{
    env::Clock,
    protocol::ResponseCode,
    store::{FailureRow, Loaded, MessageStore, StateFile},
};

/// A state file that is written whole after changes of its table. One write covers all changes noted before it began, so that many changes at
/// once cost few writes.
pub(crate) struct TableFile {
    name: &'static str,
    file: StateFile,
    /// Number of the last change.
    changed: AtomicU64,
    /// The last change that is in the file.
    saved: Mutex<u64>,
    row: FailureRow,
    clock: Arc<dyn Clock>,
    failures: AtomicU64,
}

impl TableFile {
    /// A state file of a store, by name.
    pub(crate) fn new(name: &'static str, store: &MessageStore) -> Self {
        Self {
            name,
            file: store.state_file(name),
            changed: AtomicU64::new(0),
            saved: Mutex::new(0),
            row: FailureRow::new("save a state file"),
            clock: store.env().clock.clone(),
            failures: AtomicU64::new(0),
        }
    }

    /// Reads the table. An absent one is `None`; so is one that cannot be read, with a loud warning: the broker starts all the same.
    pub(crate) fn load<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        // What reads a table takes a list for a table without members.
        let parse = |text: &str| {
            if text.trim_start().starts_with('{') { parse(text) } else { Err("is no JSON object".to_owned()) }
        };
        match self.file.load(parse) {
            Loaded::Main(table) => Some(table),
            Loaded::Backup(table) => {
                tracing::warn!(file = self.name, "state file was unreadable, its version before is used");
                Some(table)
            }
            Loaded::Absent => None,
            Loaded::Unreadable(reason) => {
                tracing::error!(
                    file = self.name,
                    error = reason,
                    "state file and its backup are unreadable, starting without them"
                );
                None
            }
        }
    }

    /// Takes note of a change. The table must be locked, so that who renders it from now on sees the change.
    pub(crate) fn note_change(&self) {
        self.changed.fetch_add(1, Ordering::AcqRel);
    }

    /// Writes the table after a change made on request, unless the file already holds it.
    ///
    /// # Errors
    /// Code 1: it could not be written; a later save tries again.
    pub(crate) fn save_on_request(&self, render: impl FnOnce() -> Vec<u8>) -> Result<(), Failure> {
        blocking(|| self.save(render)).map_err(|error| {
            let remark = format!("the change holds until the broker stops, but {} was not saved: {error}", self.name);
            Failure::new(ResponseCode::SYSTEM_ERROR, remark)
        })
    }

    /// Writes the table, whose text `render` gives, unless the file already holds all changes. The first failure in a row is logged, then one a
    /// minute, and its end.
    ///
    /// # Errors
    /// As the directory gives them; a later save tries again.
    pub(crate) fn save(&self, render: impl FnOnce() -> Vec<u8>) -> io::Result<()> {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the text: what changes meanwhile may be in it, but counts as not saved.
        let covers = self.changed.load(Ordering::Acquire);
        if *saved >= covers {
            return Ok(());
        }
        let written = self.file.save(&String::from_utf8_lossy(&render()));
        let outcome = written.as_ref().map_err(|error| error as &dyn std::error::Error);
        self.row.attempted(outcome, self.clock.since_boot(), || self.file.display());
        match &written {
            Err(_) => drop(self.failures.fetch_add(1, Ordering::Relaxed)),
            Ok(()) => *saved = covers,
        }
        written
    }

    /// How often it could not be saved since the start.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// As [`TableFile::save`], for tables that hold in memory even if they cannot be saved now.
    pub(crate) fn save_or_warn(&self, render: impl FnOnce() -> Vec<u8>) {
        // Already logged.
        let _ = blocking(|| self.save(render));
    }
}
