//! What the simulation found, one story each.

use std::{io::ErrorKind, path::Path, time::Duration};

use latermq::{
    env::{Directory, Operation},
    model::{MessageDraft, QueueId, QueueOffset},
    protocol::Command,
    store::{FlushPolicy, PullQuery, PullStatus},
};

use crate::{
    ledger::{Ledger, Message},
    machine::{End, Machine, Settings},
};

/// A machine on which a process runs.
fn running(flush_policy: FlushPolicy) -> Machine {
    let mut machine = Machine::new(Settings { flush_policy, levels: "1s 5s".parse().unwrap() });
    machine.start().unwrap();
    machine
}

/// A message for queue 0 of topic `orders`.
fn draft(level: u32) -> MessageDraft {
    let mut ledger = Ledger::default();
    let id = ledger.sending(Message { level, ..Message::new("orders", 0, (b'x', 100)) });
    ledger.draft(id)
}

/// Ends the process, and starts the next one.
fn restart(machine: &mut Machine, end: End) {
    machine.end(end);
    machine.start().unwrap();
}

#[test]
fn a_queue_file_created_before_a_kill_outlasts_a_power_loss_after_it() {
    for seed in 0..20 {
        let mut machine = running(FlushPolicy::Sync);
        machine.process().store.append(draft(0)).unwrap();
        machine.work();

        restart(&mut machine, End::Kill);
        restart(&mut machine, End::PowerLoss(seed));

        let range = machine.process().store.queue_range("orders", QueueId(0));
        assert_eq!(range.map(|range| range.max.0), Some(1), "seed {seed}");
    }
}

#[test]
fn a_restored_record_whose_write_stopped_in_its_properties_is_no_record() {
    // The machine stops in the write of two restored records, half of which is in the file: sooner or later that ends in the first one's
    // properties.
    for bytes in 0..80 {
        let mut machine = running(FlushPolicy::Sync);
        for bytes in [40, bytes] {
            let waiting = MessageDraft { body: vec![b'x'; bytes].into(), ..draft(1) };
            machine.process().store.append(waiting).unwrap();
        }
        machine.work();
        machine.advance(Duration::from_secs(1));
        machine.directory.crash_at(machine.directory.steps() + 1);
        let process = machine.process();
        assert_eq!(process.scheduler.tick(process.store.now()).restored, 0);

        restart(&mut machine, End::Kill);
        machine.work();

        let range = machine.process().store.queue_range("orders", QueueId(0));
        assert_eq!(range.map(|range| range.max.0), Some(2), "body of {bytes} bytes");
    }
}

#[test]
fn store_33_what_a_failed_sync_left_in_memory_is_written_again_by_the_next_process() {
    // The kernel takes what a failed sync gave up for clean: the next process reads it, syncs without an error, and a power loss takes it all
    // the same, from under what was acknowledged behind it.
    for seed in 0..20 {
        let mut machine = running(FlushPolicy::Sync);
        // More than a page: the last one is written again anyway, when the log is cut behind it.
        let waiting = MessageDraft { body: vec![b'x'; 6_000].into(), ..draft(1) };
        machine.process().store.append(waiting).unwrap();
        machine.directory.fail_after(Operation::Sync, 0, ErrorKind::Other, 1);
        machine.process().store.sync_once().unwrap_err();

        machine.end(End::Kill);
        if seed % 2 == 1 {
            // Then the stop looks like a clean one.
            machine.directory.remove(Path::new("abort")).unwrap();
            machine.directory.sync_folder(Path::new("")).unwrap();
        }
        machine.start().unwrap();
        machine.work();
        restart(&mut machine, End::PowerLoss(seed));
        machine.advance(Duration::from_secs(1));
        machine.work();

        let range = machine.process().store.queue_range("orders", QueueId(0));
        assert_eq!(range.map(|range| range.max.0), Some(1), "seed {seed}");
    }
}

#[test]
fn the_first_message_of_a_queue_is_found_though_the_disk_cannot_be_read_when_it_is_dispatched() {
    let machine = running(FlushPolicy::Async);
    let process = machine.process();
    process.store.append(draft(0)).unwrap();
    machine.directory.fail_under(Path::new("consumequeue"), Operation::Read, 0, ErrorKind::Other, 10);

    while process.store.dispatch_once(u64::MAX) {}
    machine.directory.heal();
    process.store.append(draft(0)).unwrap();
    machine.work();

    let range = process.store.queue_range("orders", QueueId(0)).unwrap();
    assert_eq!((range.min.0, range.max.0), (0, 2));
}

#[test]
fn a_message_is_not_restored_twice_though_the_queue_cannot_be_read_when_its_restored_record_is_dispatched() {
    let mut machine = running(FlushPolicy::Async);
    for _ in 0..2 {
        machine.process().store.append(draft(1)).unwrap();
        machine.work();
        machine.advance(Duration::from_millis(1));
    }
    restart(&mut machine, End::Kill);
    machine.advance(Duration::from_millis(998));
    let process = machine.process().clone();
    assert_eq!((0..3).map(|_| process.scheduler.tick(process.store.now()).restored).sum::<usize>(), 1);
    // Nothing of the queue was read since the start but by the tick itself.
    machine.directory.fail_under(Path::new("consumequeue"), Operation::Read, 0, ErrorKind::Other, u64::MAX);

    process.store.dispatch_once(u64::MAX);
    process.store.checkpoint_once().unwrap();
    machine.directory.heal();
    machine.advance(Duration::from_secs(1));
    machine.work();
    restart(&mut machine, End::Kill);
    machine.work();

    let range = machine.process().store.queue_range("orders", QueueId(0));
    assert_eq!(range.map(|range| range.max.0), Some(2));
}

#[test]
fn an_entry_that_could_not_be_written_is_written_by_the_next_round_though_nothing_new_came() {
    let machine = running(FlushPolicy::Async);
    let process = machine.process();
    process.store.append(draft(0)).unwrap();
    machine.directory.fail_under(Path::new("consumequeue"), Operation::Create, 0, ErrorKind::Other, 1);
    process.store.dispatch_once(u64::MAX);
    assert_eq!(process.store.queue_range("orders", QueueId(0)).map(|range| range.max.0), Some(0));

    process.store.dispatch_once(u64::MAX);

    assert_eq!(process.store.queue_range("orders", QueueId(0)).map(|range| range.max.0), Some(1));
}

#[test]
fn what_was_stored_for_a_topic_before_it_was_deleted_never_comes_back() {
    // It was dispatched behind the deletion, at its old offset, so that the next messages of the topic were taken for a third life of the queue;
    // and a recovery that read the whole log brought all of it back.
    for lost in [&["latermq.checkpoint", "latermq.checkpoint.bak"][..], &[]] {
        let mut machine = running(FlushPolicy::Async);
        machine.process().store.append(draft(0)).unwrap();
        machine.work();
        machine.process().store.append(draft(0)).unwrap();
        machine.process().store.append(MessageDraft { queue_id: QueueId(1), ..draft(0) }).unwrap();
        machine.process().store.delete_topic("orders").unwrap();
        let first = machine.process().store.append(draft(0)).unwrap();
        machine.work();
        let entries = |machine: &Machine| {
            let entry =
                |queue_id| machine.process().store.queue_entries("orders", QueueId(queue_id), QueueOffset(0), 9);
            [0, 1].map(|queue_id| entry(queue_id).iter().map(|entry| entry.position).collect::<Vec<_>>())
        };
        assert_eq!(entries(&machine), [vec![first.position], vec![]]);

        machine.end(End::Kill);
        lost.iter().for_each(|file| machine.directory.remove(Path::new(file)).unwrap());
        machine.start().unwrap();

        assert_eq!(entries(&machine), [vec![first.position], vec![]], "without {lost:?}");
    }
}

#[test]
fn a_topic_deleted_when_the_log_was_not_synced_takes_nothing_along_that_is_stored_after_a_power_loss() {
    // What is stored later at positions that the power loss gave back counted as deleted.
    for seed in 0..20 {
        let mut machine = running(FlushPolicy::Async);
        for _ in 0..5 {
            machine.process().store.append(draft(0)).unwrap();
        }
        machine.work_without_sync();
        machine.process().store.delete_topic("orders").unwrap();

        restart(&mut machine, End::PowerLoss(seed));
        machine.process().store.append(draft(1)).unwrap();
        machine.work();
        machine.advance(Duration::from_secs(2));
        machine.work();

        let range = machine.process().store.queue_range("orders", QueueId(0));
        assert_eq!(range.map(|range| range.max.0), Some(1), "seed {seed}");
    }
}

#[test]
fn a_group_misses_nothing_that_comes_after_a_power_loss_took_what_it_had_read() {
    // Its offset was taken back to the end of the queue only in memory: a kill, and it stood behind what had come meanwhile.
    let offset = |machine: &Machine| {
        let process = machine.process();
        process.send(request(14, &[("setZeroIfNotFound", "false")]));
        process.answers().pop().unwrap().ext.get("offset").map(str::to_owned)
    };
    for seed in 0..10 {
        let mut machine = running(FlushPolicy::Async);
        let group = Command::request(200).with_body(br#"{"groupName":"group"}"#.to_vec());
        machine.process().send(group);
        let queues =
            [("readQueueNums", "2"), ("writeQueueNums", "2"), ("perm", "6"), ("topicFilterType", "SINGLE_TAG")];
        machine.process().send(request(17, &[&queues[..], &[("defaultTopic", "TBW102")]].concat()));
        for _ in 0..3 {
            machine.process().store.append(draft(0)).unwrap();
        }
        machine.work_without_sync();
        machine.process().send(request(15, &[("commitOffset", "3")]));
        machine.process().broker.save();

        restart(&mut machine, End::PowerLoss(seed));
        let end = machine.process().store.queue_range("orders", QueueId(0)).map_or(0, |range| range.max.0);
        for _ in 0..3 {
            machine.process().store.append(draft(0)).unwrap();
        }
        machine.work();
        restart(&mut machine, End::Kill);

        assert_eq!(offset(&machine), Some(end.to_string()), "seed {seed}");
    }
}

#[test]
fn a_group_misses_nothing_that_takes_the_offset_of_a_record_that_was_damaged_at_the_end_of_a_lost_queue() {
    let mut machine = running(FlushPolicy::Sync);
    for topic in ["group", "orders"] {
        let draft = MessageDraft { topic: topic.into(), ..draft(0) };
        machine.process().store.append(draft).unwrap();
    }
    let queues = [("readQueueNums", "2"), ("writeQueueNums", "2"), ("perm", "6"), ("topicFilterType", "SINGLE_TAG")];
    machine.process().send(Command::request(200).with_body(br#"{"groupName":"group"}"#.to_vec()));
    machine.process().send(request(17, &[&queues[..], &[("defaultTopic", "TBW102")]].concat()));
    let last = machine.process().store.append(draft(0)).unwrap();
    machine.process().store.append(MessageDraft { topic: "bills".into(), ..draft(0) }).unwrap();
    machine.work();
    machine.process().send(request(15, &[("commitOffset", "2")]));
    machine.process().broker.save();
    machine.process().store.checkpoint_once().unwrap();

    machine.end(End::Kill);
    let segment = Path::new("commitlog/00000000000000000000");
    machine.directory.damage(segment, last.position.0 + 90..last.position.0 + 91, 1).unwrap();
    machine.directory.remove(Path::new("consumequeue")).unwrap();
    machine.start().unwrap();
    let next = machine.process().store.append(draft(0)).unwrap();
    machine.work();

    assert_eq!(next.queue_offset, QueueOffset(1));
    machine.process().answers();
    machine.process().send(request(14, &[("setZeroIfNotFound", "false")]));
    let offset = machine.process().answers().pop().unwrap().ext.get("offset").map(str::to_owned);
    assert_eq!(offset, Some("1".to_owned()));
}

#[test]
fn a_group_does_not_read_again_what_a_queue_cannot_be_given_on_a_full_disk() {
    // Its offset was taken back to the end of a queue that was lost, and that no start could build anew for want of room.
    let mut machine = running(FlushPolicy::Sync);
    let queues = [("readQueueNums", "2"), ("writeQueueNums", "2"), ("perm", "6"), ("topicFilterType", "SINGLE_TAG")];
    machine.process().send(Command::request(200).with_body(br#"{"groupName":"group"}"#.to_vec()));
    machine.process().send(request(17, &[&queues[..], &[("defaultTopic", "TBW102")]].concat()));
    for _ in 0..3 {
        machine.process().store.append(draft(0)).unwrap();
    }
    machine.work();
    machine.process().send(request(15, &[("commitOffset", "3")]));
    machine.process().broker.save();

    machine.end(End::Kill);
    machine.directory.remove(Path::new("consumequeue")).unwrap();
    machine.directory.remove(Path::new("index")).unwrap();
    machine.directory.set_capacity(machine.directory.space().unwrap().total - machine.directory.space().unwrap().free);
    machine.start().unwrap();
    let process = machine.process().clone();
    assert_eq!(process.store.queue_range("orders", QueueId(0)).map_or(0, |range| range.max.0), 0);
    let query = PullQuery { topic: "orders", queue_id: QueueId(0), offset: 3, count_max: 9, bytes_max: 9_000 };
    let pulled = process.store.pull(&query, &|_| true);
    assert_eq!((pulled.status, pulled.next_offset), (PullStatus::OffsetOverflowOne, 3));
    process.answers();
    process.send(request(14, &[("setZeroIfNotFound", "false")]));
    assert_eq!(process.answers().pop().unwrap().ext.get("offset"), Some("3"));

    machine.directory.set_capacity(1 << 40);
    process.store.dispatch_once(u64::MAX);

    let range = process.store.queue_range("orders", QueueId(0));
    assert_eq!(range.map(|range| (range.min.0, range.max.0)), Some((0, 3)));
}

/// A request about the offset of a group.
fn request(code: i32, more: &[(&'static str, &'static str)]) -> Command {
    let fields = [("consumerGroup", "group"), ("topic", "orders"), ("queueId", "0")];
    Command::request(code).with_ext(fields.into_iter().chain(more.iter().copied()).collect())
}

#[test]
fn a_failed_sync_of_a_queue_or_of_the_index_stops_the_broker() {
    // No checkpoint could be written any more, and so nothing be deleted: better a start that makes them anew.
    for folder in ["consumequeue", "index"] {
        let mut machine = running(FlushPolicy::Async);
        machine.process().store.append(draft(0)).unwrap();
        machine.work();
        machine.directory.fail_under(Path::new(folder), Operation::Sync, 0, ErrorKind::Other, 1);

        machine.process().store.checkpoint_once().unwrap_err();
        assert_eq!(machine.fatal_reasons().len(), 1, "{folder}");

        restart(&mut machine, End::Kill);
        machine.process().store.checkpoint_once().unwrap();
        assert_eq!(machine.fatal_reasons(), [""; 0]);
    }
}

#[test]
fn a_torn_tail_is_cut_where_the_checkpoint_ends_though_the_index_is_lost() {
    // Else a torn record behind the checkpoint is taken for damage, and what stands behind it for sound: restored records would be missing
    // before others.
    let mut machine = running(FlushPolicy::Sync);
    for _ in 0..2 {
        machine.process().store.append(draft(0)).unwrap();
    }
    machine.work();
    machine.process().store.checkpoint_once().unwrap();
    let durable = machine.process().store.durable();
    for _ in 0..2 {
        machine.process().store.append(draft(0)).unwrap();
    }

    machine.end(End::Kill);
    // As a power loss leaves it.
    machine.clock.reboot();
    let segment = machine.directory.open(Path::new("commitlog/00000000000000000000")).unwrap();
    segment.write_at(durable.0 + 100, &[0; 50]).unwrap();
    machine.directory.remove(Path::new("index")).unwrap();
    machine.start().unwrap();

    assert_eq!(machine.process().store.log_range().1, durable);
}

#[test]
fn what_cannot_be_read_for_a_moment_as_it_falls_due_is_not_late_by_a_jump_of_the_clock_before_it_was_stored() {
    // Unread, it may have been stored as long ago as its level ever waited, and have moved along with the jump: it was looked at again only then.
    let mut machine = Machine::new(Settings { flush_policy: FlushPolicy::Async, levels: "1h".parse().unwrap() });
    machine.start().unwrap();
    machine.process().store.append(draft(1)).unwrap();
    machine.process().store.change_setting("messageDelayLevel", "5s");
    machine.step_wall(1_800_000);
    assert!(machine.process().store.follow_clock().unwrap().is_some());
    machine.process().store.append(draft(1)).unwrap();
    machine.work();
    machine.advance(Duration::from_secs(5));
    machine.directory.fail_under(Path::new("commitlog"), Operation::Read, 0, ErrorKind::Other, u64::MAX);
    let process = machine.process().clone();
    assert_eq!(process.scheduler.tick(process.store.now()).restored, 0);

    machine.directory.heal();
    machine.advance(Duration::from_secs(10));
    machine.work();

    let range = process.store.queue_range("orders", QueueId(0));
    assert_eq!(range.map(|range| range.max.0), Some(1));
}
