//! Parking.

/// The topic of the markers; the queue is that of the level in the schedule topic.
pub const PARKING_TOPIC: &str = "rmq_sys_parked_delayed";
