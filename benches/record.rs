//! What a record costs: writing it, giving it its place under the append lock, and reading it.

#![allow(missing_docs)] // what the macros of criterion make

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Bencher, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use latermq::{
    model::{MessageDraft, PhysicalOffset, Properties, QueueId, QueueOffset, SysFlag, Timestamp, Topic},
    record::{Place, Record, RecordView, encode, patch},
};

const BODY_BYTES: [usize; 3] = [256, 1024, 4096];
const PLACE: Place = Place {
    queue_offset: QueueOffset(7),
    physical_offset: PhysicalOffset(4096),
    stored_at: Timestamp(1_700_000_000_123),
    prepared_offset: 0,
};

/// A message with the properties that a Java producer and the broker put on it.
fn draft(body_bytes: usize) -> MessageDraft {
    let mut properties = Properties::new();
    for (name, value) in [
        ("UNIQ_KEY", "7F000001000A2A139E28512B4EE10000"),
        ("WAIT", "true"),
        ("TAGS", "TagA"),
        ("KEYS", "order-1"),
        ("MSG_REGION", "DefaultRegion"),
        ("TRACE_ON", "true"),
        ("CLUSTER", "DefaultCluster"),
        ("DELAY", "3"),
    ] {
        properties.set(name, value);
    }
    let mut rng = fastrand::Rng::with_seed(1);
    MessageDraft {
        topic: Topic::from("TopicTest"),
        queue_id: QueueId(3),
        flag: 0,
        sys_flag: SysFlag(0),
        born_at: Timestamp(1_700_000_000_000),
        born_host: ([127, 0, 0, 1], 54321).into(),
        store_host: ([127, 0, 0, 1], 10911).into(),
        reconsume_times: 0,
        prepared_offset: 0,
        properties,
        body: std::iter::repeat_with(|| rng.u8(..)).take(body_bytes).collect(),
    }
}

fn record(body_bytes: usize) -> Bytes {
    let mut out = Vec::new();
    encode(&draft(body_bytes), &mut out).expect("a small message");
    patch(&mut out, &PLACE);
    out.into()
}

fn of_each_size(c: &mut Criterion, name: &str, mut bench: impl FnMut(&mut Bencher<'_>, usize)) {
    let mut group = c.benchmark_group(format!("record/{name}"));
    for body_bytes in BODY_BYTES {
        group.throughput(Throughput::Bytes(body_bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(body_bytes), |b| bench(b, body_bytes));
    }
    group.finish();
}

fn records(c: &mut Criterion) {
    of_each_size(c, "encode", |b, body_bytes| {
        let draft = draft(body_bytes);
        let mut out = Vec::with_capacity(2 * body_bytes + 1024);
        b.iter(|| {
            out.clear();
            encode(black_box(&draft), &mut out).expect("a small message")
        });
    });
    of_each_size(c, "patch", |b, body_bytes| {
        let mut record = record(body_bytes).to_vec();
        b.iter(|| patch(black_box(&mut record), black_box(&PLACE)));
    });
    of_each_size(c, "parse", |b, body_bytes| {
        let record = record(body_bytes);
        b.iter(|| RecordView::parse(black_box(&record)).expect("a sound record").queue_offset());
    });
    of_each_size(c, "parse_owned", |b, body_bytes| {
        let record = record(body_bytes);
        b.iter(|| Record::parse(black_box(&record)).expect("a sound record"));
    });
    of_each_size(c, "verify_body", |b, body_bytes| {
        let record = record(body_bytes);
        let record = RecordView::parse(&record).expect("a sound record");
        b.iter(|| black_box(record).body_is_sound());
    });
}

criterion_group!(benches, records);
criterion_main!(benches);
