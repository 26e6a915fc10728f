//! How a command ends that did not do what it was asked.

use std::{fmt, process::ExitCode};

/// Exit code of a command that could not do what it was asked.
const FAILED: u8 = 1;
/// Exit code of a command that was asked for something impossible: wrong arguments, or a wrong configuration. Also clap's own.
const MISUSED: u8 = 2;
/// Exit code of a check that found damage.
const DAMAGED: u8 = 2;
/// Exit code of a broker that had to stop because it could no longer keep a promise (`EX_SOFTWARE` of sysexits.h).
pub(super) const BROKEN: u8 = 70;

/// What the help of the command says about exit codes.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 done; 1 could not be done; 2 wrong arguments or configuration (check: damage was found); 70 the broker stopped because it could no longer keep a promise.";

/// Why a command failed; the text is for the person who gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// It could not be done.
    Failed(String),
    /// Wrong arguments or configuration: trying again is of no use.
    Misused(String),
    /// The broker could no longer keep a promise.
    Broken(String),
    /// What was checked is damaged.
    Damaged(String),
}

impl Failure {
    pub(super) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    pub(super) fn misused(text: impl Into<String>) -> Self {
        Self::Misused(text.into())
    }

    /// An error with all its causes, in one line.
    pub(super) fn because(context: impl fmt::Display, error: &dyn std::error::Error) -> Self {
        Self::Failed(format!("{context}: {}", chain(error)))
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Failed(_) => FAILED,
            Self::Misused(_) => MISUSED,
            Self::Broken(_) => BROKEN,
            Self::Damaged(_) => DAMAGED,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) | Self::Misused(text) | Self::Broken(text) | Self::Damaged(text) => f.write_str(text),
        }
    }
}

impl From<crate::config::ConfigErrors> for Failure {
    fn from(errors: crate::config::ConfigErrors) -> Self {
        Self::Misused(errors.to_string())
    }
}

impl From<crate::config::ConfigError> for Failure {
    fn from(error: crate::config::ConfigError) -> Self {
        Self::Misused(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    /// Errors of standard input and output; others are given their context.
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<crate::remoting::RemotingError> for Failure {
    fn from(error: crate::remoting::RemotingError) -> Self {
        Self::Failed(chain(&error))
    }
}

/// An error and its causes, separated by colons.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
