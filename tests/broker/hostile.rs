//! Requests that no honest client sends: each gets an error or an answer, never a panic, nothing grows by them, and the store stays sound.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::BytesMut;
use latermq::{
    broker::SUPPORTED_CODES,
    env::{Directory, TestClock},
    model::Timestamp,
    namesrv::{NameServer, NameServerOptions},
    protocol::{Command, Encoding, ExtFields, Text, frame},
    record::{BatchMember, encode_batch},
    remoting::{Connection, Handler, REMARK_BYTES_MAX, Responder},
    store::FigureValue,
};

use crate::rig::{PullRequest, Rig, connection, heartbeat, heartbeat_request, message, pull_header, request, rig};

const FILES: [&str; 4] = [
    include_str!("../fixtures/frames/frames-java-5.3.3.jsonl"),
    include_str!("../fixtures/frames/frames-java-4.9.8.jsonl"),
    include_str!("../fixtures/frames/frames-java-5.3.3-binary.jsonl"),
    include_str!("../fixtures/frames/frames-go.jsonl"),
];
/// Longer than any answer to a request that asks for nothing big.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// A text of 10 MB; cheap to clone.
fn ten_megabytes() -> Text {
    static TEXT: OnceLock<Text> = OnceLock::new();
    TEXT.get_or_init(|| Text::from("7".repeat(10_000_000))).clone()
}

/// Values that a field does not expect.
fn odd_values() -> Vec<Text> {
    let texts = [
        "",
        " ",
        "x",
        "0",
        "1",
        "-1",
        "1.5",
        " 7",
        "+7",
        "0x10",
        "true",
        "TRUE",
        "\0",
        "\u{1}\u{2}",
        "é",
        "../../x",
        "%RETRY%",
        "%DLQ%",
        "SCHEDULE_TOPIC_XXXX",
        "2147483647",
        "2147483648",
        "-2147483648",
        "-2147483649",
        "4294967295",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999999999",
    ];
    texts.into_iter().map(|text| Text::from(text.to_owned())).chain([ten_megabytes()]).collect()
}

/// The fields of a request, with values that it takes.
fn fields(code: i32) -> ExtFields {
    let fields = match code {
        12 => "topic=T key=k maxNum=8 beginTimestamp=0 endTimestamp=1900000000000",
        14 => "consumerGroup=g topic=T queueId=0 setZeroIfNotFound=true",
        15 => "consumerGroup=g topic=T queueId=0 commitOffset=0",
        17 => {
            "topic=T2 defaultTopic=TBW102 readQueueNums=1 writeQueueNums=1 perm=6 topicFilterType=SINGLE_TAG topicSysFlag=0 order=false attributes=+a=b"
        }
        29 => "topic=T queueId=0 timestamp=1700000000000 boundaryType=lower",
        30..=32 => "topic=T queueId=0",
        33 => "offset=0",
        35 => "clientID=c producerGroup=pg consumerGroup=g",
        36 => "offset=0 group=g delayLevel=1 originMsgId=x originTopic=T unitMode=false maxReconsumeTimes=16",
        38 | 203 => "consumerGroup=g",
        100..=102 | 219 => "namespace=n key=k value=v",
        103 | 104 | 322 => {
            "brokerName=b brokerAddr=10.0.0.1:1 clusterName=C haServerAddr=10.0.0.1:2 brokerId=0 compressed=false bodyCrc32=0 heartbeatTimeoutMillis=1 enableActingMaster=false"
        }
        105 => "topic=T acceptStandardJsonOnly=true",
        202 | 215 | 300 | 351 => "topic=T",
        204 => "producerGroup=pg",
        205 | 327 => "brokerName=b",
        207 => "groupName=g cleanOffset=true removeOffset=true",
        208 => "consumerGroup=g topic=T",
        216 => "topic=T clusterName=C",
        224 => "cluster=C",
        352 => "group=g",
        _ => "topic=T group=g",
    };
    fields
        .split(' ')
        .map(|field| field.split_once('=').unwrap())
        .map(|(name, value)| (Text::from(name.to_owned()), Text::from(value.to_owned())))
        .collect()
}

/// A good request of a code, whose fields are then spoilt.
fn good(code: i32) -> Command {
    let send = |code: i32| {
        let mut message = message("T").level(1);
        message.code = code;
        message.header.max_reconsume_times = Some(16);
        message.header.broker_name = Some("b".to_owned().into());
        message.request()
    };
    let json = |text: &str| Command::request(code).with_ext(fields(code)).with_body(text.to_owned());
    match code {
        10 | 310 => send(code),
        320 => {
            let member =
                BatchMember { flag: 1, body: b"b".to_vec().into(), properties: b"KEYS\x01k\x02".to_vec().into() };
            let mut batch = message("T").body(encode_batch(&[member.clone(), member]).unwrap());
            batch.code = 320;
            batch.request()
        }
        11 | 361 => Command { code, ..pull_header("g", "T", 0, 0).tags("A || B").held().request() },
        34 => heartbeat_request(&heartbeat("c", "g", &[("T", "*")])),
        35 => Command::request(35).with_ext(fields(35)),
        41 | 42 => json(r#"{"consumerGroup":"g","clientId":"c","mqSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}"#),
        46 => json(
            r#"{"clientId":"c","group":"g","subscriptionData":{"topic":"T","subString":"*","expressionType":"TAG"}}"#,
        ),
        200 => json(r#"{"groupName":"g2","consumeEnable":true,"retryMaxTimes":3,"retryQueueNums":1}"#),
        25 => json("traceOn=false"),
        _ => Command::request(code).with_ext(fields(code)),
    }
}

/// Gives a request to a handler; a panic fails the test with what led to it.
fn give(
    handler: &impl Handler,
    connection: &Arc<Connection>,
    request: Command,
    case: &dyn Fn() -> String,
) -> Vec<Command> {
    let handled = catch_unwind(AssertUnwindSafe(|| {
        let responder = Responder::new(connection, &request);
        handler.handle(connection, request, responder);
    }));
    assert!(handled.is_ok(), "panicked: {}", case());
    let sent = connection.take_sent();
    for answer in &sent {
        let bytes = answer.body.len() + answer.ext.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        assert!(bytes <= ANSWER_BYTES_MAX, "answered with {bytes} bytes: {}", case());
        assert!(answer.remark.as_ref().is_none_or(|remark| remark.len() <= REMARK_BYTES_MAX), "{}", case());
    }
    sent
}

/// What is stored now can be read, what waits comes, and nothing has grown.
fn assert_sound(rig: &Rig, case: &str) {
    let honest = connection();
    let pull = |topic: &str, offset: u64| {
        let header = pull_header("honest", topic, 0, offset as i64);
        rig.ask_now(&honest, header.request()).unwrap()
    };
    rig.step();
    let before = crate::rig::max(rig, "honest", 0);
    for level in [0, 1] {
        let answer = rig.ask_now(&honest, message("honest").level(level).body("still here").request()).unwrap();
        assert_eq!(answer.code, 0, "{case}: {:?}", answer.remark);
    }
    rig.step();
    rig.advance(Duration::from_secs(1));
    rig.step();
    let answer = pull("honest", before);
    let records = crate::rig::records(&answer);
    assert_eq!(records.len(), 2, "{case}: {answer:?}");
    assert!(records.iter().all(|record| *record.view().body() == *b"still here"), "{case}");

    assert_eq!(rig.fatal.lock().unwrap()[..], [""; 0], "{case}");
    let parked = rig.store.figures().into_iter().filter(|figure| figure.name == "delayParked");
    assert!(parked.into_iter().all(|figure| figure.value == FigureValue::Number(0.0)), "{case}");
    rig.broker.save();
    for name in ["topics.json", "subscriptionGroup.json", "consumerOffset.json"] {
        let file = rig.directory.read(&Path::new("config").join(name)).unwrap().unwrap_or_default();
        assert!(file.len() <= ANSWER_BYTES_MAX, "{case}: {name} has {} bytes", file.len());
    }
    assert!(rig.broker.held_pulls() < 10_000, "{case}");
}

fn recorded() -> Vec<Vec<u8>> {
    let hex = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let hex = line["frame"].as_str().unwrap();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    FILES.iter().flat_map(|file| file.lines()).map(hex).collect()
}

fn name_server() -> Arc<NameServer> {
    NameServer::new(NameServerOptions::default(), Arc::new(TestClock::new(Timestamp(1_700_000_000_000))))
}

fn spoilt(good: &Command, mut give: impl FnMut(Command, &dyn Fn() -> String)) {
    let code = good.code;
    let names: Vec<Text> = good.ext.iter().map(|(name, _)| name.into()).collect();
    for name in &names {
        let mut without = good.clone();
        without.ext.remove(name);
        give(without, &|| format!("code {code} without {name}"));
        for value in odd_values() {
            let mut odd = good.clone();
            odd.ext.set(name.clone(), value.clone());
            give(odd, &|| format!("code {code}: {name} = {:?}", &value[..value.len().min(40)]));
        }
    }
    let bare = Command { ext: ExtFields::new(), ..good.clone() };
    give(bare, &|| format!("code {code} without fields"));
    for body in
        [&b""[..], b"x", b"{", b"{}", b"[]", b"null", b"\0\0\0\x01", &[0xFF; 64], &[b'['; 100_000], &[b'9'; 5_000_000]]
    {
        let odd = Command { body: body.to_vec().into(), ..good.clone() };
        give(odd, &|| format!("code {code} with a body of {} bytes {:?}", body.len(), &body[..body.len().min(8)]));
    }
}

#[test]
fn no_field_of_any_request_to_the_broker_makes_it_panic_or_grow() {
    for &code in SUPPORTED_CODES {
        let rig = rig();
        rig.sent(message("T").property("KEYS", "k"));
        let client = connection();
        spoilt(&good(code), |request, case| {
            give(&*rig.broker, &client, request, case);
        });
        assert_sound(&rig, &format!("code {code}"));
    }
}

#[test]
fn no_field_of_any_request_to_the_name_server_makes_it_panic_or_grow() {
    let name_server = name_server();
    let client = connection();
    for &code in NameServer::CODES {
        spoilt(&good(code), |request, case| {
            give(&*name_server, &client, request, case);
        });
        let registered = good(103);
        let answers = give(&*name_server, &client, registered, &|| format!("after code {code}"));
        assert_eq!(answers[0].code, 0, "after code {code}: {:?}", answers[0].remark);
    }
}

#[test]
fn ten_megabytes_in_a_header_come_through_either_encoding_and_harm_nobody() {
    let rig = rig();
    let client = connection();
    for encoding in [Encoding::Json, Encoding::Binary] {
        for (code, field) in [(310, "b"), (310, "i"), (310, "e"), (15, "commitOffset"), (14, "topic"), (105, "topic")] {
            let mut long = Command { encoding, ..good(code) };
            long.ext.set(field, ten_megabytes());
            let case = || format!("{encoding:?} code {code} field {field}");
            let mut bytes = frame::encode_whole(&long).unwrap_or_else(|error| panic!("{}: {error}", case()));
            let decoded = frame::decode(&mut bytes).unwrap().unwrap();
            assert_eq!(decoded.ext.get(field).map(str::len), Some(10_000_000), "{}", case());
            let answers = give(&*rig.broker, &client, decoded, &case);
            assert_ne!(answers[0].code, 0, "{}", case());
        }
    }
    assert_sound(&rig, "10 MB");
}

/// All 100,000 are decoded; one in four of those that are still a frame is given to the broker and to a name server.
#[test]
fn mutations_and_prefixes_of_recorded_frames_never_panic() {
    let seed = std::env::var("LATERMQ_HOSTILE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_130);
    let mut random = fastrand::Rng::with_seed(seed);
    let frames = recorded();
    let (rig, name_server, client) = (rig(), name_server(), connection());
    rig.sent(message("T"));

    for (index, frame) in frames.iter().enumerate() {
        for end in 0..frame.len().min(2_000) {
            let mut input = BytesMut::from(&frame[..end]);
            assert_eq!(frame::decode(&mut input), Ok(None), "frame {index}, {end} bytes");
        }
    }
    let (mut decoded, mut handled) = (0_u32, 0_u32);
    for round in 0..100_000 {
        let index = random.usize(..frames.len());
        let case = || format!("LATERMQ_HOSTILE_SEED={seed}, mutation {round} of frame {index}");
        let mutated = mutate(&frames[index], &frames, &mut random);
        let mut input = BytesMut::from(&mutated[..]);
        let found = catch_unwind(AssertUnwindSafe(|| frame::decode(&mut input)));
        let Ok(found) = found else { panic!("decoding panicked: {}", case()) };
        let Ok(Some(command)) = found else { continue };
        decoded += 1;
        if command.is_response() || !decoded.is_multiple_of(4) {
            continue;
        }
        handled += 1;
        give(&*rig.broker, &client, command.clone(), &case);
        give(&*name_server, &client, command, &case);
        if handled % 500 == 0 {
            assert_sound(&rig, &case());
        }
    }
    assert!(decoded > 20_000 && handled > 1_000, "{decoded} {handled}");
    assert_sound(&rig, &format!("LATERMQ_HOSTILE_SEED={seed}"));
}

fn mutate(frame: &[u8], frames: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    let keeps_length = random.u8(..4) > 0;
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..bytes.len());
        match random.u8(..7) {
            0 => bytes[at] ^= 1 << random.u8(..8),
            1 => bytes[at] = random.u8(..),
            2 => _ = bytes.remove(at),
            3 => bytes.insert(at, random.u8(..)),
            4 => {
                let text = *random
                    .choice(&[&b"-1"[..], b"2147483648", b"9223372036854775807", b"null", b"\"\"", b"{", b"\\u0000"])
                    .unwrap();
                bytes.splice(at..at, text.iter().copied());
            }
            5 => {
                let end = (at + random.usize(1..16)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                let other = &frames[random.usize(..frames.len())];
                let from = random.usize(..other.len());
                let end = (from + random.usize(1..64)).min(other.len());
                bytes.splice(at..at, other[from..end].iter().copied());
            }
        }
        if bytes.len() < 9 {
            break;
        }
    }
    if keeps_length && bytes.len() > 8 {
        // The outer length fits again, and most times the one of the header too, so that what is within is looked at.
        let total = bytes.len() - 4;
        bytes[..4].copy_from_slice(&(total as u32).to_be_bytes());
        bytes[4] &= 1;
        let header = usize::from(bytes[6]) << 8 | usize::from(bytes[7]) | usize::from(bytes[5]) << 16;
        if header > total - 4 {
            let header = (total - 4) as u32;
            bytes[5..8].copy_from_slice(&header.to_be_bytes()[1..]);
        }
    }
    bytes
}

/// Total, body length and properties length of each member, each with every kind of wrong value.
#[test]
fn a_batch_with_any_length_wrong_is_refused_whole() {
    let rig = rig();
    let client = connection();
    let member = BatchMember { flag: 0, body: vec![b'b'; 40].into(), properties: b"KEYS\x01k\x02".to_vec().into() };
    let good = encode_batch(&[member.clone(), member]).unwrap();
    let batch = |body: &[u8]| {
        let mut batch = message("T").body(body);
        batch.code = 320;
        batch.request()
    };
    let half = good.len() / 2;
    let mut cases: Vec<Vec<u8>> =
        (0..good.len()).filter(|&end| end != half && end > 0).map(|end| good[..end].to_vec()).collect();
    for begin in [0, half] {
        for (at, width) in [(begin, 4), (begin + 16, 4), (begin + 20 + 40, 2)] {
            let now = good[at..at + width].iter().fold(0_i64, |value, byte| value << 8 | i64::from(*byte));
            for value in [
                -1,
                0,
                1,
                now - 1,
                now + 1,
                21,
                22,
                0x7FFF,
                0x8000,
                0xFFFF,
                i64::from(i32::MAX),
                i64::from(i32::MIN),
                1 << 24,
            ] {
                let bytes = value.to_be_bytes();
                let mut wrong = good.to_vec();
                wrong[at..at + width].copy_from_slice(&bytes[8 - width..]);
                if wrong != good {
                    cases.push(wrong);
                }
            }
        }
    }
    let stored = crate::rig::max(&rig, "T", 0);
    for (number, case) in cases.iter().enumerate() {
        let answers = give(&*rig.broker, &client, batch(case), &|| format!("case {number}"));
        assert_eq!(answers[0].code, 13, "case {number}: {:?}", answers[0].remark);
    }
    rig.step();
    assert_eq!(crate::rig::max(&rig, "T", 0), stored, "nothing of a wrong batch is stored");
    give(&*rig.broker, &client, batch(&good), &|| "good".into());
    rig.step();
    assert_eq!(crate::rig::max(&rig, "T", 0), stored + 2);
    assert_sound(&rig, "batches");
}

#[test]
fn no_property_block_makes_the_broker_panic_or_lets_a_message_out_early() {
    let seed = 84;
    let mut random = fastrand::Rng::with_seed(seed);
    let rig = rig();
    let client = connection();
    let pieces = [
        "\u{1}",
        "\u{2}",
        "\u{1}\u{1}",
        "\u{2}\u{2}",
        "\0",
        "DELAY",
        "3",
        "-1",
        "99",
        "REAL_TOPIC",
        "REAL_QID",
        "T",
        "other",
        "WAIT",
        "false",
        "UNIQ_KEY",
        "KEYS",
        "TAGS",
        "TRAN_MSG",
        "true",
        "TIMER_DELAY_MS",
        "RETRY_TOPIC",
        "x",
        "é",
        " ",
        "DELAY\u{1}3\u{2}",
    ];
    let mut delayed = 0;
    for round in 0..3_000 {
        let text: String = (0..random.usize(..14)).map(|_| *random.choice(&pieces).unwrap()).collect();
        let mut send = message("P");
        send.header.properties = Some(text.clone().into());
        let answers = give(&*rig.broker, &client, send.request(), &|| format!("seed {seed}, round {round}: {text:?}"));
        let code = answers[0].code;
        assert!([0, 1, 13, 16].contains(&code), "round {round}: {text:?}: {:?}", answers[0]);
        if code == 0 && text.contains("DELAY\u{1}3\u{2}") {
            delayed += 1;
        }
    }
    for long in [32_000, 32_700, 32_767, 32_768, 65_535, 65_536, 1_000_000] {
        for level in ["", "DELAY\u{1}1\u{2}"] {
            let mut send = message("P");
            send.header.properties = Some(format!("{level}KEYS\u{1}{}", "k".repeat(long)).into());
            give(&*rig.broker, &client, send.request(), &|| format!("{long} bytes"));
        }
    }
    assert!(delayed > 50, "{delayed}");
    rig.step();
    assert!(rig.broker.topics().get("other").is_none());
    assert_sound(&rig, "properties");
}

/// A client may tell the broker what it likes about itself, but not as much as it likes.
#[test]
fn what_clients_say_of_themselves_is_bounded() {
    let rig = rig();
    let client = connection();
    let long = "x".repeat(2_000);
    let code = |request: Command| {
        let sent = give(&*rig.broker, &client, request, &|| "heartbeat".into());
        sent.into_iter().find(Command::is_response).unwrap().code
    };
    assert_eq!(code(heartbeat_request(&heartbeat(&long, "g", &[("T", "*")]))), 1);
    let many: Vec<(&str, &str)> = vec![("T", "*"); 20_000];
    assert_eq!(code(heartbeat_request(&heartbeat("c", "g", &many))), 1, "more than a megabyte");
    assert_eq!(code(heartbeat_request(&heartbeat("c", "g", &[("T", "*")]))), 0);
    let lock = |client_id: &str, group: &str, topic: &str| {
        let text = format!(
            r#"{{"consumerGroup":"{group}","clientId":"{client_id}","mqSet":[{{"brokerName":"b","queueId":0,"topic":"{topic}"}}]}}"#
        );
        request(41, &[]).with_body(text)
    };
    assert_eq!(code(lock(&long, "g", "T")), 1);
    for (group, topic, granted) in [(&long[..], "T", false), ("g", &long[..], false), ("g", "T", true)] {
        let answers = give(&*rig.broker, &client, lock("c", group, topic), &|| "lock".into());
        assert_eq!((answers[0].code, crate::rig::text(&answers[0]).contains(r#""queueId":0"#)), (0, granted));
    }
    for (key, value) in [(&long.repeat(40)[..], "v"), ("k", &long.repeat(40)[..])] {
        let put = request(100, &[("namespace", "n"), ("key", key), ("value", value)]);
        assert_eq!(give(&*name_server(), &client, put, &|| "kv".into())[0].code, 1);
    }
}
