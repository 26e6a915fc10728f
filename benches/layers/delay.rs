//! What delays cost: the table of levels, and restoring what is due, by the number of levels with a message that waits.

use std::{cell::RefCell, hint::black_box, path::Path};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use latermq::delay::{BATCH_RECORDS_MAX, DelayLevel, LevelTable};

use crate::{
    store::Replaced,
    support::{START, World, store_options},
};

const LEVELS: [usize; 3] = [1, 18, 1_000];

pub(crate) fn benches(c: &mut Criterion) {
    table(c);
    restore(c);
}

/// A second, and then levels that are never due.
fn levels(count: usize) -> String {
    let levels = (1..count).map(|level| format!(" {}h", 1_000_000 + level));
    std::iter::once("1s".to_owned()).chain(levels).collect()
}

fn table(c: &mut Criterion) {
    let mut group = c.benchmark_group("levels");
    for count in LEVELS {
        let text = levels(count);
        group.bench_function(BenchmarkId::new("parse", count), |b| {
            b.iter(|| black_box(&text).parse::<LevelTable>());
        });
        let table: LevelTable = text.parse().expect("a sound table");
        let last = DelayLevel::new(count as u32).expect("at least one level");
        group.bench_function(BenchmarkId::new("deliver_at", count), |b| {
            b.iter(|| black_box(&table).deliver_at(black_box(last), START));
        });
    }
    group.finish();
}

fn restore(c: &mut Criterion) {
    let mut group = c.benchmark_group("restore");
    for count in LEVELS {
        let table: LevelTable = levels(count).parse().expect("a sound table");
        let make = move |folder: &Path| {
            let mut world = World::open(folder, store_options(), table.clone());
            let first = world.sends(1, None);
            world.handle(first); // creates the topic
            for level in 2..=count {
                world.append(1, Some(level as u32));
            }
            world
        };
        let replaced = RefCell::new(Replaced::new(make));
        group.throughput(Throughput::Elements(BATCH_RECORDS_MAX as u64));
        group.bench_function(BenchmarkId::new("of_levels", count), |b| {
            let fill = || replaced.borrow_mut().with_room().fill_run(BATCH_RECORDS_MAX);
            let restore = |()| assert_eq!(replaced.borrow().as_it_is().restore(), BATCH_RECORDS_MAX);
            b.iter_batched(fill, restore, BatchSize::PerIteration);
        });
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("next_deadline", count), |b| {
            let mut replaced = replaced.borrow_mut();
            let world = replaced.with_room();
            world.append(1, Some(1));
            world.dispatch();
            b.iter(|| world.scheduler.next_deadline().expect("a message waits"));
        });
    }
    group.finish();
}
