//! `broker.conf`, checked, to the options of every layer.
//!
//! The file is RocketMQ's `key=value` file with RocketMQ's key names and defaults, so that an existing one works unchanged. Two defaults
//! are ours: the broker listens on loopback only (`bindAddress`), and its store has a folder of its own (`storePathRootDir`).
//!
//! A value comes from the table of keys ([`SECTIONS`]), the file, an environment variable ([`ENVIRONMENT_PREFIX`]) or the command line; the
//! later of these counts. A wrong value stops the start. A key that is unknown, or known but without effect here, is named in the log. A
//! key whose neglect would put data or security at risk stops the start unless it has its default ([`Status::StopsTheStart`]).
//!
//! Some keys can change while the broker runs ([`Key::is_live`], [`LiveConfig`]).
//!
//! Nothing here reads a file or the environment: whoever calls has done that ([`Sources`], [`ConfigFile`]).

mod error;
mod key;
mod keys;
mod known;
mod live;
mod properties;
mod settings;

use std::fmt::Write;

pub use error::{ConfigError, ConfigErrors};
pub use key::{Key, Kind, Status};
pub use keys::{SECTIONS, Section};
pub use live::{CHANGE_BYTES_MAX, ConfigFile, LiveConfig};
pub use properties::{
    Entry, PropertiesError, parse as parse_properties, with_entry as with_property, write_entry as write_property,
};
pub use settings::{ENVIRONMENT_PREFIX, Loaded, Origin, Settings, Sources};

/// Every key of [`SECTIONS`], in its order.
pub fn keys() -> impl Iterator<Item = &'static Key> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

/// The text of `conf/broker.conf`: every key, commented out, at its default.
pub fn reference_text() -> String {
    let mut text = String::from(
        "# The configuration of latermq: RocketMQ's key=value file, with RocketMQ's names and defaults. Every key stands here commented out, at\n\
         # its default. Start with: latermq broker -c conf/broker.conf\n\
         #\n\
         # What counts, from weak to strong: the defaults, this file, environment variables (LATERMQ_MESSAGE_DELAY_LEVEL is messageDelayLevel),\n\
         # the command line (--set messageDelayLevel=\"1s 2s\"). `latermq broker --print-config` shows what is in force and where it came from.\n\
         # A path may begin with $HOME. A backslash must be doubled. Times are in milliseconds unless a key says otherwise.\n\
         #\n\
         # Keys that say so can change while the broker runs (mqadmin updateBrokerConfig -b ADDRESS -k KEY -v VALUE). The change is written into\n\
         # this file, so that a restart keeps it; what the environment or the command line set, which would win then, is not changed, nor is\n\
         # anything on a broker that was started without a file.\n",
    );
    for section in SECTIONS {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n## {}\n", section.title);
        for key in section.keys {
            text.push('\n');
            for line in key.about.lines() {
                let _ = writeln!(text, "# {line}");
            }
            if !matches!(key.kind, Kind::Levels | Kind::Text) && key.status == Status::Supported {
                let _ = writeln!(text, "# Allowed: {}.", key.kind);
            }
            if key.is_live {
                text.push_str("# Can change while the broker runs.\n");
            }
            let _ = writeln!(text, "#{}={}", key.name, key.default);
        }
    }
    text
}
