//! The number this scheduler keeps in the header field that RocketMQ calls *prepared transaction offset*.
//!
//! 64 bits: the sign bit is 0, then 15 bits of generation, then 48 bits of value:
//!
//! - in a **waiting record** the value is its deliver time in milliseconds since the epoch;
//! - in a **restored record** and in a **parking marker** it is the *origin*: the position behind the waiting record (physical offset + length).
//!
//! Generation 0 is not ours: it is what Apache RocketMQ writes, 0 or the offset of a half message.

use crate::model::{PhysicalOffset, Timestamp};

const VALUE_BITS: u32 = 48;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;

/// The last deliver time that fits, in milliseconds since the epoch: in the year 10889.
pub(crate) const DELIVER_AT_MS_MAX: u64 = VALUE_MASK;

/// Tells the messages of a level that were stored while the level had one duration from those before and after; counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct Generation(pub(crate) u16);

/// The header field, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) generation: Generation,
    /// 48 bits.
    value: u64,
}

impl Generation {
    /// What Apache RocketMQ writes.
    pub(crate) const APACHE: Self = Self(0);
    /// The last number there is.
    pub(crate) const MAX: Self = Self((1 << 15) - 1);

    /// The generation behind this one. The last one is its own successor: a level that changed its duration so often is still never
    /// early, only no longer sorted.
    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1).min(Self::MAX.0))
    }
}

impl Stamp {
    /// The stamp of a waiting record.
    pub(crate) fn waiting(generation: Generation, deliver_at: Timestamp) -> Self {
        Self { generation, value: u64::try_from(deliver_at.0).unwrap_or(0).min(VALUE_MASK) }
    }

    /// The stamp of a restored record or a parking marker, whose waiting record ends at `end`.
    ///
    /// # Panics
    /// If 256 TiB were ever written to the log.
    pub(crate) fn origin(generation: Generation, end: PhysicalOffset) -> Self {
        assert!(end.0 <= VALUE_MASK, "a position of the log fits 48 bits");
        Self { generation, value: end.0 }
    }

    /// Reads the header field; what has the sign bit set is no stamp, like 0.
    pub(crate) fn from_field(field: i64) -> Self {
        let bits = u64::try_from(field).unwrap_or(0);
        // 63 - 48 = 15 bits are left, so that nothing is cut.
        Self { generation: Generation((bits >> VALUE_BITS) as u16), value: bits & VALUE_MASK }
    }

    /// The header field.
    pub(crate) fn to_field(self) -> i64 {
        let bits = u64::from(self.generation.0.min(Generation::MAX.0)) << VALUE_BITS | self.value;
        bits.cast_signed()
    }

    /// The deliver time, if this is the stamp of a waiting record of ours.
    pub(crate) fn deliver_at(self) -> Option<Timestamp> {
        (self.generation != Generation::APACHE).then_some(Timestamp(self.value.cast_signed()))
    }

    /// The position behind the waiting record, if this is the stamp of a restored record. Never zero.
    pub(crate) fn end(self) -> Option<PhysicalOffset> {
        (self.value > 0).then_some(PhysicalOffset(self.value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_as_documented() {
        let stamp = Stamp::waiting(Generation(1), Timestamp(0x0123_4567_89AB));

        assert_eq!(stamp.to_field(), 0x0001_0123_4567_89AB);
        assert_eq!(Stamp::origin(Generation::MAX, PhysicalOffset(VALUE_MASK)).to_field(), i64::MAX);
    }

    #[test]
    fn the_last_generation_is_its_own_successor() {
        assert_eq!(Generation::APACHE.next(), Generation(1));
        assert_eq!(Generation::MAX.next(), Generation::MAX);
    }

    proptest! {
        #[test]
        fn a_waiting_stamp_comes_back_as_it_was(generation in 1..=Generation::MAX.0, ms in 0..=VALUE_MASK) {
            let stamp = Stamp::waiting(Generation(generation), Timestamp(ms.cast_signed()));

            prop_assert!(stamp.to_field() > 0);
            prop_assert_eq!(Stamp::from_field(stamp.to_field()), stamp);
            prop_assert_eq!(stamp.deliver_at(), Some(Timestamp(ms.cast_signed())));
        }

        #[test]
        fn an_origin_comes_back_as_it_was(generation in 0..=Generation::MAX.0, end in 1..=VALUE_MASK) {
            let stamp = Stamp::origin(Generation(generation), PhysicalOffset(end));

            prop_assert!(stamp.to_field() > 0);
            prop_assert_eq!(Stamp::from_field(stamp.to_field()), stamp);
            prop_assert_eq!(stamp.end(), Some(PhysicalOffset(end)));
        }

        #[test]
        fn any_field_can_be_read(field in any::<i64>()) {
            let stamp = Stamp::from_field(field);

            prop_assert!(stamp.generation <= Generation::MAX);
            prop_assert_eq!(stamp.to_field(), field.max(0));
        }

        #[test]
        fn a_deliver_time_out_of_range_stops_at_the_border(ms in any::<i64>()) {
            let deliver_at = Stamp::waiting(Generation(1), Timestamp(ms)).deliver_at().unwrap();

            prop_assert_eq!(deliver_at, Timestamp(ms.clamp(0, VALUE_MASK.cast_signed())));
        }
    }
}
