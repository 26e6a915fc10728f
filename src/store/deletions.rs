//! Topics that were deleted on request: up to which position of the log what was stored for them is gone.
//!
//! Kept in `config/deletedTopics.json` as `{"deletions":{"<topic>":<position>}}`. Records of the topic below that position are never
//! dispatched to its queues again, neither by the dispatcher, for which they may have come too late, nor by a recovery that reads the whole
//! log. A later message of the topic begins at queue offset 0.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::{Deserialize, Serialize};

use super::StateFile;
use crate::{model::PhysicalOffset, mutation::Mutation};

/// Name of the file.
pub(super) const DELETIONS_FILE: &str = "deletedTopics.json";

/// See the module.
pub(super) struct Deletions {
    file: StateFile,
    state: RwLock<BTreeMap<String, u64>>,
    /// Whether there is none: asked for every record.
    is_empty: AtomicBool,
}

#[derive(Default, Clone, Serialize, Deserialize)]
#[serde(default)]
struct Stored {
    deletions: BTreeMap<String, u64>,
}

impl Deletions {
    /// Reads the file. One that cannot be read counts as empty, with a loud warning: the store opens all the same.
    pub(super) fn load(file: StateFile) -> Self {
        let parse = |text: &str| {
            if !text.trim_start().starts_with('{') {
                return Err("is no JSON object".to_owned());
            }
            serde_json::from_str::<Stored>(text).map_err(|error| error.to_string())
        };
        let loaded = file.load(parse);
        if let super::Loaded::Unreadable(reason) = &loaded {
            tracing::error!(
                error = reason,
                "which topics were deleted cannot be read: what was stored for them may come back"
            );
        }
        let deletions = loaded.value().unwrap_or_default().deletions;
        Self { file, is_empty: AtomicBool::new(deletions.is_empty()), state: RwLock::new(deletions) }
    }

    /// The position below which everything of a topic is deleted.
    pub(super) fn position(&self, topic: &str) -> Option<PhysicalOffset> {
        if self.is_empty.load(Ordering::Acquire) {
            return None;
        }
        self.state().get(topic).copied().map(PhysicalOffset)
    }

    /// Whether a record of a topic at a position is deleted.
    pub(super) fn covers(&self, topic: &str, position: PhysicalOffset) -> bool {
        self.position(topic).is_some_and(|deleted| position < deleted) && !Mutation::DeletedTopicDispatched.is_on()
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<(String, PhysicalOffset)> {
        self.state().iter().map(|(topic, position)| (topic.clone(), PhysicalOffset(*position))).collect()
    }

    /// Takes note of a deletion; durable on return. Deletions below `oldest`, where the log begins, are forgotten.
    ///
    /// # Errors
    /// As the directory gives them; the topic is not deleted then.
    pub(super) fn add(&self, topic: &str, position: PhysicalOffset, oldest: PhysicalOffset) -> io::Result<()> {
        let mut deletions = self.state().clone();
        deletions.retain(|_, deleted| *deleted > oldest.0);
        deletions.insert(topic.to_owned(), position.0);
        let stored = Stored { deletions };
        self.file.save(&serde_json::to_string(&stored).map_err(io::Error::other)?)?;
        let mut state = self.state_mut();
        *state = stored.deletions;
        self.is_empty.store(state.is_empty(), Ordering::Release);
        Ok(())
    }

    fn state(&self) -> RwLockReadGuard<'_, BTreeMap<String, u64>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<String, u64>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}
