//! Files of the store that the user of the broker may not read, or may not write. Root may do everything, so as root the broker runs as another user;
//! where that is impossible nothing is tested, and the reason is printed.

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    audit::{audit, drain},
    client::{Client, Message},
    files::{copy, files_below},
    ledger::{Book, Ledger},
    process::{Place, SEGMENT_BYTES},
};

/// Who the broker runs as if this process is root's.
const NOBODY: u32 = 65_534;
/// Its levels.
const LEVELS: &str = "1s 3s";
/// Cases that run at the same time.
const WORKERS: usize = 4;

/// A program that another user can start.
struct User {
    folder: TempDir,
    /// None if the broker runs as who runs this.
    uid: Option<u32>,
}

impl User {
    /// None, with the reason printed, if root cannot run the broker as another user.
    fn find() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let is_root = rustix::process::geteuid().is_root();
        let user = Self { folder, uid: is_root.then_some(NOBODY) };
        if is_root {
            fs::set_permissions(user.folder.path(), Permissions::from_mode(0o755)).unwrap();
            fs::copy(env!("CARGO_BIN_EXE_latermq"), user.program()).unwrap();
            let ran = Command::new(user.program()).arg("--version").uid(NOBODY).gid(NOBODY).output();
            if !ran.as_ref().is_ok_and(|output| output.status.success()) {
                println!("not tested: root cannot run the broker as user {NOBODY} here: {ran:?}");
                return None;
            }
        }
        Some(user)
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("latermq")
    }

    /// A place of the user.
    fn place(&self, name: &str) -> Place {
        let folder = self.folder.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        self.own(&folder);
        let mut place = Place::new(&folder, &[("messageDelayLevel", LEVELS), ("mappedFileSizeConsumeQueue", "200")]);
        if let Some(uid) = self.uid {
            place.run_as(uid, &self.program());
        }
        place
    }

    /// A copy of a store at a place of its own.
    fn copy(&self, of: &Place, name: &str) -> Place {
        let place = self.place(name);
        copy(&of.store(), &place.store());
        self.own(&place.store());
        place
    }

    fn own(&self, path: &Path) {
        let Some(uid) = self.uid else { return };
        chown(path, Some(uid), Some(uid)).unwrap();
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.own(&entry.unwrap().path());
            }
        }
    }
}

/// A store after a clean stop: delivered, waiting and normal messages in several segments.
fn fill(place: &Place) -> Book {
    let serving = place.start();
    let mut client = serving.client();
    let ledger = Ledger::default();
    let send = |client: &mut Client, level: usize, count: usize, bytes: usize, what: &str| {
        for number in 0..count {
            let message = Message::new("orders", 0, level, format!("{what}-{number}")).bytes(bytes);
            ledger.sending(&message);
            ledger.acknowledged(&message, client.send(&message).unwrap().queue_offset);
        }
    };
    client.create_topic("orders", 1).unwrap();
    client.create_group("consumers").unwrap();
    send(&mut client, 1, 10, 200, "delivered");
    send(&mut client, 0, 16, 15_000, "plain");
    drain(&mut client);
    client.commit("consumers", "orders", 0, 3).unwrap();
    send(&mut client, 2, 10, 200, "waiting");
    thread::sleep(Duration::from_millis(400));
    drop(client);
    serving.stop();
    ledger.copy()
}

fn deny(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// N9
#[test]
fn whatever_file_beside_the_log_may_not_be_read_or_written_the_broker_starts_and_nothing_is_missing() {
    let Some(user) = User::find() else { return };
    let template = user.place("template");
    let book = fill(&template);
    let store = template.store();
    let files = files_below(&store, "").into_iter().filter(|file| !file.starts_with("commitlog/"));
    let mut cases: Vec<(String, u32)> = files.flat_map(|file| [(file.clone(), 0o000), (file, 0o444)]).collect();
    for folder in
        ["index", "consumequeue", "consumequeue/orders", "consumequeue/orders/0", "consumequeue/SCHEDULE_TOPIC_XXXX/1"]
    {
        cases.push((folder.to_owned(), 0o000));
    }
    let cases = Mutex::new(cases);
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (user, template, book, cases) = (&user, &template, &book, &cases);
            scope.spawn(move || {
                loop {
                    let Some((file, mode)) = cases.lock().unwrap().pop() else { return };
                    let name = format!("{worker}-{mode}-{}", file.replace('/', "-"));
                    let place = user.copy(template, &name);
                    deny(&place.store().join(&file), mode);

                    let serving = place.start();

                    let log = serving.broker.log();
                    let is_derived = file.starts_with("consumequeue") || file.starts_with("index");
                    assert!(!is_derived || log.contains(&format!("{file}\"")), "{file} is not named:\n{log}");
                    let mut client = serving.client();
                    drain(&mut client);
                    audit(&mut client, book, LEVELS).assert_clean(&format!("{file} with mode {mode:o}"));
                    drop(client);
                    serving.stop();
                    for folder in ["index", "consumequeue", "consumequeue/orders"] {
                        let _ = fs::set_permissions(place.store().join(folder), Permissions::from_mode(0o755));
                    }
                }
            });
        }
    });
}

#[test]
fn an_old_segment_that_may_not_be_read_or_written_stops_no_start_and_is_read_once_it_may_be() {
    let Some(user) = User::find() else { return };
    let template = user.place("template");
    let book = fill(&template);
    let segment = format!("commitlog/{SEGMENT_BYTES:020}");
    for mode in [0o444, 0o000] {
        let place = user.copy(&template, &format!("{mode}"));
        deny(&place.store().join(&segment), mode);

        let serving = place.start();

        assert!(serving.broker.log().contains(&segment), "{}", serving.broker.log());
        let mut client = serving.client();
        client.send(&Message::new("others", 0, 0, "new")).unwrap();
        drain(&mut client);
        if mode == 0 {
            deny(&place.store().join(&segment), 0o644);
        }
        audit(&mut client, &book, LEVELS).assert_clean(&format!("mode {mode:o}"));
        drop(client);
        serving.stop();
    }
}

#[test]
fn a_newest_segment_that_may_not_be_written_and_a_lock_of_somebody_else_are_named_by_a_refused_start() {
    let Some(user) = User::find() else { return };
    let template = user.place("template");
    fill(&template);
    let newest = files_below(&template.store(), "commitlog").pop().unwrap();
    for (number, mode) in [0o000, 0o444].into_iter().enumerate() {
        let place = user.copy(&template, &format!("newest-{number}"));
        deny(&place.store().join(&newest), mode);
        let Err((status, log)) = place.try_start() else { panic!("started on a segment of mode {mode:o}") };
        assert!(!status.success() && log.lines().last().unwrap().contains(&newest), "{log}");
    }
    if user.uid.is_some() {
        let place = user.copy(&template, "lock");
        let lock = place.store().join("lock");
        chown(&lock, Some(0), Some(0)).unwrap();
        deny(&lock, 0o600);
        let Err((status, log)) = place.try_start() else { panic!("started without the lock") };
        let said = log.lines().last().unwrap();
        assert!(!status.success() && said.contains("/lock") && said.contains("Remove it if none does"), "{log}");
    }
}

#[test]
fn a_lock_that_may_not_be_read_still_keeps_a_second_broker_out() {
    let Some(user) = User::find() else { return };
    let place = user.place("place");
    fill(&place);
    let lock = place.store().join("lock");
    deny(&lock, 0o000);
    let first = place.start();
    deny(&lock, 0o000);

    let Err((status, log)) = place.try_start() else { panic!("two brokers run on one store") };

    assert!(!status.success() && log.contains("another broker is running"), "{log}");
    first.stop();
}
