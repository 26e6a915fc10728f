//! What survives: topics, groups and offsets in their files, and the registration at name servers.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use latermq::{
    broker::{Announcement, BrokerOptions, Registry},
    env::{Directory, Operation},
    model::{MessageDraft, Properties, QueueId, SysFlag, Timestamp},
    protocol::{Command, RequestCode},
};

use crate::rig::{Rig, max, message, request, rig, text};

fn committed(rig: &Rig) -> Option<String> {
    let ext = [("consumerGroup", "g"), ("topic", "T"), ("queueId", "0"), ("setZeroIfNotFound", "false")];
    rig.ask(request(14, &ext)).ext.get("offset").map(str::to_owned)
}

fn commit(rig: &Rig, offset: &str) {
    let ext = [("consumerGroup", "g"), ("topic", "T"), ("queueId", "0"), ("commitOffset", offset)];
    assert_eq!(rig.ask(request(15, &ext)).code, 0);
}

fn consumed() -> Rig {
    let rig = rig();
    rig.join(&rig.client, "c", "g", &[("T", "*")]);
    for _ in 0..10 {
        rig.sent(message("T"));
    }
    rig
}

#[test]
fn topics_and_groups_are_in_their_files_before_the_request_is_answered() {
    let rig = consumed().kill();

    assert_eq!(rig.broker.topics().get("T").unwrap().write_queue_nums, 4);
    assert!(rig.broker.topics().get("%RETRY%g").is_some());
    assert!(text(&rig.ask(request(201, &[]))).contains(r#""groupName":"g""#));
}

#[test]
fn consumer_offsets_are_exact_after_a_clean_stop() {
    let rig = consumed();
    commit(&rig, "7");

    assert_eq!(committed(&rig.restart()).as_deref(), Some("7"));
}

#[test]
fn consumer_offsets_are_at_most_five_seconds_old_after_a_kill() {
    let rig = consumed();
    commit(&rig, "3");
    rig.advance(Duration::from_secs(5));
    rig.broker.tick();
    commit(&rig, "8");
    rig.advance(Duration::from_secs(4));
    rig.broker.tick();

    assert_eq!(committed(&rig.kill()).as_deref(), Some("3"));
}

#[test]
fn store_43_consumer_offsets_that_lie_beyond_their_queue_are_corrected_at_the_start() {
    let rig = consumed();
    commit(&rig, "5");
    rig.broker.save();
    let file = br#"{"dataVersion":{"counter":1},"offsetTable":{"T@g":{0:1000000000,1:-5},"broken":{0:1}}}"#;
    rig.directory.write(Path::new("config/consumerOffset.json"), file).unwrap();

    let rig = rig.kill();

    assert_eq!(committed(&rig).as_deref(), Some("10"));
    assert!(text(&rig.ask(request(43, &[]))).contains(r#""T@g":{0:10,1:0}"#));
}

#[test]
fn unreadable_state_files_do_not_stop_the_start_and_topics_of_the_store_come_back() {
    let rig = consumed();
    rig.broker.save();
    for name in ["topics.json", "subscriptionGroup.json", "consumerOffset.json"] {
        for name in [name.to_owned(), format!("{name}.bak")] {
            rig.directory.write(Path::new(&format!("config/{name}")), &[0; 4096]).unwrap();
        }
    }

    let rig = rig.kill();

    assert_eq!(rig.pull("T", 0, 0).code, 0);
    assert!(rig.broker.topics().get("TBW102").is_some());
}

/// No checksum covers the queue of a record: a topic of 23,041 queues came back for one damaged byte.
#[test]
fn a_topic_that_comes_back_from_the_store_has_no_queues_up_to_one_that_damage_made() {
    let rig = consumed();
    let stored = |topic: &str, queue_id: u32| {
        let host = ([127, 0, 0, 1], 1).into();
        let draft = MessageDraft {
            topic: topic.into(),
            queue_id: QueueId(queue_id),
            flag: 0,
            sys_flag: SysFlag(0),
            born_at: Timestamp::EPOCH,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_offset: 0,
            properties: Properties::new(),
            body: "x".into(),
        };
        rig.store.append(draft).unwrap();
    };
    stored("T", 23_040);
    (0..1_500).for_each(|queue_id| stored("Wide", queue_id));
    rig.dispatch();
    rig.broker.save();
    for name in ["topics.json", "topics.json.bak"] {
        rig.directory.remove(Path::new(&format!("config/{name}"))).unwrap();
    }

    let rig = rig.kill();

    let queues = |topic: &str| rig.broker.topics().get(topic).unwrap().write_queue_nums;
    assert_eq!([queues("T"), queues("Wide")], [8, 1_500]);
}

#[test]
fn offsets_can_be_committed_in_every_queue_that_a_topic_of_another_broker_has() {
    let rig = consumed();
    let topic = r#""Wide":{"topicName":"Wide","readQueueNums":2000,"writeQueueNums":2000,"perm":6}"#;
    let file = format!(r#"{{"topicConfigTable":{{{topic}}}}}"#);
    rig.directory.write(Path::new("config/topics.json"), file.as_bytes()).unwrap();
    let rig = rig.kill();
    let commit = |queue_id: &str| {
        let ext = [("consumerGroup", "g"), ("topic", "Wide"), ("queueId", queue_id), ("commitOffset", "0")];
        rig.ask(request(15, &ext)).code
    };

    assert_eq!(["1024", "1999", "2000"].map(commit), [0, 0, 29]);
}

#[test]
fn a_deletion_that_was_cut_short_is_finished_at_the_next_start() {
    let rig = consumed();
    let deleted_at = rig.store.log_range().1.0;
    let file = format!(r#"{{"deletions":{{"T":{deleted_at}}}}}"#);
    rig.directory.write(Path::new("config/deletedTopics.json"), file.as_bytes()).unwrap();
    let topics = String::from_utf8(rig.directory.read(Path::new("config/topics.json")).unwrap().unwrap()).unwrap();
    let without = topics.replace("\"T\":{", "\"Renamed\":{");
    assert_ne!(topics, without);
    rig.directory.write(Path::new("config/topics.json"), without.as_bytes()).unwrap();

    let rig = rig.kill();

    assert!(rig.broker.topics().get("T").is_none());
    assert_eq!(max(&rig, "T", 0), 0);
}

#[test]
fn more_levels_in_the_configuration_mean_more_queues_of_the_schedule_topic() {
    let rig = rig().reopen_with(BrokerOptions { schedule_queues: 30, ..BrokerOptions::default() });

    assert_eq!(rig.broker.topics().get("SCHEDULE_TOPIC_XXXX").unwrap().read_queue_nums, 30);
}

#[derive(Default)]
struct Recorder(Mutex<Vec<Announcement>>);

impl Registry for Recorder {
    fn register(&self, announcement: Announcement) {
        self.0.lock().unwrap().push(announcement);
    }

    fn unregister(&self, _cluster: &str, _address: &str) {}
}

#[test]
fn remoting_17_the_name_server_of_the_process_knows_a_new_topic_before_the_send_is_answered() {
    let rig = rig();
    let recorder = Arc::new(Recorder::default());
    rig.broker.set_registry(Arc::clone(&recorder) as Arc<dyn Registry>);

    rig.sent(message("T"));

    let announced = recorder.0.lock().unwrap();
    let last = announced.last().unwrap();
    assert!(last.topics.topic_config_table.contains_key("T"));
    assert_eq!((last.address.as_str(), last.name.as_str()), ("127.0.0.1:10911", "broker-a"));
    assert!(announced[0].topics.data_version < last.topics.data_version);
}

#[test]
fn a_kill_right_after_the_last_message_does_not_set_consumers_back() {
    let rig = consumed();
    commit(&rig, "10");
    rig.broker.save();

    assert_eq!(committed(&rig.kill()).as_deref(), Some("10"));
}

fn create(topic: &str) -> Command {
    let queues = [("readQueueNums", "4"), ("writeQueueNums", "4"), ("perm", "6"), ("topicFilterType", "SINGLE_TAG")];
    let ext: Vec<_> = [("topic", topic), ("defaultTopic", "TBW102")].into_iter().chain(queues).collect();
    request(RequestCode::UPDATE_AND_CREATE_TOPIC, &ext)
}

fn create_group(group: &str) -> Command {
    request(200, &[]).with_body(format!(r#"{{"groupName":"{group}"}}"#).into_bytes())
}

fn disk_full_for(rig: &Rig, path: &str) {
    rig.directory.fail_under(Path::new(path), Operation::Write, 0, io::ErrorKind::StorageFull, 1000);
}

/// A tool was told that its topic was created, the disk was full, and after the next start the topic was gone.
#[test]
fn a_change_on_request_that_cannot_be_saved_is_an_error_until_it_is_saved() {
    let rig = rig();
    assert_eq!(rig.ask(create("Old")).code, 0);
    assert_eq!(rig.ask(create_group("old")).code, 0);
    let changes = || {
        let delete_topic = request(215, &[("topic", "Old")]);
        let delete_group = request(207, &[("groupName", "old")]);
        [create("New"), create_group("new"), delete_topic, delete_group]
    };
    disk_full_for(&rig, "config");
    for change in changes() {
        let code = change.code;
        let answer = rig.ask(change);
        assert_eq!(answer.code, 1, "{code}");
        let remark = answer.remark.unwrap();
        assert!(remark.contains("not saved") || remark.contains("not deleted"), "{code}: {remark}");
    }
    rig.directory.heal();
    for change in changes() {
        assert_eq!(rig.ask(change).code, 0);
    }

    let rig = rig.kill();

    let topics = rig.broker.topics();
    assert!(topics.get("New").is_some() && topics.get("Old").is_none());
    let groups = text(&rig.ask(request(201, &[])));
    assert!(groups.contains(r#""groupName":"new""#) && !groups.contains(r#""groupName":"old""#), "{groups}");
}

#[test]
fn a_topic_whose_deletion_could_not_be_saved_at_its_end_is_deleted_by_the_next_request() {
    let rig = rig();
    assert_eq!(rig.ask(create("T")).code, 0);
    disk_full_for(&rig, "config/topics.json.tmp");
    assert_eq!(rig.ask(request(215, &[("topic", "T")])).code, 1);
    rig.directory.heal();

    assert_eq!(rig.ask(request(215, &[("topic", "T")])).code, 0);

    assert!(rig.kill().broker.topics().get("T").is_none());
}

#[test]
fn a_message_is_delivered_though_its_topic_was_to_be_deleted_but_could_not_be() {
    let rig = rig();
    rig.sent(message("T").level(3));
    disk_full_for(&rig, "config");
    assert_eq!(rig.ask(request(215, &[("topic", "T")])).code, 1);
    rig.directory.heal();

    rig.advance(Duration::from_secs(10));
    rig.step();

    assert_eq!(max(&rig, "T", 0), 1);
}

#[test]
fn a_send_creates_its_topic_though_the_table_cannot_be_saved() {
    let rig = rig();
    disk_full_for(&rig, "config");

    rig.sent(message("T"));

    rig.directory.heal();
    assert!(rig.kill().broker.topics().get("T").is_some(), "the store has its queues");
}

/// What serde reads as a struct without members is no table: the offsets of all groups were taken for absent.
#[test]
fn a_state_file_that_holds_a_list_is_unreadable() {
    let rig = consumed();
    commit(&rig, "5");
    rig.broker.save();
    commit(&rig, "7");
    rig.broker.save();
    for name in ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"] {
        rig.directory.write(Path::new(&format!("config/{name}")), b"[]").unwrap();
    }

    let rig = rig.kill();

    assert_eq!(committed(&rig).as_deref(), Some("5"), "the version before counts");
}

#[test]
fn settings_of_a_topic_that_cannot_be_are_corrected_at_the_start() {
    let rig = consumed();
    let topic = |name: &str, queues: i64, perm: i64| {
        format!(r#""{name}":{{"topicName":"{name}","readQueueNums":{queues},"writeQueueNums":{queues},"perm":{perm}}}"#)
    };
    let entries = [topic("T", -1, 6), topic("Wide", 2_000_000_000, 6), topic("Odd", 4, 4096), topic("Sound", 3, 4)];
    let file = format!(r#"{{"topicConfigTable":{{{}}}}}"#, entries.join(","));
    rig.directory.write(Path::new("config/topics.json"), file.as_bytes()).unwrap();

    let rig = rig.kill();

    let shown = |name: &str| {
        let config = rig.broker.topics().get(name).unwrap();
        (config.read_queue_nums, config.write_queue_nums, config.perm)
    };
    assert_eq!((shown("T"), shown("Wide")), ((8, 8, 6), (8, 8, 6)));
    assert_eq!((shown("Odd"), shown("Sound")), ((4, 4, 6), (3, 3, 4)));
}
