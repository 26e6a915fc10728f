//! How long a delay level waits, as a token of `messageDelayLevel`: a decimal number and, as its last character, a unit: `s`, `m`, `h` or `d`.
//!
//! Source: Apache RocketMQ, `org.apache.rocketmq.broker.schedule.ScheduleMessageService.parseDelayLevel`.

use std::{fmt, str::FromStr, time::Duration};

/// Units and their milliseconds, the longest first.
const UNITS: [(char, u64); 4] = [('d', 86_400_000), ('h', 3_600_000), ('m', 60_000), ('s', 1_000)];

/// A duration as a token of the table of delay levels. Written in the longest unit that divides it, in `ms` if none does; read in whole units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayText(pub Duration);

/// Why a text is no such token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DelayTextError {
    /// The last character is no unit.
    #[error("it must end with a unit: s, m, h or d")]
    Unit,
    /// What stands before the unit is no whole number.
    #[error("before the unit there must be a whole number")]
    Number,
    /// It is below zero.
    #[error("it must not be below zero")]
    Negative,
    /// In milliseconds it is more than 64 bits hold.
    #[error("it is too long")]
    TooLong,
}

impl fmt::Display for DelayText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match UNITS.iter().find(|(_, unit_ms)| ms > 0 && ms.is_multiple_of(u128::from(*unit_ms))) {
            Some((name, unit_ms)) => write!(f, "{}{name}", ms / u128::from(*unit_ms)),
            None => write!(f, "{ms}ms"),
        }
    }
}

impl FromStr for DelayText {
    type Err = DelayTextError;

    fn from_str(token: &str) -> Result<Self, DelayTextError> {
        let unit = token.chars().last().ok_or(DelayTextError::Unit)?;
        let &(_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(DelayTextError::Unit)?;
        let number = &token[..token.len() - unit.len_utf8()];
        let digits = number.strip_prefix(['+', '-']).unwrap_or(number);
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(DelayTextError::Number);
        }
        let is_zero = digits.bytes().all(|digit| digit == b'0');
        if number.starts_with('-') && !is_zero {
            return Err(DelayTextError::Negative);
        }
        let delay_ms = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
        delay_ms.map(|delay_ms| Self(Duration::from_millis(delay_ms))).ok_or(DelayTextError::TooLong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read_and_the_longest_that_divides_is_written() {
        for (read, written) in
            [("1s", "1s"), ("60s", "1m"), ("90s", "90s"), ("+2h", "2h"), ("48h", "2d"), ("0s", "0ms")]
        {
            assert_eq!(read.parse::<DelayText>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_is_no_token_says_why() {
        let reason = |text: &str| text.parse::<DelayText>().unwrap_err();
        assert_eq!(["", "5", "5S", "5秒"].map(reason), [DelayTextError::Unit; 4]);
        assert_eq!(["s", "+s", "--1s", "1.5s", " 1s", "5ms"].map(reason), [DelayTextError::Number; 6]);
        assert_eq!(["-5s", "-99999999999999999999d"].map(reason), [DelayTextError::Negative; 2]);
        assert_eq!(["99999999999999999999s", "9223372036854775807d"].map(reason), [DelayTextError::TooLong; 2]);
    }
}
