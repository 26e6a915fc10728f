//! Small file systems that fill up while messages wait. They are mounted in memory, which needs root: without it these tests say so and do nothing.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::statvfs;
use tempfile::TempDir;

use crate::{
    audit::{audit, drain},
    client::{Client, Message},
    ledger::Ledger,
    process::{Place, folder, wait_until},
};

const LEVELS: &str = "3s 8s";
/// Length of a segment here.
const SEGMENT_BYTES: &str = "1048576";
/// Within so long of freed space everything must go on.
const SOON: Duration = Duration::from_secs(15);

/// A file system in memory. Dropped, it is gone.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// `None`, and a line that says why, if none can be had.
    fn mount(mib: u32) -> Option<Self> {
        let folder = folder();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "latermq-faults"])
            .arg(folder.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self { folder }),
            Ok(output) => {
                println!("skipped, no file system can be mounted: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("skipped, there is no mount: {error}");
                None
            }
        }
    }

    fn resize(&self, mib: u32) {
        let status = Command::new("mount")
            .args(["-o", &format!("remount,size={mib}m")])
            .arg(self.folder.path())
            .status()
            .unwrap();
        assert!(status.success());
    }

    fn used_percent(&self) -> u64 {
        let stat = statvfs(self.folder.path()).unwrap();
        (stat.f_blocks - stat.f_bfree) * 100 / stat.f_blocks
    }

    /// Takes all space that is left.
    fn fill(&self) -> PathBuf {
        let path = self.folder.path().join("of-somebody-else");
        let mut file = File::create(&path).unwrap();
        let mut bytes = 1 << 20;
        while bytes > 0 {
            if file.write_all(&vec![7; bytes]).is_err() {
                bytes /= 2;
            }
        }
        path
    }

    fn place(&self, logs: &Path) -> Place {
        let store = self.folder.path().join("store");
        let settings = [
            ("storePathRootDir", store.to_str().unwrap()),
            ("messageDelayLevel", LEVELS),
            ("mappedFileSizeCommitLog", SEGMENT_BYTES),
            ("mappedFileSizeConsumeQueue", "20000"),
            ("maxIndexNum", "20000"),
            // Retention would make room for itself; here nothing may be deleted.
            ("diskSpaceWarningLevelRatio", "90"),
        ];
        Place::new(logs, &settings)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

fn message(level: usize, number: usize, name: &str) -> Message {
    Message::new("orders", 0, level, format!("{name}-{level}-{number}")).bytes(20_000)
}

/// Sends one message; gives what a refusal says.
fn try_send(client: &mut Client, ledger: &Ledger, message: &Message) -> Result<(), String> {
    ledger.sending(message);
    match client.send(message) {
        Ok(reply) => {
            ledger.acknowledged(message, reply.queue_offset);
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn send(client: &mut Client, ledger: &Ledger, level: usize, count: usize, name: &str) {
    for number in 0..count {
        try_send(client, ledger, &message(level, number, name)).unwrap();
    }
}

/// Sends until it is refused; gives the refusal.
fn send_until_refused(client: &mut Client, ledger: &Ledger, name: &str) -> String {
    (0..100_000).find_map(|number| try_send(client, ledger, &message(0, number, name)).err()).unwrap()
}

/// Sends until it is taken.
fn send_until_taken(client: &mut Client, ledger: &Ledger, name: &str) {
    let mut number = 0;
    wait_until("sends are taken again", SOON, || {
        number += 1;
        thread::sleep(Duration::from_millis(50));
        try_send(client, ledger, &message(1, number, name)).is_ok()
    });
}

#[test]
fn b01_b110_b111_a_disk_that_fills_up_refuses_sends_delivers_what_waits_and_goes_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount(64) else { return };
    let logs = folder();
    let place = disk.place(logs.path());
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 1).unwrap();
    client.create_group("consumers").unwrap();
    let began = Instant::now();
    send(&mut client, &ledger, 1, 100, "first");
    send(&mut client, &ledger, 2, 100, "second");

    let refusal = send_until_refused(&mut client, &ledger, "filling");

    let path = place.store();
    for part in [" 14: ", path.to_str().unwrap(), "%"] {
        assert!(refusal.contains(part), "{part} does not stand in the refusal: {refusal}");
    }
    // On so small a disk what is kept for those that wait may be the nearer limit; then there is room when they are delivered.
    let is_by_use = refusal.contains("diskSpaceWarningLevelRatio = 90");
    assert!(is_by_use || refusal.contains("bytes are kept for"), "{refusal}");
    assert!(disk.used_percent() <= 97, "{} % are used when sends are refused", disk.used_percent());
    // Nothing but sends is refused.
    let pulled = client.pull("orders", 0, 0, Duration::ZERO).unwrap();
    assert!(!pulled.records.is_empty());
    client.commit("consumers", "orders", 0, 1).unwrap();
    let level_1 = |client: &mut Client| client.figures().unwrap()["delayPending{level=1}"].parse::<f64>().unwrap();
    wait_until("what falls due is delivered", Duration::from_secs(10), || level_1(&mut client) == 0.0);
    let sent = try_send(&mut client, &ledger, &message(0, 0, "still-refused"));
    assert!(sent.is_err() || !is_by_use, "refused before with: {refusal}");

    // Somebody else takes all that is left, until after the rest fell due.
    let filler = disk.fill();
    thread::sleep(Duration::from_millis(9_000).saturating_sub(began.elapsed()));
    client.commit("consumers", "orders", 0, 2).unwrap();
    assert!(!client.pull("orders", 0, 0, Duration::ZERO).unwrap().records.is_empty());
    assert!(try_send(&mut client, &ledger, &message(0, 1, "still-refused")).is_err());

    fs::remove_file(filler).unwrap();
    disk.resize(128);
    send_until_taken(&mut client, &ledger, "after");
    drain(&mut client);
    audit(&mut client, &ledger.copy(), LEVELS).assert_clean("a full disk");
    assert_eq!(client.committed("consumers", "orders", 0).unwrap(), Some(2));
    drop(client);
    let log = serving.stop();
    assert!(!log.contains("panicked"), "{log}");
    let serving = place.start();
    let mut client = serving.client();
    audit(&mut client, &ledger.copy(), LEVELS).assert_clean("after a full disk and a restart");
    assert_eq!(client.committed("consumers", "orders", 0).unwrap(), Some(2));
    drop(client);
    serving.stop();
}

#[test]
fn b110_b111_a_broker_starts_on_a_full_disk_and_takes_sends_once_there_is_room() {
    let Some(disk) = SmallDisk::mount(64) else { return };
    let logs = folder();
    let place = disk.place(logs.path());
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 1).unwrap();
    send(&mut client, &ledger, 0, 20, "before");
    send(&mut client, &ledger, 1, 60, "before");
    drop(client);
    serving.kill();
    let filler = disk.fill();
    assert_eq!(disk.used_percent(), 100);

    let serving = place.start();

    let mut client = serving.client();
    assert!(!client.pull("orders", 0, 0, Duration::ZERO).unwrap().records.is_empty());
    let refusal = try_send(&mut client, &ledger, &message(0, 0, "refused")).unwrap_err();
    assert!(refusal.contains(" 14: ") && refusal.contains(place.store().to_str().unwrap()), "{refusal}");
    // What waits falls due meanwhile.
    thread::sleep(Duration::from_secs(4));
    fs::remove_file(filler).unwrap();
    send_until_taken(&mut client, &ledger, "after");
    drain(&mut client);
    audit(&mut client, &ledger.copy(), LEVELS).assert_clean("a disk that is full at the start");
    drop(client);
    serving.stop();
}

#[test]
fn b01_b111_a_broker_killed_while_a_full_disk_keeps_it_from_writing_queues_starts_and_writes_them_once_there_is_room() {
    let Some(disk) = SmallDisk::mount(64) else { return };
    let logs = folder();
    let place = disk.place(logs.path());
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 3).unwrap();
    send(&mut client, &ledger, 0, 5, "before");
    // No file of their queues is there yet; what was restored there stands in the log alone.
    for number in 0..20 {
        let message = Message::new("orders", 1 + number % 2, 1, format!("waits-{number}")).bytes(2_000);
        try_send(&mut client, &ledger, &message).unwrap();
    }
    let filler = disk.fill();
    let behind = |client: &mut Client| client.figure("queuesBehind").unwrap() > 0.0;
    wait_until("queues cannot be written", Duration::from_secs(10), || behind(&mut client));
    let end = client.figure("commitLogMaxOffset").unwrap() as u64;
    drop(client);
    serving.kill();
    // The segment that was made ahead of its time goes with the start, which would make room.
    for segment in fs::read_dir(place.store().join("commitlog")).unwrap().map(Result::unwrap) {
        if segment.file_name().into_string().unwrap().parse::<u64>().unwrap() >= end {
            fs::remove_file(segment.path()).unwrap();
        }
    }
    disk.fill();

    let serving = place.start();

    let mut client = serving.client();
    assert!(!client.pull("orders", 0, 0, Duration::ZERO).unwrap().records.is_empty());
    let refusal = try_send(&mut client, &ledger, &message(0, 0, "refused")).unwrap_err();
    assert!(refusal.contains(" 14: "), "{refusal}");
    assert!(behind(&mut client));
    thread::sleep(Duration::from_secs(4));
    let log = serving.broker.log();
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("\"ERROR\"")).collect();
    assert!(errors.len() < 10, "each failure is told once, not at each attempt: {errors:#?}");
    fs::remove_file(filler).unwrap();
    wait_until("queues are written", SOON, || !behind(&mut client));
    send_until_taken(&mut client, &ledger, "after");
    drain(&mut client);
    audit(&mut client, &ledger.copy(), LEVELS).assert_clean("killed on a full disk");
    drop(client);
    let log = serving.stop();
    assert!(log.contains("can write a queue or an index again"), "{log}");
}

#[test]
fn b112_retention_keeps_up_with_writes_at_full_speed_and_the_disk_never_fills() {
    let Some(disk) = SmallDisk::mount(64) else { return };
    let logs = folder();
    let mut place = disk.place(logs.path());
    for (key, value) in
        [("diskMaxUsedSpaceRatio", "60"), ("diskSpaceCleanForciblyRatio", "75"), ("fileReservedTime", "0")]
    {
        place.set(key, value);
    }
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    client.create_topic("orders", 1).unwrap();
    send(&mut client, &ledger, 2, 20, "waits");
    let pinned = ledger.copy();
    let (mut most, mut sent, mut refused) = (0, 0, 0);
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        match client.send(&message(0, sent, "filling")) {
            Ok(_) => sent += 1,
            Err(error) => {
                assert!(error.to_string().contains(" 14: "), "{error}");
                refused += 1;
                thread::sleep(Duration::from_millis(5));
            }
        }
        most = most.max(disk.used_percent());
    }
    println!("{sent} messages of 20 kB were taken and {refused} refused; at most {most} % of 64 MiB were used");
    assert!(most < 98, "{most} % were used");
    drain(&mut client);
    let pulled = client.pull("orders", 0, 0, Duration::ZERO).unwrap();
    let mut offset = pulled.next.max(pulled.min);
    let mut arrived = 0;
    while offset < client.max_offset("orders", 0).unwrap() {
        let pulled = client.pull("orders", 0, offset, Duration::ZERO).unwrap();
        // Retention may go on meanwhile: then it goes on at the first message that is left.
        let mut from = if offset < pulled.min { pulled.min } else { offset };
        let first = pulled.records.first().map_or(from, |record| record.view().queue_offset().0.try_into().unwrap());
        if first > from {
            // What was deleted between the look at the range and at the records is passed over; the range follows.
            let min = |client: &mut Client| client.pull("orders", 0, first, Duration::ZERO).unwrap().min;
            wait_until("the queue begins behind what was deleted", SOON, || min(&mut client) >= first);
            from = first;
        }
        for (record, expected) in pulled.records.iter().zip(from..) {
            assert_eq!(record.view().queue_offset().0, u64::try_from(expected).unwrap());
            assert!(record.view().body_is_sound());
            arrived += usize::from(crate::client::key_of(record).starts_with("waits"));
        }
        offset = pulled.next.max(from);
    }
    assert_eq!(arrived, pinned.sent.len(), "what waited while old segments were deleted");
    drop(client);
    serving.stop();
}
