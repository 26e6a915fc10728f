//! What to send, and how fast.

use std::{str::FromStr, time::Duration};

use super::{BenchError, crowd::Crowd, usage::listener_at};
use crate::protocol::Encoding;

/// What to send, and how fast.
#[derive(Debug, Clone)]
pub struct Load {
    /// The broker, `host:port`.
    pub address: String,
    /// Connections, each on a thread of its own.
    pub connections: usize,
    /// How requests follow each other.
    pub pace: Pace,
    /// Bytes of each body.
    pub body_bytes: usize,
    /// Messages of one request.
    pub batch: usize,
    /// Topics are named `<prefix>0`, `<prefix>1`, …
    pub topic_prefix: String,
    /// How many topics.
    pub topics: usize,
    /// Queues of each topic.
    pub queues: i32,
    /// Levels of the messages.
    pub levels: Levels,
    /// Whether an answer may wait until the message is as durable as the broker's flush policy makes it.
    pub wait_stored: bool,
    /// How headers are written.
    pub encoding: Encoding,
    /// The broker's process; `None` looks for who listens at the address.
    pub pid: Option<u32>,
    /// How long to send before anything is counted.
    pub warm_up: Duration,
    /// How long to send.
    pub duration: Duration,
    /// After how many messages to stop, if that comes earlier.
    pub count: Option<u64>,
    /// Ill-behaved clients beside.
    pub crowd: Option<Crowd>,
}

/// How requests follow each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// So many requests are in flight on each connection; an answer makes room for the next.
    InFlight(usize),
    /// So many messages a second in all connections together, whatever the broker does.
    Rate(f64),
}

/// A mix of delay levels, such as `0:50,3:30,18:20`: level and weight; level 0 is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels(Vec<(u32, u32)>);

/// A text that is no mix of levels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no level or level:weight; a mix looks like 0:50,3:30,18:20, where level 0 is none")]
pub struct LevelsError(String);

impl Default for Load {
    fn default() -> Self {
        Self {
            address: "127.0.0.1:10911".into(),
            connections: 4,
            pace: Pace::InFlight(64),
            body_bytes: 256,
            batch: 1,
            topic_prefix: "bench".into(),
            topics: 1,
            queues: 4,
            levels: Levels::none(),
            wait_stored: true,
            encoding: Encoding::Json,
            pid: None,
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(10),
            count: None,
            crowd: None,
        }
    }
}

impl Load {
    /// The names of the topics.
    pub fn topic_names(&self) -> impl Iterator<Item = String> {
        (0..self.topics).map(|index| format!("{}{index}", self.topic_prefix))
    }

    /// The broker's process, if it can be seen.
    pub(super) fn broker(&self) -> Option<u32> {
        self.pid.or_else(|| listener_at(&self.address))
    }

    /// Which queue and level each request has.
    pub(super) fn turns(&self) -> Turns {
        Turns { levels: self.levels.turn(), places: self.topics * self.queues.unsigned_abs() as usize }
    }
}

/// Which queue and level each request of a connection has: each queue sees each level.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    levels: Vec<u32>,
    places: usize,
}

impl Turns {
    /// The place among all queues of all topics, and the level, of a request.
    pub(super) fn of(&self, connection: usize, request: u64) -> (usize, u32) {
        let slot = request as usize + connection * 7;
        (slot % self.places, self.levels[(slot + slot / self.places) % self.levels.len()])
    }

    /// How many places there are.
    pub(super) fn places(&self) -> usize {
        self.places
    }
}

impl Levels {
    /// No delay.
    pub fn none() -> Self {
        Self(vec![(0, 1)])
    }

    /// One level.
    pub(super) fn one(level: u32) -> Self {
        Self(vec![(level, 1)])
    }

    /// The queue of the schedule topic in which each level of the mix waits, and how long, by the broker's table.
    pub(super) fn waits(&self, durations: &[Duration]) -> Result<Vec<(i32, Duration)>, BenchError> {
        let wait = |level: u32| {
            let duration = durations.get(level as usize - 1).copied();
            let duration = duration.ok_or_else(|| BenchError::Broker(format!("the broker has no level {level}")))?;
            Ok((level as i32 - 1, duration))
        };
        self.levels().into_iter().map(wait).collect()
    }

    /// The levels in turn, each as often as its weight says; 0 is none.
    pub(super) fn turn(&self) -> Vec<u32> {
        let total: u32 = self.0.iter().map(|(_, weight)| weight).sum();
        let mut turn = Vec::new();
        let mut credit: Vec<(u32, i64, u32)> = self.0.iter().map(|&(level, weight)| (level, 0, weight)).collect();
        for _ in 0..total {
            for (_, credit, weight) in &mut credit {
                *credit += i64::from(*weight);
            }
            if let Some(next) = credit.iter_mut().max_by_key(|(_, credit, _)| *credit) {
                next.1 -= i64::from(total);
                turn.push(next.0);
            }
        }
        turn
    }

    /// The levels of the mix, without none.
    pub fn levels(&self) -> Vec<u32> {
        self.0.iter().map(|&(level, _)| level).filter(|level| *level > 0).collect()
    }
}

impl FromStr for Levels {
    type Err = LevelsError;

    fn from_str(text: &str) -> Result<Self, LevelsError> {
        let part = |part: &str| {
            let (level, weight) = part.split_once(':').unwrap_or((part, "1"));
            let level = level.trim().parse().ok().filter(|level| *level <= 100_000)?;
            let weight = weight.trim().parse().ok().filter(|weight| (1..=1000).contains(weight))?;
            Some((level, weight))
        };
        text.split(',').map(|one| part(one).ok_or_else(|| LevelsError(one.into()))).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_gives_each_level_its_share_in_turn() {
        let mix: Levels = "0:2,3:1,18:1".parse().unwrap();

        assert_eq!(mix.turn(), [0, 18, 3, 0]);
        assert_eq!(mix.levels(), [3, 18]);
        assert_eq!("5".parse::<Levels>().unwrap().turn(), [5]);
        for bad in ["", "x", "1:0", "1:x", "-1", "1,"] {
            assert!(bad.parse::<Levels>().is_err(), "{bad:?}");
        }
    }
}
