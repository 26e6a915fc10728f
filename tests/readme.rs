//! The README says what the code does.

use latermq::{broker::SUPPORTED_CODES, config, namesrv::NameServer, protocol::RequestCode};

#[test]
fn the_readme_lists_every_supported_request_code_and_no_other() {
    let readme = readme();
    let mut listed: Vec<i32> = readme.lines().filter_map(code_of_row).collect();
    listed.sort_unstable();
    let mut supported: Vec<i32> = SUPPORTED_CODES.iter().chain(NameServer::CODES).copied().collect();
    supported.push(RequestCode::NOTIFY_CONSUMER_IDS_CHANGED);
    supported.sort_unstable();

    assert_eq!(listed, supported);
    for row in readme.lines().filter(|line| code_of_row(line).is_some()) {
        let name = code_of_row(row).and_then(RequestCode::name).unwrap_or_default();
        assert!(row.contains(&format!("| {name} |")), "{row} does not say {name}");
    }
}

#[test]
fn every_key_that_the_readme_shows_exists() {
    let readme = readme();
    let keys: Vec<&str> = config::keys().map(|key| key.name).collect();
    for word in readme.split('`').skip(1).step_by(2).filter_map(|code| code.split_once('=').map(|(key, _)| key)) {
        let is_key = word.starts_with(char::is_lowercase) && word.chars().all(char::is_alphanumeric);
        assert!(!is_key || word == "key" || keys.contains(&word), "{word} is no key");
    }
}

fn readme() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).expect("there is a README")
}

/// The number at the start of a row of the table of request codes.
fn code_of_row(line: &str) -> Option<i32> {
    line.strip_prefix("| ")?.split(' ').next()?.parse().ok()
}
