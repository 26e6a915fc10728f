//! A load generator for any RocketMQ broker, over the wire.
//!
//! It shares nothing with the broker but the protocol, so that it loads latermq and Apache RocketMQ alike. One thread drives one connection
//! with blocking calls: it writes as many requests as may be in flight, all in one call, and reads the answers as they come. Requests are made
//! once, as templates, and changed in place; of an answer only what is needed is read. Latencies are counted in `hdrhistogram`s.
//!
//! With a fixed rate the latency of a request counts from the moment at which it should have been sent, not from the one at which it could
//! be: a broker that stands still is charged for all who would have come meanwhile (no coordinated omission).

mod answer;
mod consume;
mod crowd;
mod lateness;
mod link;
mod load;
mod managed;
mod report;
mod send;
mod stored;
mod template;
mod usage;

pub use consume::{ConsumeOptions, consume};
pub use crowd::{Crowd, CrowdError};
pub use lateness::{LatenessOptions, lateness};
pub use load::{Levels, LevelsError, Load, Pace};
pub use managed::{DrainOptions, RestartOptions, drain, restart};
pub use report::{Latencies, Report};
pub use send::send;
pub use usage::Usage;

/// Why a load could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A connection failed.
    #[error("{address}: {source}")]
    Io {
        /// Whom it was to.
        address: String,
        /// What happened.
        source: std::io::Error,
    },
    /// The broker refused something that has to work.
    #[error("{address} answered {request} with code {code}: {remark}")]
    Refused {
        /// Who refused.
        address: String,
        /// Name of the request.
        request: &'static str,
        /// Its response code.
        code: i32,
        /// Its words.
        remark: String,
    },
    /// The broker sent what no broker sends.
    #[error("{address} sent something strange: {what}")]
    Strange {
        /// Who sent it.
        address: String,
        /// What is strange.
        what: String,
    },
    /// The broker under test could not be started or stopped.
    #[error("{0}")]
    Broker(String),
}
