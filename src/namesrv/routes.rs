//! Which broker has which topic.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use crate::protocol::body::{
    BrokerData, ClusterInfo, DataVersion, QueueData, TopicConfig, TopicConfigs, TopicRouteData,
};

/// Broker id of a master.
const MASTER: i64 = 0;
/// Permission bit: messages may be sent.
const WRITE: i32 = 2;
/// Permission to read and write, what a restored broker gets.
const READ_WRITE: i32 = 6;

/// The route table: brokers, and for each topic its queues on each of them.
///
/// A broker is alive as long as it registers or asks about its data version often enough; it goes at once when the connection it
/// registered by is closed. Topics come only from masters. Times are boot time.
///
/// Source: Apache RocketMQ, `org.apache.rocketmq.namesrv.routeinfo.RouteInfoManager`.
#[derive(Debug)]
pub(crate) struct RouteTable {
    brokers_max: usize,
    topics_max: usize,
    /// Topic to broker name to queues.
    topics: HashMap<String, BTreeMap<String, QueueData>>,
    brokers: BTreeMap<String, BrokerData>,
    live: HashMap<BrokerKey, Live>,
}

/// A broker process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BrokerKey {
    /// Its cluster.
    pub(crate) cluster: String,
    /// Its address, `ip:port`.
    pub(crate) address: String,
}

/// What a broker says when it registers.
#[derive(Debug, Clone)]
pub struct Registration {
    /// Its cluster.
    pub cluster: String,
    /// Its name.
    pub name: String,
    /// Its address, `ip:port`.
    pub address: String,
    /// The address of its replication port.
    pub ha_address: String,
    /// 0 for a master.
    pub broker_id: i64,
    /// After how long without a sign of life it is gone; the name server's own time if it does not say.
    pub expiry: Option<Duration>,
    /// Whether a slave may stand in for the master.
    pub acting_master: bool,
    /// Its topics and their version.
    pub topics: TopicConfigs,
    /// Whether topics that are missing here are to lose their route on this broker. Apache's brokers cannot say so.
    pub is_complete: bool,
}

/// What a registering broker is told about the master of its name; empty for a master itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MasterAddresses {
    pub(crate) master: Option<String>,
    pub(crate) ha: Option<String>,
}

#[derive(Debug)]
struct Live {
    name: String,
    broker_id: i64,
    ha_address: String,
    version: DataVersion,
    seen_at: Duration,
    expiry: Duration,
    /// The connection it registered by; `None` for a broker of this process.
    connection: Option<u64>,
}

impl RouteTable {
    /// An empty table that takes so many brokers and topics.
    pub(crate) fn new(brokers_max: usize, topics_max: usize) -> Self {
        Self { brokers_max, topics_max, topics: HashMap::new(), brokers: BTreeMap::new(), live: HashMap::new() }
    }

    /// Takes a registration over. `expiry` holds unless the broker asks for another.
    ///
    /// # Errors
    /// Says why it is not taken.
    pub(crate) fn register(
        &mut self,
        registration: Registration,
        connection: Option<u64>,
        now: Duration,
        expiry: Duration,
    ) -> Result<MasterAddresses, String> {
        let Registration { cluster, name, address, ha_address, broker_id, topics, .. } = registration;
        let version = topics.data_version;
        let key = BrokerKey { cluster: cluster.clone(), address: address.clone() };
        if !self.live.contains_key(&key) && self.live.len() >= self.brokers_max {
            return Err(format!("there are already {} brokers", self.brokers_max));
        }
        if let Some(other) = self.other_holder(&cluster, &name, broker_id, &address)
            && other.version.state_version > version.state_version
        {
            return Err(format!("broker {name} with id {broker_id} is registered with a later state version"));
        }

        let known_version = self.live.get(&key).filter(|live| live.name == name).map(|live| live.version);
        self.take_address(&cluster, &name, broker_id, &address, registration.acting_master);
        let live = Live {
            name: name.clone(),
            broker_id,
            ha_address,
            version,
            seen_at: now,
            expiry: registration.expiry.unwrap_or(expiry),
            connection,
        };
        self.live.insert(key, live);
        if broker_id == MASTER && (known_version != Some(version) || registration.is_complete) {
            self.take_topics(&name, &topics, registration.is_complete);
        }
        Ok(self.master_of(&cluster, &name, broker_id))
    }

    /// A broker leaves.
    pub(crate) fn unregister(&mut self, key: &BrokerKey) -> bool {
        let Some(live) = self.live.remove(key) else {
            return false;
        };
        if let Some(broker) = self.brokers.get_mut(&live.name) {
            broker.broker_addrs.retain(|_, address| *address != key.address);
            if broker.broker_addrs.is_empty() {
                self.brokers.remove(&live.name);
                for queues in self.topics.values_mut() {
                    queues.remove(&live.name);
                }
                self.topics.retain(|_, queues| !queues.is_empty());
            }
        }
        true
    }

    /// A connection is gone, and with it the brokers that registered by it; gives them.
    pub(crate) fn closed(&mut self, connection: u64) -> Vec<BrokerKey> {
        let gone: Vec<_> = self.keys(|live| live.connection == Some(connection));
        gone.iter().for_each(|key| {
            self.unregister(key);
        });
        gone
    }

    /// Removes brokers that were not heard of for too long; gives them. A broker of this process stays.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<BrokerKey> {
        let gone: Vec<_> =
            self.keys(|live| live.connection.is_some() && now.saturating_sub(live.seen_at) >= live.expiry);
        gone.iter().for_each(|key| {
            self.unregister(key);
        });
        gone
    }

    /// The data version a broker registered last; notes that it is alive.
    pub(crate) fn ask_version(&mut self, key: &BrokerKey, now: Duration) -> Option<DataVersion> {
        let live = self.live.get_mut(key)?;
        live.seen_at = now;
        Some(live.version)
    }

    /// The route of a topic.
    pub(crate) fn route(&self, topic: &str) -> Option<TopicRouteData> {
        let queues = self.topics.get(topic)?;
        let queue_datas: Vec<_> =
            queues.values().filter(|queue| self.brokers.contains_key(&queue.broker_name)).cloned().collect();
        let broker_datas: Vec<_> =
            queue_datas.iter().filter_map(|queue| self.brokers.get(&queue.broker_name)).cloned().collect();
        (!broker_datas.is_empty()).then(|| TopicRouteData { broker_datas, queue_datas, ..TopicRouteData::default() })
    }

    /// A broker, by its name.
    pub(crate) fn broker(&self, name: &str) -> Option<&BrokerData> {
        self.brokers.get(name)
    }

    /// All brokers by name and by cluster.
    pub(crate) fn clusters(&self) -> ClusterInfo {
        let mut clusters: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for broker in self.brokers.values() {
            clusters.entry(broker.cluster.clone()).or_default().push(broker.broker_name.clone());
        }
        ClusterInfo { broker_addr_table: self.brokers.clone(), cluster_addr_table: clusters }
    }

    /// All topics, sorted.
    pub(crate) fn topics(&self) -> Vec<String> {
        let mut topics: Vec<_> = self.topics.keys().cloned().collect();
        topics.sort_unstable();
        topics
    }

    /// The topics on brokers of a cluster, sorted.
    pub(crate) fn topics_of_cluster(&self, cluster: &str) -> Vec<String> {
        let names: BTreeSet<_> = self
            .brokers
            .values()
            .filter(|broker| broker.cluster == cluster)
            .map(|broker| &broker.broker_name)
            .collect();
        let mut topics: Vec<_> = self
            .topics
            .iter()
            .filter(|(_, queues)| queues.keys().any(|name| names.contains(name)))
            .map(|(topic, _)| topic.clone())
            .collect();
        topics.sort_unstable();
        topics
    }

    /// Removes the route of a topic, in one cluster or everywhere.
    pub(crate) fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        let Some(cluster) = cluster else {
            self.topics.remove(topic);
            return;
        };
        if let Some(queues) = self.topics.get_mut(topic) {
            queues.retain(|name, _| self.brokers.get(name).is_none_or(|broker| broker.cluster != cluster));
            if queues.is_empty() {
                self.topics.remove(topic);
            }
        }
    }

    /// Takes the permission to write from all topics of a broker, until it registers changed topics; says how many topics it has.
    pub(crate) fn wipe_write_permission(&mut self, broker: &str) -> usize {
        self.change_permission(broker, |perm| perm & !WRITE)
    }

    /// Lets all topics of a broker be read and written; says how many topics it has.
    pub(crate) fn add_write_permission(&mut self, broker: &str) -> usize {
        self.change_permission(broker, |_| READ_WRITE)
    }

    fn change_permission(&mut self, broker: &str, change: impl Fn(i32) -> i32) -> usize {
        let queues = self.topics.values_mut().filter_map(|queues| queues.get_mut(broker));
        queues.map(|queue| queue.perm = change(queue.perm)).count()
    }

    /// Another live address that holds this id of this name.
    fn other_holder(&self, cluster: &str, name: &str, broker_id: i64, address: &str) -> Option<&Live> {
        let holder = self.brokers.get(name)?.broker_addrs.get(&broker_id).filter(|holder| *holder != address)?;
        self.live.get(&BrokerKey { cluster: cluster.into(), address: holder.clone() })
    }

    fn take_address(&mut self, cluster: &str, name: &str, broker_id: i64, address: &str, acting_master: bool) {
        // The address may have belonged to another name.
        let key = BrokerKey { cluster: cluster.into(), address: address.into() };
        if self.live.get(&key).is_some_and(|live| live.name != name) {
            self.unregister(&key);
        }
        let broker = self
            .brokers
            .entry(name.into())
            .or_insert_with(|| BrokerData { broker_name: name.into(), ..BrokerData::default() });
        broker.cluster = cluster.into();
        broker.enable_acting_master = acting_master;
        // The same address under a new id replaces the old id.
        broker.broker_addrs.retain(|&id, known| *known != address || id == broker_id);
        if let Some(replaced) = broker.broker_addrs.insert(broker_id, address.into()).filter(|old| old != address) {
            self.live.remove(&BrokerKey { cluster: cluster.into(), address: replaced });
        }
    }

    fn take_topics(&mut self, name: &str, topics: &TopicConfigs, is_complete: bool) {
        if is_complete {
            for (topic, queues) in &mut self.topics {
                if !topics.topic_config_table.contains_key(topic) {
                    queues.remove(name);
                }
            }
            self.topics.retain(|_, queues| !queues.is_empty());
        }
        let mut left_out = 0;
        for (topic, config) in &topics.topic_config_table {
            if !self.topics.contains_key(topic) && self.topics.len() >= self.topics_max {
                left_out += 1;
                continue;
            }
            self.topics.entry(topic.clone()).or_default().insert(name.into(), queue_data(name, config));
        }
        if left_out > 0 {
            tracing::warn!(
                broker = name,
                left_out,
                topics_max = self.topics_max,
                "too many topics, some have no route"
            );
        }
    }

    fn master_of(&self, cluster: &str, name: &str, broker_id: i64) -> MasterAddresses {
        if broker_id == MASTER {
            return MasterAddresses::default();
        }
        let master = self.brokers.get(name).and_then(|broker| broker.broker_addrs.get(&MASTER)).cloned();
        let ha = master.clone().and_then(|address| {
            let live = self.live.get(&BrokerKey { cluster: cluster.into(), address })?;
            (live.broker_id == MASTER).then(|| live.ha_address.clone())
        });
        MasterAddresses { master, ha }
    }

    fn keys(&self, gone: impl Fn(&Live) -> bool) -> Vec<BrokerKey> {
        self.live.iter().filter(|(_, live)| gone(live)).map(|(key, _)| key.clone()).collect()
    }
}

fn queue_data(broker: &str, config: &TopicConfig) -> QueueData {
    QueueData {
        broker_name: broker.into(),
        perm: config.perm,
        read_queue_nums: config.read_queue_nums,
        topic_sys_flag: config.topic_sys_flag,
        write_queue_nums: config.write_queue_nums,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);
    const EXPIRY: Duration = Duration::from_secs(120);

    /// A master `name` at port `port` of cluster C.
    pub(crate) fn registration(name: &str, port: u16, topics: &[&str], counter: i64) -> Registration {
        let config = |topic: &&str| {
            let config = TopicConfig {
                topic_name: (*topic).into(),
                read_queue_nums: 4,
                write_queue_nums: 4,
                ..TopicConfig::default()
            };
            ((*topic).to_owned(), config)
        };
        Registration {
            cluster: "C".into(),
            name: name.into(),
            address: format!("10.0.0.1:{port}"),
            ha_address: format!("10.0.0.1:{}", port + 1),
            broker_id: 0,
            expiry: None,
            acting_master: false,
            topics: TopicConfigs {
                data_version: DataVersion { counter, ..DataVersion::default() },
                topic_config_table: topics.iter().map(config).collect(),
            },
            is_complete: false,
        }
    }

    fn table(registrations: Vec<Registration>) -> RouteTable {
        let mut table = RouteTable::new(10, 100);
        for (connection, registration) in registrations.into_iter().enumerate() {
            table.register(registration, Some(connection as u64), NOW, EXPIRY).unwrap();
        }
        table
    }

    #[test]
    fn a_route_names_every_broker_that_has_the_topic() {
        let table = table(vec![registration("a", 1, &["T", "U"], 1), registration("b", 3, &["T"], 1)]);

        let route = table.route("T").unwrap();

        let names: Vec<_> = route.queue_datas.iter().map(|queue| queue.broker_name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(route.broker_datas[1].broker_addrs[&0], "10.0.0.1:3");
        assert_eq!(table.route("U").unwrap().broker_datas.len(), 1);
        assert_eq!(table.route("V"), None);
    }

    #[test]
    fn remoting_18_every_broker_of_a_cluster_is_in_the_broker_table() {
        let clusters = table(vec![registration("a", 1, &["T"], 1), registration("b", 3, &["T"], 1)]).clusters();

        assert_eq!(clusters.cluster_addr_table["C"], ["a", "b"]);
        assert!(clusters.cluster_addr_table["C"].iter().all(|name| clusters.broker_addr_table.contains_key(name)));
    }

    #[test]
    fn remoting_21_wiped_write_permission_comes_back() {
        let mut table = table(vec![registration("a", 1, &["T", "U"], 1)]);

        assert_eq!(table.wipe_write_permission("a"), 2);
        assert_eq!(table.route("T").unwrap().queue_datas[0].perm, 4);
        assert_eq!(table.add_write_permission("a"), 2);
        assert_eq!(table.route("T").unwrap().queue_datas[0].perm, 6);
        assert_eq!(table.wipe_write_permission("nobody"), 0);
    }

    #[test]
    fn remoting_22_a_deleted_topic_has_no_route_until_its_broker_registers_a_change() {
        let mut table = table(vec![registration("a", 1, &["T"], 1)]);
        table.delete_topic("T", Some("other"));
        assert!(table.route("T").is_some());

        table.delete_topic("T", Some("C"));

        table.register(registration("a", 1, &["T"], 1), Some(0), NOW, EXPIRY).unwrap();
        assert_eq!(table.route("T"), None, "an unchanged data version does not bring it back");
        table.register(registration("a", 1, &["T"], 2), Some(0), NOW, EXPIRY).unwrap();
        assert!(table.route("T").is_some());
    }

    #[test]
    fn remoting_24_a_broker_that_is_silent_for_two_minutes_has_no_routes_any_more() {
        let mut table = table(vec![registration("a", 1, &["T"], 1)]);
        let key = BrokerKey { cluster: "C".into(), address: "10.0.0.1:1".into() };
        table.ask_version(&key, NOW + Duration::from_secs(60));

        assert!(table.expire(NOW + Duration::from_millis(179_999)).is_empty());
        assert_eq!(table.expire(NOW + Duration::from_secs(180)), [key]);

        assert_eq!(table.route("T"), None);
        assert!(table.clusters().broker_addr_table.is_empty() && table.topics().is_empty());
    }

    #[test]
    fn remoting_24_a_broker_whose_connection_closes_has_no_routes_any_more() {
        let mut table = table(vec![registration("a", 1, &["T"], 1), registration("b", 3, &["T"], 1)]);

        assert_eq!(table.closed(1).len(), 1);

        assert_eq!(table.route("T").unwrap().broker_datas.len(), 1);
        assert!(table.closed(1).is_empty());
    }

    #[test]
    fn a_broker_that_comes_back_on_a_new_connection_survives_the_end_of_the_old_one() {
        let mut table = table(vec![registration("a", 1, &["T"], 1)]);
        table.register(registration("a", 1, &["T"], 1), Some(7), NOW, EXPIRY).unwrap();

        assert!(table.closed(0).is_empty());

        assert!(table.route("T").is_some());
    }

    #[test]
    fn a_slave_adds_no_topics_and_learns_its_master() {
        let mut table = table(vec![registration("a", 1, &["T"], 1)]);
        let slave = Registration { broker_id: 1, ..registration("a", 5, &["Other"], 1) };

        let master = table.register(slave, Some(9), NOW, EXPIRY).unwrap();

        assert_eq!(master.master.as_deref(), Some("10.0.0.1:1"));
        assert_eq!(master.ha.as_deref(), Some("10.0.0.1:2"));
        assert_eq!(table.route("Other"), None);
        assert_eq!(table.route("T").unwrap().broker_datas[0].broker_addrs.len(), 2);
    }

    #[test]
    fn an_address_that_changes_its_id_keeps_only_the_new_one() {
        let mut table = table(vec![registration("a", 1, &["T"], 1)]);

        table.register(Registration { broker_id: 2, ..registration("a", 1, &[], 1) }, Some(0), NOW, EXPIRY).unwrap();

        assert_eq!(table.broker("a").unwrap().broker_addrs, BTreeMap::from([(2, "10.0.0.1:1".into())]));
    }

    #[test]
    fn an_older_state_version_does_not_take_a_name_over() {
        let mut first = registration("a", 1, &["T"], 1);
        first.topics.data_version.state_version = 2;
        let mut table = table(vec![first]);

        assert!(table.register(registration("a", 3, &["T"], 9), Some(5), NOW, EXPIRY).is_err());

        assert_eq!(table.broker("a").unwrap().broker_addrs[&0], "10.0.0.1:1");
    }

    #[test]
    fn a_complete_registration_removes_the_routes_of_topics_that_are_gone() {
        let mut table = table(vec![registration("a", 1, &["T", "U"], 1), registration("b", 3, &["T"], 1)]);

        let now_only_u = Registration { is_complete: true, ..registration("a", 1, &["U"], 2) };
        table.register(now_only_u, Some(0), NOW, EXPIRY).unwrap();

        assert_eq!(table.route("T").unwrap().queue_datas.len(), 1);
        assert!(table.route("U").is_some());
    }

    #[test]
    fn brokers_and_topics_beyond_their_limits_are_not_taken() {
        let mut table = RouteTable::new(1, 1);
        table.register(registration("a", 1, &["T", "U"], 1), Some(1), NOW, EXPIRY).unwrap();

        assert!(table.register(registration("b", 3, &[], 1), Some(2), NOW, EXPIRY).is_err());
        assert_eq!(table.topics(), ["T"]);
    }
}
