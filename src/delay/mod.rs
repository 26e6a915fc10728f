//! Delayed messages: a plugin of the store.
//!
//! A message with a delay level waits as a record in the schedule topic, in the queue of its level, and is restored as a second record of its
//! real topic when it is due. All messages of a level (to be exact: of a *generation* of it, during which its duration did not change) wait
//! equally long, so the queue of the level is itself the sorted index of deadlines, and a waiting message takes no memory.
//!
//! Nothing but the log says how far the scheduler is: each restored record names the waiting record it comes from, in a header field
//! (see `stamp`). What waits (see `progress`) is a fold over the log, so that a crash neither loses nor repeats a message.
//!
//! | file | what it is |
//! | --- | --- |
//! | `levels` | the table of `messageDelayLevel` |
//! | `admission` | what a message must be to be let in |
//! | `stamp` | the number in the header of waiting and restored records |
//! | `generations` | which generation the next message of a level belongs to |
//! | `progress` | what waits, level by level |
//! | `longest` | how long a level's messages were told to wait, at the longest |
//! | `entries` | queue entries, read in blocks |
//! | `restore`, `park` | from a waiting record to the restored one, or to its marker |
//! | `scheduler` | the steps: dispatched, tick |
//! | `driver` | the thread that sleeps until the next deadline |
//! | `delay_offset` | RocketMQ's progress file |
//! | `apache` | what Apache RocketMQ delivered |
//! | `plugin` | what the store sees |
//! | `audit` | what an audit of a store says of delayed messages |

mod admission;
mod apache;
mod audit;
mod delay_offset;
mod driver;
mod entries;
mod figures;
mod generations;
mod levels;
mod longest;
mod options;
mod park;
mod plugin;
mod progress;
mod real_topics;
mod restore;
mod scheduler;
mod stamp;

pub use crate::model::PARKING_TOPIC;
pub use audit::{DelaySummary, LevelAudit, LevelSummary};
pub use levels::{
    DELAY_MS_MAX, DelayLevel, LEVELS_DEFAULT, LEVELS_KEY, LEVELS_MAX, LevelTable, LevelTableError, LevelTableReason,
    about,
};
pub use options::{DelayOptions, PARK_AFTER_KEY};
pub use park::PARKED_REASON;
pub use plugin::LevelScheduler;
pub use real_topics::{RealQueue, RealTopics};
pub use scheduler::{AHEAD_BYTES_MAX, BATCH_BYTES_MAX, BATCH_RECORDS_MAX, PAUSE_MAX, PAUSE_MIN, READ_PATIENCE, Tick};

#[cfg(test)]
mod tests;
