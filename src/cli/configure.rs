//! From the command line, the environment and the file to checked settings.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    net::SocketAddr,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;

use super::failure::Failure;
use crate::config::{ConfigError, ConfigErrors, ConfigFile, LiveConfig, Loaded, Settings, Sources};

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
    pub(super) fn load(&self) -> Result<Configured, Failure> {
        let sources = self.sources()?;
        let Loaded { settings, warnings } = Settings::load(&sources)?;
        Ok(Configured { settings, warnings, sources, file: self.file.clone() })
    }

    fn sources(&self) -> Result<Sources, Failure> {
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
        Ok(Sources {
            file,
            environment: environment.collect(),
            arguments: arguments.collect::<Result<_, ConfigErrors>>()?,
            home: std::env::var("HOME").ok().filter(|home| !home.is_empty()),
            host_name: host_name(),
        })
    }
}

/// Checked settings, and where they come from.
pub(super) struct Configured {
    pub(super) settings: Settings,
    /// What was odd about the sources.
    pub(super) warnings: Vec<String>,
    sources: Sources,
    file: Option<PathBuf>,
}

impl Configured {
    /// The configuration as it can change while the broker runs.
    pub(super) fn live(&self, advertised: SocketAddr) -> LiveConfig {
        let file = self.file.clone().map(|path| Arc::new(FileOnDisk(path)) as Arc<dyn ConfigFile>);
        LiveConfig::new(self.sources.clone(), self.settings.clone(), file, advertised)
    }
}

/// The configuration file; a link to it stays a link.
struct FileOnDisk(PathBuf);

impl ConfigFile for FileOnDisk {
    fn read(&self) -> io::Result<Vec<u8>> {
        std::fs::read(&self.0)
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let path = self.0.canonicalize()?;
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        let mut aside = name.to_owned();
        aside.push(".tmp");
        let aside = folder.join(aside);
        let mode = path.metadata()?.permissions().mode();
        let written = write_synced(&aside, bytes, mode).and_then(|()| std::fs::rename(&aside, &path));
        if written.is_err() {
            // What was written aside is of no use; if it cannot be removed, the next change overwrites it.
            let _ = std::fs::remove_file(&aside);
            return written;
        }
        File::open(folder)?.sync_all()
    }
}

fn write_synced(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.set_permissions(PermissionsExt::from_mode(mode))?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn host_name() -> String {
    let uname = rustix::system::uname();
    match uname.nodename().to_str() {
        Ok(name) if !name.is_empty() && name != "(none)" => name.to_owned(),
        _ => HOST_NAME_DEFAULT.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_keeps_its_mode_and_its_link_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("broker.conf"), folder.path().join("link.conf"));
        write_synced(&path, b"old", 0o600).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();

        let file = FileOnDisk(link.clone());
        file.replace(b"new").unwrap();

        assert_eq!(file.read().unwrap(), b"new");
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broker.conf");
        write_synced(&path, b"old", 0o600).unwrap();
        std::fs::create_dir(folder.path().join("broker.conf.tmp")).unwrap();

        FileOnDisk(path.clone()).replace(b"new").unwrap_err();

        assert_eq!(std::fs::read(&path).unwrap(), b"old");
    }
}
