//! The configuration of a running broker, and how a request changes it.
//!
//! A request names some keys with values; it counts whole or not at all. Only keys that take effect at once can change
//! ([`super::Key::is_live`]), each checked by the same code as at the start. The change is in the configuration file before it is in force,
//! and in force before the request is answered: a restart, also one that comes between, finds either all of the request or nothing of it.
//!
//! A change that a restart would forget is refused: one on a broker without a configuration file, and one of a key that the environment or
//! the command line set, since they are stronger than the file.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use super::{ConfigErrors, Kind, Origin, Settings, Sources, known, properties};
use crate::broker::{BrokerOptions, Change, ChangeError, ChangedKey, Configuration};

/// Most bytes of a request that changes the configuration.
pub const CHANGE_BYTES_MAX: usize = 64 * 1024;

/// The configuration file of a running broker. Whoever knows the file system implements it.
pub trait ConfigFile: Send + Sync {
    /// Its bytes now; they may be others than those at the start.
    ///
    /// # Errors
    /// As the file system gives them.
    fn read(&self) -> io::Result<Vec<u8>>;

    /// Replaces the file whole: whoever reads it, now or after a crash, finds all of the old bytes or all of the new ones, and after success
    /// the new ones, also after a power cut.
    ///
    /// # Errors
    /// As the file system gives them; the file is as it was then.
    fn replace(&self, bytes: &[u8]) -> io::Result<()>;
}

/// The configuration of a running broker.
pub struct LiveConfig {
    /// Without the bytes of the file.
    sources: Sources,
    file: Option<(String, Arc<dyn ConfigFile>)>,
    advertised: SocketAddr,
    /// Locked for as long as a change takes, so that changes follow each other.
    settings: Mutex<Settings>,
}

impl LiveConfig {
    /// The configuration that was loaded from `sources` as `settings`. `file` is what they were read from; `advertised`, the address that
    /// clients of the broker are told.
    pub fn new(
        sources: Sources,
        settings: Settings,
        file: Option<Arc<dyn ConfigFile>>,
        advertised: SocketAddr,
    ) -> Self {
        let name = sources.file.as_ref().map_or_else(String::new, |(name, _)| name.clone());
        Self {
            sources: Sources { file: None, ..sources },
            file: file.map(|file| (name, file)),
            advertised,
            settings: Mutex::new(settings),
        }
    }

    /// What of a request is to change, and the settings with it.
    fn check(&self, before: &Settings, text: &[u8]) -> Result<(Vec<ChangedKey>, Settings), ChangeError> {
        if text.len() > CHANGE_BYTES_MAX {
            let reason = format!("the request has {} bytes, more than {CHANGE_BYTES_MAX}", text.len());
            return Err(ChangeError::Wrong(reason));
        }
        let entries = properties::parse(text).map_err(|error| ChangeError::Wrong(format!("request: {error}")))?;
        for entry in &entries {
            if known::is_known(&entry.key) {
                return Err(ChangeError::Refused(format!("{} has no effect here, so it cannot be changed", entry.key)));
            }
        }
        let loaded = before
            .changed(&self.sources, &entries)
            .map_err(|errors: ConfigErrors| ChangeError::Wrong(errors.to_string()))?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}, passed over");
        }
        let mut keys = Vec::new();
        for (key, before, after) in loaded.settings.differences(before) {
            if !key.is_live {
                let why = match key.kind {
                    Kind::Path => "it says where files are",
                    Kind::Host | Kind::HostOrNone | Kind::AddressOrNone | Kind::Addresses => "it is an address",
                    _ => "it counts from the start on",
                };
                return Err(ChangeError::Refused(format!(
                    "{} cannot be changed while the broker runs, {why}: set it in broker.conf and restart",
                    key.name
                )));
            }
            keys.push(ChangedKey { key: key.name, before: before.to_owned(), after: after.to_owned() });
        }
        Ok((keys, loaded.settings))
    }

    /// The bytes of the file before and after the change, once it is sure that a restart with them finds the change in force.
    fn rewrite(
        &self,
        keys: &[ChangedKey],
        file: &dyn ConfigFile,
        name: &str,
    ) -> Result<(Vec<u8>, Vec<u8>), ChangeError> {
        let unread =
            |error: String| ChangeError::Failed(format!("nothing was changed, since {name} cannot be used: {error}"));
        let old = file.read().map_err(|error| unread(error.to_string()))?;
        let mut new = old.clone();
        for ChangedKey { key, after, .. } in keys {
            new = properties::with_entry(&new, key, after).map_err(|error| unread(error.to_string()))?;
        }
        let sources = Sources { file: Some((name.to_owned(), new.clone())), ..self.sources.clone() };
        let restarted = Settings::load(&sources).map_err(|errors| unread(errors.to_string()))?.settings;
        for ChangedKey { key, .. } in keys {
            match restarted.origin(key) {
                Some(Origin::File { .. }) | None => {}
                Some(origin) => {
                    return Err(ChangeError::Refused(format!(
                        "{key} is set by the {origin}, which is stronger than {name}: a restart would forget the change"
                    )));
                }
            }
        }
        Ok((old, new))
    }
}

impl Configuration for LiveConfig {
    fn in_force(&self) -> Vec<(String, String)> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).to_pairs()
    }

    fn change(
        &self,
        text: &[u8],
        apply: &dyn Fn(&Change) -> Result<(), String>,
    ) -> Result<Vec<ChangedKey>, ChangeError> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let (keys, changed) = self.check(&settings, text)?;
        if keys.is_empty() {
            return Ok(keys);
        }
        let Some((name, file)) = &self.file else {
            return Err(ChangeError::Refused(format!(
                "{} cannot be changed, since the broker was started without a configuration file and a restart would forget it: start it with -c",
                keys[0].key
            )));
        };
        let (old, new) = self.rewrite(&keys, &**file, name)?;
        file.replace(&new).map_err(|error| {
            ChangeError::Failed(format!("nothing was changed, since {name} cannot be written: {error}"))
        })?;
        let change = Change { options: options(&changed, self.advertised), keys };
        if let Err(reason) = apply(&change) {
            return Err(match file.replace(&old) {
                Ok(()) => ChangeError::Refused(reason),
                Err(error) => ChangeError::Failed(format!(
                    "{reason}; but {name} holds the change and cannot be written again: {error}"
                )),
            });
        }
        *settings = changed;
        Ok(change.keys)
    }
}

fn options(settings: &Settings, advertised: SocketAddr) -> BrokerOptions {
    // The table was checked when the settings were made.
    let levels = settings.delay_options().map_or(1, |delay| delay.levels.max().number());
    settings.broker_options(advertised, levels)
}
