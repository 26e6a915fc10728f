//! What stands where a file of the store belongs, and is none: a folder, or a link that leads nowhere; what stands where a folder belongs; and what
//! may not be read or written. It is moved out of the way, never removed: a person may want it.

use std::{ffi::OsString, fmt, io, path::Path};

use tracing::warn;

use crate::env::{Directory, Entry, EntryKind};

/// What the name of something that was moved ends with.
pub(super) const BAD: &str = ".bad";
/// Most things of one name that are kept.
const KEPT_MAX: u32 = 100;

/// Does something with files; if it fails since something else stands in the place of one of them, moves that away and tries once more.
///
/// # Errors
/// That of the last attempt, or of the moving.
pub(super) fn clearing<T>(
    directory: &dyn Directory,
    files: &[&Path],
    attempt: impl Fn() -> io::Result<T>,
) -> io::Result<T> {
    let error = match attempt() {
        Err(error) => error,
        done => return done,
    };
    let mut moved = false;
    for file in files {
        moved |= clear(directory, file)?;
    }
    if moved { attempt() } else { Err(error) }
}

/// Creates a folder; what else stands in its place, or in that of a folder of the store that it lies in, is moved away.
///
/// # Errors
/// As the directory gives them.
pub(super) fn create_folder(directory: &dyn Directory, folder: &Path) -> io::Result<()> {
    directory.create_folder(folder).or_else(|error| {
        let mut path: Vec<&Path> = folder.ancestors().filter(|above| !above.as_os_str().is_empty()).collect();
        if folder.is_absolute() {
            path.truncate(1);
        }
        let mut moved = false;
        for above in path.into_iter().rev() {
            moved |= move_away(directory, above, EntryKind::Folder)?;
        }
        if moved { directory.create_folder(folder) } else { Err(error) }
    })
}

/// What stands at a path, if anything does.
///
/// # Errors
/// As the directory gives them.
pub(super) fn what_stands(directory: &dyn Directory, path: &Path) -> io::Result<Option<Entry>> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
    let listed = directory.list(path.parent().unwrap_or(Path::new("")))?;
    Ok(listed.into_iter().find(|entry| entry.name == name))
}

/// Moves away what stands in the place of a file and is none; says whether there was something.
///
/// # Errors
/// As the directory gives them.
pub(super) fn clear(directory: &dyn Directory, file: &Path) -> io::Result<bool> {
    move_away(directory, file, EntryKind::File)
}

fn move_away(directory: &dyn Directory, file: &Path, belongs: EntryKind) -> io::Result<bool> {
    if what_stands(directory, file)?.is_none_or(|entry| entry.kind == belongs) {
        return Ok(false);
    }
    let kept = set_aside(directory, file)?;
    let path = directory.display(file);
    match belongs {
        EntryKind::Folder => warn!(path, kept, "no folder, and in the place of one: moved"),
        _ => warn!(path, kept, "no file, and in the place of one: moved"),
    }
    Ok(true)
}

/// Moves away what cannot be used; says where it is now.
///
/// # Errors
/// As the directory gives them.
pub(super) fn set_aside(directory: &dyn Directory, file: &Path) -> io::Result<String> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut kept = OsString::from(file);
    kept.push(BAD);
    // What was kept before under this name was in the way before, too. What may not be removed stays.
    for number in 1..KEPT_MAX {
        if directory.remove(Path::new(&kept)).is_ok() {
            break;
        }
        kept = OsString::from(file);
        kept.push(format!("{BAD}.{number}"));
    }
    let kept = Path::new(&kept);
    directory.rename(file, kept)?;
    directory.sync_folder(folder)?;
    Ok(directory.display(kept))
}

/// Whether something may not be done with a file or folder.
pub(super) fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Moves away what may not be read or written, or if that may not be done either, the next folder above that can be, at most `top`. All of it can be
/// made anew.
///
/// # Errors
/// That of the last attempt.
pub(super) fn set_denied_aside(
    directory: &dyn Directory,
    path: &Path,
    top: &Path,
    error: &dyn fmt::Display,
) -> io::Result<()> {
    let mut outcome = Err(io::ErrorKind::PermissionDenied.into());
    for path in path.ancestors().take_while(|above| above.starts_with(top)) {
        outcome = set_aside(directory, path).map(|kept| {
            let path = directory.display(path);
            warn!(path, kept, %error, "what may not be read and written was moved; it is made anew");
        });
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{FsDirectory, MemoryDirectory};

    #[test]
    fn a_folder_in_the_place_of_a_file_is_moved_and_a_file_is_not() {
        let root = tempfile::tempdir().unwrap();
        let directory = FsDirectory::open(root.path()).unwrap();
        let (file, kept) = (Path::new("config/a"), Path::new("config/a.bad"));
        for _ in 0..2 {
            directory.create_folder(&file.join("of-somebody")).unwrap();

            clearing(&directory, &[file], || directory.write(file, b"x")).unwrap();

            assert_eq!(directory.read(file).unwrap().as_deref(), Some(&b"x"[..]));
            assert_eq!(directory.list(kept).unwrap().len(), 1);
            assert!(!clear(&directory, file).unwrap());
            directory.remove(file).unwrap();
        }
        std::os::unix::fs::symlink("/nonexistent/nowhere", root.path().join(file)).unwrap();
        clearing(&directory, &[file], || directory.write(file, b"y")).unwrap();
        assert_eq!(directory.read(file).unwrap().as_deref(), Some(&b"y"[..]));
    }

    #[test]
    fn a_file_in_the_place_of_a_folder_is_moved_and_a_folder_is_not() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/nonexistent/nowhere", root.path().join("link")).unwrap();
        let on_disk: Box<dyn Directory> = Box::new(FsDirectory::open(root.path()).unwrap());
        for directory in [on_disk, Box::new(MemoryDirectory::new())] {
            let (folder, kept) = (Path::new("index"), Path::new("index.bad"));
            directory.write(folder, b"of somebody").unwrap();

            create_folder(&*directory, folder).unwrap();
            directory.write(&folder.join("a"), b"x").unwrap();
            create_folder(&*directory, folder).unwrap();

            assert_eq!(directory.read(kept).unwrap().as_deref(), Some(&b"of somebody"[..]));
            assert_eq!(directory.list(folder).unwrap().len(), 1);
            let below = kept.join("b/c");
            create_folder(&*directory, &below).unwrap();
            assert_eq!(directory.list(&below).unwrap(), []);
            create_folder(&*directory, Path::new("link")).unwrap();
            assert_eq!(directory.list(Path::new("link")).unwrap(), []);
        }
    }

    #[test]
    fn another_failure_moves_nothing() {
        let directory = MemoryDirectory::new();
        directory.create_folder(Path::new("config")).unwrap();

        let failed = clearing(&directory, &[Path::new("config/a")], || Err::<(), _>(io::ErrorKind::StorageFull.into()));

        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
