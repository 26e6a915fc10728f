//! The task that serves one connection, on either side.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, warn};

use super::connection::{Connection, State, estimated_bytes};
use super::figures::Figures;
use super::handler::{Handler, Responder};
use super::output::Output;
use crate::protocol::{Command, FrameError, RequestCode, ResponseCode, frame};

/// How long a connection's requests are handled before others have their turn.
const SHARE: Duration = Duration::from_millis(1);
/// Most requests that are taken out of the input before they are handled.
const REQUESTS_TOGETHER: usize = 256;
/// Least room made for one read; grows while reads fill it. Never by what a frame announces.
const READ_BYTES_MIN: usize = 4 * 1024;
/// Most room made for one read.
pub const READ_BYTES_MAX: usize = 256 * 1024;

/// Why a connection ended.
enum End {
    Asked,
    ByPeer,
    Broken(io::Error),
    Malformed(FrameError),
    /// The unfinished frames of all connections took too much memory.
    Unfinished,
    Idle,
    Stalled,
}

/// Serves the connection until it ends; then everyone who waits for something from it knows.
pub(super) async fn run(connection: Arc<Connection>, mut stream: TcpStream, handler: Arc<dyn Handler>) {
    let farewell = Farewell { connection: &connection, handler: &*handler };
    guarded(&connection, "connected", || handler.connected(&connection));
    let mut task = Task {
        input: BytesMut::new(),
        input_capacity: 0,
        unfinished_bytes: 0,
        read_bytes: READ_BYTES_MIN,
        output: Output::default(),
        queue: Vec::new(),
        requests: VecDeque::new(),
        codes: Vec::new(),
        connection: &connection,
        handler: &*handler,
    };
    let end = task.serve(&mut stream).await;
    // Answers made before the end still go out, if the socket takes them at once.
    task.encode_queued();
    if let Ok(bytes) = task.output.write_to(&stream) {
        connection.remove_unsent(bytes);
    }
    drop(task);
    drop(stream);
    let figures = &connection.figures;
    let peer = connection.peer();
    match end {
        End::Asked | End::ByPeer => debug!(%peer, "connection closed"),
        End::Broken(error) => debug!(%peer, %error, "connection broken"),
        End::Malformed(error) => {
            Figures::add(&figures.malformed, 1);
            if let Some(left_out) = figures.closed_line.pass() {
                warn!(%peer, %error, left_out, "malformed frame, connection closed");
            }
        }
        End::Unfinished => {
            Figures::add(&figures.unfinished, 1);
            let unfinished_bytes_max = connection.options.unfinished_bytes_max;
            if let Some(left_out) = figures.closed_line.pass() {
                warn!(%peer, unfinished_bytes_max, left_out, "unfinished frames of all connections are too long, connection closed");
            }
        }
        End::Idle => {
            Figures::add(&figures.idle, 1);
            debug!(%peer, "idle connection closed");
        }
        End::Stalled => {
            Figures::add(&figures.stalled, 1);
            if let Some(left_out) = figures.closed_line.pass() {
                warn!(%peer, left_out, "peer does not read, connection closed");
            }
        }
    }
    drop(farewell);
}

/// Tells everyone that the connection is over, also when its task panics or is dropped with the runtime.
struct Farewell<'a> {
    connection: &'a Arc<Connection>,
    handler: &'a dyn Handler,
}

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        self.connection.finish();
        guarded(self.connection, "closed", || self.handler.closed(self.connection));
        self.connection.bury();
    }
}

/// Runs a handler's function; a panic in it is logged and goes no further.
fn guarded(connection: &Connection, request: &str, call: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
        Figures::add(&connection.figures.panics, 1);
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no text");
        error!(peer = %connection.peer(), request, error = text, "handler panicked");
    }
}

struct Task<'a> {
    input: BytesMut,
    /// Capacity of `input` as it stands in the figures.
    input_capacity: usize,
    /// Bytes of the unfinished frame as they stand in the figures.
    unfinished_bytes: usize,
    read_bytes: usize,
    output: Output,
    /// Empty; swapped with the connection's queue to keep its memory.
    queue: Vec<Command>,
    /// Taken out of the input and not yet handled.
    requests: VecDeque<(Command, Responder)>,
    /// The codes of the requests that came with those, to name one that panicked.
    codes: Vec<i32>,
    connection: &'a Arc<Connection>,
    handler: &'a dyn Handler,
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        let figures = &self.connection.figures;
        figures.input_bytes.fetch_sub(self.input_capacity as i64, Ordering::Relaxed);
        figures.unfinished_bytes.fetch_sub(self.unfinished_bytes, Ordering::Relaxed);
        self.connection.remove_unsent(self.output.bytes());
    }
}

impl Task<'_> {
    async fn serve(&mut self, stream: &mut TcpStream) -> End {
        let (mut reader, writer) = stream.split();
        let options = &self.connection.options;
        let mut passed_at = Instant::now();
        let mut written_at = passed_at;
        let timer = sleep_until(passed_at + options.idle_timeout);
        tokio::pin!(timer);
        loop {
            let drained = match self.handle_frames() {
                Ok(drained) => drained,
                Err(error) => return End::Malformed(error),
            };
            if !self.note_unfinished() {
                return End::Unfinished;
            }
            let was_empty = self.output.bytes() == 0;
            self.encode_queued();
            if self.output.bytes() > 0 {
                let now = Instant::now();
                if was_empty {
                    written_at = now;
                }
                match self.output.write_to(writer.as_ref()) {
                    Ok(0) => {}
                    Ok(bytes) => {
                        Figures::add(&self.connection.figures.bytes_out, bytes as u64);
                        self.connection.remove_unsent(bytes);
                        (passed_at, written_at) = (now, now);
                    }
                    Err(error) => return End::Broken(error),
                }
            }
            let has_output = self.output.bytes() > 0;
            match self.connection.state() {
                State::Open => {}
                State::Draining => {
                    let answered = self.connection.in_flight.load(Ordering::Acquire) == 0;
                    if answered && !has_output && self.connection.fall_asleep() {
                        return End::Asked;
                    }
                }
                State::Closing | State::Gone => return End::Asked,
            }
            let paused = self.is_paused();
            if !drained && !paused {
                // It had its share, or the pause that left frames in the input is over.
                tokio::task::yield_now().await;
                continue;
            }
            if !self.connection.fall_asleep() {
                continue;
            }

            let idle_at = passed_at + options.idle_timeout;
            let deadline = if has_output { idle_at.min(written_at + options.write_timeout) } else { idle_at };
            if deadline < timer.deadline() {
                timer.as_mut().reset(deadline);
            }
            let room = if paused { 0 } else { self.make_room() };
            tokio::select! {
                read = reader.read_buf(&mut self.input), if !paused => match read {
                    Ok(0) => return End::ByPeer,
                    Ok(bytes) => {
                        passed_at = Instant::now();
                        self.note_read(bytes, room);
                    }
                    Err(error) => return End::Broken(error),
                },
                writable = writer.writable(), if has_output => if let Err(error) = writable {
                    return End::Broken(error);
                },
                () = self.connection.wake.notified() => {}
                () = &mut timer => {
                    let now = Instant::now();
                    if has_output && now >= written_at + options.write_timeout {
                        return End::Stalled;
                    }
                    if now >= idle_at {
                        return End::Idle;
                    }
                    timer.as_mut().reset(deadline);
                }
            }
            self.connection.wake_up();
        }
    }

    /// Whether no more requests are taken for now.
    fn is_paused(&self) -> bool {
        let options = &self.connection.options;
        self.connection.is_full()
            || self.connection.in_flight.load(Ordering::Acquire) >= options.in_flight_max
            || self.connection.state() != State::Open
    }

    /// Makes room for one read; tells how many bytes it may take.
    fn make_room(&mut self) -> usize {
        self.input.reserve(self.read_bytes);
        self.note_capacity();
        self.input.capacity() - self.input.len()
    }

    /// Fits the size of the next read to this one.
    fn note_read(&mut self, bytes: usize, room: usize) {
        Figures::add(&self.connection.figures.bytes_in, bytes as u64);
        if bytes == room {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        } else if bytes < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(READ_BYTES_MIN);
        }
    }

    /// Handles the frames that are complete; false when it stopped before the last of them.
    fn handle_frames(&mut self) -> Result<bool, FrameError> {
        let until = Instant::now() + SHARE;
        let drained = loop {
            let taken = self.take_frames();
            while !self.requests.is_empty() && (taken.is_err() || !self.connection.is_full()) {
                self.handle_some();
                if Instant::now() >= until && taken.is_ok() {
                    break;
                }
            }
            match taken {
                Ok(more) if self.requests.is_empty() && more && !self.is_paused() && Instant::now() < until => {}
                Ok(more) => break Ok(self.requests.is_empty() && !more),
                Err(error) => break Err(error),
            }
        };
        if self.input.is_empty() && self.input.capacity() > READ_BYTES_MAX {
            self.input = BytesMut::new();
            self.note_capacity();
        }
        drained
    }

    /// Takes the frames that are complete out of the input, but not too many; true when there may be more of them.
    fn take_frames(&mut self) -> Result<bool, FrameError> {
        let mut count = 0;
        let more = loop {
            if self.requests.len() >= REQUESTS_TOGETHER || self.is_paused() {
                break Ok(true);
            }
            match frame::decode(&mut self.input) {
                Ok(Some(command)) => {
                    count += 1;
                    self.take(command);
                }
                Ok(None) => break Ok(false),
                Err(error) => break Err(error),
            }
        };
        if count > 0 {
            Figures::add(&self.connection.figures.frames_in, count);
        }
        more
    }

    /// Lets the handler handle the next request, and what it handles together with that.
    fn handle_some(&mut self) {
        let before = self.requests.len();
        let handled = catch_unwind(AssertUnwindSafe(|| self.handler.handle_some(self.connection, &mut self.requests)));
        let taken = before - self.requests.len();
        if let Err(panic) = handled {
            let code = self.codes.get(taken.saturating_sub(1)).copied().unwrap_or_default();
            let name = RequestCode::name(code).unwrap_or("unknown");
            guarded(self.connection, &format!("{code} {name}"), || std::panic::resume_unwind(panic));
        }
        if taken == 0 {
            // Whatever happened, it would happen again: dropped, it is answered with an error.
            self.requests.pop_front();
        }
        self.codes.drain(..taken.max(1).min(self.codes.len()));
    }

    /// Counts what is left in the input; false when all connections together hold too much, unless this one takes no more than any does.
    fn note_unfinished(&mut self) -> bool {
        let (before, now) = (self.unfinished_bytes, self.input.len());
        self.unfinished_bytes = now;
        let total = &self.connection.figures.unfinished_bytes;
        if now <= before {
            total.fetch_sub(before - now, Ordering::Relaxed);
            return true;
        }
        let more = now - before;
        let held = total.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        held <= self.connection.options.unfinished_bytes_max || now <= READ_BYTES_MIN
    }

    fn take(&mut self, command: Command) {
        let connection = self.connection;
        connection.note_encoding(command.encoding);
        if command.is_response() {
            let (code, opaque) = (command.code, command.opaque);
            if !connection.complete(command) {
                debug!(peer = %connection.peer(), code, opaque, "response without a request");
            }
            return;
        }
        let responder = Responder::new(connection, &command);
        self.codes.push(command.code);
        self.requests.push_back((command, responder));
    }

    /// Encodes what is queued. An answer that fits no frame gives way to an error.
    fn encode_queued(&mut self) {
        let (frames, frames_count) = self.connection.take_queued(&mut self.queue);
        if self.queue.is_empty() && frames.is_empty() {
            return;
        }
        Figures::add(&self.connection.figures.frames_out, self.queue.len() as u64 + frames_count);
        let (mut estimated, before) = (frames.len(), self.output.bytes());
        self.output.push_frames(frames);
        for command in self.queue.drain(..) {
            estimated += estimated_bytes(&command);
            let failed = command.is_response().then(|| command.reply(ResponseCode::SYSTEM_ERROR));
            let Err(error) = self.output.push(command) else {
                continue;
            };
            Figures::add(&self.connection.figures.dropped, 1);
            error!(peer = %self.connection.peer(), %error, "command fits no frame");
            if let Some(failed) = failed {
                // Without remark and ext: it always fits.
                let _ = self.output.push(failed);
            }
        }
        // First up, then down: never below zero.
        self.connection.add_unsent(self.output.bytes() - before);
        self.connection.remove_unsent(estimated);
    }

    fn note_capacity(&mut self) {
        let capacity = self.input.capacity();
        if capacity != self.input_capacity {
            let change = capacity as i64 - self.input_capacity as i64;
            self.connection.figures.input_bytes.fetch_add(change, Ordering::Relaxed);
            self.input_capacity = capacity;
        }
    }
}
