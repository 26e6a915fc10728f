//! The thread that waits for the next deadline.
//!
//! It sleeps until exactly then: in `poll` on a kernel timer of the boot-time clock, at whose pace store time runs, and on an event that an earlier
//! deadline and a jump of store time raise. Hours of suspension count. Nothing is polled: an idle scheduler never wakes.

use std::{
    io,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime},
};

use super::scheduler::Scheduler;
use crate::store::threads::panic_text;

/// Name of the thread.
const THREAD_NAME: &str = "delay-scheduler";

/// The running thread.
pub(super) struct Driver {
    bell: Arc<Bell>,
    thread: JoinHandle<()>,
}

/// Wakes the thread.
pub(super) struct Bell {
    event: OwnedFd,
    stopping: AtomicBool,
}

/// A kernel timer of the boot-time clock.
struct Timer(OwnedFd);

impl Driver {
    /// Starts the thread.
    ///
    /// # Errors
    /// As the kernel gives them.
    pub(super) fn start(scheduler: Arc<Scheduler>) -> io::Result<Self> {
        let bell = Arc::new(Bell {
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stopping: AtomicBool::new(false),
        });
        let timer = Timer::new()?;
        let rung = bell.clone();
        let thread = thread::Builder::new().name(THREAD_NAME.into()).spawn(move || {
            let ran = catch_unwind(AssertUnwindSafe(|| run(&scheduler, &timer, &rung)));
            let reason = match ran {
                Ok(Ok(())) => return,
                Ok(Err(error)) => format!("the delay scheduler cannot sleep: {error}"),
                Err(panic) => format!("the delay scheduler panicked: {}", panic_text(&*panic)),
            };
            tracing::error!(error = reason, "the delay scheduler ended");
            if let Some(store) = scheduler.store() {
                (store.env().fatal)(&reason);
            }
        })?;
        Ok(Self { bell, thread })
    }

    pub(super) fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    /// Ends the thread after the batch in hand.
    pub(super) fn stop(self) {
        self.bell.stopping.store(true, Ordering::SeqCst);
        self.bell.ring();
        if self.thread.join().is_err() {
            tracing::error!("the delay scheduler did not end well");
        }
    }
}

impl Bell {
    /// Wakes the thread, or keeps it from falling asleep.
    pub(super) fn ring(&self) {
        // Only a full counter makes this fail, and then the bell rings already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}

impl Timer {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Sleeps until the boot-time clock shows `until`, without that until the bell rings, and no longer than until it rings.
    fn sleep(&self, until: Option<Duration>, bell: &Bell) -> io::Result<()> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero disarms the timer, so that the first moment of the boot is its second; a time gone by rings at once.
        let until = until.map(|until| until.max(Duration::from_nanos(1)));
        let until = until.map_or(none, |until| Timespec {
            tv_sec: i64::try_from(until.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: until.subsec_nanos().into(),
        });
        // A new setting also takes back what the timer has to report.
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: none, it_value: until })?;
        let mut events = [PollFd::new(&bell.event, PollFlags::IN), PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut events, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {
                bell.silence();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn run(scheduler: &Scheduler, timer: &Timer, bell: &Bell) -> io::Result<()> {
    while !bell.is_stopping() {
        let Some(now) = scheduler.store().map(|store| store.now()) else { return Ok(()) };
        if scheduler.tick(now).closed {
            return Ok(());
        }
        if let Some(deadline) = scheduler.fall_asleep(now) {
            let Some(store) = scheduler.store() else { return Ok(()) };
            let until = deadline.map(|deadline| store.since_boot_at(deadline));
            drop(store);
            timer.sleep(until, bell)?;
            scheduler.wake_up();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Clock, SystemClock};

    #[test]
    fn the_bell_and_the_clock_end_a_sleep() {
        let timer = Timer::new().unwrap();
        let bell = Bell { event: eventfd(0, EventfdFlags::NONBLOCK).unwrap(), stopping: AtomicBool::new(false) };

        // The bell, rung before; then a time gone by; then one that comes in a moment.
        bell.ring();
        timer.sleep(None, &bell).unwrap();
        timer.sleep(Some(Duration::ZERO), &bell).unwrap();
        let until = SystemClock::new().since_boot() + Duration::from_millis(2);
        timer.sleep(Some(until), &bell).unwrap();
        assert!(SystemClock::new().since_boot() >= until);
    }
}
