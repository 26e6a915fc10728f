//! Where a due message goes: what the scheduler asks the layer above.

use crate::model::{PhysicalOffset, QueueId};

/// The topics of users, as the scheduler sees them.
pub trait RealTopics: Send + Sync {
    /// The queue for a message that has waited for `queue_id` of `topic`. An unknown topic is created again; a queue id beyond the topic's
    /// queues becomes the id modulo their number. `waiting_since` is the position of the waiting record, by which a topic that was deleted
    /// later is told from one that was deleted before. Called on the scheduler's thread, once for each restored message.
    fn resolve(&self, topic: &str, queue_id: u32, waiting_since: PhysicalOffset) -> RealQueue;

    /// How many queues all topics have: room on the disk is kept for their files. 0 if that is not known.
    fn queue_count(&self) -> u64 {
        0
    }
}

/// What [`RealTopics::resolve`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RealQueue {
    /// The message goes to this queue.
    Deliver(QueueId),
    /// The topic was deleted by request after the message was stored: the message is parked.
    Deleted,
}
