//! Sockets that carry remoting commands: a server, a client, and the connection that both share.
//!
//! One task serves a connection: it reads, hands each request to the [`Handler`] in order, and writes what is queued. Answers may
//! come later and from any thread through a [`Responder`]; they are queued and written together. Nothing here knows what a
//! request means.
//!
//! What is bounded: a frame ([`FRAME_BYTES_MAX`](crate::protocol::FRAME_BYTES_MAX)), what has come of unfinished frames, answers a peer has
//! not read and requests it has in flight (beyond either the connection is not read), silence, a stalled write, and the number of
//! connections. A connection takes at most two frames and [`ConnectionOptions::output_bytes_max`] with two answers; all together take at most
//! twice [`ConnectionOptions::unfinished_bytes_max`], [`ConnectionOptions::unsent_bytes_max`], and for each connection [`READ_BYTES_MAX`],
//! [`UNSENT_BYTES_FLOOR`] and one answer. Each bound that closes a connection has a counter in [`Figures`] and a log line, one a second at
//! most.

mod client;
mod connection;
mod error;
mod figures;
mod handler;
mod output;
mod seldom;
mod server;
mod task;

pub use client::Client;
pub use connection::{Connection, ConnectionOptions, UNSENT_BYTES_FLOOR};
pub use error::RemotingError;
pub use figures::Figures;
pub use handler::{Handler, NoRequests, REMARK_BYTES_MAX, Responder, not_supported};
pub use server::{Server, ServerOptions};
pub use task::READ_BYTES_MAX;

#[cfg(test)]
mod tests;
