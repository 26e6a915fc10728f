//! What can be set about a name server.

use std::time::Duration;

/// Options of a [`super::NameServer`].
#[derive(Debug, Clone)]
pub struct NameServerOptions {
    /// A broker is gone when nothing was heard of it for so long, unless it asks for another time itself.
    pub broker_expiry: Duration,
    /// Pause between two looks for brokers that are gone.
    pub scan_interval: Duration,
    /// Only for a name server that lives inside a broker: the broker whose queue 0 answers a route request for the retry topic of a group
    /// that no broker knows yet, so that the group's first retry is not late. Nothing is created by it.
    pub retry_routes_to: Option<String>,
    /// Whether all topics may be listed. Key `enableAllTopicList`.
    pub list_all_topics: bool,
    /// Whether route answers carry the order configuration of a topic. Key `orderMessageEnable`.
    pub order_messages: bool,
    /// Most brokers; a further one is refused.
    pub brokers_max: usize,
    /// Most topics; those of a registration beyond them are left out.
    pub topics_max: usize,
    /// Most entries of the key-value table.
    pub kv_max: usize,
}

impl Default for NameServerOptions {
    fn default() -> Self {
        Self {
            broker_expiry: Duration::from_secs(120),
            scan_interval: Duration::from_secs(5),
            retry_routes_to: None,
            list_all_topics: true,
            order_messages: false,
            brokers_max: 10_000,
            topics_max: 200_000,
            kv_max: 100_000,
        }
    }
}
