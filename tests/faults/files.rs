//! Every file of a store, one by one: empty, cut, zeroed, overwritten, replaced by a folder, a pipe or a device, gone, unreadable, or that of another broker;
//! alone and together with its `.bak`. The broker starts, names the file, and keeps its promises.
//!
//! By default some files stand for all of their kind; `LATERMQ_FAULTS_ALL=1` takes every file.

use std::{
    collections::BTreeSet,
    env, fs,
    ops::Range,
    os::unix::fs::symlink,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::Duration,
};

use latermq::model::SCHEDULE_TOPIC;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use crate::{
    audit::{Findings, audit, audit_with, delays, drain_to},
    client::{Client, Message, key_of},
    ledger::{Book, Ledger},
    process::{Place, SEGMENT_BYTES, Serving, fast_folder},
};

/// The third level is still waiting when everything is over.
const LEVELS: &str = "1s 2s 1h";
/// Messages on that level.
const HOUR_COUNT: usize = 12;
/// The group that has consumer offsets.
const GROUP: &str = "consumers";
/// Cases that run at the same time; most of a case is waiting.
const WORKERS: usize = 8;
/// What stands in a file that was overwritten.
const JUNK_SEED: u64 = 7;

/// What becomes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Empty,
    Half,
    Zeros,
    Junk,
    Folder,
    Missing,
    /// A link that leads nowhere: the name is taken, and there is nothing to read.
    Unreadable,
    Foreign,
    /// Whoever opens it waits for a writer.
    Pipe,
    /// Whoever reads it comes to no end.
    Endless,
}

const DAMAGES: [Damage; 10] = [
    Damage::Empty,
    Damage::Half,
    Damage::Zeros,
    Damage::Junk,
    Damage::Folder,
    Damage::Missing,
    Damage::Unreadable,
    Damage::Foreign,
    Damage::Pipe,
    Damage::Endless,
];

/// A store as a broker left it.
struct Template {
    folder: TempDir,
    book: Book,
    /// Key and physical range of every record.
    records: Vec<(String, Range<u64>)>,
    consumer_offset: i64,
    is_clean: bool,
}

/// One file, or two, and what becomes of them.
#[derive(Debug, Clone)]
struct Case {
    files: Vec<String>,
    damage: Damage,
}

#[test]
fn b10_b28_b32_b75_b117_whatever_becomes_of_a_file_after_a_clean_stop_the_rest_is_delivered_and_what_is_lost_is_told() {
    run(true);
}

#[test]
fn b10_b28_b32_b75_b117_whatever_becomes_of_a_file_after_signal_9_the_rest_is_delivered_and_what_is_lost_is_told() {
    run(false);
}

fn is_thorough() -> bool {
    env::var_os("LATERMQ_FAULTS_ALL").is_some()
}

/// Files in the root and in `config`: each alone, and with its version before.
fn state_files(template: &Template) -> Vec<Vec<String>> {
    let files = files_below(&template.store(), "");
    let names: BTreeSet<String> =
        files.into_iter().filter(|name| name.starts_with("config/") || !name.contains('/')).collect();
    let alone = names.iter().map(|name| vec![name.clone()]);
    let with_backup = names.iter().filter(|name| names.contains(&format!("{name}.bak")));
    alone.chain(with_backup.map(|name| vec![name.clone(), format!("{name}.bak")])).collect()
}

/// Files of queues and index: the first and the last of each folder, or all.
fn derived_files(template: &Template) -> Vec<Vec<String>> {
    let store = template.store();
    let mut files: Vec<String> = files_below(&store, "index");
    for folder in [format!("{SCHEDULE_TOPIC}/0"), format!("{SCHEDULE_TOPIC}/2"), "orders/0".into()] {
        let of_queue = files_below(&store, &format!("consumequeue/{folder}"));
        files.extend(of_queue.first().into_iter().chain(of_queue.last()).cloned());
    }
    if is_thorough() {
        files = files_below(&store, "consumequeue");
        files.extend(files_below(&store, "index"));
    }
    files.dedup();
    files.into_iter().map(|file| vec![file]).collect()
}

fn segments(template: &Template) -> Vec<Vec<String>> {
    files_below(&template.store(), "commitlog").into_iter().map(|file| vec![file]).collect()
}

/// What becomes of files: not everything of a version before, which is rarely read, nor of what a kill left, which is read the same way.
fn damages(files: &[String], clean: bool) -> Vec<Damage> {
    let of_few = match (clean, files[0].ends_with(".bak")) {
        (_, true) => vec![Damage::Junk, Damage::Folder],
        (false, _) => vec![Damage::Zeros, Damage::Junk, Damage::Folder, Damage::Missing],
        (true, _) => DAMAGES.to_vec(),
    };
    if is_thorough() { DAMAGES.to_vec() } else { of_few }
}

fn run(clean: bool) {
    let (template, other) = thread::scope(|scope| {
        let other = scope.spawn(|| Template::build("elsewhere", clean));
        (Template::build("here", clean), other.join().unwrap())
    });
    let mut cases = Vec::new();
    let files = [state_files(&template), derived_files(&template), segments(&template)].concat();
    for files in files {
        for damage in damages(&files, clean) {
            // A segment of another broker of the same place bears no mark by which it could be told from our own.
            let is_mistakable =
                files.iter().all(|file| other.store().join(file).exists() && !file.starts_with("commitlog/"));
            if damage != Damage::Foreign || is_mistakable {
                cases.push(Case { files: files.clone(), damage });
            }
        }
    }
    let wanted = env::var("LATERMQ_FAULTS_CASE").ok();
    cases.retain(|case| wanted.as_ref().is_none_or(|wanted| format!("{case:?}").contains(wanted)));
    let count = cases.len();
    let cases = Mutex::new(cases);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let Some(case) = cases.lock().unwrap().pop() else { return };
                    let checked = catch_unwind(AssertUnwindSafe(|| check(&template, &other, &case)));
                    if let Err(panic) = checked {
                        let text = panic.downcast_ref::<String>().cloned();
                        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                        failures.lock().unwrap().push(format!("{case:?}: {}", text.unwrap_or_default()));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {count} cases failed:\n{}", failures.len(), failures.join("\n\n"));
}

impl Template {
    /// A store with everything in it: delivered and waiting messages, on all levels, retries, topics, groups and consumer offsets.
    fn build(name: &str, clean: bool) -> Self {
        let folder = fast_folder();
        let place = place_in(folder.path());
        let serving = place.start();
        let mut client = serving.client();
        let ledger = Ledger::default();
        let send = |client: &mut Client, level: usize, count: usize, bytes: usize, what: &str| {
            for number in 0..count {
                let queue_id = i32::try_from(number % 2).unwrap();
                let message = Message::new("orders", queue_id, level, format!("{name}-{what}-{number}")).bytes(bytes);
                ledger.sending(&message);
                let reply = client.send(&message).unwrap();
                ledger.acknowledged(&message, reply.queue_offset);
            }
        };
        client.create_topic("orders", 2).unwrap();
        client.create_group(GROUP).unwrap();
        send(&mut client, 1, 15, 200, "delivered");
        send(&mut client, 0, 12, 15_000, "plain");
        send(&mut client, 3, HOUR_COUNT / 2, 200, "hour");
        drain_to(&mut client, HOUR_COUNT as u64 / 2);
        let given_back = client.pull("orders", 0, 0, Duration::ZERO).unwrap().records;
        let consumer_offset = 5;
        // Each state file is saved twice, so that it has a version before.
        for number in 0..2 {
            client.create_topic(&format!("made-{number}"), 1).unwrap();
            client.create_group(&format!("made-group-{number}")).unwrap();
            client.commit(GROUP, "orders", 0, consumer_offset - 1 + number).unwrap();
            thread::sleep(Duration::from_millis(400));
        }
        // From here on until the stop within a second, so that all of this waits.
        for record in given_back.iter().take(3) {
            let (key, position) = (key_of(record), record.view().physical_offset().0);
            assert!(ledger.giving_back(GROUP, &key, record.view().body().len(), 2));
            client.send_back(GROUP, position, 2).unwrap();
            ledger.given_back(GROUP, &key);
        }
        send(&mut client, 1, 25, 200, "one");
        send(&mut client, 2, 25, 6_000, "two");
        send(&mut client, 3, HOUR_COUNT - HOUR_COUNT / 2, 200, "more-hours");
        let end = client.figure("commitLogMaxOffset").unwrap() as u64;
        drop(client);
        if clean {
            serving.stop();
        } else {
            serving.kill();
        }

        let mut template = Self { folder, book: ledger.copy(), records: Vec::new(), consumer_offset, is_clean: clean };
        // Where each record lies is read from a copy.
        let copy = Copy::of(&template);
        let serving = copy.place.start();
        let mut client = serving.client();
        drain_to(&mut client, HOUR_COUNT as u64);
        audit(&mut client, &template.book, LEVELS).assert_clean("an undamaged copy");
        let ours = [("orders".to_owned(), 2), (SCHEDULE_TOPIC.to_owned(), 3), (format!("%RETRY%{GROUP}"), 1)];
        for (topic, queues) in ours {
            for queue_id in 0..queues {
                for record in client.read_all(&topic, queue_id).unwrap() {
                    let view = record.view();
                    // What was delivered after a kill is not in the template.
                    if clean || view.end().0 <= end {
                        template.records.push((key_of(&record), view.physical_offset().0..view.end().0));
                    }
                }
            }
        }
        template
    }

    fn store(&self) -> PathBuf {
        place_in(self.folder.path()).store()
    }

    /// Keys that have a record in a part of the log.
    fn touched(&self, part: &Range<u64>) -> BTreeSet<&str> {
        let touched = self.records.iter().filter(|(_, range)| range.start < part.end && range.end > part.start);
        touched.map(|(key, _)| key.as_str()).collect()
    }
}

fn place_in(folder: &Path) -> Place {
    let settings = [
        ("messageDelayLevel", LEVELS),
        ("mappedFileSizeConsumeQueue", "200"),
        ("flushConsumerOffsetInterval", "50"),
        // What lies in a lost part of the log is given up soon.
        ("parkAfter", "300"),
    ];
    Place::new(folder, &settings)
}

/// A copy of a store, to be damaged.
struct Copy {
    _folder: TempDir,
    place: Place,
}

impl Copy {
    fn of(template: &Template) -> Self {
        let folder = fast_folder();
        let place = place_in(folder.path());
        copy(&template.store(), &place.store());
        Self { _folder: folder, place }
    }
}

/// Does one case.
fn check(template: &Template, other: &Template, case: &Case) {
    let copy = Copy::of(template);
    let store = copy.place.store();
    for file in &case.files {
        damage(&store.join(file), case.damage, &other.store().join(file));
    }
    let serving = copy.place.start();
    let mut client = serving.client();

    let is_segment = case.files[0].starts_with("commitlog/");
    if is_segment {
        check_beside_loss(template, case, &mut client);
    } else {
        drain_to(&mut client, HOUR_COUNT as u64);
        let findings = audit(&mut client, &template.book, LEVELS);
        findings.assert_clean("a file beside the log");
    }
    check_state(template, case, &mut client);
    let log = serving.broker.log();
    check_log(template, case, &log);

    // What changes from now on is kept.
    let max = client.max_offset("orders", 1).unwrap();
    client.create_group("latecomers").unwrap();
    client.commit("latecomers", "orders", 1, max).unwrap();
    client.create_topic("made-late", 1).unwrap();
    let late = Message::new("orders", 1, 1, "late");
    client.send(&late).unwrap();
    drop(client);
    serving.stop();
    if case.files[0].contains("config/") || is_segment {
        let serving: Serving = copy.place.start();
        let mut client = serving.client();
        assert_eq!(client.committed("latecomers", "orders", 1).unwrap(), Some(max), "an offset after a second start");
        assert!(client.topics().unwrap().contains_key("made-late"), "a topic after a second start");
        drain_to(&mut client, client_pending_floor(&serving));
        let arrived = client.read_all("orders", 1).unwrap();
        assert_eq!(
            arrived.iter().filter(|record| key_of(record) == "late").count(),
            1,
            "a message after a second start"
        );
        drop(client);
        serving.stop();
    }
}

/// What waits for an hour, whatever was lost of it.
fn client_pending_floor(serving: &Serving) -> u64 {
    serving.client().figures().unwrap()["delayPending{level=3}"].parse::<f64>().unwrap() as u64
}

/// A part of the log is gone: what lies elsewhere arrives, once, in time and in order.
fn check_beside_loss(template: &Template, case: &Case, client: &mut Client) {
    let touched = template.touched(&part_of_log(case));
    let mut book = template.book.clone();
    book.sent.retain(|(_, key), sent| !touched.contains(key.as_str()) || !sent.acknowledged);
    // Where messages before it are missing, a message has another offset than was answered only if it was given again.
    book.sent.values_mut().for_each(|sent| sent.queue_offset = None);
    let hours = template.book.sent.values().filter(|sent| sent.message.level == 3);
    let hours = hours.filter(|sent| !touched.contains(sent.message.key.as_str())).count();
    let due = |client: &mut Client| {
        let figures = client.figures().unwrap();
        let pending = |level: u32| figures[&format!("delayPending{{level={level}}}")].parse::<f64>().unwrap() as u64;
        (pending(1) + pending(2), pending(3))
    };
    crate::process::wait_until("all that is due is delivered", Duration::from_secs(20), || due(client).0 == 0);
    assert!(due(client).1 >= hours as u64, "{} of {hours} or more wait for an hour", due(client).1);
    let topics = client.topics().unwrap();
    let findings = audit_with(&book, &delays(LEVELS), &topics, |topic, queue_id| {
        client.read_all(topic, queue_id).unwrap_or_default()
    });
    let Findings { lost, early, twice, out_of_order, .. } = &findings;
    let kept = lost.is_empty() && early.is_empty() && twice.is_empty() && out_of_order.is_empty();
    assert!(kept, "beside the loss: {findings}");
}

/// Topics, groups and consumer offsets are those of the file, or of its version before.
fn check_state(template: &Template, case: &Case, client: &mut Client) {
    let both = case.files.len() > 1;
    let topics = client.topics().unwrap();
    assert!(topics.contains_key("orders"), "{topics:?}");
    let concerns = |name: &str| case.files[0].contains(name);
    if !(concerns("topics.json") && (both || case.damage == Damage::Foreign)) {
        assert!(topics.contains_key("made-0"), "{topics:?}");
    }
    if !(concerns("subscriptionGroup.json") && (both || case.damage == Damage::Foreign)) {
        assert!(client.groups().unwrap().contains(&"made-group-0".to_owned()));
    }
    let max = client.max_offset("orders", 0).unwrap();
    let found = client.committed(GROUP, "orders", 0).unwrap();
    let last = template.consumer_offset;
    assert!(found.is_none_or(|found| found <= last.min(max)), "a consumer offset of {found:?}, {last} were committed");
    if !concerns("consumerOffset.json") && !concerns("commitlog/") {
        assert_eq!(found, Some(last));
    } else if !both && !concerns("commitlog/") {
        assert!(found >= Some(last - 1), "the version before said {}, found {found:?}", last - 1);
    }
}

/// The log names what was found, unless nothing in it matters.
fn check_log(template: &Template, case: &Case, log: &str) {
    let file = &case.files[0];
    let name = file.rsplit('/').next().unwrap();
    let (is_queue, is_segment) = (file.starts_with("consumequeue/"), file.starts_with("commitlog/"));
    let is_half = case.damage == Damage::Half;
    let is_gone = [Damage::Missing, Damage::Unreadable].contains(&case.damage);
    // Nobody reads what stands in these, and the version before is read only if it is needed.
    let is_idle = ["lock", "abort"].contains(&name) || name.ends_with(".bak");
    // What it says is as good as before, or all that counts is in its first half.
    let is_no_loss = case.damage == Damage::Foreign
        || (case.damage == Damage::Missing && file.starts_with("index/"))
        || (is_half && file == "checkpoint");
    // What was written after the last checkpoint is written anew after a kill, and a segment ahead of its time holds nothing.
    let is_anew = is_queue && !template.is_clean;
    let is_spare = is_segment && template.touched(&part_of_log(case)).is_empty();
    // After a kill nothing says that the newest segment held something, if none of it is left.
    let is_end = is_segment
        && !template.is_clean
        && template.records.iter().all(|(_, range)| range.end <= part_of_log(case).end);
    if is_idle || is_no_loss || is_anew || is_spare || is_end {
        return;
    }
    let numbers = is_segment.then(|| [part_of_log(case).start, base_of(file)]);
    let is_told = log.lines().any(|line| {
        let is_loud = line.contains("\"level\":\"WARN\"") || line.contains("\"level\":\"ERROR\"");
        let says = |number: u64| line.contains(&format!(":{number},")) || line.contains(&format!(":\"{number}\""));
        let names_it = line.contains(file.as_str()) || numbers.is_some_and(|numbers| numbers.into_iter().any(says));
        // That a file never was is as likely as that it was lost with its version before, or at the end of a queue.
        let is_absent = is_gone && line.contains("state file absent");
        let is_deleted = file.starts_with("index/") && line.contains("index file deleted");
        let is_short = case.damage == Damage::Missing && is_queue && line.contains("not those of the checkpoint");
        names_it && (is_loud || is_absent || is_deleted) || is_short
    });
    assert!(is_told, "the log does not name it:\n{log}");
}

fn base_of(segment: &str) -> u64 {
    segment.rsplit('/').next().unwrap().parse().unwrap()
}

/// The part of the log that a case destroys.
fn part_of_log(case: &Case) -> Range<u64> {
    let base = base_of(&case.files[0]);
    let from = if case.damage == Damage::Half { base + SEGMENT_BYTES / 2 } else { base };
    from..base + SEGMENT_BYTES
}

fn damage(file: &Path, damage: Damage, other: &Path) {
    let bytes = fs::read(file).unwrap();
    fs::remove_file(file).unwrap();
    match damage {
        Damage::Empty => fs::write(file, b"").unwrap(),
        Damage::Half => fs::write(file, &bytes[..bytes.len() / 2]).unwrap(),
        Damage::Zeros => fs::write(file, vec![0; bytes.len().max(1)]).unwrap(),
        Damage::Junk => {
            let mut rng = fastrand::Rng::with_seed(JUNK_SEED);
            let junk: Vec<u8> = bytes.iter().map(|_| rng.u8(..)).collect();
            fs::write(file, junk).unwrap();
        }
        Damage::Folder => {
            fs::create_dir(file).unwrap();
            fs::write(file.join("of-another-kind"), b"x").unwrap();
        }
        Damage::Missing => {}
        Damage::Unreadable => symlink("/nonexistent/nowhere", file).unwrap(),
        Damage::Foreign => {
            fs::copy(other, file).unwrap();
        }
        Damage::Pipe => mknodat(CWD, file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
        Damage::Endless => symlink("/dev/zero", file).unwrap(),
    }
}

/// The files below a folder of a store, by their path in the store, sorted.
pub(crate) fn files_below(store: &Path, folder: &str) -> Vec<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(store.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if entry.file_type().unwrap().is_dir() {
            files.extend(files_below(store, &path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Copies a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in files_below(from, "") {
        let to = to.join(&file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from.join(&file), to).unwrap();
    }
}
