//! A table kept in a state file.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::failure::Failure;
use crate::{
    env::Clock,
    protocol::ResponseCode,
    store::{FailureRow, Loaded, MessageStore, StateFile},
};

/// A state file that is written whole after changes of its table. Changes are numbered from 1; one write covers all changes made before it
/// began, so that many changes at once cost few writes.
pub(crate) struct TableFile {
    name: &'static str,
    file: StateFile,
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

    /// Writes the table for a change made on request, unless the file already holds it.
    ///
    /// # Errors
    /// Code 1: it could not be written; a later save tries again.
    pub(crate) fn save_on_request(&self, change: u64, render: impl FnOnce() -> (u64, Vec<u8>)) -> Result<(), Failure> {
        self.save(change, render).map_err(|error| {
            let remark = format!("the change holds until the broker stops, but {} was not saved: {error}", self.name);
            Failure::new(ResponseCode::SYSTEM_ERROR, remark)
        })
    }

    /// Writes the table unless the file already holds the change. `render` gives the last change in the text, and the text. The first failure in
    /// a row is logged, then one a minute, and its end.
    ///
    /// # Errors
    /// As the directory gives them; a later save tries again.
    pub(crate) fn save(&self, change: u64, render: impl FnOnce() -> (u64, Vec<u8>)) -> io::Result<()> {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if *saved >= change {
            return Ok(());
        }
        let (covers, text) = render();
        let written = self.file.save(&String::from_utf8_lossy(&text));
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
    pub(crate) fn save_or_warn(&self, change: u64, render: impl FnOnce() -> (u64, Vec<u8>)) {
        // Already logged.
        let _ = self.save(change, render);
    }
}
