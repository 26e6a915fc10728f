//! Pulling: a request made once, and what comes back walked without a copy.

use std::time::Instant;

use memchr::memmem;

use super::{BenchError, answer::Answer, link::Link};
use crate::{
    model::names,
    protocol::{
        Command, Encoding, RequestCode,
        frame::encode_whole,
        header::{PullHeader, pull_flag},
    },
    record::{
        RecordView,
        layout::{RECORD_BYTES_MIN, STORED_AT_AT},
    },
};

/// Response code of a pull that found messages.
const FOUND: i64 = 0;
/// Response code of a pull that passed messages over, and tells where to go on.
const RETRY_IMMEDIATELY: i64 = 20;
/// Stands where the offset goes.
const OFFSET_PLACE: &str = "888888888888888888";
/// Most messages of one pull where the number does not matter; a broker may give fewer.
const COUNT: i32 = 1024;

/// The frame of a pull, without its offset.
pub(super) struct PullTemplate {
    head: Vec<u8>,
    tail: Vec<u8>,
    binary: bool,
}

/// What an answer to a pull says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pulled {
    /// Whether there may be more right behind.
    pub(super) found: bool,
    /// Where to go on.
    pub(super) next: i64,
}

/// A message as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    /// The number in its unique key.
    pub(super) number: u64,
    /// Its place in its queue.
    pub(super) queue_offset: u64,
    /// Its place in the log.
    pub(super) physical_offset: u64,
    /// Its store time in milliseconds.
    pub(super) stored_ms: i64,
}

impl PullTemplate {
    /// A pull of `count` messages; with `hold_ms` it may be held for a message.
    pub(super) fn new(topic: &str, queue_id: i32, count: i32, hold_ms: Option<i64>, encoding: Encoding) -> Self {
        let hold = if hold_ms.is_some() { pull_flag::SUSPEND } else { 0 };
        let header = PullHeader {
            consumer_group: "TOOLS_CONSUMER".into(),
            topic: topic.into(),
            queue_id,
            queue_offset: OFFSET_PLACE.parse().expect("eighteen digits are a number"),
            max_msg_nums: count,
            sys_flag: pull_flag::SUBSCRIPTION | hold,
            commit_offset: 0,
            suspend_timeout_ms: hold_ms.unwrap_or(0),
            subscription: Some("*".into()),
            sub_version: 0,
            expression_type: Some("TAG".into()),
            max_msg_bytes: None,
            broker_name: None,
        };
        let mut command = Command::request(RequestCode::PULL_MESSAGE).with_ext(header.encode());
        command.encoding = encoding;
        let frame = encode_whole(&command).expect("a pull is far below the frame limit");
        let at = memmem::find(&frame, OFFSET_PLACE.as_bytes()).expect("the offset is in the frame it was put into");
        let tail = frame[at + OFFSET_PLACE.len()..].to_vec();
        Self { head: frame[..at].to_vec(), tail, binary: encoding == Encoding::Binary }
    }

    /// Writes the pull at `offset` into `output`, which is emptied before.
    pub(super) fn write(&self, output: &mut Vec<u8>, offset: i64) {
        output.clear();
        output.extend_from_slice(&self.head);
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = offset.max(0);
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let digits = &digits[at..];
        output.extend_from_slice(digits);
        output.extend_from_slice(&self.tail);
        let shorter = (OFFSET_PLACE.len() - digits.len()) as u32;
        let mut shorten = |at: usize, by: u32| {
            let field = &mut output[at..at + 4];
            let value = field.iter().fold(0_u32, |value, byte| value << 8 | u32::from(*byte)) - by;
            field.copy_from_slice(&value.to_be_bytes());
        };
        shorten(0, shorter);
        // Its first byte is the encoding, which the lengths do not reach.
        shorten(4, shorter);
        if self.binary {
            shorten(self.head.len() - 4, shorter);
            shorten(self.ext_length_at(), shorter);
        }
    }

    /// Where a binary header says how long its ext fields are: behind the prefix, the fixed fields and an empty remark.
    fn ext_length_at(&self) -> usize {
        8 + 13 + 4
    }
}

impl Pulled {
    /// What this answer to a pull at `offset` says.
    pub(super) fn of(answer: Answer<'_>, offset: i64) -> Self {
        let code = answer.code().unwrap_or(-1);
        let next = answer.ext_number("nextBeginOffset").unwrap_or(offset);
        Self { found: code == FOUND || code == RETRY_IMMEDIATELY, next }
    }

    /// The records of this answer, if it is one that found some.
    pub(super) fn records(answer: Answer<'_>) -> RecordBytes<'_> {
        RecordBytes(if answer.code() == Some(FOUND) { answer.body } else { &[] })
    }
}

/// The bytes of each record of an answer: only their lengths are read.
pub(super) struct RecordBytes<'a>(&'a [u8]);

impl<'a> Iterator for RecordBytes<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let total = u32::from_be_bytes(*self.0.first_chunk::<4>()?) as usize;
        let (record, rest) = self.0.split_at_checked(total.max(RECORD_BYTES_MIN))?;
        self.0 = rest;
        Some(record)
    }
}

/// The store time of a record, in milliseconds.
pub(super) fn stored_ms(record: &[u8]) -> i64 {
    // Behind a born host that is an IPv4 address, as all of this generator's are if the broker listens on one.
    record
        .get(STORED_AT_AT..STORED_AT_AT + 8)
        .map_or(0, |bytes| bytes.iter().fold(0, |ms, byte| ms << 8 | i64::from(*byte)))
}

/// Reads a queue from `offset` on while `go_on` says so, which is told the records of each answer and the moment it came; only those whose
/// keys begin with `run` are given.
pub(super) fn read_queue(
    link: &mut Link,
    (topic, queue_id): (&str, i32),
    mut offset: i64,
    run: u64,
    hold_ms: Option<i64>,
    mut go_on: impl FnMut(&[Stored], Instant, bool) -> bool,
) -> Result<(), BenchError> {
    let template = PullTemplate::new(topic, queue_id, COUNT, hold_ms, Encoding::Json);
    let mut output = Vec::new();
    let mut stored = Vec::new();
    let prefix = format!("{run:016X}");
    loop {
        template.write(&mut output, offset);
        link.write(&output)?;
        stored.clear();
        let (pulled, came) = loop {
            link.read(None)?;
            let came = Instant::now();
            let mut pulled = None;
            let mut strange = None;
            link.answers(|answer| {
                pulled = Some(Pulled::of(answer, offset));
                for record in Pulled::records(answer) {
                    match summary(record, &prefix) {
                        Ok(one) => stored.extend(one),
                        Err(error) => strange = Some(error.to_string()),
                    }
                }
                Ok(())
            })?;
            if let Some(strange) = strange {
                return Err(link.strange(strange));
            }
            if let Some(pulled) = pulled {
                break (pulled, came);
            }
        };
        offset = pulled.next.max(offset);
        if !go_on(&stored, came, pulled.found) {
            return Ok(());
        }
    }
}

/// Reads a queue from `offset` on to its end.
pub(super) fn read_to_end(
    link: &mut Link,
    queue: (&str, i32),
    offset: i64,
    run: u64,
) -> Result<Vec<Stored>, BenchError> {
    let mut all = Vec::new();
    let each = |stored: &[Stored], _, found| {
        all.extend_from_slice(stored);
        found
    };
    read_queue(link, queue, offset, run, None, each)?;
    Ok(all)
}

/// What counts of a record; `None` if its key is of another run.
fn summary(record: &[u8], prefix: &str) -> Result<Option<Stored>, crate::record::RecordError> {
    let view = RecordView::parse(record)?;
    let number = view.properties().get(names::UNIQ_KEY).and_then(|key| key.strip_prefix(prefix));
    Ok(number.and_then(|number| u64::from_str_radix(number, 16).ok()).map(|number| Stored {
        number,
        queue_offset: view.queue_offset().0,
        physical_offset: view.physical_offset().0,
        stored_ms: view.stored_at().0,
    }))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::protocol::frame::decode;

    #[test]
    fn a_pull_asks_for_its_offset_in_both_encodings() {
        for encoding in [Encoding::Json, Encoding::Binary] {
            let template = PullTemplate::new("T", 3, 32, Some(1000), encoding);
            let mut output = Vec::new();
            for offset in [0, 7, 1_234_567, i64::MAX / 100] {
                template.write(&mut output, offset);

                let mut input = BytesMut::from(&output[..]);
                let command = decode(&mut input).unwrap().unwrap();
                assert!(input.is_empty());
                let header = PullHeader::decode(&command.ext).unwrap();
                assert_eq!((header.queue_offset, header.queue_id, header.max_msg_nums), (offset, 3, 32));
                assert_eq!(header.subscription.as_deref(), Some("*"));
            }
        }
    }

    #[test]
    fn records_are_walked_by_their_lengths_and_what_is_cut_is_left() {
        let mut bytes = Vec::new();
        for length in [100_u32, 92, 200] {
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.resize(bytes.len() + length as usize - 4, 7);
        }
        let lengths = |bytes: &[u8]| RecordBytes(bytes).map(<[u8]>::len).collect::<Vec<_>>();

        assert_eq!(lengths(&bytes), [100, 92, 200]);
        assert_eq!(lengths(&bytes[..bytes.len() - 1]), [100, 92]);
        assert_eq!(lengths(&[0; 500]), [92; 5], "a length of zero does not hold up the walk");
    }
}
