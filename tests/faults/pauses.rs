//! Pauses, second brokers, and stops amid much work: SIGSTOP, two brokers on one store, starts with much overdue, quick restarts during the
//! catching up, and clean stops while many messages fall due.
//!
//! `LATERMQ_FAULTS_OVERDUE`, `LATERMQ_FAULTS_DUE` and `LATERMQ_FAULTS_PAUSE_SECONDS` make them as large as one likes.

use std::{
    env, fs, thread,
    time::{Duration, Instant},
};

use latermq::protocol::header::SendReplyHeader;
use rustix::process::Signal;

use crate::{
    audit::{audit, delays, drain},
    client::{Client, Message},
    kill::progress,
    ledger::Ledger,
    process::{LEVELS, Place, folder, wait_until},
};

/// Messages that wait for an answer at the same time.
const IN_FLIGHT: usize = 128;
/// The queue of the schedule topic for level 1 is 0, and so on.
const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";

fn number(variable: &str, otherwise: u64) -> u64 {
    env::var(variable).map_or(otherwise, |value| value.parse().unwrap())
}

/// Small records in large files: the number is what matters here.
fn roomy(place: &mut Place) {
    place.set("mappedFileSizeCommitLog", "16777216");
    place.set("mappedFileSizeConsumeQueue", "200000");
    place.set("maxIndexNum", "200000");
    place.set("maxTransferCountOnMessageInMemory", "1000");
}

/// Sends so many messages to a level as fast as it goes.
fn send_many(client: &mut Client, ledger: &Ledger, level: usize, count: u64, name: &str) {
    let queue_of = |number: u64| i32::try_from(number % 4).unwrap();
    let messages: Vec<Message> = (0..count)
        .map(|number| Message::new("orders", queue_of(number), level, format!("{name}-{level}-{number}")).bytes(20))
        .collect();
    for part in messages.chunks(IN_FLIGHT) {
        let mut asked = Vec::new();
        for message in part {
            ledger.sending(message);
            asked.push((client.ask(message.request()).unwrap(), message));
        }
        for _ in part {
            let answer = client.answer().unwrap();
            assert_eq!(answer.code, 0, "{:?}", answer.remark);
            let (_, message) = asked.iter().find(|(opaque, _)| *opaque == answer.opaque).unwrap();
            ledger.acknowledged(message, SendReplyHeader::decode(&answer.ext).unwrap().queue_offset);
        }
    }
}

/// The broker stands still for seconds while messages fall due: they all come at once when it goes on, once and in order (B15).
#[test]
fn b15_after_a_pause_of_the_process_everything_overdue_comes_at_once_and_once() {
    let folder = folder();
    let place = Place::new(folder.path(), &[]);
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 4).unwrap();
    for level in 1..=6 {
        send_many(&mut client, &ledger, level, 300, "paused");
    }
    let pause = Duration::from_secs(number("LATERMQ_FAULTS_PAUSE_SECONDS", 4));

    serving.broker.signal(Signal::STOP);
    thread::sleep(pause);
    serving.broker.signal(Signal::CONT);

    let went_on = Instant::now();
    // The old connection may have been silent for longer than the broker lets it be.
    let mut client = serving.client();
    wait_until("what is overdue is delivered", Duration::from_secs(5), || client.pending().unwrap() == 0);
    let took = went_on.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?} until all that was overdue was delivered");
    send_many(&mut client, &ledger, 1, 10, "afterwards");
    drain(&mut client);
    audit(&mut client, &ledger.copy(), LEVELS).assert_clean("a pause of the process");
    let pid = serving.broker.pid();
    let before = cpu_ticks(pid);
    thread::sleep(Duration::from_secs(1));
    let used = cpu_ticks(pid) - before;
    assert!(used <= 10, "{used} of 100 ticks are used in a second in which nothing is to do");
    drop(client);
    serving.stop();
}

/// Ticks (1/100 s as a rule) of processor time that a process used so far.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind_name = stat.rsplit(") ").next().unwrap();
    let fields: Vec<&str> = behind_name.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_second_broker_on_the_store_is_refused_with_its_reason_and_the_first_goes_on_unharmed() {
    let folder = folder();
    let place = Place::new(folder.path(), &[]);
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 4).unwrap();
    send_many(&mut client, &ledger, 1, 200, "before");

    for attempt in 0..3 {
        let (status, log) = place.try_start().err().expect("a second broker must not serve");
        assert_eq!(status.code(), Some(1), "{log}");
        // The first broker writes into the same log.
        assert!(
            log.lines()
                .any(|line| line.starts_with("latermq: ") && line.contains("another broker is running on this store")),
            "{log}"
        );
        assert!(!log.contains("panicked"), "{log}");
        send_many(&mut client, &ledger, 2, 50, &format!("between-{attempt}"));
    }

    drain(&mut client);
    audit(&mut client, &ledger.copy(), LEVELS).assert_clean("two brokers on one store");
    drop(client);
    serving.kill();
    // The lock of a broker that was killed holds up nobody.
    let serving = place.start();
    let mut client = serving.client();
    audit(&mut client, &ledger.copy(), LEVELS).assert_clean("after the second broker, and a kill");
    drop(client);
    serving.stop();
}

/// Much is overdue at a start, and the start is interrupted twice while it is caught up, once by each signal (B05, B09, B20).
#[test]
fn b05_b09_b20_a_start_with_much_overdue_catches_up_although_it_is_stopped_and_killed_meanwhile() {
    let overdue = number("LATERMQ_FAULTS_OVERDUE", 20_000);
    let folder = folder();
    let mut place = Place::new(folder.path(), &[]);
    roomy(&mut place);
    let levels = if overdue > 100_000 { "10m 11m" } else { "5s 6s" };
    place.set("messageDelayLevel", levels);
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 4).unwrap();
    let began = Instant::now();
    for level in 1..=2 {
        send_many(&mut client, &ledger, level, overdue / 2, "overdue");
    }
    drop(client);
    serving.kill();
    thread::sleep((delays(levels)[1] + Duration::from_millis(500)).saturating_sub(began.elapsed()));

    for clean in [true, false] {
        let mut serving = place.start();
        let mut client = serving.client();
        wait_until("some of it is delivered", Duration::from_secs(20), || {
            client.max_offset("orders", 0).unwrap_or(0) > 0
        });
        drop(client);
        assert!(serving.broker.is_running());
        if clean {
            serving.stop();
        } else {
            serving.kill();
        }
    }
    let serving = place.start();
    assert!(serving.started_in < Duration::from_secs(10), "the start took {:?}", serving.started_in);
    let mut client = serving.client();
    let went_on = Instant::now();
    drain(&mut client);
    println!(
        "{overdue} overdue: started in {:?}, the last of them delivered {:?} later",
        serving.started_in,
        went_on.elapsed()
    );
    audit(&mut client, &ledger.copy(), levels).assert_clean("much overdue");
    drop(client);
    serving.stop();
}

/// A clean stop while messages fall due: progress is exact, and the next start repeats nothing (B05, B13).
#[test]
fn b05_b13_a_clean_stop_while_many_fall_due_saves_exact_progress_and_nothing_is_repeated() {
    let due = number("LATERMQ_FAULTS_DUE", 5_000);
    let folder = folder();
    let mut place = Place::new(folder.path(), &[]);
    roomy(&mut place);
    let levels = if due > 20_000 { "60s 60s" } else { "3s 3s" };
    place.set("messageDelayLevel", levels);
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 4).unwrap();
    let began = Instant::now();
    for level in 1..=2 {
        send_many(&mut client, &ledger, level, due / 2, "due");
    }
    // As the first fall due.
    thread::sleep(delays(levels)[0].saturating_sub(began.elapsed()));
    wait_until("the first are delivered", Duration::from_secs(20), || {
        (0..4).any(|queue| client.max_offset("orders", queue).unwrap_or(0) > 0)
    });
    drop(client);
    serving.stop();
    let told: i64 = progress(&place.store()).values().sum();
    assert_eq!(told, entries_of(&place, "orders"), "delayOffset.json and what was delivered until the stop");
    println!("{told} of {due} were delivered when the broker stopped");

    let serving = place.start();
    let mut client = serving.client();
    drain(&mut client);
    let findings = audit(&mut client, &ledger.copy(), levels);
    findings.assert_clean("a clean stop while many fall due");
    for level in 1..=2 {
        let records = client.read_all(SCHEDULE_TOPIC, level - 1).unwrap();
        assert_eq!(records.len() as u64, due / 2);
    }
    drop(client);
    serving.stop();
    let progress_now = progress(&place.store());
    let half = i64::try_from(due / 2).unwrap();
    assert_eq!(progress_now, [(1, half), (2, half)].into(), "B13: the next offset to deliver");
}

/// How many entries the queues of a topic have on the disk.
fn entries_of(place: &Place, topic: &str) -> i64 {
    let mut count = 0;
    for queue in fs::read_dir(place.store().join("consumequeue").join(topic)).unwrap() {
        for file in fs::read_dir(queue.unwrap().path()).unwrap() {
            let bytes = fs::read(file.unwrap().path()).unwrap();
            count += bytes.chunks_exact(20).filter(|entry| entry[8..12] != [0; 4]).count();
        }
    }
    i64::try_from(count).unwrap()
}

/// Exactly 7 messages of a level are delivered, others wait: the file says 7 (B13).
#[test]
fn b13_after_a_clean_stop_the_progress_is_the_next_message_to_deliver() {
    let folder = folder();
    let place = Place::new(folder.path(), &[("messageDelayLevel", "1s 1h")]);
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 4).unwrap();
    send_many(&mut client, &ledger, 1, 7, "seven");
    send_many(&mut client, &ledger, 2, 5, "later");
    wait_until("seven are delivered", Duration::from_secs(10), || {
        (0..4).map(|queue_id| client.read_all("orders", queue_id).unwrap().len()).sum::<usize>() == 7
    });
    drop(client);
    serving.stop();

    assert_eq!(progress(&place.store()), [(1, 7), (2, 0)].into());
    let serving = place.start();
    let mut client = serving.client();
    thread::sleep(Duration::from_millis(300));
    audit(&mut client, &ledger.copy(), "1s 1h").assert_clean("after the restart");
    drop(client);
    serving.stop();
}
