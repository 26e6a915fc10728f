//! Every key with its value in force, and where that came from.

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    ConfigError, ConfigErrors,
    key::{Key, Status, Value},
    known, properties,
};
use crate::{
    broker::BrokerOptions,
    delay::{DelayOptions, LevelTableError},
    namesrv::NameServerOptions,
    remoting::{ConnectionOptions, ServerOptions},
    store::{FlushPolicy, StoreOptions},
};

/// What environment variables that set a key begin with. Case and `_` do not count behind it: `LATERMQ_MESSAGE_DELAY_LEVEL` and
/// `LATERMQ_messageDelayLevel` are both the key `messageDelayLevel`.
pub const ENVIRONMENT_PREFIX: &str = "LATERMQ_";

/// Unit of `flushCommitLogLeastPages`.
const PAGE_BYTES: u64 = 4096;
/// A consume queue file holds whole entries.
const QUEUE_ENTRY_BYTES: u64 = 20;

/// What settings are made of: each source overrides those before it. Nothing is read here; the caller has read it.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The configuration file: its name as the user knows it, and its bytes.
    pub file: Option<(String, Vec<u8>)>,
    /// Environment variables; those without [`ENVIRONMENT_PREFIX`] are passed over.
    pub environment: Vec<(String, String)>,
    /// Keys and values of the command line.
    pub arguments: Vec<(String, String)>,
    /// What `$HOME` stands for, if there is such a folder.
    pub home: Option<String>,
    /// What `$HOSTNAME` stands for.
    pub host_name: String,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The table of keys.
    Default,
    /// The configuration file.
    File {
        /// Its name as the user knows it.
        file: String,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable of this name.
    Environment(String),
    /// The command line.
    CommandLine,
    /// A request to the running broker.
    Request,
}

/// Every key with its checked value. See the module.
#[derive(Debug, Clone)]
pub struct Settings {
    values: Vec<Setting>,
}

#[derive(Debug, Clone)]
struct Setting {
    key: &'static Key,
    /// As given, stand-ins replaced.
    text: String,
    value: Value,
    origin: Origin,
}

/// Settings, and what was odd about their sources: one text per oddity, for the log.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// Unknown keys, keys without effect, keys given twice.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Puts the sources together and checks every value.
    ///
    /// # Errors
    /// Everything that is wrong, not only the first thing.
    pub fn load(sources: &Sources) -> Result<Loaded, ConfigErrors> {
        let mut loader = Loader {
            sources,
            settings: Self::defaults(sources),
            warnings: Vec::new(),
            without_effect: Vec::new(),
            errors: Vec::new(),
        };
        loader.read_file();
        for (name, value) in &sources.environment {
            if let Some(name_end) = name.strip_prefix(ENVIRONMENT_PREFIX) {
                loader.set_from_environment(name, name_end, value);
            }
        }
        for (name, value) in &sources.arguments {
            loader.set(name, value, Origin::CommandLine);
        }
        loader.finish()
    }

    /// These settings with what a request changes, checked as [`Settings::load`] does.
    pub(super) fn changed(&self, sources: &Sources, entries: &[properties::Entry]) -> Result<Loaded, ConfigErrors> {
        let mut loader = Loader {
            sources,
            settings: self.clone(),
            warnings: Vec::new(),
            without_effect: Vec::new(),
            errors: Vec::new(),
        };
        for entry in entries {
            loader.set(&entry.key, &entry.value, Origin::Request);
        }
        let loaded = loader.finish()?;
        loaded.settings.delay_options().map_err(|error| ConfigErrors(vec![error]))?;
        Ok(loaded)
    }

    /// The keys whose values differ from those of `before`, with both values as text.
    pub(super) fn differences<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = (&'static Key, &'a str, &'a str)> {
        let pairs = self.values.iter().zip(&before.values);
        let differing =
            pairs.filter(
                |(now, before)| {
                    if now.value == Value::Text { now.text != before.text } else { now.value != before.value }
                },
            );
        differing.map(|(now, before)| (now.key, before.text.as_str(), now.text.as_str()))
    }

    fn defaults(sources: &Sources) -> Self {
        let values = super::keys().map(|key| {
            let text = sources.replace_stand_ins(key.default);
            // A default that its own kind refuses is a name of this machine that no route can hold; a test checks all others.
            let value = key.parse(&text).unwrap_or(Value::Text);
            Setting { key, text, value, origin: Origin::Default }
        });
        Self { values: values.collect() }
    }

    fn setting(&self, name: &str) -> &Setting {
        self.values.iter().find(|setting| setting.key.name == name).expect("getters name keys of the table")
    }

    /// The value of a key as text.
    ///
    /// # Panics
    /// If there is no such key in the table.
    pub fn text(&self, name: &str) -> &str {
        &self.setting(name).text
    }

    /// Where the value of a key came from; `None` if there is no such key in the table.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.values.iter().find(|setting| setting.key.name == name).map(|setting| &setting.origin)
    }

    fn switch(&self, name: &str) -> bool {
        self.setting(name).value == Value::Switch(true)
    }

    fn number(&self, name: &str) -> u64 {
        match self.setting(name).value {
            Value::Number(number) => u64::try_from(number).unwrap_or(0),
            ref other => unreachable!("{name} is {other:?}, not a number"),
        }
    }

    fn count(&self, name: &str) -> usize {
        usize::try_from(self.number(name)).unwrap_or(usize::MAX)
    }

    fn small(&self, name: &str) -> u32 {
        u32::try_from(self.number(name)).unwrap_or(u32::MAX)
    }

    fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(name))
    }

    /// The error of a value that another part of the broker refuses: it says where the value stands.
    pub fn refuse(&self, name: &'static str, reason: impl Into<String>) -> ConfigError {
        let (origin, value) = match self.values.iter().find(|setting| setting.key.name == name) {
            Some(setting) => (setting.origin.clone(), setting.text.clone()),
            None => (Origin::Default, String::new()),
        };
        ConfigError::Refused { origin, key: name, value, reason: reason.into() }
    }

    /// Keys and values in force, in the order of the table.
    pub fn to_pairs(&self) -> Vec<(String, String)> {
        self.values.iter().map(|setting| (setting.key.name.to_owned(), setting.text.clone())).collect()
    }

    /// The same as a properties file.
    pub fn to_properties_text(&self) -> String {
        let mut text = String::new();
        for setting in &self.values {
            properties::write_entry(&mut text, setting.key.name, &setting.text);
        }
        text
    }

    /// The same with a comment above each value that is not the default, saying where it came from.
    pub fn to_explained_text(&self) -> String {
        let mut text = String::new();
        for setting in &self.values {
            if setting.origin != Origin::Default {
                text.push_str(&format!("# {}\n", setting.origin));
            }
            properties::write_entry(&mut text, setting.key.name, &setting.text);
        }
        text
    }

    /// The folder of the store.
    ///
    /// # Errors
    /// If it begins with `$HOME` and there is none.
    pub fn store_root(&self) -> Result<PathBuf, ConfigError> {
        let root = self.text("storePathRootDir");
        if root.starts_with("$HOME") {
            return Err(self.refuse("storePathRootDir", "the environment has no HOME; name an absolute path"));
        }
        Ok(PathBuf::from(root))
    }

    /// What the store is opened with.
    ///
    /// # Errors
    /// If several folders are named where one is allowed.
    pub fn store_options(&self) -> Result<StoreOptions, ConfigError> {
        let folder = self.text("storePathCommitLog");
        if folder.contains([',', ':']) {
            return Err(self.refuse("storePathCommitLog", "several folders are not supported; name one"));
        }
        let root = self.store_root()?;
        // A folder that is named absolutely but lies in the root is the same folder.
        let folder = Path::new(folder);
        let commit_log_folder = folder.strip_prefix(&root).unwrap_or(folder).to_owned();
        Ok(StoreOptions {
            commit_log_folder,
            segment_bytes: self.number("mappedFileSizeCommitLog"),
            queue_file_bytes: self.number("mappedFileSizeConsumeQueue").next_multiple_of(QUEUE_ENTRY_BYTES),
            index_slots: self.small("maxHashSlotNum"),
            index_entries: self.small("maxIndexNum"),
            index_enabled: self.switch("messageIndexEnable"),
            body_bytes_max: self.count("maxMessageSize"),
            flush_policy: if self.text("flushDiskType") == "SYNC_FLUSH" {
                FlushPolicy::Sync
            } else {
                FlushPolicy::Async
            },
            flush_interval: self.millis("flushIntervalCommitLog"),
            flush_bytes_min: self.number("flushCommitLogLeastPages") * PAGE_BYTES,
            flush_thorough_interval: self.millis("flushCommitLogThoroughInterval"),
            checkpoint_interval: self.millis("flushConsumeQueueThoroughInterval"),
            reserved_time: Duration::from_secs(self.number("fileReservedTime") * 3600),
            delete_when: match &self.setting("deleteWhen").value {
                Value::Hours(hours) => hours.clone(),
                other => unreachable!("deleteWhen is {other:?}, not hours"),
            },
            disk_used_max_percent: self.number("diskMaxUsedSpaceRatio"),
            disk_clean_percent: self.number("diskSpaceCleanForciblyRatio"),
            disk_full_percent: self.number("diskSpaceWarningLevelRatio"),
            retention_interval: self.millis("cleanResourceInterval"),
            delete_batch_max: self.count("deleteFileBatchMax"),
            pull_bytes_max: self.count("maxTransferBytesOnMessageInMemory"),
            pull_count_max: self.count("maxTransferCountOnMessageInMemory"),
            query_count_max: self.count("maxMsgsNumBatch"),
            ..StoreOptions::default()
        })
    }

    /// What the level scheduler is made with.
    ///
    /// # Errors
    /// A bad token of `messageDelayLevel`, with its place.
    pub fn delay_options(&self) -> Result<DelayOptions, ConfigError> {
        let levels = self.text("messageDelayLevel").parse().map_err(|error: LevelTableError| {
            let LevelTableError { number, token, column, reason } = error;
            self.refuse("messageDelayLevel", format!("token {number} {token:?} at column {column}: {reason}"))
        })?;
        Ok(DelayOptions { levels, park_after: self.millis("parkAfter") })
    }

    /// What the broker is made with. `advertised` is the address that clients are told; `levels`, how many delay levels there are.
    pub fn broker_options(&self, advertised: SocketAddr, levels: u32) -> BrokerOptions {
        BrokerOptions {
            cluster: self.text("brokerClusterName").to_owned(),
            name: self.text("brokerName").to_owned(),
            broker_id: 0,
            advertised,
            ha_advertised: SocketAddr::new(advertised.ip(), advertised.port().saturating_add(1)),
            name_servers: self.name_servers(),
            permission: i32::try_from(self.number("brokerPermission")).unwrap_or(0),
            region: self.text("regionId").to_owned(),
            trace_on: self.switch("traceOn"),
            trace_topic: self.switch("traceTopicEnable"),
            auto_create_topics: self.switch("autoCreateTopicEnable"),
            auto_create_groups: self.switch("autoCreateSubscriptionGroup"),
            default_topic_queues: self.small("defaultTopicQueueNums"),
            cluster_topic: self.switch("clusterTopicEnable"),
            broker_topic: self.switch("brokerTopicEnable"),
            schedule_queues: levels,
            long_polling: self.switch("longPollingEnable"),
            short_polling: self.millis("shortPollingTimeMills"),
            save_offsets_interval: self.millis("flushConsumerOffsetInterval"),
            offsets_version_step: self.number("consumerOffsetUpdateVersionStep"),
            client_expiry: self.millis("channelExpiredTimeout"),
            lock_expiry: self.millis("rebalanceLockMaxLiveTime"),
            register_interval: self.millis("registerNameServerPeriod"),
            register_timeout: self.millis("registerBrokerTimeoutMills"),
            ..BrokerOptions::default()
        }
    }

    /// What a name server is made with.
    pub fn name_server_options(&self) -> NameServerOptions {
        NameServerOptions {
            list_all_topics: self.switch("enableAllTopicList"),
            order_messages: self.switch("orderMessageEnable"),
            ..NameServerOptions::default()
        }
    }

    /// Address to listen on.
    pub fn bind_host(&self) -> &str {
        self.text("bindAddress")
    }

    /// Port to listen on; 0: any.
    pub fn listen_port(&self) -> u16 {
        u16::try_from(self.number("listenPort")).unwrap_or(0)
    }

    /// The host that clients are told, if one is named.
    pub fn advertised_host(&self) -> Option<&str> {
        Some(self.text("brokerIP1")).filter(|host| !host.is_empty())
    }

    /// What a server is made with.
    pub fn server_options(&self) -> ServerOptions {
        ServerOptions {
            connection: ConnectionOptions {
                idle_timeout: Duration::from_secs(self.number("serverChannelMaxIdleTimeSeconds")),
                output_bytes_max: self.count("serverUnsentBytesPerConnection"),
                unsent_bytes_max: self.count("serverUnsentBytesMax"),
                unfinished_bytes_max: self.count("serverUnfinishedBytesMax"),
                ..ConnectionOptions::default()
            },
            connections_max: self.count("serverConnectionsMax"),
        }
    }

    /// Outside name servers, `host:port`.
    pub fn name_servers(&self) -> Vec<String> {
        match &self.setting("namesrvAddr").value {
            Value::Addresses(addresses) => addresses.iter().map(|(host, port)| join(host, *port)).collect(),
            other => unreachable!("namesrvAddr is {other:?}, not addresses"),
        }
    }

    /// Where our own name server listens, `host:port`; `None` if it is switched off.
    pub fn name_server_listen_address(&self) -> Option<String> {
        match &self.setting("namesrvListenAddress").value {
            Value::Address(address) => address.as_ref().map(|(host, port)| join(host, *port)),
            other => unreachable!("namesrvListenAddress is {other:?}, not an address"),
        }
    }

    /// Whether the log is written as JSON.
    pub fn logs_json(&self) -> bool {
        self.text("logFormat") == "json"
    }
}

impl Sources {
    fn replace_stand_ins(&self, text: &str) -> String {
        if text == "$HOSTNAME" {
            return self.host_name.clone();
        }
        let behind_home = text.strip_prefix("$HOME").or_else(|| text.strip_prefix('~'));
        match (behind_home, &self.home) {
            (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => format!("{home}{rest}"),
            _ => text.to_owned(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line } => write!(f, "{file} line {line}"),
            Self::Environment(variable) => write!(f, "environment variable {variable}"),
            Self::CommandLine => f.write_str("command line"),
            Self::Request => f.write_str("request"),
        }
    }
}

/// Settings on their way.
struct Loader<'a> {
    sources: &'a Sources,
    settings: Settings,
    warnings: Vec<String>,
    without_effect: Vec<String>,
    errors: Vec<ConfigError>,
}

impl Loader<'_> {
    fn read_file(&mut self) {
        let Some((file, bytes)) = &self.sources.file else { return };
        let entries = match properties::parse(bytes) {
            Ok(entries) => entries,
            Err(reason) => return self.errors.push(ConfigError::File { file: file.clone(), reason }),
        };
        let mut last_line: HashMap<&str, usize> = HashMap::new();
        for entry in &entries {
            if let Some(earlier) = last_line.insert(&entry.key, entry.line) {
                let text = format!(
                    "{file} line {}: {} was set in line {earlier} already; the later counts",
                    entry.line,
                    shown(&entry.key)
                );
                self.warnings.push(text);
            }
        }
        for entry in &entries {
            if last_line.get(entry.key.as_str()) == Some(&entry.line) {
                self.set(&entry.key, &entry.value, Origin::File { file: file.clone(), line: entry.line });
            }
        }
    }

    fn set_from_environment(&mut self, variable: &str, name: &str, value: &str) {
        let folded = fold(name);
        let known = super::keys().map(|key| key.name).chain(known::names()).find(|known| fold(known) == folded);
        let origin = Origin::Environment(variable.to_owned());
        self.set(known.unwrap_or(name), value, origin);
    }

    fn set(&mut self, name: &str, value: &str, origin: Origin) {
        let Some(setting) = self.settings.values.iter_mut().find(|setting| setting.key.name == name) else {
            return self.note_unknown(name, &origin);
        };
        let key = setting.key;
        let text = self.sources.replace_stand_ins(value.trim());
        match key.parse(&text) {
            Some(checked) => *setting = Setting { key, text, value: checked, origin },
            // Looked at when everything is read.
            None if key.status == Status::StopsTheStart => *setting = Setting { key, text, value: Value::Text, origin },
            None => {
                self.errors.push(ConfigError::Value { origin, key: key.name, value: shown(&text), allowed: key.kind });
            }
        }
    }

    fn note_unknown(&mut self, name: &str, origin: &Origin) {
        if known::is_known(name) {
            self.without_effect.push(name.to_owned());
            return;
        }
        let hint = nearest(name).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        self.warnings.push(format!("{origin}: unknown key {}{hint}", shown(name)));
    }

    fn finish(mut self) -> Result<Loaded, ConfigErrors> {
        self.refuse_what_is_unsafe();
        if !self.without_effect.is_empty() {
            self.without_effect.sort_unstable();
            self.without_effect.dedup();
            self.warnings.push(format!("keys of RocketMQ without effect here: {}", self.without_effect.join(", ")));
        }
        if self.errors.is_empty() {
            Ok(Loaded { settings: self.settings, warnings: self.warnings })
        } else {
            Err(ConfigErrors(self.errors))
        }
    }

    fn refuse_what_is_unsafe(&mut self) {
        for setting in &self.settings.values {
            let key = setting.key;
            if key.status == Status::StopsTheStart && !setting.text.eq_ignore_ascii_case(key.default) {
                self.errors.push(ConfigError::StopsTheStart {
                    origin: setting.origin.clone(),
                    key: key.name,
                    value: shown(&setting.text),
                    only: if key.default.is_empty() { "empty" } else { key.default },
                    about: key.about,
                });
            }
        }
    }
}

/// The key that someone who wrote `name` may have meant.
fn nearest(name: &str) -> Option<&'static str> {
    let folded = fold(name);
    let far = folded.chars().count() / 3;
    let known = super::keys().map(|key| key.name).chain(known::names());
    let distances = known.map(|known| (strsim::osa_distance(&folded, &fold(known)), known));
    distances.min_by_key(|(distance, _)| *distance).filter(|(distance, _)| *distance <= far).map(|(_, known)| known)
}

fn fold(name: &str) -> String {
    name.chars().filter(|character| *character != '_').flat_map(char::to_lowercase).collect()
}

/// A text from outside, safe to print on one line.
fn shown(text: &str) -> String {
    text.chars()
        .flat_map(
            |character| if character.is_control() { character.escape_default().collect() } else { vec![character] },
        )
        .collect()
}

fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests;
