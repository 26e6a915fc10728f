//! Failures in a row of something that is tried again and again.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tracing::{error, info};

/// Shortest time between two lines in the log about one row of failures.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// Says once that something fails, then at most once a minute how often, and at last that it goes again.
#[derive(Debug)]
pub(crate) struct FailureRow {
    /// What fails, behind "cannot".
    what: &'static str,
    row: Mutex<Option<Row>>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    failures: u64,
    logged_at: Duration,
}

/// What there is to say after an attempt.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// It failed, so often in a row.
    Fails(u64),
    /// It failed so often, and goes again.
    Goes(u64),
}

impl FailureRow {
    /// Nothing failed yet. `what` is said in "cannot `what`".
    pub(crate) const fn new(what: &'static str) -> Self {
        Self { what, row: Mutex::new(None) }
    }

    /// Logs, if it is time to, what became of an attempt at `now` (time since the boot), for the file or folder `path`; an error with its cause.
    pub(crate) fn attempted<T>(
        &self,
        outcome: Result<T, &(dyn std::error::Error + 'static)>,
        now: Duration,
        path: impl FnOnce() -> String,
    ) {
        let what = self.what;
        match (self.news(outcome.is_err(), now), outcome) {
            (Some(News::Fails(failures)), Err(error)) => {
                let path = path();
                error!(error, path, failures, "cannot {what}; trying again");
            }
            (Some(News::Goes(failures)), _) => {
                let path = path();
                info!(path, failures, "can {what} again");
            }
            _ => {}
        }
    }

    fn news(&self, failed: bool, now: Duration) -> Option<News> {
        let mut row = self.row.lock().unwrap_or_else(PoisonError::into_inner);
        if !failed {
            return row.take().map(|row| News::Goes(row.failures));
        }
        let failures = row.map_or(0, |row| row.failures) + 1;
        let is_due = row.is_none_or(|row| now.saturating_sub(row.logged_at) >= LOG_PAUSE);
        let logged_at = row.filter(|_| !is_due).map_or(now, |row| row.logged_at);
        *row = Some(Row { failures, logged_at });
        is_due.then_some(News::Fails(failures))
    }

    /// Whether the last attempt failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.row.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_of_a_row_one_a_minute_and_the_end_are_told_and_nothing_else() {
        let row = FailureRow::new("do it");
        let at = |failed, seconds| row.news(failed, Duration::from_secs(seconds));

        assert_eq!(at(false, 0), None);
        assert_eq!(at(true, 1), Some(News::Fails(1)));
        assert_eq!([at(true, 2), at(true, 60)], [None, None]);
        assert_eq!(at(true, 61), Some(News::Fails(4)));
        assert_eq!(at(true, 62), None);
        assert!(row.is_failing());
        assert_eq!(at(false, 63), Some(News::Goes(5)));
        assert_eq!(at(false, 64), None);
        assert_eq!(at(true, 65), Some(News::Fails(1)), "another row");
    }
}
