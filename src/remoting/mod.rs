//! Sockets that carry remoting commands: a server, a client, and the connection that both share.
//!
//! One task serves a connection: it reads, hands each request to the [`Handler`] in order, and writes what is queued. Answers may
//! come later and from any thread through a [`Responder`]; they are queued and written together. Nothing here knows what a
//! request means.
//!
//! What is bounded: a frame ([`FRAME_BYTES_MAX`](crate::protocol::FRAME_BYTES_MAX)), answers a peer has not read and requests it has
//! in flight (beyond either the connection is not read), silence, a stalled write, and the number of connections.

mod client;
mod connection;
mod error;
mod figures;
mod handler;
mod output;
mod server;
mod task;

pub use client::Client;
pub use connection::{Connection, ConnectionOptions};
pub use error::RemotingError;
pub use figures::Figures;
pub use handler::{Handler, NoRequests, REMARK_BYTES_MAX, Responder, not_supported};
pub use server::{Server, ServerOptions};

#[cfg(test)]
mod tests;
