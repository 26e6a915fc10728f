//! Who answers requests, and through what.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::{Connection, State};
use crate::protocol::{Command, Encoding, RequestCode, ResponseCode};

/// Longest remark of an answer in bytes. Remarks name what was wrong, and that may be as long as a frame; what is beyond is left out.
pub const REMARK_BYTES_MAX: usize = 4096;

/// What serves the requests that come over connections.
pub trait Handler: Send + Sync + 'static {
    /// Called on the connection's task for each request, in order. Must not block for long: the connection, and others on the same
    /// thread, wait meanwhile. Answers now or later, from any thread, through `responder`.
    ///
    /// A panic is caught: the request is answered with SYSTEM_ERROR and the connection lives on.
    fn handle(&self, connection: &Arc<Connection>, request: Command, responder: Responder);

    /// Called on the connection's task with the requests that came together, in order. Takes at least one off the front and handles it, and
    /// those behind it that are better handled together: by default it hands one to [`Handler::handle`]. Called again for the rest.
    ///
    /// A panic is caught: those that were taken and not answered are answered with SYSTEM_ERROR.
    fn handle_some(&self, connection: &Arc<Connection>, requests: &mut VecDeque<(Command, Responder)>) {
        if let Some((request, responder)) = requests.pop_front() {
            self.handle(connection, request, responder);
        }
    }

    /// A connection was opened.
    fn connected(&self, _connection: &Arc<Connection>) {}

    /// A connection was closed; called once, after its last request.
    fn closed(&self, _connection: &Arc<Connection>) {}
}

/// The right and the duty to answer one request. Dropped without an answer it answers SYSTEM_ERROR.
#[derive(Debug)]
pub struct Responder {
    connection: Arc<Connection>,
    code: i32,
    opaque: i32,
    encoding: Encoding,
    oneway: bool,
    answered: bool,
}

impl Responder {
    /// The responder of a request that came over `connection`.
    pub fn new(connection: &Arc<Connection>, request: &Command) -> Responder {
        connection.in_flight.fetch_add(1, Ordering::AcqRel);
        Responder {
            connection: Arc::clone(connection),
            code: request.code,
            opaque: request.opaque,
            encoding: request.encoding,
            oneway: request.is_oneway(),
            answered: false,
        }
    }

    /// Answers the request: `response` gets its opaque, its encoding and flag bit 0. A oneway request is not answered.
    pub fn reply(mut self, response: Command) {
        self.answer(response);
    }

    /// Answers with a code and a remark.
    pub fn fail(self, code: i32, remark: impl Into<String>) {
        self.reply(Command::response(code).with_remark(remark));
    }

    /// The number that the answer carries, and how its header is to be written, for [`Connection::send_frames`].
    pub fn address(&self) -> (i32, Encoding) {
        (self.opaque, self.encoding)
    }

    /// Never answers: the connection is about to close, and its end tells the sender more than an answer could; or the answer was sent by
    /// [`Connection::send_frames`].
    pub fn leave_unanswered(mut self) {
        self.answered = true;
    }

    /// Whether the sender wants no answer.
    pub fn is_oneway(&self) -> bool {
        self.oneway
    }

    /// Whether the connection the request came over is still open.
    pub fn is_connected(&self) -> bool {
        !self.connection.is_closed()
    }

    /// The connection the request came over.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    fn answer(&mut self, mut response: Command) {
        self.answered = true;
        if self.oneway {
            return;
        }
        if let Some(remark) = response.remark.as_mut().filter(|remark| remark.len() > REMARK_BYTES_MAX) {
            const MORE: &str = " ...";
            remark.truncate(remark.floor_char_boundary(REMARK_BYTES_MAX - MORE.len()));
            remark.push_str(MORE);
        }
        response.opaque = self.opaque;
        response.encoding = self.encoding;
        response.flag = 1;
        self.connection.send(response);
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            let name = RequestCode::name(self.code).unwrap_or("of unknown code");
            let how = if std::thread::panicking() { "failed by an error in the broker" } else { "was not answered" };
            let remark = format!("request {name} ({}) {how}", self.code);
            self.answer(Command::response(ResponseCode::SYSTEM_ERROR).with_remark(remark));
        }
        let connection = &self.connection;
        let before = connection.in_flight.fetch_sub(1, Ordering::AcqRel);
        if before >= connection.options.in_flight_max || (before == 1 && connection.state() == State::Draining) {
            connection.wake.notify_one();
        }
    }
}

/// The answer to a request code that is not served: code 3, the number and RocketMQ's name for it.
pub fn not_supported(request: &Command) -> Command {
    let name = RequestCode::name(request.code).map(|name| format!(" ({name})")).unwrap_or_default();
    let remark = format!(" request type {} not supported{name}", request.code);
    request.reply(ResponseCode::REQUEST_CODE_NOT_SUPPORTED).with_remark(remark)
}

/// The handler of a client that expects no requests from its server.
#[derive(Debug, Clone, Copy)]
pub struct NoRequests;

impl Handler for NoRequests {
    fn handle(&self, _connection: &Arc<Connection>, request: Command, responder: Responder) {
        responder.reply(not_supported(&request));
    }
}
