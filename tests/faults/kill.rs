//! SIGKILL at random instants, again and again: under load, in the middle of a burst of deliveries, of a start, of a segment roll, of a save
//! of the configuration, of a clean stop. After each the broker is started again; at the end of a life everything must have arrived once.
//!
//! `LATERMQ_FAULTS_ROUNDS` says how many kills there are, `LATERMQ_FAULTS_SEED` what they are drawn from.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    net::SocketAddr,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use latermq::protocol::{ResponseCode, body, header::SendReplyHeader, json};
use rustix::process::Signal;

use crate::{
    audit::{audit, drain},
    client::{Client, Message, key_of},
    ledger::Ledger,
    process::{BODY_BYTES_MAX, LEVELS, Place, Serving, folder},
};

/// Kills if nobody says how many.
const ROUNDS: u32 = 50;
/// Kills of one store, until it is drained and audited and another one begins.
const LIFE_ROUNDS: u32 = 25;
/// The topics that are sent to, with their queues.
const TOPICS: [(&str, i32); 2] = [("orders", 4), ("payments", 2)];
/// The group whose consumer offsets are checked.
const GROUP: &str = "consumers";
/// How old a committed consumer offset may be after a kill: `flushConsumerOffsetInterval`, and what a busy machine may take to save it.
const COMMIT_AGE_MAX: Duration = Duration::from_millis(100 + 1500);
/// Pause between two looks at a folder that is watched.
const LOOK: Duration = Duration::from_micros(300);

#[test]
fn b26_kills_at_random_instants_lose_repeat_and_hasten_nothing_under_async_flush() {
    run("ASYNC_FLUSH", 0);
}

#[test]
fn b26_kills_at_random_instants_lose_repeat_and_hasten_nothing_under_sync_flush() {
    run("SYNC_FLUSH", 1);
}

/// What the producers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// Nothing.
    Quiet,
    /// Singles and batches, small and big, on all levels and none.
    Mixed,
    /// Big bodies, so that segments fill up.
    Big,
    /// As much as possible on the levels of a second.
    Burst,
    /// Topics, groups and consumer offsets.
    Settings,
}

/// When the broker is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    UnderLoad,
    InDelivery,
    InStart,
    InRoll,
    InSave,
    InStop,
    /// It is not killed, but stops cleanly.
    Clean,
}

const MOMENTS: [Moment; 9] = [
    Moment::UnderLoad,
    Moment::UnderLoad,
    Moment::InDelivery,
    Moment::InStart,
    Moment::InStart,
    Moment::InRoll,
    Moment::InSave,
    Moment::InStop,
    Moment::Clean,
];

/// What all threads of a life share.
#[derive(Default)]
struct World {
    /// Where the broker is; none while it is down.
    address: Mutex<Option<SocketAddr>>,
    mood: AtomicU8,
    ended: AtomicBool,
    /// Number of the start that the commits below belong to.
    starts: AtomicU32,
    ledger: Ledger,
    commits: Mutex<BTreeMap<(String, i32), Commits>>,
    /// Topics and groups that were made: whether they must be there; nothing if nobody knows.
    topics: Mutex<BTreeMap<String, Option<bool>>>,
    groups: Mutex<BTreeSet<String>>,
    /// State files that were seen.
    state_files: Mutex<BTreeSet<&'static str>>,
}

/// The commits of a consumer offset since the last start.
#[derive(Debug, Default, Clone)]
struct Commits {
    /// What the broker said after its last start.
    found: Option<i64>,
    /// When a commit was answered, and its offset.
    answered: Vec<(Instant, i64)>,
    /// The last that was asked for, answered or not.
    asked: Option<i64>,
}

fn run(flush: &str, half: u32) {
    let rounds: u32 = env::var("LATERMQ_FAULTS_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let seed: u64 = env::var("LATERMQ_FAULTS_SEED").map_or(1, |seed| seed.parse().unwrap());
    let rounds = rounds.div_ceil(2);
    let (mut acknowledged, mut delayed, mut done) = (0, 0, 0);
    while done < rounds {
        let life_seed = seed.wrapping_mul(1_000_003) + u64::from(done) * 2 + u64::from(half);
        let kills = LIFE_ROUNDS.min(rounds - done);
        let (life_acknowledged, life_delayed) = live(flush, kills, life_seed);
        acknowledged += life_acknowledged;
        delayed += life_delayed;
        done += kills;
        println!(
            "{flush}: {done} of {rounds} kills, {acknowledged} messages acknowledged, {delayed} of them delayed: 0 lost, 0 early, 0 twice, 0 out of order"
        );
    }
}

/// One store from its beginning to its audit.
fn live(flush: &str, kills: u32, seed: u64) -> (usize, usize) {
    let folder = folder();
    let place = Place::new(folder.path(), &[("flushDiskType", flush)]);
    let world = &World::default();
    let mut rng = fastrand::Rng::with_seed(seed);
    let what = format!("seed {seed} under {flush}");
    let mut story = Vec::new();

    let serving = thread::scope(|scope| {
        let _ended = EndOnDrop(world);
        for number in 0..3 {
            let seed = rng.u64(..);
            scope.spawn(move || produce(world, number, seed));
        }
        let (consumer_seed, settings_seed) = (rng.u64(..), rng.u64(..));
        scope.spawn(move || consume(world, consumer_seed));
        scope.spawn(move || change_settings(world, settings_seed));

        let mut serving = place.start();
        let mut start_took = serving.started_in;
        let mut done = 0;
        while done < kills {
            *world.address.lock().unwrap() = Some(serving.address);
            let instant = MOMENTS[rng.usize(..MOMENTS.len())];
            story.push(instant);
            let what = format!("{what}, after {story:?}");
            let spared = instant == Moment::Clean;
            let began = Instant::now();
            let mut ended_at = disturb(world, &place, serving, instant, &mut rng);
            check_state_files(world, &place.store(), &what);
            done += u32::from(!spared);
            if instant == Moment::InStart {
                for _ in 0..rng.u32(1..4) {
                    let broker = place.spawn();
                    thread::sleep(start_took.mul_f32(rng.f32() * 1.3));
                    broker.kill_if_running();
                    check_state_files(world, &place.store(), &what);
                    done += 1;
                }
                ended_at = ended_at.min(Instant::now());
            }
            serving = place.start();
            start_took = serving.started_in;
            check_after_start(world, &mut serving.client(), ended_at, spared, &what);
            if env::var_os("LATERMQ_FAULTS_TRACE").is_some() {
                println!("{instant:?} in {:?}, start in {start_took:?}", began.elapsed());
            }
        }
        *world.address.lock().unwrap() = Some(serving.address);
        serving
    });

    let mut client = serving.client();
    drain(&mut client);
    let findings = audit(&mut client, &world.ledger.copy(), LEVELS);
    findings.assert_clean(&what);
    for counter in ["delaySkipped", "delayNotWaiting", "damagedBytes"] {
        assert_eq!(client.figure(counter).unwrap(), 0.0, "{counter}, {what}");
    }
    assert!(findings.delayed > 0, "{what}: nothing was sent");
    let maxima: Vec<i64> = (0..18).map(|queue| client.max_offset("SCHEDULE_TOPIC_XXXX", queue).unwrap_or(0)).collect();
    drop(client);
    serving.stop();
    let progress = progress(&place.store());
    let expected: BTreeMap<i32, i64> = (1..).zip(maxima).filter(|(_, max)| *max > 0).collect();
    assert_eq!(progress, expected, "delayOffset.json after the end, {what}");
    (findings.acknowledged, findings.delayed)
}

/// Ends the threads of a life, also when it fails.
struct EndOnDrop<'a>(&'a World);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::SeqCst);
    }
}

/// Lets the broker work, and ends it at the chosen instant. Gives the time from which on it did not work.
fn disturb(world: &World, place: &Place, serving: Serving, instant: Moment, rng: &mut fastrand::Rng) -> Instant {
    let Serving { broker, .. } = serving;
    let pause = |ms: std::ops::Range<u64>, rng: &mut fastrand::Rng| thread::sleep(Duration::from_millis(rng.u64(ms)));
    match instant {
        Moment::UnderLoad => {
            world.set_mood(Mood::Mixed);
            pause(10..900, rng);
        }
        Moment::InDelivery => {
            world.set_mood(Mood::Burst);
            let began = Instant::now();
            pause(100..200, rng);
            world.set_mood(Mood::Mixed);
            let due = Duration::from_secs(1).saturating_sub(began.elapsed());
            thread::sleep(due + Duration::from_millis(rng.u64(0..250)));
        }
        Moment::InStart => {
            world.set_mood(Mood::Mixed);
            pause(10..300, rng);
        }
        Moment::InRoll => {
            world.set_mood(Mood::Big);
            pause(50..150, rng);
            let before = entries(&place.store().join("commitlog"));
            watch(|| entries(&place.store().join("commitlog")) != before);
            thread::sleep(Duration::from_micros(rng.u64(0..3000)));
        }
        Moment::InSave => {
            world.set_mood(Mood::Settings);
            pause(50..250, rng);
            let folder = place.store().join("config");
            let before = entries(&folder);
            watch(|| entries(&folder) != before);
            thread::sleep(Duration::from_micros(rng.u64(0..1000)));
        }
        Moment::InStop => {
            world.set_mood(Mood::Mixed);
            pause(50..400, rng);
            *world.address.lock().unwrap() = None;
            broker.signal(Signal::TERM);
            let asked_at = Instant::now();
            pause(0..650, rng);
            broker.kill_if_running();
            return asked_at;
        }
        Moment::Clean => {
            world.set_mood(Mood::Mixed);
            pause(50..400, rng);
            *world.address.lock().unwrap() = None;
            broker.stop();
            return Instant::now();
        }
    }
    let killed_at = Instant::now();
    broker.kill();
    *world.address.lock().unwrap() = None;
    killed_at
}

/// Waits until something happens, but not for long.
fn watch(mut happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happened() && began.elapsed() < Duration::from_secs(1) {
        thread::sleep(LOOK);
    }
}

/// Names in a folder, with the time of their last change.
fn entries(folder: &Path) -> Vec<(std::ffi::OsString, Option<std::time::SystemTime>)> {
    let is_log = folder.ends_with("commitlog");
    let entries = fs::read_dir(folder).unwrap().map_while(Result::ok);
    let mut entries: Vec<_> = entries
        .map(|entry| {
            let changed = entry.metadata().ok().and_then(|metadata| metadata.modified().ok());
            (entry.file_name(), changed.filter(|_| !is_log))
        })
        .collect();
    entries.sort();
    entries
}

/// At every instant each state file that ever was, or else its version before, is there and can be read (B11).
fn check_state_files(world: &World, store: &Path, what: &str) {
    for name in ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"] {
        let path = store.join("config").join(name);
        let backup = store.join("config").join(format!("{name}.bak"));
        let is_whole = |path: &Path| {
            let bytes = fs::read(path).unwrap();
            json::from_slice::<serde_json::Value>(&bytes).is_ok_and(|value| value.is_object())
        };
        for path in [&path, &backup] {
            assert!(!path.exists() || is_whole(path), "{} is no JSON, {what}", path.display());
        }
        let mut known = world.state_files.lock().unwrap();
        let is_there = path.exists() || backup.exists();
        assert!(is_there || !known.contains(name), "{name} is gone, {what}");
        if is_there {
            known.insert(name);
        }
    }
}

/// What must hold as soon as the broker serves again.
fn check_after_start(world: &World, client: &mut Client, ended_at: Instant, was_clean: bool, what: &str) {
    let topics = client.topics().unwrap();
    for (topic, must_be) in &*world.topics.lock().unwrap() {
        if let Some(must_be) = must_be {
            assert_eq!(topics.contains_key(topic), *must_be, "whether there is a topic {topic}, {what}");
        }
    }
    let groups: BTreeSet<String> = client.groups().unwrap().into_iter().collect();
    let missing: Vec<_> = world.groups.lock().unwrap().difference(&groups).cloned().collect();
    assert!(missing.is_empty(), "groups {missing:?} are gone, {what}");

    let mut all_commits = world.commits.lock().unwrap();
    world.starts.fetch_add(1, Ordering::SeqCst);
    for ((topic, queue_id), commits) in &mut *all_commits {
        let found = client.committed(GROUP, topic, *queue_id).unwrap();
        let max = client.max_offset(topic, *queue_id).unwrap();
        let what = || format!("consumer offset of {topic} {queue_id}: {found:?} of {max}, {commits:?}, {what}");
        assert!(found.is_none_or(|found| (0..=max).contains(&found)), "beyond the queue: {}", what());
        assert!(found <= commits.asked.max(commits.found), "never committed: {}", what());
        let old_enough = |at: &Instant| was_clean || *at + COMMIT_AGE_MAX < ended_at;
        let sure = commits.answered.iter().rev().find(|(at, _)| old_enough(at)).map(|(_, offset)| *offset);
        assert!(found >= sure.max(commits.found), "an older one than may be: {}", what());
        *commits = Commits { found, answered: Vec::new(), asked: found };
    }
}

/// The offsets of `delayOffset.json`.
pub(crate) fn progress(store: &Path) -> BTreeMap<i32, i64> {
    let bytes = fs::read(store.join("config/delayOffset.json")).unwrap();
    json::from_slice::<body::DelayOffsets>(&bytes).unwrap().offset_table
}

impl World {
    fn set_mood(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::SeqCst);
    }

    fn mood(&self) -> Mood {
        let mood = self.mood.load(Ordering::SeqCst);
        let all = [Mood::Quiet, Mood::Mixed, Mood::Big, Mood::Burst, Mood::Settings];
        all.into_iter().find(|known| *known as u8 == mood).unwrap()
    }

    /// Notes something about the commits since a start; those since an earlier one were judged already.
    fn note_commit(&self, start: u32, queue: &(String, i32), note: impl FnOnce(&mut Commits)) {
        let mut commits = self.commits.lock().unwrap();
        if start == self.starts.load(Ordering::SeqCst) {
            note(commits.entry(queue.clone()).or_default());
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Works on one connection after the other until the life ends. `work` does one step.
    fn with_connections(&self, mut work: impl FnMut(&mut Client, bool) -> io::Result<()>) {
        while !self.has_ended() {
            let address = *self.address.lock().unwrap();
            let Some(Ok(mut client)) = address.map(Client::connect) else {
                thread::sleep(Duration::from_millis(3));
                continue;
            };
            let mut is_new = true;
            while !self.has_ended() && work(&mut client, is_new).is_ok() {
                is_new = false;
            }
        }
    }
}

/// A producer.
fn produce(world: &World, number: u32, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut count = 0;
    let mut next = |rng: &mut fastrand::Rng, level: usize, bytes: usize| {
        count += 1;
        let (topic, queues) = TOPICS[rng.usize(..TOPICS.len())];
        Message::new(topic, rng.i32(0..queues), level, format!("{number}-{count}")).bytes(bytes)
    };
    world.with_connections(|client, _| {
        let mood = world.mood();
        // Small enough for the machine, and for the audit at the end.
        let pause = match mood {
            Mood::Quiet => 10,
            Mood::Mixed => rng.u64(0..12),
            Mood::Big => rng.u64(0..4),
            Mood::Burst => 2,
            Mood::Settings => 20,
        };
        thread::sleep(Duration::from_millis(pause));
        let big = |rng: &mut fastrand::Rng| rng.usize(BODY_BYTES_MAX / 4..=BODY_BYTES_MAX);
        let any_level = |rng: &mut fastrand::Rng| if rng.u8(..4) == 0 { 0 } else { rng.usize(1..=18) };
        match (mood, rng.u8(..10)) {
            (Mood::Quiet, _) => Ok(()),
            (Mood::Big, _) | (_, 0) => {
                let (level, bytes) = (any_level(&mut rng), big(&mut rng));
                send(world, client, &[next(&mut rng, level, bytes)])
            }
            (Mood::Burst, _) => {
                let messages: Vec<_> = (0..16).map(|_| next(&mut rng, 1, 50)).collect();
                send(world, client, &messages)
            }
            (_, 1) => {
                let mut messages: Vec<_> = (0..8).map(|_| next(&mut rng, 0, 80)).collect();
                let first = messages[0].clone();
                for message in &mut messages {
                    (message.topic, message.queue_id) = (first.topic.clone(), first.queue_id);
                }
                send_batch(world, client, &messages)
            }
            (_, 2 | 3) => {
                let messages: Vec<_> = (0..8).map(|_| (any_level(&mut rng), rng.usize(1..1000))).collect();
                let messages: Vec<_> =
                    messages.into_iter().map(|(level, bytes)| next(&mut rng, level, bytes)).collect();
                send(world, client, &messages)
            }
            _ => {
                let (level, bytes) = (any_level(&mut rng), rng.usize(1..2000));
                send(world, client, &[next(&mut rng, level, bytes)])
            }
        }
    });
}

/// Sends messages without waiting for the answers of those before.
fn send(world: &World, client: &mut Client, messages: &[Message]) -> io::Result<()> {
    let mut asked = BTreeMap::new();
    for message in messages {
        world.ledger.sending(message);
        asked.insert(client.ask(message.request())?, message);
    }
    for _ in messages {
        let answer = client.answer()?;
        let message = asked[&answer.opaque];
        match answer.code {
            ResponseCode::SUCCESS => {
                let reply = SendReplyHeader::decode(&answer.ext).unwrap();
                world.ledger.acknowledged(message, reply.queue_offset);
            }
            // It is about to stop.
            ResponseCode::GO_AWAY | ResponseCode::SERVICE_NOT_AVAILABLE => {}
            code => panic!("{message:?} was answered with {code}: {:?}", answer.remark),
        }
    }
    Ok(())
}

fn send_batch(world: &World, client: &mut Client, messages: &[Message]) -> io::Result<()> {
    for message in messages {
        world.ledger.sending(message);
    }
    let answer = client.call(Message::batch_request(messages))?;
    match answer.code {
        ResponseCode::SUCCESS => {
            let first = SendReplyHeader::decode(&answer.ext).unwrap().queue_offset;
            for (message, queue_offset) in messages.iter().zip(first..) {
                world.ledger.acknowledged(message, queue_offset);
            }
        }
        ResponseCode::GO_AWAY | ResponseCode::SERVICE_NOT_AVAILABLE => {}
        code => panic!("a batch was answered with {code}: {:?}", answer.remark),
    }
    Ok(())
}

/// A consumer: pulls all queues, commits what it saw, and gives some messages back.
fn consume(world: &World, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let retry = format!("%RETRY%{GROUP}");
    let queues: Vec<(String, i32)> = TOPICS
        .iter()
        .flat_map(|(topic, queues)| (0..*queues).map(|queue_id| ((*topic).to_owned(), queue_id)))
        .chain([(retry.clone(), 0)])
        .collect();
    let mut offsets: BTreeMap<(String, i32), i64> = BTreeMap::new();
    let mut start = 0;
    world.with_connections(|client, is_new| {
        if is_new {
            offsets.clear();
            start = world.starts.load(Ordering::SeqCst);
            client.create_group(GROUP)?;
        }
        let mut found_any = false;
        for queue in &queues {
            let (topic, queue_id) = (queue.0.as_str(), queue.1);
            let offset = match offsets.get(queue) {
                Some(offset) => *offset,
                None => client.committed(GROUP, topic, queue_id)?.unwrap_or(0),
            };
            let hold = Duration::from_millis(if rng.u8(..8) == 0 { 20 } else { 0 });
            let pulled = match client.pull(topic, queue_id, offset, hold) {
                // The topic is not there yet, or the broker is about to stop.
                Err(error) if error.kind() == io::ErrorKind::Other => continue,
                pulled => pulled?,
            };
            offsets.insert(queue.clone(), pulled.next.max(offset));
            if pulled.records.is_empty() {
                continue;
            }
            found_any = true;
            world.ledger.saw(&pulled.records);
            let record = &pulled.records[0];
            let (key, bytes, level) = (key_of(record), record.view().body().len(), rng.usize(1..=18));
            if rng.u8(..6) == 0 && topic != retry && world.ledger.giving_back(GROUP, &key, bytes, level) {
                let position = record.view().physical_offset().0;
                match client.send_back(GROUP, position, i32::try_from(level).unwrap()) {
                    Err(error) if error.kind() == io::ErrorKind::Other => {}
                    answered => answered.map(|()| world.ledger.given_back(GROUP, &key))?,
                }
            }
            world.note_commit(start, queue, |commits| commits.asked = Some(pulled.next));
            match client.commit(GROUP, topic, queue_id, pulled.next) {
                Err(error) if error.kind() == io::ErrorKind::Other => {}
                answered => {
                    answered?;
                    world.note_commit(start, queue, |commits| commits.answered.push((Instant::now(), pulled.next)));
                }
            }
        }
        if !found_any {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    });
}

/// Makes topics and groups, deletes topics, and commits for many groups.
fn change_settings(world: &World, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut count = 0;
    world.with_connections(|client, _| {
        thread::sleep(Duration::from_millis(if world.mood() == Mood::Settings { 1 } else { 60 }));
        if world.mood() == Mood::Quiet {
            return Ok(());
        }
        count += 1;
        let topic = format!("made-{count}");
        let known = |state: Option<bool>| world.topics.lock().unwrap().insert(topic.clone(), state);
        known(None);
        let made = client.create_topic(&topic, 1);
        if made.is_ok() {
            known(Some(true));
            if rng.bool() {
                known(None);
                if client.delete_topic(&topic).is_ok() {
                    known(Some(false));
                }
            }
        }
        if rng.u8(..4) == 0 {
            let group = format!("group-{count}");
            if client.create_group(&group).is_ok() {
                world.groups.lock().unwrap().insert(group.clone());
            }
            let _ = client.commit(&group, TOPICS[0].0, 0, 0);
        }
        match made {
            Err(error) if error.kind() != io::ErrorKind::Other => Err(error),
            _ => Ok(()),
        }
    });
}
