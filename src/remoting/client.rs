//! A client: one connection to a broker or name server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, ToSocketAddrs};

use super::connection::{Connection, ConnectionOptions};
use super::error::RemotingError;
use super::handler::{Handler, NoRequests};
use super::task;
use crate::protocol::Command;

/// A connection to a broker or name server. Connecting again is the caller's business. Dropping it closes the connection.
#[derive(Debug)]
pub struct Client {
    connection: Arc<Connection>,
}

impl Client {
    /// Connects to `addr`, `host:port`. Requests from the server are answered as not supported. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The server cannot be reached within `timeout`.
    pub async fn connect(addr: impl ToSocketAddrs + ToString, timeout: Duration) -> Result<Client, RemotingError> {
        Client::connect_with(addr, timeout, Arc::new(NoRequests), ConnectionOptions::default()).await
    }

    /// Connects to `addr`; requests from the server go to `handler`.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_with(
        addr: impl ToSocketAddrs + ToString,
        timeout: Duration,
        handler: Arc<dyn Handler>,
        options: ConnectionOptions,
    ) -> Result<Client, RemotingError> {
        let name = addr.to_string();
        let connect = async {
            let stream = TcpStream::connect(addr).await?;
            stream.set_nodelay(true)?;
            let connection = Connection::new(stream.peer_addr()?, stream.local_addr()?, options, Arc::default());
            io::Result::Ok((stream, connection))
        };
        let timed_out = |_| Err(io::Error::from(io::ErrorKind::TimedOut));
        let (stream, connection) = tokio::time::timeout(timeout, connect)
            .await
            .unwrap_or_else(timed_out)
            .map_err(|source| RemotingError::Connect { addr: name, source })?;
        tokio::spawn(task::run(Arc::clone(&connection), stream, handler));
        Ok(Client { connection })
    }

    /// Sends a request and waits for its response at most `timeout`.
    ///
    /// # Errors
    /// As [`Connection::request`].
    pub async fn request(&self, command: Command, timeout: Duration) -> Result<Command, RemotingError> {
        self.connection.request(command, timeout).await
    }

    /// Sends a request that wants no response.
    ///
    /// # Errors
    /// As [`Connection::oneway`].
    pub fn oneway(&self, command: Command) -> Result<(), RemotingError> {
        self.connection.oneway(command)
    }

    /// The connection itself.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Whether the connection is closed or about to be.
    pub fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Closes the connection and waits until it is closed.
    pub async fn close(self) {
        self.connection.close();
        self.connection.wait_closed().await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.close();
    }
}
