//! Work that may wait for the disk, on threads that serve connections.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Handle, RuntimeFlavor};

/// How many threads of the runtime are inside [`blocking`] without having given their tasks away.
static INLINE: AtomicUsize = AtomicUsize::new(0);

/// Counts a thread that works inline.
struct Inline;

impl Drop for Inline {
    fn drop(&mut self) {
        INLINE.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Runs what may wait for the disk. One thread of the runtime always stays free of such work: a stalled write does not stop the other
/// connections. As long as another thread is free the work runs right here, since giving the tasks of this thread away costs more than
/// most of it; else they move to a new thread first.
pub(super) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    let Ok(runtime) = Handle::try_current() else {
        return work();
    };
    if runtime.runtime_flavor() != RuntimeFlavor::MultiThread {
        return work();
    }
    let before = INLINE.fetch_add(1, Ordering::AcqRel);
    let inline = Inline;
    if before + 1 < runtime.metrics().num_workers() {
        return work();
    }
    drop(inline);
    tokio::task::block_in_place(work)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn while_work_waits_on_every_thread_other_tasks_go_on() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let mut releases = Vec::new();
        for _ in 0..4 {
            let (release, released) = mpsc::channel::<()>();
            let (begin, begun) = mpsc::channel();
            runtime.spawn(async move {
                blocking(|| {
                    begin.send(()).unwrap();
                    let _ = released.recv();
                });
            });
            begun.recv().unwrap();
            releases.push(release);
        }

        assert_eq!(runtime.block_on(async { tokio::spawn(async { 7 }).await.unwrap() }), 7);
    }

    #[test]
    fn work_within_work_and_outside_of_a_runtime_runs() {
        assert_eq!(blocking(|| blocking(|| 7)), 7);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let inside = async { tokio::spawn(async { blocking(|| blocking(|| 7)) }).await.unwrap() };
        assert_eq!(runtime.block_on(inside), 7);
    }
}
