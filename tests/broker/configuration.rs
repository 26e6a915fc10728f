//! The configuration of a running broker: codes 25 and 26, and what a change does.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use latermq::{
    broker::{Announcement, Registry},
    config::{self, CHANGE_BYTES_MAX, Kind, Settings, Sources, Status},
    model::Timestamp,
    protocol::{
        Command,
        body::{DataVersion, KvTable},
        json,
    },
};

use crate::rig::{Config, Rig, message, request, rig, rig_configured, rig_of, text};

const FILE: &str =
    "# our broker\nbrokerName = broker-a\n\nmessageDelayLevel=10s 20s\nsomeKeyOfOurs = 1 \\\n  2\n#parkAfter=1\n";

fn change(rig: &Rig, text: impl Into<Vec<u8>>) -> Command {
    rig.ask(request(25, &[]).with_body(text.into()))
}

fn changed(rig: &Rig, text: &str) {
    let answer = change(rig, text);
    assert_eq!(answer.code, 0, "{text}: {:?}", answer.remark);
}

/// The answer's code and remark.
fn refused(rig: &Rig, text: &str) -> (i32, String) {
    let answer = change(rig, text);
    assert_ne!(answer.code, 0, "{text}");
    (answer.code, answer.remark.unwrap())
}

fn file(rig: &Rig) -> String {
    rig.config.as_ref().unwrap().text()
}

fn in_force(rig: &Rig) -> HashMap<String, String> {
    let entries = config::parse_properties(text(&rig.ask(request(26, &[]))).as_bytes()).unwrap();
    entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
}

fn version(rig: &Rig) -> DataVersion {
    json::from_slice(rig.ask(request(26, &[])).ext.get("version").unwrap().as_bytes()).unwrap()
}

fn figure(rig: &Rig, name: &str) -> Option<String> {
    let info: KvTable = json::from_slice(&rig.ask(request(28, &[])).body.to_bytes()).unwrap();
    info.table.get(name).cloned()
}

/// Bodies of a queue with their store times in seconds since the epoch of the rig.
fn arrived(rig: &Rig, topic: &str, since: Timestamp) -> Vec<(String, i64)> {
    let records = rig.records(topic, 0, 0);
    records
        .iter()
        .map(|record| {
            let body = String::from_utf8(record.view().body().to_vec()).unwrap();
            (body, record.view().stored_at().0 - since.0)
        })
        .collect()
}

#[test]
fn remoting_84_settings_are_shown_and_unknown_ones_are_passed_over() {
    let rig = rig_configured(FILE);

    let shown = rig.ask(request(26, &[]));
    assert!(text(&shown).contains("\nbrokerName=broker-a\n") && text(&shown).contains("\nparkAfter=600000\n"));
    assert!(shown.ext.get("version").unwrap().contains("counter"));
    for text in ["unknownKey=1", "", "# a comment", "brokerName=broker-a", "parkAfter = 600000", "traceOn=TRUE"] {
        changed(&rig, text);
    }
    assert_eq!((file(&rig), version(&rig).counter), (FILE.to_owned(), 1), "nothing has changed");
}

#[test]
fn a_changed_key_is_in_force_at_once_and_stands_in_the_file_and_after_a_restart() {
    let rig = rig_configured(FILE);
    let topics_before = rig.broker.topics().all().data_version;
    assert_eq!(rig.send(message("new-1")).code, 0);

    changed(&rig, "autoCreateTopicEnable=false\nparkAfter=5000\nautoCreateSubscriptionGroup=false\n");

    assert_eq!(rig.send(message("new-2")).code, 17);
    assert_eq!(rig.ask(request(352, &[("group", "unknown")])).code, 26);
    let (topics, counter) = (rig.broker.topics().all().data_version, version(&rig).counter);
    assert!(topics > topics_before && counter == 2, "{topics:?} {counter}");
    let wanted = FILE.replace("#parkAfter=1\n", "#parkAfter=1\nparkAfter=5000\n")
        + "autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\n";
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(lines(&file(&rig)), lines(&wanted));
    assert!(file(&rig).starts_with(&FILE[..FILE.len() - 1]), "what stood there stands there still, in its order");

    let rig = rig.kill();
    assert_eq!(in_force(&rig)["parkAfter"], "5000");
    assert_eq!(rig.send(message("new-2")).code, 17);
    changed(&rig, "autoCreateTopicEnable=true");
    assert_eq!(rig.send(message("new-2")).code, 0);
    assert_eq!(file(&rig).matches("autoCreateTopicEnable").count(), 1);
}

/// A key is live only if what it stands for takes it over: each is changed, and looked for where it counts.
#[test]
fn every_key_that_can_change_is_in_force_after_its_change() {
    let rig = rig_configured("");
    let changes = [
        ("messageDelayLevel", "7s"),
        ("parkAfter", "77"),
        ("brokerPermission", "2"),
        ("autoCreateTopicEnable", "false"),
        ("defaultTopicQueueNums", "3"),
        ("autoCreateSubscriptionGroup", "false"),
        ("traceOn", "false"),
        ("longPollingEnable", "false"),
        ("shortPollingTimeMills", "77"),
        ("flushConsumerOffsetInterval", "77"),
        ("channelExpiredTimeout", "77"),
    ];
    let live: Vec<_> = config::keys().filter(|key| key.is_live).map(|key| key.name).collect();
    assert!(live.iter().all(|key| changes.iter().any(|(known, _)| known == key)), "{live:?}");
    for (key, value) in changes {
        changed(&rig, &format!("{key}={value}"));
    }

    let (options, delay) = (rig.broker.options(), rig.scheduler.options());
    assert_eq!((delay.levels.to_string(), delay.park_after), ("1 = 7s".to_owned(), Duration::from_millis(77)));
    assert_eq!((options.permission, options.default_topic_queues, options.trace_on), (2, 3, false));
    assert!(!options.auto_create_topics && !options.auto_create_groups && !options.long_polling);
    let millis = [options.short_polling, options.save_offsets_interval, options.client_expiry];
    assert_eq!(millis, [Duration::from_millis(77); 3]);
    assert_eq!(rig.send(message("unknown")).code, 17);
    assert_eq!(rig.pull("T", 0, 0).code, 16, "reading is not permitted any more");
    assert_eq!(rig.ask(request(352, &[("group", "unknown")])).code, 26);
}

#[test]
fn what_cannot_change_while_the_broker_runs_is_refused_by_name_and_nothing_is_written() {
    let rig = rig_configured("");
    let other = |key: &config::Key, now: &str| {
        let candidates = [
            "/elsewhere",
            "10.0.0.1",
            "10.0.0.1:5",
            "true",
            "false",
            "7",
            "21",
            "12000",
            "2000000",
            "SYNC_FLUSH",
            "json",
            "other",
            "SLAVE",
        ];
        candidates.into_iter().find(|text| {
            let sources = Sources {
                arguments: vec![(key.name.to_owned(), (*text).to_owned())],
                host_name: "broker-a".into(),
                ..Sources::default()
            };
            *text != now && Settings::load(&sources).is_ok()
        })
    };
    let now = in_force(&rig);
    let mut refused_keys = 0;
    for key in config::keys().filter(|key| !key.is_live && key.status == Status::Supported) {
        let value = other(key, &now[key.name]).unwrap_or_else(|| panic!("{} has another value", key.name));
        let (code, remark) = refused(&rig, &format!("parkAfter=1\n{}={value}\n", key.name));
        assert_eq!(code, 16, "{remark}");
        assert!(remark.starts_with(key.name) && remark.contains("restart"), "{remark}");
        assert!(!matches!(key.kind, Kind::Path) || remark.contains("where files are"), "{remark}");
        refused_keys += 1;
    }
    assert!(refused_keys > 30);
    for key in config::keys().filter(|key| key.status == Status::StopsTheStart) {
        let (code, remark) = refused(&rig, &format!("{}=elsewhere", key.name));
        assert!(code == 29 && remark.contains(key.name), "{remark}");
    }
    for key in ["brokerConfigPath", "rocketmqHome", "configBlackList", "aclFile"] {
        let (code, remark) = refused(&rig, &format!("{key}=/tmp"));
        assert!(code == 16 && remark.contains(key), "{remark}");
    }
    assert_eq!((file(&rig), in_force(&rig)), (String::new(), now));
    assert_eq!(rig.config.as_ref().unwrap().writes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_wrong_value_is_refused_in_the_words_of_the_start() {
    let rig = rig_configured(FILE);
    for text in [
        "brokerPermission=16",
        "brokerPermission=x",
        "traceOn=maybe",
        "parkAfter=-1",
        "parkAfter=99999999999999999999",
        "messageDelayLevel=1s 2x",
        "messageDelayLevel=",
        "messageDelayLevel=0s",
        "brokerRole=SLAVE",
    ] {
        let sources = Sources { file: Some(("X".into(), text.into())), host_name: "h".into(), ..Sources::default() };
        let at_start = match Settings::load(&sources) {
            Err(errors) => errors.to_string(),
            Ok(loaded) => loaded.settings.delay_options().unwrap_err().to_string(),
        };

        let (code, remark) = refused(&rig, text);

        assert_eq!((code, remark), (29, at_start.replace("X line 1", "request")));
    }
    assert_eq!((file(&rig), version(&rig).counter), (FILE.to_owned(), 1));
}

#[test]
fn a_request_counts_whole_or_not_at_all() {
    let rig = rig_configured(FILE);
    let before = in_force(&rig);
    for text in [
        "messageDelayLevel=1s\nparkAfter=x",
        "parkAfter=1\nmessageDelayLevel=1s 1x",
        "messageDelayLevel=1s\nlistenPort=1",
        "traceOn=false\nmessageDelayLevel=1s\nstorePathRootDir=/tmp/other",
        "traceOn=false\nbroken=\\u12",
        "traceOn=false\n=1",
    ] {
        refused(&rig, text);
        assert_eq!((file(&rig), in_force(&rig)), (FILE.to_owned(), before.clone()), "{text}");
        assert_eq!(figure(&rig, "delayLevelMs{level=1}").as_deref(), Some("10000"), "{text}");
    }
}

#[test]
fn a_change_that_a_restart_would_forget_is_refused() {
    let no_file = rig_of(Config { has_no_file: true, ..Config::default() });
    let (code, remark) = refused(&no_file, "traceOn=false");
    assert!(code == 16 && remark.contains("traceOn") && remark.contains("-c"), "{remark}");
    changed(&no_file, "traceOn=true");

    let environment = vec![("LATERMQ_PARK_AFTER".to_owned(), "77".to_owned())];
    let rig = rig_of(Config { environment, ..Config::default() });
    let (code, remark) = refused(&rig, "parkAfter=78");
    assert!(code == 16 && remark.contains("LATERMQ_PARK_AFTER"), "{remark}");
    assert_eq!((file(&rig).as_str(), in_force(&rig)["parkAfter"].as_str()), ("", "77"));

    assert_eq!(change(&rig_of_no_configuration(), "traceOn=false").code, 16);
}

fn rig_of_no_configuration() -> Rig {
    rig()
}

#[test]
fn a_file_that_cannot_be_written_or_that_became_wrong_changes_nothing() {
    let rig = rig_configured(FILE);
    let config = Arc::clone(rig.config.as_ref().unwrap());
    config.write_fails.store(true, Ordering::Relaxed);
    let (code, remark) = refused(&rig, "messageDelayLevel=1s");
    assert!(code == 1 && remark.contains("broker.conf"), "{remark}");
    assert_eq!(figure(&rig, "delayLevelMs{level=1}").as_deref(), Some("10000"));
    config.write_fails.store(false, Ordering::Relaxed);

    // Somebody edits the file meanwhile.
    *config.file.lock().unwrap() = b"listenPort=x\n".to_vec();
    let (code, remark) = refused(&rig, "messageDelayLevel=1s");
    assert!(code == 1 && remark.contains("listenPort"), "{remark}");
    *config.file.lock().unwrap() = b"regionId=edited\n".to_vec();
    changed(&rig, "messageDelayLevel=1s");
    assert_eq!(file(&rig), "regionId=edited\nmessageDelayLevel=1s\n");
    assert_eq!(in_force(&rig)["regionId"], "DefaultRegion", "an edit by hand counts from the next start on");
}

#[test]
fn no_text_makes_a_change_panic_or_grow() {
    let rig = rig_configured(FILE);
    let mut random = fastrand::Rng::with_seed(25);
    for round in 0..300 {
        let mut text = Vec::new();
        for _ in 0..random.usize(..6) {
            let key =
                *random.choice(&[&b"messageDelayLevel"[..], b"parkAfter", b"traceOn", b"x", b"\\u0", b"#"]).unwrap();
            text.extend_from_slice(key);
            text.push(*random.choice(b"=: \n\\").unwrap());
            text.extend((0..random.usize(..12)).map(|_| *random.choice(b"0123456789smhd \\\n\r\xff-ux").unwrap()));
        }
        let answer = change(&rig, text.clone());
        assert!([0, 16, 29].contains(&answer.code), "round {round}: {text:?}: {answer:?}");
        let sources =
            Sources { file: Some(("f".into(), file(&rig).into())), host_name: "h".into(), ..Sources::default() };
        let stands = Settings::load(&sources).unwrap().settings;
        assert_eq!(stands.text("messageDelayLevel"), in_force(&rig)["messageDelayLevel"], "round {round}: {text:?}");
    }
    let (code, remark) = refused(&rig, &format!("messageDelayLevel={}", "1s ".repeat(CHANGE_BYTES_MAX)));
    assert!(code == 29 && remark.len() < 200, "{remark}");
    let (_, remark) = refused(&rig, &format!("messageDelayLevel={}", "x".repeat(CHANGE_BYTES_MAX - 100)));
    assert!(remark.len() <= latermq::remoting::REMARK_BYTES_MAX, "{}", remark.len());
}

#[test]
fn a_live_change_of_the_table_holds_every_earlier_promise() {
    let rig = rig_configured(FILE);
    let start = rig.store.now();
    rig.sent(message("T").level(1).body("old 1"));
    rig.sent(message("T").level(2).body("old 2"));
    rig.sent(message("T").level(99).body("old 99"));

    changed(&rig, "messageDelayLevel=3s");

    rig.sent(message("T").level(1).body("new 1"));
    rig.sent(message("T").level(2).body("new 2"));
    // Both generations are shown, also the level that is gone.
    let figure = |name: &str| figure(&rig, name);
    assert_eq!(figure("delayLevelMs{level=1}").as_deref(), Some("3000"));
    assert_eq!(figure("delayLevelMs{level=2}"), None);
    assert_eq!(figure("delayGenerationMs{level=1,generation=1}").as_deref(), Some("10000"));
    assert_eq!(figure("delayGenerationPending{level=1,generation=1}").as_deref(), Some("1"));
    assert_eq!(figure("delayGenerationMs{level=1,generation=2}").as_deref(), Some("3000"));
    assert_eq!(figure("delayGenerationPending{level=1,generation=2}").as_deref(), Some("2"));
    assert_eq!(figure("delayGenerationMs{level=2,generation=1}").as_deref(), Some("20000"));
    assert_eq!(figure("delayGenerationPending{level=2,generation=1}").as_deref(), Some("2"));
    assert_eq!(figure("delayGenerationNextDeadlineMs{level=2,generation=1}"), Some((start.0 + 20_000).to_string()));
    let rig = rig.kill();
    assert_eq!(in_force(&rig)["messageDelayLevel"], "3s");

    let mut shown = Vec::new();
    for _ in 0..21 {
        rig.step();
        shown.push(arrived(&rig, "T", start).len());
        rig.advance(Duration::from_secs(1));
    }

    assert_eq!(shown[2..4], [0, 2]);
    assert_eq!(shown[9..11], [2, 3]);
    assert_eq!(shown[19..21], [3, 5]);
    let wanted = [("new 1", 3_000), ("new 2", 3_000), ("old 1", 10_000), ("old 2", 20_000), ("old 99", 20_000)];
    assert_eq!(arrived(&rig, "T", start), wanted.map(|(body, at)| (body.to_owned(), at)));
}

/// A crash at any moment of the change leaves the old table or the new one, and each message its time.
#[test]
fn a_crash_during_a_change_leaves_one_table_or_the_other() {
    for is_written in [false, true] {
        let rig = rig_configured(FILE);
        let start = rig.store.now();
        rig.sent(message("T").level(1).body("before"));
        if is_written {
            // The file is replaced, but the scheduler has not heard of it.
            *rig.config.as_ref().unwrap().file.lock().unwrap() = b"messageDelayLevel=3s\n".to_vec();
        }
        rig.sent(message("T").level(1).body("between"));
        let rig = rig.kill();

        rig.sent(message("T").level(1).body("after"));
        for _ in 0..=10 {
            rig.step();
            rig.advance(Duration::from_secs(1));
        }

        let mut wanted = vec![("before", 10_000), ("between", 10_000)];
        wanted.insert(if is_written { 0 } else { 2 }, ("after", if is_written { 3_000 } else { 10_000 }));
        let wanted: Vec<_> = wanted.into_iter().map(|(body, at)| (body.to_owned(), at)).collect();
        assert_eq!(arrived(&rig, "T", start), wanted);
    }
}

#[test]
fn more_levels_by_a_live_change_mean_more_queues_of_the_schedule_topic() {
    let rig = rig_configured(FILE);
    changed(&rig, &format!("messageDelayLevel={}", ["1s"; 40].join(" ")));

    let topic = rig.broker.topics().get("SCHEDULE_TOPIC_XXXX").unwrap();
    assert_eq!((topic.read_queue_nums, topic.write_queue_nums), (40, 40));
    rig.sent(message("T").level(40));
    rig.advance(Duration::from_secs(1));
    rig.step();
    assert_eq!(rig.records("T", 0, 0).len(), 1);
}

#[test]
fn a_retry_of_a_consumer_after_a_live_change_waits_by_the_new_table() {
    let rig = rig_configured("messageDelayLevel=1s 5s 10s\n");
    let start = rig.store.now();
    let sent = rig.sent(message("T"));
    let record = rig.records("T", 0, 0).remove(0);
    let offset = record.view().physical_offset().0.to_string();
    assert_eq!(sent.queue_offset, 0);
    changed(&rig, "messageDelayLevel=1s 5s 2s");

    let back = [("offset", offset.as_str()), ("group", "g"), ("delayLevel", "0"), ("maxReconsumeTimes", "16")];
    assert_eq!(rig.ask(request(36, &back)).code, 0);
    rig.step();
    rig.advance(Duration::from_secs(2));
    rig.step();

    assert_eq!(arrived(&rig, "%RETRY%g", start), [("hello".to_owned(), 2_000)]);
}

#[derive(Default)]
struct Told(Mutex<Vec<Announcement>>);

impl Registry for Told {
    fn register(&self, announcement: Announcement) {
        self.0.lock().unwrap().push(announcement);
    }

    fn unregister(&self, _: &str, _: &str) {}
}

/// The usual way to drain a broker: consumers finish, producers go elsewhere.
#[test]
fn a_change_of_the_permission_is_told_to_name_servers_with_a_new_version() {
    let rig = rig_configured("");
    rig.sent(message("T"));
    let told = Arc::new(Told::default());
    rig.broker.set_registry(Arc::clone(&told) as Arc<dyn Registry>);
    let last = || told.0.lock().unwrap().last().unwrap().topics.clone();
    let before = last();

    changed(&rig, "brokerPermission=4");

    let after = last();
    assert!(after.data_version > before.data_version);
    assert_eq!((before.topic_config_table["T"].perm, after.topic_config_table["T"].perm), (6, 4));
    assert_eq!(rig.broker.topics().get("T").unwrap().perm, 6, "the topic itself stays");
    changed(&rig, "brokerPermission=6");
    assert_eq!(last().topic_config_table["T"].perm, 6);
}
