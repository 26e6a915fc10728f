//! Why a call over a connection came to nothing.

use std::io;
use std::time::Duration;

use crate::protocol::RequestCode;

/// Why a call over a connection came to nothing. None of these says whether the peer did what was asked.
#[derive(Debug, thiserror::Error)]
pub enum RemotingError {
    /// The peer could not be reached.
    #[error("cannot connect to {addr}")]
    Connect {
        /// The address as it was given.
        addr: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No answer came in time.
    #[error("{addr} did not answer {} within {after:?}", RequestCode::name(*.code).unwrap_or("the request"))]
    Timeout {
        /// Address of the peer.
        addr: String,
        /// Code of the request.
        code: i32,
        /// How long it was waited for.
        after: Duration,
    },
    /// The connection is closed, or was before the answer came.
    #[error("the connection to {addr} is closed")]
    Closed {
        /// Address of the peer.
        addr: String,
    },
    /// The peer does not read what it was sent before.
    #[error("{addr} does not read what it was sent")]
    Full {
        /// Address of the peer.
        addr: String,
    },
}
