//! The log: to standard error, as text or as JSON; how much of it says `RUST_LOG`.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// Starts the log. `level` is what is logged when `RUST_LOG` says nothing.
pub(super) fn start(json: bool, level: &str) {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|wanted| !wanted.trim().is_empty());
    let parsed = wanted.as_deref().map(EnvFilter::try_new);
    let wrong = match &parsed {
        Some(Err(error)) => Some(error.to_string()),
        _ => None,
    };
    let filter = parsed.and_then(Result::ok).unwrap_or_else(|| EnvFilter::new(level));
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours);
    // Only a second start in one process fails; the first log goes on.
    let _ = if json { builder.json().flatten_event(true).try_init() } else { builder.try_init() };
    if let Some(error) = wrong {
        tracing::warn!(error, "RUST_LOG cannot be read, logging at the usual level");
    }
}
