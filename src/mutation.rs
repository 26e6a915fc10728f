//! Protective lines that a test can switch off, to show that the simulation of faults would notice if one were missing.
//!
//! They can be switched off only in builds with debug assertions, for the thread that asks; in a release build every line stands, and
//! nothing is asked.

/// A protective line, named by what goes wrong without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// A producer is answered before its message is durable.
    AnswerBeforeDurable,
    /// Under SYNC_FLUSH readers see what is not durable.
    ReadBeforeDurable,
    /// A failed sync counts as done.
    TrustFailedSync,
    /// What a failed sync left in memory is not written again by the next process.
    KeepGivenUpPages,
    /// The name of a new segment is not synced.
    SegmentNameUnsynced,
    /// A segment is not synced before the next one takes its first record.
    SegmentUnsynced,
    /// The log is not made zero behind its end when its torn tail is cut.
    TailNotCleared,
    /// Recovery takes a record whose body does not have its checksum.
    BodyUnchecked,
    /// Recovery takes a record whose topic or properties have lost a page or their end.
    PropertiesUnchecked,
    /// Recovery takes a damaged record above the checkpoint for a torn tail though the machine stayed up.
    DamageTakenForTornTail,
    /// Messages are taken though what waits would not find room.
    AdmitWithoutRoom,
    /// A failed append keeps the queue offsets it took.
    OffsetsNotTakenBack,
    /// The checkpoint says that queues are durable that were not synced.
    QueuesUnsynced,
    /// The checkpoint says that the log is durable up to a position that was not synced.
    CheckpointBeforeSync,
    /// Retention deletes what waits.
    NoPin,
    /// Retention deletes before the restored records are durable.
    PinEndsBeforeSync,
    /// Store time is the wall clock.
    StoreTimeFromWallClock,
    /// Store time does not begin behind that of the last record.
    StoreTimeForgotten,
    /// Deadlines do not move as store time jumps.
    ClockJumpsForgotten,
    /// Store time jumps before the jump is recorded.
    JumpBeforeRecorded,
    /// The checkpoint keeps what was appended as restored, not what was read back from the log.
    ProgressFromCursor,
    /// Restored records found by recovery do not count.
    ProgressFromCheckpoint,
    /// Generations of a level are kept apart no more.
    OneCursorForTwoGenerations,
    /// An origin whose entry cannot be read counts as one that does not wait.
    OriginForgotten,
    /// After a failed append the scheduler does not go back.
    CursorNotTakenBack,
    /// A waiting record that cannot be read is overtaken at once by those behind it.
    UnreadOvertaken,
    /// A message is restored a second before it is due.
    SecondEarly,
    /// Store time is taken before the append lock is had: the thread that had it meanwhile stored something later.
    StoreTimeOutsideLock,
    /// A waiting record is restored whatever its body's checksum says.
    RestoreUnverified,
    /// A message is due when its queue entry says.
    TagCodeBelieved,
    /// Recovery starts from a checkpoint whose last record is not in the log.
    CheckpointOfAnotherLog,
    /// What was not dispatched yet when its topic was deleted is dispatched later.
    DeletedTopicDispatched,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 32] = [
        Self::AnswerBeforeDurable,
        Self::ReadBeforeDurable,
        Self::TrustFailedSync,
        Self::KeepGivenUpPages,
        Self::SegmentNameUnsynced,
        Self::SegmentUnsynced,
        Self::TailNotCleared,
        Self::BodyUnchecked,
        Self::PropertiesUnchecked,
        Self::DamageTakenForTornTail,
        Self::AdmitWithoutRoom,
        Self::OffsetsNotTakenBack,
        Self::QueuesUnsynced,
        Self::CheckpointBeforeSync,
        Self::NoPin,
        Self::PinEndsBeforeSync,
        Self::StoreTimeFromWallClock,
        Self::StoreTimeForgotten,
        Self::ClockJumpsForgotten,
        Self::JumpBeforeRecorded,
        Self::ProgressFromCursor,
        Self::ProgressFromCheckpoint,
        Self::OneCursorForTwoGenerations,
        Self::OriginForgotten,
        Self::CursorNotTakenBack,
        Self::UnreadOvertaken,
        Self::SecondEarly,
        Self::StoreTimeOutsideLock,
        Self::RestoreUnverified,
        Self::TagCodeBelieved,
        Self::CheckpointOfAnotherLog,
        Self::DeletedTopicDispatched,
    ];

    /// Whether the line is switched off on this thread.
    #[cfg(debug_assertions)]
    pub(crate) fn is_on(self) -> bool {
        CURRENT.get() == Some(self)
    }

    /// Whether the line is switched off: never.
    #[cfg(not(debug_assertions))]
    #[inline(always)]
    pub(crate) const fn is_on(self) -> bool {
        false
    }

    /// Runs something on this thread without the protective line. There is one mutation at a time.
    #[cfg(debug_assertions)]
    pub fn during<T>(self, run: impl FnOnce() -> T) -> T {
        struct Ended;
        impl Drop for Ended {
            fn drop(&mut self) {
                CURRENT.set(None);
            }
        }
        CURRENT.set(Some(self));
        let _ended = Ended;
        run()
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static CURRENT: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}
