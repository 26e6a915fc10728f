//! `latermq levels`: the delay levels of running brokers.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use clap::Args;
use serde_json::json;

use super::{
    cluster::{Cluster, ClusterArgs, block_on},
    failure::Failure,
    print::{self, Output},
    send::now_ms,
};
use crate::{delay::about, model::DelayText};

/// Show the delay levels of running brokers: how long each waits, how many messages wait in it, when the next is due
///
/// When the next message is due only latermq tells; for a broker of another make the column is empty. After a change of the table a level has a
/// second row, "earlier", for the messages that still wait as it was before, and one that is gone from the table is shown as long as messages
/// wait on it: all keep their time.
#[derive(Debug, Args)]
pub(super) struct LevelsArgs {
    /// Ask the broker at this address, host:port, instead of every broker that the name server knows
    #[arg(short, long, value_name = "ADDRESS")]
    broker: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The delay levels of a broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LevelWords(Vec<(String, Duration)>);

impl LevelWords {
    /// Reads `messageDelayLevel` as a broker gives it; empty if it cannot be read.
    pub(super) fn of(config: &HashMap<String, String>) -> Self {
        let words = config.get("messageDelayLevel").map(String::as_str).unwrap_or_default();
        Self(
            words
                .split_ascii_whitespace()
                .map(|word| Some((word.to_owned(), word.parse::<DelayText>().ok()?.0)))
                .collect::<Option<_>>()
                .unwrap_or_default(),
        )
    }

    /// A level's word and duration; levels beyond the last are the last.
    pub(super) fn get(&self, level: usize) -> Option<(&str, Duration)> {
        let (word, duration) = self.0.get(level.min(self.0.len()).checked_sub(1)?)?;
        Some((word, *duration))
    }
}

/// One row of the table.
struct Level {
    broker: String,
    level: usize,
    /// How long its messages wait; `None` where the broker does not say.
    delay: Option<Duration>,
    word: String,
    /// How it stands to the table.
    table: InTable,
    pending: i64,
    next_at: Option<i64>,
}

/// How the messages of a row stand to the table of levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InTable {
    /// They wait as the table says.
    Now,
    /// They wait as the level was before a change of the table.
    Earlier,
    /// Their level is gone from the table.
    Gone,
}

/// What waits of one generation of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    delay: Option<Duration>,
    pending: i64,
    next_at: Option<i64>,
}

pub(super) fn run(args: &LevelsArgs) -> Result<(), Failure> {
    let (levels, notes) = block_on(ask(args))?;
    let now = now_ms();
    match args.output {
        Output::Json => {
            let values = levels.iter().map(|level| {
                json!({
                    "broker": level.broker, "level": level.level, "delayMs": level.delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
                    "table": level.table.word(), "pending": level.pending, "nextDeliverAt": level.next_at,
                })
            });
            print::json(&values.collect())?;
        }
        Output::Text => {
            let rows = levels.iter().map(|level| {
                vec![
                    level.broker.clone(),
                    level.level.to_string(),
                    level.word.clone(),
                    level.table.word().to_owned(),
                    level.pending.to_string(),
                    level.next_at.map_or_else(String::new, |at| due(at - now)),
                ]
            });
            print::table(&["BROKER", ">LEVEL", ">DELAY", "TABLE", ">PENDING", "NEXT DUE"], &rows.collect::<Vec<_>>())?;
            for note in notes {
                print::line(&note)?;
            }
        }
    }
    Ok(())
}

async fn ask(args: &LevelsArgs) -> Result<(Vec<Level>, Vec<String>), Failure> {
    let cluster = Cluster::new(&args.cluster)?;
    let brokers = match &args.broker {
        Some(address) => [(address.clone(), address.clone())].into(),
        None => cluster.masters().await?,
    };
    let (mut levels, mut notes) = (Vec::new(), Vec::new());
    for (name, address) in brokers {
        let words = LevelWords::of(&cluster.broker_config(&address).await?);
        let figures = cluster.broker_figures(&address).await?;
        notes.extend(store_notes(&figures).into_iter().map(|note| format!("{name}: {note}")));
        for level in 1..=words.0.len().max(last_used(&figures)) {
            let in_table = words.0.get(level - 1);
            let number = |name: &str| figures.get(&format!("{name}{{level={level}}}"))?.parse::<f64>().ok();
            // RocketMQ's own figure, `delivered,max`, is absent until the level was used.
            let behind = || {
                let (delivered, max) = figures.get(&format!("scheduleMessageOffset_{level}"))?.split_once(',')?;
                Some(max.parse::<i64>().ok()? - delivered.parse::<i64>().ok()?)
            };
            let pending = number("delayPending").map(|pending| pending as i64).or_else(behind);
            let next_at = number("delayNextDeadlineMs").map(|at| at as i64);
            let whole = Part { delay: in_table.map(|(_, delay)| *delay), pending: pending.unwrap_or(0), next_at };
            let rows = rows(whole, &parts(&figures, level), in_table.is_some());
            levels.extend(rows.into_iter().map(|(Part { delay, pending, next_at }, table)| {
                let word = match (in_table, table) {
                    (Some((word, _)), InTable::Now) => word.clone(),
                    _ => delay.map_or_else(String::new, |delay| DelayText(delay).to_string()),
                };
                Level { broker: name.clone(), level, delay, word, table, pending, next_at }
            }));
        }
    }
    Ok((levels, notes))
}

/// What someone should know of a broker's store, by its figures.
fn store_notes(figures: &BTreeMap<String, String>) -> Vec<String> {
    let number = |name: &str| figures.get(name).and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0) as u64;
    let mut notes = Vec::new();
    for (reason, words) in [
        ("diskUse", "the disk is too full"),
        ("pending", "what waits needs the room"),
        ("noSpace", "the file system had no space"),
        ("io", "the log could not be written"),
    ] {
        let count = number(&format!("refusedSends{{reason={reason}}}"));
        if count > 0 {
            notes.push(format!("{count} sends were refused since the start: {words}"));
        }
    }
    if let Some(from) = figures.get("pinnedFrom{by=levels}") {
        let bytes = number("pinnedBytes{by=levels}");
        notes.push(format!("what waits keeps {bytes} bytes of the log, from position {from} on"));
    }
    let damaged = number("damagedBytes");
    if damaged > 0 {
        let (messages, uncounted) = (number("damagedMessages"), number("damagedRangesUncounted"));
        let more = if uncounted > 0 { ", and an unknown number more" } else { "" };
        notes.push(format!(
            "{damaged} bytes of the log are damaged or missing, {messages} messages{more}: see the log of the broker"
        ));
    }
    let behind = number("queuesBehind");
    if behind > 0 {
        notes.push(format!("{behind} queues cannot be written and are behind"));
    }
    notes
}

impl InTable {
    fn word(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Earlier => "earlier",
            Self::Gone => "gone",
        }
    }
}

/// The generations of a level that a broker's figures speak of, in order; none for a broker of another make.
fn parts(figures: &BTreeMap<String, String>, level: usize) -> Vec<Part> {
    let prefix = format!("delayGenerationPending{{level={level},generation=");
    let mut generations: Vec<u32> =
        figures.keys().filter_map(|name| name.strip_prefix(&prefix)?.strip_suffix('}')?.parse().ok()).collect();
    generations.sort_unstable();
    let parts = generations.into_iter().map(|generation| {
        let number =
            |name: &str| figures.get(&format!("{name}{{level={level},generation={generation}}}"))?.parse::<f64>().ok();
        Part {
            delay: number("delayGenerationMs").map(|ms| Duration::from_millis(ms as u64)),
            pending: number("delayGenerationPending").map_or(0, |pending| pending as i64),
            next_at: number("delayGenerationNextDeadlineMs").map(|at| at as i64),
        }
    });
    parts.collect()
}

/// The rows of a level: what waits as the table says, also if that is nothing, and each other duration that messages still wait for.
fn rows(whole: Part, parts: &[Part], is_in_table: bool) -> Vec<(Part, InTable)> {
    let other = if is_in_table { InTable::Earlier } else { InTable::Gone };
    let mut earlier: Vec<Part> = Vec::new();
    let mut now = Part { delay: whole.delay, pending: 0, next_at: None };
    if parts.is_empty() {
        now = whole;
    }
    for part in parts {
        // What Apache RocketMQ stored tells no duration: it counts as the table says.
        let is_now = is_in_table && part.delay.is_none_or(|delay| Some(delay) == whole.delay);
        let same = earlier.iter_mut().find(|known| known.delay == part.delay);
        let into = match same {
            _ if is_now => &mut now,
            Some(known) => known,
            None => earlier.push_mut(Part { pending: 0, next_at: None, ..*part }),
        };
        into.pending += part.pending;
        into.next_at = into.next_at.into_iter().chain(part.next_at).min();
    }
    let mut rows = Vec::new();
    if is_in_table {
        rows.push((now, InTable::Now));
    } else if now.pending > 0 {
        rows.push((now, InTable::Gone));
    }
    rows.extend(earlier.into_iter().map(|part| (part, other)));
    rows
}

/// The last level that a broker's figures speak of.
fn last_used(figures: &BTreeMap<String, String>) -> usize {
    let levels = figures.keys().filter_map(|name| name.strip_prefix("scheduleMessageOffset_")?.parse().ok());
    levels.max().unwrap_or(0)
}

pub(super) fn due(in_ms: i64) -> String {
    match u64::try_from(in_ms) {
        Ok(ms) if ms > 0 => format!("in {}", about(Duration::from_millis(ms))),
        _ => "now".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_that_were_used_are_known_from_the_figures() {
        let figures = [("scheduleMessageOffset_3", "0,1"), ("scheduleMessageOffset_12", "0,1"), ("putTps", "0.0")];
        let figures = figures.map(|(name, value)| (name.to_owned(), value.to_owned())).into();

        assert_eq!(last_used(&figures), 12);
        assert_eq!(last_used(&BTreeMap::new()), 0);
    }

    #[test]
    fn after_a_change_of_the_table_a_level_has_a_row_for_each_duration_that_still_counts() {
        let part = |seconds: u64, pending: i64, next_at: i64| Part {
            delay: Some(Duration::from_secs(seconds)),
            pending,
            next_at: Some(next_at),
        };
        let figures = [
            ("delayGenerationPending{level=1,generation=10}", "4"),
            ("delayGenerationMs{level=1,generation=10}", "10000"),
            ("delayGenerationNextDeadlineMs{level=1,generation=10}", "90"),
            ("delayGenerationPending{level=1,generation=9}", "2"),
            ("delayGenerationMs{level=1,generation=9}", "3000"),
            ("delayGenerationNextDeadlineMs{level=1,generation=9}", "80"),
            ("delayGenerationPending{level=11,generation=1}", "7"),
        ];
        let figures = figures.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let parts = parts(&figures, 1);
        assert_eq!(parts, [part(3, 2, 80), part(10, 4, 90)]);

        let whole = part(10, 6, 80);
        assert_eq!(rows(whole, &parts, true), [(part(10, 4, 90), InTable::Now), (part(3, 2, 80), InTable::Earlier)]);
        let gone = Part { delay: None, ..whole };
        assert_eq!(rows(gone, &parts, false), [(part(3, 2, 80), InTable::Gone), (part(10, 4, 90), InTable::Gone)]);
        assert_eq!(rows(whole, &[], true), [(whole, InTable::Now)], "of another make");
        assert_eq!(rows(Part { pending: 0, ..gone }, &[], false), []);
    }

    #[test]
    fn a_level_beyond_the_last_is_the_last() {
        let words = LevelWords::of(&HashMap::from([("messageDelayLevel".to_owned(), "1s 5m 2h".to_owned())]));

        assert_eq!(words.get(2), Some(("5m", Duration::from_secs(300))));
        assert_eq!(words.get(99), Some(("2h", Duration::from_secs(7200))));
        assert_eq!(words.get(0), None);
        assert_eq!(LevelWords::of(&HashMap::new()).get(1), None);
    }
}
