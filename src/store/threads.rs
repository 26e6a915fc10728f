//! Named threads whose unexpected end stops the broker.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
};

/// Starts a thread called `name`. If `body` panics, `fatal` is called with the reason: silence is the worst failure.
pub(crate) fn spawn(
    name: &'static str,
    fatal: Arc<dyn Fn(&str) + Send + Sync>,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
            fatal(&format!("the thread {name} panicked: {}", panic_text(&*panic)));
        }
    })
}

/// The message of a panic, as far as it has one.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
