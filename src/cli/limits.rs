//! The limit of open files: every connection, segment and queue needs one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// Open files below which a broker with many clients or queues will run out of them.
const ENOUGH: u64 = 65_536;

/// Raises the limit of open files as far as the system allows; warns if that is little.
pub(super) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let mut now = current;
    if current != maximum {
        match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
            Ok(()) => now = maximum,
            Err(error) => warn!(%error, "cannot raise the limit of open files"),
        }
    }
    let shown = now.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    if now.is_some_and(|limit| limit < ENOUGH) {
        warn!(
            open_files_max = shown,
            wanted = ENOUGH,
            "few files may be open: set LimitNOFILE= in the systemd unit, or ulimit -n, to what is wanted"
        );
    } else {
        info!(open_files_max = shown, "limit of open files");
    }
}
