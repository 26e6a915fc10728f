//! The remoting command: one request or one response.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::ext::ExtFields;
use super::language::Language;

/// Version number this broker shows to clients: 5.3.3.
///
/// Source: Apache RocketMQ, ordinal in `org.apache.rocketmq.common.MQVersion`.
pub const VERSION: i32 = 479;

/// Flag bit of a response.
const RESPONSE: i32 = 1;
/// Flag bit of a request that wants no response.
const ONEWAY: i32 = 2;

/// How the header of a command is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    /// A JSON object; type byte 0.
    #[default]
    Json,
    /// RocketMQ's binary header; type byte 1. Codes beyond 16 bits are truncated.
    Binary,
}

/// One request or response.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.remoting.protocol.RemotingCommand`.
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// Request code or response code.
    pub code: i32,
    /// Language of the sender.
    pub language: Language,
    /// Version of the sender, an ordinal of RocketMQ's list of versions.
    pub version: i32,
    /// Number that a response repeats from its request.
    pub opaque: i32,
    /// Bit 0: response; bit 1: no response wanted.
    pub flag: i32,
    /// Error text or status name.
    pub remark: Option<String>,
    /// Header fields.
    pub ext: ExtFields,
    /// Body, not interpreted here.
    pub body: Body,
    /// How the header was or will be written.
    pub encoding: Encoding,
}

impl Command {
    /// A request with that code: JSON, language JAVA, our version, opaque 0 (the connection numbers it).
    pub fn request(code: i32) -> Command {
        Command {
            code,
            language: Language::JAVA,
            version: VERSION,
            opaque: 0,
            flag: 0,
            remark: None,
            ext: ExtFields::new(),
            body: Body::EMPTY,
            encoding: Encoding::Json,
        }
    }

    /// A response that no request is at hand for; a `Responder` fills in opaque and encoding.
    pub fn response(code: i32) -> Command {
        Command { flag: RESPONSE, ..Command::request(code) }
    }

    /// A response to this request: its opaque, its encoding, flag bit 0.
    #[must_use]
    pub fn reply(&self, code: i32) -> Command {
        Command { opaque: self.opaque, encoding: self.encoding, ..Command::response(code) }
    }

    /// Sets the remark.
    #[must_use]
    pub fn with_remark(mut self, remark: impl Into<String>) -> Command {
        self.remark = Some(remark.into());
        self
    }

    /// Sets all header fields.
    #[must_use]
    pub fn with_ext(mut self, ext: ExtFields) -> Command {
        self.ext = ext;
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Body>) -> Command {
        self.body = body.into();
        self
    }

    /// Marks a request as wanting no response.
    #[must_use]
    pub fn with_oneway(mut self) -> Command {
        self.flag |= ONEWAY;
        self
    }

    /// Whether this is a response (flag bit 0).
    pub fn is_response(&self) -> bool {
        self.flag & RESPONSE != 0
    }

    /// Whether the sender wants no response (flag bit 1).
    pub fn is_oneway(&self) -> bool {
        self.flag & ONEWAY != 0
    }
}

/// The body of a command: any number of byte slices, sent back to back without being joined.
///
/// A pull reply is many slices of the mapped log.
#[derive(Clone, Default)]
pub struct Body(Slices, Option<Guard>);

/// Tells whether slices can still be believed: asked before they are written out, and after.
pub type Guard = Arc<dyn Fn() -> bool + Send + Sync>;

#[derive(Debug, Clone, Default)]
enum Slices {
    #[default]
    None,
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Body {
    /// No body.
    pub const EMPTY: Body = Body(Slices::None, None);

    /// The same slices, which may cease to be what they are: once `guard` says no, they must not be written out.
    #[must_use]
    pub fn guarded(mut self, guard: Guard) -> Self {
        self.1 = Some(guard);
        self
    }

    /// Who tells whether the slices can be believed, if that is a question.
    pub fn guard(&self) -> Option<&Guard> {
        self.1.as_ref()
    }

    /// Length of all slices together, in bytes.
    pub fn len(&self) -> usize {
        self.slices().iter().map(Bytes::len).sum()
    }

    /// Whether there is not one byte.
    pub fn is_empty(&self) -> bool {
        self.slices().iter().all(Bytes::is_empty)
    }

    /// The slices in order.
    pub fn slices(&self) -> &[Bytes] {
        match &self.0 {
            Slices::None => &[],
            Slices::One(slice) => std::slice::from_ref(slice),
            Slices::Many(slices) => slices,
        }
    }

    /// The slices in order, given away.
    pub fn into_slices(self) -> impl Iterator<Item = Bytes> {
        let (one, many) = match self.0 {
            Slices::None => (None, Vec::new()),
            Slices::One(slice) => (Some(slice), Vec::new()),
            Slices::Many(slices) => (None, slices),
        };
        one.into_iter().chain(many)
    }

    /// The whole body in one piece; copies only when there are several slices.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            Slices::None => Bytes::new(),
            Slices::One(slice) => slice.clone(),
            Slices::Many(slices) => slices.concat().into(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Body").field(&self.0).finish()
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Body) -> bool {
        self.to_bytes() == other.to_bytes()
    }
}

impl From<Bytes> for Body {
    fn from(slice: Bytes) -> Self {
        Body(if slice.is_empty() { Slices::None } else { Slices::One(slice) }, None)
    }
}

impl From<Vec<Bytes>> for Body {
    fn from(slices: Vec<Bytes>) -> Self {
        Body(Slices::Many(slices), None)
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Body::from(Bytes::from(bytes))
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Body::from(Bytes::from(text))
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Body::from(Bytes::from_static(text.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_keeps_opaque_and_encoding_of_its_request() {
        let mut request = Command::request(10);
        request.opaque = 77;
        request.encoding = Encoding::Binary;

        let reply = request.reply(0);

        assert!(reply.is_response() && !reply.is_oneway());
        assert_eq!((reply.opaque, reply.encoding, reply.version), (77, Encoding::Binary, 479));
    }

    #[test]
    fn a_body_of_several_slices_is_their_concatenation() {
        let body = Body::from(vec![Bytes::from_static(b"ab"), Bytes::new(), Bytes::from_static(b"c")]);
        assert_eq!(body.len(), 3);
        assert_eq!(body, Body::from("abc"));
        assert_eq!(body.into_slices().count(), 3);
    }
}
