//! What a record costs: writing it, giving it its place under the append lock, and reading it.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Bencher, BenchmarkId, Criterion, Throughput};
use latermq::{
    model::{PhysicalOffset, QueueOffset, Timestamp},
    record::{Place, Record, RecordView, encode, patch},
};

use crate::support;

const BODY_BYTES: [usize; 3] = [256, 1024, 4096];
const PLACE: Place = Place {
    queue_offset: QueueOffset(7),
    physical_offset: PhysicalOffset(4096),
    stored_at: Timestamp(1_700_000_000_123),
    prepared_offset: 0,
};

fn record(body_bytes: usize) -> Bytes {
    let mut out = Vec::new();
    encode(&support::draft(7, body_bytes, Some(3)), &mut out).expect("a small message");
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

pub(crate) fn benches(c: &mut Criterion) {
    of_each_size(c, "encode", |b, body_bytes| {
        let draft = support::draft(7, body_bytes, Some(3));
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
