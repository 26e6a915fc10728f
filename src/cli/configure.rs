//! From the command line, the environment and the file to checked settings.

use std::path::{Path, PathBuf};

use clap::Args;

use super::failure::Failure;
use crate::config::{ConfigError, ConfigErrors, Loaded, Settings, Sources};

/// Name of a broker on a machine that has none, as in RocketMQ.
const HOST_NAME_DEFAULT: &str = "DEFAULT_BROKER";

/// Arguments of every command that is configured by `broker.conf`.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ConfigArgs {
    /// Configuration file: RocketMQ's key=value file, see conf/broker.conf
    ///
    /// Without it the defaults count; no file is read that is not named. Stronger than the file are environment variables, named
    /// LATERMQ_ and the key, case and _ of no matter (LATERMQ_MESSAGE_DELAY_LEVEL), and strongest is --set.
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Set a key of the configuration; may be given several times
    #[arg(short, long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print the configuration in force, and where it comes from, and end
    #[arg(long)]
    pub(super) print_config: bool,
}

impl ConfigArgs {
    /// Adds a value of the command line, stronger than the others.
    pub(super) fn set(&mut self, key: &str, value: &str) {
        self.set.push(format!("{key}={value}"));
    }

    /// The file that is read.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads all sources and checks them.
    pub(super) fn load(&self) -> Result<Loaded, Failure> {
        let file = match &self.file {
            Some(path) => {
                let bytes = std::fs::read(path).map_err(|error| {
                    Failure::misused(format!("cannot read the configuration file {}: {error}", path.display()))
                })?;
                Some((path.display().to_string(), bytes))
            }
            None => None,
        };
        let arguments = self.set.iter().map(|argument| {
            let pair = argument.split_once('=').filter(|(key, _)| !key.trim().is_empty());
            let (key, value) = pair.ok_or_else(|| ConfigErrors(vec![ConfigError::Argument(argument.clone())]))?;
            Ok((key.trim().to_owned(), value.to_owned()))
        });
        let environment =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let sources = Sources {
            file,
            environment: environment.collect(),
            arguments: arguments.collect::<Result<_, ConfigErrors>>()?,
            home: std::env::var("HOME").ok().filter(|home| !home.is_empty()),
            host_name: host_name(),
        };
        Ok(Settings::load(&sources)?)
    }
}

fn host_name() -> String {
    let uname = rustix::system::uname();
    match uname.nodename().to_str() {
        Ok(name) if !name.is_empty() && name != "(none)" => name.to_owned(),
        _ => HOST_NAME_DEFAULT.to_owned(),
    }
}
