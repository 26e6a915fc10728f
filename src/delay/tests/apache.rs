//! Stores that Apache RocketMQ wrote.

use super::*;
use crate::record::{Place, encode, encoded_bytes, patch};

/// What Apache RocketMQ leaves: a commit log of its waiting records, `delayOffset.json`, no file of ours.
struct Left {
    clock: TestClock,
    directory: MemoryDirectory,
    options: StoreOptions,
}

/// Waiting records as Apache writes them: level and body, all stored at the same time; the table is said nowhere.
fn apache_left(waiting: &[(u32, &str)], delay_offset: Option<&str>) -> Left {
    let rig = Rig::new("1s");
    let Rig { clock, directory, options, store, scheduler, .. } = rig;
    store.stop().unwrap();
    drop((store, scheduler));
    let mut log = vec![0; options.segment_bytes as usize];
    let mut at = 0;
    let mut next = std::collections::HashMap::<u32, u64>::new();
    for (level, body) in waiting {
        let mut draft = draft(SCHEDULE_TOPIC, *level as i32, body);
        draft.queue_id = QueueId(level - 1);
        draft.properties.set("REAL_TOPIC", "orders");
        draft.properties.set("REAL_QID", "0");
        let bytes = encoded_bytes(&draft).unwrap();
        let mut record = Vec::new();
        encode(&draft, &mut record).unwrap();
        let queue_offset = next.entry(*level).or_default();
        let place = Place {
            queue_offset: QueueOffset(*queue_offset),
            physical_offset: PhysicalOffset(at as u64),
            stored_at: START,
            prepared_offset: 0,
        };
        *queue_offset += 1;
        patch(&mut record, &place);
        log[at..at + bytes].copy_from_slice(&record);
        at += bytes;
    }
    for entry in directory.list(Path::new("")).unwrap() {
        directory.remove(Path::new(&entry.name)).unwrap();
    }
    directory.create_folder(Path::new("commitlog")).unwrap();
    directory.create_folder(Path::new("config")).unwrap();
    directory.write(Path::new("commitlog/00000000000000000000"), &log).unwrap();
    if let Some(text) = delay_offset {
        directory.write(Path::new("config/delayOffset.json"), text.as_bytes()).unwrap();
    }
    Left { clock, directory, options }
}

fn open(left: Left, levels: &str) -> Rig {
    Rig::open(left.clock, left.directory, left.options, levels, Arc::default())
}

#[test]
fn what_apache_left_waiting_is_delivered_after_the_longest_duration_on_record() {
    let rig = open(apache_left(&[(1, "a"), (2, "b"), (1, "c")], None), "1s 5s");

    assert_eq!(rig.entries(SCHEDULE_TOPIC, 1)[0].tag_code, START.0 + 5_000);
    rig.advance(999);
    assert_eq!(rig.step(), 0);
    rig.advance(1);
    assert_eq!(rig.step(), 2);
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["a", "c", "b"]);
    let rig = rig.kill();
    rig.run_dry();
    assert_eq!(rig.entries("orders", 0).len(), 3, "origins count for what Apache wrote too");
}

#[test]
fn schedule_45_46_delay_offset_json_is_believed_for_what_apache_wrote_within_the_queue() {
    let text = "{\n\t\"offsetTable\":{\"1\":2,2:1000000000\n\t}\n}";
    let rig = open(apache_left(&[(1, "a"), (2, "b"), (1, "c"), (1, "d")], Some(text)), "1s 5s");
    rig.send("orders", 1, "ours");
    rig.send("orders", 2, "ours too");

    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["d", "ours", "ours too"]);
    let rig = rig.restart();
    rig.run_dry();
    assert_eq!(rig.entries("orders", 0).len(), 3);
    let rig = rig.kill();
    assert_eq!(rig.text("scheduleMessageOffset_1").as_deref(), Some("4,4"));
    assert_eq!(rig.text("scheduleMessageOffset_2").as_deref(), Some("2,2"));
}

#[test]
fn schedule_43_44_offsets_of_empty_queues_hold_up_nothing() {
    let text = "{\"offsetTable\":{1:3,2:5}}";
    let rig = open(apache_left(&[], Some(text)), "1s 5s");

    rig.send("orders", 1, "a");
    rig.send("orders", 2, "b");
    rig.run_dry();

    assert_eq!(rig.bodies("orders", 0), ["a", "b"]);
}
