//! Unique keys for messages whose producers gave them none.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicU16, Ordering},
};

use crate::model::Timestamp;

const MILLIS_PER_DAY: i64 = 86_400_000;

/// Makes keys in the form of Java clients: upper-case hex of address (4 or 16 bytes), process id (2), a number drawn at start (4),
/// milliseconds since the month began (4), a counter (2). Tools read the time of a message from it.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.common.message.MessageClientIDSetter`.
pub(crate) struct UniqueKeys {
    prefix: String,
    next: AtomicU16,
}

impl UniqueKeys {
    /// Keys of a broker at this address.
    pub(crate) fn new(address: SocketAddr) -> Self {
        let address = match address.ip() {
            IpAddr::V4(address) => format!("{:08X}", u32::from(address)),
            IpAddr::V6(address) => format!("{:032X}", u128::from(address)),
        };
        let process = std::process::id() & 0xFFFF;
        let prefix = format!("{address}{process:04X}{:08X}", fastrand::u32(..));
        Self { prefix, next: AtomicU16::new(0) }
    }

    /// The next key.
    pub(crate) fn next(&self, now: Timestamp) -> String {
        let counter = self.next.fetch_add(1, Ordering::Relaxed);
        let millis = u32::try_from(since_month_began(now)).unwrap_or(0);
        format!("{}{millis:08X}{counter:04X}", self.prefix)
    }
}

/// Milliseconds since the first of the month, in UTC.
fn since_month_began(now: Timestamp) -> i64 {
    let (days, rest) = (now.0.div_euclid(MILLIS_PER_DAY), now.0.rem_euclid(MILLIS_PER_DAY));
    (day_of_month(days) - 1) * MILLIS_PER_DAY + rest
}

/// The day of the month, counted from 1, of the day so many days after the epoch. In years that begin with March the lengths of the
/// months follow one formula, and the leap day comes last.
fn day_of_month(days_since_epoch: i64) -> i64 {
    let day_of_era = (days_since_epoch + 719_468).rem_euclid(146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    day_of_year - (153 * month + 2) / 5 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_day_of_the_month_is_right_around_leap_days() {
        // 1970-01-01, 2000-02-29, 2000-03-01, 2024-02-29, 2026-11-30, 2100-02-28, 2100-03-01
        let days = [0, 11_016, 11_017, 19_782, 20_787, 47_540, 47_541];
        assert_eq!(days.map(day_of_month), [1, 29, 1, 29, 30, 28, 1]);
    }

    #[test]
    fn keys_have_the_form_of_java_clients_and_never_repeat() {
        let keys = UniqueKeys::new(([10, 0, 0, 1], 10911).into());
        let now = Timestamp(20_787 * MILLIS_PER_DAY + 5);

        let (first, second) = (keys.next(now), keys.next(now));

        assert_ne!(first, second);
        assert_eq!((first.len(), &first[..8]), (32, "0A000001"));
        assert_eq!(i64::from_str_radix(&first[20..28], 16).unwrap(), 29 * MILLIS_PER_DAY + 5);
        assert!(first.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase()));
    }
}
