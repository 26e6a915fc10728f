//! The language code of a command.

/// In which language the sender of a command is written, as its one-byte code.
///
/// Codes without a name are kept as they came; in a JSON header they are written as `OTHER`.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.remoting.protocol.LanguageCode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Language(pub u8);

const NAMES: [&str; 14] = [
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
];

impl Language {
    /// Java clients, and what this broker writes: every client knows it.
    pub const JAVA: Language = Language(0);
    /// The C++ client; the only one that wants the list form of a reset-offset body.
    pub const CPP: Language = Language(1);
    /// Any language without a name of its own.
    pub const OTHER: Language = Language(7);
    /// The Go client.
    pub const GO: Language = Language(9);

    /// The name written in JSON headers.
    pub fn name(self) -> &'static str {
        NAMES.get(usize::from(self.0)).copied().unwrap_or("OTHER")
    }

    /// The language of that name; an unknown name is [`Language::OTHER`].
    pub fn from_name(name: &str) -> Language {
        NAMES.iter().position(|known| *known == name).map_or(Language::OTHER, |code| Language(code as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_language_is_other() {
        // B93
        assert_eq!(Language::from_name("COBOL"), Language::OTHER);
        assert_eq!(Language(200).name(), "OTHER");
        assert_eq!(Language::from_name("GO"), Language::GO);
        assert_eq!(Language(13).name(), "NODE_JS");
    }
}
