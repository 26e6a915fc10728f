//! What every directory must do, run against each of them.

use std::{io::ErrorKind, path::Path, sync::Arc};

use super::{Allocation, Directory, EntryKind, File, FsDirectory, MemoryDirectory};

fn path(text: &str) -> &Path {
    Path::new(text)
}

fn names(directory: &dyn Directory, folder: &str) -> Vec<String> {
    directory.list(path(folder)).unwrap().into_iter().map(|entry| entry.name).collect()
}

fn kind<T>(result: std::io::Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

/// A file of 10,000 bytes, each other than 0.
fn full_file(directory: &dyn Directory, name: &str) -> Arc<dyn File> {
    let file = directory.create(path(name), 10_000, Allocation::Real).unwrap();
    let bytes: Vec<u8> = (0..10_000).map(|at| u8::try_from(at % 255).unwrap() + 1).collect();
    file.write_at(0, &bytes).unwrap();
    file
}

macro_rules! tests_of_every_directory {
    ($($(#[$attribute:meta])* fn $name:ident($directory:ident: &dyn Directory) $body:block)*) => {
        $(fn $name($directory: &dyn Directory) $body)*

        mod fs_directory {
            use super::*;
            $(
                #[test]
                fn $name() {
                    let folder = tempfile::tempdir().unwrap();
                    super::$name(&FsDirectory::open(folder.path()).unwrap());
                }
            )*
        }

        mod memory_directory {
            use super::*;
            $(
                #[test]
                fn $name() {
                    super::$name(&MemoryDirectory::new());
                }
            )*
        }
    };
}

tests_of_every_directory! {
    fn a_new_file_is_zero_and_has_its_length(directory: &dyn Directory) {
        for (name, allocation) in [("real", Allocation::Real), ("sparse", Allocation::Sparse)] {
            let file = directory.create(path(name), 10_000, allocation).unwrap();

            let mut bytes = vec![1; 10_000];
            file.read_at(0, &mut bytes).unwrap();

            assert_eq!(file.bytes(), 10_000);
            assert_eq!(bytes, vec![0; 10_000]);
            assert_eq!(file.slice(0, 10_000).unwrap(), bytes);
        }
    }

    fn an_empty_file_has_only_empty_slices(directory: &dyn Directory) {
        for allocation in [Allocation::Real, Allocation::Sparse] {
            let name = format!("{allocation:?}");
            let file = directory.create(path(&name), 0, allocation).unwrap();

            assert_eq!(file.slice(0, 0).unwrap(), vec![0; 0]);
            assert_eq!(kind(file.slice(0, 1)), ErrorKind::UnexpectedEof);
        }
    }

    fn a_file_is_created_only_once(directory: &dyn Directory) {
        full_file(directory, "f");

        let again = directory.create(path("f"), 5, Allocation::Sparse);

        assert_eq!(kind(again), ErrorKind::AlreadyExists);
        assert_eq!(directory.open(path("f")).unwrap().bytes(), 10_000);
    }

    fn a_file_needs_the_folder_it_is_in(directory: &dyn Directory) {
        assert_eq!(kind(directory.create(path("no/f"), 5, Allocation::Sparse)), ErrorKind::NotFound);
        assert_eq!(kind(directory.write(path("no/f"), b"x")), ErrorKind::NotFound);
        assert_eq!(kind(directory.open(path("f"))), ErrorKind::NotFound);
        assert_eq!(kind(directory.rename(path("f"), path("g"))), ErrorKind::NotFound);
    }

    fn what_is_written_is_read_by_every_way_and_handle(directory: &dyn Directory) {
        let file = directory.create(path("f"), 10_000, Allocation::Sparse).unwrap();
        let early = file.slice(0, 10).unwrap();

        file.write_at(4090, b"across a page").unwrap();

        let mut bytes = [0; 13];
        file.read_at(4090, &mut bytes).unwrap();
        assert_eq!(&bytes, b"across a page");
        assert_eq!(file.slice(4090, 13).unwrap(), bytes[..]);
        assert_eq!(directory.open(path("f")).unwrap().slice(4090, 13).unwrap(), bytes[..]);
        assert_eq!(directory.read(path("f")).unwrap().unwrap()[4090..4103], bytes);
        assert_eq!(early, [0; 10][..]);
    }

    fn nothing_is_written_or_read_beyond_the_end(directory: &dyn Directory) {
        let file = full_file(directory, "f");

        assert_eq!(kind(file.write_at(9_999, b"ab")), ErrorKind::InvalidInput);
        assert_eq!(kind(file.write_at(u64::MAX, b"ab")), ErrorKind::InvalidInput);
        assert_eq!(kind(file.read_at(9_999, &mut [0; 2])), ErrorKind::UnexpectedEof);
        assert_eq!(kind(file.slice(9_999, 2)), ErrorKind::UnexpectedEof);
        assert_eq!(kind(file.slice(u64::MAX, 2)), ErrorKind::UnexpectedEof);
        assert_eq!(kind(file.zero(9_999..10_001)), ErrorKind::InvalidInput);
        assert_eq!(file.bytes(), 10_000);
        file.write_at(10_000, b"").unwrap();
        assert_eq!(file.slice(10_000, 0).unwrap().len(), 0);
        file.will_need(0..u64::MAX);
    }

    fn zero_clears_exactly_its_range(directory: &dyn Directory) {
        let file = full_file(directory, "f");

        file.zero(100..9_000).unwrap();
        file.zero(50..50).unwrap();

        let bytes = file.slice(0, 10_000).unwrap();
        assert_eq!(bytes.iter().filter(|&&byte| byte == 0).count(), 8_900);
        assert!(bytes[99] != 0 && bytes[100] == 0 && bytes[8_999] == 0 && bytes[9_000] != 0);
    }

    fn a_changed_length_keeps_what_fits_and_brings_zeros(directory: &dyn Directory) {
        for allocation in [Allocation::Real, Allocation::Sparse] {
            let name = format!("{allocation:?}");
            let file = full_file(directory, &name);

            file.set_bytes(5_000, allocation).unwrap();
            file.set_bytes(20_000, allocation).unwrap();

            let bytes = file.slice(0, 20_000).unwrap();
            assert_eq!(file.bytes(), 20_000);
            assert!(bytes[..5_000].iter().all(|&byte| byte != 0));
            assert!(bytes[5_000..].iter().all(|&byte| byte == 0));
            assert_eq!(directory.open(path(&name)).unwrap().bytes(), 20_000);
        }
    }

    fn a_slice_outlives_the_file_and_its_removal(directory: &dyn Directory) {
        let file = full_file(directory, "f");
        let slice = file.slice(1, 3).unwrap();

        directory.remove(path("f")).unwrap();
        let still_open = file.slice(5, 1).unwrap();
        drop(file);

        assert_eq!(slice, [2, 3, 4][..]);
        assert_eq!(still_open, [6][..]);
        assert!(directory.read(path("f")).unwrap().is_none());
    }

    fn a_folder_is_listed_by_name(directory: &dyn Directory) {
        directory.create_folder(path("a/b/c")).unwrap();
        directory.create_folder(path("a/b/c")).unwrap();
        directory.write(path("a/z"), b"12345").unwrap();
        directory.write(path("a/B"), b"").unwrap();

        let entries = directory.list(path("a")).unwrap();

        let found: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.kind, entry.bytes)).collect();
        assert_eq!(found, [("B", EntryKind::File, 0), ("b", EntryKind::Folder, 0), ("z", EntryKind::File, 5)]);
        assert_eq!(names(directory, "a/b"), ["c"]);
        assert_eq!(names(directory, ""), ["a"]);
        assert!(names(directory, "missing").is_empty());
    }

    fn a_file_in_the_way_of_a_folder_is_an_error(directory: &dyn Directory) {
        directory.write(path("f"), b"x").unwrap();

        assert!(directory.create_folder(path("f")).is_err());
        assert!(directory.create_folder(path("f/g")).is_err());
        assert!(directory.list(path("f")).is_err());
    }

    fn a_small_file_is_replaced_whole(directory: &dyn Directory) {
        directory.write(path("f"), b"a long text").unwrap();

        directory.write(path("f"), b"short").unwrap();

        assert_eq!(directory.read(path("f")).unwrap().unwrap(), b"short");
        assert_eq!(directory.read(path("g")).unwrap(), None);
    }

    fn reading_a_folder_as_a_file_is_an_error(directory: &dyn Directory) {
        directory.create_folder(path("a")).unwrap();

        assert!(directory.read(path("a")).is_err());
        assert!(directory.write(path("a"), b"x").is_err());
        assert!(directory.open(path("a")).is_err());
    }

    fn rename_replaces_what_had_the_name(directory: &dyn Directory) {
        directory.create_folder(path("a")).unwrap();
        directory.write(path("f"), b"new").unwrap();
        directory.write(path("a/g"), b"old").unwrap();

        directory.rename(path("f"), path("a/g")).unwrap();
        directory.sync_folder(path("a")).unwrap();
        directory.sync_folder(path("")).unwrap();

        assert_eq!(directory.read(path("a/g")).unwrap().unwrap(), b"new");
        assert_eq!(names(directory, ""), ["a"]);
    }

    fn an_open_file_keeps_its_bytes_when_it_is_renamed_or_replaced(directory: &dyn Directory) {
        let file = full_file(directory, "f");
        let replaced = full_file(directory, "g");
        replaced.write_at(0, b"old").unwrap();

        directory.rename(path("f"), path("g")).unwrap();
        file.write_at(0, b"new").unwrap();

        assert_eq!(directory.read(path("g")).unwrap().unwrap()[..3], *b"new");
        assert_eq!(replaced.slice(0, 3).unwrap(), b"old"[..]);
    }

    fn a_folder_is_removed_with_all_that_is_in_it(directory: &dyn Directory) {
        directory.create_folder(path("a/b")).unwrap();
        directory.create_folder(path("ab")).unwrap();
        directory.write(path("a/b/f"), b"x").unwrap();

        directory.remove(path("a")).unwrap();
        directory.remove(path("a")).unwrap();
        directory.remove(path("missing/f")).unwrap();

        assert_eq!(names(directory, ""), ["ab"]);
        assert!(names(directory, "a/b").is_empty());
        assert_eq!(directory.read(path("a/b/f")).unwrap(), None);
    }

    fn syncing_a_missing_folder_is_an_error(directory: &dyn Directory) {
        assert_eq!(kind(directory.sync_folder(path("missing"))), ErrorKind::NotFound);
    }

    fn the_lock_is_held_until_it_is_dropped(directory: &dyn Directory) {
        let lock = directory.lock(path("lock")).unwrap();
        assert!(lock.is_some());

        let second = directory.lock(path("lock")).unwrap();
        drop(lock);
        let third = directory.lock(path("lock")).unwrap();

        assert!(second.is_none());
        assert!(third.is_some());
        drop(third);
        assert_eq!(directory.read(path("lock")).unwrap().unwrap(), b"lock");
    }

    fn there_is_space_and_not_more_than_all_of_it(directory: &dyn Directory) {
        let space = directory.space().unwrap();

        assert!(space.total > 0);
        assert!(space.free <= space.total);
        assert!(space.used_percent() <= 100);
    }

    fn a_path_is_shown_with_its_root(directory: &dyn Directory) {
        assert!(directory.display(path("a/f")).ends_with("/a/f"));
    }
}

#[test]
fn store_46_the_used_part_of_a_disk_is_what_df_says() {
    let folder = tempfile::tempdir().unwrap();
    let used = FsDirectory::open(folder.path()).unwrap().space().unwrap().used_percent();

    let df = std::process::Command::new("df").arg("-P").arg(folder.path()).output().unwrap();

    let line = String::from_utf8(df.stdout).unwrap().lines().nth(1).unwrap().to_owned();
    let said: u64 = line.split_whitespace().nth(4).unwrap().trim_end_matches('%').parse().unwrap();
    assert!(used.abs_diff(said) <= 1, "{used} % here, {said} % there");
}

#[test]
fn what_was_never_written_is_known_without_reading_it() {
    let folder = tempfile::tempdir().unwrap();
    let directory = FsDirectory::open(folder.path()).unwrap();
    let file = directory.create(Path::new("a"), 8 << 20, Allocation::Real).unwrap();
    if file.data_end(0) == file.bytes() {
        // A file system that cannot tell: everything is read there.
        return;
    }
    assert_eq!(file.data_end(0), 0);

    file.write_at(100_000, b"x").unwrap();
    file.write_at(3 << 20, b"y").unwrap();

    let end = file.data_end(0);
    assert!(end > 3 << 20 && end < 4 << 20, "{end}");
    assert_eq!(file.data_end(2 << 20), end);
    file.zero(1 << 20..8 << 20).unwrap();
    file.sync().unwrap();
    let end = file.data_end(0);
    assert!(end > 100_000, "{end}");
    assert_eq!(file.data_end(end), end, "nothing follows");
}
