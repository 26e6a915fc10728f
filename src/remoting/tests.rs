use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::*;
use crate::protocol::{Body, Command, Encoding, ResponseCode, frame};

/// Far longer than anything here takes; only a hanging test meets it.
const LONG: Duration = Duration::from_secs(60);

const ECHO: i32 = 10;
const PANIC: i32 = 1;
const HOLD: i32 = 2;
const DROP: i32 = 3;
/// Answered with as many bytes as the ext field `bytes` says.
const BIG: i32 = 4;

#[derive(Default)]
struct TestHandler {
    held: Mutex<VecDeque<Responder>>,
    handled: AtomicUsize,
    unsent_max: AtomicUsize,
    opened: AtomicUsize,
    closed: AtomicUsize,
    changed: Notify,
}

impl TestHandler {
    /// Waits until so many responders are held.
    async fn held(&self, count: usize) {
        within(async {
            loop {
                let changed = self.changed.notified();
                if self.held.lock().unwrap().len() >= count {
                    return;
                }
                changed.await;
            }
        })
        .await;
    }

    fn release(&self) -> Responder {
        self.held.lock().unwrap().pop_front().unwrap()
    }

    fn release_last(&self) -> Responder {
        self.held.lock().unwrap().pop_back().unwrap()
    }
}

impl Handler for TestHandler {
    fn handle(&self, connection: &Arc<Connection>, request: Command, responder: Responder) {
        self.handled.fetch_add(1, Ordering::Relaxed);
        self.unsent_max.fetch_max(connection.unsent_bytes(), Ordering::Relaxed);
        match request.code {
            ECHO => responder.reply(Command::response(0).with_ext(request.ext).with_body(request.body)),
            PANIC => panic!("a test wants this"),
            HOLD => {
                self.held.lock().unwrap().push_back(responder);
                self.changed.notify_waiters();
            }
            DROP => drop(responder),
            BIG => {
                let bytes = request.ext.i32("bytes").unwrap().unwrap() as usize;
                // Several slices of one shared piece, as a pull reply has them.
                let piece = Bytes::from_static(&[7; 4096]);
                let mut slices = vec![piece.clone(); bytes / piece.len()];
                slices.push(piece.slice(..bytes % piece.len()));
                responder.reply(Command::response(0).with_body(slices));
            }
            _ => responder.reply(not_supported(&request)),
        }
    }

    fn connected(&self, _connection: &Arc<Connection>) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    fn closed(&self, _connection: &Arc<Connection>) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("a test hangs")
}

async fn server_with(options: ServerOptions) -> (Server, Arc<TestHandler>) {
    let handler = Arc::new(TestHandler::default());
    let server = Server::bind(&[loopback()], Arc::clone(&handler) as _, options).await.unwrap();
    (server, handler)
}

async fn server() -> (Server, Arc<TestHandler>) {
    server_with(ServerOptions::default()).await
}

fn request(code: i32, opaque: i32) -> Command {
    Command { opaque, ..Command::request(code) }
}

fn encoded(command: &Command) -> BytesMut {
    frame::encode_whole(command).unwrap()
}

/// A peer that only knows bytes.
struct RawPeer {
    stream: TcpStream,
    input: BytesMut,
}

impl RawPeer {
    async fn connect(server: &Server) -> RawPeer {
        let stream = TcpStream::connect(server.local_addr()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        RawPeer { stream, input: BytesMut::new() }
    }

    async fn write(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.unwrap();
    }

    /// The next command; `None` when the server has closed the connection.
    async fn read(&mut self) -> Option<Command> {
        within(async {
            loop {
                if let Some(command) = frame::decode(&mut self.input).unwrap() {
                    return Some(command);
                }
                if matches!(self.stream.read_buf(&mut self.input).await, Ok(0) | Err(_)) {
                    return None;
                }
            }
        })
        .await
    }

    async fn call(&mut self, command: &Command) -> Command {
        self.write(&encoded(command)).await;
        self.read().await.expect("the server closed the connection")
    }
}

/// Waits for a counter that a task of the server moves; yields to it meanwhile.
async fn until(condition: impl Fn() -> bool) {
    within(async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn remoting_1_each_request_is_answered_in_its_own_encoding_with_its_opaque() {
    let (server, _) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    for (opaque, encoding) in [(7, Encoding::Json), (8, Encoding::Binary), (9, Encoding::Json)] {
        let answer = peer.call(&Command { encoding, ..request(ECHO, opaque) }).await;
        assert_eq!((answer.code, answer.opaque, answer.encoding), (0, opaque, encoding));
    }
}

#[tokio::test]
async fn remoting_2_a_frame_in_writes_of_one_byte_is_answered() {
    let (server, _) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    for byte in encoded(&request(ECHO, 5).with_body("body")) {
        peer.write(&[byte]).await;
    }
    let answer = peer.read().await.unwrap();
    assert_eq!((answer.opaque, answer.body), (5, Body::from("body")));
}

#[tokio::test]
async fn remoting_2_frames_in_one_write_are_all_answered_in_order() {
    let (server, _) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    let frames: Vec<u8> = (0..100).flat_map(|opaque| encoded(&request(ECHO, opaque))).collect();
    peer.write(&frames).await;
    for opaque in 0..100 {
        assert_eq!(peer.read().await.unwrap().opaque, opaque);
    }
    assert_eq!(server.figures().frames_in.load(Ordering::Relaxed), 100);
    assert_eq!(server.figures().frames_out.load(Ordering::Relaxed), 100);
}

/// Sixty connections with half a frame each took 490 MB.
#[tokio::test]
async fn unfinished_frames_of_all_connections_together_take_bounded_memory() {
    let connection = ConnectionOptions { unfinished_bytes_max: 64 * 1024, ..ConnectionOptions::default() };
    let (server, _) = server_with(ServerOptions { connection, ..ServerOptions::default() }).await;
    let figures = server.figures();
    let unfinished = || figures.unfinished_bytes.load(Ordering::Relaxed);
    let long = encoded(&request(ECHO, 1).with_body(vec![7; 60_000]));
    let (half, rest) = long.split_at(40_000);
    let mut first = RawPeer::connect(&server).await;
    first.write(half).await;
    until(|| unfinished() == half.len()).await;

    let mut beyond = RawPeer::connect(&server).await;
    beyond.write(half).await;

    assert!(beyond.read().await.is_none(), "the connection is closed");
    until(|| unfinished() == half.len()).await;
    assert_eq!(figures.unfinished.load(Ordering::Relaxed), 1);
    let mut other = RawPeer::connect(&server).await;
    assert_eq!(other.call(&request(ECHO, 2)).await.opaque, 2);
    first.write(rest).await;
    assert_eq!(first.read().await.unwrap().body.len(), 60_000);
    until(|| unfinished() == 0).await;
}

#[tokio::test]
async fn remoting_3_4_a_malformed_frame_ends_only_its_own_connection() {
    let (server, handler) = server().await;
    let mut other = RawPeer::connect(&server).await;
    let malformed: [&[u8]; 5] = [
        &16_777_213_u32.to_be_bytes(),
        &[0, 0, 0, 8, 0, 0, 0, 5],
        &[0, 0, 0, 8, 9],
        &[0, 0, 0, 2],
        &[0x16, 3, 1, 0, 0],
    ];
    for (nth, bytes) in malformed.into_iter().enumerate() {
        let mut peer = RawPeer::connect(&server).await;
        // What came before the bad frame is still answered.
        peer.write(&encoded(&request(ECHO, 1))).await;
        peer.write(bytes).await;
        assert_eq!(peer.read().await.unwrap().opaque, 1);
        assert_eq!(peer.read().await, None);
        assert_eq!(server.figures().malformed.load(Ordering::Relaxed), nth as u64 + 1);
        assert_eq!(other.call(&request(ECHO, 2)).await.code, 0);
    }
    until(|| handler.closed.load(Ordering::Relaxed) == 5).await;
    assert_eq!(handler.opened.load(Ordering::Relaxed), 6);
}

#[tokio::test]
async fn remoting_5_an_unknown_code_is_answered_with_3_and_the_connection_stays_open() {
    let (server, _) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    let answer = peer.call(&request(9999, 77)).await;
    assert_eq!((answer.code, answer.opaque, answer.flag), (3, 77, 1));
    assert_eq!(answer.remark.as_deref(), Some(" request type 9999 not supported"));
    let answer = peer.call(&request(37, 78)).await;
    assert_eq!(answer.remark.as_deref(), Some(" request type 37 not supported (END_TRANSACTION)"));
}

#[tokio::test]
async fn remoting_6_a_oneway_request_yields_nothing_even_on_error() {
    let (server, handler) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    for code in [ECHO, PANIC, DROP, 9999] {
        peer.write(&encoded(&request(code, 1).with_oneway())).await;
    }
    assert_eq!(peer.call(&request(ECHO, 2)).await.opaque, 2);
    assert_eq!(handler.handled.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn a_panic_answers_its_request_and_the_connection_lives_on() {
    let (server, _) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    let answer = peer.call(&request(PANIC, 4)).await;
    assert_eq!((answer.code, answer.opaque), (ResponseCode::SYSTEM_ERROR, 4));
    assert!(answer.remark.unwrap().contains("error in the broker"));
    assert_eq!(server.figures().panics.load(Ordering::Relaxed), 1);
    assert_eq!(peer.call(&request(ECHO, 5)).await.code, 0);
}

#[tokio::test]
async fn a_panic_in_the_middle_of_requests_that_came_together_harms_none_of_them() {
    let (server, handler) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    let codes = [ECHO, PANIC, ECHO, PANIC, ECHO];
    let frames: Vec<u8> = (10..).zip(codes).flat_map(|(opaque, code)| encoded(&request(code, opaque))).collect();
    peer.write(&frames).await;
    let mut answers = Vec::new();
    for _ in codes {
        let answer = peer.read().await.unwrap();
        answers.push((answer.opaque, answer.code));
    }
    answers.sort_unstable();
    assert_eq!(answers, [(10, 0), (11, 1), (12, 0), (13, 1), (14, 0)]);
    assert_eq!((server.figures().panics.load(Ordering::Relaxed), handler.handled.load(Ordering::Relaxed)), (2, 5));
}

#[tokio::test]
async fn requests_before_a_malformed_frame_are_answered_though_the_connection_is_closed() {
    let (server, _) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    let mut frames: Vec<u8> = (10..300).flat_map(|opaque| encoded(&request(ECHO, opaque))).collect();
    frames.extend_from_slice(&[0xFF; 8]);
    peer.write(&frames).await;
    for opaque in 10..300 {
        assert_eq!(peer.read().await.unwrap().opaque, opaque);
    }
}

#[tokio::test]
async fn a_request_whose_responder_is_dropped_is_answered() {
    let (server, _) = server().await;
    let answer = RawPeer::connect(&server).await.call(&request(DROP, 4)).await;
    assert_eq!((answer.code, answer.opaque), (ResponseCode::SYSTEM_ERROR, 4));
}

#[tokio::test]
async fn answers_may_come_late_out_of_order_and_from_another_thread() {
    let (server, handler) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    for opaque in [1, 2] {
        peer.write(&encoded(&request(HOLD, opaque))).await;
    }
    handler.held(2).await;
    assert_eq!(peer.call(&request(ECHO, 3)).await.opaque, 3);

    let (first, last) = (handler.release(), handler.release_last());
    assert!(first.is_connected());
    std::thread::spawn(move || last.reply(Command::response(0))).join().unwrap();
    assert_eq!(peer.read().await.unwrap().opaque, 2);
    first.fail(16, "no");
    let answer = peer.read().await.unwrap();
    assert_eq!((answer.opaque, answer.code, answer.remark.as_deref()), (1, 16, Some("no")));
}

#[tokio::test]
async fn a_late_answer_to_a_peer_that_left_goes_nowhere() {
    let (server, handler) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    peer.write(&encoded(&request(HOLD, 1))).await;
    handler.held(1).await;
    let connection = server.connections().remove(0);
    drop(peer);
    within(connection.wait_closed()).await;
    let responder = handler.release();
    assert!(!responder.is_connected());
    responder.reply(Command::response(0));
    assert_eq!(connection.unsent_bytes(), 0);
    assert_eq!(handler.closed.load(Ordering::Relaxed), 1);
    until(|| server.connections().is_empty()).await;
}

#[tokio::test]
async fn a_thousand_connections_that_announce_16_mib_hold_little_memory() {
    const COUNT: usize = 1000;
    let (server, _) = server().await;
    let figures = Arc::clone(server.figures());
    let mut peers = Vec::new();
    for _ in 0..COUNT {
        let mut peer = RawPeer::connect(&server).await;
        peer.write(&[0, 0xFF, 0xFF, 0xFC, 0, 0, 1, 0, b'{', b'"', b'c', b'o', b'd', b'e', b'"']).await;
        peers.push(peer);
    }
    let input_bytes = || figures.input_bytes.load(Ordering::Relaxed) as usize;
    until(|| figures.bytes_in.load(Ordering::Relaxed) == 15 * COUNT as u64).await;
    assert!(input_bytes() <= COUNT * 8192, "{} bytes", input_bytes());

    drop(peers);
    until(|| input_bytes() == 0 && figures.connections.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test]
async fn while_a_peer_does_not_read_its_requests_are_not_read_and_later_all_are_answered() {
    const COUNT: i32 = 2000;
    const BYTES: i32 = 64 * 1024;
    let connection = ConnectionOptions { output_bytes_max: 1024 * 1024, ..ConnectionOptions::default() };
    let (server, handler) = server_with(ServerOptions { connection, ..ServerOptions::default() }).await;
    let mut peer = RawPeer::connect(&server).await;
    let frames: Vec<u8> = (0..COUNT)
        .flat_map(|opaque| {
            let mut request = request(BIG, opaque);
            request.ext.set("bytes", BYTES);
            encoded(&request)
        })
        .collect();
    peer.write(&frames).await;

    for opaque in 0..COUNT {
        let answer = peer.read().await.unwrap();
        assert_eq!((answer.opaque, answer.body.len()), (opaque, BYTES as usize));
    }
    assert!(handler.unsent_max.load(Ordering::Relaxed) <= 1024 * 1024);
    assert_eq!(server.connections()[0].unsent_bytes(), 0);
}

#[tokio::test]
async fn a_peer_that_never_reads_is_cut_off_and_pushes_to_it_are_refused() {
    let connection = ConnectionOptions {
        write_timeout: Duration::from_millis(50),
        output_bytes_max: 1024 * 1024,
        ..ConnectionOptions::default()
    };
    let (server, _) = server_with(ServerOptions { connection, ..ServerOptions::default() }).await;
    let _peer = RawPeer::connect(&server).await;
    until(|| !server.connections().is_empty()).await;
    let connection = server.connections().remove(0);

    let push = Command::request(40).with_body(vec![0; 512 * 1024]);
    let mut sent = 0;
    let error = loop {
        match connection.oneway(push.clone()) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 1000);
        tokio::task::yield_now().await;
    };
    assert!(matches!(error, RemotingError::Full { .. }), "{error}");
    assert_eq!(server.figures().dropped.load(Ordering::Relaxed), 1);
    within(connection.wait_closed()).await;
    assert_eq!(server.figures().stalled.load(Ordering::Relaxed), 1);
    assert!(matches!(connection.oneway(push), Err(RemotingError::Closed { .. })));
}

#[tokio::test]
async fn remoting_11_a_connection_over_which_nothing_passes_is_closed() {
    assert_eq!(ConnectionOptions::default().idle_timeout, Duration::from_secs(120));
    let connection = ConnectionOptions { idle_timeout: Duration::from_millis(50), ..ConnectionOptions::default() };
    let (server, _) = server_with(ServerOptions { connection, ..ServerOptions::default() }).await;
    let mut peer = RawPeer::connect(&server).await;
    let begun = std::time::Instant::now();
    assert_eq!(peer.read().await, None);
    assert!(begun.elapsed() >= Duration::from_millis(45));
    assert_eq!(server.figures().idle.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn no_more_requests_are_read_than_may_be_in_flight() {
    let connection = ConnectionOptions { in_flight_max: 2, ..ConnectionOptions::default() };
    let (server, handler) = server_with(ServerOptions { connection, ..ServerOptions::default() }).await;
    let mut peer = RawPeer::connect(&server).await;
    let frames: Vec<u8> = (0..4).flat_map(|opaque| encoded(&request(HOLD, opaque))).collect();
    peer.write(&frames).await;
    handler.held(2).await;
    assert_eq!(RawPeer::connect(&server).await.call(&request(ECHO, 9)).await.code, 0);
    assert_eq!(handler.handled.load(Ordering::Relaxed), 3);

    handler.release().reply(Command::response(0));
    assert_eq!(peer.read().await.unwrap().opaque, 0);
    handler.held(2).await;
    assert_eq!(handler.handled.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn remoting_12_one_handler_serves_several_addresses() {
    let handler = Arc::new(TestHandler::default());
    let server =
        Server::bind(&[loopback(), loopback()], Arc::clone(&handler) as _, ServerOptions::default()).await.unwrap();
    for addr in server.local_addrs() {
        let client = Client::connect(addr, LONG).await.unwrap();
        assert_eq!(client.request(Command::request(ECHO), LONG).await.unwrap().code, 0);
    }
    assert_eq!(handler.handled.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let (server, handler) = server().await;
    let error = Server::bind(&[server.local_addr()], handler, ServerOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains(&server.local_addr().to_string()), "{error}");
}

#[tokio::test]
async fn connections_beyond_the_limit_are_refused() {
    let (server, _) = server_with(ServerOptions { connections_max: 1, ..ServerOptions::default() }).await;
    let mut first = RawPeer::connect(&server).await;
    assert_eq!(first.call(&request(ECHO, 1)).await.code, 0);
    assert_eq!(RawPeer::connect(&server).await.read().await, None);
    assert_eq!(server.figures().refused.load(Ordering::Relaxed), 1);
    assert_eq!(first.call(&request(ECHO, 2)).await.code, 0);
}

#[tokio::test]
async fn an_answer_too_long_for_a_frame_becomes_an_error() {
    let (server, _) = server().await;
    let client = Client::connect(server.local_addr(), LONG).await.unwrap();
    let mut request = Command::request(BIG);
    request.ext.set("bytes", 16 * 1024 * 1024);
    assert_eq!(client.request(request, LONG).await.unwrap().code, ResponseCode::SYSTEM_ERROR);
    assert_eq!(server.figures().dropped.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_client_matches_concurrent_answers_by_opaque() {
    let (server, handler) = server().await;
    let client = Client::connect(server.local_addr(), LONG).await.unwrap();
    let held = client.request(Command::request(HOLD), LONG);
    let echoed = async {
        handler.held(1).await;
        let echoed = client.request(Command::request(ECHO).with_body(vec![1; 5_000_000]), LONG).await;
        handler.release().reply(Command::response(7));
        echoed
    };
    let (held, echoed) = tokio::join!(held, echoed);
    assert_eq!(held.unwrap().code, 7);
    assert_eq!(echoed.unwrap().body.len(), 5_000_000);
}

#[tokio::test]
async fn a_call_ends_when_its_time_is_up_or_its_connection_closed() {
    let (server, handler) = server().await;
    let client = Client::connect(server.local_addr(), LONG).await.unwrap();
    let error = client.request(Command::request(HOLD), Duration::from_millis(10)).await.unwrap_err();
    assert!(matches!(error, RemotingError::Timeout { code: HOLD, .. }), "{error}");
    // The answer that comes too late is dropped.
    handler.held(1).await;
    handler.release().reply(Command::response(0));
    assert_eq!(client.request(Command::request(ECHO), LONG).await.unwrap().code, 0);

    let close = async {
        handler.held(1).await;
        server.connections()[0].close();
    };
    let (called, ()) = tokio::join!(client.request(Command::request(HOLD), LONG), close);
    assert!(matches!(called, Err(RemotingError::Closed { .. })));
    assert!(matches!(client.request(Command::request(ECHO), LONG).await, Err(RemotingError::Closed { .. })));
    assert!(client.is_closed());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let addr = std::net::TcpListener::bind(loopback()).unwrap().local_addr().unwrap();
    let error = Client::connect(addr, LONG).await.unwrap_err();
    assert_eq!(error.to_string(), format!("cannot connect to {addr}"));
}

#[tokio::test]
async fn a_server_calls_its_clients_and_pushes_to_them() {
    let (server, _) = server().await;
    let receiver = Arc::new(TestHandler::default());
    let client =
        Client::connect_with(server.local_addr(), LONG, Arc::clone(&receiver) as _, ConnectionOptions::default())
            .await
            .unwrap();
    assert_eq!(client.request(Command::request(ECHO), LONG).await.unwrap().code, 0);
    let connection = server.connections().remove(0);

    connection.oneway(Command::request(40)).unwrap();
    let answer = connection.request(Command::request(ECHO).with_body("ask"), LONG).await.unwrap();

    assert_eq!(answer.body, Body::from("ask"));
    assert_eq!(receiver.handled.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn pushes_are_in_the_encoding_of_the_peers_last_frame() {
    let (server, _) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    for encoding in [Encoding::Json, Encoding::Binary, Encoding::Json] {
        peer.call(&Command { encoding, ..request(ECHO, 1) }).await;
        server.connections()[0].oneway(Command::request(40)).unwrap();
        let push = peer.read().await.unwrap();
        assert_eq!((push.code, push.flag, push.encoding), (40, 2, encoding));
    }
}

#[tokio::test]
async fn shutdown_lets_what_is_in_flight_be_answered() {
    let (server, handler) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    peer.write(&encoded(&request(HOLD, 1))).await;
    handler.held(1).await;
    let answer = async {
        // Polled after `shutdown`, which has told the connection; now its task sees it.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        handler.release().reply(Command::response(0));
    };
    let (cut_off, ()) = tokio::join!(server.shutdown(LONG), answer);
    assert_eq!(cut_off, 0);
    assert_eq!(peer.read().await.unwrap().opaque, 1);
    assert_eq!(peer.read().await, None);
    assert!(TcpStream::connect(server.local_addr()).await.is_err());
}

#[tokio::test]
async fn shutdown_cuts_off_what_is_not_answered_in_time() {
    let (server, handler) = server().await;
    let mut peer = RawPeer::connect(&server).await;
    peer.write(&encoded(&request(HOLD, 1))).await;
    handler.held(1).await;
    assert_eq!(server.shutdown(Duration::from_millis(20)).await, 1);
    assert_eq!(peer.read().await, None);
    assert!(server.connections().is_empty());
}

#[tokio::test]
async fn what_was_sent_before_a_close_still_arrives() {
    let (server, handler) = server().await;
    let client = Client::connect(server.local_addr(), LONG).await.unwrap();
    client.oneway(Command::request(ECHO)).unwrap();
    within(client.close()).await;
    until(|| handler.handled.load(Ordering::Relaxed) == 1).await;
}

#[tokio::test]
async fn a_handler_can_be_tested_without_a_socket() {
    let connection = Connection::unconnected(loopback(), loopback());
    let request = request(ECHO, 3);
    let responder = Responder::new(&connection, &request);
    TestHandler::default().handle(&connection, request, responder);
    let sent = connection.take_sent();
    assert_eq!((sent.len(), sent[0].opaque, sent[0].flag), (1, 3, 1));
    assert_eq!(connection.unsent_bytes(), 0);
}
