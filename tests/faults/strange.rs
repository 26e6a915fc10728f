//! Files of others in a store, what a crash leaves of the next files, a missing segment, and a slow start.

use std::{
    fs::{self, File},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    audit::{audit, drain},
    client::{Client, Message, now_ms},
    ledger::Ledger,
    process::{LEVELS, Place, SEGMENT_BYTES, folder},
};

fn send(client: &mut Client, ledger: &Ledger, level: usize, count: usize, bytes: usize, name: &str) {
    for number in 0..count {
        let message = Message::new("orders", 0, level, format!("{name}-{level}-{number}")).bytes(bytes);
        ledger.sending(&message);
        ledger.acknowledged(&message, client.send(&message).unwrap().queue_offset);
    }
}

#[test]
fn b25_files_of_others_in_the_folders_of_the_store_are_left_alone_and_nothing_is_missing() {
    let folder = folder();
    let place = Place::new(folder.path(), &[]);
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 1).unwrap();
    for level in [0, 1, 2, 3] {
        send(&mut client, &ledger, level, 20, 3_000, "ours");
    }
    drop(client);
    serving.stop();
    let mut strangers = Vec::new();
    for below in ["", "commitlog", "consumequeue", "consumequeue/orders", "consumequeue/orders/0", "index", "config"] {
        for name in ["foo", "00000000000000000000.tmp", ".nfs0000"] {
            let path = place.store().join(below).join(name);
            fs::write(&path, b"of somebody else").unwrap();
            strangers.push(path);
        }
        for name in ["lost+found", "empty"] {
            let path = place.store().join(below).join(name);
            fs::create_dir(&path).unwrap();
            strangers.push(path);
        }
    }

    let serving = place.start();

    let mut client = serving.client();
    drain(&mut client);
    audit(&mut client, &ledger.copy(), LEVELS).assert_clean("files of others");
    let log = serving.broker.log();
    for named in ["commitlog/foo", "commitlog/lost+found", "orders/0/foo", "index/empty"] {
        assert!(log.contains(named), "{named} is not named:\n{log}");
    }
    drop(client);
    serving.stop();
    assert!(strangers.iter().all(|path| path.exists()), "what belongs to somebody else was removed");
}

#[test]
fn b28_empty_next_files_and_a_half_newest_segment_after_a_kill_stop_no_start() {
    let folder = folder();
    let place = Place::new(folder.path(), &[("flushDiskType", "SYNC_FLUSH")]);
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 1).unwrap();
    for level in [0, 1, 2] {
        send(&mut client, &ledger, level, 30, 2_000, "before");
    }
    let end = client.figure("commitLogMaxOffset").unwrap() as u64;
    drop(client);
    serving.kill();
    let next = |at: u64, bytes: u64| at / bytes * bytes + bytes;
    let log = place.store().join("commitlog");
    // The spare segment is there already; the one after it is not.
    File::create(log.join(format!("{:020}", next(end, SEGMENT_BYTES)))).unwrap();
    File::create(place.store().join(format!("consumequeue/orders/0/{:020}", 2000))).unwrap();
    File::create(place.store().join("index/20991231235959999")).unwrap();

    let serving = place.start();
    let mut client = serving.client();
    send(&mut client, &ledger, 1, 20, 2_000, "behind");
    drain(&mut client);
    audit(&mut client, &ledger.copy(), LEVELS).assert_clean("empty next files");
    let end = client.figure("commitLogMaxOffset").unwrap() as u64;
    drop(client);
    serving.kill();

    // All that is written lies in the half that is left.
    let newest =
        File::options().write(true).open(log.join(format!("{:020}", end / SEGMENT_BYTES * SEGMENT_BYTES))).unwrap();
    newest.set_len(end % SEGMENT_BYTES).unwrap();
    let _ = fs::remove_file(log.join(format!("{:020}", next(end, SEGMENT_BYTES))));
    let serving = place.start();
    let mut client = serving.client();
    audit(&mut client, &ledger.copy(), LEVELS).assert_clean("a newest segment that was cut behind its last record");
    drop(client);
    serving.stop();
}

#[test]
fn b117_a_segment_from_the_middle_is_missing_and_everything_else_is_read_and_delivered() {
    let folder = folder();
    let mut place = Place::new(folder.path(), &[("messageDelayLevel", "1s 4s"), ("parkAfter", "300")]);
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 1).unwrap();
    let mut in_middle = Vec::new();
    for number in 0..36 {
        let message = Message::new("orders", 0, 2, format!("waits-{number}")).bytes(10_000);
        ledger.sending(&message);
        let begins = client.figure("commitLogMaxOffset").unwrap() as u64;
        ledger.acknowledged(&message, client.send(&message).unwrap().queue_offset);
        let ends = client.figure("commitLogMaxOffset").unwrap() as u64;
        if begins < 2 * SEGMENT_BYTES && ends > SEGMENT_BYTES {
            in_middle.push(message.key.clone());
        }
    }
    drop(client);
    serving.stop();
    fs::remove_file(place.store().join(format!("commitlog/{SEGMENT_BYTES:020}"))).unwrap();
    place.set("flushDiskType", "SYNC_FLUSH");

    let serving = place.start();

    let log = serving.broker.log();
    assert!(log.contains("segments of the commit log are missing"), "{log}");
    assert!(
        log.contains(&format!("\"from\":{SEGMENT_BYTES}")) && log.contains(&format!("\"to\":{}", 2 * SEGMENT_BYTES))
    );
    let mut client = serving.client();
    drain(&mut client);
    let mut book = ledger.copy();
    book.sent.retain(|(_, key), sent| {
        // Behind the gap a message has the offset it had, but the queue it is read from has a hole before it.
        sent.queue_offset = None;
        !in_middle.contains(key)
    });
    let findings = audit(&mut client, &book, "1s 4s");
    assert!(findings.lost.is_empty() && findings.early.is_empty() && findings.twice.is_empty(), "{findings}");
    assert!(findings.out_of_order.is_empty(), "{findings}");
    assert!(book.sent.len() > 20, "only {} messages lie beside the gap", book.sent.len());
    drop(client);
    serving.stop();
}

#[test]
fn b117_what_was_restored_into_a_segment_that_is_gone_is_restored_again() {
    let folder = folder();
    let place = Place::new(folder.path(), &[("messageDelayLevel", "1s")]);
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 1).unwrap();
    send(&mut client, &ledger, 1, 40, 4_000, "waits");
    drain(&mut client);
    send(&mut client, &ledger, 0, 40, 4_000, "behind");
    drop(client);
    serving.stop();
    // What waited lies in the first two segments, what was restored from the second on.
    fs::remove_file(place.store().join(format!("commitlog/{:020}", 2 * SEGMENT_BYTES))).unwrap();

    for again in [true, false] {
        let serving = place.start();
        let log = serving.broker.log();
        assert_eq!(log.contains("restoring again what was restored there"), again, "once is enough: {log}");
        let mut client = serving.client();
        drain(&mut client);
        let mut book = ledger.copy();
        book.sent.retain(|(_, key), sent| {
            sent.queue_offset = None;
            key.starts_with("waits")
        });
        let findings = audit(&mut client, &book, "1s");
        assert!(findings.lost.is_empty(), "{findings}");
        drop(client);
        serving.stop();
    }
}

/// The time that a start takes is not added to the time that messages wait.
#[test]
fn b23_a_slow_start_shifts_no_deadline() {
    let folder = folder();
    let place = Place::new(folder.path(), &[("messageDelayLevel", "3s")]);
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 1).unwrap();
    send(&mut client, &ledger, 1, 5, 100, "slow");
    let sent_at = now_ms();
    drop(client);
    serving.kill();

    // The process stands still in the middle of its start.
    let mut broker = place.spawn();
    thread::sleep(Duration::from_millis(5));
    broker.signal(Signal::STOP);
    thread::sleep(Duration::from_millis(1500));
    broker.signal(Signal::CONT);
    let began = Instant::now();
    let address = broker.wait_until_serving().unwrap();
    let mut client = Client::connect(address).unwrap();
    let pulled = client.pull("orders", 0, 0, Duration::from_secs(10)).unwrap();

    let late = now_ms() - (sent_at + 3_000);
    assert!(!pulled.records.is_empty() && (-50..1_000).contains(&late), "{late} ms late, {:?} later", began.elapsed());
    drain(&mut client);
    audit(&mut client, &ledger.copy(), "3s").assert_clean("a slow start");
    drop(client);
    broker.stop();
}
