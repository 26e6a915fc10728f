//! Delayed messages: a plugin of the store.

mod admission;
mod levels;
mod options;
mod park;
mod plugin;
mod real_topics;
#[allow(dead_code)]
mod stamp;

pub use levels::{
    DELAY_MS_MAX, DelayLevel, DelayText, LEVELS_DEFAULT, LEVELS_KEY, LEVELS_MAX, LevelTable, LevelTableError,
    LevelTableReason,
};
pub use options::DelayOptions;
pub use park::PARKING_TOPIC;
pub use plugin::LevelScheduler;
pub use real_topics::{RealQueue, RealTopics};
