//! How many instructions the hot paths take, against the figures in `benches/instructions.json`: exact to half a percent, where a clock is
//! not. `-- --store` writes the figures anew.
//!
//! Runs itself under callgrind, once for each path, without threads and with a clock that stands still; only what [`counted`] does is
//! counted. Files are real ones: what the kernel does is not counted, and a directory in memory would be half of a pull. Valgrind is called
//! as it is: crates around it need a second program of the same version installed beside them. Another processor, libc or valgrind may
//! differ by a few percent: compare on one machine.

#[path = "../support/mod.rs"]
mod support;

use std::{collections::BTreeMap, env, fs, hint::black_box, process::Command};

use latermq::{delay::LevelTable, protocol::frame::encode_whole, record::Records};

use support::{World, pull, store_options};

const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.json");
/// The argument behind which the name of the path to run comes.
const RUN: &str = "--run";

/// A hot path.
struct Path {
    name: &'static str,
    /// How many messages it takes along.
    messages: usize,
    run: fn(&mut World, usize),
}

const PATHS: [Path; 4] = [
    Path { name: "send", messages: 64, run: send },
    Path { name: "dispatch", messages: 64, run: dispatch },
    Path { name: "restore", messages: 512, run: restore },
    Path { name: "pull", messages: 32, run: pulled },
];

/// From the bytes of one read to the answers that wait to be written.
fn send(world: &mut World, messages: usize) {
    let input = world.sends(messages, Some(3));
    counted(&mut || world.handle(input.clone()));
    let answers = world.answers();
    assert_eq!(answers.len(), messages);
    assert!(answers.iter().all(|answer| answer.code == 0));
}

/// From the log into queues, index and scheduler.
fn dispatch(world: &mut World, messages: usize) {
    // The level's queue is made only once.
    world.append(messages, Some(3));
    world.dispatch();
    world.append(messages, Some(3));
    counted(&mut || world.dispatch());
}

/// One batch of a due run.
fn restore(world: &mut World, messages: usize) {
    world.fill_run(messages);
    let mut restored = 0;
    counted(&mut || restored = world.restore());
    assert_eq!(restored, messages);
}

/// From the bytes of the request to the bytes of the answer.
fn pulled(world: &mut World, messages: usize) {
    world.append(messages, None);
    world.dispatch();
    let offset = world.store.queue_range(support::TOPIC, support::QUEUE).map_or(0, |range| range.max.0);
    let offset = offset as i64 - messages as i64;
    let input = encode_whole(&pull(offset, messages as i32)).expect("a small frame");
    let mut answer = None;
    counted(&mut || answer = Some(world.answer(input.clone())));
    let found = answer.map_or(0, |(answer, _)| Records::new(answer.body.to_bytes()).count());
    assert_eq!(found, messages);
}

/// What callgrind counts: it is told this name.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
    black_box(());
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare(false),
        ["--store"] => compare(true),
        [RUN, name] => {
            let path = PATHS.iter().find(|path| path.name == name).expect("a path of the table");
            let options =
                latermq::store::StoreOptions { index_slots: 10_000, index_entries: 40_000, ..store_options() };
            let folder = tempfile::tempdir().expect("a temporary folder");
            let mut world = World::open(folder.path(), options, LevelTable::default());
            // What is done only once, such as creating topic and group.
            let first = world.sends(64, None);
            world.handle(first);
            world.answers();
            world.dispatch();
            world.answer(encode_whole(&pull(0, 32)).expect("a small frame"));
            world.fill_run(64);
            world.restore();
            world.dispatch();
            (path.run)(&mut world, path.messages);
        }
        _ => panic!("wanted nothing, or --store"),
    }
}

/// The instructions of a path, by callgrind.
fn count(path: &Path) -> u64 {
    let out = env::temp_dir().join(format!("latermq-{}-{}.callgrind", path.name, std::process::id()));
    let valgrind = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*counted*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(env::current_exe().expect("this program has a path"))
        .args([RUN, path.name])
        .output()
        .expect("valgrind must be installed (Debian: valgrind)");
    assert!(valgrind.status.success(), "{}", String::from_utf8_lossy(&valgrind.stderr));
    let profile = fs::read_to_string(&out).expect("callgrind writes a profile");
    let _ = fs::remove_file(&out);
    let summary = profile.lines().find_map(|line| line.strip_prefix("summary: ").or(line.strip_prefix("totals: ")));
    summary.and_then(|text| text.trim().parse().ok()).expect("a profile has a sum")
}

/// Prints the figures beside the stored ones, which then are replaced if `stores`.
fn compare(stores: bool) {
    let text = fs::read_to_string(FIGURES).unwrap_or_else(|_| "{}".to_owned());
    let stored: BTreeMap<String, u64> = serde_json::from_str(&text).expect("names and numbers");
    let mut figures = BTreeMap::new();
    println!("{:<10} {:>8} {:>12} {:>12} {:>8} {:>12}", "path", "messages", "stored", "now", "change", "per message");
    for path in &PATHS {
        let now = count(path);
        figures.insert(path.name, now);
        let (before, change) = stored.get(path.name).map_or(("-".to_owned(), String::new()), |&before| {
            (before.to_string(), format!("{:+.2}%", (now as f64 / before as f64 - 1.0) * 100.0))
        });
        let each = now / path.messages as u64;
        println!("{:<10} {:>8} {before:>12} {now:>12} {change:>8} {each:>12}", path.name, path.messages);
    }
    if stores {
        let text = serde_json::to_string_pretty(&figures).expect("names and numbers");
        fs::write(FIGURES, text + "\n").expect("the repository can be written");
    }
}
