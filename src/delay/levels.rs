//! The table of delay levels: what `messageDelayLevel` says.
//!
//! The text is tokens separated by single spaces; spaces behind the last token are allowed. A token is a [`DelayText`]. The first
//! token is level 1. Levels need not ascend.
//!
//! Unlike Apache RocketMQ, which keeps the levels before a bad token and takes zero and negative values, the text counts whole or not at
//! all, and each value is above zero.
//!
//! Source: Apache RocketMQ, `org.apache.rocketmq.broker.schedule.ScheduleMessageService.parseDelayLevel`.

use std::{fmt, str::FromStr, time::Duration};

use super::stamp::DELIVER_AT_MS_MAX;
use crate::{
    model::{DelayText, DelayTextError, QueueId, Timestamp},
    mutation::Mutation,
};

/// The key of `broker.conf`.
pub const LEVELS_KEY: &str = "messageDelayLevel";
/// RocketMQ's table.
pub const LEVELS_DEFAULT: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";
/// Most levels a table may have.
pub const LEVELS_MAX: usize = 1024;
/// Longest delay of a level in milliseconds, about 4459 years: the deliver time must fit the 48 bits it has in a record.
pub const DELAY_MS_MAX: u64 = DELIVER_AT_MS_MAX / 2;

/// A delay level, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DelayLevel(u32);

/// How long each level waits. Not empty; a change of the table is another table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelTable {
    delays: Vec<Duration>,
}

/// Why a text is not a table of levels. Whoever knows file and line adds them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{LEVELS_KEY}: token {number} {token:?} at column {column}: {reason}")]
pub struct LevelTableError {
    /// Which token, counted from 1.
    pub number: usize,
    /// The token as it stands in the text.
    pub token: String,
    /// Where it begins in the text, in characters from 1.
    pub column: usize,
    /// What is wrong with it.
    pub reason: LevelTableReason,
}

/// What is wrong with a token of a table of levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LevelTableReason {
    /// The text has no token at all.
    #[error("there must be at least one level, such as 1s")]
    Empty,
    /// A space too many, in front or between two tokens.
    #[error("levels are separated by single spaces, with none in front")]
    Space,
    /// The last character is no unit.
    #[error("it must end with a unit: s, m, h or d")]
    Unit,
    /// What stands before the unit is no whole number.
    #[error("before the unit there must be a whole number")]
    Number,
    /// Zero or less.
    #[error("each value must be above zero")]
    NotAboveZero,
    /// Longer than [`DELAY_MS_MAX`].
    #[error("no level may be longer than {} days", DELAY_MS_MAX / 86_400_000)]
    TooLong,
    /// More than [`LEVELS_MAX`] tokens.
    #[error("there may be at most {LEVELS_MAX} levels")]
    TooMany,
}

impl DelayLevel {
    /// The level with this number; `None` for 0.
    pub fn new(number: u32) -> Option<Self> {
        (number > 0).then_some(Self(number))
    }

    /// The level whose messages wait in this queue of the schedule topic.
    pub fn of_queue(queue_id: QueueId) -> Self {
        Self(queue_id.0.saturating_add(1))
    }

    /// Its number, from 1.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The queue of the schedule topic in which its messages wait.
    pub fn queue_id(self) -> QueueId {
        QueueId(self.0 - 1)
    }
}

impl LevelTable {
    /// The last level, to which higher numbers are clamped.
    pub fn max(&self) -> DelayLevel {
        DelayLevel(u32::try_from(self.delays.len()).unwrap_or(u32::MAX))
    }

    /// The level a message asks for, clamped to the table; `None` if it asks for none (zero or less).
    pub fn clamp(&self, asked: i32) -> Option<DelayLevel> {
        DelayLevel::new(u32::try_from(asked).unwrap_or(0)).map(|level| level.min(self.max()))
    }

    /// How long a level waits; `None` if it is beyond the table.
    pub fn duration(&self, level: DelayLevel) -> Option<Duration> {
        self.delays.get(level.queue_id().0 as usize).copied()
    }

    /// How long a message of this level waits. Levels beyond the table wait a second, as in RocketMQ.
    pub(super) fn wait(&self, level: DelayLevel) -> Duration {
        let early = Duration::from_secs(u64::from(Mutation::SecondEarly.is_on()));
        self.duration(level).unwrap_or(Duration::from_secs(1)).saturating_sub(early)
    }

    /// The deliver time of a message of this level that is stored at `stored_at`.
    pub fn deliver_at(&self, level: DelayLevel, stored_at: Timestamp) -> Timestamp {
        stored_at.plus(self.wait(level))
    }

    /// Levels and their durations, in order.
    pub fn iter(&self) -> impl Iterator<Item = (DelayLevel, Duration)> {
        (1..).map(DelayLevel).zip(self.delays.iter().copied())
    }
}

impl Default for LevelTable {
    fn default() -> Self {
        LEVELS_DEFAULT.parse().expect("the default table is well formed, as a test holds")
    }
}

impl FromStr for LevelTable {
    type Err = LevelTableError;

    fn from_str(text: &str) -> Result<Self, LevelTableError> {
        let text = text.trim_end_matches(' ');
        let mut delays = Vec::new();
        let mut column = 1;
        for (index, token) in text.split(' ').enumerate() {
            let delay = if text.is_empty() {
                Err(LevelTableReason::Empty)
            } else if index == LEVELS_MAX {
                Err(LevelTableReason::TooMany)
            } else {
                parse_token(token)
            };
            let delay =
                delay.map_err(|reason| LevelTableError { number: index + 1, token: token.into(), column, reason })?;
            delays.push(delay);
            column += token.chars().count() + 1;
        }
        Ok(Self { delays })
    }
}

fn parse_token(token: &str) -> Result<Duration, LevelTableReason> {
    if token.is_empty() {
        return Err(LevelTableReason::Space);
    }
    let DelayText(delay) = token.parse().map_err(|error| match error {
        DelayTextError::Unit => LevelTableReason::Unit,
        DelayTextError::Number => LevelTableReason::Number,
        DelayTextError::Negative => LevelTableReason::NotAboveZero,
        DelayTextError::TooLong => LevelTableReason::TooLong,
    })?;
    if delay.is_zero() {
        return Err(LevelTableReason::NotAboveZero);
    }
    if delay > Duration::from_millis(DELAY_MS_MAX) {
        return Err(LevelTableReason::TooLong);
    }
    Ok(delay)
}

/// Each level and its duration, in the longest unit that divides it: `1 = 1s, 2 = 5s, 3 = 2m`.
impl fmt::Display for LevelTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (level, delay) in self.iter() {
            let comma = if level.number() == 1 { "" } else { ", " };
            write!(f, "{comma}{level} = {}", DelayText(delay))?;
        }
        Ok(())
    }
}

impl fmt::Display for DelayLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A length of time in the words of a person, about: `3.0 s`, `40 min`, `7 h 5 min`, `12 days 3 h`.
pub fn about(time: Duration) -> String {
    let ms = time.as_millis();
    let (seconds, minutes, hours) = (ms / 1_000, ms / 60_000, ms / 3_600_000);
    match ms {
        0..10_000 => format!("{:.1} s", time.as_secs_f64()),
        10_000..120_000 => format!("{seconds} s"),
        120_000..7_200_000 => format!("{minutes} min"),
        7_200_000..172_800_000 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{} days {} h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn delays_ms(text: &str) -> Vec<u128> {
        text.parse::<LevelTable>().unwrap().iter().map(|(_, delay)| delay.as_millis()).collect()
    }

    fn reason(text: &str) -> LevelTableReason {
        text.parse::<LevelTable>().unwrap_err().reason
    }

    #[test]
    fn schedule_1_the_default_table_has_eighteen_levels() {
        let wanted = [
            1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000,
            540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
        ];

        assert_eq!(delays_ms(LEVELS_DEFAULT), wanted);
        assert_eq!(LevelTable::default().max(), DelayLevel(18));
    }

    #[test]
    fn schedule_3_every_unit_is_understood() {
        assert_eq!(delays_ms("1s 1m 1h 1d"), [1_000, 60_000, 3_600_000, 86_400_000]);
        assert_eq!(delays_ms("2m 1s +30s"), [120_000, 1_000, 30_000]);
    }

    #[test]
    fn schedule_4_a_bad_token_spoils_the_whole_table() {
        for text in ["1s  5s", " 1s"] {
            assert_eq!(reason(text), LevelTableReason::Space, "{text:?}");
        }
        for text in ["5S", "5", "1s\t5", "1s 2x 3s", "1s 5秒"] {
            assert_eq!(reason(text), LevelTableReason::Unit, "{text:?}");
        }
        for text in ["1.5s", "s", "1s\t5s", "+s", "--1s", "5ms", "0x5s"] {
            assert_eq!(reason(text), LevelTableReason::Number, "{text:?}");
        }
        for text in ["", "   "] {
            assert_eq!(reason(text), LevelTableReason::Empty, "{text:?}");
        }
        for text in ["0s", "-5s", "1s 000m", "-0s"] {
            assert_eq!(reason(text), LevelTableReason::NotAboveZero, "{text:?}");
        }
        for text in ["9223372036854775807d", "99999999999999999999s", "1700000d"] {
            assert_eq!(reason(text), LevelTableReason::TooLong, "{text:?}");
        }
        assert_eq!(reason(&"1s ".repeat(LEVELS_MAX + 1)), LevelTableReason::TooMany);
    }

    #[test]
    fn an_error_names_key_token_and_position() {
        let error = "1s 2x 3s".parse::<LevelTable>().unwrap_err();

        assert_eq!(
            error.to_string(),
            "messageDelayLevel: token 2 \"2x\" at column 4: it must end with a unit: s, m, h or d"
        );
    }

    #[test]
    fn schedule_5_trailing_spaces_are_allowed() {
        assert_eq!(delays_ms("1s 5s   "), [1_000, 5_000]);
    }

    #[test]
    fn schedule_6_an_unknown_level_waits_a_second() {
        let level = DelayLevel::new(999).unwrap();

        assert_eq!(LevelTable::default().deliver_at(level, Timestamp(0)), Timestamp(1_000));
    }

    #[test]
    fn schedule_7_level_and_queue_differ_by_one() {
        assert_eq!(DelayLevel::new(3).unwrap().queue_id(), QueueId(2));
        assert_eq!(DelayLevel::of_queue(QueueId(3)).number(), 4);
    }

    #[test]
    fn schedule_11_higher_levels_are_clamped() {
        let table = LevelTable::default();

        assert_eq!(table.clamp(i32::MAX), DelayLevel::new(18));
        assert_eq!(table.clamp(19), DelayLevel::new(18));
        assert_eq!(table.clamp(18), DelayLevel::new(18));
        assert_eq!(table.clamp(1), DelayLevel::new(1));
        assert_eq!(table.clamp(0), None);
        assert_eq!(table.clamp(i32::MIN), None);
    }

    #[test]
    fn the_table_is_shown_level_by_level() {
        assert_eq!("1s 60s 90s 48h".parse::<LevelTable>().unwrap().to_string(), "1 = 1s, 2 = 1m, 3 = 90s, 4 = 2d");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[ 0-9+\\-smhdx\\t秒]{0,24}") {
            if let Ok(table) = text.parse::<LevelTable>() {
                prop_assert!(table.iter().all(|(_, delay)| delay > Duration::ZERO));
            }
        }
    }
}
