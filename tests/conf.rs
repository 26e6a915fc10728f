//! `conf/broker.conf` and the table of keys say the same.

use std::{fs, path::Path};

use latermq::config::{Settings, Sources, reference_text};

/// Set to anything, it makes the test write the file instead of comparing it.
const WRITE: &str = "WRITE_CONF";

#[test]
fn conf_broker_conf_shows_every_key_at_its_default() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/broker.conf");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, reference_text()).unwrap();
    }

    let text = fs::read_to_string(&path).unwrap();

    assert!(
        text == reference_text(),
        "conf/broker.conf differs from the table of keys; write it anew with {WRITE}=1 cargo test --test conf"
    );
}

#[test]
fn each_line_of_conf_broker_conf_uncommented_changes_nothing() {
    let machine = Sources { home: Some("/home/ann".into()), host_name: "machine".into(), ..Sources::default() };
    let lines: Vec<String> = reference_text()
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| !line.starts_with(['#', ' ']))
        .map(str::to_owned)
        .collect();
    let sources = Sources { file: Some(("broker.conf".into(), lines.join("\n").into_bytes())), ..machine.clone() };

    let loaded = Settings::load(&sources).unwrap();

    assert_eq!(loaded.warnings, [""; 0]);
    assert_eq!(loaded.settings.to_properties_text(), Settings::load(&machine).unwrap().settings.to_properties_text());
    assert!(lines.len() > 60);
}
