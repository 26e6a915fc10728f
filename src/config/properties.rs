//! The text of a properties file: lines in, keys and values out, and back.
//!
//! A line is a comment if it begins with `#` or `!`. Otherwise its key ends at the first `=`, `:` or blank; blanks around the separator do not
//! count, nor does a carriage return at the end. A line that ends in an odd number of backslashes goes on in the next one. `\t`, `\n`, `\r`,
//! `\f` and `\uXXXX` are what they are in Java; a backslash before anything else is dropped. The text is UTF-8; a byte order mark is skipped.
//!
//! Source: Java, `java.util.Properties.load`. Unlike it, values lose the blanks at their end, as RocketMQ's loader trims them.

use std::{fmt::Write, iter::Peekable, ops::Range, str::Chars};

const BYTE_ORDER_MARK: char = '\u{feff}';

/// One `key = value` of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Line of its first character, from 1.
    pub line: usize,
    /// The key, escapes resolved.
    pub key: String,
    /// The value, escapes resolved, without blanks at either end.
    pub value: String,
}

/// Why a text is not a properties file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PropertiesError {
    /// A byte that is not UTF-8.
    #[error("line {line}: not UTF-8 text")]
    NotText {
        /// The line, from 1.
        line: usize,
    },
    /// `\u` without four hexadecimal digits behind it, or half of a surrogate pair.
    #[error("line {line}: \\u must be followed by four hexadecimal digits that name a character")]
    BadEscape {
        /// The line, from 1.
        line: usize,
    },
    /// A separator without a key before it.
    #[error("line {line}: there is no key before the separator")]
    NoKey {
        /// The line, from 1.
        line: usize,
    },
}

/// Reads a properties file. Two entries may have one key; the later counts.
///
/// # Errors
/// See [`PropertiesError`].
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry>, PropertiesError> {
    let text = decode(bytes)?;
    entries(text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)).map(|entry| entry.map(|(entry, _)| entry)).collect()
}

/// The bytes of a properties file in which `key` has `value`. Comments, order and every other line stay as they are: the last entry of the
/// key, which is the one that counts, is written anew; a key without an entry gets one behind the last line that holds it commented out
/// (`#key=`), else at the end.
///
/// # Errors
/// See [`PropertiesError`].
pub fn with_entry(bytes: &[u8], key: &str, value: &str) -> Result<Vec<u8>, PropertiesError> {
    let text = decode(bytes)?;
    let body = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let skipped = text.len() - body.len();
    let (mut last, mut places) = (None, Vec::new());
    for entry in entries(body) {
        let (entry, place) = entry?;
        places.push(place.clone());
        if entry.key == key {
            last = Some((entry.value, place));
        }
    }
    let mut line = String::new();
    write_entry(&mut line, key, value);
    let feed = if body.contains("\r\n") { "\r\n" } else { "\n" };
    let (place, line) = match last {
        Some((before, _)) if before == value => return Ok(bytes.to_vec()),
        Some((_, place)) => (place, line.trim_end_matches('\n').to_owned()),
        None => {
            let at = commented_out(body, key, &places).unwrap_or(body.len());
            // A last line without an end gets one, and one that wants to go on an empty line to go on in.
            let open = match body[..at].chars().next_back() {
                None | Some('\n') => "",
                Some('\r') => "\n",
                Some(_) => feed,
            };
            let wants_more = at == body.len() && goes_on(body.trim_end_matches(['\n', '\r']));
            let line = format!("{open}{}{}{feed}", if wants_more { feed } else { "" }, line.trim_end_matches('\n'));
            (at..at, line)
        }
    };
    let mut changed = text.to_owned();
    changed.replace_range(place.start + skipped..place.end + skipped, &line);
    Ok(changed.into_bytes())
}

/// Behind the last line that holds the key commented out. A line within an entry is none.
fn commented_out(text: &str, key: &str, entries: &[Range<usize>]) -> Option<usize> {
    let mut at = 0;
    let ends = text.split_inclusive('\n').filter_map(|line| {
        let begin = at;
        at += line.len();
        if entries.iter().any(|entry| entry.contains(&begin)) {
            return None;
        }
        let comment = line.trim_start_matches(is_blank).strip_prefix('#')?;
        let rest = comment.trim_start_matches(is_blank).strip_prefix(key)?;
        rest.trim_start_matches(is_blank).starts_with(['=', ':']).then_some(at)
    });
    ends.last()
}

fn decode(bytes: &[u8]) -> Result<&str, PropertiesError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() + 1;
        PropertiesError::NotText { line }
    })
}

/// The entries of a text, each with the bytes it takes, without the end of its last line.
fn entries(text: &str) -> impl Iterator<Item = Result<(Entry, Range<usize>), PropertiesError>> {
    let mut at = 0;
    let mut lines = text.split('\n').zip(1..).map(move |(line, number)| {
        let begin = at;
        at += line.len() + 1;
        (line.strip_suffix('\r').unwrap_or(line), begin, number)
    });
    std::iter::from_fn(move || {
        loop {
            let (first, begin, number) = lines.next()?;
            let mut end = begin + first.len();
            let first = first.trim_start_matches(is_blank);
            if first.is_empty() || first.starts_with(['#', '!']) {
                continue;
            }
            let mut logical = first.to_owned();
            while goes_on(&logical) {
                logical.pop();
                let Some((next, begin, _)) = lines.next() else { break };
                end = begin + next.len();
                logical.push_str(next.trim_start_matches(is_blank));
            }
            return Some(entry(&logical, number).map(|entry| (entry, begin..end)));
        }
    })
}

/// Writes one `key=value` line, with the line feed, that [`parse`] and Java read back as it was.
pub fn write_entry(into: &mut String, key: &str, value: &str) {
    write_escaped(into, key, true);
    into.push('=');
    write_escaped(into, value, false);
    into.push('\n');
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\u{c}')
}

fn goes_on(line: &str) -> bool {
    line.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1
}

fn entry(logical: &str, line: usize) -> Result<Entry, PropertiesError> {
    let mut rest = logical.chars().peekable();
    let mut key = String::new();
    while let Some(next) = rest.next_if(|&next| !is_blank(next) && !matches!(next, '=' | ':')) {
        push(&mut key, next, &mut rest, line)?;
    }
    while rest.next_if(|&next| is_blank(next)).is_some() {}
    if rest.next_if(|next| matches!(next, '=' | ':')).is_some() {
        while rest.next_if(|&next| is_blank(next)).is_some() {}
    }
    if key.is_empty() {
        return Err(PropertiesError::NoKey { line });
    }
    let mut value = String::new();
    while let Some(next) = rest.next() {
        push(&mut value, next, &mut rest, line)?;
    }
    Ok(Entry { line, key, value: value.trim().to_owned() })
}

fn push(into: &mut String, next: char, rest: &mut Peekable<Chars<'_>>, line: usize) -> Result<(), PropertiesError> {
    if next != '\\' {
        into.push(next);
        return Ok(());
    }
    match rest.next() {
        None => {}
        Some('t') => into.push('\t'),
        Some('n') => into.push('\n'),
        Some('r') => into.push('\r'),
        Some('f') => into.push('\u{c}'),
        Some('u') => {
            let bad = PropertiesError::BadEscape { line };
            let first = code_unit(rest).ok_or(bad.clone())?;
            let second = match first {
                0xd800..=0xdbff if rest.next() == Some('\\') && rest.next() == Some('u') => {
                    Some(code_unit(rest).ok_or(bad.clone())?)
                }
                _ => None,
            };
            let units = std::iter::once(first).chain(second);
            for decoded in char::decode_utf16(units) {
                into.push(decoded.map_err(|_| bad.clone())?);
            }
        }
        Some(other) => into.push(other),
    }
    Ok(())
}

fn code_unit(rest: &mut Peekable<Chars<'_>>) -> Option<u16> {
    let mut unit = 0;
    for _ in 0..4 {
        let digit = rest.next()?.to_digit(16)?;
        unit = unit << 4 | u16::try_from(digit).ok()?;
    }
    Some(unit)
}

fn write_escaped(into: &mut String, text: &str, is_key: bool) {
    for (at, character) in text.char_indices() {
        match character {
            ' ' if is_key || at == 0 => into.push_str("\\ "),
            '=' | ':' | '#' | '!' if is_key => {
                into.push('\\');
                into.push(character);
            }
            '\\' => into.push_str("\\\\"),
            '\t' => into.push_str("\\t"),
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            '\u{c}' => into.push_str("\\f"),
            ' '..='~' => into.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(into, "\\u{unit:04x}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text.as_bytes()).unwrap().into_iter().map(|entry| (entry.key, entry.value)).collect()
    }

    #[test]
    fn comments_blanks_and_carriage_returns_do_not_count() {
        let text = "# a comment\r\n! another = one\r\n\r\n  listenPort =  10911  \r\nbrokerName:a\nbrokerClusterName c\nnamesrvAddr=\n";

        let expected = [("listenPort", "10911"), ("brokerName", "a"), ("brokerClusterName", "c"), ("namesrvAddr", "")];
        assert_eq!(pairs(text), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_backslash_escapes_and_joins_lines_as_in_java() {
        let text = "a\\ b=x\\ty\nlong = one \\\n    two\npath=C:\\\\store\nsmile=\\ud83d\\ude00\nodd=\\q\nlast=end\\";

        let expected = [
            ("a b", "x\ty"),
            ("long", "one two"),
            ("path", "C:\\store"),
            ("smile", "😀"),
            ("odd", "q"),
            ("last", "end"),
        ];
        assert_eq!(pairs(text), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn an_entry_knows_the_line_it_begins_in() {
        let entries = parse(b"\xef\xbb\xbf# top\na=1 \\\n 2\nb=3").unwrap();

        assert_eq!(entries.iter().map(|entry| entry.line).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn what_is_no_text_is_refused_with_its_line() {
        assert_eq!(parse(b"a=1\nb=\xff"), Err(PropertiesError::NotText { line: 2 }));
        assert_eq!(parse(b"a=\\u12"), Err(PropertiesError::BadEscape { line: 1 }));
        assert_eq!(parse(b"a=\\ud800 "), Err(PropertiesError::BadEscape { line: 1 }));
        assert_eq!(parse(b"\n=1"), Err(PropertiesError::NoKey { line: 2 }));
    }

    #[test]
    fn an_entry_is_changed_in_its_place_and_all_else_stays() {
        let text = "# mine\r\n! odd\r\nunknown = x \\\r\n   y\r\nparkAfter = 1\r\n  parkAfter: \\\r\n  2\r\nlast=end";
        let changed = with_entry(text.as_bytes(), "parkAfter", "3").unwrap();
        assert_eq!(
            String::from_utf8(changed).unwrap(),
            "# mine\r\n! odd\r\nunknown = x \\\r\n   y\r\nparkAfter = 1\r\nparkAfter=3\r\nlast=end"
        );
        assert_eq!(with_entry(text.as_bytes(), "parkAfter", "2").unwrap(), text.as_bytes(), "it has that value");
    }

    #[test]
    fn a_key_without_an_entry_gets_one_behind_its_comment_or_at_the_end() {
        let added = |text: &str| String::from_utf8(with_entry(text.as_bytes(), "a", "b c").unwrap()).unwrap();
        assert_eq!(added(""), "a=b c\n");
        assert_eq!(added("x=1"), "x=1\na=b c\n");
        assert_eq!(added("# about a\n# a = 0\n\n#ab=1\nx=1\n"), "# about a\n# a = 0\na=b c\n\n#ab=1\nx=1\n");
        assert_eq!(added("\u{feff}#a=0"), "\u{feff}#a=0\na=b c\n");
        assert_eq!(added("x=\\"), "x=\\\n\na=b c\n", "the line before goes on");
        assert_eq!(added("x=\\\n"), "x=\\\n\na=b c\n");
        assert_eq!(added("x=\\\n#a=0"), "x=\\\n#a=0\na=b c\n");
        assert_eq!(with_entry(b"x=\xff", "a", "b"), Err(PropertiesError::NotText { line: 1 }));
    }

    proptest! {
        #[test]
        fn a_changed_text_gives_the_new_value_and_the_others_as_they_were(
            lines in proptest::collection::vec("(#? ?[abk]{1,2} ?[=:]? ?[x\\\\]{0,3}|[ #!]{0,3})\r?", 0..8),
            value in "[\\PC\n\\\\]{0,8}",
        ) {
            let text = lines.join("\n");
            let others = |entries: Vec<Entry>| entries.into_iter().filter(|entry| entry.key != "k").map(|entry| (entry.key, entry.value)).collect::<Vec<_>>();
            let Ok(before) = parse(text.as_bytes()) else { return Ok(()) };

            let changed = with_entry(text.as_bytes(), "k", &value).unwrap();

            let after = parse(&changed).unwrap();
            let last = after.iter().rfind(|entry| entry.key == "k").unwrap();
            prop_assert_eq!(&last.value, value.trim());
            prop_assert_eq!(others(after.clone()), others(before));
        }

        #[test]
        fn what_is_written_is_read_back(key in "\\PC{1,12}", value in "[\\PC\n\r\t=:#!\\\\ ]{0,24}") {
            let mut text = String::new();
            write_entry(&mut text, &key, &value);

            let read = parse(text.as_bytes()).unwrap();

            prop_assert_eq!(&read[..], &[Entry { line: 1, key, value: value.trim().to_owned() }]);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
