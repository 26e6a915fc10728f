//! The configuration as requests see it: codes 25 and 26.

use std::fmt::Write as _;

use super::{
    Broker, BrokerOptions,
    blocking::blocking,
    failure::{Answer, Failure, success},
};
use crate::{
    protocol::{
        Command, ExtFields, ResponseCode,
        json::{self, Dialect},
    },
    store::SettingChange,
};

/// The configuration of a running broker; what stands above the broker implements it.
pub trait Configuration: Send + Sync {
    /// Keys of `broker.conf` with their values in force.
    fn in_force(&self) -> Vec<(String, String)>;

    /// Changes what a properties text says: all of it or nothing. Calls `apply` once the change is checked and kept, unless nothing changes;
    /// if that refuses, the change is taken back. Gives what was changed.
    ///
    /// # Errors
    /// Nothing was changed then.
    fn change(
        &self,
        text: &[u8],
        apply: &dyn Fn(&Change) -> Result<(), String>,
    ) -> Result<Vec<ChangedKey>, ChangeError>;
}

/// A checked change of the configuration.
#[derive(Debug, Clone)]
pub struct Change {
    /// The keys that change.
    pub keys: Vec<ChangedKey>,
    /// The options of the broker with the change.
    pub options: BrokerOptions,
}

/// A key that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedKey {
    /// Its name.
    pub key: &'static str,
    /// Its value until now.
    pub before: String,
    /// Its new value.
    pub after: String,
}

/// Why the configuration was not changed. The texts are for the one who asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// A value or the text itself is wrong (response code 29).
    #[error("{0}")]
    Wrong(String),
    /// A key may not be changed (response code 16).
    #[error("{0}")]
    Refused(String),
    /// It could not be kept (response code 1).
    #[error("{0}")]
    Failed(String),
}

impl From<ChangeError> for Failure {
    fn from(error: ChangeError) -> Self {
        let code = match &error {
            ChangeError::Wrong(_) => ResponseCode::INVALID_PARAMETER,
            ChangeError::Refused(_) => ResponseCode::NO_PERMISSION,
            ChangeError::Failed(_) => ResponseCode::SYSTEM_ERROR,
        };
        Self::new(code, error.to_string())
    }
}

/// Code 25: change settings.
pub(super) fn update(broker: &Broker, request: &Command) -> Answer {
    let text = request.body.to_bytes();
    let Some(configuration) = broker.configuration.get() else {
        return Err(Failure::new(ResponseCode::NO_PERMISSION, "this broker has no configuration that could change"));
    };
    let changed = blocking(|| configuration.change(&text, &|change| apply(broker, change)))?;
    for ChangedKey { key, before, after } in &changed {
        tracing::info!(key, before, after, "setting changed on request");
    }
    Ok(success())
}

/// Puts a change in force: the plugins of the store first, since they may refuse.
fn apply(broker: &Broker, change: &Change) -> Result<(), String> {
    for (index, ChangedKey { key, after, .. }) in change.keys.iter().enumerate() {
        if let SettingChange::Refused(reason) = broker.store.change_setting(key, after) {
            for ChangedKey { key, before, .. } in &change.keys[..index] {
                // It was in force until just now.
                let _ = broker.store.change_setting(key, before);
            }
            return Err(reason);
        }
    }
    broker.change_options(&change.options);
    Ok(())
}

/// Code 26: the settings in force, and how often they changed.
pub(super) fn show(broker: &Broker) -> Answer {
    let mut text = String::new();
    let settings = broker.configuration.get().map(|configuration| configuration.in_force()).unwrap_or_default();
    for (key, value) in settings {
        // Backslashes and line ends are escaped in a properties text.
        let value = value.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(text, "{key}={value}");
    }
    let version = String::from_utf8_lossy(&json::to_vec(Dialect::Fastjson, &broker.config_version())).into_owned();
    let mut ext = ExtFields::with_capacity(1);
    ext.push("version", version);
    Ok(success().with_ext(ext).with_body(text))
}
