//! One key of `broker.conf`: its name, what its value may be, its default and why one would change it.

use std::fmt;

/// A key that the broker knows and does something about. Every one of them stands in [`super::SECTIONS`].
#[derive(Debug)]
pub struct Key {
    /// RocketMQ's name of it; for the few that are ours alone, a name in the same manner.
    pub name: &'static str,
    /// What its value may be.
    pub kind: Kind,
    /// The default, as one would write it into the file.
    pub default: &'static str,
    /// What it is for: lines of `conf/broker.conf`.
    pub about: &'static str,
    /// Whether it works.
    pub status: Status,
    /// Whether it can change while the broker runs.
    pub is_live: bool,
}

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It does what it says.
    Supported,
    /// Only its default is accepted: going on in spite of another value would put data or security at risk.
    StopsTheStart,
}

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`, in any case.
    Switch,
    /// A decimal number from the first to the second, both included.
    Number(i64, i64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Hours of the day, 0 to 23, separated by `;`.
    Hours,
    /// Any text, also none.
    Text,
    /// Letters, digits, `-`, `_`, `.`, `%` and `|`; not empty. `$HOSTNAME` stands for the name of this machine.
    Name,
    /// A path. `$HOME` at its start stands for the home folder.
    Path,
    /// An IP address or the name of a machine.
    Host,
    /// As [`Kind::Host`], or nothing.
    HostOrNone,
    /// `host:port`, or nothing.
    AddressOrNone,
    /// Any number of `host:port`, separated by `;`.
    Addresses,
    /// Delay levels: numbers with a unit `s`, `m`, `h` or `d`, separated by single spaces.
    Levels,
}

/// A value, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Switch(bool),
    Number(i64),
    Text,
    Hours(Vec<u8>),
    Address(Option<(String, u16)>),
    Addresses(Vec<(String, u16)>),
}

impl Key {
    pub(super) const fn new(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Self {
        Self { name, kind, default, about, status: Status::Supported, is_live: false }
    }

    /// The same key, which can change while the broker runs: what it stands for takes it over at once.
    pub(super) const fn live(self) -> Self {
        Self { is_live: true, ..self }
    }

    pub(super) const fn only(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Self {
        Self { name, kind, default, about, status: Status::StopsTheStart, is_live: false }
    }

    /// Checks a value whose stand-ins (`$HOME` …) are replaced; `None` if the kind does not allow it.
    pub(super) fn parse(&self, text: &str) -> Option<Value> {
        match self.kind {
            Kind::Switch if text.eq_ignore_ascii_case("true") => Some(Value::Switch(true)),
            Kind::Switch if text.eq_ignore_ascii_case("false") => Some(Value::Switch(false)),
            Kind::Switch => None,
            Kind::Number(min, max) => {
                text.parse().ok().filter(|number| (min..=max).contains(number)).map(Value::Number)
            }
            Kind::Word(words) => words.contains(&text).then_some(Value::Text),
            Kind::Hours => {
                let hours = text.split(';').map(|hour| hour.trim().parse().ok().filter(|hour| *hour < 24));
                hours.collect::<Option<_>>().map(Value::Hours)
            }
            Kind::Text | Kind::Levels => Some(Value::Text),
            Kind::Name => (!text.is_empty() && text.chars().all(is_name_character)).then_some(Value::Text),
            Kind::Path => (!text.is_empty() && !text.contains('\0')).then_some(Value::Text),
            Kind::Host => is_host(text).then_some(Value::Text),
            Kind::HostOrNone => (text.is_empty() || is_host(text)).then_some(Value::Text),
            Kind::AddressOrNone if text.is_empty() => Some(Value::Address(None)),
            Kind::AddressOrNone => address(text).map(|address| Value::Address(Some(address))),
            Kind::Addresses => {
                let addresses = text.split(';').map(str::trim).filter(|address| !address.is_empty()).map(address);
                addresses.collect::<Option<_>>().map(Value::Addresses)
            }
        }
    }
}

impl fmt::Display for Kind {
    /// In words for the one who wrote a wrong value: `must be …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch => f.write_str("true or false"),
            Self::Number(min, max) => write!(f, "a number from {min} to {max}"),
            Self::Word([word]) => f.write_str(word),
            Self::Word(words) => write!(f, "one of {}", words.join(", ")),
            Self::Hours => f.write_str("hours of the day from 0 to 23, separated by ;"),
            Self::Text => f.write_str("a text"),
            Self::Name => f.write_str("a name of letters, digits and - _ . % |, not empty"),
            Self::Path => f.write_str("a path, not empty"),
            Self::Host => f.write_str("an IP address or the name of a machine"),
            Self::HostOrNone => f.write_str("an IP address or the name of a machine, or empty"),
            Self::AddressOrNone => f.write_str("host:port, or empty"),
            Self::Addresses => f.write_str("host:port, or several of them separated by ;, or empty"),
            Self::Levels => f.write_str("whole numbers with a unit s, m, h or d, separated by single spaces"),
        }
    }
}

fn is_name_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '-' | '_' | '.' | '%' | '|')
}

fn is_host(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
        || (!text.is_empty()
            && text.len() <= 253
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')))
}

fn address(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    is_host(host).then_some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(kind: Kind, text: &str) -> bool {
        Key::new("k", kind, "", "").parse(text).is_some()
    }

    #[test]
    fn each_kind_takes_what_it_says_and_nothing_else() {
        assert!(accepts(Kind::Switch, "TRUE") && !accepts(Kind::Switch, "yes") && !accepts(Kind::Switch, ""));
        assert!(
            accepts(Kind::Number(1, 3), "3")
                && !accepts(Kind::Number(1, 3), "4")
                && !accepts(Kind::Number(1, 3), "1.0")
        );
        assert!(!accepts(Kind::Number(0, i64::MAX), "9223372036854775808"));
        assert!(
            accepts(Kind::Hours, "04")
                && accepts(Kind::Hours, "2; 23")
                && !accepts(Kind::Hours, "24")
                && !accepts(Kind::Hours, "")
        );
        assert!(
            accepts(Kind::Name, "broker-a")
                && !accepts(Kind::Name, "")
                && !accepts(Kind::Name, "a b")
                && !accepts(Kind::Name, "a\nb")
        );
        assert!(
            accepts(Kind::Host, "::1")
                && accepts(Kind::Host, "mq_1.example")
                && !accepts(Kind::Host, "a:1")
                && !accepts(Kind::Host, "")
        );
        assert!(
            accepts(Kind::AddressOrNone, "[::1]:9876")
                && accepts(Kind::AddressOrNone, "")
                && !accepts(Kind::AddressOrNone, "9876")
        );
        assert!(
            accepts(Kind::Addresses, "a:1; b:2;")
                && accepts(Kind::Addresses, "")
                && !accepts(Kind::Addresses, "a:1,b:2")
        );
        assert!(!accepts(Kind::Addresses, "a:65536"));
    }
}
