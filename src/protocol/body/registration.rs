//! Body of REGISTER_BROKER, plain and compressed.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};

use super::topic::{DataVersion, TopicConfig, TopicConfigs};
use crate::protocol::json::{self, Dialect, JsonError};

/// Longest registration accepted, in bytes after decompression: some hundred thousand topics.
pub const REGISTRATION_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Versions before 3.0.11 send a bare table of topics.
const WRAPPED_VERSION: i32 = 37;

/// Body of code 103: the topics of a broker.
///
/// Plain it is JSON. Compressed it is a zlib stream of
///
/// ```text
/// i32 length | data version as JSON
/// i32 count  | per topic: i32 length | `name readQueues writeQueues perm filterType attributesJson`
/// i32 length | filter servers as a JSON array
/// i32 count  | per mapped topic: i32 length | JSON          (only from version 413 on; not kept)
/// ```
///
/// where versions before 5.0 leave the attributes out; flags and order of a topic do not travel in this form.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.remoting.protocol.body.RegisterBrokerBody`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RegisterBrokerBody {
    /// Obsolete; always written.
    pub filter_server_list: Vec<String>,
    /// The topics with their version.
    pub topic_config_serialize_wrapper: TopicConfigs,
}

/// A registration that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// A JSON part is wrong.
    #[error("registration body: {0}")]
    Json(#[from] JsonError),
    /// The zlib stream is broken.
    #[error("registration body cannot be decompressed")]
    Zlib(#[source] std::io::Error),
    /// Longer than [`REGISTRATION_BYTES_MAX`].
    #[error("registration body is longer than {REGISTRATION_BYTES_MAX} bytes")]
    TooLong,
    /// A length runs over the end.
    #[error("registration body ends at byte {at} within a part")]
    Short {
        /// Where the part begins.
        at: usize,
    },
    /// A topic's text is not as it must be.
    #[error("registration body holds a bad topic: {text:?}")]
    Topic {
        /// The text.
        text: String,
    },
}

/// Checksum a registration carries in its header: CRC-32 of the body as sent, without the sign bit.
pub fn body_crc32(body: &[u8]) -> i32 {
    (crc32fast::hash(body) & 0x7FFF_FFFF) as i32
}

impl RegisterBrokerBody {
    /// Reads the body a broker of `version` sent. An empty body counts as no topics of version 0.
    ///
    /// # Errors
    /// The body is not what the header says it is.
    pub fn decode(body: &[u8], compressed: bool, version: i32) -> Result<RegisterBrokerBody, RegistrationError> {
        if body.is_empty() {
            return Ok(RegisterBrokerBody::default());
        }
        if compressed {
            return decode_compressed(body);
        }
        if version < WRAPPED_VERSION {
            let topic_config_serialize_wrapper = json::from_slice(body)?;
            return Ok(RegisterBrokerBody { topic_config_serialize_wrapper, ..RegisterBrokerBody::default() });
        }
        Ok(json::from_slice(body)?)
    }

    /// Writes the body.
    pub fn encode(&self, compressed: bool) -> Vec<u8> {
        if !compressed {
            return json::to_vec(Dialect::Fastjson, self);
        }
        let configs = &self.topic_config_serialize_wrapper;
        let mut plain = Vec::new();
        put_sized(&mut plain, &json::to_vec(Dialect::Fastjson, &configs.data_version));
        plain.extend_from_slice(&(configs.topic_config_table.len() as i32).to_be_bytes());
        for topic in configs.topic_config_table.values() {
            let attributes = String::from_utf8_lossy(&json::to_vec(Dialect::Fastjson, &topic.attributes)).into_owned();
            let text = format!(
                "{} {} {} {} {} {attributes}",
                topic.topic_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_filter_type
            );
            put_sized(&mut plain, text.as_bytes());
        }
        put_sized(&mut plain, &json::to_vec(Dialect::Fastjson, &self.filter_server_list));
        plain.extend_from_slice(&0_i32.to_be_bytes());
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        // Writing into a vector cannot fail.
        let _ = encoder.write_all(&plain);
        encoder.finish().unwrap_or_default()
    }
}

fn put_sized(output: &mut Vec<u8>, bytes: &[u8]) {
    output.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    output.extend_from_slice(bytes);
}

fn decode_compressed(body: &[u8]) -> Result<RegisterBrokerBody, RegistrationError> {
    let mut plain = Vec::new();
    let limit = REGISTRATION_BYTES_MAX as u64 + 1;
    ZlibDecoder::new(body).take(limit).read_to_end(&mut plain).map_err(RegistrationError::Zlib)?;
    if plain.len() > REGISTRATION_BYTES_MAX {
        return Err(RegistrationError::TooLong);
    }
    let mut input = Input { plain: &plain, at: 0 };
    let data_version: DataVersion = json::from_slice(input.sized()?)?;
    let mut configs = TopicConfigs { data_version, ..TopicConfigs::default() };
    for _ in 0..input.i32()? {
        let topic = topic(&String::from_utf8_lossy(input.sized()?))?;
        configs.topic_config_table.insert(topic.topic_name.clone(), topic);
    }
    let filter_server_list = json::from_slice(input.sized()?)?;
    Ok(RegisterBrokerBody { filter_server_list, topic_config_serialize_wrapper: configs })
}

fn topic(text: &str) -> Result<TopicConfig, RegistrationError> {
    let bad = || RegistrationError::Topic { text: text.to_owned() };
    let mut parts = text.splitn(6, ' ');
    let mut part = || parts.next().ok_or_else(bad);
    let number = |text: &str| text.parse::<i32>().map_err(|_| bad());
    Ok(TopicConfig {
        topic_name: part()?.to_owned(),
        read_queue_nums: number(part()?)?,
        write_queue_nums: number(part()?)?,
        perm: number(part()?)?,
        topic_filter_type: part()?.to_owned(),
        attributes: match part() {
            Ok(attributes) if !attributes.trim().is_empty() => json::from_slice(attributes.as_bytes())?,
            _ => Default::default(),
        },
        ..TopicConfig::default()
    })
}

struct Input<'a> {
    plain: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn i32(&mut self) -> Result<i32, RegistrationError> {
        let bytes = self.plain[self.at..].first_chunk().ok_or(RegistrationError::Short { at: self.at })?;
        self.at += 4;
        Ok(i32::from_be_bytes(*bytes))
    }

    fn sized(&mut self) -> Result<&'a [u8], RegistrationError> {
        let short = RegistrationError::Short { at: self.at };
        let length = self.i32()?;
        let rest = &self.plain[self.at..];
        let Some(part) = usize::try_from(length).ok().and_then(|length| rest.get(..length)) else {
            return Err(short);
        };
        self.at += part.len();
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn registration(topics: &[&str]) -> RegisterBrokerBody {
        let topic = |name: &&str| {
            let config = TopicConfig {
                topic_name: (*name).to_owned(),
                read_queue_nums: 4,
                write_queue_nums: 3,
                attributes: BTreeMap::from([("message.type".to_owned(), "DELAY".to_owned())]),
                ..TopicConfig::default()
            };
            ((*name).to_owned(), config)
        };
        RegisterBrokerBody {
            filter_server_list: Vec::new(),
            topic_config_serialize_wrapper: TopicConfigs {
                data_version: DataVersion { counter: 7, state_version: 0, timestamp: 1_700_000_000_000 },
                topic_config_table: topics.iter().map(topic).collect(),
            },
        }
    }

    #[test]
    fn remoting_23_a_compressed_registration_reads_back() {
        let body = registration(&["A", "%RETRY%g"]);
        for compressed in [false, true] {
            assert_eq!(RegisterBrokerBody::decode(&body.encode(compressed), compressed, 479).unwrap(), body);
        }
    }

    #[test]
    fn a_topic_of_five_words_has_no_attributes() {
        let topic = topic("T 8 8 7 SINGLE_TAG").unwrap();
        assert_eq!((topic.perm, topic.attributes.len()), (7, 0));
        assert!(super::topic("T 8 x 7 SINGLE_TAG").is_err());
    }

    #[test]
    fn the_checksum_has_no_sign_bit() {
        assert_eq!(body_crc32(b"123456789"), 1_274_296_614);
        assert_eq!(body_crc32(b""), 0);
    }

    #[test]
    fn a_registration_that_grows_beyond_the_limit_is_refused() {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&vec![0; REGISTRATION_BYTES_MAX + 1]).unwrap();
        let body = encoder.finish().unwrap();
        assert!(matches!(RegisterBrokerBody::decode(&body, true, 479), Err(RegistrationError::TooLong)));
    }

    proptest! {
        #[test]
        fn cut_or_changed_registrations_never_panic(at in 0_usize..200, bit in 0_u8..8, cut in any::<bool>()) {
            let plain = {
                let mut plain = Vec::new();
                ZlibDecoder::new(&*registration(&["A", "B"]).encode(true)).read_to_end(&mut plain).unwrap();
                plain
            };
            let mut bytes = plain.clone();
            let at = at % bytes.len();
            if cut { bytes.truncate(at) } else { bytes[at] ^= 1 << bit }
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&bytes).unwrap();
            let _ = RegisterBrokerBody::decode(&encoder.finish().unwrap(), true, 479);
        }
    }
}
