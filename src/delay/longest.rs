//! How long the messages of a level were told to wait, at the longest: by that a deliver time is judged.
//!
//! A record's header has no checksum. A deliver time later than the level ever allowed is damage, and is not believed; so what the level allowed
//! must not be taken from a damaged record alone: too short, and all others of the level would be early. All messages of a generation were told
//! to wait equally long. Two that say the same are therefore believed. Before, some of them is damaged where they do not, and the longest counts.

use std::time::Duration;

use super::stamp::Generation;

/// See the module.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Longest {
    /// By earlier generations, and by two of one that agreed.
    sure: Duration,
    /// By records of the generation in hand, none of which was found to agree with another.
    unsure: Duration,
    /// The generation in hand, and what the first one and the last one of it said.
    said: Option<(Generation, [Duration; 2])>,
}

impl Longest {
    /// Goes on from what an earlier one gave.
    pub(super) fn from_sure(sure: Duration) -> Self {
        Self { sure, ..Self::default() }
    }

    /// Takes note of a waiting record, in the order of the queue.
    #[must_use]
    pub(super) fn with(self, generation: Generation, duration: Duration) -> Self {
        // Messages of the last generation there is were told to wait differently long.
        match self.said.filter(|(before, _)| *before == generation && generation != Generation::MAX) {
            Some((_, said)) if said.contains(&duration) => {
                Self { sure: self.sure.max(duration), unsure: Duration::ZERO, said: Some((generation, [duration; 2])) }
            }
            Some((_, [first, _])) => {
                Self { unsure: self.unsure.max(duration), said: Some((generation, [first, duration])), ..self }
            }
            None => Self { sure: self.get(), unsure: duration, said: Some((generation, [duration; 2])) },
        }
    }

    /// The longest time.
    pub(super) fn get(self) -> Duration {
        self.sure.max(self.unsure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(records: &[(u16, u64)]) -> u64 {
        let with = |longest: Longest, &(generation, seconds): &(u16, u64)| {
            longest.with(Generation(generation), Duration::from_secs(seconds))
        };
        records.iter().fold(Longest::default(), with).get().as_secs()
    }

    #[test]
    fn every_generation_counts() {
        assert_eq!(longest(&[(1, 9), (2, 5), (2, 5), (3, 7)]), 9);
        assert_eq!(longest(&[(1, 5), (1, 5), (2, 9)]), 9);
        assert_eq!(longest(&[]), 0);
    }

    #[test]
    fn one_damaged_record_makes_it_never_too_short() {
        for damaged in [(1, 0), (1, 3), (0, 0), (7, 9), (7, 1)] {
            for at in 0..5 {
                let mut records = [(1, 9); 5];
                records[at] = damaged;
                for end in 0..=records.len() {
                    let has_sound = records[..end].contains(&(1, 9));
                    assert!(!has_sound || longest(&records[..end]) == 9, "{damaged:?} at {at}, {end} records");
                }
            }
        }
    }

    #[test]
    fn one_that_says_too_much_does_not_count_once_two_agree() {
        assert_eq!(longest(&[(1, 9), (1, 9_999)]), 9_999);
        assert_eq!(longest(&[(1, 9_999), (1, 9)]), 9_999);
        for at in 0..3 {
            let mut records = [(1, 9); 3];
            records[at] = (1, 9_999);
            assert_eq!(longest(&records[..at]), if at == 0 { 0 } else { 9 });
            assert_eq!(longest(&records), if at == 2 { 9_999 } else { 9 }, "{at}");
            assert_eq!(longest(&[&records[..], &[(1, 9)]].concat()), 9, "{at}");
        }
    }

    #[test]
    fn in_the_last_generation_there_is_every_record_counts() {
        let last = Generation::MAX.0;
        assert_eq!(longest(&[(last, 1), (last, 9), (last, 1), (last, 1)]), 9);
    }
}
