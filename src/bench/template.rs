//! A request made once, and changed in place for each message.

use bytes::Bytes;
use memchr::memmem;

use super::load::Load;
use crate::{
    model::{Properties, names},
    protocol::{Command, Encoding, RequestCode, frame::encode_whole, header::SendHeader},
    record::{BatchMember, encode_batch},
};

/// Stands in the unique key where the number of the message goes: 16 hexadecimal digits.
const NUMBER_PLACE: &str = "kkkkkkkkkkkkkkkk";
/// Stands where the opaque goes: ten digits, or four bytes.
const OPAQUE_PLACE: i32 = 1_888_888_888;
/// Opaques begin here, so that all have ten digits.
const OPAQUE_BASE: u64 = 1_000_000_000;
/// How many opaques there are. A multiple of every power of two up to the most requests in flight, so that slots follow each other.
const OPAQUES: u64 = 1 << 29;
/// Stands where the born time goes: thirteen digits.
const BORN_PLACE: i64 = 1_999_999_999_999;

/// The frame of a send.
pub(super) struct Template {
    bytes: Vec<u8>,
    binary: bool,
    opaque_at: usize,
    born_at: usize,
    numbers_at: Vec<usize>,
}

impl Template {
    /// A send of `load.batch` messages to a queue, at a level or at none.
    pub(super) fn new(load: &Load, run: u64, topic: &str, queue_id: i32, level: Option<u32>) -> Self {
        let mut properties = Properties::new();
        properties.set(names::UNIQ_KEY, format!("{run:016X}{NUMBER_PLACE}"));
        properties.set(names::WAIT, if load.wait_stored { "true" } else { "false" });
        if let Some(level) = level {
            properties.set(names::DELAY, level.to_string());
        }
        let body = Bytes::from(vec![b'x'; load.body_bytes]);
        let header = SendHeader {
            producer_group: "latermq_bench".into(),
            topic: topic.into(),
            default_topic: "TBW102".into(),
            default_topic_queue_nums: load.queues,
            queue_id,
            sys_flag: 0,
            born_timestamp: BORN_PLACE,
            flag: 0,
            properties: Some(String::from_utf8_lossy(properties.as_bytes()).into_owned().into()),
            reconsume_times: Some(0),
            unit_mode: Some(false),
            max_reconsume_times: None,
            batch: Some(load.batch > 1),
            broker_name: None,
        };
        let (code, body) = if load.batch > 1 {
            let member = BatchMember { flag: 0, body, properties: Bytes::copy_from_slice(properties.as_bytes()) };
            let members = vec![member; load.batch];
            (
                RequestCode::SEND_BATCH_MESSAGE,
                encode_batch(&members).expect("members of one size below the frame limit"),
            )
        } else {
            (RequestCode::SEND_MESSAGE_V2, body)
        };
        let header = if load.batch > 1 { SendHeader { properties: None, ..header } } else { header };
        let mut command = Command::request(code).with_ext(header.encode_short()).with_body(body);
        command.opaque = OPAQUE_PLACE;
        command.encoding = load.encoding;
        let bytes = encode_whole(&command).expect("a frame below the frame limit").to_vec();
        let at = |what: &[u8]| memmem::find(&bytes, what).expect("the place is in the frame it was put into");
        Self {
            binary: load.encoding == Encoding::Binary,
            opaque_at: match load.encoding {
                Encoding::Json => at(OPAQUE_PLACE.to_string().as_bytes()),
                Encoding::Binary => at(&OPAQUE_PLACE.to_be_bytes()),
            },
            born_at: at(BORN_PLACE.to_string().as_bytes()),
            numbers_at: memmem::find_iter(&bytes, NUMBER_PLACE.as_bytes()).collect(),
            bytes,
        }
    }

    /// Messages of one request.
    pub(super) fn messages(&self) -> u64 {
        self.numbers_at.len() as u64
    }

    /// Appends the request with this number; its messages are numbered from `message` on.
    pub(super) fn write(&self, output: &mut Vec<u8>, request: u64, message: u64, born_ms: i64) {
        let start = output.len();
        output.extend_from_slice(&self.bytes);
        let frame = &mut output[start..];
        let opaque = OPAQUE_BASE + request % OPAQUES;
        if self.binary {
            frame[self.opaque_at..self.opaque_at + 4].copy_from_slice(&(opaque as u32).to_be_bytes());
        } else {
            decimal(&mut frame[self.opaque_at..self.opaque_at + 10], opaque);
        }
        decimal(&mut frame[self.born_at..self.born_at + 13], born_ms.unsigned_abs());
        for (number, at) in (message..).zip(&self.numbers_at) {
            hexadecimal(&mut frame[*at..*at + 16], number);
        }
    }
}

/// The number of a request whose opaque this is, counted from a multiple of [`OPAQUES`] on; `None` if no request of ours has it.
pub(super) fn request_of(opaque: u64) -> Option<u64> {
    opaque.checked_sub(OPAQUE_BASE).filter(|request| *request < OPAQUES)
}

fn decimal(digits: &mut [u8], mut value: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

fn hexadecimal(digits: &mut [u8], mut value: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789ABCDEF"[(value & 15) as usize];
        value >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::protocol::frame::decode;

    #[test]
    fn each_message_has_its_own_opaque_key_and_born_time() {
        for (batch, encoding) in
            [(1, Encoding::Json), (3, Encoding::Json), (1, Encoding::Binary), (3, Encoding::Binary)]
        {
            let load = Load { batch, body_bytes: 20, encoding, ..Load::default() };
            let template = Template::new(&load, 7, "T", 2, Some(3));
            let mut output = Vec::new();
            template.write(&mut output, 5, 255, 1_700_000_000_123);

            let command = decode(&mut BytesMut::from(&output[..])).unwrap().unwrap();
            assert_eq!(command.opaque, 1_000_000_005);
            let header = SendHeader::decode(command.code, &command.ext).unwrap();
            assert_eq!((header.born_timestamp, header.queue_id), (1_700_000_000_123, 2));
            assert_eq!(template.messages(), batch as u64);
            let whole = String::from_utf8_lossy(&output).into_owned();
            for number in 0..batch {
                let key = format!("0000000000000007{:016X}", 255 + number);
                assert!(whole.contains(&key), "{key} in {whole}");
            }
        }
    }
}
