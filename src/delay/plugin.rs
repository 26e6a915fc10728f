//! The scheduler as the store sees it.

use std::sync::{Arc, Mutex};

use super::{DelayOptions, RealTopics, admission};
use crate::{
    model::MessageDraft,
    store::{Admission, AdmitContext, Dispatched, Mark, Plugin, Refusal, StoreHandle},
};

/// Delivers messages with a delay level when they are due; a plugin of the store.
pub struct LevelScheduler {
    options: DelayOptions,
    handle: Mutex<Option<StoreHandle>>,
}

impl LevelScheduler {
    /// A scheduler for this table of levels; `topics` says where due messages go.
    pub fn new(options: DelayOptions, topics: Arc<dyn RealTopics>) -> Self {
        drop(topics);
        Self { options, handle: Mutex::new(None) }
    }
}

impl Plugin for LevelScheduler {
    fn name(&self) -> &'static str {
        "levels"
    }

    fn attach(&self, store: StoreHandle) {
        *self.handle.lock().expect("a handle is set or not") = Some(store);
    }

    fn admit(&self, draft: &mut MessageDraft, context: &AdmitContext<'_>) -> Result<Admission, Refusal> {
        let level = admission::admit(&self.options.levels, draft, context)?;
        Ok(level.map_or(Admission::Pass, |level| Admission::Marked(Mark(u64::from(level.number())))))
    }

    fn dispatched(&self, record: &Dispatched<'_>) {
        let _ = record;
    }
}
