//! What an audit of a store says of the broker's own tables: whether each state file can be read, and whether the consumer offsets lie within
//! their queues.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    env::{Directory, EntryKind},
    model::is_system_topic,
    protocol::{
        body::{ConsumerOffsets, TopicConfigs},
        json,
    },
    store::{Findings, GAPS_FILE, Grade, HOLES_FILE, StateFile, StoreAudit, StoreError},
};

/// Files of the folder `config` that are known, ours and Apache RocketMQ's, besides the state files that are read here.
const OTHERS: [&str; 8] = [
    "consumerFilter.json",
    "consumerOrderInfo.json",
    "lmqConsumerOffset.json",
    "messageRequestMode.json",
    "timercheck",
    "timermetrics",
    "topicQueueMapping.json",
    "transactionMetrics",
];
/// What may stand behind the name of a state file.
const SUFFIXES: [&str; 4] = [".bak", ".tmp", ".bad", ".bak.bad"];

/// Whether a text is a state file of some kind, or what is wrong with it.
pub type IsTable<'a> = &'a dyn Fn(&str) -> Result<(), String>;

/// Looks at the broker's tables; gives the files that cannot be used, as paths in the root of the store. `others` are state files of other parts, with
/// a function that says whether a text is one.
///
/// # Errors
/// [`StoreError::Io`] if the folder `config` cannot be read.
pub fn audit_tables(
    directory: &Arc<dyn Directory>,
    store: &mut StoreAudit,
    others: &[(&str, IsTable<'_>)],
) -> Result<Vec<PathBuf>, StoreError> {
    let mut audit = Audit { directory, findings: std::mem::take(&mut store.findings), unusable: Vec::new() };
    let topics: TopicConfigs = audit.table("topics.json").unwrap_or_default();
    let _: Option<serde_json::Value> = audit.table("subscriptionGroup.json");
    for name in ["deletedTopics.json", GAPS_FILE, HOLES_FILE] {
        let _: Option<serde_json::Value> = audit.table(name);
    }
    let offsets: ConsumerOffsets = audit.table("consumerOffset.json").unwrap_or_default();
    for (name, is_one) in others {
        let _: Option<()> = audit.read(name, is_one);
    }
    let Audit { mut findings, unusable, .. } = audit;

    check_offsets(&offsets, store, &mut findings);
    for queue in &store.missing_queues {
        let place = format!("{}/{}", queue.topic, queue.queue_id);
        let text = format!("has no files, but the log has {} records of it", queue.records);
        let is_known = topics.topic_config_table.contains_key(&queue.topic) || is_system_topic(&queue.topic);
        match (is_known, queue.mends) {
            (false, _) => findings.note("queue", &place, &format!("{text}: its topic was deleted")),
            (true, true) => findings.mends("queue", &place, &text),
            (true, false) => findings.damage("queue", &place, &text),
        }
    }
    let folder = Path::new("config");
    let listed = directory.list(folder).map_err(|source| StoreError::Io {
        action: "list",
        path: directory.display(folder),
        source,
    })?;
    let read =
        ["topics.json", "subscriptionGroup.json", "deletedTopics.json", GAPS_FILE, HOLES_FILE, "consumerOffset.json"];
    for entry in listed {
        let name = SUFFIXES.iter().find_map(|suffix| entry.name.strip_suffix(suffix)).unwrap_or(&entry.name);
        let is_known = read.contains(&name) || OTHERS.contains(&name) || others.iter().any(|(other, _)| *other == name);
        if !is_known || entry.kind != EntryKind::File {
            findings.note("files", folder.join(&entry.name).display(), "is not a part of a store, and is left alone");
        }
    }
    store.findings = findings;
    Ok(unusable)
}

struct Audit<'a> {
    directory: &'a Arc<dyn Directory>,
    findings: Findings,
    unusable: Vec<PathBuf>,
}

impl Audit<'_> {
    /// A table in JSON.
    fn table<T: serde::de::DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        self.read(name, &|text: &str| {
            if text.trim_start().starts_with('{') {
                json::from_slice(text.as_bytes()).map_err(|error| error.to_string())
            } else {
                Err("is no JSON object".to_owned())
            }
        })
    }

    fn read<T>(&mut self, name: &str, parse: &dyn Fn(&str) -> Result<T, String>) -> Option<T> {
        let path = Path::new("config").join(name);
        let backup_path = PathBuf::from(format!("{}.bak", path.display()));
        let [main, backup] = StateFile::new(Arc::clone(self.directory), path.clone()).inspect(parse);
        let backup = match backup {
            Ok(found) => found,
            Err(reason) => {
                self.findings.damage("state files", backup_path.display(), &reason);
                self.unusable.push(backup_path);
                None
            }
        };
        match main {
            Ok(Some(found)) => Some(found),
            Ok(None) => {
                if backup.is_some() {
                    self.findings.mends("state files", path.display(), "is missing; the version before is used");
                }
                backup
            }
            Err(reason) => {
                let used = if backup.is_some() { "the version before is used" } else { "there is no version before" };
                self.findings.damage("state files", path.display(), &format!("{reason}; {used}"));
                self.unusable.push(path);
                backup
            }
        }
    }
}

fn check_offsets(offsets: &ConsumerOffsets, store: &StoreAudit, findings: &mut Findings) {
    let place = "config/consumerOffset.json";
    // One finding for each key: a table with a wrong line is wrong in few of them.
    for (key, queues) in &offsets.offset_table {
        let Some((topic, _)) = key.split_once('@') else {
            findings.note("consumer offsets", place, &format!("{key:?} names no group"));
            continue;
        };
        let mut beyond = BTreeMap::new();
        for (queue_id, offset) in queues {
            let range = u32::try_from(*queue_id).ok().and_then(|queue_id| store.range(topic, queue_id));
            match range {
                Some(range) if *offset < 0 || u64::try_from(*offset).is_ok_and(|offset| offset > range.max) => {
                    beyond.insert(*queue_id, (*offset, range.max));
                }
                None if *offset != 0 => {
                    findings.note(
                        "consumer offsets",
                        place,
                        &format!("{key} has offset {offset} in queue {queue_id}, which has no files"),
                    );
                }
                _ => {}
            }
        }
        if let Some((queue_id, (offset, max))) = beyond.first_key_value() {
            let text = format!(
                "{key} has offset {offset} in queue {queue_id}, which ends at {max}; {} queues in all",
                beyond.len()
            );
            // A power cut may take the end of a queue after the offset was saved; the next start corrects it.
            let grade = if store.stopped_cleanly || *offset < 0 { Grade::Damage } else { Grade::Mends };
            findings.add(grade, "consumer offsets", place, &text);
        }
    }
}
