//! What a frame costs, and the typed header in it: sends and pulls, asked and answered, as official clients and Apache RocketMQ 5.3.3 wrote
//! them to each other, and as ours writes them.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use criterion::{BatchSize, Criterion, Throughput};
use latermq::protocol::{
    Command, ExtFields, RequestCode,
    frame::{self, encode_whole},
    header::{PullHeader, PullReplyHeader, SendHeader, SendReplyHeader},
};

use crate::support;

/// Clients, and the frames recorded of them.
const RECORDED: [(&str, &str); 4] = [
    ("java-5.3.3", include_str!("../../tests/fixtures/frames/frames-java-5.3.3.jsonl")),
    ("java-5.3.3-binary", include_str!("../../tests/fixtures/frames/frames-java-5.3.3-binary.jsonl")),
    ("java-4.9.8", include_str!("../../tests/fixtures/frames/frames-java-4.9.8.jsonl")),
    ("go", include_str!("../../tests/fixtures/frames/frames-go.jsonl")),
];

/// The typed header of a command.
enum Header {
    Send(SendHeader),
    SendV2(SendHeader),
    SendReply(SendReplyHeader),
    Pull(PullHeader),
    PullReply(PullReplyHeader),
}

impl Header {
    /// Reads the header of the command `asked`, or of the answer to it.
    fn read(asked: i32, is_response: bool, ext: &ExtFields) -> Self {
        let header = match (asked, is_response) {
            (RequestCode::SEND_MESSAGE, false) => SendHeader::decode_long(ext).map(Self::Send),
            (RequestCode::SEND_MESSAGE_V2, false) => SendHeader::decode_short(ext).map(Self::SendV2),
            (RequestCode::PULL_MESSAGE, false) => PullHeader::decode(ext).map(Self::Pull),
            (RequestCode::PULL_MESSAGE, true) => PullReplyHeader::decode(ext).map(Self::PullReply),
            _ => SendReplyHeader::decode(ext).map(Self::SendReply),
        };
        header.expect("a sound header")
    }

    fn write(&self) -> ExtFields {
        match self {
            Self::Send(header) => header.encode_long(),
            Self::SendV2(header) => header.encode_short(),
            Self::SendReply(header) => header.encode(),
            Self::Pull(header) => header.encode(),
            Self::PullReply(header) => header.encode(),
        }
    }
}

/// A frame with the code that was asked for.
struct Sample {
    /// Such as `send/go`.
    name: String,
    asked: i32,
    frame: Bytes,
}

pub(crate) fn benches(c: &mut Criterion) {
    let samples = samples();
    of_each(c, "frame/decode", &samples, |b, sample| {
        let input = || BytesMut::from(&sample.frame[..]);
        b.iter_batched(input, |mut input| frame::decode(&mut input), BatchSize::SmallInput);
    });
    of_each(c, "frame/encode", &samples, |b, sample| {
        let (command, mut output) = (decode(&sample.frame), BytesMut::with_capacity(4096));
        b.iter(|| {
            output.clear();
            frame::encode(black_box(&command), &mut output)
        });
    });
    of_each(c, "header/decode", &samples, |b, sample| {
        let command = decode(&sample.frame);
        b.iter(|| Header::read(sample.asked, command.is_response(), black_box(&command.ext)));
    });
    of_each(c, "header/encode", &samples, |b, sample| {
        let command = decode(&sample.frame);
        let header = Header::read(sample.asked, command.is_response(), &command.ext);
        b.iter(|| black_box(&header).write());
    });
}

fn of_each(
    c: &mut Criterion,
    name: &str,
    samples: &[Sample],
    mut bench: impl FnMut(&mut criterion::Bencher<'_>, &Sample),
) {
    let mut group = c.benchmark_group(name);
    for sample in samples {
        group.throughput(Throughput::Elements(1));
        group.bench_function(&sample.name, |b| bench(b, sample));
    }
    group.finish();
}

fn decode(frame: &[u8]) -> Command {
    frame::decode(&mut BytesMut::from(frame)).expect("a sound frame").expect("a whole frame")
}

fn samples() -> Vec<Sample> {
    let mut samples = Vec::new();
    for (client, file) in RECORDED {
        let lines = file.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line of JSON"));
        let lines: Vec<_> = lines.collect();
        for (what, codes, kind) in [
            ("send", [10, 310], "request"),
            ("send_reply", [10, 310], "response"),
            ("pull", [11, 11], "request"),
            ("pull_reply", [11, 11], "response"),
        ] {
            let wanted = |line: &&serde_json::Value| {
                let asked = &line["requestCode"];
                codes.iter().any(|code| asked == code)
                    && line["kind"] == kind
                    && (kind == "request" || line["header"]["code"] == 0)
            };
            let line = lines.iter().find(wanted).expect("one of each kind was recorded");
            let asked = i32::try_from(line["requestCode"].as_i64().unwrap_or(0)).expect("a request code");
            let frame = from_hex(line["frame"].as_str().expect("a frame"));
            samples.push(Sample { name: format!("{what}/{client}"), asked, frame });
        }
    }
    for (what, asked, command) in ours() {
        let frame = encode_whole(&command).expect("a small frame").freeze();
        samples.push(Sample { name: format!("{what}/latermq"), asked, frame });
    }
    samples
}

/// What our client writes, and our broker.
fn ours() -> [(&'static str, i32, Command); 4] {
    let (send, pull) = (support::send(7, Some(3)), support::pull(7, 32));
    let sent = SendReplyHeader {
        msg_id: "7F00000100002A9F000000000021BBD2".into(),
        queue_id: 3,
        queue_offset: 4711,
        transaction_id: Some("7F000001000A2A139E28512B00000007".into()),
        region: Some("DefaultRegion".into()),
        trace_on: Some(true),
    };
    let pulled = PullReplyHeader {
        suggest_which_broker_id: 0,
        next_begin_offset: 39,
        min_offset: 0,
        max_offset: 4711,
        forbidden_type: None,
    };
    let send_reply = send.reply(0).with_ext(sent.encode());
    let pull_reply = pull.reply(0).with_ext(pulled.encode()).with_body(vec![0; 32 * 512]);
    [
        ("send", send.code, send.clone()),
        ("send_reply", send.code, send_reply),
        ("pull", pull.code, pull.clone()),
        ("pull_reply", pull.code, pull_reply),
    ]
}

fn from_hex(text: &str) -> Bytes {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(byte).collect()
}
