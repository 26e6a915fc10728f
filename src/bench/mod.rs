//! A load generator for any RocketMQ broker, over the wire.
//!
//! It shares nothing with the broker but the protocol, so that it loads latermq and Apache RocketMQ alike. One thread drives one connection
//! with blocking calls: it writes as many requests as may be in flight, all in one call, and reads the answers as they come. Requests are made
//! once, as templates, and changed in place; of an answer only what is needed is read. Latencies are counted in `hdrhistogram`s.
//!
//! With a fixed rate the latency of a request counts from the moment at which it should have been sent, not from the one at which it could
//! be: a broker that stands still is charged for all who would have come meanwhile (no coordinated omission).
//!
//! Every report says whether the generator set the pace: its busiest thread never slept, while the broker had CPU time to spare.

mod answer;
mod burst;
mod consume;
mod crowd;
mod lateness;
mod ledger;
mod link;
mod load;
mod managed;
mod plot;
mod pull;
mod report;
mod send;
mod template;
mod timeline;
mod usage;

pub use burst::burst;
pub use consume::{ConsumeOptions, consume};
pub use crowd::{Crowd, CrowdError};
pub use lateness::{lateness, soak};
pub use load::{Levels, LevelsError, Load, Pace};
pub use managed::{DrainOptions, RestartOptions, drain, restart};
pub use plot::{plot_report, plot_results};
pub use report::{Account, Growth, Latencies, Moment, Process, Report};
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
    /// A picture could not be drawn.
    #[error("{}: {what}", path.display())]
    Plot {
        /// Its file.
        path: std::path::PathBuf,
        /// What is wrong.
        what: String,
    },
}
