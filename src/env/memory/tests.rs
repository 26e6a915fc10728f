use std::{collections::BTreeSet, time::Duration};

use super::*;
use crate::{env::TestClock, model::Timestamp};

/// Enough seeds to see every outcome of what is tried here.
fn seeds() -> Range<u64> {
    0..200
}

/// Two pages and a bit.
const BYTES: u64 = 10_000;

fn path(text: &str) -> &Path {
    Path::new(text)
}

/// A directory with a file of zeros whose name and length are durable.
fn directory_with_file() -> (MemoryDirectory, Arc<dyn File>) {
    let directory = MemoryDirectory::new();
    let file = directory.create(path("f"), BYTES, Allocation::Real).unwrap();
    file.sync().unwrap();
    directory.sync_folder(path("")).unwrap();
    (directory, file)
}

fn bytes_of(directory: &MemoryDirectory, name: &str) -> Option<Vec<u8>> {
    Directory::read(directory, path(name)).unwrap()
}

#[test]
fn a_crash_keeps_every_synced_byte() {
    let (directory, file) = directory_with_file();
    file.write_at(4_000, &[7; 200]).unwrap();
    file.sync().unwrap();
    file.write_at(0, &[8; 100]).unwrap();

    for seed in seeds() {
        let left = bytes_of(&directory.crash(seed), "f").unwrap();

        assert_eq!(left[4_000..4_200], [7; 200], "seed {seed}");
    }
}

#[test]
fn a_crash_keeps_loses_or_tears_each_unsynced_page_on_its_own() {
    let (directory, file) = directory_with_file();
    file.write_at(0, &[7; 8_192]).unwrap();

    let mut seen = BTreeSet::new();
    for seed in seeds() {
        let left = bytes_of(&directory.crash(seed), "f").unwrap();
        let page = |at: usize| {
            let sectors: Vec<bool> = left[at..at + 4096].chunks(512).map(|sector| sector == [7; 512]).collect();
            assert!(left[at..at + 4096].chunks(512).all(|sector| sector == [7; 512] || sector == [0; 512]));
            match sectors.iter().filter(|&&new| new).count() {
                0 => "lost",
                8 => "kept",
                _ => "torn",
            }
        };
        seen.insert((page(0), page(4096)));
    }

    assert_eq!(seen.len(), 9, "{seen:?}");
}

#[test]
fn the_same_seed_leaves_the_same() {
    let (directory, file) = directory_with_file();
    file.write_at(0, &[7; 8_192]).unwrap();

    for seed in seeds() {
        assert_eq!(bytes_of(&directory.crash(seed), "f"), bytes_of(&directory.crash(seed), "f"));
    }
}

#[test]
fn what_a_crash_left_is_durable_and_apart_from_the_tree_it_came_from() {
    let (directory, file) = directory_with_file();
    file.write_at(0, &[7; 8_192]).unwrap();
    let crashed = directory.crash(5);
    let left = bytes_of(&crashed, "f");

    file.write_at(0, &[9; 8_192]).unwrap();
    file.sync().unwrap();

    assert_eq!(bytes_of(&crashed, "f"), left);
    assert!(seeds().all(|seed| bytes_of(&crashed.crash(seed), "f") == left));
}

#[test]
fn an_unsynced_length_is_kept_or_lost() {
    let (directory, file) = directory_with_file();
    file.write_at(0, &[7; 10_000]).unwrap();
    file.sync().unwrap();
    file.set_bytes(100, Allocation::Sparse).unwrap();
    file.set_bytes(20_000, Allocation::Sparse).unwrap();

    let lengths: BTreeSet<usize> = seeds().map(|seed| bytes_of(&directory.crash(seed), "f").unwrap().len()).collect();
    file.sync().unwrap();

    assert_eq!(lengths, BTreeSet::from([10_000, 20_000]));
    for seed in seeds() {
        let left = bytes_of(&directory.crash(seed), "f").unwrap();
        assert!(left.len() == 20_000 && left[100..].iter().all(|&byte| byte == 0), "seed {seed}");
    }
}

#[test]
fn a_file_cut_by_a_crash_brings_zeros_when_it_grows_again() {
    let directory = MemoryDirectory::new();
    let file = directory.create(path("f"), 5_000, Allocation::Sparse).unwrap();
    file.sync().unwrap();
    directory.sync_folder(path("")).unwrap();
    file.set_bytes(BYTES, Allocation::Sparse).unwrap();
    file.write_at(4_990, &[7; 5_010]).unwrap();

    for seed in seeds() {
        let crashed = directory.crash(seed);
        let file = crashed.open(path("f")).unwrap();
        if file.bytes() == 5_000 {
            file.set_bytes(BYTES, Allocation::Sparse).unwrap();
            assert_eq!(file.slice(5_000, 5_000).unwrap(), vec![0; 5_000], "seed {seed}");
        }
    }
}

#[test]
fn a_new_file_is_there_for_certain_only_after_its_folder_is_synced() {
    let directory = MemoryDirectory::new();
    directory.create_folder(path("a")).unwrap();
    let file = directory.create(path("a/f"), BYTES, Allocation::Real).unwrap();
    file.sync().unwrap();
    let exists = |seed| bytes_of(&directory.crash(seed), "a/f").is_some();

    let before: BTreeSet<bool> = seeds().map(exists).collect();
    directory.sync_folder(path("")).unwrap();
    let other_folder: BTreeSet<bool> = seeds().map(exists).collect();
    directory.sync_folder(path("a")).unwrap();

    assert_eq!(before, BTreeSet::from([false, true]));
    assert_eq!(other_folder, before);
    assert!(seeds().all(exists));
}

#[test]
fn the_length_of_a_new_file_is_certain_only_after_it_is_synced() {
    let directory = MemoryDirectory::new();
    let file = directory.create(path("f"), BYTES, Allocation::Real).unwrap();
    directory.sync_folder(path("")).unwrap();
    let length = |seed| bytes_of(&directory.crash(seed), "f").unwrap().len() as u64;

    let before: BTreeSet<u64> = seeds().map(length).collect();
    file.sync().unwrap();

    assert_eq!(before, BTreeSet::from([0, BYTES]));
    assert!(seeds().all(|seed| length(seed) == BYTES));
}

#[test]
fn a_rename_leaves_the_old_or_the_new_and_never_neither() {
    let directory = MemoryDirectory::new();
    directory.write(path("f"), b"old").unwrap();
    directory.write(path("f.tmp"), b"new").unwrap();
    directory.rename(path("f.tmp"), path("f")).unwrap();

    let found = |seed| {
        let crashed = directory.crash(seed);
        (bytes_of(&crashed, "f").unwrap(), bytes_of(&crashed, "f.tmp").is_some())
    };
    let before: BTreeSet<_> = seeds().map(found).collect();
    directory.sync_folder(path("")).unwrap();

    assert_eq!(before, BTreeSet::from([(b"old".to_vec(), true), (b"new".to_vec(), false)]));
    assert!(seeds().all(|seed| found(seed) == (b"new".to_vec(), false)));
}

#[test]
fn a_removed_file_may_come_back_until_its_folder_is_synced() {
    let directory = MemoryDirectory::new();
    directory.create_folder(path("a/b")).unwrap();
    directory.write(path("a/b/f"), b"x").unwrap();
    directory.remove(path("a")).unwrap();
    let found = |seed| bytes_of(&directory.crash(seed), "a/b/f").is_some();

    let before: BTreeSet<bool> = seeds().map(found).collect();
    directory.sync_folder(path("")).unwrap();

    assert_eq!(before, BTreeSet::from([false, true]));
    assert!(!seeds().any(found));
}

#[test]
fn a_folder_made_anew_does_not_get_back_what_was_in_the_removed_one() {
    let directory = MemoryDirectory::new();
    directory.create_folder(path("a")).unwrap();
    directory.create(path("a/f"), 0, Allocation::Sparse).unwrap();
    directory.remove(path("a")).unwrap();
    directory.create_folder(path("a")).unwrap();

    for seed in seeds() {
        assert_eq!(directory.crash(seed).list(path("a")).unwrap(), [], "seed {seed}");
    }
}

#[test]
fn a_written_small_file_and_a_created_folder_are_durable_at_once() {
    let directory = MemoryDirectory::new();
    directory.create_folder(path("a/b")).unwrap();
    directory.write(path("a/b/f"), b"first").unwrap();
    directory.write(path("a/b/f"), b"2nd").unwrap();

    assert!(seeds().all(|seed| bytes_of(&directory.crash(seed), "a/b/f").unwrap() == b"2nd"));
}

#[test]
fn a_kill_keeps_all_that_was_written_but_makes_nothing_durable() {
    let (directory, file) = directory_with_file();
    file.write_at(0, &[7; 8_192]).unwrap();
    directory.create(path("g"), 5, Allocation::Sparse).unwrap();

    let killed = directory.kill();
    file.write_at(0, &[9; 8_192]).unwrap();

    assert_eq!(bytes_of(&killed, "f").unwrap()[..8_192], [7; 8_192]);
    assert!(bytes_of(&killed, "g").is_some());
    assert!(seeds().any(|seed| bytes_of(&killed.crash(seed), "f").unwrap()[0] == 0));
    assert!(seeds().any(|seed| bytes_of(&killed.crash(seed), "g").is_none()));
}

#[test]
fn a_kill_gives_up_the_lock() {
    let directory = MemoryDirectory::new();
    let _lock = directory.lock(path("lock")).unwrap().unwrap();

    assert!(directory.kill().lock(path("lock")).unwrap().is_some());
    assert!(directory.crash(0).lock(path("lock")).unwrap().is_some());
    assert!(directory.lock(path("lock")).unwrap().is_none());
}

#[test]
fn planned_faults_come_when_and_as_often_as_planned() {
    let (directory, file) = directory_with_file();
    directory.fail_after(Operation::Write, 1, io::ErrorKind::Other, 2);

    let results: Vec<bool> = (0..5).map(|_| file.write_at(0, b"x").is_ok()).collect();

    assert_eq!(results, [true, false, false, true, true]);
}

#[test]
fn each_kind_of_operation_can_fail() {
    let (directory, file) = directory_with_file();
    let kinds =
        [Operation::Read, Operation::Write, Operation::Sync, Operation::Create, Operation::Rename, Operation::Remove];
    for kind in kinds {
        directory.fail_after(kind, 0, io::ErrorKind::TimedOut, u64::MAX);
    }

    let failed = [
        file.slice(0, 1).err(),
        file.zero(0..1).err(),
        file.set_bytes(5, Allocation::Sparse).err(),
        directory.write(path("g"), b"x").err(),
        file.sync().err(),
        directory.sync_folder(path("")).err(),
        directory.create(path("g"), 1, Allocation::Sparse).err(),
        directory.create_folder(path("a")).err(),
        directory.rename(path("f"), path("g")).err(),
        directory.remove(path("f")).err(),
        directory.list(path("")).err(),
    ];
    directory.heal();

    for (index, error) in failed.iter().enumerate() {
        assert_eq!(error.as_ref().map(io::Error::kind), Some(io::ErrorKind::TimedOut), "operation {index}");
    }
    file.sync().unwrap();
    assert!(bytes_of(&directory, "f").is_some());
}

#[test]
fn a_fault_can_be_kept_to_one_folder() {
    let directory = MemoryDirectory::new();
    directory.create_folder(path("a")).unwrap();
    directory.create_folder(path("b")).unwrap();
    directory.fail_under(path("a"), Operation::Create, 0, io::ErrorKind::Other, 1);

    assert!(directory.create(path("b/f"), 1, Allocation::Sparse).is_ok());
    assert!(directory.create(path("a/f"), 1, Allocation::Sparse).is_err());
    assert!(directory.create(path("a/f"), 1, Allocation::Sparse).is_ok());
}

#[test]
fn a_failing_write_leaves_a_part() {
    let (directory, file) = directory_with_file();
    directory.fail_after(Operation::Write, 0, io::ErrorKind::Other, 1);

    file.write_at(0, &[7; 100]).unwrap_err();

    assert_eq!(bytes_of(&directory, "f").unwrap().iter().filter(|&&byte| byte == 7).count(), 50);
}

#[test]
fn store_33_what_a_failed_sync_gave_up_no_later_sync_saves() {
    let (directory, file) = directory_with_file();
    file.write_at(0, &[7; 100]).unwrap();
    directory.fail_after(Operation::Sync, 0, io::ErrorKind::Other, 1);

    file.sync().unwrap_err();
    file.write_at(4096, &[8; 100]).unwrap();
    file.sync().unwrap();

    let left: Vec<_> = seeds().map(|seed| bytes_of(&directory.crash(seed), "f").unwrap()).collect();
    assert_eq!(bytes_of(&directory, "f").unwrap()[0], 7);
    assert!(left.iter().any(|left| left[0] == 0));
    assert!(left.iter().all(|left| left[4096] == 8));
    file.write_at(0, &[7; 1]).unwrap();
    file.sync().unwrap();
    assert!(seeds().all(|seed| bytes_of(&directory.crash(seed), "f").unwrap()[..100] == [7; 100]));
}

#[test]
fn a_full_disk_refuses_what_needs_room_and_nothing_else() {
    let directory = MemoryDirectory::new();
    directory.set_capacity(20 * 4096);
    let real = directory.create(path("real"), 16 * 4096, Allocation::Real).unwrap();
    let sparse = directory.create(path("sparse"), 16 * 4096, Allocation::Sparse).unwrap();
    let kind = |result: io::Result<()>| result.unwrap_err().kind();

    let no_room = directory.create(path("g"), 5 * 4096, Allocation::Real).map(drop);
    sparse.write_at(0, &[1; 4 * 4096]).unwrap();

    assert_eq!(kind(no_room), io::ErrorKind::StorageFull);
    assert!(bytes_of(&directory, "g").is_none());
    assert_eq!(kind(sparse.write_at(5 * 4096, b"x")), io::ErrorKind::StorageFull);
    assert_eq!(kind(directory.write(path("h"), b"x")), io::ErrorKind::StorageFull);
    assert_eq!(kind(sparse.set_bytes(17 * 4096, Allocation::Real)), io::ErrorKind::StorageFull);
    sparse.write_at(0, b"again").unwrap();
    real.write_at(8 * 4096, b"reserved").unwrap();
    assert_eq!(directory.space().unwrap(), Space { total: 20 * 4096, free: 0 });
    directory.remove(path("real")).unwrap();
    assert_eq!(directory.space().unwrap().free, 16 * 4096);
}

/// Writes one file aside and renames it, as state files are.
fn replace_state(directory: &MemoryDirectory, bytes: &[u8]) -> io::Result<()> {
    directory.write(path("state.tmp"), bytes)?;
    directory.rename(path("state.tmp"), path("state"))?;
    directory.sync_folder(path(""))
}

#[test]
fn store_37_a_file_written_aside_and_renamed_is_whole_wherever_the_machine_stops() {
    let fresh = || {
        let directory = MemoryDirectory::new();
        replace_state(&directory, &[1; 5_000]).unwrap();
        directory.kill()
    };
    let counted = fresh();
    replace_state(&counted, &[2; 6_000]).unwrap();

    for step in 1..=counted.steps() {
        let directory = fresh();
        directory.crash_at(step);
        replace_state(&directory, &[2; 6_000]).unwrap_err();

        assert!(directory.has_stopped());
        for seed in seeds() {
            let left = bytes_of(&directory.crash(seed), "state").unwrap();
            assert!(left == [1; 5_000] || left == [2; 6_000], "step {step}, seed {seed}");
        }
    }
    assert_eq!(counted.steps(), 4);
}

#[test]
fn a_file_written_over_in_place_can_be_torn_by_a_stop() {
    let directory = MemoryDirectory::new();
    directory.write(path("state"), &[1; 9_000]).unwrap();
    directory.crash_at(directory.steps() + 2);

    directory.write(path("state"), &[2; 9_000]).unwrap_err();

    let left: Vec<_> = seeds().map(|seed| bytes_of(&directory.crash(seed), "state").unwrap()).collect();
    assert!(left.iter().any(|left| left.contains(&1) && left.contains(&2)));
}

#[test]
fn nothing_works_once_the_machine_has_stopped() {
    let (directory, file) = directory_with_file();

    directory.stop();

    let failed = [
        file.slice(0, 1).is_err(),
        file.write_at(0, b"x").is_err(),
        file.sync().is_err(),
        Directory::read(&directory, path("f")).is_err(),
        directory.list(path("")).is_err(),
        directory.create_folder(path("")).is_err(),
        directory.lock(path("lock")).is_err(),
        directory.space().is_err(),
    ];
    assert_eq!(failed, [true; 8]);
    assert!(bytes_of(&directory.kill(), "f").is_some());
}

#[test]
fn two_runs_have_one_trace_only_if_they_did_the_same() {
    let run = |byte: u8| {
        let (directory, file) = directory_with_file();
        file.write_at(7, &[byte]).unwrap();
        directory.rename(path("f"), path("g")).unwrap();
        directory.trace()
    };

    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_file_shows_when_it_was_last_written() {
    let clock = TestClock::new(Timestamp(1_000));
    let directory = MemoryDirectory::with_clock(Arc::new(clock.clone()));
    let file = directory.create(path("f"), 10, Allocation::Sparse).unwrap();
    let modified = || directory.list(path("")).unwrap()[0].modified_ms;
    assert_eq!(modified(), 1_000);

    clock.advance(Duration::from_secs(1));
    file.write_at(0, b"x").unwrap();
    clock.advance(Duration::from_secs(1));
    file.sync().unwrap();

    assert_eq!(modified(), 2_000);
}

#[test]
fn dots_in_a_path_lead_to_the_same_file() {
    let directory = MemoryDirectory::new();
    directory.create_folder(path("a/./b/..")).unwrap();
    directory.write(path("./a/f"), b"x").unwrap();

    assert_eq!(bytes_of(&directory, "a/b/../f").unwrap(), b"x");
    assert_eq!(bytes_of(&directory, "/a/f"), None);
}

#[test]
fn changes_of_names_in_one_folder_survive_a_crash_in_any_combination() {
    let directory = MemoryDirectory::new();
    directory.write(path("old"), b"x").unwrap();
    directory.write(path("from"), b"x").unwrap();
    directory.create(path("new"), 0, Allocation::Sparse).unwrap();
    directory.rename(path("from"), path("to")).unwrap();
    directory.remove(path("old")).unwrap();

    let found = |seed| {
        let crashed = directory.crash(seed);
        ["new", "to", "old"].map(|name| bytes_of(&crashed, name).is_some())
    };

    let seen: BTreeSet<_> = (0..2_000).map(found).collect();
    assert_eq!(seen.len(), 8, "{seen:?}");
}

#[test]
fn a_damaged_byte_is_damaged_in_memory_and_after_every_crash() {
    let (directory, file) = directory_with_file();
    file.write_at(0, &[7; 100]).unwrap();
    file.sync().unwrap();
    file.write_at(50, &[8; 10]).unwrap();

    directory.damage(path("f"), 10..12, 1).unwrap();

    for left in seeds().map(|seed| directory.crash(seed)).chain([directory.kill()]) {
        assert_eq!(bytes_of(&left, "f").unwrap()[9..13], [7, 6, 6, 7]);
    }
    assert_eq!(bytes_of(&directory, "f").unwrap()[9..13], [7, 6, 6, 7]);
}

#[test]
fn a_page_that_cannot_be_read_stays_so_over_crashes_until_it_is_written() {
    let (directory, file) = directory_with_file();
    directory.make_unreadable(path("f"), 5_000..5_001).unwrap();

    for left in [directory.crash(1), directory.kill(), directory] {
        let file = left.open(path("f")).unwrap();
        assert!(file.slice(4_096, 1).is_err() && file.slice(4_000, 200).is_err() && left.read(path("f")).is_err());
        assert!(file.slice(0, 4_096).is_ok() && file.slice(8_192, 10).is_ok());
        file.write_at(4_200, &[7]).unwrap();
        assert!(file.slice(4_000, 300).is_ok());
    }
    drop(file);
}
