//! What became of every message of a run: lost, repeated, early, out of order, and how late.

use std::collections::HashMap;

use super::{
    Account, Latencies, Report,
    load::Turns,
    pull::Stored,
    report::{histogram, late, record},
};

/// A message that came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    pub(super) stored: Stored,
    /// When it came, by the wall clock, in milliseconds.
    pub(super) came_ms: f64,
}

/// What is known of the messages of a run.
pub(super) struct Ledger {
    /// All that came, in any order.
    pub(super) received: Vec<Received>,
    /// Records of the schedule topic by level and by number, and how long the level waits in milliseconds.
    pub(super) waited: Vec<Waiting>,
    /// For each connection which of its requests were acknowledged, a bit each.
    pub(super) acknowledged: Vec<Vec<u64>>,
    /// Messages of one request.
    pub(super) batch: u64,
    pub(super) turns: Turns,
    /// Messages that came out of the order of their queue.
    pub(super) disordered: u64,
}

/// What waited on a level.
pub(super) struct Waiting {
    pub(super) wait_ms: i64,
    /// In the order of its queue.
    pub(super) records: Vec<Stored>,
}

impl Ledger {
    /// Enters the account and the distributions into a report.
    pub(super) fn judge(&self, report: &mut Report) {
        let mut account = Account { out_of_order: self.disordered, ..Account::default() };
        let mut first: HashMap<u64, Received> = HashMap::with_capacity(self.received.len());
        for one in &self.received {
            let seen = first.entry(one.stored.number).or_insert(*one);
            if seen.stored.physical_offset != one.stored.physical_offset {
                account.repeated += 1;
                // The earlier of the two counts, whichever came first.
                if one.stored.physical_offset < seen.stored.physical_offset {
                    *seen = *one;
                }
            }
        }
        account.received = first.len() as u64;
        let (mut stored_late, mut received_late, mut plain) = (histogram(), histogram(), histogram());
        let mut delayed = 0;
        for Waiting { wait_ms, records } in &self.waited {
            let mut highest = 0;
            for waited in records {
                let Some(Received { stored, came_ms }) = first.get(&waited.number) else { continue };
                delayed += 1;
                let due = waited.stored_ms + wait_ms;
                account.early += u64::from(stored.stored_ms < due || came_ms.ceil() < due as f64);
                account.out_of_order += u64::from(stored.physical_offset < highest);
                highest = highest.max(stored.physical_offset);
                record(&mut stored_late, late((stored.stored_ms - due) as f64));
                record(&mut received_late, late(came_ms - due as f64));
            }
        }
        let level = |number: u64| self.turns.of((number >> 40) as usize, (number & ((1 << 40) - 1)) / self.batch).1;
        let mut restored = 0;
        for (number, one) in &first {
            if level(*number) == 0 {
                record(&mut plain, late(one.came_ms - one.stored.stored_ms as f64));
            } else {
                restored += 1;
            }
        }
        account.without_waiting_record = restored - delayed.min(restored);
        for (connection, bits) in self.acknowledged.iter().enumerate() {
            for request in (0..bits.len() as u64 * 64).filter(|one| bits[(one / 64) as usize] >> (one % 64) & 1 == 1) {
                let number = ((connection as u64) << 40) + request * self.batch;
                account.acknowledged += self.batch;
                account.lost +=
                    (number..number + self.batch).filter(|number| !first.contains_key(number)).count() as u64;
            }
        }
        for (name, of) in
            [("late, store time", &stored_late), ("late, received", &received_late), ("no delay, received", &plain)]
        {
            if !of.is_empty() {
                report.latencies.insert(name.into(), Latencies::of(of));
            }
        }
        report.ledger = Some(account);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Load;

    fn stored(number: u64, stored_ms: i64, physical_offset: u64) -> Stored {
        Stored { number, queue_offset: 0, physical_offset, stored_ms }
    }

    /// Four messages of level 1, which waits a second, acknowledged and stored one millisecond after the other.
    fn account(restored: &[(u64, i64, u64)]) -> Account {
        let load = Load { levels: "1".parse().unwrap(), ..Load::default() };
        let received = restored
            .iter()
            .map(|&(number, at, place)| Received { stored: stored(number, at, place), came_ms: at as f64 + 0.5 });
        let ledger = Ledger {
            received: received.collect(),
            waited: vec![Waiting { wait_ms: 1000, records: (0..4).map(|one| stored(one, one as i64, one)).collect() }],
            acknowledged: vec![vec![0b1111]],
            batch: 1,
            turns: load.turns(),
            disordered: 0,
        };
        let mut report = Report::default();
        ledger.judge(&mut report);
        assert_eq!(report.latencies["late, store time"].count, report.latencies["late, received"].count);
        report.ledger.unwrap()
    }

    #[test]
    fn what_was_lost_repeated_early_or_out_of_order_is_counted() {
        let good = [(0, 1000, 10), (1, 1001, 11), (2, 1002, 12), (3, 1003, 13)];
        let sound = Account { acknowledged: 4, received: 4, ..Account::default() };
        assert_eq!(account(&good), sound);
        assert!(sound.is_sound());

        assert_eq!(account(&good[1..]), Account { received: 3, lost: 1, ..sound });
        let twice = [&good[..], &[(2, 1004, 14)]].concat();
        assert_eq!(account(&twice), Account { repeated: 1, ..sound });
        assert_eq!(account(&[good[0], good[1], good[1], good[2], good[3]]), sound, "pulled twice, stored once");
        let early = [good[0], good[1], good[2], (3, 1002, 13)];
        assert_eq!(account(&early), Account { early: 1, ..sound });
        let swapped = [good[0], (1, 1003, 13), (2, 1003, 12), (3, 1004, 14)];
        assert_eq!(account(&swapped), Account { out_of_order: 1, ..sound });
        assert!([early, swapped].iter().all(|one| !account(one).is_sound()));
    }
}
