//! What is wrong with a configuration, in the words of the one who has to mend it.

use std::fmt;

use super::{Kind, Origin};

/// One thing that is wrong. Its text names where it stands, the key, the value and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file is not a properties file.
    #[error("{file} {reason}")]
    File {
        /// The file.
        file: String,
        /// Line and reason.
        reason: super::PropertiesError,
    },
    /// A value is out of its range.
    #[error("{origin}: {key} = {value}: must be {allowed}")]
    Value {
        /// Where it stands.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// The value as it stands there.
        value: String,
        /// What is allowed.
        allowed: Kind,
    },
    /// A value that only another part of the broker can judge.
    #[error("{origin}: {key} = {value}: {reason}")]
    Refused {
        /// Where it stands.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// The value as it stands there.
        value: String,
        /// What is wrong with it, and what is allowed.
        reason: String,
    },
    /// A value of RocketMQ whose neglect would put data or security at risk.
    #[error("{origin}: {key} = {value}: not supported yet, and ignoring it would be unsafe; must be {only} ({about})")]
    StopsTheStart {
        /// Where it stands.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// The value as it stands there.
        value: String,
        /// The one value that is accepted.
        only: &'static str,
        /// What the key is for.
        about: &'static str,
    },
    /// A command-line argument that is not `key=value`.
    #[error("command line: {0:?}: must be key=value")]
    Argument(String),
}

/// Everything that is wrong, in the order in which it was found; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    /// One line per error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let feed = if index == 0 { "" } else { "\n" };
            write!(f, "{feed}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
