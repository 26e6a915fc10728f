//! A small JSON file that is never half written.
//!
//! # The order of a save
//!
//! 1. `<name>.tmp` is written and synced.
//! 2. The file is renamed to `<name>.bak`, unless it is not worth keeping: a file known or seen to be damaged must not replace a good `.bak`.
//! 3. `<name>.tmp` is renamed to the file.
//! 4. The folder is synced.
//!
//! Between 2 and 3 only the `.bak` exists, and it holds the version before; at every other moment the file itself can be loaded. What a crash
//! leaves is therefore the version before or the new one, never less.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tracing::{debug, info, warn};

use crate::env::Directory;

const ASIDE: &str = ".tmp";
const BACKUP: &str = ".bak";
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A state file of the folder `config`: written aside, synced and renamed, the version before kept as `.bak`.
///
/// Clones are the same file: they take turns.
#[derive(Clone)]
pub struct StateFile {
    directory: Arc<dyn Directory>,
    path: PathBuf,
    /// Held by who loads or saves. Whether the file was found damaged since it was last saved.
    damaged: Arc<Mutex<bool>>,
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

impl<T> Loaded<T> {
    /// The value, wherever it came from.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Main(value) | Self::Backup(value) => Some(value),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }
}

/// What one of the two files holds.
enum Found<T> {
    Value(T),
    Missing,
    Bad(String),
}

impl StateFile {
    /// The state file at `path`.
    pub fn new(directory: Arc<dyn Directory>, path: PathBuf) -> Self {
        Self { directory, path, damaged: Arc::default() }
    }

    /// The file as a person would type it.
    pub fn display(&self) -> String {
        self.directory.display(&self.path)
    }

    /// Reads the file, or its `.bak`. What was found wrong is logged.
    ///
    /// `parse` turns the text into a value, or says what is wrong with it. A byte order mark is taken off before.
    pub fn load<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> Loaded<T> {
        let mut damaged = self.turn();
        let wrong = match self.read(&self.path, &parse) {
            Found::Value(value) => {
                *damaged = false;
                info!(file = self.display(), "file read");
                return Loaded::Main(value);
            }
            Found::Missing => None,
            Found::Bad(reason) => {
                *damaged = true;
                Some(reason)
            }
        };
        let path = self.display();
        let backup_path = self.beside(BACKUP);
        let backup = self.directory.display(&backup_path);
        match (wrong, self.read(&backup_path, &parse)) {
            (Some(reason), Found::Value(value)) => {
                warn!(path, error = reason, used = backup, "state file damaged, the version before is used");
                Loaded::Backup(value)
            }
            (None, Found::Value(value)) => {
                warn!(path, used = backup, "state file missing, the version before is used");
                Loaded::Backup(value)
            }
            (None, Found::Missing) => {
                debug!(path, "state file absent");
                Loaded::Absent
            }
            (Some(reason), Found::Missing) => {
                warn!(path, error = reason, "state file damaged, and there is no version before");
                Loaded::Unreadable(format!("{path} {reason}; {backup} does not exist"))
            }
            (wrong, Found::Bad(backup_reason)) => {
                let reason = wrong.unwrap_or_else(|| "does not exist".to_owned());
                warn!(
                    path,
                    error = reason,
                    backup_error = backup_reason,
                    "state file and the version before are damaged"
                );
                Loaded::Unreadable(format!("{path} {reason}; {backup} {backup_reason}"))
            }
        }
    }

    /// Writes the file: aside, synced, the version before renamed to `.bak`, the new one renamed into place, the folder synced.
    ///
    /// Its folder is created if it is missing.
    ///
    /// # Errors
    /// As the directory gives them; the file or its `.bak` then holds the version before.
    pub fn save(&self, text: &str) -> io::Result<()> {
        let mut damaged = self.turn();
        let aside = self.beside(ASIDE);
        let folder = self.path.parent().unwrap_or(Path::new(""));
        match self.directory.write(&aside, text.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.directory.create_folder(folder)?;
                self.directory.write(&aside, text.as_bytes())?;
            }
            written => written?,
        }
        // A file that cannot be read is not kept either; if a folder is in its place, the rename below says so.
        let keeps = !*damaged && matches!(self.directory.read(&self.path), Ok(Some(bytes)) if seems_whole(&bytes));
        if keeps {
            self.directory.rename(&self.path, &self.beside(BACKUP))?;
        }
        self.directory.rename(&aside, &self.path)?;
        self.directory.sync_folder(folder)?;
        *damaged = false;
        Ok(())
    }

    fn turn(&self) -> MutexGuard<'_, bool> {
        // The flag is valid whatever a panicking holder was doing.
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(suffix);
        name.into()
    }

    fn read<T>(&self, path: &Path, parse: &impl Fn(&str) -> Result<T, String>) -> Found<T> {
        let bytes = match self.directory.read(path) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Found::Missing,
            Err(error) => return Found::Bad(format!("cannot be read: {error}")),
        };
        if bytes.is_empty() {
            return Found::Bad("is empty".to_owned());
        }
        if bytes.iter().all(|&byte| byte == 0) {
            return Found::Bad(format!("holds {} NUL bytes", bytes.len()));
        }
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text),
            Err(error) => return Found::Bad(format!("is not UTF-8 from byte {} on", error.valid_up_to())),
        };
        match parse(text) {
            Ok(value) => Found::Value(value),
            Err(reason) => Found::Bad(reason),
        }
    }
}

/// Whether bytes have the outline of a JSON object or list: enough to see a file that was cut, emptied or overwritten.
fn seems_whole(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii();
    !text.contains(&0) && matches!(text.last(), Some(b'}' | b']')) && std::str::from_utf8(text).is_ok()
}
