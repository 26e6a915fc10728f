//! What commands print: tables, JSON, colours where there is a terminal to show them.

use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use serde_json::Value;

/// How a command prints its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON value, or one a line for what comes bit by bit.
    Json,
}

/// Colours of what is printed on standard output; none if that is no terminal, or `NO_COLOR` is set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint {
    on: bool,
}

impl Paint {
    pub(super) fn stdout() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { on: wanted && io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb") }
    }

    pub(super) fn strong(self, text: impl AsRef<str>) -> String {
        self.paint(Style::new().bold(), text.as_ref())
    }

    pub(super) fn faint(self, text: impl AsRef<str>) -> String {
        self.paint(Style::new().dimmed(), text.as_ref())
    }

    pub(super) fn good(self, text: impl AsRef<str>) -> String {
        self.paint(AnsiColor::Green.on_default(), text.as_ref())
    }

    pub(super) fn bad(self, text: impl AsRef<str>) -> String {
        self.paint(AnsiColor::Yellow.on_default(), text.as_ref())
    }

    fn paint(self, style: Style, text: &str) -> String {
        if self.on { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// Prints rows under a heading, columns aligned; the last column is not padded. Columns whose heading begins with `>` are aligned right.
pub(super) fn table(headings: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let paint = Paint::stdout();
    let right: Vec<bool> = headings.iter().map(|heading| heading.starts_with('>')).collect();
    let headings: Vec<String> = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain([&headings]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells =
            row.iter().zip(&widths).zip(&right).map(|((cell, &width), &right)| {
                if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut out = io::stdout().lock();
    writeln!(out, "{}", paint.strong(line(&headings)))?;
    for row in rows {
        writeln!(out, "{}", line(row))?;
    }
    Ok(())
}

/// Prints a JSON value on a line of its own.
pub(super) fn json(value: &Value) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{value}")
}

/// Prints a line.
pub(super) fn line(text: impl AsRef<str>) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", text.as_ref())
}

/// Text from a message, safe to show on one line of a terminal, at most `chars_max` characters.
pub(super) fn shown(bytes: &[u8], chars_max: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut shown = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == chars_max {
            shown.push_str(&format!("… ({} bytes)", bytes.len()));
            break;
        }
        if character.is_control() { shown.extend(character.escape_default()) } else { shown.push(character) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_message_holds_cannot_reach_the_terminal_as_control_characters() {
        assert_eq!(shown(b"a\x1b[2Jb\nc", 100), "a\\u{1b}[2Jb\\nc");
        assert_eq!(shown("äöü".as_bytes(), 2), "äö… (6 bytes)");
    }
}
