//! Reading what is stored: the records of a queue, whole.

use std::time::Instant;

use bytes::Bytes;

use super::{BenchError, link::Link};
use crate::{
    model::names,
    protocol::{
        Command, RequestCode,
        frame::encode_whole,
        header::{PullHeader, pull_flag},
    },
    record::{Record, Records},
};

/// A message as it is stored.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    /// Its unique key.
    pub(super) key: String,
    /// Its store time in milliseconds.
    pub(super) stored_ms: i64,
    /// Its delay level, 0 for none.
    pub(super) level: u32,
}

/// The frame of a pull of `count` messages; with `hold_ms` it may be held for a message.
pub(super) fn pull_request(topic: &str, queue_id: i32, offset: i64, count: i32, hold_ms: Option<i64>) -> Vec<u8> {
    let hold = if hold_ms.is_some() { pull_flag::SUSPEND } else { 0 };
    let header = PullHeader {
        consumer_group: "TOOLS_CONSUMER".into(),
        topic: topic.into(),
        queue_id,
        queue_offset: offset,
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
    let command = Command::request(RequestCode::PULL_MESSAGE).with_ext(header.encode());
    encode_whole(&command).expect("a pull is far below the frame limit").to_vec()
}

/// Reads a queue from `offset` on until `end`; gives each record and the moment it came.
pub(super) fn read_queue(
    link: &mut Link,
    topic: &str,
    queue_id: i32,
    mut offset: i64,
    mut each: impl FnMut(&Record, Instant),
    mut go_on: impl FnMut(i64, bool) -> bool,
    hold_ms: Option<i64>,
) -> Result<i64, BenchError> {
    loop {
        link.write(&pull_request(topic, queue_id, offset, 1024, hold_ms))?;
        let mut answered = None;
        while answered.is_none() {
            link.read(None)?;
            let came = Instant::now();
            let address = link.address.clone();
            link.answers(|answer| {
                let code = answer.code().unwrap_or(-1);
                let next = answer.ext_number("nextBeginOffset").unwrap_or(offset);
                if code == 0 {
                    for record in Records::new(Bytes::copy_from_slice(answer.body)) {
                        let record = record.map_err(|error| BenchError::Strange {
                            address: address.clone(),
                            what: error.to_string(),
                        })?;
                        each(&record, came);
                    }
                }
                answered = Some((code == 0 || code == 20, next));
                Ok(())
            })?;
        }
        let (found, next) = answered.unwrap_or((false, offset));
        offset = next.max(offset);
        if !go_on(offset, found) {
            return Ok(offset);
        }
    }
}

/// Reads a queue from `offset` on to its end.
pub(super) fn read_to_end(link: &mut Link, topic: &str, queue_id: i32, offset: i64) -> Result<Vec<Stored>, BenchError> {
    let mut stored = Vec::new();
    read_queue(link, topic, queue_id, offset, |record, _| stored.push(summary(record)), |_, found| found, None)?;
    Ok(stored)
}

/// What counts of a record.
pub(super) fn summary(record: &Record) -> Stored {
    let view = record.view();
    let property = |name: &str| view.properties().get(name).map(str::to_owned);
    Stored {
        key: property(names::UNIQ_KEY).unwrap_or_default(),
        stored_ms: view.stored_at().0,
        level: property(names::DELAY).and_then(|level| level.parse().ok()).unwrap_or(0),
    }
}
