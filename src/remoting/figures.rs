//! What a server counts.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use super::seldom::Seldom;

/// Counters of all connections of a server since its start; the gauges are current values.
#[derive(Debug, Default)]
pub struct Figures {
    /// Gauge: open connections.
    pub connections: AtomicI64,
    /// Gauge: bytes held by the read buffers of all connections.
    pub input_bytes: AtomicI64,
    /// Gauge: bytes of frames that are not complete yet, of all connections.
    pub unfinished_bytes: AtomicUsize,
    /// Gauge: bytes of answers and pushes that peers have not taken yet, of all connections.
    pub unsent_bytes: AtomicUsize,
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Connections refused because there were too many.
    pub refused: AtomicU64,
    /// Bytes read.
    pub bytes_in: AtomicU64,
    /// Bytes written.
    pub bytes_out: AtomicU64,
    /// Frames read.
    pub frames_in: AtomicU64,
    /// Frames written.
    pub frames_out: AtomicU64,
    /// Connections closed for bytes that are no frame.
    pub malformed: AtomicU64,
    /// Connections closed because the unfinished frames of all took too much memory.
    pub unfinished: AtomicU64,
    /// Requests whose handler panicked.
    pub panics: AtomicU64,
    /// Connections closed because nothing passed for too long.
    pub idle: AtomicU64,
    /// Connections closed because the peer did not read for too long.
    pub stalled: AtomicU64,
    /// Connections closed because answers to requests that were held came faster than the peer took them.
    pub overrun: AtomicU64,
    /// Commands dropped: pushes to a peer that does not read, and answers too long for a frame.
    pub dropped: AtomicU64,
    pub(super) refused_line: Seldom,
    pub(super) closed_line: Seldom,
}

impl Figures {
    /// Names and values, as tools are shown them.
    pub fn named(&self) -> [(&'static str, u64); 12] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let gauge = |gauge: &AtomicUsize| u64::try_from(gauge.load(Ordering::Relaxed)).unwrap_or(u64::MAX);
        [
            ("connections", u64::try_from(self.connections.load(Ordering::Relaxed)).unwrap_or(0)),
            ("connectionsAccepted", count(&self.accepted)),
            ("connectionsRefused", count(&self.refused)),
            ("connectionsIdleClosed", count(&self.idle)),
            ("connectionsStalledClosed", count(&self.stalled)),
            ("connectionsMalformedClosed", count(&self.malformed)),
            ("connectionsUnfinishedClosed", count(&self.unfinished)),
            ("connectionsOverrunClosed", count(&self.overrun)),
            ("unfinishedFrameBytes", gauge(&self.unfinished_bytes)),
            ("unsentReplyBytes", gauge(&self.unsent_bytes)),
            ("droppedCommands", count(&self.dropped)),
            ("requestPanics", count(&self.panics)),
        ]
    }

    /// Adds to a counter.
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}
