//! The name server: answers clients and takes registrations of brokers.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use tracing::{info, warn};

use super::{
    NameServerOptions, Registration,
    routes::{BrokerKey, RouteTable},
};
use crate::{
    env::Clock,
    model::RETRY_PREFIX,
    protocol::{
        Command, ExtFields, HeaderError, RequestCode, ResponseCode,
        body::{DataVersion, KvTable, QueueData, RegisterBrokerBody, TopicList, TopicRouteData, body_crc32},
        header::{
            BrokerHeader, ClusterHeader, KvHeader, KvValueHeader, NamespaceHeader, QueryDataVersionReplyHeader,
            RegisterBrokerHeader, RegisterBrokerReplyHeader, RouteHeader, TopicHeader,
        },
        json::{self, Dialect},
    },
    remoting::{Connection, Handler, Responder, not_supported},
};

/// Namespace of the key-value table that holds queue counts of order topics.
const ORDER_TOPIC_CONFIG: &str = "ORDER_TOPIC_CONFIG";
/// Longest entry of the key-value table: namespace, key and value together.
const KV_ENTRY_BYTES_MAX: usize = 64 * 1024;
/// Longest name or address of a broker, or name of a cluster.
const NAME_BYTES_MAX: usize = 255;

/// A name server, embedded in a broker or alone.
///
/// What brokers register lives in memory only: they register again within half a minute. So do the entries of the key-value table, which
/// Apache's name server keeps in a file.
pub struct NameServer {
    options: NameServerOptions,
    clock: Arc<dyn Clock>,
    routes: RwLock<RouteTable>,
    kv: Mutex<HashMap<String, BTreeMap<String, String>>>,
}

/// What is answered instead of what was asked for.
struct Failure(i32, String);

impl From<HeaderError> for Failure {
    fn from(error: HeaderError) -> Self {
        Self(ResponseCode::SYSTEM_ERROR, error.to_string())
    }
}

impl NameServer {
    /// A name server that knows no broker yet.
    pub fn new(options: NameServerOptions, clock: Arc<dyn Clock>) -> Arc<Self> {
        let routes = RwLock::new(RouteTable::new(options.brokers_max, options.topics_max));
        Arc::new(Self { options, clock, routes, kv: Mutex::default() })
    }

    /// The request codes that are served.
    pub const CODES: &[i32] = &[
        RequestCode::PUT_KV_CONFIG,
        RequestCode::GET_KV_CONFIG,
        RequestCode::DELETE_KV_CONFIG,
        RequestCode::REGISTER_BROKER,
        RequestCode::UNREGISTER_BROKER,
        RequestCode::GET_ROUTEINFO_BY_TOPIC,
        RequestCode::GET_BROKER_CLUSTER_INFO,
        RequestCode::WIPE_WRITE_PERM_OF_BROKER,
        RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode::DELETE_TOPIC_IN_NAMESRV,
        RequestCode::GET_KVLIST_BY_NAMESPACE,
        RequestCode::GET_TOPICS_BY_CLUSTER,
        RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode::QUERY_DATA_VERSION,
        RequestCode::ADD_WRITE_PERM_OF_BROKER,
    ];

    /// Takes the registration of a broker of this process. It stays until it is unregistered.
    pub fn register(&self, registration: Registration) {
        let (name, now) = (registration.name.clone(), self.clock.since_boot());
        if let Err(error) = self.routes_mut().register(registration, None, now, self.options.broker_expiry) {
            warn!(broker = name, error, "broker of this process not registered");
        }
    }

    /// A broker of this process leaves.
    pub fn unregister(&self, cluster: &str, address: &str) {
        self.routes_mut().unregister(&BrokerKey { cluster: cluster.into(), address: address.into() });
    }

    /// Forgets brokers that are silent; to be called every [`NameServerOptions::scan_interval`].
    pub fn tick(&self) {
        let gone = self.routes_mut().expire(self.clock.since_boot());
        for key in gone {
            warn!(broker_address = key.address, cluster = key.cluster, "broker is silent, its routes are removed");
        }
    }

    /// Calls [`NameServer::tick`] for ever.
    pub async fn run(self: Arc<Self>) {
        let mut interval = tokio::time::interval(self.options.scan_interval);
        loop {
            interval.tick().await;
            self.tick();
        }
    }

    fn answer(&self, connection: &Connection, request: &Command) -> Result<Command, Failure> {
        match request.code {
            RequestCode::GET_ROUTEINFO_BY_TOPIC => self.route(request),
            RequestCode::REGISTER_BROKER => self.register_broker(connection, request),
            RequestCode::UNREGISTER_BROKER => self.unregister_broker(request),
            RequestCode::QUERY_DATA_VERSION => self.query_data_version(request),
            RequestCode::GET_BROKER_CLUSTER_INFO => Ok(body(&self.routes().clusters())),
            RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => self.all_topics(),
            RequestCode::GET_TOPICS_BY_CLUSTER => {
                let header = ClusterHeader::decode(&request.ext)?;
                Ok(topic_list(self.routes().topics_of_cluster(&header.cluster), None))
            }
            RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_NS => Ok(self.system_topics()),
            RequestCode::DELETE_TOPIC_IN_NAMESRV => {
                let header = TopicHeader::decode(&request.ext)?;
                let cluster = header.cluster_name.as_deref().filter(|cluster| !cluster.is_empty());
                self.routes_mut().delete_topic(&header.topic, cluster);
                info!(topic = %header.topic, "route of topic deleted on request");
                Ok(success())
            }
            RequestCode::WIPE_WRITE_PERM_OF_BROKER => {
                let count = self.routes_mut().wipe_write_permission(request.ext.required("brokerName")?);
                Ok(counted("wipeTopicCount", count))
            }
            RequestCode::ADD_WRITE_PERM_OF_BROKER => {
                let count = self.routes_mut().add_write_permission(request.ext.required("brokerName")?);
                Ok(counted("addTopicCount", count))
            }
            RequestCode::PUT_KV_CONFIG => self.put_kv(request),
            RequestCode::GET_KV_CONFIG => self.get_kv(request),
            RequestCode::DELETE_KV_CONFIG => self.delete_kv(request),
            RequestCode::GET_KVLIST_BY_NAMESPACE => self.list_kv(request),
            _ => Ok(not_supported(request)),
        }
    }

    fn route(&self, request: &Command) -> Result<Command, Failure> {
        let header = RouteHeader::decode(&request.ext)?;
        let mut route = self.routes().route(&header.topic).or_else(|| self.retry_route(&header.topic)).ok_or_else(|| {
            let remark = format!(
                "No topic route info in name server for the topic: {}\nIs it created, or is autoCreateTopicEnable on?",
                header.topic
            );
            Failure(ResponseCode::TOPIC_NOT_EXIST, remark)
        })?;
        if self.options.order_messages {
            route.order_topic_conf =
                self.kv().get(ORDER_TOPIC_CONFIG).and_then(|table| table.get(header.topic.as_str())).cloned();
        }
        Ok(success().with_body(route.to_json(request.version, header.accept_standard_json_only.unwrap_or(false))))
    }

    /// One queue of the broker of this process, for the retry topic of a group that is new: its client learns the route at start instead of
    /// half a minute later. The topic itself comes with the group's first heartbeat.
    fn retry_route(&self, topic: &str) -> Option<TopicRouteData> {
        let name = self.options.retry_routes_to.as_ref().filter(|_| topic.starts_with(RETRY_PREFIX))?;
        let broker = self.routes().broker(name)?.clone();
        let queue = QueueData {
            broker_name: name.clone(),
            perm: 6,
            read_queue_nums: 1,
            topic_sys_flag: 0,
            write_queue_nums: 1,
        };
        Some(TopicRouteData { broker_datas: vec![broker], queue_datas: vec![queue], ..TopicRouteData::default() })
    }

    fn register_broker(&self, connection: &Connection, request: &Command) -> Result<Command, Failure> {
        let header = RegisterBrokerHeader::decode(&request.ext)?;
        for name in [&header.cluster_name, &header.broker_name, &header.broker_addr, &header.ha_server_addr] {
            if name.len() > NAME_BYTES_MAX {
                let remark = format!("a name of {} bytes is longer than {NAME_BYTES_MAX}", name.len());
                return Err(Failure(ResponseCode::SYSTEM_ERROR, remark));
            }
        }
        let sent = request.body.to_bytes();
        let said = header.body_crc32.unwrap_or(0);
        if said != 0 && said != body_crc32(&sent) {
            return Err(Failure(ResponseCode::SYSTEM_ERROR, "crc32 not match".into()));
        }
        let decoded = RegisterBrokerBody::decode(&sent, header.compressed.unwrap_or(false), request.version)
            .map_err(|error| Failure(ResponseCode::SYSTEM_ERROR, error.to_string()))?;
        let timeout = header.heartbeat_timeout_ms.and_then(|ms| u64::try_from(ms).ok()).filter(|&ms| ms > 0);
        let registration = Registration {
            cluster: header.cluster_name.into(),
            name: header.broker_name.into(),
            address: header.broker_addr.into(),
            ha_address: header.ha_server_addr.into(),
            broker_id: header.broker_id,
            expiry: timeout.map(Duration::from_millis),
            acting_master: header.enable_acting_master.unwrap_or(false),
            topics: decoded.topic_config_serialize_wrapper,
            is_complete: false,
        };
        let (name, address) = (registration.name.clone(), registration.address.clone());
        let is_new = self.routes().broker(&name).is_none();
        let master = self
            .routes_mut()
            .register(registration, Some(connection.id()), self.clock.since_boot(), self.options.broker_expiry)
            .map_err(|error| Failure(ResponseCode::SYSTEM_ERROR, format!("register broker failed: {error}")))?;
        if is_new {
            info!(broker = name, broker_address = address, peer = %connection.peer(), "broker registered");
        }
        let ext = RegisterBrokerReplyHeader {
            ha_server_addr: master.ha.map(Into::into),
            master_addr: master.master.map(Into::into),
        };
        let table = self.kv().get(ORDER_TOPIC_CONFIG).cloned().unwrap_or_default();
        Ok(body(&KvTable { table }).with_ext(ext.encode()))
    }

    fn unregister_broker(&self, request: &Command) -> Result<Command, Failure> {
        let key = broker_key(BrokerHeader::decode(&request.ext)?);
        if self.routes_mut().unregister(&key) {
            info!(broker_address = key.address, cluster = key.cluster, "broker unregistered");
        }
        Ok(success())
    }

    fn query_data_version(&self, request: &Command) -> Result<Command, Failure> {
        let header = BrokerHeader::decode(&request.ext)?;
        let theirs: Option<DataVersion> = json::from_slice(&request.body.to_bytes()).ok();
        let ours = self.routes_mut().ask_version(&broker_key(header), self.clock.since_boot());
        let ext = QueryDataVersionReplyHeader { changed: ours.is_none() || ours != theirs }.encode();
        let reply = success().with_ext(ext);
        Ok(match ours {
            Some(version) => reply.with_body(json::to_vec(Dialect::Fastjson, &version)),
            None => reply,
        })
    }

    fn all_topics(&self) -> Result<Command, Failure> {
        if !self.options.list_all_topics {
            return Err(Failure(ResponseCode::SYSTEM_ERROR, "disable".into()));
        }
        Ok(topic_list(self.routes().topics(), None))
    }

    fn system_topics(&self) -> Command {
        let clusters = self.routes().clusters();
        let names = clusters.cluster_addr_table.keys().chain(clusters.broker_addr_table.keys()).cloned().collect();
        let address =
            clusters.broker_addr_table.values().find_map(|broker| broker.broker_addrs.values().next().cloned());
        topic_list(names, address)
    }

    fn put_kv(&self, request: &Command) -> Result<Command, Failure> {
        let header = KvHeader::decode(&request.ext)?;
        let value = header
            .value
            .ok_or_else(|| Failure(ResponseCode::SYSTEM_ERROR, "the header field value is missing".into()))?;
        let bytes = header.namespace.len() + header.key.len() + value.len();
        if bytes > KV_ENTRY_BYTES_MAX {
            let remark = format!("namespace, key and value have {bytes} bytes, more than {KV_ENTRY_BYTES_MAX}");
            return Err(Failure(ResponseCode::SYSTEM_ERROR, remark));
        }
        let mut kv = self.kv();
        if kv.values().map(BTreeMap::len).sum::<usize>() >= self.options.kv_max {
            let remark = format!("the table already has {} entries", self.options.kv_max);
            return Err(Failure(ResponseCode::SYSTEM_ERROR, remark));
        }
        kv.entry(header.namespace.into()).or_default().insert(header.key.into(), value.into());
        Ok(success())
    }

    fn get_kv(&self, request: &Command) -> Result<Command, Failure> {
        let header = KvHeader::decode(&request.ext)?;
        let value = self.kv().get(header.namespace.as_str()).and_then(|table| table.get(header.key.as_str())).cloned();
        match value {
            Some(value) => Ok(success().with_ext(KvValueHeader { value: value.into() }.encode())),
            None => {
                let remark = format!("No config item, Namespace: {} Key: {}", header.namespace, header.key);
                Err(Failure(ResponseCode::QUERY_NOT_FOUND, remark))
            }
        }
    }

    fn delete_kv(&self, request: &Command) -> Result<Command, Failure> {
        let header = KvHeader::decode(&request.ext)?;
        let mut kv = self.kv();
        if let Some(table) = kv.get_mut(header.namespace.as_str()) {
            table.remove(header.key.as_str());
            if table.is_empty() {
                kv.remove(header.namespace.as_str());
            }
        }
        Ok(success())
    }

    fn list_kv(&self, request: &Command) -> Result<Command, Failure> {
        let header = NamespaceHeader::decode(&request.ext)?;
        match self.kv().get(header.namespace.as_str()) {
            Some(table) => Ok(body(&KvTable { table: table.clone() })),
            None => {
                let remark = format!("No config item, Namespace: {}", header.namespace);
                Err(Failure(ResponseCode::QUERY_NOT_FOUND, remark))
            }
        }
    }

    fn routes(&self) -> std::sync::RwLockReadGuard<'_, RouteTable> {
        self.routes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn routes_mut(&self) -> std::sync::RwLockWriteGuard<'_, RouteTable> {
        self.routes.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn kv(&self) -> MutexGuard<'_, HashMap<String, BTreeMap<String, String>>> {
        self.kv.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler for NameServer {
    fn handle(&self, connection: &Arc<Connection>, request: Command, responder: Responder) {
        responder.reply(match self.answer(connection, &request) {
            Ok(response) => response,
            Err(Failure(code, remark)) => request.reply(code).with_remark(remark),
        });
    }

    fn closed(&self, connection: &Arc<Connection>) {
        for key in self.routes_mut().closed(connection.id()) {
            warn!(broker_address = key.address, peer = %connection.peer(), "broker closed its connection, its routes are removed");
        }
    }
}

fn success() -> Command {
    Command::response(ResponseCode::SUCCESS)
}

fn body<T: serde::Serialize>(value: &T) -> Command {
    success().with_body(json::to_vec(Dialect::Fastjson, value))
}

fn topic_list(topic_list: Vec<String>, broker_addr: Option<String>) -> Command {
    body(&TopicList { broker_addr, topic_list })
}

fn counted(name: &'static str, count: usize) -> Command {
    let mut ext = ExtFields::with_capacity(1);
    ext.push(name, i64::try_from(count).unwrap_or(i64::MAX));
    success().with_ext(ext)
}

fn broker_key(header: BrokerHeader) -> BrokerKey {
    BrokerKey { cluster: header.cluster_name.into(), address: header.broker_addr.into() }
}

#[cfg(test)]
mod tests;
