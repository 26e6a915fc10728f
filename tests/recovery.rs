//! What is left after a stop of any kind: files that were cut or damaged, power cuts and kills at every step of a workload, faults of the
//! disk. Everything that was acknowledged as durable is there, in order, and nothing torn is seen.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use std::{collections::BTreeSet, io, path::Path, sync::Arc, sync::Mutex, time::Duration};

use latermq::{
    env::{Allocation, Directory, Forbidden, Operation},
    model::{PhysicalOffset, Properties, QueueId, QueueOffset, SysFlag, Timestamp},
    record::{Record, RecordView},
    store::{
        AppendError, Dispatched, FigureValue, FlushPolicy, Mended, MessageStore, Plugin, PullQuery, PullStatus,
        QueueEntry, StoreHandle,
    },
};
use support::{Machine, SEGMENT_BYTES, START, bodies, body_of, dispatch_all, draft, ends, logged, message, records};

// A record cut short, or with a byte changed.

/// Five messages and a last one; the process was killed.
fn five_and_one() -> (Machine, PhysicalOffset, PhysicalOffset) {
    let machine = Machine::new();
    let store = machine.open();
    for n in 0..5 {
        store.append(draft("orders", 0, &n.to_string())).unwrap();
    }
    let last = store.append(draft("orders", 0, "the last one")).unwrap();
    dispatch_all(&store);
    drop(store);
    (machine.killed(), last.position, last.end)
}

const FIVE: [&str; 5] = ["0", "1", "2", "3", "4"];

#[test]
fn store_35_a_record_cut_at_any_byte_is_gone_and_all_before_it_stay() {
    let (machine, position, end) = five_and_one();
    for left in 0..end.since(position) {
        let cut = machine.killed();
        let zeros = vec![0; usize::try_from(end.since(position) - left).unwrap()];
        cut.overwrite(&cut.segment(0), position.0 + left, &zeros);

        let store = cut.open();

        assert_eq!(bodies(&store, "orders", 0), FIVE, "{left} bytes are left");
        assert_eq!(store.log_range().1, position, "{left} bytes are left");
        let bytes = cut.read(&cut.segment(0));
        assert!(bytes[usize::try_from(position.0).unwrap()..].iter().all(|&b| b == 0), "the rest is free again");
        assert_eq!(store.append(draft("orders", 0, "5")).unwrap().queue_offset, QueueOffset(5));
        drop(store);
        assert_eq!(bodies(&cut.killed().open(), "orders", 0).last().unwrap(), "5", "{left} bytes are left");
    }
}

/// No checksum covers the topic, and without properties nothing behind it tells that it is not whole.
#[test]
fn store_35_a_record_without_properties_that_was_cut_at_any_byte_is_gone() {
    let machine = Machine::new();
    let store = machine.open();
    store.append(draft("orders", 0, "first")).unwrap();
    let mut bare = draft("orders", 0, "");
    bare.properties = Properties::new();
    let last = store.append(bare).unwrap();
    drop(store);
    // Its last two bytes, the length of no properties, are zeros in any case.
    for left in 0..last.end.since(last.position) - 2 {
        let cut = machine.killed();
        let zeros = vec![0; usize::try_from(last.end.since(last.position) - left).unwrap()];
        cut.overwrite(&cut.segment(0), last.position.0 + left, &zeros);

        let store = cut.open();

        assert_eq!(bodies(&store, "orders", 0), ["first"], "{left} bytes are left");
        assert_eq!(store.log_range().1, last.position, "{left} bytes are left");
        assert_eq!(store.queues().len(), 1, "{left} bytes are left: {:?}", store.queues());
    }
}

#[test]
fn store_26_a_newest_segment_that_ends_in_a_record_is_made_whole_again() {
    let (machine, position, end) = five_and_one();
    for bytes in (position.0..=end.0).step_by(7).chain([1, 8, position.0 - 1, end.0]) {
        let short = machine.killed();
        let path = short.segment(0);
        let file = short.disk.open(Path::new(&path)).unwrap();
        file.set_bytes(bytes, Allocation::Real).unwrap();

        let store = short.open();

        let whole = if bytes >= end.0 { 6 } else { usize::from(bytes >= position.0) * 5 };
        let found = bodies(&store, "orders", 0);
        assert!(found.len() >= whole && found[..found.len().min(5)] == FIVE[..found.len().min(5)], "{bytes} bytes");
        assert_eq!(found.len() == 6, bytes >= end.0, "{bytes} bytes");
        assert!(found.is_empty() || short.read(&path).len() as u64 == SEGMENT_BYTES, "{bytes} bytes");
    }
}

/// Fields of a record whose every byte is checked by something: lengths, magic, position, checksum, and in the tail the queue offset.
fn is_checked(at: u64) -> bool {
    matches!(at, 0..12 | 20..36 | 84..88)
}

#[test]
fn whatever_byte_of_a_header_is_changed_in_the_tail_nothing_before_it_is_lost() {
    let (machine, position, _) = five_and_one();
    for at in 0..88 {
        for flip in [0x01, 0x10, 0x80, 0xFF] {
            let damaged = machine.killed();
            let byte = damaged.read(&damaged.segment(0))[usize::try_from(position.0 + at).unwrap()] ^ flip;
            damaged.overwrite(&damaged.segment(0), position.0 + at, &[byte]);

            let store = damaged.open();

            let found = bodies(&store, "orders", 0);
            assert_eq!(found[..5], FIVE, "byte {at} ^ {flip:#x}");
            assert!(found[5..].iter().all(|body| body == "the last one"), "byte {at} ^ {flip:#x}: {found:?}");
            if is_checked(at) {
                assert_eq!(found.len(), 5, "byte {at} ^ {flip:#x}");
                assert_eq!(store.log_range().1, position, "byte {at} ^ {flip:#x}");
            }
            let next = store.append(draft("orders", 0, "next")).unwrap();
            dispatch_all(&store);
            assert_eq!(bodies(&store, "orders", 0).last().unwrap(), "next", "byte {at} ^ {flip:#x}");
            drop(store);
            let store = damaged.killed().open();
            assert_eq!(bodies(&store, "orders", 0).last().unwrap(), "next", "byte {at} ^ {flip:#x}, once more");
            assert!(store.record_at(next.position).is_some());
        }
    }
}

#[test]
fn a_byte_changed_below_the_checkpoint_costs_that_message_at_most() {
    let (machine, position, _) = five_and_one();
    let store = machine.open();
    store.append(draft("orders", 0, "behind")).unwrap();
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    drop(store);
    let is_checked = |at| is_checked(at) && !(20..28).contains(&at);
    for at in (0..88).chain([95, 99, 100, 110, 130]) {
        let damaged = machine.killed();
        let byte = damaged.read(&damaged.segment(0))[usize::try_from(position.0 + at).unwrap()] ^ 0x40;
        damaged.overwrite(&damaged.segment(0), position.0 + at, &[byte]);

        let store = damaged.open();

        let mut found = bodies(&store, "orders", 0);
        assert_eq!(found.pop().unwrap(), "behind", "byte {at}");
        assert_eq!(found[..5], FIVE, "byte {at}");
        assert!(found.len() == 5 || (!is_checked(at) && found[5] == "the last one"), "byte {at}: {found:?}");
        assert_eq!(store.append(draft("orders", 0, "next")).unwrap().queue_offset, QueueOffset(7), "byte {at}");
    }
}

// Damage in old parts of the log.

/// Messages in three segments and a part of a fourth, with two queues; all of it dispatched and durable.
fn four_segments() -> (Machine, Vec<(PhysicalOffset, PhysicalOffset)>) {
    let machine = Machine::new();
    let store = machine.open();
    let mut places = Vec::new();
    while store.log_range().1.0 < 3 * SEGMENT_BYTES + SEGMENT_BYTES / 2 {
        let n = places.len();
        let appended = store.append(message("orders", (n % 2) as u32, &format!("m{n}"), 1_500)).unwrap();
        places.push((appended.position, appended.end));
    }
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    drop(store);
    (machine.killed(), places)
}

fn names_of(store: &MessageStore, topic: &str, queue_id: u32) -> Vec<String> {
    let name = |record: Record| record.view().properties().get("UNIQ_KEY").unwrap().to_owned();
    records(store, topic, QueueId(queue_id)).into_iter().map(name).collect()
}

/// The messages that must be left in both queues if those that touch a range of the log are lost.
fn left_without(places: &[(PhysicalOffset, PhysicalOffset)], lost: std::ops::Range<u64>) -> [Vec<String>; 2] {
    let mut left = [Vec::new(), Vec::new()];
    for (n, (position, end)) in places.iter().enumerate() {
        if end.0 <= lost.start || position.0 >= lost.end {
            left[n % 2].push(format!("m{n}"));
        }
    }
    left
}

fn figure(store: &MessageStore, name: &str) -> f64 {
    let figures = store.figures();
    let figure = figures.iter().find(|figure| figure.name == name).unwrap();
    let FigureValue::Number(value) = figure.value else { panic!("{name} is no number") };
    value
}

fn check_left(machine: &Machine, places: &[(PhysicalOffset, PhysicalOffset)], lost: std::ops::Range<u64>, what: &str) {
    let store = machine.open();
    let left = left_without(places, lost);
    for (queue_id, left) in (0..).zip(&left) {
        assert_eq!(names_of(&store, "orders", queue_id), *left, "queue {queue_id}, {what}");
        let total = places.len() as u64;
        let wanted = QueueOffset((total + 1 - u64::from(queue_id)) / 2);
        assert_eq!(store.queue_range("orders", QueueId(queue_id)).unwrap().max, wanted, "queue {queue_id}, {what}");
    }
    assert_eq!(store.log_range().1, places.last().unwrap().1, "nothing was cut, {what}");
    let next = store.append(message("orders", 0, "next", 10)).unwrap();
    assert_eq!(next.queue_offset.0, places.len().div_ceil(2) as u64, "{what}");
}

#[test]
fn damage_in_an_old_segment_costs_only_the_messages_it_touches() {
    // B117
    let (machine, places) = four_segments();
    let page = 4096;
    let ranges = [
        ("one byte of a body", 2_100..2_101),
        ("one page of the first segment", page..2 * page),
        ("two pages and a half", 5 * page..7 * page + 2_000),
        ("the start of the log", 0..page),
        ("the start of the second segment", SEGMENT_BYTES..SEGMENT_BYTES + page),
        ("the end of the second segment", 2 * SEGMENT_BYTES - page..2 * SEGMENT_BYTES),
        ("the whole second segment", SEGMENT_BYTES..2 * SEGMENT_BYTES),
    ];
    for (what, lost) in ranges {
        for garbage in [0x00, 0xFF] {
            for forgets_checkpoint in [false, true] {
                let damaged = machine.killed();
                let number = lost.start / SEGMENT_BYTES;
                let bytes = vec![garbage; usize::try_from(lost.end - lost.start).unwrap()];
                damaged.overwrite(&damaged.segment(number), lost.start - number * SEGMENT_BYTES, &bytes);
                if forgets_checkpoint {
                    damaged.forget_our_checkpoint();
                }
                let what = format!("{what}, {garbage:#x}, without checkpoint: {forgets_checkpoint}");
                // A blank that is lost costs nothing.
                check_left(&damaged, &places, lost.clone(), &what);
            }
        }
    }
}

#[test]
fn damage_in_an_old_segment_above_the_checkpoint_costs_only_the_messages_it_touches() {
    let machine = Machine::new();
    let store = machine.open();
    let mut places = Vec::new();
    while store.log_range().1.0 < 2 * SEGMENT_BYTES + 5_000 {
        let n = places.len();
        let appended = store.append(message("orders", (n % 2) as u32, &format!("m{n}"), 1_500)).unwrap();
        places.push((appended.position, appended.end));
    }
    drop(store);
    for lost in [4096..8192, 6_000..6_001, SEGMENT_BYTES..SEGMENT_BYTES + 12_000] {
        let damaged = machine.killed();
        let number = lost.start / SEGMENT_BYTES;
        let bytes = vec![0xEE; usize::try_from(lost.end - lost.start).unwrap()];
        damaged.overwrite(&damaged.segment(number), lost.start - number * SEGMENT_BYTES, &bytes);
        check_left(&damaged, &places, lost.clone(), &format!("{lost:?}"));
    }
}

/// Where the queue offset lies in a record.
const QUEUE_OFFSET_AT: u64 = 20;

#[test]
fn a_damaged_queue_offset_in_an_old_segment_costs_only_its_message_though_our_checkpoint_is_lost() {
    // Believed, it made its queue begin anew there, and the sound messages before it were gone.
    let (machine, places) = four_segments();
    for lost in [0, 1, 8, 21] {
        let (position, end) = places[lost];
        let was = lost as u64 / 2;
        // 0 is the mark of a queue that begins anew; but what follows does not begin anew.
        for wrong in [0, 1, 2, 5, 9, 19, 21, 1 << 40, u64::MAX].into_iter().filter(|wrong| *wrong != was) {
            let damaged = machine.killed();
            damaged.overwrite(&damaged.segment(0), position.0 + QUEUE_OFFSET_AT, &wrong.to_be_bytes());
            damaged.forget_our_checkpoint();
            check_left(&damaged, &places, position.0..end.0, &format!("m{lost} said {wrong}"));
        }
    }
}

#[test]
fn a_message_whose_damaged_queue_offset_is_the_first_of_its_queue_is_reported_as_lost() {
    // Nothing in front of it tells that it is wrong: it was believed, and dropped without a word when the next one contradicted it.
    let (machine, places) = four_segments();
    for wrong in [2, 27_392] {
        let damaged = machine.killed();
        damaged.overwrite(&damaged.segment(0), places[0].0.0 + QUEUE_OFFSET_AT, &u64::to_be_bytes(wrong));
        damaged.forget_our_checkpoint();

        let (store, log) = logged(|| damaged.open());

        assert_eq!(figure(&store, "damagedRanges"), 1.0, "{wrong}: {log}");
        assert_eq!(figure(&store, "damagedBytes"), places[0].1.since(places[0].0) as f64);
        assert!(log.contains("has a queue offset that is not its queue's"), "{log}");
    }
}

#[test]
fn a_damaged_queue_offset_of_the_first_message_of_a_queue_fills_nothing_up_to_there() {
    // The queue was there, but empty at the checkpoint: the start wrote blank entries for as long as it was let.
    let machine = Machine::new();
    let store = machine.open();
    store.append(message("bills", 0, "before", 100)).unwrap();
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    let first = store.append(message("orders", 0, "first", 100)).unwrap().position;
    store.append(message("bills", 0, "behind", 100)).unwrap();
    dispatch_all(&store);
    drop(store);
    let machine = machine.killed_in_this_boot();
    let damaged = 0x5A_0000_u64;
    machine.overwrite(&machine.segment(0), first.0 + QUEUE_OFFSET_AT, &damaged.to_be_bytes());

    let store = machine.open();

    assert_eq!(names_of(&store, "bills", 0), ["before", "behind"]);
    assert_eq!(figure(&store, "damagedRanges"), 1.0);
    assert!(store.queue_range("orders", QueueId(0)).is_none_or(|range| range.max.0 <= 1));
}

/// A file of zeros said that nothing had been durable since 1970: damage in the newest segment was taken for a torn write, and cost all behind it.
#[test]
fn damage_costs_nothing_behind_it_although_the_checkpoint_of_rocketmq_is_all_zeros() {
    let machine = Machine::new();
    let store = machine.open();
    store.append(message("orders", 0, "before", 100)).unwrap();
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    let damaged = store.append(message("orders", 0, "damaged", 100)).unwrap().position;
    store.append(message("orders", 0, "behind", 100)).unwrap();
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    drop(store);
    for without_ours in [false, true] {
        let machine = machine.killed();
        machine.write("checkpoint", &[0; 4096]);
        if without_ours {
            machine.forget_our_checkpoint();
        }
        machine.overwrite(&machine.segment(0), damaged.0 + 88, b"!");

        let store = machine.open();

        assert_eq!(names_of(&store, "orders", 0), ["before", "behind"], "without ours: {without_ours}");
        assert_eq!(figure(&store, "damagedRanges"), 1.0, "without ours: {without_ours}");
    }
}

/// Of a queue that was empty at the checkpoint: the second message was taken for damaged, too.
#[test]
fn a_message_is_not_lost_although_the_one_that_began_its_queue_went_elsewhere_for_a_damaged_topic() {
    let machine = Machine::new();
    let store = machine.open();
    store.append(message("bills", 0, "before", 100)).unwrap();
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    let first = store.append(message("orders", 0, "first", 100)).unwrap().position;
    store.append(message("orders", 0, "second", 100)).unwrap();
    dispatch_all(&store);
    drop(store);
    let machine = machine.killed_in_this_boot();
    machine.overwrite(&machine.segment(0), first.0 + 88 + 100 + 1, b"a");

    let store = machine.open();

    assert_eq!(names_of(&store, "orders", 0), ["second"]);
    assert_eq!(names_of(&store, "arders", 0), ["first"]);
    assert_eq!(figure(&store, "damagedRanges"), 1.0);
    assert_eq!(store.append(message("orders", 0, "next", 100)).unwrap().queue_offset, QueueOffset(2));
}

/// The second message was taken for damaged, as it was the last of its queue in its segment.
#[test]
fn a_queue_that_began_anew_with_a_damaged_message_has_all_others_although_the_next_segment_holds_them() {
    let machine = Machine::new();
    let store = machine.open();
    for n in 0..5 {
        store.append(message("orders", 0, &format!("old {n}"), 100)).unwrap();
    }
    dispatch_all(&store);
    store.delete_topic("orders").unwrap();
    let first = store.append(message("orders", 0, "first", 100)).unwrap().position;
    store.append(message("orders", 0, "second", 100)).unwrap();
    while store.log_range().1.0 < SEGMENT_BYTES {
        store.append(message("bills", 0, "between", 4_000)).unwrap();
    }
    for name in ["third", "fourth"] {
        store.append(message("orders", 0, name, 100)).unwrap();
    }
    dispatch_all(&store);
    drop(store);
    let machine = machine.killed();
    machine.forget_our_checkpoint();
    machine.disk.remove(Path::new("config")).unwrap();
    machine.overwrite(&machine.segment(0), first.0 + 88, b"!!!");

    let store = machine.open();

    assert_eq!(names_of(&store, "orders", 0)[1..], ["second", "third", "fourth"].map(String::from));
    assert_eq!(figure(&store, "damagedRanges"), 1.0);
}

#[test]
fn a_queue_that_another_broker_began_anew_in_its_middle_loses_nothing_that_came_then() {
    let (machine, places) = four_segments();
    // Queue 1 goes on at 3 from its 12th message on.
    for (n, (position, _)) in places.iter().enumerate().filter(|(n, _)| n % 2 == 1 && *n >= 23) {
        let offset = 3 + (n as u64 - 23) / 2;
        let number = position.0 / SEGMENT_BYTES;
        let at = position.0 % SEGMENT_BYTES + QUEUE_OFFSET_AT;
        machine.overwrite(&machine.segment(number), at, &offset.to_be_bytes());
    }
    machine.forget_our_checkpoint();

    let store = machine.open();

    let kept = (0..3).map(|n| format!("m{}", 2 * n + 1));
    let new = (23..places.len()).step_by(2).map(|n| format!("m{n}"));
    assert_eq!(names_of(&store, "orders", 1), kept.chain(new).collect::<Vec<_>>());
    assert_eq!(figure(&store, "damagedBytes"), 0.0);
}

#[test]
fn a_queue_that_began_anew_loses_only_what_was_damaged_though_that_is_its_first_message() {
    // All that followed counted as damaged until it reached the offset where the deleted queue had ended.
    let machine = Machine::new();
    let store = machine.open();
    for n in 0..9 {
        store.append(message("orders", 0, &format!("old{n}"), 100)).unwrap();
    }
    dispatch_all(&store);
    store.delete_topic("orders").unwrap();
    let places: Vec<_> =
        (0..12).map(|n| store.append(message("orders", 0, &format!("new{n}"), 1_500)).unwrap().position).collect();
    while store.log_range().1.0 < SEGMENT_BYTES + 5_000 {
        store.append(message("filling", 0, "f", 1_500)).unwrap();
    }
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    drop(store);
    machine.remove("config/deletedTopics.json");
    machine.remove("config/deletedTopics.json.bak");
    machine.remove("consumequeue");
    for lost in [&[0][..], &[0, 1, 2], &[0, 2], &[0, 2, 4, 11]] {
        for forgets_checkpoint in [false, true] {
            let damaged = machine.killed();
            for n in lost {
                damaged.overwrite(&damaged.segment(0), places[*n].0, b"damaged");
            }
            if forgets_checkpoint {
                damaged.forget_our_checkpoint();
            }

            let store = damaged.open();

            let mut found = names_of(&store, "orders", 0);
            found.retain(|name| name.starts_with("new"));
            let left: Vec<_> = (0..12).filter(|n| !lost.contains(n)).map(|n| format!("new{n}")).collect();
            assert_eq!(found, left, "{lost:?} lost, without checkpoint: {forgets_checkpoint}");
        }
    }
}

#[test]
fn damage_is_reported_with_its_bytes() {
    let (machine, places) = four_segments();
    let (position, end) = places[3];
    machine.overwrite(&machine.segment(0), position.0 + 200, &[0xEE]);
    machine.forget_our_checkpoint();

    let store = machine.open();

    assert_eq!(figure(&store, "damagedBytes") as u64, end.since(position));
}

/// N7
#[test]
fn a_lost_part_of_the_log_is_reported_with_the_number_of_its_messages_if_queues_tell() {
    let (machine, places) = four_segments();
    let lost = |from: u64, to: u64| places.iter().filter(|place| (from..to).contains(&place.0.0)).count();
    let whole =
        |store: &MessageStore| (figure(store, "damagedMessages") as usize, figure(store, "damagedRangesUncounted"));

    let gone = machine.killed();
    gone.remove(&gone.segment(1));
    let (store, log) = logged(|| gone.open());
    let count = lost(SEGMENT_BYTES, 2 * SEGMENT_BYTES);
    assert_eq!(whole(&store), (count, 0.0));
    assert!(log.contains(&format!("messages=\"{count}\"")), "{log}");

    let first = machine.killed();
    first.remove(&first.segment(0));
    assert_eq!(whole(&first.open()), (lost(0, SEGMENT_BYTES), 0.0));

    let start = machine.killed();
    start.overwrite(&start.segment(1), 0, &[0xEE; 5_000]);
    let damaged = whole(&start.open());
    assert_eq!(damaged, (lost(SEGMENT_BYTES, SEGMENT_BYTES + 5_000), 0.0));

    let end = machine.killed();
    end.remove(&end.segment(3));
    assert_eq!(whole(&end.open()), (lost(3 * SEGMENT_BYTES, u64::MAX), 0.0));

    let unknown = machine.killed();
    unknown.overwrite(&unknown.segment(1), 0, &[0xEE; 5_000]);
    unknown.remove("consumequeue/orders/1");
    let (store, log) = logged(|| unknown.open());
    assert_eq!(whole(&store).0, 0);
    assert!(whole(&store).1 >= 1.0 && log.contains("an unknown number"), "{log}");
}

/// N16: it said 0 while hundreds of messages could not be pulled.
#[test]
fn dispatch_is_behind_as_long_as_a_queue_cannot_be_written() {
    let machine = Machine::new();
    let store = machine.open();
    store.append(draft("orders", 0, "seen")).unwrap();
    dispatch_all(&store);
    let from = store.log_range().1;
    machine.disk.fail_under(Path::new("consumequeue"), Operation::Write, 0, io::ErrorKind::StorageFull, u64::MAX);

    store.append(draft("orders", 0, "unseen")).unwrap();
    store.append(draft("orders", 0, "unseen too")).unwrap();
    dispatch_all(&store);

    assert_eq!(bodies(&store, "orders", 0), ["seen"]);
    assert_eq!(figure(&store, "dispatchBehindBytes") as u64, store.log_range().1.since(from));
    machine.disk.heal();
    dispatch_all(&store);
    assert_eq!(figure(&store, "dispatchBehindBytes"), 0.0);
    assert_eq!(bodies(&store, "orders", 0).len(), 3);
}

#[test]
fn a_page_lost_in_the_newest_segment_below_the_checkpoint_cuts_nothing() {
    let (machine, places) = four_segments();
    let start = 3 * SEGMENT_BYTES;
    for page in [0, 2] {
        let damaged = machine.killed();
        damaged.overwrite(&damaged.segment(3), page * 4096, &[0; 4096]);
        check_left(&damaged, &places, start + page * 4096..start + (page + 1) * 4096, &format!("page {page}"));
    }
}

#[test]
fn a_page_lost_above_the_checkpoint_ends_the_log_there() {
    let machine = Machine::new();
    let store = machine.open();
    for n in 0..10 {
        store.append(message("orders", 0, &format!("m{n}"), 1_500)).unwrap();
    }
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    let mut ends = vec![store.log_range().1.0];
    for n in 10..20 {
        ends.push(store.append(message("orders", 0, &format!("m{n}"), 1_500)).unwrap().end.0);
    }
    dispatch_all(&store);
    drop(store);
    for page in ends[0] / 4096 + 1..=ends[10] / 4096 {
        let lost = machine.killed();
        lost.overwrite(&lost.segment(0), page * 4096, &[0; 4096]);

        let store = lost.open();

        let kept = ends.iter().filter(|&&end| end <= page * 4096).count() - 1;
        let wanted: Vec<_> = (0..10 + kept).map(|n| format!("m{n}")).collect();
        assert_eq!(names_of(&store, "orders", 0), wanted, "page {page}");
        assert_eq!(store.log_range().1.0, ends[kept], "page {page}");
        assert_eq!(store.append(draft("orders", 0, "next")).unwrap().queue_offset.0, 10 + kept as u64);
    }
}

#[test]
fn a_half_made_next_segment_is_taken_away_and_the_log_goes_on() {
    let (machine, places) = four_segments();
    let contents: [(&str, Vec<u8>); 5] = [
        ("of no length", Vec::new()),
        ("of one byte", vec![0]),
        ("short", vec![0; 5_000]),
        ("empty", vec![0; SEGMENT_BYTES as usize]),
        ("full of rubbish", vec![0xDA; SEGMENT_BYTES as usize]),
    ];
    for (what, bytes) in contents {
        for forgets_checkpoint in [false, true] {
            let half = machine.killed();
            half.write(&half.segment(4), &bytes);
            if forgets_checkpoint {
                half.forget_our_checkpoint();
            }
            check_left(&half, &places, 0..0, what);
            assert!(!half.has(&half.segment(4)), "{what}");

            let half = half.killed();
            let store = half.open();
            while store.log_range().1.0 < 4 * SEGMENT_BYTES + 2_000 {
                store.append(message("more", 0, "more", 1_500)).unwrap();
            }
            dispatch_all(&store);
            drop(store);
            let store = half.killed().open();
            assert!(names_of(&store, "more", 0).len() > 10, "{what}");
        }
    }
}

#[test]
fn segments_that_are_all_too_long_are_refused_by_the_name_of_the_key() {
    let (machine, _) = four_segments();
    let path = machine.segment(0);
    for number in 0..4 {
        let file = machine.disk.open(Path::new(&machine.segment(number))).unwrap();
        file.set_bytes(SEGMENT_BYTES + 1, Allocation::Real).unwrap();
    }

    let error = machine.try_open(Vec::new()).unwrap_err().to_string();

    assert!(error.contains("mappedFileSizeCommitLog") && error.contains(&path), "{error}");
}

#[test]
fn of_a_single_segment_that_is_too_long_the_first_bytes_count_and_the_rest_stays() {
    for number in 0..4 {
        let (machine, places) = four_segments();
        let file = machine.disk.open(Path::new(&machine.segment(number))).unwrap();
        file.set_bytes(SEGMENT_BYTES + 7, Allocation::Real).unwrap();
        file.write_at(SEGMENT_BYTES, b"of more").unwrap();

        check_left(&machine, &places, 0..0, &format!("segment {number}"));

        assert_eq!(machine.read(&machine.segment(number))[SEGMENT_BYTES as usize..], *b"of more");
    }
}

/// The first record behind the gap was taken for damage, since its queue offset does not follow.
#[test]
fn b117_a_missing_segment_behind_the_checkpoint_costs_only_its_own_messages() {
    let machine = Machine::new();
    let store = machine.open();
    let mut places = Vec::new();
    while store.log_range().1.0 < 3 * SEGMENT_BYTES + 5_000 {
        let n = places.len();
        let appended = store.append(message("orders", (n % 2) as u32, &format!("m{n}"), 1_500)).unwrap();
        places.push((appended.position, appended.end));
        if n == 4 {
            dispatch_all(&store);
            store.checkpoint_once().unwrap();
        }
    }
    drop(store);
    let machine = machine.killed();
    machine.remove(&machine.segment(1));

    check_left(&machine, &places, SEGMENT_BYTES..2 * SEGMENT_BYTES, "the second segment is missing");
}

#[test]
fn segments_that_are_all_too_short_are_refused_and_stay_as_they_are() {
    let (mut machine, _) = four_segments();
    machine.options.segment_bytes = 4 * SEGMENT_BYTES;

    let error = machine.try_open(Vec::new()).unwrap_err().to_string();

    assert!(error.contains("mappedFileSizeCommitLog"), "{error}");
    machine.options.segment_bytes = SEGMENT_BYTES;
    assert_eq!(machine.read(&machine.segment(0)).len() as u64, SEGMENT_BYTES);
}

#[test]
fn an_older_segment_that_was_cut_costs_only_what_lay_behind_the_cut() {
    for bytes in [0, 1, SEGMENT_BYTES / 2, SEGMENT_BYTES - 1] {
        let (machine, places) = four_segments();
        let file = machine.disk.open(Path::new(&machine.segment(1))).unwrap();
        file.set_bytes(bytes, Allocation::Real).unwrap();

        check_left(&machine, &places, SEGMENT_BYTES + bytes..2 * SEGMENT_BYTES, &format!("{bytes} bytes are left"));
    }
}

// Checkpoints and abort.

/// Topic, queue id, and of each entry position, bytes and tag code.
type QueueEntries = (String, u32, Vec<(u64, u32, i64)>);

fn entries(store: &MessageStore) -> Vec<QueueEntries> {
    let mut all: Vec<_> = store
        .queues()
        .into_iter()
        .map(|(topic, queue_id, range)| {
            let mut entries = Vec::new();
            while entries.len() as u64 + range.min.0 < range.max.0 {
                let from = range.min.plus(entries.len() as u64);
                let found = store.queue_entries(&topic, queue_id, from, 1_000);
                assert!(!found.is_empty(), "{topic}/{queue_id} has no entry at {from}");
                entries.extend(found.into_iter().map(|entry| (entry.position.0, entry.bytes, entry.tag_code)));
            }
            (topic.to_string(), queue_id.0, entries)
        })
        .collect();
    all.sort();
    all
}

fn with_messages_behind_the_checkpoint() -> (Machine, Vec<QueueEntries>, Machine) {
    let (machine, places) = four_segments();
    let before = machine.killed();
    let store = machine.open();
    for n in places.len()..places.len() + 7 {
        store.append(message("orders", (n % 2) as u32, &format!("m{n}"), 700)).unwrap();
    }
    store.append(message("late", 3, "late", 700)).unwrap();
    dispatch_all(&store);
    let wanted = entries(&store);
    drop(store);
    (machine.killed(), wanted, before)
}

#[test]
fn store_41_whatever_became_of_the_checkpoints_the_result_is_the_same() {
    let (machine, wanted, before) = with_messages_behind_the_checkpoint();
    let other = {
        let other = Machine::new();
        let store = other.open();
        for n in 0..70 {
            store.append(message("other", 0, &format!("o{n}"), 1_400)).unwrap();
        }
        store.stop().unwrap();
        other
    };
    let ahead = {
        let ahead = machine.killed();
        let store = ahead.open();
        for n in 0..5 {
            store.append(message("ahead", 0, &format!("a{n}"), 1_400)).unwrap();
        }
        store.stop().unwrap();
        ahead
    };
    let both = ["latermq.checkpoint", "latermq.checkpoint.bak"];
    let ours = "latermq.checkpoint";
    type Change<'a> = Box<dyn Fn(&Machine) + 'a>;
    let set = |paths: &[&str], bytes: &'static [u8]| -> Change<'_> {
        let paths: Vec<String> = paths.iter().map(|&path| path.to_owned()).collect();
        Box::new(move |machine| paths.iter().for_each(|path| machine.write(path, bytes)))
    };
    let copy = |from: &'static str, source: &Machine, paths: &[&str]| -> Change<'_> {
        let files: Vec<_> = paths.iter().map(|&path| (path.to_owned(), source.read(path))).collect();
        Box::new(move |machine| {
            assert!(!from.is_empty());
            files.iter().for_each(|(path, bytes)| machine.write(path, bytes));
        })
    };
    let changes: Vec<(&str, Change<'_>)> = vec![
        ("as it was", Box::new(|_| {})),
        ("ours missing", Box::new(|machine| machine.remove(ours))),
        ("ours and its backup missing", Box::new(Machine::forget_our_checkpoint)),
        ("ours empty", set(&[ours], b"")),
        ("both of ours empty", set(&both, b"")),
        ("both of ours zero", set(&both, &[0; 300])),
        ("both of ours rubbish", set(&both, b"{\"crc32\":1,\"checkpoint\":{}}")),
        ("RocketMQ's missing", Box::new(|machine| machine.remove("checkpoint"))),
        ("RocketMQ's too short", set(&["checkpoint"], &[1; 10])),
        ("RocketMQ's changed", set(&["checkpoint"], &[0; 4096])),
        (
            "all missing",
            Box::new(|machine| {
                machine.forget_our_checkpoint();
                machine.remove("checkpoint");
            }),
        ),
        ("ours from before", copy("before", &before, &[ours])),
        ("all from before", copy("before", &before, &[ours, "checkpoint"])),
        ("ours of another log", copy("other", &other, &both)),
        ("all of another log", copy("other", &other, &[ours, "latermq.checkpoint.bak", "checkpoint"])),
        ("all ahead of the log", copy("ahead", &ahead, &[ours, "latermq.checkpoint.bak", "checkpoint"])),
    ];
    for (what, change) in changes {
        for has_abort in [true, false] {
            let changed = machine.killed();
            change(&changed);
            if !has_abort {
                changed.remove("abort");
            }

            let store = changed.open();

            assert_eq!(entries(&store), wanted, "{what}, abort {has_abort}");
            let count = names_of(&store, "orders", 0).len() + names_of(&store, "orders", 1).len();
            assert_eq!(
                count,
                wanted.iter().filter(|(topic, ..)| topic == "orders").map(|(.., e)| e.len()).sum::<usize>()
            );
            let found = store.query("late", "late", 10, Timestamp::EPOCH, Timestamp::MAX);
            assert_eq!(found.records.len(), 1, "{what}, abort {has_abort}");
            assert_eq!(store.append(draft("late", 3, "next")).unwrap().queue_offset, QueueOffset(1), "{what}");
            store.stop().unwrap();
            assert!(!changed.has("abort"));
        }
    }
}

/// Counts what recovery goes through.
#[derive(Default)]
struct Counter {
    replayed: Mutex<usize>,
}

impl Plugin for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }
    fn attach(&self, _: StoreHandle) {}
    fn dispatched(&self, records: &[Dispatched<'_>]) {
        *self.replayed.lock().unwrap() += records.iter().filter(|record| record.replay).count();
    }
}

#[test]
fn store_41_recovery_goes_through_what_came_after_the_checkpoint_and_no_more() {
    let machine = Machine::new();
    let store = machine.open_with(vec![Arc::new(Counter::default())]);
    for n in 0..100 {
        store.append(message("orders", 0, &format!("m{n}"), 1_000)).unwrap();
    }
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    for n in 100..110 {
        store.append(message("orders", 0, &format!("m{n}"), 1_000)).unwrap();
    }
    drop(store);
    let replayed = |machine: &Machine| {
        let counter = Arc::new(Counter::default());
        let store = machine.open_with(vec![counter.clone()]);
        assert_eq!(names_of(&store, "orders", 0).len(), 110);
        store.stop().unwrap();
        *counter.replayed.lock().unwrap()
    };

    let killed = machine.killed();
    let without = machine.killed();
    without.forget_our_checkpoint();

    assert_eq!(replayed(&killed), 10);
    assert_eq!(replayed(&killed), 0, "after a clean stop");
    assert_eq!(replayed(&without), 110);
}

#[test]
fn retention_keeps_the_record_by_which_the_next_start_believes_the_checkpoint() {
    let mut machine = Machine::new();
    machine.options.reserved_time = Duration::ZERO;
    machine.options.delete_when = (0..24).collect();
    let store = machine.open();
    while store.log_range().1.0 < 3 * SEGMENT_BYTES {
        store.append(message("orders", 0, "m", 1_500)).unwrap();
    }
    machine.clock.advance(Duration::from_secs(60));
    // A round ends with the segment, and so does the checkpoint.
    store.dispatch_once(u64::MAX);

    store.retain_once().unwrap();

    drop(store);
    let (store, log) = logged(|| machine.killed().open());
    assert!(!log.contains("does not match"), "{log}");
    dispatch_all(&store);
    assert!(store.retain_once().unwrap() > 0);
}

#[test]
fn store_28_abort_is_there_while_the_store_is_open_and_after_a_kill_but_not_after_a_clean_stop() {
    let machine = Machine::new();
    let store = machine.open();
    assert!(machine.has("abort"));
    assert!(machine.crashed(1).has("abort"), "also after a power cut");
    assert!(machine.killed().has("abort"));

    store.stop().unwrap();

    assert!(!machine.has("abort"));
    assert!(!machine.crashed(1).has("abort"));
}

// What is derived from the log.

#[test]
fn store_38_queues_and_index_that_were_removed_are_built_again_whatever_the_checkpoint_says() {
    let (machine, wanted, _) = with_messages_behind_the_checkpoint();
    let store = machine.open();
    store.stop().unwrap();
    drop(store);
    for removed in [&["consumequeue"][..], &["index"], &["consumequeue/orders/1"], &["consumequeue", "index"]] {
        for killed in [false, true] {
            let machine = machine.killed();
            removed.iter().for_each(|path| machine.remove(path));
            if killed {
                machine.write("abort", b"1");
            }

            let store = machine.open();

            assert_eq!(entries(&store), wanted, "{removed:?}");
            for key in ["m0", "m40", "late"] {
                let topic = if key == "late" { "late" } else { "orders" };
                let found = store.query(topic, key, 10, Timestamp::EPOCH, Timestamp::MAX);
                assert_eq!(found.records.len(), 1, "{key} without {removed:?}");
            }
        }
    }
}

#[test]
fn an_index_file_whose_header_or_all_of_it_is_junk_is_built_again() {
    // Only the newest file was compared with the checkpoint.
    let (machine, _, _) = with_messages_behind_the_checkpoint();
    let store = machine.open();
    store.stop().unwrap();
    drop(store);
    let files = machine.names("index");
    assert!(files.len() > 2, "{files:?}");
    for file in &files {
        for bytes in [40, machine.read(&format!("index/{file}")).len()] {
            for (killed, junk) in [(false, 0), (true, 0), (true, 0xFF)] {
                let machine = machine.killed();
                machine.overwrite(&format!("index/{file}"), 0, &vec![junk; bytes]);
                if killed {
                    machine.write("abort", b"1");
                }

                let store = machine.open();

                for key in ["m0", "m20", "m40"] {
                    let found = store.query("orders", key, 10, Timestamp::EPOCH, Timestamp::MAX);
                    assert_eq!(found.records.len(), 1, "{key} with {bytes} bytes of {junk} in {file}");
                }
            }
        }
    }
}

#[test]
fn store_39_entries_that_were_not_synced_come_back_at_their_offsets() {
    let (machine, wanted, _) = with_messages_behind_the_checkpoint();
    let (_, _, orders) =
        wanted.iter().find(|(topic, queue_id, _)| (topic.as_str(), *queue_id) == ("orders", 0)).unwrap();
    let per_file = machine.options.queue_file_bytes / 20;
    // The last four entries of the queue came after the checkpoint.
    for at in orders.len() as u64 - 4..orders.len() as u64 {
        let path = format!("consumequeue/orders/0/{:020}", at / per_file * machine.options.queue_file_bytes);
        if machine.has(&path) {
            machine.overwrite(&path, at % per_file * 20, &[0; 20]);
        }
    }

    let store = machine.open();

    assert_eq!(entries(&store), wanted);
}

#[test]
fn store_40_entries_beyond_the_end_of_the_log_are_taken_away() {
    for stopped in [true, false] {
        let machine = Machine::new();
        let store = machine.open();
        store.append(draft("orders", 0, "0")).unwrap();
        dispatch_all(&store);
        store.checkpoint_once().unwrap();
        let end = store.log_range().1;
        if stopped {
            store.stop().unwrap();
        }
        drop(store);
        let machine = machine.killed();
        let mut entry = end.0.to_be_bytes().to_vec();
        entry.extend_from_slice(&150u32.to_be_bytes());
        entry.extend_from_slice(&7i64.to_be_bytes());
        let path = format!("consumequeue/orders/0/{:020}", 0);
        machine.overwrite(&path, 20, &entry.repeat(5));

        let store = machine.open();

        assert_eq!(store.queue_range("orders", QueueId(0)).unwrap().max, QueueOffset(1));
        assert!(stopped || machine.read(&path)[20..].iter().all(|&byte| byte == 0));
        assert_eq!(store.append(draft("orders", 0, "1")).unwrap().queue_offset, QueueOffset(1));
        dispatch_all(&store);
        assert_eq!(bodies(&store, "orders", 0), ["0", "1"]);
    }
}

#[test]
fn store_18_half_and_rolled_back_messages_have_queue_offset_0_and_no_entry() {
    let machine = Machine::new();
    let store = machine.open();
    store.append(draft("orders", 0, "a")).unwrap();
    let mut not_queued = Vec::new();
    for flag in [SysFlag::PREPARED, SysFlag::ROLLBACK] {
        let mut draft = draft("orders", 0, "not queued");
        draft.sys_flag = SysFlag(flag);
        not_queued.push(store.append(draft).unwrap());
    }
    let mut committed = draft("orders", 0, "b");
    committed.sys_flag = SysFlag(SysFlag::COMMIT);
    assert_eq!(store.append(committed).unwrap().queue_offset, QueueOffset(1));
    dispatch_all(&store);

    for store in [store, machine.killed().open()] {
        assert_eq!(bodies(&store, "orders", 0), ["a", "b"]);
        for appended in &not_queued {
            assert_eq!(store.record_at(appended.position).unwrap().view().queue_offset(), QueueOffset(0));
        }
    }
}

#[test]
fn store_22_45_after_a_clean_stop_apache_would_find_nothing_to_recover() {
    let (machine, wanted, _) = with_messages_behind_the_checkpoint();
    let store = machine.open();
    let end = store.log_range().1;
    store.stop().unwrap();

    assert!(!machine.has("abort"));
    // Apache dispatches again what lies behind the largest end of an entry.
    let dispatched = wanted.iter().flat_map(|(.., entries)| entries).map(|(at, bytes, _)| at + u64::from(*bytes)).max();
    assert_eq!(dispatched, Some(end.0));
    let checkpoint = machine.read("checkpoint");
    let field = |at: usize| i64::from_be_bytes(checkpoint[at..at + 8].try_into().unwrap());
    assert_eq!(checkpoint.len(), 4096);
    assert_eq!((field(0), field(8)), (START.0, START.0), "store times of the newest record");
    assert!(field(16) <= START.0);
    assert_eq!(u64::try_from(field(32)).unwrap(), end.0);
    assert!(checkpoint[40..].iter().all(|&byte| byte == 0));
    let last_index = machine.names("index").pop().unwrap();
    let header = machine.read(&format!("index/{last_index}"));
    let last = wanted.iter().flat_map(|(.., entries)| entries).map(|(at, ..)| *at).max().unwrap();
    assert_eq!(u64::from_be_bytes(header[24..32].try_into().unwrap()), last, "the index knows the last record");
    let segments = machine.names("commitlog");
    assert_eq!(segments.len() as u64, end.0.div_ceil(SEGMENT_BYTES), "no segment made ahead of time is left");
}

#[test]
fn a_deleted_topic_stays_deleted_after_a_power_cut() {
    let machine = Machine::new();
    let store = machine.open();
    for n in 0..10 {
        store.append(draft("gone", 0, &n.to_string())).unwrap();
        store.append(draft("stays", 0, &n.to_string())).unwrap();
    }
    dispatch_all(&store);

    store.delete_topic("gone").unwrap();

    for seed in 0..8 {
        let store = machine.crashed(seed).open();
        assert_eq!(store.queue_range("gone", QueueId(0)), None, "seed {seed}");
        assert_eq!(bodies(&store, "stays", 0).len(), 10, "seed {seed}");
    }
}

// Power cuts and kills.

/// Something to do with a store, with what it must keep.
#[derive(Default, Clone)]
struct Workload {
    /// Everything that was tried to append, in order.
    attempted: Vec<Sent>,
    /// Where those lie whose append succeeded: always the first of `attempted`, if nothing was refused.
    appended: Vec<PhysicalOffset>,
    /// How many of them are durable, and how many were appended at all.
    durable: PhysicalOffset,
    ends: Vec<PhysicalOffset>,
    /// Retention was tried.
    deleted: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Sent {
    topic: &'static str,
    queue_id: u32,
    name: String,
    bytes: usize,
}

impl Workload {
    const OPERATIONS: usize = 46;
    /// Every seventh operation appends three.
    const MESSAGES: usize = 60;

    fn next(&mut self, bytes: usize) -> Sent {
        let n = self.attempted.len();
        let (topic, queue_id) = [("orders", 0), ("orders", 1), ("bills", 0)][n % 3];
        let sent = Sent { topic, queue_id, name: format!("m{n:04}"), bytes };
        self.attempted.push(sent.clone());
        sent
    }

    /// Does it all, until something fails.
    fn run(&mut self, store: &MessageStore, machine: &Machine) -> Result<(), String> {
        for operation in 0..Self::OPERATIONS {
            self.step(store, machine, operation).map_err(|error| error.to_string())?;
            self.durable = store.durable();
        }
        Ok(())
    }

    fn step(
        &mut self,
        store: &MessageStore,
        machine: &Machine,
        operation: usize,
    ) -> Result<(), Box<dyn std::error::Error>> {
        machine.clock.advance(Duration::from_millis(7));
        let appended = if operation % 7 == 3 {
            let batch: Vec<_> = (0..3).map(|n| self.next(1_000 + n * 900)).collect();
            let (topic, queue_id) = (batch[0].topic, batch[0].queue_id);
            let count = self.attempted.len();
            for sent in &mut self.attempted[count - 3..] {
                (sent.topic, sent.queue_id) = (topic, queue_id);
            }
            let drafts = batch.iter().map(|sent| message(topic, queue_id, &sent.name, sent.bytes)).collect();
            store.append_batch(&Properties::new(), drafts)?
        } else {
            let sent = self.next([3_900, 700, 3_800, 3_500, 2_700][operation % 5]);
            vec![store.append(message(sent.topic, sent.queue_id, &sent.name, sent.bytes))?]
        };
        for appended in appended {
            assert!(appended.position >= self.ends.last().copied().unwrap_or_default());
            self.appended.push(appended.position);
            self.ends.push(appended.end);
        }
        if operation % 4 == 3 {
            store.sync_once()?;
        }
        if operation % 6 == 5 {
            store.dispatch_once(10_000);
            store.dispatch_once(u64::MAX);
        }
        if operation % 11 == 10 {
            store.checkpoint_once()?;
        }
        if operation == 40 {
            dispatch_all(store);
            machine.clock.advance(Duration::from_secs(7_200));
            self.deleted = true;
            store.retain_once()?;
        }
        Ok(())
    }

    /// What must be true after any stop. `all` says that nothing that was appended may be lost, as after a kill; else what was durable may not.
    fn check(&self, store: &MessageStore, all: bool, what: &str) -> usize {
        let found = walk(store, what);
        let skipped = match found.first() {
            Some(first) => self.attempted.iter().position(|sent| sent.name == first.1.name).unwrap(),
            None => self.attempted.len().min(self.appended.len()),
        };
        let (first, end) = store.log_range();
        if self.deleted {
            assert!(self.appended[..skipped].iter().all(|position| *position < first), "{what}");
        } else {
            assert_eq!((first, skipped.min(found.len())), (PhysicalOffset::ZERO, 0), "{what}");
        }
        let sent: Vec<_> = found.iter().map(|(_, sent)| sent.clone()).collect();
        assert_eq!(
            sent,
            self.attempted[skipped..skipped + sent.len()],
            "{what}: what is left is a part without a hole"
        );
        for ((position, _), appended) in found.iter().zip(&self.appended[skipped.min(self.appended.len())..]) {
            assert_eq!(position, appended, "{what}");
        }
        let must = self.ends.iter().filter(|end| all || **end <= self.durable).count();
        let kept = skipped + sent.len();
        assert!(kept >= must || found.is_empty() && skipped >= must, "{what}: {kept} are left, of {must} that must be");
        assert!(all || end >= self.durable, "{what}");

        let queues: BTreeSet<_> = self.attempted.iter().map(|sent| (sent.topic, sent.queue_id)).collect();
        for (topic, queue_id) in queues {
            let wanted: Vec<_> = sent.iter().filter(|sent| (sent.topic, sent.queue_id) == (topic, queue_id)).collect();
            let found = records(store, topic, QueueId(queue_id));
            let range = store.queue_range(topic, QueueId(queue_id)).unwrap_or_default();
            let names: Vec<_> =
                found.iter().map(|record| record.view().properties().get("UNIQ_KEY").unwrap()).collect();
            assert_eq!(
                names,
                wanted.iter().map(|sent| sent.name.as_str()).collect::<Vec<_>>(),
                "{what}: {topic}/{queue_id}"
            );
            for (at, record) in (range.min.0..).zip(&found) {
                assert_eq!(record.view().queue_offset().0, at, "{what}: {topic}/{queue_id}");
            }
            assert_eq!(range.min.0 + found.len() as u64, range.max.0, "{what}: {topic}/{queue_id}");
        }
        for sent in [sent.first(), sent.get(sent.len() / 2), sent.last()].into_iter().flatten() {
            let queried = store.query(sent.topic, &sent.name, 10, Timestamp::EPOCH, Timestamp::MAX);
            assert_eq!(queried.records.len(), 1, "{what}: {} by its key", sent.name);
        }
        kept
    }
}

/// Every record of the log; what is not a record must be the end of a segment.
fn walk(store: &MessageStore, what: &str) -> Vec<(PhysicalOffset, Sent)> {
    let (mut at, end) = store.log_range();
    let mut found = Vec::new();
    while at < end {
        let Some(record) = store.record_at(at) else {
            let next = PhysicalOffset((at.0 / SEGMENT_BYTES + 1) * SEGMENT_BYTES);
            assert!(at.0 % SEGMENT_BYTES != 0 && next <= end, "{what}: no record at {at} of a log that ends at {end}");
            at = next;
            continue;
        };
        found.push((at, sent(record.view(), what)));
        at = record.view().end();
    }
    found
}

fn sent(record: RecordView<'_>, what: &str) -> Sent {
    let name = record.properties().get("UNIQ_KEY").unwrap().to_owned();
    let bytes = record.body().len();
    assert_eq!(record.body(), body_of(&name, bytes), "{what}: {name} is torn");
    assert_eq!(record.properties().get("TAGS"), Some("TagA"), "{what}: {name} is torn");
    let topic = ["orders", "bills", "after"].into_iter().find(|topic| *topic == record.topic()).unwrap();
    Sent { topic, queue_id: record.queue_id().0, name, bytes }
}

fn workload_machine(policy: FlushPolicy) -> Machine {
    let mut machine = Machine::new();
    machine.options.flush_policy = policy;
    machine.options.reserved_time = Duration::from_secs(3_600);
    machine.options.delete_when = (0..24).collect();
    machine
}

/// How many steps the workload takes, the opening included.
fn steps_of_workload(policy: FlushPolicy) -> u64 {
    let machine = workload_machine(policy);
    let store = machine.open();
    let mut workload = Workload::default();
    workload.run(&store, &machine).unwrap();
    let steps = machine.disk.steps();
    store.sync_once().unwrap();
    dispatch_all(&store);
    workload.check(&store, true, "without a stop");
    assert_eq!(workload.appended.len(), Workload::MESSAGES);
    assert!(store.log_range().1.0 > 2 * SEGMENT_BYTES, "the log rolled twice: {}", store.log_range().1);
    assert!(store.log_range().0.0 > 0, "retention deleted");
    steps
}

/// Runs the workload up to a step, in which the machine stops.
fn run_up_to(policy: FlushPolicy, step: u64) -> (Machine, Workload) {
    let machine = workload_machine(policy);
    machine.disk.crash_at(step);
    let mut workload = Workload::default();
    if let Ok(store) = machine.try_open(Vec::new()) {
        workload.run(&store, &machine).unwrap_err();
    }
    assert!(machine.disk.has_stopped());
    (machine, workload)
}

/// After recovery the store goes on, and what is durable then survives the next power cut.
fn goes_on(machine: &Machine, store: Arc<MessageStore>, seed: u64, what: &str) {
    let before = walk(&store, what).len();
    let (first, _) = store.log_range();
    for n in 0..3 {
        store.append(message("after", 0, &format!("after {n}"), 900)).unwrap();
    }
    store.sync_once().unwrap();
    store.append(message("after", 0, "after 3", 900)).unwrap();
    drop(store);
    let store = machine.crashed(seed).open();
    let after = names_of(&store, "after", 0);
    assert_eq!(after[..3], ["after 0", "after 1", "after 2"], "{what}, then another");
    let left = walk(&store, what).len();
    assert!(store.log_range().0 > first || left == before + after.len(), "{what}, then another: {left} of {before}");
}

#[test]
fn store_30_32_36_a_power_cut_at_any_step_loses_nothing_durable_and_shows_nothing_torn() {
    for (policy, seeds, every) in [(FlushPolicy::Async, 2, 1), (FlushPolicy::Sync, 1, 3)] {
        for step in (1..=steps_of_workload(policy)).step_by(every) {
            let (machine, workload) = run_up_to(policy, step);
            for seed in (0..seeds).map(|seed| seed * 1_000 + step) {
                let what = format!("a power cut in step {step} with seed {seed}, {policy:?}");
                let machine = machine.crashed(seed);
                let store = machine.try_open(Vec::new()).unwrap_or_else(|error| panic!("{what}: {error:?}"));
                workload.check(&store, false, &what);
                goes_on(&machine, store, seed, &what);
                assert_eq!(machine.fatal(), Vec::<String>::new(), "{what}");
            }
        }
    }
}

#[test]
fn store_31_a_kill_at_any_step_loses_nothing_that_was_appended() {
    for step in 1..=steps_of_workload(FlushPolicy::Async) {
        let (machine, workload) = run_up_to(FlushPolicy::Async, step);
        let what = format!("a kill in step {step}");
        let machine = machine.killed();
        let store = machine.try_open(Vec::new()).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        workload.check(&store, true, &what);
        goes_on(&machine, store, step, &what);
    }
}

#[test]
fn a_power_cut_in_any_step_of_the_recovery_loses_nothing_either() {
    let steps = steps_of_workload(FlushPolicy::Async);
    for step in (10..=steps).step_by(29) {
        let (machine, workload) = run_up_to(FlushPolicy::Async, step);
        let image = machine.crashed(step);
        let whole = image.killed();
        drop(whole.open());
        for second in 1..=whole.disk.steps() {
            let what = format!("a power cut in step {step}, then in step {second} of the recovery");
            let again = image.killed();
            again.disk.crash_at(second);
            // A store without a new checkpoint opens all the same.
            drop(again.try_open(Vec::new()));
            assert!(again.disk.has_stopped(), "{what}");
            let again = again.crashed(second);
            let store = again.try_open(Vec::new()).unwrap_or_else(|error| panic!("{what}: {error:?}"));
            workload.check(&store, false, &what);
            if second % 5 == 0 {
                goes_on(&again, store, second, &what);
            }
        }
    }
}

#[test]
fn a_power_cut_in_any_step_of_a_clean_stop_loses_nothing() {
    let run = || {
        let machine = workload_machine(FlushPolicy::Async);
        let store = machine.open();
        let mut workload = Workload::default();
        workload.run(&store, &machine).unwrap();
        workload.durable = store.durable();
        (machine, store, workload)
    };
    let (machine, store, _) = run();
    let before = machine.disk.steps();
    store.stop().unwrap();
    let after = machine.disk.steps();
    for step in before + 1..=after {
        let (machine, store, workload) = run();
        machine.disk.crash_at(step);
        assert!(store.stop().is_err() || step == after);
        drop(store);
        for seed in 0..2 {
            let what = format!("a power cut in step {} of a clean stop", step - before);
            let machine = machine.crashed(step + seed * 1_000);
            let store = machine.open();
            workload.check(&store, false, &what);
            goes_on(&machine, store, step, &what);
        }
    }
}

// Faults.

/// Runs the workload over a disk on which one operation fails, and goes on after each error as a broker does.
fn run_with_fault(operation: Operation, after: u64, kind: io::ErrorKind) -> (Machine, Workload, Arc<MessageStore>) {
    let machine = workload_machine(FlushPolicy::Async);
    let store = machine.open();
    machine.disk.fail_after(operation, after, kind, 1);
    let mut workload = Workload::default();
    for step in 0..Workload::OPERATIONS {
        let (attempted, appended) = (workload.attempted.len(), workload.appended.len());
        let done = workload.step(&store, &machine, step);
        if done.is_err() && workload.appended.len() == appended {
            // The append itself failed: nothing of it may be there, and its names are used again.
            workload.attempted.truncate(attempted);
        }
        if !machine.fatal().is_empty() {
            break;
        }
        workload.durable = store.durable();
    }
    (machine, workload, store)
}

#[test]
fn store_33_after_a_failed_sync_nothing_is_taken_and_nothing_durable_is_lost() {
    // B30
    let mut failed = 0;
    for after in 0..30 {
        let (machine, workload, store) = run_with_fault(Operation::Sync, after, io::ErrorKind::Other);
        if !machine.fatal().is_empty() {
            failed += 1;
            let what = format!("after sync {after} failed");
            let refused = store.append(draft("after", 0, "x"));
            assert!(matches!(refused, Err(AppendError::Failed { .. })), "{what}: {refused:?}");
            let released = Arc::new(Mutex::new(None));
            let result = released.clone();
            store.when_durable(store.log_range().1, Box::new(move |r| *result.lock().unwrap() = Some(r.is_ok())));
            assert_eq!(*released.lock().unwrap(), Some(false), "{what}: a waiter is told");
            assert!(store.sync_once().is_err(), "{what}: no later sync is believed");
            assert!(store.stop().is_err(), "{what}");
            drop(store);
            workload.check(&machine.crashed(after).open(), false, &what);
            workload.check(&machine.killed().open(), true, &what);
        }
    }
    assert!(failed > 5, "{failed} syncs of the log failed");
}

/// The kernel takes the pages of a failed sync for clean: they are read as written until a power cut takes them.
#[test]
fn store_33_what_a_failed_sync_gave_up_is_written_again_after_the_restart() {
    let machine = Machine::new();
    let store = machine.open();
    for n in 0..10 {
        store.append(message("orders", 0, &format!("m{n}"), 3_000)).unwrap();
    }
    machine.disk.fail_under(Path::new("commitlog"), Operation::Sync, 0, io::ErrorKind::Other, 1);
    store.sync_once().unwrap_err();
    drop(store);

    let machine = machine.killed();
    let store = machine.open();
    for n in 10..15 {
        store.append(message("orders", 0, &format!("m{n}"), 3_000)).unwrap();
    }
    store.sync_once().unwrap();
    let wanted: Vec<_> = (0..15).map(|n| format!("m{n}")).collect();
    drop(store);

    for seed in 0..10 {
        assert_eq!(names_of(&machine.crashed(seed).open(), "orders", 0), wanted, "seed {seed}");
    }
}

#[test]
fn a_write_that_fails_costs_one_message_and_no_queue_offset() {
    let mut refused = 0;
    for after in 0..120 {
        let (machine, workload, store) = run_with_fault(Operation::Write, after, io::ErrorKind::StorageFull);
        let what = format!("after write {after} failed");
        assert_eq!(machine.fatal(), Vec::<String>::new(), "{what}");
        refused += usize::from(workload.appended.len() < Workload::MESSAGES);
        machine.disk.heal();
        store.sync_once().unwrap();
        dispatch_all(&store);
        // One more round writes what could not be written before.
        store.append(message("after", 0, "x", 10)).unwrap();
        dispatch_all(&store);
        let range = store.queue_range("after", QueueId(0)).unwrap();
        assert_eq!(range.max, QueueOffset(1), "{what}");
        drop(store);
        let store = machine.killed().open();
        let found = walk(&store, &what);
        let names: Vec<_> = found.iter().map(|(_, sent)| sent.name.clone()).filter(|name| name != "x").collect();
        let kept = workload.attempted.len() - names.len();
        assert_eq!(
            names,
            workload.attempted[kept..].iter().map(|sent| sent.name.clone()).collect::<Vec<_>>(),
            "{what}"
        );
        for (topic, queue_id) in [("orders", 0), ("orders", 1), ("bills", 0)] {
            let found = records(&store, topic, QueueId(queue_id));
            let range = store.queue_range(topic, QueueId(queue_id)).unwrap();
            assert_eq!(found.len() as u64, range.max.0 - range.min.0, "{what}: {topic}/{queue_id} has a hole");
        }
    }
    assert!(refused > 20, "{refused} appends were refused");
}

#[test]
fn store_34_a_full_disk_refuses_messages_and_loses_none() {
    // B110
    let machine = Machine::new();
    let store = machine.open();
    let mut accepted = 0;
    machine.disk.set_capacity(3 * SEGMENT_BYTES);
    let error = loop {
        match store.append(message("orders", 0, &format!("m{accepted}"), 1_500)) {
            Ok(appended) => assert_eq!(appended.queue_offset.0, accepted),
            Err(error) => break error,
        }
        accepted += 1;
        assert!(accepted < 1_000);
    };
    assert!(matches!(&error, AppendError::DiskFull { .. }), "{error:?}");
    assert_eq!(machine.fatal(), Vec::<String>::new());
    let again = store.append(message("orders", 0, "too much", 1_500));
    assert!(matches!(again, Err(AppendError::DiskFull { .. })), "{again:?}");

    machine.disk.set_capacity(1 << 30);
    machine.clock.advance(Duration::from_secs(1));
    for n in accepted..accepted + 60 {
        let appended = store.append(message("orders", 0, &format!("m{n}"), 1_500)).unwrap();
        assert_eq!(appended.queue_offset.0, n);
    }
    dispatch_all(&store);

    let wanted: Vec<_> = (0..accepted + 60).map(|n| format!("m{n}")).collect();
    assert_eq!(names_of(&store, "orders", 0), wanted);
    drop(store);
    assert_eq!(names_of(&machine.killed().open(), "orders", 0), wanted);
}

#[test]
fn store_30_under_sync_flush_a_waiter_is_told_only_what_a_power_cut_keeps() {
    let mut machine = Machine::new();
    machine.options.flush_policy = FlushPolicy::Sync;
    let store = machine.open();
    let told = Arc::new(Mutex::new(Vec::new()));
    for n in 0..30 {
        let appended = store.append(message("orders", 0, &format!("m{n}"), 900)).unwrap();
        let told = told.clone();
        store.when_durable(
            appended.end,
            Box::new(move |result| {
                result.unwrap();
                told.lock().unwrap().push(n);
            }),
        );
        if n % 10 == 6 {
            store.sync_once().unwrap();
        }
    }
    dispatch_all(&store);

    let told = told.lock().unwrap().clone();
    assert_eq!(told, (0..27).collect::<Vec<_>>(), "in order, those that were synced");
    assert_eq!(names_of(&store, "orders", 0).len(), 27, "readers see what is durable");
    for seed in 0..20 {
        let names = names_of(&machine.crashed(seed).open(), "orders", 0);
        assert_eq!(names[..27], (0..27).map(|n| format!("m{n}")).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn store_29_strange_files_are_left_alone_and_none_of_ours_is_strange() {
    // B25
    let (machine, places) = four_segments();
    let strange = [
        "commitlog/foo",
        "commitlog/00000000000000000000.tmp",
        "consumequeue/foo",
        "consumequeue/orders/foo",
        "consumequeue/orders/0/foo",
        "index/foo",
        "config/foo",
        "foo",
    ];
    for path in strange {
        machine.write(path, b"strange");
    }
    machine.disk.create_folder(Path::new("commitlog/00000000000009000000")).unwrap();
    check_left(&machine, &places, 0..0, "with strange files");
    for path in strange {
        assert_eq!(machine.read(path), b"strange");
        machine.remove(path);
    }
    machine.remove("commitlog/00000000000009000000");

    let is_number = |name: &str, digits| name.len() == digits && name.bytes().all(|byte| byte.is_ascii_digit());
    for seed in 0..10 {
        let machine = machine.crashed(seed);
        assert!(machine.names("commitlog").iter().all(|name| is_number(name, 20)));
        for queue in machine.names("consumequeue/orders") {
            let names = machine.names(&format!("consumequeue/orders/{queue}"));
            assert!(names.iter().all(|name| is_number(name, 20)), "{names:?}");
        }
        assert!(machine.names("index").iter().all(|name| is_number(name, 17)));
    }
}

#[test]
fn a_pull_never_gives_a_damaged_record() {
    let (machine, places) = four_segments();
    let store = machine.open();
    let (position, _) = places[4];
    machine.overwrite(&machine.segment(0), position.0 + 300, b"?");

    let query = PullQuery { topic: "orders", queue_id: QueueId(0), offset: 2, count_max: 1, bytes_max: 1 };
    let pulled = store.pull(&query, &|_| true);

    // It goes on behind it: a client would drop everything that follows a damaged record.
    assert_eq!((pulled.status, pulled.count), (PullStatus::Found, 1));
    let record = Record::parse(&pulled.records[0]).unwrap();
    assert_eq!(record.view().queue_offset(), QueueOffset(3));
    assert!(store.record_at(position).is_none());
}

// Damage above the checkpoint.

/// Ten messages below the checkpoint and ten above it; the process was killed. Positions and ends of the latter.
fn ten_and_ten() -> (Machine, Vec<(PhysicalOffset, PhysicalOffset)>) {
    let machine = Machine::new();
    let store = machine.open();
    for n in 0..10 {
        store.append(message("orders", 0, &format!("m{n}"), 1_500)).unwrap();
    }
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    let places = (10..20).map(|n| store.append(message("orders", 0, &format!("m{n}"), 1_500)).unwrap());
    let places = places.map(|appended| (appended.position, appended.end)).collect();
    drop(store);
    (machine, places)
}

/// What is left of twenty messages if a byte of the one at `position` is changed after a kill, and where the log ends.
fn left_after_a_changed_byte(machine: &Machine, position: PhysicalOffset, at: u64) -> (Vec<String>, PhysicalOffset) {
    let damaged = machine.killed_in_this_boot();
    let byte = damaged.read(&damaged.segment(0))[usize::try_from(position.0 + at).unwrap()] ^ 0x10;
    damaged.overwrite(&damaged.segment(0), position.0 + at, &[byte]);
    let store = damaged.open();
    let next = store.append(message("orders", 0, "next", 10)).unwrap();
    dispatch_all(&store);
    drop(store);
    let store = damaged.killed_in_this_boot().open();
    assert_eq!(names_of(&store, "orders", 0).pop().as_deref(), Some("next"));
    let mut names = names_of(&store, "orders", 0);
    names.pop();
    (names, next.position)
}

#[test]
fn store_36_a_byte_changed_above_the_checkpoint_costs_that_message_alone_while_the_machine_stays_up() {
    let (machine, places) = ten_and_ten();
    let end = places.last().unwrap().1;
    // A length, the magic, the queue offset, the position, a byte of the body.
    for at in [2, 5, 26, 33, 200] {
        for (n, (position, _)) in places.iter().enumerate().take(9) {
            let (names, log_end) = left_after_a_changed_byte(&machine, *position, at);

            let wanted: Vec<_> = (0..20).filter(|m| *m != 10 + n).map(|m| format!("m{m}")).collect();
            assert_eq!(names, wanted, "byte {at} of message {}", 10 + n);
            assert_eq!(log_end, end, "byte {at} of message {}", 10 + n);
        }
        // Behind the last one there is nothing: that is where a write was cut short.
        let (names, log_end) = left_after_a_changed_byte(&machine, places[9].0, at);
        assert_eq!((names.len(), log_end), (19, places[9].0), "byte {at} of the last message");
    }
}

#[test]
fn store_36_damage_above_the_checkpoint_to_what_no_checksum_covers_costs_that_message_alone() {
    // It went to a queue that is none, or to none at all; the next one of its queue then left an offset out, and was taken for damaged instead.
    let (machine, places) = ten_and_ten();
    let segment = machine.read(&machine.segment(0));
    let start = usize::try_from(places[0].0.0).unwrap();
    let topic_at = segment[start..].windows(6).position(|bytes| bytes == b"orders").unwrap() as u64;
    // Queue id, a flag that makes it a record of no queue, the topic.
    for (at, mask) in [(12, 0x10), (14, 1), (15, 1), (39, 4), (topic_at, 0x10), (topic_at + 5, 1)] {
        for (n, (position, _)) in places.iter().enumerate().take(9) {
            let damaged = machine.killed_in_this_boot();
            let byte = segment[usize::try_from(position.0 + at).unwrap()] ^ mask;
            damaged.overwrite(&damaged.segment(0), position.0 + at, &[byte]);
            let store = damaged.open();

            let wanted: Vec<_> = (0..20).filter(|m| *m != 10 + n).map(|m| format!("m{m}")).collect();
            assert_eq!(names_of(&store, "orders", 0), wanted, "byte {at} of message {} with {mask:#x}", 10 + n);
            let others = store.queues().len();
            assert_eq!(others, 1, "queues, with byte {at} of message {} changed by {mask:#x}", 10 + n);
            let ranges = store.figures().into_iter().find(|figure| figure.name == "damagedRanges").unwrap();
            assert_eq!(ranges.value, FigureValue::Number(1.0));
        }
    }
}

#[cfg(debug_assertions)]
#[test]
fn taking_damage_for_a_torn_tail_would_lose_messages() {
    let (machine, places) = ten_and_ten();

    let (names, _) = latermq::mutation::Mutation::DamageTakenForTornTail
        .during(|| left_after_a_changed_byte(&machine, places[3].0, 200));

    assert_eq!(names.len(), 13);
}

#[test]
fn a_queue_entry_that_does_not_lead_to_its_record_is_built_again_when_it_is_read() {
    for kind in ["zeros", "garbage", "the record of another queue", "no record"] {
        let machine = Machine::new();
        let store = machine.open();
        for number in 0..30 {
            store.append(draft("other", 0, &format!("other {number}"))).unwrap();
            store.append(draft("orders", 0, &format!("order {number}"))).unwrap();
        }
        dispatch_all(&store);
        store.checkpoint_once().unwrap();
        let entry = |position, bytes| QueueEntry { position: PhysicalOffset(position), bytes, tag_code: 7 }.to_bytes();
        let entry = match kind {
            "zeros" => [0; 20],
            "garbage" => [0xA5; 20],
            "no record" => entry(60_000, 200),
            _ => entry(0, ends(&store)[0].1.0 as u32),
        };
        for at in [3, 4, 11] {
            machine.overwrite("consumequeue/orders/0/00000000000000000000", at * 20, &entry);
        }

        let expected: Vec<String> = (0..30).map(|number| format!("order {number}")).collect();
        assert_eq!(bodies(&store, "orders", 0), expected, "{kind}");
        let mended = store.figures().into_iter().find(|figure| figure.name == "mendedQueueEntries").unwrap();
        assert_eq!(mended.value, FigureValue::Number(3.0));
        // And for good.
        let queue = machine.read("consumequeue/orders/0/00000000000000000000");
        assert!((0..20).all(|at| queue[at * 20..][..20] != entry));
    }
}

#[test]
fn an_entry_whose_record_is_damaged_is_passed_over_and_looked_for_once() {
    let machine = Machine::new();
    let store = machine.open();
    let mut placed = Vec::new();
    for number in 0..10 {
        placed.push(store.append(draft("orders", 0, &format!("order {number}"))).unwrap());
    }
    dispatch_all(&store);
    machine.overwrite(&machine.segment(0), placed[4].position.0 + 50, &[0xFF; 60]);

    let expected: Vec<String> = (0..10).filter(|number| *number != 4).map(|number| format!("order {number}")).collect();
    assert_eq!(bodies(&store, "orders", 0), expected);
    assert_eq!(store.mend_entry("orders", QueueId(0), QueueOffset(4)).unwrap(), Mended::Hopeless);
}

// The end of the log.

#[test]
fn a_newest_segment_that_is_missing_or_junk_after_a_kill_is_reported_as_lost_up_to_where_queues_lead() {
    for junk in [None, Some(0), Some(0x5A)] {
        let machine = Machine::new();
        let store = machine.open();
        store.append(message("orders", 0, "first", 900)).unwrap();
        dispatch_all(&store);
        store.checkpoint_once().unwrap();
        let mut number = 0;
        let last = loop {
            number += 1;
            let appended = store.append(message("orders", number % 3, &number.to_string(), 900)).unwrap();
            if appended.position.0 >= SEGMENT_BYTES + 5_000 {
                break appended;
            }
        };
        dispatch_all(&store);
        drop(store);
        for machine in [machine.killed(), machine.killed_in_this_boot()] {
            match junk {
                None => machine.remove(&machine.segment(1)),
                Some(byte) => machine.write(&machine.segment(1), &vec![byte; SEGMENT_BYTES as usize]),
            }

            let (store, log) = logged(|| machine.open());

            let end = store.log_range().1;
            assert!(end.0 <= SEGMENT_BYTES, "{junk:?}");
            let line = log.lines().find(|line| line.contains("that queue entries lead to is gone")).unwrap_or(&log);
            for part in ["ERROR".to_owned(), format!("physical_offset={end}"), format!("to={}", last.end)] {
                assert!(line.contains(&part), "{part}: {line}");
            }
            assert_eq!(figure(&store, "damagedBytes") as u64, last.end.since(end), "{junk:?}");
            drop(store);
            let store = machine.killed().open();
            assert_eq!(figure(&store, "damagedBytes"), 0.0, "what is gone is reported once: {junk:?}");
        }
    }
}

#[test]
fn junk_in_a_queue_beyond_its_end_is_not_taken_for_records_that_were_lost() {
    let (machine, _, _) = five_and_one();
    for entry in [[0xA5; 20], [0x7F; 20]] {
        let machine = machine.killed();
        machine.overwrite("consumequeue/orders/0/00000000000000000000", 6 * 20, &entry);

        let store = machine.open();

        assert_eq!(figure(&store, "damagedBytes"), 0.0);
        assert_eq!(bodies(&store, "orders", 0).len(), 6);
    }
}

#[test]
fn a_log_without_a_checkpoint_of_ours_is_told_and_a_new_store_is_not() {
    let machine = Machine::new();
    let told = "no checkpoint of latermq";
    let (store, log) = logged(|| machine.open());
    assert!(!log.contains(told), "a new store: {log}");
    store.append(draft("orders", 0, "a")).unwrap();
    store.stop().unwrap();
    drop(store);
    let (store, log) = logged(|| machine.open());
    assert!(!log.contains(told), "a store with a checkpoint: {log}");
    store.stop().unwrap();
    drop(store);
    machine.remove("latermq.checkpoint");
    let (store, log) = logged(|| machine.open());
    assert!(!log.contains(told), "the one before is there: {log}");
    store.stop().unwrap();
    drop(store);
    machine.forget_our_checkpoint();

    let (_store, log) = logged(|| machine.open());

    let line = log.lines().find(|line| line.contains(told)).unwrap_or(&log);
    assert!(line.contains("WARN") && line.contains("latermq.checkpoint"), "{line}");
}

// A file in the place of a folder.

#[test]
fn a_file_in_the_place_of_a_folder_that_can_be_made_anew_is_moved_aside_and_nothing_is_missing() {
    for folder in ["consumequeue", "consumequeue/orders", "consumequeue/orders/0", "index", "config"] {
        let (machine, _, _) = five_and_one();
        machine.remove(folder);
        machine.write(folder, b"of somebody else");

        let store = machine.open();

        assert_eq!(bodies(&store, "orders", 0).len(), 6, "{folder}");
        store.append(draft("orders", 0, "6")).unwrap();
        dispatch_all(&store);
        assert_eq!(bodies(&store, "orders", 0).len(), 7, "{folder}");
        store.stop().unwrap();
        assert_eq!(machine.read(&format!("{folder}.bad")), b"of somebody else");
    }
}

#[test]
fn a_file_in_the_place_of_the_commit_log_keeps_the_broker_from_starting_unless_it_is_empty() {
    let (machine, _, _) = five_and_one();
    machine.remove("commitlog");
    machine.write("commitlog", b"what a backup left");

    let error = machine.try_open(Vec::new()).unwrap_err();

    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(error.to_string().contains("commitlog"), "{error}");
    assert!(reason.contains("it is a file of 18 bytes, and no folder"), "{reason}");
    assert_eq!(machine.read("commitlog"), b"what a backup left");
    machine.write("commitlog", b"");
    let store = machine.open();
    store.append(draft("orders", 0, "new")).unwrap();
    assert_eq!(machine.read("commitlog.bad"), b"");
}

// What may not be read or written, as for a user who is not root.

/// N9: a start was refused, and the message named the folder.
#[test]
fn queues_and_index_that_may_not_be_read_or_written_are_moved_aside_and_built_anew() {
    let derived = [
        "consumequeue",
        "consumequeue/orders",
        "consumequeue/orders/1",
        "consumequeue/orders/0/00000000000000000000",
        "consumequeue/orders/0/00000000000000000400",
        "index",
        "index/first",
        "index/last",
    ];
    let (machine, places) = four_segments();
    let indexes = machine.names("index");
    for path in derived {
        for what in [Forbidden::All, Forbidden::Writing] {
            let name = match path {
                "index/first" => format!("index/{}", indexes[0]),
                "index/last" => format!("index/{}", indexes[indexes.len() - 1]),
                path => path.to_owned(),
            };
            // A folder that may be read is used as it is: its files tell what may not be done.
            let is_folder = !name.chars().last().unwrap().is_ascii_digit() || name.ends_with("/1");
            if is_folder && what == Forbidden::Writing {
                continue;
            }
            let denied = machine.killed();
            denied.disk.forbid(Path::new(&name), what);

            let (store, log) = logged(|| denied.open());

            let told = format!("/memory/{name}");
            assert!(log.contains(&told) && log.contains(".bad"), "{name}: {log}");
            let found = [0, 1].map(|queue_id| names_of(&store, "orders", queue_id));
            assert_eq!(found, left_without(&places, 0..0), "{name}, {what:?}");
            let queried = store.query("orders", "m3", 32, Timestamp(0), Timestamp(i64::MAX));
            assert_eq!(queried.records.len(), 1, "{name}, {what:?}");
            store.append(message("orders", 0, "next", 10)).unwrap();
            dispatch_all(&store);
            store.stop().unwrap();
            drop(store);
            let (store, log) = logged(|| denied.open());
            assert!(!log.contains("ERROR") && !log.contains("is made anew"), "once is enough: {log}");
            assert_eq!(names_of(&store, "orders", 0).len(), places.len().div_ceil(2) + 1);
        }
    }
}

#[test]
fn an_old_segment_that_may_be_read_but_not_written_is_read() {
    let (machine, places) = four_segments();
    for number in 0..3 {
        for forgets_checkpoint in [false, true] {
            let denied = machine.killed();
            denied.disk.forbid(Path::new(&denied.segment(number)), Forbidden::Writing);
            if forgets_checkpoint {
                denied.forget_our_checkpoint();
            }
            let (_, log) = logged(|| check_left(&denied, &places, 0..0, &format!("segment {number}")));
            assert!(log.contains(&denied.segment(number)), "{log}");
        }
    }
}

#[test]
fn an_old_segment_that_may_not_be_read_is_waited_for_and_read_once_it_may_be() {
    let (machine, places) = four_segments();
    machine.disk.forbid(Path::new(&machine.segment(1)), Forbidden::All);

    let (store, log) = logged(|| machine.open());

    assert!(log.contains(&machine.segment(1)), "{log}");
    let lost = left_without(&places, SEGMENT_BYTES..2 * SEGMENT_BYTES);
    let first = (0..).find(|n| places[2 * n].0.0 >= SEGMENT_BYTES || places[2 * n].1.0 > SEGMENT_BYTES).unwrap();
    let query =
        PullQuery { topic: "orders", queue_id: QueueId(0), offset: first as i64, count_max: 32, bytes_max: 1 << 20 };
    let pulled = store.pull(&query, &|_| true);
    assert!(pulled.count == 0 && pulled.next_offset == first as i64, "not passed over: {pulled:?}");
    assert!(pulled.failure.unwrap().contains("denied"));
    assert!(lost[0].len() < places.len() / 2);
    store.append(message("orders", 0, "next", 10)).unwrap();
    dispatch_all(&store);

    machine.disk.allow_all();
    let pulled = store.pull(&query, &|_| true);

    assert!(pulled.count > 0, "{pulled:?}");
    assert_eq!(names_of(&store, "orders", 0).len(), places.len().div_ceil(2) + 1);
}

#[test]
fn a_newest_segment_that_may_not_be_written_keeps_the_store_from_opening_and_is_named() {
    let (machine, _) = four_segments();
    for what in [Forbidden::All, Forbidden::Writing] {
        let denied = machine.killed();
        denied.disk.forbid(Path::new(&denied.segment(3)), what);
        let error = denied.try_open(Vec::new()).unwrap_err();
        assert!(error.to_string().contains(&denied.segment(3)), "{error}");

        // The next file is there already, and empty.
        denied.disk.allow_all();
        denied.write(&denied.segment(4), &[0; SEGMENT_BYTES as usize]);
        denied.disk.forbid(Path::new(&denied.segment(3)), what);
        let error = denied.try_open(Vec::new()).unwrap_err();
        assert!(error.to_string().contains(&denied.segment(3)), "{error}");
    }
}

#[test]
fn a_file_abort_that_may_not_be_read_is_that_of_a_kill() {
    let (machine, _, _) = five_and_one();
    machine.disk.forbid(Path::new("abort"), Forbidden::All);

    let store = machine.open();

    assert_eq!(bodies(&store, "orders", 0).len(), 6);
    store.stop().unwrap();
    assert!(!machine.has("abort"));
}

#[test]
fn a_lock_that_may_not_be_asked_keeps_the_store_from_opening_since_a_broker_may_hold_it() {
    let (machine, _, _) = five_and_one();
    machine.disk.forbid(Path::new("lock"), Forbidden::All);

    let error = machine.try_open(Vec::new()).unwrap_err();

    assert!(error.to_string().contains("/lock"), "{error}");
}

// Pages of old segments that cannot be read.

#[test]
fn a_page_of_an_old_segment_that_cannot_be_read_costs_only_its_messages_when_the_whole_log_is_read() {
    // The store did not open as long as the page could not be read.
    let (machine, places) = four_segments();
    for forgets_checkpoint in [false, true] {
        let damaged = machine.killed();
        let page = SEGMENT_BYTES + 8 * 4096..SEGMENT_BYTES + 9 * 4096;
        let within = page.start - SEGMENT_BYTES..page.end - SEGMENT_BYTES;
        damaged.disk.make_unreadable(Path::new(&damaged.segment(1)), within).unwrap();
        damaged.remove("consumequeue");
        if forgets_checkpoint {
            damaged.forget_our_checkpoint();
        }

        let (store, log) = logged(|| damaged.open());

        assert!(log.contains("cannot be read"), "{log}");
        let is_hit = |place: &&(PhysicalOffset, PhysicalOffset)| place.1.0 > page.start && place.0.0 < page.end;
        let hit: Vec<_> = places.iter().filter(is_hit).collect();
        assert_eq!(figure(&store, "damagedRanges"), 1.0);
        assert_eq!(figure(&store, "damagedBytes") as u64, hit[hit.len() - 1].1.since(hit[0].0));
        let found = [0, 1].map(|queue_id| {
            let entries = store.queue_entries("orders", QueueId(queue_id), QueueOffset::ZERO, places.len());
            entries.iter().filter(|entry| !entry.is_blank()).count()
        });
        assert!(found.iter().sum::<usize>() <= places.len() - hit.len());
        assert_eq!(store.log_range().1, places.last().unwrap().1);
    }
}

#[test]
fn what_lay_in_a_page_that_could_not_be_read_when_the_whole_log_was_is_there_once_it_can_be() {
    let (machine, places) = four_segments();
    let path = machine.segment(1);
    let page = 8 * 4096..9 * 4096;
    machine.disk.make_unreadable(Path::new(&path), page.clone()).unwrap();
    machine.remove("consumequeue");
    let store = machine.open();
    let next = store.append(message("orders", 0, "next", 10)).unwrap();
    assert_eq!(next.queue_offset.0, places.len().div_ceil(2) as u64);
    dispatch_all(&store);
    store.stop().unwrap();
    drop(store);
    let store = machine.open();
    assert!(names_of(&store, "orders", 0).len() < places.len().div_ceil(2) + 1);
    store.stop().unwrap();
    drop(store);

    machine.disk.make_readable(Path::new(&path), page).unwrap();

    let (store, log) = logged(|| machine.open());
    assert!(log.contains("can be read again"), "{log}");
    let mut all = left_without(&places, 0..0);
    all[0].push("next".to_owned());
    assert_eq!([0, 1].map(|queue_id| names_of(&store, "orders", queue_id)), all);
    store.stop().unwrap();
    let (_, log) = logged(|| machine.open());
    assert!(!log.contains("can be read again"), "once is enough: {log}");
}

#[test]
fn the_offsets_of_messages_that_cannot_be_read_are_not_given_again() {
    // A queue whose last messages lie in a page that cannot be read.
    let machine = Machine::new();
    let store = machine.open();
    store.append(message("old", 0, "first", 100)).unwrap();
    while store.log_range().1.0 < 4096 * 2 {
        store.append(message("filling", 0, "f", 1_500)).unwrap();
    }
    for n in 0..4 {
        store.append(message("old", 0, &format!("hidden{n}"), 1_500)).unwrap();
    }
    while store.log_range().1.0 < SEGMENT_BYTES + 10_000 {
        store.append(message("filling", 0, "f", 1_500)).unwrap();
    }
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    drop(store);
    let machine = machine.killed();
    let path = machine.segment(0);
    machine.disk.make_unreadable(Path::new(&path), 2 * 4096..5 * 4096).unwrap();
    machine.forget_our_checkpoint();

    let store = machine.open();

    assert_eq!(store.append(message("old", 0, "next", 10)).unwrap().queue_offset, QueueOffset(5));
    dispatch_all(&store);
    machine.disk.make_readable(Path::new(&path), 2 * 4096..5 * 4096).unwrap();
    assert_eq!(names_of(&store, "old", 0), ["first", "hidden0", "hidden1", "hidden2", "hidden3", "next"]);
    drop(store);
    let store = machine.killed().open();
    assert_eq!(names_of(&store, "old", 0), ["first", "hidden0", "hidden1", "hidden2", "hidden3", "next"]);
}

#[test]
fn a_store_does_not_open_without_its_checkpoint_while_nothing_of_an_old_segment_can_be_read() {
    // Else a disk that comes back later would hold messages that nobody knows of any more.
    let (machine, places) = four_segments();
    machine.forget_our_checkpoint();
    machine.disk.fail_under(Path::new(&machine.segment(1)), Operation::Read, 0, io::ErrorKind::Other, u64::MAX);
    let error = machine.try_open(Vec::new()).unwrap_err();
    assert!(error.to_string().contains(&machine.segment(1)), "{error}");

    machine.disk.heal();
    check_left(&machine, &places, 0..0, "it can be read again");
}

#[test]
fn an_old_segment_that_was_cut_makes_one_start_scan_the_whole_log() {
    let (machine, places) = four_segments();
    for left in [0, 1, 20_000, SEGMENT_BYTES - 1] {
        let cut = machine.killed();
        cut.disk.open(Path::new(&cut.segment(1))).unwrap().set_bytes(left, Allocation::Sparse).unwrap();
        let (store, log) = logged(|| cut.open());
        assert!(log.contains("scanning all of it"), "{left}: {log}");
        drop(store);
        // Killed before anything else was done: the file has its length again.
        let cut = cut.killed();
        assert_eq!(cut.read(&cut.segment(1)).len() as u64, SEGMENT_BYTES);
        let (_, log) = logged(|| {
            check_left(&cut, &places, SEGMENT_BYTES + left..2 * SEGMENT_BYTES, &format!("{left} bytes are left"));
        });
        assert!(!log.contains("scanning all of it"), "once is enough: {log}");
    }
}

// Store times, which no checksum covers.

/// Where a record has its store time.
const STORED_AT_AT: u64 = 56;

fn damage_store_time(machine: &Machine, position: PhysicalOffset, ms: i64) {
    machine.overwrite(&machine.segment(0), position.0 + STORED_AT_AT, &ms.to_be_bytes());
}

/// The store time of the newest durable record that RocketMQ's checkpoint says.
fn rocketmq_log_time(machine: &Machine) -> i64 {
    i64::from_be_bytes(machine.read("checkpoint")[..8].try_into().unwrap())
}

#[test]
fn a_damaged_store_time_of_the_last_record_far_beyond_the_wall_clock_is_not_believed_and_not_passed_on() {
    let (machine, position, _) = five_and_one();
    for damaged_ms in [START.0 + (1 << 32), START.0 | 1 << 48, START.0 | 1 << 62, i64::MAX] {
        for loses_rocketmqs in [true, false] {
            let damaged = machine.killed();
            damage_store_time(&damaged, position, damaged_ms);
            damaged.forget_our_checkpoint();
            if loses_rocketmqs {
                damaged.remove("checkpoint");
            }

            let (store, log) = logged(|| damaged.open());

            assert_eq!(store.now(), damaged.clock_now(), "{damaged_ms}");
            assert!(log.contains("a store time that nothing confirms"), "{log}");
            assert!(rocketmq_log_time(&damaged) <= damaged.clock_now().0, "it would confirm the next damage");
            drop(store);
            assert_eq!(
                damaged.killed_in_this_boot().open().now(),
                damaged.clock_now(),
                "{damaged_ms}, in the same boot"
            );
            assert_eq!(damaged.killed().open().now(), damaged.clock_now(), "{damaged_ms}, in another boot");
        }
    }
}

#[test]
fn a_wall_clock_set_back_across_a_reboot_lets_no_store_time_fall_though_all_checkpoints_are_lost() {
    let machine = Machine::new();
    let store = machine.open();
    let mut last = START;
    for n in 0..5 {
        machine.clock.advance(Duration::from_millis(700));
        last = store.append(draft("orders", 0, &n.to_string())).unwrap().stored_at;
    }
    dispatch_all(&store);
    store.stop().unwrap();
    drop(store);
    for step in [-1_000, -86_400_000, 90 * 86_400_000 - START.0] {
        for lost in [
            &["latermq.checkpoint", "latermq.checkpoint.bak"][..],
            &["latermq.checkpoint", "latermq.checkpoint.bak", "checkpoint"],
        ] {
            let back = machine.killed();
            back.clock.step_wall(step);
            lost.iter().for_each(|path| back.remove(path));

            let store = back.open();

            assert_eq!(store.now(), last, "a step of {step} ms, {lost:?} lost");
            assert!(store.append(draft("orders", 0, "next")).unwrap().stored_at >= last);
            back.clock.step_wall(-step);
        }
    }
}

#[test]
fn a_wall_clock_set_back_after_a_long_idle_day_lets_no_store_time_fall_where_the_checkpoint_is_there() {
    let machine = Machine::new();
    let store = machine.open();
    store.append(draft("orders", 0, "long ago")).unwrap();
    machine.clock.advance(Duration::from_secs(40 * 86_400));
    let last = store.append(draft("orders", 0, "last")).unwrap().stored_at;
    dispatch_all(&store);
    store.stop().unwrap();
    drop(store);
    let back = machine.killed();
    back.clock.step_wall(-last.0);

    assert_eq!(back.open().now(), last);
}

/// Of a log that Apache RocketMQ wrote only its checkpoint's time tells what is durable. One record that claims to be later must not make the
/// damage behind it a torn tail, which is cut off with all that follows.
#[test]
fn a_damaged_store_time_in_front_of_damage_does_not_cut_off_what_lies_behind() {
    let machine = Machine::new();
    let store = machine.open();
    let mut places = Vec::new();
    for n in 0..6 {
        places.push(store.append(draft("orders", 0, &n.to_string())).unwrap());
    }
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    drop(store);
    let damaged = machine.killed();
    damaged.forget_our_checkpoint();
    damage_store_time(&damaged, places[2].position, START.0 + 3_600_000);
    damaged.overwrite(&damaged.segment(0), places[3].end.0 - 40, &[0x55; 20]);
    damaged.overwrite(&damaged.segment(0), places[3].position.0 + 88, &[0x55]);

    let store = damaged.open();

    assert_eq!(bodies(&store, "orders", 0), ["0", "1", "2", "4", "5"]);
}
