//! What was sent, what of it was acknowledged, and what consumers saw.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use latermq::{model::retry_topic, record::Record};

use crate::client::{Message, key_of, now_ms};

/// The ledger; many threads write into it.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<Book>);

/// Its content.
#[derive(Debug, Default, Clone)]
pub(crate) struct Book {
    /// What was sent, by where it must arrive: topic and key.
    pub(crate) sent: BTreeMap<(String, String), Sent>,
    /// What was seen where: topic, queue, queue offset.
    pub(crate) seen: HashMap<(String, i32, i64), Seen>,
}

/// A message that was sent, or given back for a retry.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) message: Message,
    /// The queue it must arrive in; `None` if the broker picks one.
    pub(crate) queue_id: Option<i32>,
    pub(crate) acknowledged: bool,
    /// The queue offset that the answer told: of the level's queue for a delayed message.
    pub(crate) queue_offset: Option<i64>,
}

/// What a consumer saw in a place.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) key: String,
    /// By the wall clock, in milliseconds since the epoch.
    pub(crate) at: i64,
}

impl Ledger {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the content as it is now.
    pub(crate) fn copy(&self) -> Book {
        self.book().clone()
    }

    /// A message is about to be sent. Each is sent once.
    pub(crate) fn sending(&self, message: &Message) {
        let sent = Sent {
            message: message.clone(),
            queue_id: Some(message.queue_id),
            acknowledged: false,
            queue_offset: None,
        };
        let before = self.book().sent.insert(place(message), sent);
        assert!(before.is_none(), "{message:?} is sent twice by this test");
    }

    /// The message was answered SEND_OK.
    pub(crate) fn acknowledged(&self, message: &Message, queue_offset: i64) {
        let mut book = self.book();
        let sent = book.sent.get_mut(&place(message)).unwrap();
        sent.acknowledged = true;
        sent.queue_offset = Some(queue_offset);
    }

    /// As [`Ledger::acknowledged`], where nobody told the queue offset.
    pub(crate) fn acknowledged_somewhere(&self, message: &Message) {
        self.book().sent.get_mut(&place(message)).unwrap().acknowledged = true;
    }

    /// A message is about to be given back by a group. Says whether it was not before.
    pub(crate) fn giving_back(&self, group: &str, key: &str, bytes: usize, level: usize) -> bool {
        let message = Message::new(retry_topic(group).as_str(), 0, level, key).bytes(bytes);
        let mut book = self.book();
        if book.sent.contains_key(&place(&message)) {
            return false;
        }
        let sent = Sent { queue_id: None, acknowledged: false, queue_offset: None, message };
        book.sent.insert(place(&sent.message), sent);
        true
    }

    /// The broker took it back.
    pub(crate) fn given_back(&self, group: &str, key: &str) {
        let place = (retry_topic(group).as_str().to_owned(), key.to_owned());
        self.book().sent.get_mut(&place).unwrap().acknowledged = true;
    }

    /// A consumer got these records.
    pub(crate) fn saw(&self, records: &[Record]) {
        let at = now_ms();
        let mut book = self.book();
        for record in records {
            let view = record.view();
            let queue_id = i32::try_from(view.queue_id().0).unwrap();
            let queue_offset = i64::try_from(view.queue_offset().0).unwrap();
            let place = (view.topic().to_owned(), queue_id, queue_offset);
            let seen = Seen { key: key_of(record), at };
            let first = book.seen.entry(place.clone()).or_insert_with(|| seen.clone());
            assert_eq!(first.key, seen.key, "another message stands at {place:?} now");
        }
    }
}

fn place(message: &Message) -> (String, String) {
    (message.topic.clone(), message.key.clone())
}
