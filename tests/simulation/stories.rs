//! What the simulation found, one story each.

use latermq::{
    model::{MessageDraft, QueueId},
    store::FlushPolicy,
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
        machine.advance(std::time::Duration::from_secs(1));
        machine.directory.crash_at(machine.directory.steps() + 1);
        let process = machine.process();
        assert_eq!(process.scheduler.tick(process.store.now()).restored, 0);

        restart(&mut machine, End::Kill);
        machine.work();

        let range = machine.process().store.queue_range("orders", QueueId(0));
        assert_eq!(range.map(|range| range.max.0), Some(2), "body of {bytes} bytes");
    }
}
