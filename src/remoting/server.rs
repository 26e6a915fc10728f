//! A server: listens on one or more addresses and serves every connection with one handler.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::{info, warn};

use super::connection::{Connection, ConnectionOptions};
use super::figures::Figures;
use super::handler::Handler;
use super::task;

/// Pause after a failed accept, which mostly means that no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long closing connections may take to be gone once they are told to.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// What a server allows.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// What each connection allows.
    pub connection: ConnectionOptions,
    /// More connections than this are refused by closing them at once. Default: 65,536. Key `serverConnectionsMax`.
    pub connections_max: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions { connection: ConnectionOptions::default(), connections_max: 65_536 }
    }
}

/// A listening server. Dropping it stops accepting and closes every connection.
pub struct Server {
    local_addrs: Vec<SocketAddr>,
    shared: Arc<Shared>,
}

struct Shared {
    handler: Arc<dyn Handler>,
    options: ServerOptions,
    figures: Arc<Figures>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    /// Number of connections; also says when the last one is gone.
    live: watch::Sender<usize>,
    accepting: watch::Sender<bool>,
}

impl Server {
    /// Listens on each of `addrs`; port 0 takes a free one. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// An address cannot be listened on; the error names it.
    pub async fn bind(addrs: &[SocketAddr], handler: Arc<dyn Handler>, options: ServerOptions) -> io::Result<Server> {
        let mut listeners = Vec::with_capacity(addrs.len());
        for addr in addrs {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}"));
            listeners.push(TcpListener::bind(addr).await.map_err(named)?);
        }
        let local_addrs = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared {
            handler,
            options,
            figures: Arc::default(),
            connections: Mutex::default(),
            live: watch::Sender::new(0),
            accepting: watch::Sender::new(true),
        });
        for listener in listeners {
            tokio::spawn(accept(Arc::clone(&shared), listener));
        }
        Ok(Server { local_addrs, shared })
    }

    /// The first address listened on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addrs[0]
    }

    /// The addresses listened on, in the order they were given.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// What was counted so far.
    pub fn figures(&self) -> &Arc<Figures> {
        &self.shared.figures
    }

    /// The open connections.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        self.shared.connections().values().cloned().collect()
    }

    /// Closes the listening sockets. Open connections are served on.
    pub fn stop_accepting(&self) {
        self.shared.accepting.send_replace(false);
    }

    /// Stops: accepts and reads nothing more, lets what is in flight be answered and written for at most `deadline`, then closes what
    /// is left. Returns how many connections had to be cut off.
    pub async fn shutdown(&self, deadline: Duration) -> usize {
        self.stop_accepting();
        let mut live = self.shared.live.subscribe();
        for connection in self.connections() {
            connection.drain();
        }
        if tokio::time::timeout(deadline, live.wait_for(|live| *live == 0)).await.is_ok() {
            return 0;
        }
        let left = self.connections();
        for connection in &left {
            connection.close();
        }
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, live.wait_for(|live| *live == 0)).await;
        left.len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_accepting();
        for connection in self.connections() {
            connection.close();
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("local_addrs", &self.local_addrs).finish_non_exhaustive()
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        // Nothing that panics runs under this lock.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let connection =
            Connection::new(peer, stream.local_addr()?, self.options.connection.clone(), Arc::clone(&self.figures));
        {
            let mut connections = self.connections();
            if connections.len() >= self.options.connections_max {
                Figures::add(&self.figures.refused, 1);
                if let Some(left_out) = self.figures.refused_line.pass() {
                    let connections_max = self.options.connections_max;
                    warn!(%peer, connections_max, left_out, "too many connections, one refused");
                }
                return Ok(());
            }
            connections.insert(connection.id(), Arc::clone(&connection));
            self.live.send_replace(connections.len());
        }
        Figures::add(&self.figures.accepted, 1);
        self.figures.connections.fetch_add(1, Ordering::Relaxed);
        if !*self.accepting.borrow() {
            // Accepted while the server was being stopped.
            connection.close();
        }
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            task::run(Arc::clone(&connection), stream, Arc::clone(&shared.handler)).await;
            shared.figures.connections.fetch_sub(1, Ordering::Relaxed);
            let mut connections = shared.connections();
            connections.remove(&connection.id());
            shared.live.send_replace(connections.len());
        });
        Ok(())
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let mut accepting = shared.accepting.subscribe();
    loop {
        let accepted = tokio::select! {
            _ = accepting.wait_for(|accepting| !accepting) => break,
            accepted = listener.accept() => accepted,
        };
        if let Err(error) = accepted.and_then(|(stream, peer)| shared.open(stream, peer)) {
            warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
    if let Ok(addr) = listener.local_addr() {
        info!(%addr, "stopped listening");
    }
}
