//! What a process uses, from `/proc`.

use std::{fs, time::Duration};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Clock ticks a second in `/proc/<pid>/stat`, the same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// What a process has used so far, or between two looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// CPU seconds, user and system.
    pub cpu_seconds: f64,
    /// Memory of its own in bytes, now.
    pub rss_anon: u64,
    /// Mapped file pages in memory in bytes, now.
    pub rss_file: u64,
    /// Bytes it caused to be written to storage.
    pub written_bytes: u64,
}

impl Usage {
    /// What a process has used so far; `None` if there is none with this id, or it may not be seen.
    pub fn of(pid: u32) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        let stat = read("stat")?;
        // Behind the name, which stands in parentheses and may hold anything: state is the first, utime the 12th, stime the 13th.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
        let status = read("status")?;
        let kilobytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let io = read("io").unwrap_or_default();
        let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        Some(Self {
            cpu_seconds: (ticks(11)? + ticks(12)?) / TICKS_PER_SECOND,
            rss_anon: kilobytes("RssAnon:").unwrap_or(0) * 1024,
            rss_file: kilobytes("RssFile:").unwrap_or(0) * 1024,
            written_bytes: written.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0),
        })
    }

    /// What this process has used so far.
    pub fn own() -> Self {
        Self {
            cpu_seconds: cpu_time(ClockId::ProcessCPUTime).as_secs_f64(),
            ..Self::of(std::process::id()).unwrap_or_default()
        }
    }

    /// What was used since an earlier look; memory as it is now.
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            ..self
        }
    }
}

fn cpu_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// How long this thread has run so far, or would have if a core had been free: all but what it slept.
pub(super) fn thread_awake() -> Duration {
    let queued = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let queued = queued.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
    cpu_time(ClockId::ThreadCPUTime) + Duration::from_nanos(queued)
}

/// The process that listens on a TCP port of this machine, if it can be seen.
pub(super) fn listener(port: u16) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let ending = format!(":{port:04X}");
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let inodes: Vec<String> = lines
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = fields.get(1)?.ends_with(&ending) && *fields.get(3)? == "0A";
            listens.then(|| format!("socket:[{}]", fields.get(9).copied().unwrap_or_default()))
        })
        .collect();
    let pids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let sockets = fs::read_dir(format!("/proc/{pid}/fd")).ok();
        let links = sockets.into_iter().flatten().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.into_iter().any(|link| inodes.iter().any(|inode| link.as_os_str() == inode.as_str()))
    };
    pids.into_iter().find(holds)
}

/// The process that listens at an address of this machine, if it can be seen.
pub(super) fn listener_at(address: &str) -> Option<u32> {
    listener(address.rsplit_once(':')?.1.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_listens_where_it_listens() {
        assert!(Usage::own().rss_anon > 0);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(listener(socket.local_addr().unwrap().port()), Some(std::process::id()));
        assert_eq!(Usage::of(u32::MAX), None);
    }
}
