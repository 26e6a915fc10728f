//! One connection to a broker, with blocking calls.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use super::{BenchError, Load, answer::Answer, report::Growth};
use crate::{
    model::DelayText,
    protocol::{
        Command, RequestCode, ResponseCode,
        frame::{decode, encode_whole},
    },
};

/// The topic of what waits.
pub(super) const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// How long acknowledged messages may take to come into their queues, and the pause between two looks.
const QUEUED_PATIENCE: Duration = Duration::from_secs(2);
const QUEUED_LOOK: Duration = Duration::from_millis(20);
/// In how many queues at most entries are counted.
const COUNTED_QUEUES_MAX: usize = 4096;

/// How long a connection may take to be made, and the next answer to come.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How much is read at once.
const READ_BYTES: usize = 256 * 1024;

/// A connection.
pub(super) struct Link {
    pub(super) address: String,
    stream: TcpStream,
    input: Vec<u8>,
    from: usize,
    to: usize,
}

impl Link {
    /// Connects.
    pub(super) fn new(address: &str) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Io { address: address.to_owned(), source };
        let target = address.to_socket_addrs().map_err(failed)?.next();
        let target = target.ok_or_else(|| failed(io::ErrorKind::AddrNotAvailable.into()))?;
        let stream = TcpStream::connect_timeout(&target, TIMEOUT).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
        Ok(Self { address: address.to_owned(), stream, input: vec![0; READ_BYTES], from: 0, to: 0 })
    }

    pub(super) fn failed(&self, source: io::Error) -> BenchError {
        BenchError::Io { address: self.address.clone(), source }
    }

    pub(super) fn strange(&self, what: impl Into<String>) -> BenchError {
        BenchError::Strange { address: self.address.clone(), what: what.into() }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        self.stream.write_all(bytes).map_err(|source| self.failed(source))
    }

    /// Waits for bytes, at most until `until`, and reads what is there; says whether anything came.
    pub(super) fn read(&mut self, until: Option<Instant>) -> Result<bool, BenchError> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.to == self.input.len() {
            self.input.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            if self.to == self.input.len() {
                self.input.resize(self.to * 2, 0);
            }
        }
        if let Some(until) = until {
            let left = until.saturating_duration_since(Instant::now());
            let nanos = i64::from(left.subsec_nanos());
            let timeout = Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: nanos };
            let mut events = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN)];
            let ready = poll(&mut events, Some(&timeout));
            if matches!(ready, Ok(0) | Err(Errno::INTR)) {
                return Ok(false);
            }
            ready.map_err(|error| self.failed(error.into()))?;
        }
        let read = self.stream.read(&mut self.input[self.to..]);
        match read {
            Ok(0) => Err(self.failed(io::ErrorKind::UnexpectedEof.into())),
            Ok(bytes) => {
                self.to += bytes;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(self.failed(io::ErrorKind::TimedOut.into())),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Gives each whole answer that is there to `each`.
    pub(super) fn answers(
        &mut self,
        mut each: impl FnMut(Answer<'_>) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        while let Some(answer) = Answer::first(&self.input[self.from..self.to]) {
            self.from += answer.bytes;
            each(answer)?;
        }
        Ok(())
    }

    /// Asks and waits for the answer. Not to be mixed with requests in flight.
    pub(super) fn ask(&mut self, request: &Command) -> Result<Command, BenchError> {
        let bytes = encode_whole(request).map_err(|error| self.strange(error.to_string()))?;
        self.write(&bytes)?;
        let until = Instant::now() + TIMEOUT;
        loop {
            let mut input = BytesMut::from(&self.input[self.from..self.to]);
            let before = input.len();
            let answer = decode(&mut input).map_err(|error| self.strange(error.to_string()))?;
            self.from += before - input.len();
            // Requests of the broker, such as notices of members, are passed over.
            if let Some(answer) = answer.filter(Command::is_response) {
                return Ok(answer);
            }
            if !self.read(Some(until))? && Instant::now() >= until {
                return Err(self.failed(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    /// Asks for what has to succeed.
    pub(super) fn call(&mut self, request: &Command) -> Result<Command, BenchError> {
        let answer = self.ask(request)?;
        if answer.code == ResponseCode::SUCCESS {
            return Ok(answer);
        }
        Err(BenchError::Refused {
            address: self.address.clone(),
            request: RequestCode::name(request.code).unwrap_or("a request"),
            code: answer.code,
            remark: answer.remark.unwrap_or_default(),
        })
    }

    /// Creates a topic, or changes one that is there.
    pub(super) fn create_topic(&mut self, topic: &str, queues: i32) -> Result<(), BenchError> {
        let queues = queues.to_string();
        let ext = [
            ("topic", topic),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", queues.as_str()),
            ("writeQueueNums", queues.as_str()),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ];
        let request = Command::request(RequestCode::UPDATE_AND_CREATE_TOPIC).with_ext(ext.iter().copied().collect());
        self.call(&request).map(drop)
    }

    /// The queue offset that the next message of a queue gets.
    pub(super) fn max_offset(&mut self, topic: &str, queue_id: i32) -> Result<i64, BenchError> {
        let queue_id = queue_id.to_string();
        let ext = [("topic", topic), ("queueId", queue_id.as_str())];
        let request = Command::request(RequestCode::GET_MAX_OFFSET).with_ext(ext.iter().copied().collect());
        let answer = self.call(&request)?;
        let offset = answer.ext.get("offset").and_then(|offset| offset.parse().ok());
        offset.ok_or_else(|| self.strange("no offset in the answer"))
    }

    /// The end of the commit log, if the broker tells.
    pub(super) fn log_end(&mut self) -> Option<i64> {
        let answer = self.call(&Command::request(RequestCode::GET_BROKER_RUNTIME_INFO)).ok()?;
        let info: serde_json::Value = serde_json::from_slice(&answer.body.to_bytes()).ok()?;
        info["table"]["commitLogMaxOffset"].as_str()?.parse().ok()
    }

    /// The sum of the ends of the queues of a load's topics.
    pub(super) fn ends(&mut self, load: &Load) -> Result<i64, BenchError> {
        let mut sum = 0;
        for topic in load.topic_names() {
            for queue_id in 0..load.queues {
                sum += self.max_offset(&topic, queue_id)?;
            }
        }
        Ok(sum)
    }

    /// How long each delay level waits, by the broker's own word.
    pub(super) fn level_durations(&mut self) -> Result<Vec<Duration>, BenchError> {
        let answer = self.call(&Command::request(RequestCode::GET_BROKER_CONFIG))?;
        let text = String::from_utf8_lossy(&answer.body.to_bytes()).into_owned();
        let table = text.lines().find_map(|line| line.strip_prefix("messageDelayLevel="));
        let table = table.ok_or_else(|| self.strange("no messageDelayLevel in its configuration"))?;
        let duration = |token: &str| token.parse().ok().map(|DelayText(delay)| delay);
        let durations: Option<Vec<_>> = table.replace("\\ ", " ").split_whitespace().map(duration).collect();
        durations.ok_or_else(|| self.strange(format!("messageDelayLevel={table}")))
    }
}

/// How far a broker's log and the queues of a load reach.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    bytes: i64,
    queued: Option<i64>,
}

impl Extent {
    /// How far they reach now; `None` if the broker does not tell. Entries of very many queues are not counted.
    pub(super) fn of(link: &mut Link, load: &Load) -> Option<Self> {
        let bytes = link.log_end()?;
        let mut queued = None;
        if load.turns().places() <= COUNTED_QUEUES_MAX {
            let waiting = load.levels.levels().into_iter().map(|level| level as i32 - 1);
            let waiting: i64 = waiting.map(|id| link.max_offset(SCHEDULE_TOPIC, id).unwrap_or(0)).sum();
            queued = link.ends(load).ok().map(|ends| ends + waiting);
        }
        Some(Self { bytes, queued })
    }

    /// How they grew, once the queues have got all that was acknowledged: a broker may fill them later.
    pub(super) fn growth(self, load: &Load, acknowledged: u64) -> Option<Growth> {
        let mut link = Link::new(&load.address).ok()?;
        let begun = Instant::now();
        loop {
            let now = Self::of(&mut link, load)?;
            let queued = now.queued.zip(self.queued).map(|(now, was)| now - was);
            if queued.is_none_or(|queued| queued >= acknowledged.cast_signed()) || begun.elapsed() > QUEUED_PATIENCE {
                return Some(Growth { bytes: now.bytes - self.bytes, queued });
            }
            thread::sleep(QUEUED_LOOK);
        }
    }
}
