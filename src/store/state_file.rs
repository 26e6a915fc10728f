//! A small JSON file that is never half written.
//!
//! # The order of a save
//!
//! 1. `<name>.tmp` is written and synced. If neither the file nor its `.bak` could be read, both are renamed to `.bad`, for a person to look at.
//! 2. The file is renamed to `<name>.bak`, unless it is not worth keeping: a file known or seen to be damaged must not replace a good `.bak`.
//! 3. `<name>.tmp` is renamed to the file.
//! 4. The folder is synced.
//!
//! On a full disk `<name>.bak` is renamed to `<name>.tmp` and written over: it needs space only as far as the file grew.
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

use super::{
    obstacle::{BAD, clearing, is_denied},
    room::is_full,
};
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
    /// Held by who loads or saves. What was found since the file was last saved.
    condition: Arc<Mutex<Condition>>,
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

/// What was found when the file was read.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Condition {
    /// Nothing wrong.
    #[default]
    Sound,
    /// The file is damaged.
    Damaged,
    /// Neither the file nor its `.bak` can be read.
    Lost,
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
        Self { directory, path, condition: Arc::default() }
    }

    /// The file as a person would type it.
    pub fn display(&self) -> String {
        self.directory.display(&self.path)
    }

    /// Reads the file, or its `.bak`. What was found wrong is logged.
    ///
    /// `parse` turns the text into a value, or says what is wrong with it. A byte order mark is taken off before.
    pub fn load<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> Loaded<T> {
        let mut condition = self.turn();
        let wrong = match self.read(&self.path, &parse) {
            Found::Value(value) => {
                *condition = Condition::Sound;
                debug!(file = self.display(), "file read");
                return Loaded::Main(value);
            }
            Found::Missing => None,
            Found::Bad(reason) => {
                *condition = Condition::Damaged;
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
                // That is so for each file of a new store.
                if self.is_folder_used() {
                    info!(path, "state file absent");
                } else {
                    debug!(path, "state file absent");
                }
                Loaded::Absent
            }
            (Some(reason), Found::Missing) => {
                *condition = Condition::Lost;
                warn!(path, error = reason, "state file damaged, and there is no version before");
                Loaded::Unreadable(format!("{path} {reason}; {backup} does not exist"))
            }
            (wrong, Found::Bad(backup_reason)) => {
                *condition = Condition::Lost;
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

    /// Looks at the file and at its `.bak` without using either: what each holds, `None` if it is not there, or what is wrong with it.
    pub fn inspect<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> [Result<Option<T>, String>; 2] {
        [self.path.clone(), self.beside(BACKUP)].map(|path| match self.read(&path, &parse) {
            Found::Value(value) => Ok(Some(value)),
            Found::Missing => Ok(None),
            Found::Bad(reason) => Err(reason),
        })
    }

    /// Writes the file: aside, synced, the version before renamed to `.bak`, the new one renamed into place, the folder synced.
    ///
    /// Its folder is created if it is missing. What could be read neither from the file nor from its `.bak` is kept as `.bad` and `.bak.bad`, and
    /// so is what stands in the place of one of these files and is none.
    ///
    /// # Errors
    /// As the directory gives them; the file or its `.bak` then holds the version before.
    pub fn save(&self, text: &str) -> io::Result<()> {
        let mut condition = self.turn();
        let files = [&*self.beside(ASIDE), &*self.beside(BACKUP), &*self.path];
        let saved = clearing(&*self.directory, &files, || self.save_as(text, *condition));
        if saved.is_ok() {
            *condition = Condition::Sound;
        }
        saved
    }

    fn save_as(&self, text: &str, mut condition: Condition) -> io::Result<()> {
        let aside = self.beside(ASIDE);
        let folder = self.path.parent().unwrap_or(Path::new(""));
        match self.directory.write(&aside, text.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.directory.create_folder(folder)?;
                self.directory.write(&aside, text.as_bytes())?;
            }
            // Left by somebody else, perhaps a broker of another user.
            Err(error) if is_denied(&error) => {
                self.directory.remove(&aside)?;
                self.directory.write(&aside, text.as_bytes())?;
            }
            // On a full disk the space of the version before must do, as long as the file itself is sound.
            Err(error) if is_full(&error) && condition == Condition::Sound && self.is_whole() => {
                self.directory.rename(&self.beside(BACKUP), &aside).map_err(|_| error)?;
                self.directory.write(&aside, text.as_bytes())?;
            }
            written => written?,
        }
        if condition == Condition::Lost {
            self.keep_as_bad(&self.path)?;
            self.keep_as_bad(&self.beside(BACKUP))?;
            condition = Condition::Damaged;
        }
        // A file that cannot be read is not kept either.
        let keeps = condition == Condition::Sound && self.is_whole();
        if keeps {
            self.directory.rename(&self.path, &self.beside(BACKUP))?;
        }
        self.directory.rename(&aside, &self.path)?;
        self.directory.sync_folder(folder)?;
        Ok(())
    }

    /// Whether the file is there and has no sign of damage.
    fn is_whole(&self) -> bool {
        matches!(self.directory.read(&self.path), Ok(Some(bytes)) if seems_whole(&bytes))
    }

    /// Renames what cannot be read, if it is there.
    fn keep_as_bad(&self, path: &Path) -> io::Result<()> {
        let bad = with_suffix(path, BAD);
        match self.directory.rename(path, &bad) {
            Ok(()) => {
                warn!(path = self.directory.display(path), kept = self.directory.display(&bad), "unreadable file kept");
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // What was kept before may be of another kind.
            Err(_) => self.directory.remove(&bad).and_then(|()| self.directory.rename(path, &bad)),
        }
    }

    /// Whether its folder holds a file that was saved more than once.
    fn is_folder_used(&self) -> bool {
        let listed = self.directory.list(self.path.parent().unwrap_or(Path::new("")));
        listed.is_ok_and(|listed| listed.iter().any(|entry| entry.name.ends_with(BACKUP)))
    }

    fn turn(&self) -> MutexGuard<'_, Condition> {
        // The value is valid whatever a panicking holder was doing.
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        with_suffix(&self.path, suffix)
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

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Whether bytes have the outline of a JSON object or list: enough to see a file that was cut, emptied or overwritten.
fn seems_whole(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii();
    !text.contains(&0) && matches!(text.last(), Some(b'}' | b']')) && std::str::from_utf8(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{MemoryDirectory, Operation};

    const PATH: &str = "config/topics.json";

    fn file(directory: &MemoryDirectory) -> StateFile {
        StateFile::new(Arc::new(directory.clone()), PATH.into())
    }

    fn json(text: &str) -> Result<serde_json::Value, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    fn version(number: u32) -> String {
        format!("{{\n\t\"version\":{number}\n}}")
    }

    fn load(directory: &MemoryDirectory) -> Loaded<u64> {
        file(directory).load(|text| json(text)?["version"].as_u64().ok_or_else(|| "has no version".to_owned()))
    }

    fn main(directory: &MemoryDirectory, bytes: &[u8]) {
        directory.write(Path::new(PATH), bytes).unwrap();
    }

    fn saved(count: u32) -> MemoryDirectory {
        let directory = MemoryDirectory::new();
        for number in 1..=count {
            file(&directory).save(&version(number)).unwrap();
        }
        directory
    }

    #[test]
    fn what_was_saved_is_loaded_and_the_version_before_is_kept() {
        let directory = saved(2);

        assert_eq!(load(&directory), Loaded::Main(2));
        assert_eq!(directory.read(Path::new("config/topics.json.bak")).unwrap().unwrap(), version(1).as_bytes());
        assert_eq!(directory.list(Path::new("config")).unwrap().len(), 2, "nothing else is left");
    }

    #[test]
    fn a_file_that_never_was_is_absent() {
        assert_eq!(load(&MemoryDirectory::new()), Loaded::Absent);
    }

    /// Users found their topics gone after a power cut: the file was empty, and the broker started with defaults.
    #[test]
    fn a_damaged_file_gives_way_to_the_version_before_and_says_so_without_one() {
        let cut = &version(9).into_bytes()[..9];
        let damages: [(&[u8], &str); 5] = [
            (b"", "is empty"),
            (&[0; 40], "holds 40 NUL bytes"),
            (cut, "EOF while parsing"),
            (&[0xFF, 0xFE, 7, 0x80], "is not UTF-8 from byte 0 on"),
            (b"{\"other\":1}", "has no version"),
        ];
        for (bytes, reason) in damages {
            let directory = saved(2);
            main(&directory, bytes);
            assert_eq!(load(&directory), Loaded::Backup(1), "{reason}");

            let alone = MemoryDirectory::new();
            alone.create_folder(Path::new("config")).unwrap();
            main(&alone, bytes);
            let Loaded::Unreadable(found) = load(&alone) else { panic!("{reason}") };
            assert!(found.contains(reason), "{found}");
            assert!(found.contains("topics.json.bak does not exist"), "{found}");

            main(&alone, &version(3).into_bytes());
            alone.rename(Path::new(PATH), Path::new("config/topics.json.bak")).unwrap();
            assert_eq!(load(&alone), Loaded::Backup(3), "a missing file");
        }
    }

    #[test]
    fn two_damaged_files_are_both_named() {
        let directory = saved(2);
        main(&directory, b"");
        directory.write(Path::new("config/topics.json.bak"), &[0; 8]).unwrap();

        let Loaded::Unreadable(reason) = load(&directory) else { panic!() };

        assert!(reason.contains("topics.json is empty"), "{reason}");
        assert!(reason.contains("topics.json.bak holds 8 NUL bytes"), "{reason}");
    }

    #[test]
    fn what_cannot_be_read_at_all_is_kept_for_a_person_to_look_at() {
        let directory = saved(2);
        main(&directory, b"[]");
        directory.write(Path::new("config/topics.json.bak"), &[0; 8]).unwrap();
        let file = file(&directory);
        let loaded = file.load(|text| json(text)?["version"].as_u64().ok_or_else(|| "has no version".to_owned()));
        assert!(matches!(loaded, Loaded::Unreadable(_)));

        file.save(&version(3)).unwrap();
        file.save(&version(4)).unwrap();

        let kept = |name: &str| directory.read(Path::new(name)).unwrap();
        assert_eq!(kept("config/topics.json.bad").as_deref(), Some(&b"[]"[..]));
        assert_eq!(kept("config/topics.json.bak.bad").as_deref(), Some(&[0; 8][..]));
        main(&directory, b"");
        assert_eq!(load(&directory), Loaded::Backup(3));
    }

    #[test]
    fn a_folder_in_the_place_of_the_file_is_not_taken_for_an_absent_file_and_moved_by_a_save() {
        for path in [PATH, "config/topics.json.bak", "config/topics.json.tmp"] {
            let root = tempfile::tempdir().unwrap();
            let directory = crate::env::FsDirectory::open(root.path()).unwrap();
            let file = StateFile::new(Arc::new(directory.clone()), PATH.into());
            let load = || file.load(|text| json(text)?["version"].as_u64().ok_or_else(String::new));
            file.save(&version(1)).unwrap();
            file.save(&version(2)).unwrap();
            directory.remove(Path::new(path)).unwrap();
            directory.create_folder(Path::new(path)).unwrap();
            let before = if path == PATH { Loaded::Backup(1) } else { Loaded::Main(2) };
            assert_eq!(load(), before, "{path}");

            file.save(&version(3)).unwrap();

            assert_eq!(load(), Loaded::Main(3), "{path}");
            assert!(directory.list(Path::new("config")).unwrap().iter().any(|entry| entry.name.ends_with(".bad")));
        }
        let directory = MemoryDirectory::new();
        directory.create_folder(Path::new(PATH)).unwrap();
        assert!(matches!(load(&directory), Loaded::Unreadable(reason) if reason.contains("cannot be read")));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_taken_for_an_absent_one() {
        let directory = saved(1);
        directory.fail_after(Operation::Read, 0, io::ErrorKind::PermissionDenied, 1);

        assert!(matches!(load(&directory), Loaded::Unreadable(_)));
    }

    #[test]
    fn a_byte_order_mark_is_taken_off() {
        let directory = saved(1);
        main(&directory, format!("\u{feff}{}", version(5)).as_bytes());

        assert_eq!(load(&directory), Loaded::Main(5));
    }

    #[test]
    fn a_damaged_file_never_replaces_a_good_version_before() {
        for bytes in [&b""[..], &[0; 40], b"{\"version\":", b"{\"other\":1}"] {
            let directory = saved(2);
            main(&directory, bytes);
            let file = file(&directory);
            assert_eq!(file.load(|text| json(text)?["version"].as_u64().ok_or_else(String::new)), Loaded::Backup(1));

            file.save(&version(3)).unwrap();

            assert_eq!(load(&directory), Loaded::Main(3));
            main(&directory, b"");
            assert_eq!(load(&directory), Loaded::Backup(1), "after {bytes:?}");
        }
    }

    #[test]
    fn a_file_that_was_cut_replaces_no_good_version_before_even_if_nobody_looked() {
        for bytes in [&b""[..], &[0; 40], b"{\"version\":", b"{\"version\":1\0}"] {
            let directory = saved(2);
            main(&directory, bytes);

            file(&directory).save(&version(3)).unwrap();

            main(&directory, b"");
            assert_eq!(load(&directory), Loaded::Backup(1), "after {bytes:?}");
        }
    }

    #[test]
    fn a_save_that_fails_leaves_the_version_before() {
        for operation in [Operation::Write, Operation::Sync, Operation::Rename] {
            for after in 0..2 {
                let directory = saved(2);
                directory.fail_after(operation, after, io::ErrorKind::StorageFull, 1);
                let outcome = file(&directory).save(&version(3));
                directory.heal();

                let loaded = load(&directory).value().unwrap();
                assert!(if outcome.is_ok() { loaded == 3 } else { loaded >= 2 }, "{operation:?} {after}: {loaded}");
                file(&directory).save(&version(4)).unwrap();
                assert_eq!(load(&directory), Loaded::Main(4));
            }
        }
    }

    #[test]
    fn store_37_a_save_cut_at_any_step_leaves_the_version_before_or_the_new_one() {
        for before in 0..3 {
            let undisturbed = saved(before);
            let first = undisturbed.steps();
            file(&undisturbed).save(&version(before + 1)).unwrap();
            for step in 1..=undisturbed.steps() - first {
                let directory = saved(before);
                directory.crash_at(first + step);
                let outcome = file(&directory).save(&version(before + 1));
                assert!(outcome.is_err());

                let ways = (0..40).map(|seed| directory.crash(seed)).chain([directory.kill()]);
                for left in ways {
                    match load(&left) {
                        Loaded::Absent => assert_eq!(before, 0, "step {step}"),
                        loaded => {
                            let found = loaded.value().unwrap();
                            assert!([before, before + 1].map(u64::from).contains(&found), "step {step}: {found}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_saved_survives_a_power_cut() {
        let directory = saved(3);

        for seed in 0..40 {
            assert_eq!(load(&directory.crash(seed)), Loaded::Main(3));
        }
    }
}
