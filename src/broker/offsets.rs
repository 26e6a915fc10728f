//! How far each group has read each queue.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::table_file::TableFile;
use crate::{
    model::{QueueId, Topic},
    protocol::{
        body::{self, DataVersion},
        json,
    },
    store::MessageStore,
};

/// What stands between topic and group in a key of the file.
const SEPARATOR: char = '@';

/// Consumer offsets by group, topic and queue: the next message a group wants. Kept in `consumerOffset.json`, written every few seconds and
/// at a clean stop.
///
/// An offset is never beyond its queue: a group would miss what is stored there later. What a client commits beyond the end, and what an
/// older file says about a queue that lost its end in a crash, counts as the end.
pub(crate) struct ConsumerOffsets {
    version_step: u64,
    store: Arc<MessageStore>,
    file: TableFile,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    groups: HashMap<String, HashMap<Topic, BTreeMap<i32, i64>>>,
    version: DataVersion,
    commits: u64,
}

impl ConsumerOffsets {
    /// Loads the table; a new version of it begins every `version_step` commits.
    pub(crate) fn load(version_step: u64, store: Arc<MessageStore>) -> Self {
        let file = TableFile::new("consumerOffset.json", &store);
        let loaded: body::ConsumerOffsets =
            file.load(|text| json::from_slice(text.as_bytes()).map_err(|error| error.to_string())).unwrap_or_default();
        let offsets = Self { version_step: version_step.max(1), store, file, state: Mutex::default() };
        let mut state = State { version: loaded.data_version, ..State::default() };
        let mut is_corrected = false;
        for (key, queues) in loaded.offset_table {
            let Some((topic, group)) = key.split_once(SEPARATOR) else {
                tracing::warn!(key, "consumer offset without a group left out");
                continue;
            };
            let topic = Topic::from(topic);
            for (queue_id, offset) in queues {
                let within = offset.clamp(0, offsets.next(&topic, queue_id));
                if within != offset {
                    let said = offset;
                    tracing::warn!(topic = %topic, queue_id, group, said, queue_offset = within, "consumer offset beyond its queue corrected");
                    is_corrected = true;
                    offsets.file.note_change();
                }
                state
                    .groups
                    .entry(group.into())
                    .or_default()
                    .entry(topic.clone())
                    .or_default()
                    .insert(queue_id, within);
            }
        }
        *offsets.state() = state;
        if is_corrected && let Err(error) = offsets.save() {
            // Should the broker stop before the next save, what the queue got meanwhile would seem read.
            tracing::error!(%error, "corrected consumer offsets not saved");
        }
        offsets
    }

    /// The stored offset of a group.
    pub(crate) fn get(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        self.state().groups.get(group)?.get(topic)?.get(&queue_id).copied()
    }

    /// Stores an offset, whether it is larger or smaller than before.
    pub(crate) fn commit(&self, group: &str, topic: &str, queue_id: i32, offset: i64) {
        let within = offset.clamp(0, self.end(topic, queue_id));
        if within != offset {
            tracing::debug!(
                topic,
                queue_id,
                group,
                said = offset,
                queue_offset = within,
                "commit beyond the queue counts as its end"
            );
        }
        let now = self.store.env().clock.wall();
        let mut state = self.state();
        let topics = match state.groups.get_mut(group) {
            Some(topics) => topics,
            None => state.groups.entry(group.into()).or_default(),
        };
        let queues = match topics.get_mut(topic) {
            Some(queues) => queues,
            None => topics.entry(Topic::from(topic)).or_default(),
        };
        let before = queues.insert(queue_id, within);
        if before.is_some_and(|before| before > within) {
            tracing::debug!(topic, queue_id, group, before, queue_offset = within, "consumer offset went back");
        }
        state.commits += 1;
        if state.commits.is_multiple_of(self.version_step) {
            state.version = state.version.next(now.0);
        }
        if before != Some(within) {
            self.file.note_change();
        }
    }

    /// The topics a group has offsets in.
    pub(crate) fn topics_of(&self, group: &str) -> BTreeSet<Topic> {
        self.state().groups.get(group).into_iter().flat_map(HashMap::keys).cloned().collect()
    }

    /// The groups that have offsets in a topic.
    pub(crate) fn groups_of(&self, topic: &str) -> BTreeSet<String> {
        let state = self.state();
        state.groups.iter().filter(|(_, topics)| topics.contains_key(topic)).map(|(group, _)| group.clone()).collect()
    }

    /// Forgets a topic.
    pub(crate) fn remove_topic(&self, topic: &str) {
        let mut state = self.state();
        let mut removed = false;
        for topics in state.groups.values_mut() {
            removed |= topics.remove(topic).is_some();
        }
        if removed {
            state.groups.retain(|_, topics| !topics.is_empty());
            self.note_removal(&mut state);
        }
    }

    /// Forgets a group.
    pub(crate) fn remove_group(&self, group: &str) {
        let mut state = self.state();
        if state.groups.remove(group).is_some() {
            self.note_removal(&mut state);
        }
    }

    /// The whole table, as tools and the file have it.
    pub(crate) fn all(&self) -> body::ConsumerOffsets {
        self.state().to_body()
    }

    /// Writes the file if anything changed since it was last written.
    ///
    /// # Errors
    /// As the directory gives them; the next save tries again.
    pub(crate) fn save(&self) -> io::Result<()> {
        self.file.save(|| json::to_vec_pretty(&self.all()))
    }

    /// How often the file could not be saved.
    pub(crate) fn save_failures(&self) -> u64 {
        self.file.failures()
    }

    /// The offset behind the last message of a queue.
    fn end(&self, topic: &str, queue_id: i32) -> i64 {
        let queue_id = u32::try_from(queue_id).ok().map(QueueId);
        let range = queue_id.and_then(|queue_id| self.store.queue_range(topic, queue_id)).unwrap_or_default();
        i64::try_from(range.max.0).unwrap_or(i64::MAX)
    }

    /// The offset of the next message of a queue, whether the entries of those before it could be written or not.
    fn next(&self, topic: &str, queue_id: i32) -> i64 {
        let next = u32::try_from(queue_id).map(|queue_id| self.store.next_queue_offset(topic, QueueId(queue_id)).0);
        i64::try_from(next.unwrap_or(0)).unwrap_or(i64::MAX)
    }

    fn note_removal(&self, state: &mut State) {
        state.version = state.version.next(self.store.env().clock.wall().0);
        self.file.note_change();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn to_body(&self) -> body::ConsumerOffsets {
        let mut table = BTreeMap::new();
        for (group, topics) in &self.groups {
            for (topic, queues) in topics {
                table.insert(format!("{topic}{SEPARATOR}{group}"), queues.clone());
            }
        }
        body::ConsumerOffsets { data_version: self.version, offset_table: table }
    }
}
