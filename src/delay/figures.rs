//! The scheduler's figures, for tools and metrics.
//!
//! | name | label | value |
//! | --- | --- | --- |
//! | `scheduleMessageOffset_<level>` | | text `<delivered>,<max>` as in RocketMQ's runtime info, for each level used so far |
//! | `delayLevelMs` | `level` | how long the level waits; absent if the table has it no more |
//! | `delayPending`, `delayPendingBytes` | `level` | what waits |
//! | `delayNextDeadlineMs` | `level` | when the next message is due by the wall clock as it is now, ms since the epoch; absent if none waits |
//! | `delayPaused` | `level` | how many parts of the level pause after a failure |
//! | `delayGenerationPending` | `level`, `generation` | what waits of one generation of the level; absent once it is drained |
//! | `delayGenerationMs` | `level`, `generation` | how long it waits: differs from `delayLevelMs` after a change of the table; absent for what Apache RocketMQ stored |
//! | `delayGenerationNextDeadlineMs` | `level`, `generation` | when its next message is due |
//! | `delayRestored`, `delayParked` | `level` | since the start |
//! | `delayLateCount`, `delayLateTotalMs`, `delayLateMaxMs` | `level` | deliver time to store time of what was restored, since the start |
//! | `delaySkipped` | | messages restored again since a later one of their level was found restored |
//! | `delayNotWaiting` | | restored records that named no waiting message |
//! | `delayDeliveredByApache` | | messages found at the start that Apache RocketMQ had delivered |
//! | `delayAppendFailures`, `delayReadFailures` | | since the start |
//! | `delayPinnedFrom` | | position of the oldest waiting record; absent if none waits |

use super::scheduler::{LevelView, Scheduler};
use crate::{
    model::Timestamp,
    store::{Figure, FigureValue},
};

/// The figures now.
pub(super) fn figures(scheduler: &Scheduler) -> Vec<Figure> {
    let mut figures = Vec::new();
    let options = scheduler.options();
    let ahead_of_wall_ms = scheduler.store().map_or(0, |store| store.ahead_of_wall_ms());
    for view in scheduler.level_views() {
        let LevelView { level, counts, .. } = view;
        if view.max > 0 {
            let text = format!("{},{}", view.undelivered_from, view.max);
            figures.push(Figure {
                name: format!("scheduleMessageOffset_{level}"),
                labels: Vec::new(),
                value: FigureValue::Text(text),
            });
        }
        let duration = options.levels.duration(level).map(|duration| duration.as_millis() as f64);
        let deadline = deadline_ms(view.next_deadline, ahead_of_wall_ms);
        let numbers = [
            ("delayLevelMs", duration),
            ("delayPending", Some(view.pending as f64)),
            ("delayPendingBytes", Some(view.pending_bytes as f64)),
            ("delayNextDeadlineMs", deadline),
            ("delayPaused", Some(view.paused as f64)),
            ("delayRestored", Some(counts.restored as f64)),
            ("delayParked", Some(counts.parked as f64)),
            ("delayLateCount", Some(counts.restored as f64)),
            ("delayLateTotalMs", Some(counts.late_total.as_millis() as f64)),
            ("delayLateMaxMs", Some(counts.late_max.as_millis() as f64)),
        ];
        figures.extend(numbers.into_iter().filter_map(|(name, value)| {
            let labels = vec![("level", level.to_string())];
            Some(Figure { name: name.into(), labels, value: FigureValue::Number(value?) })
        }));
        for part in view.generations {
            let duration = Some(part.duration.as_millis() as f64).filter(|ms| *ms > 0.0);
            let numbers = [
                ("delayGenerationPending", Some(part.pending as f64)),
                ("delayGenerationMs", duration),
                ("delayGenerationNextDeadlineMs", deadline_ms(part.next_deadline, ahead_of_wall_ms)),
            ];
            figures.extend(numbers.into_iter().filter_map(|(name, value)| {
                let labels = vec![("level", level.to_string()), ("generation", part.generation.0.to_string())];
                Some(Figure { name: name.into(), labels, value: FigureValue::Number(value?) })
            }));
        }
    }
    let counts = scheduler.counts();
    let numbers = [
        ("delaySkipped", Some(counts.skipped as f64)),
        ("delayNotWaiting", Some(counts.not_waiting as f64)),
        ("delayDeliveredByApache", Some(counts.by_apache as f64)),
        ("delayAppendFailures", Some(counts.append_failures as f64)),
        ("delayReadFailures", Some(counts.read_failures as f64)),
        ("delayPinnedFrom", scheduler.pinned_from().map(|position| position.0 as f64)),
    ];
    figures.extend(numbers.into_iter().filter_map(|(name, value)| {
        Some(Figure { name: name.into(), labels: Vec::new(), value: FigureValue::Number(value?) })
    }));
    figures
}

fn deadline_ms(deadline: Option<Timestamp>, ahead_of_wall_ms: i64) -> Option<f64> {
    deadline.map(|deadline| deadline.0.saturating_sub(ahead_of_wall_ms).max(0) as f64)
}
