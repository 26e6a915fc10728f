//! How long a part of the log that cannot be read holds up those who read it.
//!
//! A failed read may pass: a pull that meets one does not move on. One that lasts must not hold up a queue for ever: a segment whose reads have
//! failed for [`READ_PATIENCE`], without a pause longer than [`ROW_ENDS`], is passed over where it cannot be read.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::model::PhysicalOffset;

/// How long failed reads of a segment hold up the queues with messages in it.
pub const READ_PATIENCE: Duration = Duration::from_secs(600);
/// Failed reads further apart than this do not belong together.
const ROW_ENDS: Duration = Duration::from_secs(120);

/// Failed reads, by the segment's first position: when the first and the last one of a row were, by the boot-time clock.
#[derive(Default)]
pub(super) struct Patience(Mutex<BTreeMap<PhysicalOffset, (Duration, Duration)>>);

impl Patience {
    /// Takes note of a failed read of the segment that begins at `segment`; says whether it is to be passed over.
    pub(super) fn is_over(&self, segment: PhysicalOffset, now: Duration) -> bool {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.retain(|_, (_, last)| now.saturating_sub(*last) <= ROW_ENDS);
        let (first, last) = rows.entry(segment).or_insert((now, now));
        *last = now;
        now.saturating_sub(*first) >= READ_PATIENCE
    }
}
