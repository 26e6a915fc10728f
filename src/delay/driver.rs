//! The thread that waits for the next deadline.
//!
//! It sleeps until exactly then: in `poll` on two kernel timers, one of the wall clock and one of the boot-time clock, and on an event that an
//! earlier deadline raises. Store time reaches the deadline when the first of the two clocks does, also when the wall clock is stepped or
//! slewed, and hours of suspension count. Nothing is polled: an idle scheduler never wakes.

use std::{
    io,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime},
};

use super::scheduler::Scheduler;
use crate::{model::Timestamp, store::threads::panic_text};

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

/// One kernel timer for each clock that may reach a deadline first.
struct Timers {
    wall: OwnedFd,
    boot: OwnedFd,
}

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
        let timers = Timers::new()?;
        let rung = bell.clone();
        let thread = thread::Builder::new().name(THREAD_NAME.into()).spawn(move || {
            let ran = catch_unwind(AssertUnwindSafe(|| run(&scheduler, &timers, &rung)));
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

impl Timers {
    fn new() -> io::Result<Self> {
        let timer = |clock| timerfd_create(clock, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK);
        Ok(Self { wall: timer(TimerfdClockId::Realtime)?, boot: timer(TimerfdClockId::Boottime)? })
    }

    /// Sleeps until store time may have reached `deadline`, or the bell rings. `now` is the store time now.
    fn sleep(&self, deadline: Option<Timestamp>, now: Timestamp, bell: &Bell) -> io::Result<()> {
        let wall_ms = deadline.map_or(0, |deadline| deadline.0.max(1));
        let boot_ms = deadline.map_or(0, |deadline| deadline.0.saturating_sub(now.0).max(1));
        // A new setting also takes back what the timer has to report; zero disarms it.
        timerfd_settime(&self.wall, TimerfdTimerFlags::ABSTIME, &once(wall_ms))?;
        timerfd_settime(&self.boot, TimerfdTimerFlags::empty(), &once(boot_ms))?;
        let mut events = [
            PollFd::new(&bell.event, PollFlags::IN),
            PollFd::new(&self.wall, PollFlags::IN),
            PollFd::new(&self.boot, PollFlags::IN),
        ];
        match poll(&mut events, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {
                bell.silence();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn run(scheduler: &Scheduler, timers: &Timers, bell: &Bell) -> io::Result<()> {
    while !bell.is_stopping() {
        let Some(now) = scheduler.store().map(|store| store.now()) else { return Ok(()) };
        if scheduler.tick(now).closed {
            return Ok(());
        }
        if let Some(deadline) = scheduler.fall_asleep(now) {
            timers.sleep(deadline, now, bell)?;
            scheduler.wake_up();
        }
    }
    Ok(())
}

fn once(ms: i64) -> Itimerspec {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    Itimerspec { it_interval: none, it_value: Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bell_and_either_clock_end_a_sleep() {
        let timers = Timers::new().unwrap();
        let bell = Bell { event: eventfd(0, EventfdFlags::NONBLOCK).unwrap(), stopping: AtomicBool::new(false) };

        // The bell, rung before; then a deadline that the wall clock reached long ago; then one that the boot clock reaches in a moment
        // and the wall clock in a thousand years.
        bell.ring();
        timers.sleep(None, Timestamp(0), &bell).unwrap();
        timers.sleep(Some(Timestamp(5)), Timestamp(0), &bell).unwrap();
        let far = Timestamp(32_000_000_000_000);
        timers.sleep(Some(far), Timestamp(far.0 - 1), &bell).unwrap();
    }
}
