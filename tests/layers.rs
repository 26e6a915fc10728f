//! Who may import whom. A lower layer never knows an upper one; see the map in `src/lib.rs`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Each module of the crate with the modules it may name.
const ALLOWED: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("mutation", &[]),
    ("record", &["model"]),
    ("env", &["model"]),
    ("protocol", &["model"]),
    ("store", &["model", "mutation", "record", "env"]),
    ("delay", &["model", "mutation", "record", "env", "store"]),
    ("remoting", &["protocol"]),
    ("broker", &["model", "record", "env", "protocol", "store", "remoting"]),
    ("namesrv", &["model", "env", "protocol", "remoting"]),
    ("bench", &["model", "record", "protocol"]),
    ("config", &["model", "store", "delay", "broker", "namesrv", "remoting"]),
    (
        "cli",
        &["model", "record", "env", "protocol", "store", "delay", "remoting", "broker", "namesrv", "config", "bench"],
    ),
];

/// Modules that know neither sockets nor async code.
const WITHOUT_TOKIO: [&str; 6] = ["model", "record", "env", "protocol", "store", "delay"];

/// A source file with its comments and string literals blanked out.
struct Source {
    module: String,
    path: PathBuf,
    code: String,
}

#[test]
fn a_lower_layer_never_imports_an_upper_one() {
    let sources = sources();
    let mut wrong = Vec::new();
    for source in &sources {
        let Some((_, allowed)) = ALLOWED.iter().find(|(module, _)| *module == source.module) else {
            panic!("{} belongs to no module of the table", source.path.display());
        };
        for named in modules_named(&source.code) {
            if named != source.module && !allowed.contains(&named.as_str()) {
                wrong.push(format!("{} may not name {named}", source.path.display()));
            }
        }
    }

    assert!(sources.len() > 20);
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn every_module_of_the_crate_stands_in_the_table() {
    let root = fs::read_to_string(src().join("lib.rs")).unwrap();
    let declared: Vec<&str> =
        root.lines().filter_map(|line| line.strip_prefix("pub mod ")).map(|line| line.trim_end_matches(';')).collect();

    let mut listed: Vec<&str> = ALLOWED.iter().map(|(module, _)| *module).collect();
    listed.sort_unstable();
    assert_eq!(declared, listed);
}

#[test]
fn unsafe_code_lies_in_one_file() {
    let unsafe_files: Vec<PathBuf> = sources()
        .into_iter()
        .filter(|source| words(&source.code).any(|word| word == "unsafe"))
        .map(|source| source.path)
        .collect();

    assert!(unsafe_files.iter().all(|path| path.ends_with("env/fs_map.rs")), "{unsafe_files:?}");
}

#[test]
fn store_and_delay_know_no_async_code_and_protocol_does_no_io() {
    for source in sources().iter().filter(|source| WITHOUT_TOKIO.contains(&source.module.as_str())) {
        for word in ["tokio", "async", "await"] {
            assert!(!words(&source.code).any(|found| found == word), "{} says {word}", source.path.display());
        }
    }
}

#[test]
fn only_env_touches_files_below_the_command_line() {
    for source in sources() {
        if ["env", "cli", "bench"].contains(&source.module.as_str()) || is_test(&source.path) {
            continue;
        }
        let code = without_test_module(&source.code);
        for call in ["std::fs", "fs::read", "fs::write", "SystemTime::now", "Instant::now"] {
            // Drivers, the thin loops around a step, measure pauses; sockets have deadlines. Neither keeps a promise by it.
            let is_driver = source.path.file_stem().is_some_and(|stem| stem == "driver" || stem == "drivers");
            let has_sockets = ["remoting", "broker", "namesrv"].contains(&source.module.as_str());
            let may_measure = call == "Instant::now" && (is_driver || has_sockets);
            assert!(may_measure || !code.contains(call), "{} says {call}", source.path.display());
        }
    }
}

#[test]
fn the_scan_sees_what_it_should() {
    let code = blanked(
        "use crate::{\n    store::{self, MessageStore as M},\n    model::Topic,\n};\n// use crate::cli;\nlet a = \"crate::broker\"; crate::delay::x();\n'a' r#\"crate::config\"#",
    );

    assert_eq!(modules_named(&code), ["store", "model", "delay"]);
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![src()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let relative = path.strip_prefix(src()).unwrap().to_owned();
            let module =
                relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned();
            if path.extension().is_some_and(|extension| extension == "rs") && module != "lib" && module != "main" {
                found.push(Source { module, code: blanked(&fs::read_to_string(&path).unwrap()), path: relative });
            }
        }
    }
    found
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().to_string_lossy().contains("test"))
}

/// The code before the tests at the end of a file.
fn without_test_module(code: &str) -> &str {
    code.find("#[cfg(test)]\nmod ").map_or(code, |at| &code[..at])
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|character: char| !character.is_alphanumeric() && character != '_')
}

/// The first names behind each `crate::`, those in braces included.
fn modules_named(code: &str) -> Vec<String> {
    let mut named = Vec::new();
    for (at, text) in code.match_indices("crate::") {
        let rest = code[at + text.len()..].trim_start();
        match rest.strip_prefix('{') {
            Some(group) => {
                let mut depth = 0;
                let mut expects_name = true;
                for (at, character) in group.char_indices() {
                    match character {
                        '}' if depth == 0 => break,
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        ',' if depth == 0 => expects_name = true,
                        _ if depth == 0 && expects_name && !character.is_whitespace() => {
                            named.extend(words(&group[at..]).next().map(str::to_owned));
                            expects_name = false;
                        }
                        _ => {}
                    }
                }
            }
            None => named.extend(words(rest).next().map(str::to_owned)),
        }
    }
    // Names of the crate root that are no modules: `Result` and the like begin with a capital.
    named.retain(|name| name.starts_with(char::is_lowercase));
    named
}

/// Replaces comments, strings and character literals by blanks.
fn blanked(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_string_hashes(rest) {
            let close = format!("\"{}", "#".repeat(hashes));
            let open = rest.find('"').unwrap_or(0) + 1;
            rest[open..].find(&close).map_or(rest.len(), |end| open + end + close.len())
        } else if next == '"' {
            string_end(rest)
        } else if next == '\'' {
            character_end(rest)
        } else {
            0
        };
        if skipped == 0 {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            code.extend(rest[..skipped].chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
            rest = &rest[skipped..];
        }
    }
    code
}

fn raw_string_hashes(rest: &str) -> Option<usize> {
    let behind = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = behind.bytes().take_while(|&byte| byte == b'#').count();
    behind[hashes..].starts_with('"').then_some(hashes)
}

fn string_end(rest: &str) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Length of a character literal; 0 for a lifetime.
fn character_end(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            rest[at + escaped.len_utf8()..].find('\'').map_or(0, |end| at + escaped.len_utf8() + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}
