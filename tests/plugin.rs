//! The seam of the store, proven from outside the crate: a second, tiny plugin.
//!
//! The *diary* keeps account of what is written in a store: it counts messages by topic, sends those marked `ARCHIVE` to a topic of its own,
//! numbers them in the header field that is free for plugins, refuses drafts, keeps its counts in the checkpoint, and holds back the deletion of what was not
//! archived. It appends a page by itself when it starts.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use latermq::{
    env::Directory,
    model::{MessageDraft, PhysicalOffset, Properties, QueueId, QueueOffset},
    record::RecordView,
    store::{
        Admission, AdmitContext, AppendError, ArrivalListener, Dispatched, Figure, FigureValue, FlushPolicy, Mark,
        MessageStore, Placement, Plugin, PluginError, Refusal, RefusalKind, SettingChange, StoreError, StoreHandle,
    },
};
use support::{Machine, bodies, dispatch_all, draft, records};

/// Where archived messages go.
const ARCHIVE_TOPIC: &str = "archive";
/// The property that asks for it.
const ARCHIVE: &str = "ARCHIVE";
/// Longest wait for a thread of the store; reached only if something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the diary knows: a fold over the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Counts {
    by_topic: BTreeMap<String, u64>,
    /// The first record of the topic `kept`.
    keep_from: Option<u64>,
}

impl Counts {
    fn to_state(&self) -> Vec<u8> {
        let keep_from = self.keep_from.map_or("-".to_owned(), |from| from.to_string());
        let lines = self.by_topic.iter().map(|(topic, count)| format!("\n{topic} {count}"));
        std::iter::once(keep_from).chain(lines).collect::<String>().into_bytes()
    }

    fn from_state(state: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(state).ok()?.lines();
        let keep_from = match lines.next()? {
            "-" => None,
            from => Some(from.parse().ok()?),
        };
        let count = |line: &str| {
            let (topic, count) = line.split_once(' ')?;
            Some((topic.to_owned(), count.parse().ok()?))
        };
        Some(Self { keep_from, by_topic: lines.map(count).collect::<Option<_>>()? })
    }
}

#[derive(Default)]
struct Diary {
    name: Option<&'static str>,
    store: Mutex<Option<StoreHandle>>,
    counts: Mutex<Counts>,
    archived: AtomicU64,
    /// Every call, in order.
    calls: Mutex<Vec<String>>,
    /// What it says to [`Plugin::recover`] instead of reading the state.
    believes_nothing: bool,
    refuses_to_recover: bool,
    refuses_to_start: bool,
    panics_in_place: bool,
    /// Whether it appends a page when it starts.
    writes: bool,
    writer: Mutex<Option<(mpsc::Sender<()>, JoinHandle<()>)>>,
}

impl Diary {
    fn counts(&self) -> Counts {
        self.counts.lock().unwrap().clone()
    }

    fn count(&self, topic: &str) -> u64 {
        self.counts().by_topic.get(topic).copied().unwrap_or(0)
    }

    fn call(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn trouble(&self, reason: &str) -> PluginError {
        PluginError { plugin: self.name(), reason: reason.to_owned() }
    }
}

impl Plugin for Diary {
    fn name(&self) -> &'static str {
        self.name.unwrap_or("diary")
    }

    fn admit(&self, draft: &mut MessageDraft, context: &AdmitContext<'_>) -> Result<Admission, Refusal> {
        let refuse = |kind, remark: &str| Err(Refusal { kind, remark: remark.to_owned() });
        assert_eq!(draft.prepared_offset, 0, "a client cannot set the plugins' field");
        if &*draft.topic == "forbidden" {
            return refuse(RefusalKind::NotPermitted, "this topic is the diary's");
        }
        if context.batch.is_some_and(|batch| batch.contains("SECRET")) {
            return refuse(RefusalKind::NotSupported, "secret batches are not supported");
        }
        if draft.body.len() * 2 > context.body_bytes_max {
            return refuse(RefusalKind::Illegal, "a page is half a body at most");
        }
        if !draft.properties.contains(ARCHIVE) {
            return Ok(Admission::Pass);
        }
        draft.properties.set("FROM", draft.topic.as_bytes());
        draft.topic = ARCHIVE_TOPIC.into();
        draft.queue_id = QueueId(7);
        Ok(Admission::Marked(Mark(self.archived.fetch_add(1, Ordering::Relaxed))))
    }

    fn place(&self, mark: Mark, place: &Placement) -> i64 {
        assert!(!self.panics_in_place, "the diary is torn");
        assert!(place.bytes > 0);
        i64::try_from(mark.0 << 32 | place.position.0).unwrap()
    }

    fn attach(&self, store: StoreHandle) {
        self.call("attach");
        *self.store.lock().unwrap() = Some(store);
    }

    fn recover(&self, state: Option<&[u8]>) -> Result<bool, PluginError> {
        self.call(format!("recover {}", if state.is_some() { "state" } else { "nothing" }));
        if self.refuses_to_recover {
            return Err(self.trouble("the diary is lost"));
        }
        let counts = state.map_or(Some(Counts::default()), Counts::from_state);
        *self.counts.lock().unwrap() = counts.clone().unwrap_or_default();
        Ok(counts.is_some() && !(self.believes_nothing && state.is_some()))
    }

    fn tag_code(&self, record: &RecordView<'_>, existing: Option<i64>) -> Option<i64> {
        if let Some(existing) = existing {
            self.call(format!("existing {existing}"));
        }
        (record.topic() == ARCHIVE_TOPIC).then(|| record.prepared_offset())
    }

    fn dispatched(&self, records: &[Dispatched<'_>]) {
        for record in records {
            let topic = record.record.topic();
            assert_eq!(record.end(), record.record.end());
            if let Some(store) = self.store.lock().unwrap().as_ref().and_then(StoreHandle::store) {
                let (queue_id, at) = (record.record.queue_id(), record.record.queue_offset());
                let entries = store.queue_entries(topic, queue_id, at, 1);
                assert_eq!(entries[0].position, record.position, "a dispatched record has its entry");
            }
            self.call(format!("{} {topic}", if record.replay { "replayed" } else { "dispatched" }));
            let mut counts = self.counts.lock().unwrap();
            *counts.by_topic.entry(topic.to_owned()).or_default() += 1;
            if topic == "kept" && counts.keep_from.is_none() {
                counts.keep_from = Some(record.position.0);
            }
        }
    }

    fn round_ended(&self) {
        self.call("round ended");
    }

    fn pinned_from(&self) -> Option<PhysicalOffset> {
        self.counts().keep_from.map(PhysicalOffset)
    }

    fn state(&self) -> Vec<u8> {
        self.counts().to_state()
    }

    fn export(&self) -> io::Result<()> {
        let store = self.store.lock().unwrap().as_ref().and_then(StoreHandle::store).unwrap();
        store.state_file("diary.json").save(&format!("{{\"topics\":{}}}", self.counts().by_topic.len()))
    }

    fn change_setting(&self, key: &str, value: &str) -> SettingChange {
        match (key, value) {
            ("diaryColour", "blue") => SettingChange::Accepted,
            ("diaryColour", _) => SettingChange::Refused("only blue".to_owned()),
            _ => SettingChange::NotMine,
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let pages = self.counts().by_topic.values().sum::<u64>();
        vec![Figure {
            name: "pages".into(),
            labels: vec![("colour", "blue".into())],
            value: FigureValue::Number(pages as f64),
        }]
    }

    fn start(&self) -> Result<(), PluginError> {
        self.call("start");
        if self.refuses_to_start {
            return Err(self.trouble("no ink"));
        }
        if !self.writes {
            return Ok(());
        }
        let store = self.store.lock().unwrap().clone().ok_or_else(|| self.trouble("not attached"))?;
        let (stop, stopped) = mpsc::channel();
        let write = move || {
            let mut page = draft("pages", 0, "page");
            page.prepared_offset = 42;
            store.append(&[page, draft("forbidden", 0, "written by the diary itself")]).unwrap();
            stopped.recv().unwrap();
        };
        *self.writer.lock().unwrap() = Some((stop, std::thread::spawn(write)));
        Ok(())
    }

    fn stop(&self) {
        self.call("stop");
        if let Some((stop, writer)) = self.writer.lock().unwrap().take() {
            stop.send(()).unwrap();
            writer.join().unwrap();
        }
    }
}

fn diary() -> Arc<Diary> {
    Arc::new(Diary::default())
}

fn archived(topic: &str, body: &str) -> MessageDraft {
    let mut draft = draft(topic, 0, body);
    draft.properties.set(ARCHIVE, "1");
    draft
}

#[test]
fn a_plugin_reroutes_a_draft_and_places_its_own_value_in_the_record() {
    let machine = Machine::new();
    let store = machine.open_with(vec![diary()]);
    store.append(draft("orders", 0, "plain")).unwrap();
    let mut sly = draft("orders", 0, "sly");
    sly.prepared_offset = 99;
    store.append(sly).unwrap();

    store.append(archived("orders", "a")).unwrap();
    let second = store.append(archived("orders", "b")).unwrap();
    dispatch_all(&store);

    assert_eq!(bodies(&store, "orders", 0), ["plain", "sly"]);
    for record in records(&store, "orders", QueueId(0)) {
        assert_eq!(record.view().prepared_offset(), 0, "a client cannot set it");
    }
    let archive = records(&store, ARCHIVE_TOPIC, QueueId(7));
    assert_eq!(archive.len(), 2);
    let view = archive[1].view();
    assert_eq!(view.prepared_offset(), i64::try_from(1 << 32 | second.position.0).unwrap());
    assert_eq!(view.properties().get("FROM"), Some("orders"));
    assert_eq!((view.physical_offset(), second.queue_offset), (second.position, QueueOffset(1)));
    let entry = store.queue_entries(ARCHIVE_TOPIC, QueueId(7), QueueOffset(1), 1)[0];
    assert_eq!(entry.tag_code, view.prepared_offset(), "the plugin says what stands in the entry");
}

#[test]
fn a_plugin_refuses_drafts_and_nothing_of_them_is_stored() {
    let machine = Machine::new();
    let store = machine.open_with(vec![diary()]);
    let kind = |refused: Result<_, AppendError>| match refused {
        Err(AppendError::Refused(refusal)) => (refusal.kind, refusal.remark),
        other => panic!("not refused: {other:?}"),
    };

    let forbidden = kind(store.append(draft("forbidden", 0, "a")).map(|_| ()));
    let long = kind(store.append(draft("orders", 0, &"x".repeat(3_000))).map(|_| ()));
    let mut envelope = Properties::new();
    envelope.set("SECRET", "1");
    let secret = kind(store.append_batch(&envelope, vec![draft("orders", 0, "a")]).map(|_| ()));
    let batch = vec![draft("orders", 0, "a"), draft("forbidden", 0, "b"), draft("orders", 0, "c")];
    let member = kind(store.append_batch(&Properties::new(), batch).map(|_| ()));

    assert_eq!(forbidden, (RefusalKind::NotPermitted, "this topic is the diary's".to_owned()));
    assert_eq!(long.0, RefusalKind::Illegal);
    assert_eq!(secret.0, RefusalKind::NotSupported);
    assert_eq!(member.0, RefusalKind::NotPermitted);
    let (first, end) = store.log_range();
    assert_eq!(first, end, "the log is empty");
    assert_eq!(store.append(draft("orders", 0, "first")).unwrap().queue_offset, QueueOffset(0));
}

#[test]
fn a_plugin_sees_every_record_once_in_log_order_when_it_can_be_read() {
    let machine = Machine::new();
    let diary = diary();
    let store = machine.open_with(vec![diary.clone()]);
    for topic in ["a", "b", "a", "c"] {
        store.append(draft(topic, 0, topic)).unwrap();
    }
    assert_eq!(diary.calls(), ["attach", "recover nothing"]);

    dispatch_all(&store);
    dispatch_all(&store);

    let calls = diary.calls();
    assert_eq!(calls[2..], ["dispatched a", "dispatched b", "dispatched a", "dispatched c", "round ended"]);
    assert_eq!(diary.count("a"), 2);
}

#[test]
fn under_sync_flush_a_plugin_sees_only_what_is_durable() {
    let mut machine = Machine::new();
    machine.options.flush_policy = FlushPolicy::Sync;
    let diary = diary();
    let store = machine.open_with(vec![diary.clone()]);
    store.append(draft("a", 0, "1")).unwrap();
    dispatch_all(&store);
    assert_eq!(diary.count("a"), 0);

    store.sync_once().unwrap();
    dispatch_all(&store);

    assert_eq!(diary.count("a"), 1);
}

#[test]
fn a_plugin_gets_its_state_back_and_replays_only_what_came_after_the_checkpoint() {
    let machine = Machine::new();
    let store = machine.open_with(vec![diary()]);
    for n in 0..10 {
        store.append(draft("a", 0, &n.to_string())).unwrap();
    }
    dispatch_all(&store);
    store.checkpoint_once().unwrap();
    store.append(draft("a", 0, "10")).unwrap();
    store.append(archived("b", "11")).unwrap();
    dispatch_all(&store);
    let code = store.queue_entries(ARCHIVE_TOPIC, QueueId(7), QueueOffset(0), 1)[0].tag_code;
    drop(store);

    let again = diary();
    let store = machine.killed().open_with(vec![again.clone()]);

    assert_eq!(again.count("a"), 11);
    let calls = again.calls();
    assert_eq!(calls[..2], ["attach", "recover state"]);
    assert_eq!(calls.iter().filter(|call| call.starts_with("replayed")).count(), 2);
    assert!(calls.contains(&format!("existing {code}")), "an entry that survived is offered: {calls:?}");
    assert_eq!(bodies(&store, "a", 0).len(), 11);
}

#[test]
fn a_plugin_replays_the_whole_log_if_there_is_no_state_it_can_read() {
    let machine = Machine::new();
    let store = machine.open();
    for n in 0..10 {
        store.append(draft("a", 0, &n.to_string())).unwrap();
    }
    store.stop().unwrap();
    drop(store);

    let new = diary();
    let store = machine.open_with(vec![new.clone()]);
    assert_eq!(new.count("a"), 10, "it was not there when the checkpoint was written");
    store.stop().unwrap();
    drop(store);

    let unbelieving = Arc::new(Diary { believes_nothing: true, ..Diary::default() });
    let store = machine.open_with(vec![unbelieving.clone()]);
    assert_eq!(unbelieving.calls()[1..3], ["recover state", "recover nothing"]);
    assert_eq!(unbelieving.count("a"), 10);
    assert_eq!(bodies(&store, "a", 0).len(), 10, "the queues were built again");
    assert_eq!(store.append(draft("a", 0, "10")).unwrap().queue_offset, QueueOffset(10));
}

#[test]
fn the_states_of_two_plugins_are_kept_apart() {
    let machine = Machine::new();
    let two = || [diary(), Arc::new(Diary { name: Some("second"), ..Diary::default() })];
    let plugins = |diaries: &[Arc<Diary>; 2]| diaries.iter().map(|d| d.clone() as Arc<dyn Plugin>).collect::<Vec<_>>();
    let diaries = two();
    let store = machine.open_with(plugins(&diaries));
    store.append(draft("a", 0, "1")).unwrap();
    dispatch_all(&store);
    diaries[1].counts.lock().unwrap().by_topic.insert("only-mine".into(), 5);
    store.stop().unwrap();
    drop(store);

    let diaries = two();
    let _store = machine.open_with(plugins(&diaries));

    assert_eq!((diaries[0].count("a"), diaries[0].count("only-mine")), (1, 0));
    assert_eq!((diaries[1].count("a"), diaries[1].count("only-mine")), (1, 5));
}

#[test]
fn store_48_what_a_plugin_pins_is_not_deleted_and_the_rest_is() {
    let mut machine = Machine::new();
    machine.options.reserved_time = Duration::from_secs(3_600);
    machine.options.delete_when = (0..24).collect();
    let diary = diary();
    let store = machine.open_with(vec![diary.clone()]);
    let page = "x".repeat(1_900);
    let fill = |topic: &str, segments: u64| {
        let until = store.log_range().1.plus(segments * machine.options.segment_bytes);
        while store.log_range().1 < until {
            store.append(draft(topic, 0, &page)).unwrap();
        }
    };
    fill("a", 2);
    let kept = store.append(draft("kept", 0, "keep me")).unwrap();
    fill("a", 3);
    dispatch_all(&store);
    machine.clock.advance(Duration::from_secs(7_200));

    let deleted = store.retain_once().unwrap();

    let (first, _) = store.log_range();
    assert_eq!(deleted, 2);
    assert!(first <= kept.position && kept.position.since(first) < machine.options.segment_bytes, "{first}");
    assert_eq!(bodies(&store, "kept", 0), ["keep me"]);

    diary.counts.lock().unwrap().keep_from = None;
    assert!(store.retain_once().unwrap() > 0, "the pin is gone");
    assert!(store.record_at(kept.position).is_none());
}

#[test]
fn a_plugin_that_has_not_seen_the_log_yet_loses_nothing_to_retention() {
    let mut machine = Machine::new();
    machine.options.reserved_time = Duration::from_secs(3_600);
    machine.options.delete_when = (0..24).collect();
    let store = machine.open_with(vec![diary()]);
    while store.log_range().1.0 < 4 * machine.options.segment_bytes {
        store.append(draft("a", 0, &"x".repeat(1_900))).unwrap();
    }
    machine.clock.advance(Duration::from_secs(7_200));

    assert_eq!(store.retain_once().unwrap(), 0, "nothing was dispatched");
    dispatch_all(&store);
    assert!(store.retain_once().unwrap() > 0);
}

#[test]
fn a_plugin_decides_about_its_own_settings_only() {
    let machine = Machine::new();
    let second = Arc::new(Diary { name: Some("second"), ..Diary::default() });
    let store = machine.open_with(vec![diary(), second]);

    assert_eq!(store.change_setting("diaryColour", "blue"), SettingChange::Accepted);
    assert_eq!(store.change_setting("diaryColour", "red"), SettingChange::Refused("only blue".to_owned()));
    assert_eq!(store.change_setting("messageDelayLevel", "1s"), SettingChange::NotMine);
}

#[test]
fn a_plugin_shows_figures_and_writes_derived_files_with_each_checkpoint() {
    let machine = Machine::new();
    let store = machine.open_with(vec![diary()]);
    store.append(draft("a", 0, "1")).unwrap();
    store.append(draft("b", 0, "1")).unwrap();
    dispatch_all(&store);

    store.checkpoint_once().unwrap();

    assert_eq!(machine.read("config/diary.json"), b"{\"topics\":2}");
    let figures = store.figures();
    let pages = figures.iter().find(|figure| figure.name == "pages").unwrap();
    assert_eq!((&pages.value, &pages.labels[..]), (&FigureValue::Number(2.0), &[("colour", "blue".to_owned())][..]));
    assert!(figures.iter().any(|figure| figure.name == "commitLogMaxOffset"));
}

struct Arrivals(Mutex<mpsc::Sender<(String, QueueOffset)>>);

impl ArrivalListener for Arrivals {
    fn arrived(&self, topic: &str, _: QueueId, max: QueueOffset, _: i64) {
        self.0.lock().unwrap().send((topic.to_owned(), max)).unwrap();
    }
}

#[test]
fn a_started_plugin_appends_by_itself_past_all_plugins_until_it_is_stopped() {
    let machine = Machine::new();
    let diary = Arc::new(Diary { writes: true, ..Diary::default() });
    let store = machine.open_with(vec![diary.clone()]);
    let (arrived, arrivals) = mpsc::channel();
    store.set_arrival_listener(Arc::new(Arrivals(Mutex::new(arrived))));

    store.start().unwrap();
    let first = arrivals.recv_timeout(PATIENCE).unwrap();
    let second = arrivals.recv_timeout(PATIENCE).unwrap();
    store.stop().unwrap();

    assert_eq!(first, ("pages".to_owned(), QueueOffset(1)));
    assert_eq!(second, ("forbidden".to_owned(), QueueOffset(1)), "its own drafts are not shown to it");
    assert_eq!(records(&store, "pages", QueueId(0))[0].view().prepared_offset(), 42);
    assert_eq!(diary.calls().last().unwrap(), "stop");
    assert!(machine.fatal().is_empty());
    assert!(!machine.has("abort"));
    assert!(matches!(store.append(draft("a", 0, "late")), Err(AppendError::Closed)));
}

#[test]
fn a_handle_of_a_store_that_is_gone_says_so() {
    let machine = Machine::new();
    let diary = diary();
    let store = machine.open_with(vec![diary.clone()]);
    let handle = diary.store.lock().unwrap().clone().unwrap();
    let stored = handle.append(&[draft("a", 0, "1"), draft("a", 0, "2")]).unwrap();
    assert_eq!(stored[1].queue_offset, QueueOffset(1));

    store.stop().unwrap();
    assert!(matches!(handle.append(&[draft("a", 0, "3")]), Err(AppendError::Closed)));
    drop(store);

    assert!(handle.store().is_none());
    assert!(matches!(handle.append(&[draft("a", 0, "3")]), Err(AppendError::Closed)));
}

#[test]
fn a_plugin_can_refuse_to_recover_and_to_start() {
    let machine = Machine::new();
    let lost = Arc::new(Diary { refuses_to_recover: true, ..Diary::default() });
    let error = machine.try_open(vec![lost]).unwrap_err();
    assert!(matches!(error, StoreError::Plugin(_)), "{error}");
    assert_eq!(error.to_string(), "diary: the diary is lost");

    let dry = Arc::new(Diary { refuses_to_start: true, ..Diary::default() });
    let store = machine.open_with(vec![dry]);
    assert_eq!(store.start().unwrap_err().to_string(), "diary: no ink");
    store.stop().unwrap();
    assert!(!machine.has("abort"), "it was stopped cleanly all the same");
}

#[test]
fn a_panic_of_a_plugin_under_the_append_lock_stops_the_store() {
    let machine = Machine::new();
    let torn = Arc::new(Diary { panics_in_place: true, ..Diary::default() });
    let store = machine.open_with(vec![torn]);
    let before = store.append(draft("a", 0, "1")).unwrap();

    let failed = store.append(archived("a", "2"));

    assert!(matches!(failed, Err(AppendError::Failed { .. })), "{failed:?}");
    assert!(machine.fatal()[0].contains("the diary is torn"), "{:?}", machine.fatal());
    assert!(matches!(store.append(draft("a", 0, "3")), Err(AppendError::Failed { .. })));
    assert!(store.stop().is_err());
    drop(store);
    let store = machine.killed().open_with(vec![diary()]);
    assert_eq!((bodies(&store, "a", 0), store.log_range().1), (vec!["1".to_owned()], before.end));
}

#[test]
fn store_29_a_store_without_plugins_is_a_plain_rocketmq_store() {
    let machine = Machine::new();
    let store = machine.open();
    let mut delayed = draft("orders", 0, "not delayed by anyone");
    delayed.properties.set("DELAY", "3");
    store.append(delayed).unwrap();
    let mut half = draft("orders", 0, "half");
    half.properties.set("REAL_TOPIC", "x");
    store.append(half).unwrap();
    dispatch_all(&store);
    store.stop().unwrap();

    assert_eq!(bodies(&store, "orders", 0), ["not delayed by anyone", "half"]);
    for record in records(&store, "orders", QueueId(0)) {
        assert_eq!(record.view().prepared_offset(), 0);
    }
    let files = files(&machine, Path::new(""));
    let allowed = |path: &str| {
        matches!(path, "checkpoint" | "latermq.checkpoint" | "latermq.checkpoint.bak" | "lock")
            || path == format!("commitlog/{:020}", 0)
            || path == format!("consumequeue/orders/0/{:020}", 0)
            || path.strip_prefix("index/").is_some_and(|name| name.len() == 17 && name.parse::<u64>().is_ok())
    };
    let strange: Vec<_> = files.iter().map(|path| path.to_str().unwrap()).filter(|path| !allowed(path)).collect();
    assert_eq!(strange, Vec::<&str>::new());
    assert!(store.figures().iter().all(|figure| figure.labels.is_empty() || figure.name == "refusedSends"));
}

/// Every file below a folder.
fn files(machine: &Machine, folder: &Path) -> Vec<PathBuf> {
    let entries = machine.disk.list(folder).unwrap();
    entries
        .into_iter()
        .flat_map(|entry| {
            let path = folder.join(&entry.name);
            match entry.kind {
                latermq::env::EntryKind::Folder => files(machine, &path),
                _ => vec![path],
            }
        })
        .collect()
}

/// Many producers at once, and the threads of the store.
#[test]
fn store_64_with_many_producers_on_one_queue_every_entry_leads_to_the_record_of_its_offset() {
    const PRODUCERS: u64 = 8;
    const EACH: u64 = 40;
    let machine = Machine::new();
    let diary = diary();
    let store = machine.open_with(vec![diary.clone()]);
    store.start().unwrap();
    std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let store: &MessageStore = &store;
            scope.spawn(move || {
                for n in 0..EACH {
                    store.append(draft("a", 0, &format!("{producer} {n} {}", "x".repeat(1_000)))).unwrap();
                }
            });
        }
    });
    store.stop().unwrap();

    let found = records(&store, "a", QueueId(0));
    assert_eq!(found.len() as u64, PRODUCERS * EACH);
    let mut next = [0; PRODUCERS as usize];
    for (at, record) in found.iter().enumerate() {
        assert_eq!(record.view().queue_offset().0, at as u64);
        let body = String::from_utf8(record.body().to_vec()).unwrap();
        let mut words = body.split(' ').map(str::parse::<usize>);
        let (producer, n) = (words.next().unwrap().unwrap(), words.next().unwrap().unwrap());
        assert_eq!(n, next[producer], "messages of one producer keep their order");
        next[producer] += 1;
    }
    assert_eq!(diary.count("a"), PRODUCERS * EACH);
    assert!(machine.fatal().is_empty());
}
