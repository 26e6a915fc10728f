//! A small JSON file that is never half written.

use std::{io, path::PathBuf, sync::Arc};

use crate::env::Directory;

/// A state file of the folder `config`: written aside, synced and renamed, the version before kept as `.bak`.
#[derive(Clone)]
pub struct StateFile {
    directory: Arc<dyn Directory>,
    path: PathBuf,
}

/// What [`StateFile::load`] found.
#[derive(Debug, Clone, PartialEq)]
pub enum Loaded<T> {
    /// The file itself.
    Main(T),
    /// The file was missing or unreadable; the version before it.
    Backup(T),
    /// Neither the file nor its `.bak` exists.
    Absent,
    /// At least one of the two exists, but neither can be read; the reason names both.
    Unreadable(String),
}

impl StateFile {
    /// The state file at `path`.
    pub fn new(directory: Arc<dyn Directory>, path: PathBuf) -> Self {
        Self { directory, path }
    }

    /// Reads the file, or its `.bak`. What was found wrong is logged.
    ///
    /// `parse` turns the text into a value, or says what is wrong with it.
    pub fn load<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> Loaded<T> {
        let _ = (&self.directory, &self.path, parse);
        todo!()
    }

    /// Writes the file: aside, synced, the version before renamed to `.bak`, the new one renamed into place, the folder synced.
    ///
    /// # Errors
    /// As the directory gives them; the file or its `.bak` then holds the version before.
    pub fn save(&self, text: &str) -> io::Result<()> {
        let _ = text;
        todo!()
    }
}
