//! Which generation the next message of a level belongs to.
//!
//! All messages of a generation wait equally long, so their deliver times ascend as their queue offsets do. When the duration of a level
//! differs from that of its last waiting record, the next generation begins. Nothing of it is stored but the number in each record.

use std::{collections::BTreeMap, time::Duration};

use super::{DelayLevel, stamp::Generation};

/// The last generation of each level, as far as messages were placed: under the append lock it is ahead of what is dispatched.
#[derive(Debug, Default)]
pub(super) struct Generations {
    last: BTreeMap<DelayLevel, Last>,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    generation: Generation,
    /// `None` after a record of Apache RocketMQ: the next one begins a generation in any case.
    duration: Option<Duration>,
}

impl Generations {
    /// The generation of a message of this level that is stored now and waits for `duration`.
    pub(super) fn place(&mut self, level: DelayLevel, duration: Duration) -> Generation {
        let last = self.last.entry(level).or_insert(Last { generation: Generation::APACHE, duration: None });
        if last.duration != Some(duration) {
            *last = Last { generation: last.generation.next(), duration: Some(duration) };
        }
        last.generation
    }

    /// Takes note of a waiting record found during recovery, in log order.
    pub(super) fn found(&mut self, level: DelayLevel, generation: Generation, duration: Duration) {
        let last = self.last.entry(level).or_insert(Last { generation, duration: None });
        if generation == Generation::APACHE {
            last.duration = None;
        } else if generation >= last.generation {
            *last = Last { generation, duration: Some(duration) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn level(number: u32) -> DelayLevel {
        DelayLevel::new(number).unwrap()
    }

    #[test]
    fn a_generation_lasts_as_long_as_the_duration_of_its_level() {
        let mut generations = Generations::default();

        assert_eq!(generations.place(level(1), SECOND), Generation(1));
        assert_eq!(generations.place(level(1), SECOND), Generation(1));
        assert_eq!(generations.place(level(2), 5 * SECOND), Generation(1));
        assert_eq!(generations.place(level(1), 2 * SECOND), Generation(2));
        assert_eq!(generations.place(level(1), SECOND), Generation(3));
    }

    #[test]
    fn what_recovery_found_goes_on() {
        let mut generations = Generations::default();
        generations.found(level(1), Generation(4), SECOND);
        generations.found(level(2), Generation(4), SECOND);
        generations.found(level(2), Generation::APACHE, Duration::ZERO);
        generations.found(level(3), Generation::APACHE, Duration::ZERO);

        assert_eq!(generations.place(level(1), SECOND), Generation(4));
        assert_eq!(generations.place(level(2), SECOND), Generation(5));
        assert_eq!(generations.place(level(3), SECOND), Generation(1));
    }
}
