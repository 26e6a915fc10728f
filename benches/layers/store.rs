//! What the store costs on real files: appending by policy and batch, dispatch, pulls, and recovery by the size of the log.

use std::{cell::RefCell, fs, hint::black_box, path::Path};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use latermq::{
    delay::LevelTable,
    model::{MessageDraft, Properties},
    protocol::frame::encode_whole,
    store::{FlushPolicy, PullQuery, StoreOptions},
};
use tempfile::TempDir;

use crate::support::{BODY_BYTES, QUEUE, TOPIC, World, pull, store_options};

/// A store is thrown away once its log is so long.
pub(crate) const LOG_BYTES_MAX: u64 = 192 << 20;
/// Messages of a dispatch round.
const ROUND: usize = 512;
/// Messages in the queue that is pulled.
const QUEUED: usize = 10_000;

/// A world on a temporary folder that is replaced when it has grown long.
pub(crate) struct Replaced {
    make: Box<dyn Fn(&Path) -> World>,
    world: World,
    /// Behind the world, so that it is dropped after it.
    folder: TempDir,
}

impl Replaced {
    pub(crate) fn new(make: impl Fn(&Path) -> World + 'static) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { world: make(folder.path()), make: Box::new(make), folder }
    }

    /// The world as it is.
    pub(crate) fn as_it_is(&self) -> &World {
        &self.world
    }

    /// The world, with room in it.
    pub(crate) fn with_room(&mut self) -> &mut World {
        if self.world.log_bytes() > LOG_BYTES_MAX {
            let folder = tempfile::tempdir().expect("a temporary folder");
            self.world = (self.make)(folder.path());
            self.folder = folder;
        }
        &mut self.world
    }
}

pub(crate) fn benches(c: &mut Criterion) {
    append(c);
    dispatch(c);
    pulls(c);
    recovery(c);
}

fn append(c: &mut Criterion) {
    let mut group = c.benchmark_group("append");
    for (name, flush_policy) in [("async", FlushPolicy::Async), ("sync", FlushPolicy::Sync)] {
        for (way, count) in [("one", 1), ("64_apart", 64), ("64_together", 64), ("batch_of_64", 64)] {
            let options = StoreOptions { flush_policy, ..store_options() };
            let make = move |folder: &Path| World::open(folder, options.clone(), LevelTable::default());
            let replaced = RefCell::new(Replaced::new(make));
            let drafts = || {
                let mut replaced = replaced.borrow_mut();
                let world = replaced.with_room();
                world.dispatch();
                world.drafts(count, BODY_BYTES, None)
            };
            let append = |drafts: Vec<MessageDraft>| {
                let replaced = replaced.borrow();
                let store = &replaced.as_it_is().store;
                match way {
                    "batch_of_64" => {
                        store.append_batch(&Properties::new(), drafts).expect("a store that takes messages");
                    }
                    "64_together" => {
                        let appended = store.append_each(drafts);
                        assert!(appended.iter().all(Result::is_ok));
                    }
                    _ => {
                        for draft in drafts {
                            store.append(draft).expect("a store that takes messages");
                        }
                    }
                }
                if store.waits_for_sync() {
                    store.sync_once().expect("a sound disk");
                }
            };
            group.throughput(Throughput::Elements(count as u64));
            group.bench_function(BenchmarkId::new(name, way), |b| {
                b.iter_batched(drafts, append, BatchSize::LargeInput);
            });
        }
    }
    group.finish();
}

/// From the log into a queue, without and with the index.
fn dispatch(c: &mut Criterion) {
    let mut group = c.benchmark_group("dispatch");
    group.throughput(Throughput::Elements(ROUND as u64));
    for (name, index_enabled) in [("queue", false), ("queue_and_index", true)] {
        let options = StoreOptions { index_enabled, ..store_options() };
        let make = move |folder: &Path| World::open(folder, options.clone(), LevelTable::default());
        let replaced = RefCell::new(Replaced::new(make));
        group.bench_function(BenchmarkId::new(name, ROUND), |b| {
            let append = || replaced.borrow_mut().with_room().append(ROUND, None);
            b.iter_batched(append, |()| replaced.borrow().as_it_is().dispatch(), BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// Of the store, and of the broker from the frame of the request to that of the answer.
fn pulls(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut world = World::open(folder.path(), store_options(), LevelTable::default());
    let sends = world.sends(QUEUED, None);
    world.handle(sends);
    assert_eq!(world.answers().len(), QUEUED);
    world.dispatch();
    let mut group = c.benchmark_group("pull");
    for count in [1, 32] {
        let mut offsets = (0..QUEUED - count).step_by(count).cycle();
        let mut offset = || i64::try_from(offsets.next().unwrap_or(0)).unwrap_or(0);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::new("store", count), |b| {
            b.iter(|| {
                let query = PullQuery {
                    topic: TOPIC,
                    queue_id: QUEUE,
                    offset: offset(),
                    count_max: count,
                    bytes_max: 256 << 10,
                };
                let pulled = world.store.pull(black_box(&query), &|_| true);
                assert_eq!(pulled.count, count);
                pulled
            });
        });
        group.bench_function(BenchmarkId::new("broker", count), |b| {
            let request = || encode_whole(&pull(offset(), count as i32)).expect("a small frame");
            b.iter_batched(request, |request| world.answer(request), BatchSize::SmallInput);
        });
    }
    group.finish();
}

/// Opening a store, after a clean stop and after a kill; killed it was never saved, so that the whole log is gone through.
fn recovery(c: &mut Criterion) {
    let mut group = c.benchmark_group("recovery");
    group.sample_size(10);
    for count in [1_000, 10_000, 50_000] {
        for (name, is_clean) in [("clean", true), ("killed", false)] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let mut world = World::open(folder.path(), store_options(), LevelTable::default());
            world.append(count / 2, None);
            world.append(count / 2, Some(3));
            world.dispatch();
            if is_clean {
                world.store.stop().expect("a sound disk");
            }
            let copied = || {
                let copy = tempfile::tempdir().expect("a temporary folder");
                copy_folder(folder.path(), copy.path());
                copy
            };
            let open = |copy: TempDir| {
                let world = World::open(copy.path(), store_options(), LevelTable::default());
                (world, copy)
            };
            group.throughput(Throughput::Elements(count as u64));
            group.bench_function(BenchmarkId::new(name, count), |b| {
                b.iter_batched(copied, open, BatchSize::PerIteration);
            });
        }
    }
    group.finish();
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            fs::create_dir(&to).expect("a new folder");
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), &to).expect("a readable file");
            // Or the first sync of the store that is measured would have to write all of it.
            fs::File::open(to).and_then(|file| file.sync_all()).expect("a sound disk");
        }
    }
}
