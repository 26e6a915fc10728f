use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::env::{MemoryDirectory, Operation};

const FOLDER: &str = "index";
const TOPIC: &str = "TopicTest";
/// 2023-11-14T22:13:20.123Z.
const BEGIN: i64 = 1_700_000_000_123;

fn open(directory: &MemoryDirectory, slots: u32, entries: u32) -> Index {
    Index::open(Arc::new(directory.clone()), Path::new(FOLDER), slots, entries).unwrap()
}

/// Few slots, so that chains are long, and few entries, so that files are full soon.
fn small(directory: &MemoryDirectory) -> Index {
    open(directory, 7, 11)
}

/// Puts the record that is the `at`-th of the log.
fn put(index: &Index, key: &str, at: u64) {
    index
        .put(
            TOPIC,
            std::iter::once(key.as_bytes()),
            PhysicalOffset(at * 100),
            Timestamp(BEGIN + i64::try_from(at).unwrap() * 1000),
        )
        .unwrap();
}

fn found(index: &Index, key: &str) -> Vec<u64> {
    found_within(index, key, 0, i64::MAX)
}

fn found_within(index: &Index, key: &str, begin: i64, end: i64) -> Vec<u64> {
    let mut found = Vec::new();
    let query = index.query(TOPIC, key, Timestamp(begin), Timestamp(end), |position| {
        found.push(position.0 / 100);
        true
    });
    query.unwrap();
    found
}

fn names(directory: &MemoryDirectory) -> Vec<String> {
    directory.list(Path::new(FOLDER)).unwrap().into_iter().map(|entry| entry.name).collect()
}

fn file(directory: &MemoryDirectory, at: usize) -> Arc<dyn File> {
    directory.open(&Path::new(FOLDER).join(&names(directory)[at])).unwrap()
}

fn bytes(file: &dyn File, position: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    file.read_at(position, &mut bytes).unwrap();
    bytes
}

#[test]
fn store_19_store_20_store_21_keys_are_stored_as_rocketmq_stores_them() {
    let directory = MemoryDirectory::new();
    let index = open(&directory, 5_000_000, 20_000_000);

    for key in ["7F0000010001", "k1"] {
        index.put(TOPIC, std::iter::once(key.as_bytes()), PhysicalOffset(4096), Timestamp(BEGIN)).unwrap();
    }
    index.write_round().unwrap();

    assert_eq!(names(&directory), ["20231114221320123"]);
    let file = file(&directory, 0);
    assert_eq!(file.bytes(), 420_000_040);
    let entries = 40 + 5_000_000 * 4;
    assert_eq!(bytes(&*file, entries, 20), [0; 20], "entry 0 is never used");
    let first = [0x35, 0x0C, 0x03, 0x4D, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(bytes(&*file, entries + 20, 20), first);
    let second = [0, 0x29, 0xE6, 0xA8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(bytes(&*file, entries + 40, 20), second);
    assert_eq!(bytes(&*file, 40 + 4 * 4_979_725, 4), [0, 0, 0, 1]);
    assert_eq!(bytes(&*file, 10_984_136, 4), [0, 0, 0, 2]);
    let time = BEGIN.to_be_bytes();
    let header = [&time[..], &time, &[0, 0, 0, 0, 0, 0, 0x10, 0].repeat(2), &[0, 0, 0, 2, 0, 0, 0, 3]].concat();
    assert_eq!(bytes(&*file, 0, 40), header);
    assert_eq!(Header::read(&*file).unwrap().to_bytes().to_vec(), header);
}

#[test]
fn store_20_a_hash_that_has_no_absolute_value_is_0() {
    assert_eq!(key_hash(TOPIC, "k1"), 2_746_024);
    assert_eq!(key_hash(TOPIC, "7F0000010001"), 889_979_725);
    let key = key_of_the_least_hash("t");
    assert_eq!(java_hash(&format!("t#{key}")), i32::MIN);
    assert_eq!(key_hash("t", &key), 0);
}

/// Seven characters, from `@` on the digits to the base 31 of what is missing to the least hash there is.
fn key_of_the_least_hash(topic: &str) -> String {
    let zeros = java_hash(&format!("{topic}#@@@@@@@"));
    let missing = i32::MIN.wrapping_sub(zeros).cast_unsigned();
    let digits = (0..7).rev().map(|digit| missing / 31u32.saturating_pow(digit) % 31);
    digits.map(|digit| char::from_u32(64 + digit).unwrap()).collect()
}

#[test]
fn names_are_the_time_to_the_millisecond() {
    let names = [
        (0, 19_700_101_000_000_000),
        (951_782_399_999, 20_000_228_235_959_999),
        (951_782_400_000, 20_000_229_000_000_000),
        (1_735_689_599_999, 20_241_231_235_959_999),
        (1_735_689_600_000, 20_250_101_000_000_000),
        (4_107_542_400_000, 21_000_301_000_000_000),
        (i64::MAX, 99_991_231_235_959_999),
        (-1, 19_700_101_000_000_000),
    ];
    for (ms, name) in names {
        assert_eq!(file_number(Timestamp(ms)), name, "{ms}");
    }
}

#[test]
fn a_key_is_found_newest_first_across_files() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    for at in 0..35 {
        put(&index, if at % 3 == 0 { "a" } else { "b" }, at);
        if at % 4 == 3 {
            index.write_round().unwrap();
        }
    }
    index.write_round().unwrap();

    let wanted: Vec<u64> = (0..35).rev().filter(|at| at % 3 == 0).collect();
    assert_eq!(names(&directory).len(), 4, "ten keys in each");
    assert_eq!(found(&index, "a"), wanted);
    assert_eq!(found(&small(&directory), "a"), wanted);
    assert!(found(&index, "c").is_empty());
    assert_eq!(index.end(), (Timestamp(BEGIN + 34_000), PhysicalOffset(3400)));
}

#[test]
fn a_query_is_bounded_by_times_and_ends_when_enough_is_found() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    for at in 0..35 {
        put(&index, "a", at);
    }
    index.write_round().unwrap();

    let within = found_within(&index, "a", BEGIN + 8_000, BEGIN + 12_000);
    assert_eq!(within.iter().copied().filter(|at| (8..=12).contains(at)).collect::<Vec<_>>(), [12, 11, 10, 9, 8]);
    assert!(within.len() <= 6, "at most one more, whose second was cut: {within:?}");

    let mut asked = 0;
    let query = index.query(TOPIC, "a", Timestamp(0), Timestamp::MAX, |_| {
        asked += 1;
        asked < 3
    });
    query.unwrap();
    assert_eq!(asked, 3);
}

#[test]
fn a_record_stored_within_the_second_that_was_cut_is_not_missed() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    index.put(TOPIC, std::iter::once(&b"x"[..]), PhysicalOffset(0), Timestamp(BEGIN)).unwrap();
    index.put(TOPIC, std::iter::once(&b"a"[..]), PhysicalOffset(100), Timestamp(BEGIN + 1_999)).unwrap();
    index.write_round().unwrap();

    assert_eq!(found_within(&index, "a", BEGIN + 1_999, BEGIN + 1_999), [1]);
}

#[test]
fn nothing_is_found_before_its_round_is_written() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    put(&index, "a", 1);
    assert!(found(&index, "a").is_empty());
    assert!(names(&directory).is_empty());

    index.write_round().unwrap();
    assert_eq!(found(&index, "a"), [1]);
}

#[test]
fn a_new_file_says_what_rocketmq_lets_it_say_until_the_first_key() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    for at in 0..11 {
        put(&index, "a", at);
    }
    index.write_round().unwrap();

    let header = Header::read(&*file(&directory, 1)).unwrap();
    assert_eq!((header.begin_position, header.begin_time, header.count), (1000, BEGIN + 10_000, 2));
    assert_eq!(bytes(&*file(&directory, 0), 36, 4), [0, 0, 0, 11]);
    assert_eq!(names(&directory)[1], "20231114221330123");
}

#[test]
fn a_file_begun_in_the_same_moment_or_after_a_step_back_has_a_later_name() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    for at in 0..22 {
        let time = Timestamp(BEGIN - i64::try_from(at).unwrap());
        index.put(TOPIC, std::iter::once(&b"a"[..]), PhysicalOffset(at), time).unwrap();
    }
    index.write_round().unwrap();

    assert_eq!(names(&directory), ["20231114221320123", "20231114221320124", "20231114221320125"]);
}

#[test]
fn a_repeated_record_is_passed_over() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    for at in [5, 6, 5] {
        put(&index, "a", at);
    }
    index.write_round().unwrap();
    put(&index, "a", 4);
    index.write_round().unwrap();

    assert_eq!(found(&index, "a"), [6, 5]);
}

#[test]
fn store_47_files_below_the_log_are_deleted_but_never_the_newest() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    for at in 0..25 {
        put(&index, "a", at);
    }
    index.write_round().unwrap();

    index.set_min_position(PhysicalOffset(900)).unwrap();
    assert_eq!(names(&directory).len(), 3, "the newest record of the first file is at 900");
    index.set_min_position(PhysicalOffset(901)).unwrap();
    assert_eq!(names(&directory).len(), 2);
    assert_eq!(found(&index, "a"), (10..25).rev().collect::<Vec<_>>());
    index.set_min_position(PhysicalOffset(1 << 40)).unwrap();
    assert_eq!(names(&directory).len(), 1);
    index.sync().unwrap();
}

#[test]
fn strange_names_and_files_too_long_are_ignored_and_files_too_short_are_removed() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    put(&index, "a", 1);
    index.write_round().unwrap();
    let others =
        [("notes", 4), ("20231114221321124", 300), ("20231114221321125", 0), ("20231114221321126", 100), ("1", 288)];
    for (name, bytes) in others {
        directory.write(&Path::new(FOLDER).join(name), &vec![1; bytes]).unwrap();
    }

    let index = small(&directory);
    assert_eq!(found(&index, "a"), [1]);
    assert_eq!(names(&directory), ["1", "20231114221321123", "20231114221321124", "notes"]);
    for at in 2..14 {
        put(&index, "a", at);
    }
    index.write_round().unwrap();
    assert_eq!(found(&index, "a"), (1..14).rev().collect::<Vec<_>>());
}

#[test]
fn a_file_with_a_damaged_header_is_removed_for_good() {
    // It stayed beside those that took its place, and every audit found it.
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    put(&index, "a", 1);
    index.write_round().unwrap();
    file(&directory, 0).write_at(36, &u32::MAX.to_be_bytes()).unwrap();

    let index = small(&directory);

    assert_eq!(names(&directory), [""; 0]);
    put(&index, "a", 1);
    index.write_round().unwrap();
    assert_eq!(found(&index, "a"), [1]);
}

#[test]
fn options_that_allow_no_entry_are_refused_by_their_keys() {
    for (slots, entries, key) in
        [(0, 10, "maxHashSlotNum"), (1 << 31, 10, "maxHashSlotNum"), (5, 1, "maxIndexNum"), (5, 1 << 31, "maxIndexNum")]
    {
        let directory = Arc::new(MemoryDirectory::new());
        let refused = Index::open(directory, Path::new(FOLDER), slots, entries).err();
        assert!(matches!(refused, Some(StoreError::Option { key: found, .. }) if found == key));
    }
}

#[test]
fn a_round_that_cannot_be_written_is_written_once_later() {
    for (operation, after) in
        [(Operation::Create, 0), (Operation::Write, 0), (Operation::Write, 1), (Operation::Write, 2)]
    {
        let directory = MemoryDirectory::new();
        directory.create_folder(Path::new(FOLDER)).unwrap();
        let index = small(&directory);
        directory.fail_after(operation, after, io::ErrorKind::StorageFull, 1);
        for at in 0..8 {
            put(&index, if at % 2 == 0 { "a" } else { "b" }, at);
        }
        let first = index.write_round();
        assert!(first.is_err(), "{operation:?} {after}");
        assert_eq!(index.unwritten_from(), Some(PhysicalOffset(0)));
        put(&index, "a", 8);
        index.write_round().unwrap();

        assert_eq!(index.unwritten_from(), None);
        assert_eq!(found(&index, "a"), [8, 6, 4, 2, 0], "{operation:?} {after}");
        assert_eq!(found(&index, "b"), [7, 5, 3, 1], "{operation:?} {after}");
    }
}

#[test]
fn too_many_keys_that_cannot_be_written_set_the_index_aside() {
    let directory = MemoryDirectory::new();
    let index = open(&directory, 7, 1 << 20);
    for at in 0..PENDING_ENTRIES_MAX as u64 {
        put(&index, "a", at);
    }
    let at = PENDING_ENTRIES_MAX as u64;

    assert!(index.put(TOPIC, std::iter::once(&b"a"[..]), PhysicalOffset(at * 100), Timestamp(BEGIN)).is_err());
    index.write_round().unwrap();
    assert!(index.put(TOPIC, std::iter::once(&b"a"[..]), PhysicalOffset((at + 1) * 100), Timestamp(BEGIN)).is_err());
    assert_eq!(index.unwritten_from(), Some(PhysicalOffset(at * 100)));
}

#[test]
fn only_full_and_synced_files_count_for_the_checkpoint_of_rocketmq() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    for at in 0..15 {
        put(&index, "a", at);
    }
    index.write_round().unwrap();
    assert_eq!(index.synced_time(), Timestamp(0));

    index.sync().unwrap();
    assert_eq!(index.synced_time(), Timestamp(BEGIN + 9_000));
}

#[test]
fn store_33_after_a_failed_sync_no_later_one_succeeds() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    put(&index, "a", 1);
    index.write_round().unwrap();
    directory.fail_after(Operation::Sync, 0, io::ErrorKind::Other, 1);

    assert!(index.sync().is_err());
    assert!(index.sync().is_err());
}

#[test]
fn a_chain_that_leads_in_circles_ends() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    for at in 0..5 {
        put(&index, "a", at);
    }
    index.write_round().unwrap();
    // The entry before the third is the fifth.
    file(&directory, 0).write_at(40 + 28 + 3 * 20 + 16, &[0, 0, 0, 5]).unwrap();

    assert_eq!(found(&index, "a"), [4, 3, 2]);
}

#[test]
fn the_truncated_index_finds_what_is_older_although_every_slot_led_to_what_is_gone() {
    let directory = MemoryDirectory::new();
    let index = open(&directory, 3, 100);
    for at in 0..60 {
        put(&index, ["a", "b", "c", "d"][at as usize % 4], at);
    }
    index.write_round().unwrap();

    index.truncate_from(PhysicalOffset(3_350)).unwrap();

    assert_eq!(found(&index, "a"), (0..34).rev().filter(|at| at % 4 == 0).collect::<Vec<_>>());
    assert_eq!(found(&index, "d"), (0..34).rev().filter(|at| at % 4 == 3).collect::<Vec<_>>());
    assert_eq!(index.end().1, PhysicalOffset(3_300));
    assert_eq!(bytes(&*file(&directory, 0), 40 + 12 + 35 * 20, 65 * 20), [0; 65 * 20]);
    index.truncate_from(PhysicalOffset(0)).unwrap();
    assert!(names(&directory).is_empty());
    assert_eq!(index.end(), (Timestamp(0), PhysicalOffset(0)));
}

/// An entry that lies in two sectors, of which only the second reached the disk, has a position far below its own.
#[test]
fn a_torn_entry_beyond_the_end_misleads_nobody() {
    let shape = Shape { slots: 7, entries: 150 };
    let position = |number: u32| (1 << 32) - 1_000 + u64::from(number) * 145;
    for torn in (1..150).filter(|&number| shape.entry_at(number) / 512 != (shape.entry_at(number) + 19) / 512) {
        for end in 2..=torn {
            let directory = MemoryDirectory::new();
            let index = open(&directory, shape.slots, shape.entries);
            for number in 1..end {
                index
                    .put(TOPIC, std::iter::once(&b"a"[..]), PhysicalOffset(position(number)), Timestamp(BEGIN))
                    .unwrap();
            }
            index.write_round().unwrap();
            let entry = IndexEntry { key_hash: 1, position: position(torn), seconds: 0, previous: 0 };
            let mut bytes = entry.to_bytes();
            bytes[..8].fill(0);
            file(&directory, 0).write_at(shape.entry_at(torn), &bytes).unwrap();

            let count = shape.count_below(&*file(&directory, 0), PhysicalOffset(position(end))).unwrap();
            assert_eq!(count, end, "torn at {torn}");
        }
    }
}

#[test]
fn a_chain_whose_link_was_torn_off_is_found_again() {
    let directory = MemoryDirectory::new();
    let index = open(&directory, 1, 150);
    for at in 0..149 {
        put(&index, "a", at);
    }
    index.write_round().unwrap();
    let straddling = (100..150).rfind(|&number| index.shape.straddles_sector(number)).unwrap();
    let file = file(&directory, 0);
    file.write_at(index.shape.entry_at(straddling) + 16, &[0; 4]).unwrap();

    index.truncate_from(PhysicalOffset(9_000)).unwrap();

    assert_eq!(found(&index, "a"), (0..90).rev().collect::<Vec<_>>());
}

#[test]
fn an_index_without_folder_can_be_cut_and_synced() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);

    index.truncate_from(PhysicalOffset(0)).unwrap();

    index.sync().unwrap();
}

#[test]
fn store_38_a_cleared_index_begins_anew() {
    let directory = MemoryDirectory::new();
    let index = small(&directory);
    for at in 0..25 {
        put(&index, "a", at);
    }
    index.write_round().unwrap();

    index.clear().unwrap();
    assert!(names(&directory).is_empty());
    put(&index, "a", 3);
    index.write_round().unwrap();
    index.sync().unwrap();
    assert_eq!(found(&small(&directory.crash(7)), "a"), [3]);
}

/// A file is cut by shortening and extending it. What a kill leaves between the two had another length, and stayed for ever.
#[test]
fn a_kill_in_the_middle_of_a_cut_leaves_no_file_that_is_neither_used_nor_removed() {
    let mut was_short = false;
    for step in 1.. {
        let directory = MemoryDirectory::new();
        let index = small(&directory);
        for at in 0..18 {
            put(&index, "a", at);
        }
        index.write_round().unwrap();
        index.sync().unwrap();
        directory.crash_at(directory.steps() + step);
        let cut = index.truncate_from(PhysicalOffset(1_400));
        let directory = directory.kill();
        let listed = directory.list(Path::new(FOLDER)).unwrap();
        was_short |= listed.iter().any(|entry| entry.bytes != index.shape.file_bytes());

        let next = small(&directory);
        next.truncate_from(PhysicalOffset(1_400)).unwrap();

        assert_eq!(names(&directory).len() as u64, next.file_count(), "step {step}");
        let end = next.end().1.0 / 100;
        assert!([9, 13].contains(&end), "step {step}: a checkpoint notices that the index ends at {end}");
        assert_eq!(found(&next, "a"), (0..=end).rev().collect::<Vec<_>>(), "step {step}");
        if cut.is_ok() {
            break;
        }
    }
    assert!(was_short);
}

/// Writes rounds, syncs now and then, and loses power: whatever is left, the index cut at the last sync and fed from there finds what the log has.
fn survives_power_cuts(slots: u32, entries: u32, rounds: &[(u64, bool, bool)], seed: u64) {
    let key = |at: u64| ["a", "b", "c", "d", "e"][usize::try_from(at * at % 5).unwrap()];
    let mut directory = MemoryDirectory::new();
    let mut index = open(&directory, slots, entries);
    let (mut written, mut synced) = (1, 1);
    for (step, &(count, syncs, crashes)) in rounds.iter().enumerate() {
        for at in written..written + count {
            put(&index, key(at), at);
        }
        written += count;
        index.write_round().unwrap();
        if syncs {
            index.sync().unwrap();
            synced = written;
        }
        if !crashes {
            continue;
        }
        directory = directory.crash(seed.wrapping_add(step as u64));
        index = open(&directory, slots, entries);
        index.truncate_from(PhysicalOffset(synced * 100)).unwrap();
        check(&index, synced, key, seed);
        let log_end = synced + (written - synced) * (seed % 3) / 2;
        for at in synced..log_end {
            put(&index, key(at), at);
        }
        index.write_round().unwrap();
        index.sync().unwrap();
        (written, synced) = (log_end, log_end);
    }
    check(&index, written, key, seed);
}

fn check(index: &Index, end: u64, key: impl Fn(u64) -> &'static str, seed: u64) {
    let mut wanted = BTreeMap::<_, Vec<u64>>::new();
    for at in (1..end).rev() {
        wanted.entry(key(at)).or_default().push(at);
    }
    for (key, wanted) in wanted {
        assert_eq!(found(index, key), wanted, "seed {seed}, key {key}");
    }
    for file in index.files() {
        let header = file.header();
        let used =
            (0..index.shape.slots).filter(|&slot| index.shape.read_slot(&*file.file, slot).unwrap() != 0).count();
        assert_eq!(header.used_slots as usize, used, "seed {seed}");
        assert_eq!(Header::read(&*file.file).unwrap(), header);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn power_cuts_lose_no_key_of_what_the_log_has(
        slots in prop_oneof![Just(1u32), Just(4), Just(300), Just(3_000)],
        entries in prop_oneof![Just(20u32), Just(200), Just(2_000)],
        rounds in proptest::collection::vec((0u64..90, any::<bool>(), prop::bool::weighted(0.3)), 1..12),
        seed in any::<u64>(),
    ) {
        survives_power_cuts(slots, entries, &rounds, seed);
    }

    #[test]
    fn files_of_arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 288), position in any::<u64>()) {
        let directory = MemoryDirectory::new();
        directory.create_folder(Path::new(FOLDER)).unwrap();
        directory.write(&Path::new(FOLDER).join("20231114221320123"), &bytes).unwrap();

        let index = small(&directory);
        let _ = found(&index, "a");
        index.truncate_from(PhysicalOffset(position)).unwrap();
        let _ = found(&index, "a");
        let (time, end) = index.end();
        index.put(TOPIC, std::iter::once(&b"a"[..]), end.plus(0), time).unwrap();
        index.write_round().unwrap();
    }

    #[test]
    fn an_entry_and_a_header_are_their_bytes(entry in any::<[u8; 20]>()) {
        prop_assert_eq!(IndexEntry::from_bytes(&entry).to_bytes(), entry);
    }
}
