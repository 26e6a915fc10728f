//! Whether the store may still be trusted.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use super::AppendError;

/// Set once, never taken back: after a failed sync or a panic inside the append section nothing is accepted until the store is opened anew.
pub(super) struct Health {
    failed: OnceLock<String>,
    closed: AtomicBool,
    fatal: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Health {
    pub(super) fn new(fatal: Arc<dyn Fn(&str) + Send + Sync>) -> Self {
        Self { failed: OnceLock::new(), closed: AtomicBool::new(false), fatal }
    }

    /// Stops trusting the store and tells the process. The first reason counts.
    pub(super) fn fail(&self, reason: &str) {
        if self.failed.set(reason.to_owned()).is_ok() {
            tracing::error!(error = reason, "the store stops accepting messages");
            (self.fatal)(reason);
        }
    }

    /// Why the store is not trusted any more.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Refuses appends from now on.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether appends are refused since the store is being closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// An error if nothing may be appended.
    pub(super) fn check(&self) -> Result<(), AppendError> {
        if let Some(reason) = self.failure() {
            return Err(AppendError::Failed { reason: reason.to_owned() });
        }
        if self.is_closed() { Err(AppendError::Closed) } else { Ok(()) }
    }
}
