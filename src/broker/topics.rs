//! The topics of the broker and their settings.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use tracing::{info, warn};

use super::{BrokerOptions, failure::Failure, perm, table_file::TableFile};
use crate::{
    model::{
        DLQ_PREFIX, PARKING_TOPIC, PhysicalOffset, QueueId, RETRY_PREFIX, RETRY_TOPIC_BYTES_MAX, SCHEDULE_TOPIC,
        TOPIC_BYTES_MAX, Topic, is_name_byte, is_system_topic,
    },
    protocol::{
        ResponseCode,
        body::{DataVersion, TopicConfig, TopicConfigs},
        json,
    },
    store::{MessageStore, StoreError},
};

/// The topic whose settings a topic created by a send takes over.
pub(crate) const AUTO_CREATE_TOPIC: &str = "TBW102";
/// Queues of a topic that is created because a message waits for it.
const RESOLVED_QUEUES: u32 = 4;
/// Most queues that a topic of the file may have; more than a request may ask for, since the file may come from another broker.
const QUEUES_MAX: i32 = QueueId::COUNT_MAX.cast_signed();
/// The first queue of the store that may be there only since the queue of a record was damaged: no request asks for so many by default.
const STRAY_QUEUE_MIN: u32 = 1024;
/// Queues of the topic for benchmarks, as in RocketMQ.
const BENCHMARK_QUEUES: u32 = 1024;
/// Queues of the topic named like the cluster, as in RocketMQ.
const CLUSTER_QUEUES: u32 = 16;
/// Queues of the topic in which RocketMQ keeps pop receipts.
const REVIVE_QUEUES: u32 = 8;
/// Topics to which clients may not send.
///
/// Source: Apache RocketMQ, `TopicValidator.isNotAllowedSendTopic`.
const NOT_SENDABLE: [&str; 6] = [
    SCHEDULE_TOPIC,
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
];

/// The topic table, kept in `topics.json`. Which topics were deleted on request is kept by the store.
///
/// A change is in the file before the request that made it is answered; one that a send made goes on without. No lock is held while a file is written or the change is announced.
pub struct Topics {
    options: TopicOptions,
    store: Arc<MessageStore>,
    file: TableFile,
    state: RwLock<State>,
    on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Where a message that has waited may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved {
    /// To this queue of its topic.
    Queue(QueueId),
    /// Nowhere: its topic was deleted on request after it was stored.
    Deleted,
}

struct TopicOptions {
    cluster: String,
    broker: String,
    topics_max: usize,
    topic_queues_max: u32,
}

#[derive(Default)]
struct State {
    table: HashMap<Topic, Arc<TopicConfig>, foldhash::fast::RandomState>,
    version: DataVersion,
}

impl Topics {
    /// Loads the table, adds the topics every broker has, and those that the store has queues of but the table lost.
    pub(crate) fn load(options: &BrokerOptions, store: Arc<MessageStore>) -> Self {
        let file = TableFile::new("topics.json", &store);
        let loaded: TopicConfigs = file.load(parse).unwrap_or_default();

        let stored = queues_of(&store);
        let table = loaded.topic_config_table.into_iter().map(|(name, mut config)| {
            config.topic_name = name.clone();
            let topic = Topic::new(name);
            let queues = stored.get(&topic).copied().unwrap_or(0).max(options.default_topic_queues);
            correct(&mut config, queues);
            (topic, Arc::new(config))
        });
        let state = State { table: table.collect(), version: loaded.data_version };
        let topics = Self {
            options: TopicOptions {
                cluster: options.cluster.clone(),
                broker: options.name.clone(),
                topics_max: options.topics_max,
                topic_queues_max: options.topic_queues_max,
            },
            store,
            file,
            state: RwLock::new(state),
            on_change: OnceLock::new(),
        };
        topics.add_system_topics(options);
        topics.add_topics_of_the_store(options);
        topics.save();
        topics
    }

    /// Who is told that topics changed. Set once.
    pub(crate) fn on_change(&self, announce: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_change.set(Box::new(announce));
    }

    /// A topic's settings.
    pub fn get(&self, topic: &str) -> Option<Arc<TopicConfig>> {
        self.state().table.get(topic).cloned()
    }

    /// All topics with the version of the table.
    pub fn all(&self) -> TopicConfigs {
        let state = self.state();
        let table = state.table.iter().map(|(topic, config)| (topic.as_str().to_owned(), (**config).clone()));
        TopicConfigs { data_version: state.version, topic_config_table: table.collect() }
    }

    /// How many queues all topics have together.
    pub fn queue_count(&self) -> u64 {
        let queues = |config: &Arc<TopicConfig>| config.read_queue_nums.max(config.write_queue_nums).max(0);
        self.state().table.values().map(|config| u64::from(queues(config).unsigned_abs())).sum()
    }

    /// The version of the table.
    pub(crate) fn version(&self) -> DataVersion {
        self.state().version
    }

    /// The topics that belong to the broker, sorted.
    pub(crate) fn system_topics(&self) -> Vec<String> {
        let state = self.state();
        let mut names: Vec<_> =
            state.table.keys().filter(|topic| self.is_system(topic)).map(|topic| topic.as_str().to_owned()).collect();
        names.sort_unstable();
        names
    }

    /// Whether a topic belongs to the broker: it can be neither changed nor deleted on request.
    pub(crate) fn is_system(&self, topic: &str) -> bool {
        is_system_topic(topic)
            || topic == self.options.cluster
            || topic == self.options.broker
            || topic.strip_suffix("_REPLY_TOPIC").is_some_and(|cluster| cluster == self.options.cluster)
    }

    /// The topic a send is for, created if it is unknown and `template` lets it be: with at most `queues` queues, as RocketMQ does.
    ///
    /// # Errors
    /// Code 17: it does not exist and is not created.
    pub(crate) fn get_or_create(&self, topic: &str, template: &str, queues: i32) -> Result<Arc<TopicConfig>, Failure> {
        if let Some(config) = self.get(topic) {
            return Ok(config);
        }
        if topic.starts_with(RETRY_PREFIX) {
            return self.ensure(topic, 1);
        }
        let Some(template) = self.get(template).filter(|template| template.perm & perm::INHERIT != 0) else {
            return Err(unknown(topic));
        };
        let queues = queues.min(template.write_queue_nums).max(0);
        self.insert(TopicConfig {
            topic_name: topic.into(),
            perm: template.perm & !perm::INHERIT,
            read_queue_nums: queues,
            write_queue_nums: queues,
            topic_filter_type: template.topic_filter_type.clone(),
            ..TopicConfig::default()
        })
    }

    /// The topic, created readable and writable with so many queues if it is unknown.
    ///
    /// # Errors
    /// Code 17: there are too many topics.
    pub(crate) fn ensure(&self, topic: &str, queues: u32) -> Result<Arc<TopicConfig>, Failure> {
        match self.get(topic) {
            Some(config) => Ok(config),
            None => self.insert(with_queues(topic, queues, perm::READ | perm::WRITE)),
        }
    }

    /// A topic that the store has queues of though it was not created here: one in which a plugin keeps something.
    pub(crate) fn adopt(&self, topic: &str) -> Option<Arc<TopicConfig>> {
        let queues = queues_of(&self.store).get(topic).copied().filter(|queues| *queues > 0)?;
        self.ensure(topic, queues).ok()
    }

    /// Where a message goes that was stored for this topic and queue and has waited since `waiting_since`, its position in the log. An
    /// unknown topic is created again; a queue beyond the topic's queues becomes one of them.
    pub fn resolve(&self, topic: &str, queue_id: QueueId, waiting_since: PhysicalOffset) -> Resolved {
        if self.store.deleted_to(topic).is_some_and(|deleted| waiting_since < deleted) {
            return Resolved::Deleted;
        }
        let is_single = topic.starts_with(RETRY_PREFIX) || topic.starts_with(DLQ_PREFIX);
        let queues = if is_single { 1 } else { RESOLVED_QUEUES };
        let queues = self.ensure(topic, queues).map_or(queues, |config| {
            u32::try_from(config.read_queue_nums.max(config.write_queue_nums)).unwrap_or(0).max(1)
        });
        Resolved::Queue(QueueId(queue_id.0 % queues))
    }

    /// Creates or changes a topic on request. Attributes are taken over as they are.
    ///
    /// # Errors
    /// Code 29: a value is out of its range. Code 1: the table could not be saved.
    pub(crate) fn update(&self, config: TopicConfig) -> Result<(), Failure> {
        let invalid = |remark: String| Err(Failure::new(ResponseCode::INVALID_PARAMETER, remark));
        validate(&config.topic_name)?;
        if self.is_system(&config.topic_name) {
            return invalid(format!("The topic[{}] is conflict with system topic.", config.topic_name));
        }
        let max = i32::try_from(self.options.topic_queues_max).unwrap_or(i32::MAX);
        for (name, queues) in [("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums)] {
            if !(0..=max).contains(&queues) {
                return invalid(format!("{name} is {queues}, allowed are 0 to {max}"));
            }
        }
        if config.perm & !perm::ALL != 0 {
            return invalid(format!("perm is {}, allowed are the bits of {}", config.perm, perm::ALL));
        }
        self.insert_over(config)?;
        Ok(())
    }

    /// Deletes a topic on request: its queues are removed and what still waits for it is not delivered. There is nothing to do for a topic
    /// that neither the table nor the store knows.
    ///
    /// # Errors
    /// Code 29: the topic belongs to the broker, or its name is none. Code 1: the deletion could not be made durable.
    pub(crate) fn delete(&self, topic: &str) -> Result<(), Failure> {
        validate(topic)?;
        if self.is_system(topic) {
            let remark = format!("The topic[{topic}] is conflict with system topic.");
            return Err(Failure::new(ResponseCode::INVALID_PARAMETER, remark));
        }
        if self.get(topic).is_none() && !self.store.queues().iter().any(|(found, ..)| **found == *topic) {
            // A deletion before may have got that far, but not into the file.
            return self.save_on_request();
        }
        self.store
            .delete_topic(topic)
            .map_err(|error| Failure::new(ResponseCode::SYSTEM_ERROR, format!("topic not deleted: {error}")))?;
        let removed = {
            let mut state = self.state_mut();
            let removed = state.table.remove(topic).is_some();
            if removed {
                self.note_change(&mut state);
            }
            removed
        };
        self.save_on_request()?;
        if removed {
            info!(topic, "topic deleted on request");
            self.announce();
        }
        Ok(())
    }

    fn announce(&self) {
        if let Some(announce) = self.on_change.get() {
            announce();
        }
    }

    fn insert(&self, config: TopicConfig) -> Result<Arc<TopicConfig>, Failure> {
        let topic = Topic::new(config.topic_name.as_str());
        {
            let mut state = self.state_mut();
            if let Some(known) = state.table.get(&topic) {
                return Ok(Arc::clone(known));
            }
            self.check_room(&state)?;
            state.table.insert(topic.clone(), Arc::new(config.clone()));
            self.note_change(&mut state);
        }
        info!(topic = %topic, queues = config.write_queue_nums, "topic created");
        self.save();
        self.announce();
        Ok(Arc::new(config))
    }

    fn insert_over(&self, config: TopicConfig) -> Result<(), Failure> {
        let topic = Topic::new(config.topic_name.as_str());
        {
            let mut state = self.state_mut();
            if !state.table.contains_key(&topic) {
                self.check_room(&state)?;
            }
            state.table.insert(topic.clone(), Arc::new(config));
            self.note_change(&mut state);
        }
        info!(topic = %topic, "topic changed on request");
        let saved = self.save_on_request();
        self.announce();
        saved
    }

    fn check_room(&self, state: &State) -> Result<(), Failure> {
        if state.table.len() < self.options.topics_max {
            return Ok(());
        }
        let remark = format!("there are already {} topics", self.options.topics_max);
        Err(Failure::new(ResponseCode::TOPIC_NOT_EXIST, remark))
    }

    fn note_change(&self, state: &mut State) {
        state.version = state.version.next(self.store.env().clock.wall().0);
        self.file.note_change();
    }

    /// How often the file could not be saved.
    pub(super) fn save_failures(&self) -> u64 {
        self.file.failures()
    }

    /// Saves what is not saved yet.
    pub(super) fn save(&self) {
        self.file.save_or_warn(|| self.render());
    }

    fn save_on_request(&self) -> Result<(), Failure> {
        self.file.save_on_request(|| self.render())
    }

    /// The text of the file.
    fn render(&self) -> Vec<u8> {
        json::to_vec_pretty(&self.all())
    }

    fn add_system_topics(&self, options: &BrokerOptions) {
        let read_write = perm::READ | perm::WRITE;
        let all = read_write | perm::INHERIT;
        let (cluster, broker) = (options.cluster.as_str(), options.name.as_str());
        let mut state = self.state_mut();
        let mut add = |topic: &str, queues: u32, perm: i32| {
            state.table.entry(Topic::new(topic)).or_insert_with(|| Arc::new(with_queues(topic, queues, perm)));
        };
        add("SELF_TEST_TOPIC", 1, read_write);
        add("BenchmarkTest", BENCHMARK_QUEUES, read_write);
        add(cluster, CLUSTER_QUEUES, if options.cluster_topic { all } else { read_write });
        add(broker, 1, if options.broker_topic { all } else { read_write });
        add("OFFSET_MOVED_EVENT", 1, read_write);
        add(SCHEDULE_TOPIC, options.schedule_queues, read_write);
        add(PARKING_TOPIC, options.schedule_queues, perm::READ);
        if options.trace_topic {
            add("RMQ_SYS_TRACE_TOPIC", 1, read_write);
        }
        add(&format!("{cluster}_REPLY_TOPIC"), 1, read_write);
        add(&format!("rmq_sys_REVIVE_LOG_{cluster}"), REVIVE_QUEUES, read_write);
        add(&format!("rmq_sys_SYNC_BROKER_MEMBER_{broker}"), 1, perm::INHERIT);
        add("rmq_sys_wheel_timer", 1, read_write);
        add("RMQ_SYS_TRANS_HALF_TOPIC", 1, read_write);
        add("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, read_write);
        drop(state);
        self.set_options(options);
    }

    /// Takes over options that can change while the broker runs, and tells name servers of it.
    pub(crate) fn change_options(&self, options: &BrokerOptions) {
        self.set_options(options);
        self.save();
        self.announce();
    }

    fn set_options(&self, options: &BrokerOptions) {
        let stored = queues_of(&self.store);
        let mut state = self.state_mut();
        if options.auto_create_topics {
            let all = perm::READ | perm::WRITE | perm::INHERIT;
            let template = with_queues(AUTO_CREATE_TOPIC, options.default_topic_queues, all);
            state.table.insert(Topic::new(AUTO_CREATE_TOPIC), Arc::new(template));
        } else {
            state.table.remove(AUTO_CREATE_TOPIC);
        }
        // As many queues as there are levels, or were when messages were stored.
        for topic in [SCHEDULE_TOPIC, PARKING_TOPIC] {
            let stored = stored.get(topic).copied().unwrap_or(0);
            let levels = i32::try_from(options.schedule_queues.max(stored)).unwrap_or(i32::MAX);
            if let Some(config) = state.table.get_mut(topic) {
                let config = Arc::make_mut(config);
                config.read_queue_nums = config.read_queue_nums.max(levels);
                config.write_queue_nums = config.write_queue_nums.max(levels);
            }
        }
        self.note_change(&mut state);
    }

    /// A topic whose queues are in the store exists, whatever became of its table.
    fn add_topics_of_the_store(&self, options: &BrokerOptions) {
        let found = queues_of(&self.store);
        let mut state = self.state_mut();
        for (topic, queues) in found {
            if !state.table.contains_key(&topic) && validate(&topic).is_ok() {
                // Its last queues may be empty so far, but be known to producers, and messages may wait for them.
                let is_single = topic.starts_with(RETRY_PREFIX) || topic.starts_with(DLQ_PREFIX);
                let queues = if is_single { queues } else { queues.max(options.default_topic_queues) };
                warn!(topic = %topic, queues, "the store has queues of a topic that the table does not know, it is added");
                let config = with_queues(&topic, queues, perm::READ | perm::WRITE);
                state.table.insert(topic, Arc::new(config));
                self.note_change(&mut state);
            }
        }
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::new(ResponseCode::SYSTEM_ERROR, error.to_string())
    }
}

/// Checks a topic's name.
///
/// # Errors
/// Code 29, with what is wrong.
pub(crate) fn validate(topic: &str) -> Result<(), Failure> {
    let invalid = |remark: String| Err(Failure::new(ResponseCode::INVALID_PARAMETER, remark));
    if topic.trim().is_empty() {
        return invalid("The specified topic is blank.".into());
    }
    let is_internal = topic.starts_with(RETRY_PREFIX) || topic.starts_with(DLQ_PREFIX);
    let max = if is_internal { RETRY_TOPIC_BYTES_MAX } else { TOPIC_BYTES_MAX };
    if topic.len() > max {
        return invalid(format!("The specified topic is longer than topic max length {max}."));
    }
    if !topic.bytes().all(is_name_byte) {
        return invalid("The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$".into());
    }
    Ok(())
}

/// Whether clients may send to a topic of that name.
pub(crate) fn is_sendable(topic: &str) -> bool {
    !NOT_SENDABLE.contains(&topic) && !topic.starts_with("rmq_sys_")
}

/// The answer to who asks about a topic that does not exist.
pub(crate) fn unknown(topic: &str) -> Failure {
    Failure::new(ResponseCode::TOPIC_NOT_EXIST, format!("topic[{topic}] not exist, apply first please!"))
}

fn with_queues(topic: &str, queues: u32, perm: i32) -> TopicConfig {
    let queues = i32::try_from(queues).unwrap_or(i32::MAX);
    TopicConfig {
        topic_name: topic.into(),
        perm,
        read_queue_nums: queues,
        write_queue_nums: queues,
        ..TopicConfig::default()
    }
}

/// How many queues each topic has in the store. From [`STRAY_QUEUE_MIN`] on a queue counts only if the store has half of those before it: no
/// checksum covers the queue of a record, and for one that is damaged nobody should ask for thousands of queues.
fn queues_of(store: &MessageStore) -> BTreeMap<Topic, u32> {
    let mut ids: BTreeMap<Topic, BTreeSet<u32>> = BTreeMap::new();
    for (topic, queue_id, _) in store.queues() {
        ids.entry(topic).or_default().insert(queue_id.0);
    }
    let count = |ids: BTreeSet<u32>| {
        let believed = (0..).zip(ids).filter(|&(before, id): &(u32, u32)| id < STRAY_QUEUE_MIN || id / 2 <= before);
        believed.last().map_or(0, |(_, id)| id.saturating_add(1))
    };
    ids.into_iter().map(|(topic, ids)| (topic, count(ids))).collect()
}

/// Replaces what cannot be in settings that were read from the file: counts of queues by `queues`, permission bits by read and write.
fn correct(config: &mut TopicConfig, queues: u32) {
    let queues = i32::try_from(queues).unwrap_or(i32::MAX);
    let TopicConfig { topic_name: topic, read_queue_nums, write_queue_nums, perm, .. } = config;
    for (name, count) in [("readQueueNums", read_queue_nums), ("writeQueueNums", write_queue_nums)] {
        if !(0..=QUEUES_MAX).contains(count) {
            warn!(topic, name, said = *count, used = queues, "setting of a topic that cannot be is corrected");
            *count = queues;
        }
    }
    if *perm & !perm::ALL != 0 {
        let used = perm::READ | perm::WRITE;
        warn!(topic, name = "perm", said = *perm, used, "setting of a topic that cannot be is corrected");
        *perm = used;
    }
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    json::from_slice(text.as_bytes()).map_err(|error| error.to_string())
}
