use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::{
    env::{MemoryDirectory, Operation},
    store::consume_queues::ConsumeQueues,
};

const ROOT: &str = "consumequeue";
const TOPIC: &str = "TopicTest";
/// Ten entries.
const SMALL: u64 = 200;
/// Bytes of the records in these tests.
const RECORD_BYTES: u32 = 145;

fn open(directory: &MemoryDirectory, file_bytes: u64) -> ConsumeQueues {
    ConsumeQueues::open(Arc::new(directory.clone()), Path::new(ROOT), file_bytes).unwrap()
}

fn queue(queues: &ConsumeQueues) -> Arc<ConsumeQueue> {
    queues.get_or_create(TOPIC, QueueId(3)).unwrap()
}

/// The entry of the record that is the `at`-th of the log. Half of its position looks like one far below.
fn entry(at: u64) -> QueueEntry {
    QueueEntry {
        position: PhysicalOffset((1 << 32) - 1_000 + at * u64::from(RECORD_BYTES)),
        bytes: RECORD_BYTES,
        tag_code: i64::try_from(at).unwrap() - 7,
    }
}

fn position(at: u64) -> PhysicalOffset {
    entry(at).position
}

fn put(queue: &ConsumeQueue, offsets: Range<u64>) {
    for at in offsets {
        queue.put(QueueOffset(at), entry(at)).unwrap();
    }
}

/// A queue that holds the entries `0..count`, written and synced.
fn queue_of(directory: &MemoryDirectory, count: u64) -> Arc<ConsumeQueue> {
    let queue = queue(&open(directory, SMALL));
    put(&queue, 0..count);
    queue.write_round().unwrap();
    queue.sync().unwrap();
    queue
}

fn reopened(directory: &MemoryDirectory, at: PhysicalOffset) -> Arc<ConsumeQueue> {
    let queue = queue(&open(directory, SMALL));
    queue.rewind(at).unwrap();
    queue
}

fn all(queue: &ConsumeQueue) -> Vec<(u64, QueueEntry)> {
    let QueueRange { min, max } = queue.range();
    let mut entries = Vec::new();
    let mut at = min;
    while at < max {
        let read = queue.read(at, 7).unwrap();
        assert!(!read.is_empty(), "nothing at {at} of {min}..{max}");
        entries.extend((at.0..).zip(read.iter().copied()));
        at = at.plus(read.len() as u64);
    }
    entries
}

fn entries(offsets: Range<u64>) -> Vec<(u64, QueueEntry)> {
    offsets.map(|at| (at, entry(at))).collect()
}

fn range(min: u64, max: u64) -> QueueRange {
    QueueRange { min: QueueOffset(min), max: QueueOffset(max) }
}

fn names(directory: &MemoryDirectory) -> Vec<String> {
    let folder = Path::new(ROOT).join(TOPIC).join("3");
    directory.list(&folder).unwrap().into_iter().map(|entry| entry.name).collect()
}

fn file(directory: &MemoryDirectory, start: u64) -> Arc<dyn File> {
    directory.open(&Path::new(ROOT).join(TOPIC).join("3").join(format!("{start:020}"))).unwrap()
}

/// The bytes of an entry as the file has them.
fn stored(directory: &MemoryDirectory, file_bytes: u64, at: u64) -> [u8; 20] {
    let byte = at * 20;
    let mut bytes = [0; 20];
    file(directory, byte / file_bytes * file_bytes).read_at(byte % file_bytes, &mut bytes).unwrap();
    bytes
}

#[test]
fn store_14_entry_7_is_stored_at_byte_140_as_rocketmq_stores_it() {
    let golden = [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0x91, 0, 0, 0, 0, 0, 0x27, 0xA8, 7];
    let directory = MemoryDirectory::new();
    let queues = open(&directory, 6_000_000);

    let entry = QueueEntry { position: PhysicalOffset(4096), bytes: 145, tag_code: 2_598_919 };
    queues.put(&mut None, TOPIC, QueueId(3), QueueOffset(7), entry).unwrap();
    assert!(queues.write_round().is_empty());

    assert_eq!(names(&directory), ["00000000000000000000"]);
    assert_eq!(file(&directory, 0).bytes(), 6_000_000);
    assert_eq!(stored(&directory, 6_000_000, 7), golden);
    assert_eq!(QueueEntry::from_bytes(&golden), entry);
}

#[test]
fn store_14_files_are_named_by_their_first_byte() {
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 25);

    assert_eq!(names(&directory), ["00000000000000000000", "00000000000000000200", "00000000000000000400"]);
    assert_eq!(stored(&directory, SMALL, 13), entry(13).to_bytes());
    assert_eq!(all(&queue), entries(0..25));
}

#[test]
fn store_17_a_queue_first_seen_late_begins_with_pre_blank_entries() {
    let directory = MemoryDirectory::new();
    let queue = queue(&open(&directory, SMALL));
    let blank = [0, 0, 0, 0, 0, 0, 0, 0, 0x7F, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0];

    put(&queue, 34..36);
    queue.write_round().unwrap();
    queue.sync().unwrap();

    assert_eq!(queue.range(), range(34, 36));
    assert_eq!(names(&directory), ["00000000000000000600"]);
    for at in 30..34 {
        assert_eq!(stored(&directory, SMALL, at), blank);
    }
    assert_eq!(all(&queue), entries(34..36));

    let queue = reopened(&directory, position(36));
    queue.set_min_position(PhysicalOffset::ZERO).unwrap();
    assert_eq!(queue.range(), range(34, 36));
}

#[test]
fn a_queue_whose_first_entry_was_lost_keeps_its_pre_blank_entries_for_the_second_try() {
    let directory = MemoryDirectory::new();
    let queue = queue(&open(&directory, SMALL));
    put(&queue, 34..35);
    queue.write_round().unwrap();
    file(&directory, 600).zero(80..SMALL).unwrap();

    let queue = reopened(&directory, PhysicalOffset::ZERO);
    assert_eq!(queue.range(), range(34, 34));
    put(&queue, 34..36);
    queue.write_round().unwrap();

    assert_eq!(all(&queue), entries(34..36));
}

#[test]
fn store_27_a_newest_file_of_zero_bytes_is_removed() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 20);
    directory.write(&Path::new(ROOT).join(TOPIC).join("3/00000000000000000400"), b"").unwrap();

    let queue = reopened(&directory, position(20));

    assert_eq!(names(&directory).len(), 2);
    assert_eq!(queue.range(), range(0, 20));
}

#[test]
fn store_26_a_short_newest_file_is_extended_and_loses_nothing() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 13);
    file(&directory, 200).set_bytes(60, Allocation::Sparse).unwrap();

    let queue = reopened(&directory, position(13));

    assert_eq!(all(&queue), entries(0..13));
    assert_eq!(file(&directory, 200).bytes(), SMALL);
}

#[test]
fn store_26_an_older_file_that_was_cut_is_extended_and_known_to_be_damaged() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 13);
    file(&directory, 0).set_bytes(60, Allocation::Sparse).unwrap();

    let queue = reopened(&directory, position(13));

    assert!(queue.has_damaged_files(false, |_, _| Some(true)).unwrap());
    assert_eq!(file(&directory, 0).bytes(), SMALL);
}

#[test]
fn a_file_is_damaged_if_its_ends_are_zero_or_not_those_of_their_records() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 23);
    let judge = |at: u64, entry: &QueueEntry| Some(entry.position == position(at));
    let is_damaged = || reopened(&directory, position(23)).has_damaged_files(false, judge).unwrap();
    assert!(!is_damaged());

    file(&directory, 200).write_at(0, &[0; 20]).unwrap();
    assert!(is_damaged());
    file(&directory, 200).write_at(0, &QueueEntry::BLANK.to_bytes()).unwrap();
    assert!(!is_damaged(), "a blank entry is no damage");
    file(&directory, 0).write_at(180, &entry(8).to_bytes()).unwrap();
    assert!(is_damaged());
}

#[test]
fn store_26_files_that_all_have_another_length_stop_the_start_and_name_the_key() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 13);
    for start in [0, 200] {
        file(&directory, start).set_bytes(220, Allocation::Sparse).unwrap();
    }

    let error = ConsumeQueues::open(Arc::new(directory.clone()), Path::new(ROOT), SMALL).err().unwrap();

    let StoreError::FileLength { found: 220, wanted: SMALL, key: "mappedFileSizeConsumeQueue", .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(file(&directory, 0).bytes(), 220, "nothing is moved");
}

#[test]
fn store_26_a_single_file_that_is_too_long_is_moved_away_and_the_queue_counts_as_damaged() {
    for (start, bytes) in [(0, 220), (200, 207), (200, 4_000)] {
        let directory = MemoryDirectory::new();
        queue_of(&directory, 13);
        file(&directory, start).set_bytes(bytes, Allocation::Sparse).unwrap();

        let queues = ConsumeQueues::open(Arc::new(directory.clone()), Path::new(ROOT), SMALL).unwrap();

        assert!(queues.have_damaged_files(false, |_, _, _, _| None).unwrap(), "{start} {bytes}");
        let folder = Path::new(ROOT).join(TOPIC).join("3");
        let kept = directory.read(&folder.join(format!("{start:020}.bad"))).unwrap();
        assert_eq!(kept.unwrap().len() as u64, bytes);
    }
}

#[test]
fn store_29_strange_files_and_folders_are_ignored_and_left_alone() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 13);
    let strange = ["3/notes.txt", "3/00000000000000000077", "3/7", "4.bak", "old", "03", "-1"];
    for name in strange {
        let path = Path::new(ROOT).join(TOPIC).join(name);
        if name.contains('/') || name.contains('.') {
            directory.write(&path, &[1; 200]).unwrap();
        } else {
            directory.create_folder(&path).unwrap();
        }
    }
    directory.write(&Path::new(ROOT).join("lost+found"), b"x").unwrap();

    let queues = open(&directory, SMALL);
    queues.rewind(position(13)).unwrap();

    assert_eq!(queues.all().len(), 1);
    assert_eq!(all(&queue(&queues)), entries(0..13));
    assert_eq!(names(&directory).len(), 5);
}

#[test]
fn store_39_entries_that_were_zeroed_come_back_where_they_were() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 27);
    file(&directory, 200).zero(100..SMALL).unwrap();
    file(&directory, 400).zero(0..60).unwrap();

    let queue = reopened(&directory, position(15));
    put(&queue, 15..27);
    queue.write_round().unwrap();
    queue.cut().unwrap();

    assert_eq!(all(&queue), entries(0..27));
}

#[test]
fn store_40_entries_beyond_the_end_of_the_log_are_dropped_with_all_that_follows() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 27);
    let queue = reopened(&directory, position(27));

    queue.rewind(position(13)).unwrap();
    queue.cut().unwrap();
    queue.sync().unwrap();

    assert_eq!(queue.range(), range(0, 13));
    assert_eq!(names(&directory).len(), 2);
    for at in 13..20 {
        assert_eq!(stored(&directory, SMALL, at), [0; 20]);
    }
    assert_eq!(all(&reopened(&directory, position(13))), entries(0..13));
}

#[test]
fn an_empty_file_that_a_power_cut_left_does_not_come_back_by_the_next_one() {
    // An audit took it for damage, when the store had been stopped cleanly in between.
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 10);
    put(&queue, 10..15);
    queue.write_round().unwrap();
    directory.sync_folder(&Path::new(ROOT).join(TOPIC).join("3")).unwrap();
    for seed in 0..20 {
        let directory = directory.crash(seed);
        reopened(&directory, position(10));

        let directory = directory.crash(seed);

        let folder = Path::new(ROOT).join(TOPIC).join("3");
        let empty = directory.list(&folder).unwrap().into_iter().filter(|entry| entry.bytes == 0);
        assert_eq!(empty.count(), 0, "seed {seed}");
    }
}

#[test]
fn files_that_a_killed_process_removed_do_not_come_back_with_the_power() {
    let directory = MemoryDirectory::new();
    drop(queue_of(&directory, 5));
    let killed = reopened(&directory, PhysicalOffset::ZERO);
    killed.cut().unwrap();
    assert!(names(&directory).is_empty());

    let directory = directory.kill();
    let queue = reopened(&directory, PhysicalOffset::ZERO);
    queue.sync().unwrap();

    for seed in 0..20 {
        assert!(names(&directory.crash(seed)).is_empty(), "seed {seed}");
    }
}

#[test]
fn a_queue_cut_at_a_file_border_has_no_empty_file_left() {
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 27);

    queue.rewind(position(20)).unwrap();
    queue.cut().unwrap();

    assert_eq!(names(&directory).len(), 2);
    put(&queue, 20..21);
    queue.write_round().unwrap();
    assert_eq!(all(&queue), entries(0..21));
}

#[test]
fn store_44_without_a_log_a_queue_loses_its_files_and_begins_at_0() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 27);
    let queue = queue(&open(&directory, SMALL));

    queue.rewind(PhysicalOffset::ZERO).unwrap();
    queue.cut().unwrap();
    assert_eq!(queue.range(), range(0, 0));
    assert!(names(&directory).is_empty());

    put(&queue, 0..3);
    queue.write_round().unwrap();
    assert_eq!(all(&queue), entries(0..3));
}

#[test]
fn entries_cannot_be_read_before_their_round_is_written() {
    let directory = MemoryDirectory::new();
    let queue = queue(&open(&directory, SMALL));

    put(&queue, 0..3);
    assert_eq!(queue.range(), range(0, 0));
    assert!(queue.read(QueueOffset(0), 3).unwrap().is_empty());

    queue.write_round().unwrap();
    assert_eq!(queue.range(), range(0, 3));
    assert_eq!(queue.entry(QueueOffset(2)).unwrap(), Some(entry(2)));
    assert_eq!(queue.entry(QueueOffset(3)).unwrap(), None);
}

#[test]
fn a_run_of_entries_is_one_write_per_file() {
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 1);
    let before = directory.steps();

    put(&queue, 1..10);
    queue.write_round().unwrap();

    assert_eq!(directory.steps() - before, 1);
}

#[test]
fn the_same_entry_again_is_not_written_again() {
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 13);
    let before = directory.steps();

    put(&queue, 0..13);
    queue.write_round().unwrap();

    assert_eq!(directory.steps(), before);
    assert_eq!(queue.range(), range(0, 13));
}

#[test]
fn an_entry_that_disagrees_with_the_log_is_replaced() {
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 13);
    file(&directory, 0).write_at(4 * 20, &[9; 20]).unwrap();

    put(&queue, 0..13);
    queue.write_round().unwrap();

    assert_eq!(all(&queue), entries(0..13));
}

#[test]
fn missing_offsets_are_filled_with_blank_entries_but_never_the_last() {
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 8);

    queue.put(QueueOffset(12), entry(12)).unwrap();
    assert_eq!(queue.range(), range(0, 8), "blank entries alone are not shown");
    queue.write_round().unwrap();

    assert_eq!(queue.range(), range(0, 13));
    for at in 8..12 {
        let blank = queue.entry(QueueOffset(at)).unwrap().unwrap();
        assert!(blank.is_blank());
        assert_eq!(blank, QueueEntry::BLANK);
    }
    assert_eq!(queue.entry(QueueOffset(12)).unwrap(), Some(entry(12)));
    assert_eq!(reopened(&directory, position(13)).range(), range(0, 13));
    assert_eq!(reopened(&directory, position(12)).range(), range(0, 8));
}

#[test]
fn a_gap_that_only_a_damaged_offset_can_make_is_refused_and_harms_nobody() {
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 8);

    let refused = queue.put(QueueOffset(1 << 40), entry(8));

    assert!(matches!(refused, Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidData));
    put(&queue, 8..9);
    queue.write_round().unwrap();
    assert_eq!(all(&queue), entries(0..9));
}

#[test]
fn what_survived_in_a_gap_of_the_log_is_kept_if_it_fits() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 13);

    let queue = reopened(&directory, position(5));
    // The records of 5 to 8 are damaged in the log: nobody puts them.
    file(&directory, 0).write_at(6 * 20, &[0xFF; 20]).unwrap();
    file(&directory, 0).write_at(7 * 20, &entry(50).to_bytes()).unwrap();
    file(&directory, 0).write_at(8 * 20, &entry(2).to_bytes()).unwrap();
    put(&queue, 9..13);
    queue.write_round().unwrap();

    let mut wanted = entries(0..13);
    for (_, blank) in &mut wanted[6..9] {
        *blank = QueueEntry::BLANK;
    }
    assert_eq!(all(&queue), wanted);
}

#[test]
fn a_queue_whose_first_file_was_lost_is_built_again_from_its_first_message() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 27);
    directory.remove(&Path::new(ROOT).join(TOPIC).join("3/00000000000000000000")).unwrap();

    let queue = reopened(&directory, PhysicalOffset::ZERO);
    put(&queue, 0..27);
    queue.write_round().unwrap();

    assert_eq!(all(&queue), entries(0..27));
}

#[test]
fn a_file_lost_between_two_others_is_built_again() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 37);
    directory.remove(&Path::new(ROOT).join(TOPIC).join("3/00000000000000000200")).unwrap();

    let queue = reopened(&directory, position(10));
    assert_eq!(queue.range(), range(0, 10));
    put(&queue, 10..37);
    queue.write_round().unwrap();

    assert_eq!(all(&queue), entries(0..37));
}

/// An entry that lies in two sectors, of which only the second reached the disk, has a position far below its own.
#[test]
fn a_torn_entry_beyond_the_end_misleads_nobody() {
    let file_bytes = 200 * 20;
    for torn in (0..200).filter(|at| at * 20 / 512 != (at * 20 + 19) / 512) {
        for end in 1..=torn {
            let directory = MemoryDirectory::new();
            let queue = queue(&open(&directory, file_bytes));
            put(&queue, 0..end);
            queue.write_round().unwrap();
            let mut bytes = entry(torn).to_bytes();
            bytes[..4].fill(0);
            file(&directory, 0).write_at(torn * 20, &bytes).unwrap();

            queue.rewind(position(end)).unwrap();
            assert_eq!(queue.range().max.0, end, "torn at {torn}");
        }
    }
}

/// It looked like the entry of a record of 2 GiB, behind which no record had room before the next.
#[test]
fn a_blank_entry_that_was_cut_short_is_no_entry() {
    let first = QueueEntry { position: PhysicalOffset(100_000), ..entry(0) };
    for written in 0..20 {
        let directory = MemoryDirectory::new();
        let queue = queue(&open(&directory, SMALL));
        queue.put(QueueOffset(7), first).unwrap();
        queue.write_round().unwrap();
        // The process was killed while it wrote the fifth of the blank entries before the first one.
        file(&directory, 0).write_at(4 * 20 + written, &vec![0; 120 - usize::try_from(written).unwrap()]).unwrap();

        let queue = reopened(&directory, PhysicalOffset(50_000));
        queue.put(QueueOffset(7), first).unwrap();
        queue.write_round().unwrap();

        assert_eq!(all(&queue).last(), Some(&(7, first)), "{written} bytes were written");
        let blanks = queue.read(QueueOffset(0), 7).unwrap();
        assert_eq!(blanks, [QueueEntry::BLANK; 7], "{written} bytes were written");
    }
}

#[test]
fn offset_0_behind_the_newest_entry_begins_a_new_life_of_the_queue() {
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 27);

    for at in 0..3 {
        queue.put(QueueOffset(at), entry(27 + at)).unwrap();
    }
    queue.write_round().unwrap();
    queue.sync().unwrap();

    let wanted: Vec<_> = (0..3).map(|at| (at, entry(27 + at))).collect();
    assert_eq!(all(&queue), wanted);
    assert_eq!(names(&directory).len(), 1);
    assert_eq!(all(&reopened(&directory, position(30))), wanted);
}

#[test]
fn an_offset_given_twice_belongs_to_the_later_record() {
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 27);

    queue.put(QueueOffset(13), entry(27)).unwrap();
    queue.write_round().unwrap();

    let mut wanted = entries(0..13);
    wanted.push((13, entry(27)));
    assert_eq!(all(&queue), wanted);
}

#[test]
fn a_survivor_beyond_the_end_is_known_by_its_record() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 13);
    let queue = reopened(&directory, position(5));

    assert_eq!(queue.range().max, QueueOffset(5));
    assert_eq!(queue.existing(QueueOffset(9), position(9), RECORD_BYTES), Some(2));
    assert_eq!(queue.existing(QueueOffset(9), position(8), RECORD_BYTES), None);
    assert_eq!(queue.existing(QueueOffset(9), position(9), RECORD_BYTES + 1), None);
    assert_eq!(queue.existing(QueueOffset(99), position(99), RECORD_BYTES), None);
}

#[test]
fn store_49_min_follows_the_log_and_an_exhausted_queue_keeps_its_max() {
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 27);

    queue.set_min_position(PhysicalOffset(position(13).0 - 1)).unwrap();
    assert_eq!(queue.range(), range(13, 27));
    assert_eq!(names(&directory).len(), 2, "the first file has no entry left");
    assert!(queue.read(QueueOffset(3), 1).unwrap().is_empty());
    assert_eq!(all(&queue), entries(13..27));

    queue.set_min_position(position(500)).unwrap();
    assert_eq!(queue.range(), range(27, 27));
    assert_eq!(names(&directory), ["00000000000000000400"], "store 47: the newest file stays");

    let queue = reopened(&directory, position(500));
    queue.set_min_position(position(500)).unwrap();
    assert_eq!(queue.range(), range(27, 27));
}

#[test]
fn an_entry_is_found_by_the_end_of_its_record() {
    let directory = MemoryDirectory::new();
    let queue = queue_of(&directory, 8);
    queue.put(QueueOffset(12), entry(12)).unwrap();
    queue.write_round().unwrap();

    for at in [0, 1, 7, 12] {
        assert_eq!(queue.find_end(entry(at).end()).unwrap(), Some(QueueOffset(at)));
    }
    for at in [8, 10, 13] {
        assert_eq!(queue.find_end(entry(at).end()).unwrap(), None);
    }
    assert_eq!(queue.find_end(PhysicalOffset::ZERO).unwrap(), None);
}

#[test]
fn a_round_that_cannot_be_written_is_written_later_and_holds_only_its_own_queue_up() {
    let directory = MemoryDirectory::new();
    let queues = open(&directory, SMALL);
    let bad = Path::new(ROOT).join("Bad");
    directory.fail_under(&bad, Operation::Create, 0, io::ErrorKind::StorageFull, 1);

    queues.put(&mut None, "Bad", QueueId(0), QueueOffset(0), entry(0)).unwrap();
    queues.put(&mut None, "Good", QueueId(0), QueueOffset(0), entry(1)).unwrap();
    let faults = queues.write_round();

    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].topic.as_str(), "Bad");
    assert_eq!(queues.unwritten_from().unwrap().0, position(0));
    assert_eq!(queues.get("Good", QueueId(0)).unwrap().range(), range(0, 1));

    queues.put(&mut None, "Bad", QueueId(0), QueueOffset(1), entry(2)).unwrap();
    assert!(queues.write_round().is_empty());
    assert_eq!(queues.unwritten_from(), None);
    assert_eq!(queues.get("Bad", QueueId(0)).unwrap().range(), range(0, 2));
}

#[test]
fn too_many_entries_that_cannot_be_written_set_the_queue_aside() {
    let directory = MemoryDirectory::new();
    let queue = queue(&open(&directory, 6_000_000));
    directory.fail_after(Operation::Create, 0, io::ErrorKind::StorageFull, u64::MAX);

    put(&queue, 0..PENDING_ENTRIES_MAX as u64);
    let at = PENDING_ENTRIES_MAX as u64;
    assert!(queue.put(QueueOffset(at), entry(at)).is_err());
    directory.heal();
    queue.write_round().unwrap();

    assert!(queue.put(QueueOffset(at + 1), entry(at + 1)).is_err(), "no gap is made");
    assert_eq!(queue.range(), range(0, at));
    assert_eq!(queue.unwritten_from(), Some(position(at)));
}

#[test]
fn store_33_after_a_failed_sync_no_later_one_succeeds() {
    let directory = MemoryDirectory::new();
    let queue = queue(&open(&directory, SMALL));
    put(&queue, 0..3);
    queue.write_round().unwrap();
    directory.fail_after(Operation::Sync, 0, io::ErrorKind::Other, 1);

    assert!(queue.sync().is_err());
    assert!(queue.is_dirty());
    assert!(queue.sync().is_err());
}

#[test]
fn a_deleted_topic_begins_again_at_0_and_takes_nothing_from_who_still_holds_it() {
    let directory = MemoryDirectory::new();
    queue_of(&directory, 27);
    let queues = open(&directory, SMALL);
    queues.rewind(position(27)).unwrap();
    let held = queue(&queues);

    queues.delete_topic(TOPIC).unwrap();
    put(&held, 27..28);
    held.write_round().unwrap();
    held.sync().unwrap();

    assert!(queues.get(TOPIC, QueueId(3)).is_none());
    assert!(names(&directory).is_empty());
    queues.put(&mut None, TOPIC, QueueId(3), QueueOffset(0), entry(28)).unwrap();
    assert!(queues.write_round().is_empty());
    assert_eq!(all(&queue(&queues)), [(0, entry(28))]);
}

#[test]
fn a_topic_whose_name_leads_out_of_the_folder_has_no_queue() {
    let directory = MemoryDirectory::new();
    let queues = open(&directory, SMALL);

    for topic in ["", ".", "..", "../../etc", "a/b", "nul\0", &"x".repeat(256)] {
        assert!(queues.put(&mut None, topic, QueueId(0), QueueOffset(0), entry(0)).is_err(), "{topic:?}");
    }
    assert!(queues.put(&mut None, "%RETRY%group", QueueId(0), QueueOffset(0), entry(0)).is_ok());
}

#[test]
fn more_files_than_may_be_open_are_all_read() {
    let directory = MemoryDirectory::new();
    let open_files = Arc::new(OpenFiles::new(2));
    let topic = Topic::from(TOPIC);
    let folder = Path::new(ROOT).join("T/0");
    let queue = ConsumeQueue::open(Arc::new(directory), open_files, folder, topic, QueueId(0), SMALL, false).unwrap();
    put(&queue, 0..95);
    queue.write_round().unwrap();
    queue.sync().unwrap();

    assert_eq!(all(&queue), entries(0..95));
    assert_eq!(queue.entry(QueueOffset(1)).unwrap(), Some(entry(1)));
}

/// Writes rounds, syncs now and then, and loses power: whatever is left, the queue that is rewound to the last sync and fed from there equals
/// the log.
fn survives_power_cuts(file_entries: u64, rounds: &[(u64, bool, bool)], seed: u64) {
    let file_bytes = file_entries * 20;
    let mut directory = MemoryDirectory::new();
    let (mut written, mut synced) = (0, 0);
    let mut queues = open(&directory, file_bytes);
    for (at, &(count, syncs, crashes)) in rounds.iter().enumerate() {
        let queue = queue(&queues);
        put(&queue, written..written + count);
        written += count;
        queue.write_round().unwrap();
        if syncs {
            assert!(queues.sync().is_empty());
            synced = written;
        }
        if !crashes {
            continue;
        }
        // The log itself may have lost its end, but nothing below the checkpoint.
        let log_end = synced + (written - synced) * (seed % 3) / 2;
        directory = directory.crash(seed.wrapping_add(at as u64));
        queues = open(&directory, file_bytes);
        queues.rewind(position(synced)).unwrap();
        let queue = self::queue(&queues);
        let QueueRange { min, max } = queue.range();
        assert!(max.0 == synced || synced == 0 && min == max, "seed {seed}, step {at}: {min}..{max}");
        put(&queue, synced..log_end);
        queue.write_round().unwrap();
        assert!(queues.cut().is_empty());
        assert_eq!(all(&queue), entries(0..log_end), "seed {seed}, step {at}");
        assert!(queue.read(QueueOffset(log_end), 1).unwrap().is_empty());
        if !log_end.is_multiple_of(file_entries) {
            for at in log_end..log_end.next_multiple_of(file_entries) {
                assert_eq!(stored(&directory, file_bytes, at), [0; 20], "nothing is left beyond the end");
            }
        }
        assert!(queues.sync().is_empty());
        (written, synced) = (log_end, log_end);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn power_cuts_lose_no_entry_of_what_the_log_has(
        file_entries in prop_oneof![Just(10u64), Just(64), Just(1_000)],
        rounds in proptest::collection::vec((0u64..120, any::<bool>(), prop::bool::weighted(0.3)), 1..12),
        seed in any::<u64>(),
    ) {
        survives_power_cuts(file_entries, &rounds, seed);
    }

    #[test]
    fn an_entry_is_its_20_bytes(bytes in any::<[u8; 20]>()) {
        prop_assert_eq!(QueueEntry::from_bytes(&bytes).to_bytes(), bytes);
    }

    #[test]
    fn files_of_arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..420), at in any::<u64>()) {
        let directory = MemoryDirectory::new();
        queue_of(&directory, 20);
        for (start, part) in (0..).step_by(200).zip(bytes.chunks(200)) {
            if start < 400 {
                file(&directory, start).write_at(0, part).unwrap();
            }
        }
        let queue = reopened(&directory, PhysicalOffset(at));
        queue.set_min_position(PhysicalOffset(at / 2)).unwrap();
        let _ = queue.find_end(PhysicalOffset(at));
        let next = queue.range().max;
        let _ = queue.put(next, QueueEntry { position: PhysicalOffset(1 << 60), bytes: 145, tag_code: 0 });
        queue.write_round().unwrap();
        queue.cut().unwrap();
        prop_assert!(queue.range().min <= queue.range().max);
    }
}
