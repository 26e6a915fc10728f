//! One connection, as those who answer and push over it see it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::{Notify, oneshot};

use super::error::RemotingError;
use super::figures::Figures;
use crate::protocol::{Command, Encoding, frame};

/// A connection is never closed for fewer bytes that wait than one long answer has.
const OVERRUN_BYTES_MIN: usize = 2 * crate::protocol::FRAME_BYTES_MAX;

/// So many bytes may wait for each peer whatever waits for the others.
pub const UNSENT_BYTES_FLOOR: usize = 64 * 1024;

/// What a connection allows.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// A connection over which nothing passed for so long is closed. Default: 120 s, as in RocketMQ.
    pub idle_timeout: Duration,
    /// A connection whose peer takes no byte for so long, though there are some for it, is closed. Default: 30 s.
    pub write_timeout: Duration,
    /// While more bytes than this wait for the peer, its requests are not read and pushes to it are dropped. Answers to requests that it
    /// made before still come; at twice as many the connection is closed. Default: 8 MiB. Key `serverUnsentBytesPerConnection`.
    pub output_bytes_max: usize,
    /// While more bytes than this wait for all peers of the server together, no requests are read of those for whom more than
    /// [`UNSENT_BYTES_FLOOR`] wait. Default: 256 MiB. Key `serverUnsentBytesMax`.
    pub unsent_bytes_max: usize,
    /// A connection whose unfinished frame would make the unfinished frames of all connections of its server together longer than this is
    /// closed. Default: 256 MiB. Key `serverUnfinishedBytesMax`.
    pub unfinished_bytes_max: usize,
    /// While so many of its requests are unanswered, no more are read. Default: 65,535, as in RocketMQ.
    pub in_flight_max: usize,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            idle_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(30),
            output_bytes_max: 8 * 1024 * 1024,
            unsent_bytes_max: 256 * 1024 * 1024,
            unfinished_bytes_max: 256 * 1024 * 1024,
            in_flight_max: 65_535,
        }
    }
}

/// One connection. Commands may be sent from any thread; they are queued and never block.
pub struct Connection {
    id: u64,
    peer: SocketAddr,
    local: SocketAddr,
    pub(super) options: ConnectionOptions,
    pub(super) figures: Arc<Figures>,
    outgoing: Mutex<Outgoing>,
    /// Bytes sent and not yet taken by the socket; an estimate for what is not encoded yet.
    unsent_bytes: AtomicUsize,
    pub(super) wake: Notify,
    /// Requests sent from here that wait for their response; `None` once closed. Never locked together with `outgoing`.
    calls: Mutex<Option<HashMap<i32, oneshot::Sender<Command>>>>,
    next_opaque: AtomicI32,
    /// Whether the peer's last frame had a binary header.
    peer_binary: AtomicBool,
    pub(super) in_flight: AtomicUsize,
    /// A [`State`]; only ever grows.
    state: AtomicU8,
    gone: Notify,
}

#[derive(Default)]
struct Outgoing {
    queue: Vec<Command>,
    /// Whole frames that were encoded elsewhere, and how many.
    frames: BytesMut,
    frames_count: u64,
    /// The connection's task is at work and will look at the queue before it sleeps.
    awake: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Open = 0,
    /// No more requests are read; closes when what is in flight is answered and written.
    Draining,
    /// Closes at once.
    Closing,
    Gone,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    pub(super) fn new(
        peer: SocketAddr,
        local: SocketAddr,
        options: ConnectionOptions,
        figures: Arc<Figures>,
    ) -> Arc<Connection> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Arc::new(Connection {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            peer,
            local,
            options,
            figures,
            outgoing: Mutex::new(Outgoing { awake: true, ..Outgoing::default() }),
            unsent_bytes: AtomicUsize::new(0),
            wake: Notify::new(),
            calls: Mutex::new(Some(HashMap::new())),
            next_opaque: AtomicI32::new(0),
            peer_binary: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            state: AtomicU8::new(State::Open as u8),
            gone: Notify::new(),
        })
    }

    /// A connection without a socket, for tests of handlers: what is sent stays in it for [`Connection::take_sent`].
    pub fn unconnected(peer: SocketAddr, local: SocketAddr) -> Arc<Connection> {
        Connection::new(peer, local, ConnectionOptions::default(), Arc::default())
    }

    /// Number of this connection; unique within the process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Address of the peer.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Address on this side.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether the connection is closed or about to be.
    pub fn is_closed(&self) -> bool {
        self.state() >= State::Closing
    }

    /// Bytes that were sent and that the socket has not taken yet, roughly.
    pub fn unsent_bytes(&self) -> usize {
        self.unsent_bytes.load(Ordering::Relaxed)
    }

    /// Queues a command as it is. On a closed connection it is dropped.
    pub fn send(&self, command: Command) {
        if self.is_closed() {
            return;
        }
        self.enqueue(estimated_bytes(&command), |outgoing| outgoing.queue.push(command));
    }

    /// Queues so many whole frames as they are. On a closed connection they are dropped.
    pub fn send_frames(&self, frames: &[u8], count: usize) {
        if self.is_closed() || frames.is_empty() {
            return;
        }
        self.enqueue(frames.len(), |outgoing| {
            outgoing.frames.extend_from_slice(frames);
            outgoing.frames_count += count as u64;
        });
    }

    fn enqueue(&self, bytes: usize, put: impl FnOnce(&mut Outgoing)) {
        if self.unsent_bytes().saturating_add(bytes)
            > self.options.output_bytes_max.saturating_mul(2).max(OVERRUN_BYTES_MIN)
        {
            self.overrun();
            return;
        }
        self.add_unsent(bytes);
        let mut outgoing = lock(&self.outgoing);
        put(&mut outgoing);
        let asleep = !std::mem::replace(&mut outgoing.awake, true);
        drop(outgoing);
        if asleep {
            self.wake.notify_one();
        }
    }

    /// More bytes wait for the peer.
    pub(super) fn add_unsent(&self, bytes: usize) {
        self.unsent_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.figures.unsent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes that waited for the peer wait no more.
    pub(super) fn remove_unsent(&self, bytes: usize) {
        self.unsent_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.figures.unsent_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether so much waits for the peer that no more of its requests are taken.
    pub(super) fn is_full(&self) -> bool {
        let (own, options) = (self.unsent_bytes(), &self.options);
        own > options.output_bytes_max
            || (own > UNSENT_BYTES_FLOOR
                && self.figures.unsent_bytes.load(Ordering::Relaxed) > options.unsent_bytes_max)
    }

    fn overrun(&self) {
        if self.state() < State::Closing {
            Figures::add(&self.figures.overrun, 1);
            if let Some(left_out) = self.figures.closed_line.pass() {
                let output_bytes_max = self.options.output_bytes_max;
                tracing::warn!(peer = %self.peer, output_bytes_max, left_out, "peer takes its answers too slowly, connection closed");
            }
        }
        self.close();
    }

    /// Sends a request that wants no response, numbered and encoded for this peer.
    ///
    /// # Errors
    /// The connection is closed, or the peer does not read; then the push is dropped and counted.
    pub fn oneway(&self, mut command: Command) -> Result<(), RemotingError> {
        self.check_sendable()?;
        command.flag = 2;
        command.opaque = self.next_opaque.fetch_add(1, Ordering::Relaxed);
        command.encoding = self.push_encoding();
        self.send(command);
        Ok(())
    }

    /// Sends a request, numbered and encoded for this peer, and waits for its response at most `timeout`.
    ///
    /// # Errors
    /// The connection is or gets closed, the peer does not read, or no response came in time.
    pub async fn request(&self, mut command: Command, timeout: Duration) -> Result<Command, RemotingError> {
        self.check_sendable()?;
        let code = command.code;
        command.flag = 0;
        command.encoding = self.push_encoding();
        let (sender, receiver) = oneshot::channel();
        let call = {
            let mut calls = lock(&self.calls);
            let calls = calls.as_mut().ok_or_else(|| self.closed_error())?;
            let mut opaque = self.next_opaque.fetch_add(1, Ordering::Relaxed);
            while calls.contains_key(&opaque) {
                opaque = self.next_opaque.fetch_add(1, Ordering::Relaxed);
            }
            calls.insert(opaque, sender);
            Call { connection: self, opaque }
        };
        command.opaque = call.opaque;
        self.send(command);
        match tokio::time::timeout(timeout, receiver).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(_)) => Err(self.closed_error()),
            Err(_) => Err(RemotingError::Timeout { addr: self.peer.to_string(), code, after: timeout }),
        }
    }

    /// Closes the connection; what is queued is still written as far as the socket takes it at once.
    pub fn close(&self) {
        self.advance_state(State::Closing);
    }

    /// Waits until the connection is closed and its handler has been told.
    pub async fn wait_closed(&self) {
        loop {
            let gone = self.gone.notified();
            if self.state() == State::Gone {
                return;
            }
            gone.await;
        }
    }

    /// Takes what was sent over an [`Connection::unconnected`] connection.
    pub fn take_sent(&self) -> Vec<Command> {
        let mut sent = Vec::new();
        let mut frames = self.take_queued(&mut sent).0;
        self.remove_unsent(frames.len() + sent.iter().map(estimated_bytes).sum::<usize>());
        let frames = std::iter::from_fn(|| frame::decode(&mut frames).ok().flatten());
        sent.extend(frames);
        sent
    }

    /// Reads no more requests; closes when those in flight are answered and written.
    pub(super) fn drain(&self) {
        self.advance_state(State::Draining);
    }

    pub(super) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Open,
            1 => State::Draining,
            2 => State::Closing,
            _ => State::Gone,
        }
    }

    fn advance_state(&self, wanted: State) {
        if self.state.fetch_max(wanted as u8, Ordering::AcqRel) < wanted as u8 {
            self.wake.notify_one();
        }
    }

    /// The socket is closed: nothing is sent any more, and whoever waits for a response learns it.
    pub(super) fn finish(&self) {
        self.advance_state(State::Closing);
        let calls = lock(&self.calls).take();
        drop(calls);
        self.take_sent();
    }

    /// Everything about the connection is over.
    pub(super) fn bury(&self) {
        self.advance_state(State::Gone);
        self.gone.notify_waiters();
    }

    /// Moves queued commands to `queue`, which must be empty; gives the frames that were queued, and how many.
    pub(super) fn take_queued(&self, queue: &mut Vec<Command>) -> (BytesMut, u64) {
        let mut outgoing = lock(&self.outgoing);
        std::mem::swap(&mut outgoing.queue, queue);
        (outgoing.frames.split(), std::mem::take(&mut outgoing.frames_count))
    }

    /// Says that the task will wait now; false when something was queued meanwhile.
    pub(super) fn fall_asleep(&self) -> bool {
        let mut outgoing = lock(&self.outgoing);
        outgoing.awake = !outgoing.queue.is_empty() || !outgoing.frames.is_empty();
        !outgoing.awake
    }

    /// Says that the task is at work again.
    pub(super) fn wake_up(&self) {
        lock(&self.outgoing).awake = true;
    }

    pub(super) fn note_encoding(&self, encoding: Encoding) {
        self.peer_binary.store(encoding == Encoding::Binary, Ordering::Relaxed);
    }

    /// Hands a response to the call that waits for it; false when none does.
    pub(super) fn complete(&self, response: Command) -> bool {
        let call = lock(&self.calls).as_mut().and_then(|calls| calls.remove(&response.opaque));
        call.is_some_and(|call| call.send(response).is_ok())
    }

    fn push_encoding(&self) -> Encoding {
        if self.peer_binary.load(Ordering::Relaxed) { Encoding::Binary } else { Encoding::Json }
    }

    fn check_sendable(&self) -> Result<(), RemotingError> {
        if self.is_closed() {
            return Err(self.closed_error());
        }
        if self.unsent_bytes() > self.options.output_bytes_max {
            Figures::add(&self.figures.dropped, 1);
            return Err(RemotingError::Full { addr: self.peer.to_string() });
        }
        Ok(())
    }

    fn closed_error(&self) -> RemotingError {
        RemotingError::Closed { addr: self.peer.to_string() }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("id", &self.id).field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// A request that waits for its response; forgotten when dropped.
struct Call<'a> {
    connection: &'a Connection,
    opaque: i32,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(calls) = lock(&self.connection.calls).as_mut() {
            calls.remove(&self.opaque);
        }
    }
}

/// Near enough for a bound: bodies and remarks exactly, what is left of a header by a guess.
pub(super) fn estimated_bytes(command: &Command) -> usize {
    const HEADER_BYTES: usize = 256;
    HEADER_BYTES + command.body.len() + command.remark.as_ref().map_or(0, String::len)
}
