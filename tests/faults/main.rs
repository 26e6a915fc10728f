//! Faults on the real thing: the built broker on real files, over the wire, with real signals. A ledger holds what was acknowledged, and an
//! audit of every queue from its first offset on compares.
//!
//! | module | what is done to the broker |
//! | --- | --- |
//! | [`disk`] | its disk fills up |
//! | [`files`] | every file of its store is damaged, one by one |
//! | [`kill`] | SIGKILL at random instants, again and again |
//! | [`pauses`] | SIGSTOP, a second broker, restarts and stops amid much work |
//! | [`permissions`] | its files may not be read or written |
//! | [`power`] | the power goes: only what was synced is left |
//! | [`strange`] | files of others, half-made files, a missing segment, a slow start |
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod audit;
mod client;
mod disk;
mod files;

mod kill;
mod ledger;
mod pauses;
mod permissions;
mod power;
mod process;
mod strange;
