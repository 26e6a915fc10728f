//! Official RocketMQ clients against the built broker.
//!
//! Each test starts a broker of its own, on free ports and in a temporary folder, and tells thin client programs what to do: Java
//! `rocketmq-client` 5.3.3 and 4.9.8 (`java/`) and Go `rocketmq-client-go/v2` (`go/`). What they print is compared here. The programs
//! are built on first use and run once for all tests, so a test costs no start of a Java machine.
//!
//! `interchange` also starts Apache RocketMQ's own broker, on a store that changes hands.
//!
//! Needs Java 11 or newer, Maven and Go: `cargo test --features interop --test interop`.
#![cfg(feature = "interop")]

mod apache;
mod broker;
mod client;
mod consuming;
mod delays;
mod interchange;
mod measurements;
mod refusals;
mod restarts;
mod retries;
mod sending;

use std::time::Duration;

/// How much later than due a message may come on a busy machine. Lateness itself is measured by a bench.
const LATE_MAX: Duration = Duration::from_millis(1_500);

/// How long to wait for what should come at once. A client that misses something at its start looks again after 20 s.
const SOON: Duration = Duration::from_secs(40);

/// How long to go on listening for what should not come.
const QUIET: Duration = Duration::from_secs(1);

/// Makes a test of a scenario for each of the named clients.
macro_rules! with_clients {
    ($($scenario:ident: $($client:ident),+;)+) => {
        $(
            mod $scenario {
                $(
                    #[test]
                    fn $client() {
                        super::$scenario($crate::client::Client::shared($crate::client::Kind::$client));
                    }
                )+
            }
        )+
    };
}
pub(crate) use with_clients;
