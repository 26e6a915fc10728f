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

/// What stands for the delay of a level that is no longer in the table.
const GONE: &str = "gone";

/// Show the delay levels of running brokers: how long each waits, how many messages wait in it, when the next is due
///
/// When the next message is due only latermq tells; for a broker of another make the column is empty. A level that is gone from the table is
/// shown as long as messages wait on it: they keep their time.
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
                .map(|word| Some((word.to_owned(), duration(word)?)))
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
    word: String,
    /// `None` for a level that is no longer in the table.
    delay: Option<Duration>,
    pending: i64,
    next_at: Option<i64>,
}

pub(super) fn run(args: &LevelsArgs) -> Result<(), Failure> {
    let levels = block_on(ask(args))?;
    let now = now_ms();
    match args.output {
        Output::Json => {
            let values = levels.iter().map(|level| {
                json!({
                    "broker": level.broker, "level": level.level, "delayMs": level.delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
                    "pending": level.pending, "nextDeliverAt": level.next_at,
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
                    level.pending.to_string(),
                    level.next_at.map_or_else(String::new, |at| due(at - now)),
                ]
            });
            print::table(&["BROKER", ">LEVEL", ">DELAY", ">PENDING", "NEXT DUE"], &rows.collect::<Vec<_>>())?;
        }
    }
    Ok(())
}

async fn ask(args: &LevelsArgs) -> Result<Vec<Level>, Failure> {
    let cluster = Cluster::new(&args.cluster)?;
    let brokers = match &args.broker {
        Some(address) => [(address.clone(), address.clone())].into(),
        None => cluster.masters().await?,
    };
    let mut levels = Vec::new();
    for (name, address) in brokers {
        let words = LevelWords::of(&cluster.broker_config(&address).await?);
        let figures = cluster.broker_figures(&address).await?;
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
            let pending = pending.unwrap_or(0);
            // What waits on a level that is gone from the table is delivered all the same.
            if in_table.is_some() || pending > 0 {
                let (word, delay) =
                    in_table.cloned().map_or((GONE.to_owned(), None), |(word, delay)| (word, Some(delay)));
                levels.push(Level { broker: name.clone(), level, word, delay, pending, next_at });
            }
        }
    }
    Ok(levels)
}

/// The last level that a broker's figures speak of.
fn last_used(figures: &BTreeMap<String, String>) -> usize {
    let levels = figures.keys().filter_map(|name| name.strip_prefix("scheduleMessageOffset_")?.parse().ok());
    levels.max().unwrap_or(0)
}

fn due(in_ms: i64) -> String {
    match in_ms {
        ..=0 => "now".to_owned(),
        1..=9_999 => format!("in {:.1} s", in_ms as f64 / 1000.0),
        10_000..=119_999 => format!("in {} s", in_ms / 1000),
        120_000..=7_199_999 => format!("in {} min", in_ms / 60_000),
        _ => format!("in {} h {} min", in_ms / 3_600_000, in_ms / 60_000 % 60),
    }
}

fn duration(word: &str) -> Option<Duration> {
    let (number, unit) = word.split_at_checked(word.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?))
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
    fn a_level_beyond_the_last_is_the_last() {
        let words = LevelWords::of(&HashMap::from([("messageDelayLevel".to_owned(), "1s 5m 2h".to_owned())]));

        assert_eq!(words.get(2), Some(("5m", Duration::from_secs(300))));
        assert_eq!(words.get(99), Some(("2h", Duration::from_secs(7200))));
        assert_eq!(words.get(0), None);
        assert_eq!(LevelWords::of(&HashMap::new()).get(1), None);
    }
}
