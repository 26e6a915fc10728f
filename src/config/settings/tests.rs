use super::*;

fn sources(file: &str) -> Sources {
    Sources {
        file: Some(("broker.conf".to_owned(), file.as_bytes().to_vec())),
        home: Some("/home/ann".to_owned()),
        host_name: "machine-1".to_owned(),
        ..Sources::default()
    }
}

fn load(file: &str) -> Loaded {
    Settings::load(&sources(file)).unwrap()
}

fn errors(file: &str) -> String {
    Settings::load(&sources(file)).unwrap_err().to_string()
}

#[test]
fn the_file_that_comes_with_rocketmq_starts_without_a_warning() {
    let loaded = load(
        "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\nfileReservedTime = 48\n\
         brokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n",
    );

    assert_eq!(loaded.warnings, [""; 0]);
    assert_eq!(loaded.settings.store_options().unwrap().reserved_time, Duration::from_secs(48 * 3600));
}

#[test]
fn each_source_overrides_those_before_it() {
    let mut sources = sources("listenPort=1001\nbrokerName=file\nregionId=file\n");
    sources.environment.push(("LATERMQ_BROKER_NAME".to_owned(), "environment".to_owned()));
    sources.environment.push(("LATERMQ_REGION_ID".to_owned(), "environment".to_owned()));
    sources.environment.push(("HOME".to_owned(), "/".to_owned()));
    sources.arguments.push(("regionId".to_owned(), "argument".to_owned()));

    let settings = Settings::load(&sources).unwrap().settings;

    assert_eq!(settings.text("brokerClusterName"), "DefaultCluster");
    assert_eq!(settings.listen_port(), 1001);
    assert_eq!(settings.text("brokerName"), "environment");
    assert_eq!(settings.text("regionId"), "argument");
    assert_eq!(settings.origin("listenPort"), Some(&Origin::File { file: "broker.conf".to_owned(), line: 1 }));
}

#[test]
fn a_wrong_value_is_named_with_file_line_key_value_and_range() {
    // B63
    assert_eq!(
        errors("# ports\nlistenPort = 70000\nflushDiskType=SOMETIMES\n"),
        "broker.conf line 2: listenPort = 70000: must be a number from 0 to 65535\n\
         broker.conf line 3: flushDiskType = SOMETIMES: must be one of ASYNC_FLUSH, SYNC_FLUSH"
    );
}

#[test]
fn a_wrong_value_of_the_environment_or_the_command_line_is_named_with_its_source() {
    let mut sources = sources("");
    sources.environment.push(("LATERMQ_LISTEN_PORT".to_owned(), "x".to_owned()));
    sources.arguments.push(("traceOn".to_owned(), "perhaps".to_owned()));

    let text = Settings::load(&sources).unwrap_err().to_string();

    assert!(text.contains("environment variable LATERMQ_LISTEN_PORT: listenPort = x: must be"), "{text}");
    assert!(text.contains("command line: traceOn = perhaps: must be true or false"), "{text}");
}

#[test]
fn b121_a_comment_behind_a_value_is_refused_with_its_line_and_never_taken_for_an_address() {
    let text = errors("listenPort = 10911\nbrokerIP1=1.2.3.4 #comment\n");

    assert!(text.contains("line 2") && text.contains("brokerIP1") && text.contains("1.2.3.4 #comment"), "{text}");
    assert_eq!(load("brokerIP1 : 1.2.3.4\r\n").settings.text("brokerIP1"), "1.2.3.4");
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_known_one() {
    // B63
    let loaded = load("mesageDelayLevel=1s\nmapedFileSizeCommitLog=1\nListenPort=1\nfoo=1\nno\\nise=1\n");

    assert_eq!(
        loaded.warnings,
        [
            "broker.conf line 1: unknown key mesageDelayLevel; did you mean messageDelayLevel?",
            "broker.conf line 2: unknown key mapedFileSizeCommitLog; did you mean mappedFileSizeCommitLog?",
            "broker.conf line 3: unknown key ListenPort; did you mean listenPort?",
            "broker.conf line 4: unknown key foo",
            "broker.conf line 5: unknown key no\\nise",
        ]
    );
}

#[test]
fn keys_of_rocketmq_without_effect_are_named_as_such() {
    let loaded = load("timerWheelEnable=true\nsendMessageThreadPoolNums=8\nabortFile=/x\n");

    assert_eq!(
        loaded.warnings,
        ["keys of RocketMQ without effect here: abortFile, sendMessageThreadPoolNums, timerWheelEnable"]
    );
}

#[test]
fn the_last_of_two_lines_with_one_key_counts_and_the_first_is_not_judged() {
    let loaded = load("listenPort=x\nlistenPort=2000\n");

    assert_eq!(loaded.settings.listen_port(), 2000);
    assert_eq!(loaded.warnings, ["broker.conf line 2: listenPort was set in line 1 already; the later counts"]);
}

#[test]
fn what_would_put_data_or_security_at_risk_stops_the_start() {
    for (line, needle) in [
        ("aclEnable=true", "aclEnable = true"),
        ("authenticationEnabled=TRUE", "authenticationEnabled = TRUE"),
        ("brokerRole=SLAVE", "must be ASYNC_MASTER"),
        ("brokerRole=SYNC_MASTER", "must be ASYNC_MASTER"),
        ("brokerId=1", "must be 0"),
        ("storeType=defaultRocksDB", "must be default"),
        ("enableDLegerCommitLog=true", "must be false"),
        ("enableControllerMode=true", "must be false"),
        ("readOnlyCommitLogStorePaths=/a", "must be empty"),
    ] {
        let text = errors(line);
        assert!(
            text.starts_with("broker.conf line 1: ") && text.contains(needle) && text.contains("not supported yet"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    for line in ["aclEnable=FALSE", "brokerRole=ASYNC_MASTER", "storeType=default", "readOnlyCommitLogStorePaths="] {
        load(line);
    }
}

#[test]
fn b18_every_switch_starts_or_is_refused_in_words() {
    for key in crate::config::keys().filter(|key| key.kind == crate::config::Kind::Switch) {
        for value in ["true", "false"] {
            match Settings::load(&sources(&format!("{}={value}", key.name))) {
                Ok(_) => assert!(key.status == Status::Supported || value == key.default),
                Err(errors) => assert!(key.status == Status::StopsTheStart && errors.to_string().contains(key.name)),
            }
        }
    }
}

#[test]
fn every_default_is_allowed_and_equals_that_of_the_layer() {
    let settings = load("").settings;
    for key in crate::config::keys() {
        assert!(key.parse(settings.text(key.name)).is_some(), "{}", key.name);
    }

    let advertised = SocketAddr::from(([127, 0, 0, 1], 10911));
    assert_eq!(format!("{:?}", settings.store_options().unwrap()), format!("{:?}", StoreOptions::default()));
    let broker = BrokerOptions { name: BrokerOptions::default().name, ..settings.broker_options(advertised, 18) };
    assert_eq!(format!("{broker:?}"), format!("{:?}", BrokerOptions::default()));
    assert_eq!(format!("{:?}", settings.delay_options().unwrap()), format!("{:?}", DelayOptions::default()));
    assert_eq!(format!("{:?}", settings.name_server_options()), format!("{:?}", NameServerOptions::default()));
    assert_eq!(format!("{:?}", settings.server_options()), format!("{:?}", ServerOptions::default()));
}

#[test]
fn schedule_4_a_bad_level_is_named_with_file_line_token_and_position() {
    let error = load("\nmessageDelayLevel=1s 2x 3s\n").settings.delay_options().unwrap_err();

    assert_eq!(
        error.to_string(),
        "broker.conf line 2: messageDelayLevel = 1s 2x 3s: token 2 \"2x\" at column 4: it must end with a unit: s, m, h or d"
    );
}

#[test]
fn the_store_lies_in_a_folder_of_its_own() {
    assert_eq!(load("").settings.store_root().unwrap(), Path::new("/home/ann/latermq/store"));
    assert_eq!(load("storePathRootDir=~/elsewhere").settings.store_root().unwrap(), Path::new("/home/ann/elsewhere"));

    let homeless = Settings::load(&Sources::default()).unwrap().settings;
    assert!(homeless.store_root().unwrap_err().to_string().contains("no HOME"));
}

#[test]
fn a_commit_log_folder_inside_the_root_is_relative_to_it() {
    let inside = load("storePathRootDir=/data/store\nstorePathCommitLog=/data/store/commitlog")
        .settings
        .store_options()
        .unwrap();
    let outside = load("storePathRootDir=/data/store\nstorePathCommitLog=/fast/log").settings.store_options().unwrap();
    let several = load("storePathCommitLog=/a,/b").settings.store_options().unwrap_err().to_string();

    assert_eq!(inside.commit_log_folder, Path::new("commitlog"));
    assert_eq!(outside.commit_log_folder, Path::new("/fast/log"));
    assert!(several.starts_with("broker.conf line 1: storePathCommitLog = /a,/b: "), "{several}");
}

#[test]
fn what_is_printed_is_read_back_as_the_same_settings() {
    let settings = load("brokerName=größe\nstorePathRootDir=/a b\\\\c\nnamesrvAddr=a:1;[::1]:2\n").settings;

    let again = load(&settings.to_explained_text()).settings;

    assert_eq!(again.to_properties_text(), settings.to_properties_text());
    assert_eq!(again.name_servers(), ["a:1", "[::1]:2"]);
    assert!(settings.to_properties_text().is_ascii());
}

#[test]
fn environment_variables_name_keys_whatever_their_case_and_underscores() {
    let mut folded: Vec<String> = crate::config::keys().map(|key| key.name).chain(known::names()).map(fold).collect();
    let count = folded.len();
    folded.sort_unstable();
    folded.dedup();
    assert_eq!(folded.len(), count, "two keys differ only in case, or a key without effect is in the table");

    let mut sources = sources("");
    for (index, name) in ["LATERMQ_MESSAGE_DELAY_LEVEL", "LATERMQ_messageDelayLevel"].into_iter().enumerate() {
        sources.environment = vec![(name.to_owned(), format!("{}s", index + 1))];
        assert_eq!(Settings::load(&sources).unwrap().settings.text("messageDelayLevel"), format!("{}s", index + 1));
    }
}

#[test]
fn a_file_that_is_no_text_is_refused_with_its_line() {
    let mut sources = sources("");
    sources.file = Some(("broker.conf".to_owned(), b"listenPort=1\n\xff\xfe".to_vec()));

    assert_eq!(Settings::load(&sources).unwrap_err().to_string(), "broker.conf line 2: not UTF-8 text");
}
