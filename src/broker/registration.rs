//! Tells name servers which topics this broker has.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::{BrokerOptions, Topics, perm};
use crate::{
    protocol::{
        Command, ExtFields, RequestCode, ResponseCode,
        body::{DataVersion, RegisterBrokerBody, TopicConfigs, body_crc32},
        header::{BrokerHeader, RegisterBrokerHeader},
        json::{self, Dialect},
    },
    remoting::{Client, RemotingError},
};

/// Pause before a name server that did not answer is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(3);
/// How long connecting to a name server, and leaving it, may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// What a broker tells name servers.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// Its cluster.
    pub cluster: String,
    /// Its name.
    pub name: String,
    /// Its id; 0 for a master.
    pub broker_id: i64,
    /// Its address, `ip:port`.
    pub address: String,
    /// The address of its replication port.
    pub ha_address: String,
    /// All its topics.
    pub topics: TopicConfigs,
}

/// A name server of this process: told of every change before the request that made it is answered.
pub trait Registry: Send + Sync {
    /// Takes over all topics of the broker.
    fn register(&self, announcement: Announcement);

    /// The broker leaves.
    fn unregister(&self, cluster: &str, address: &str);
}

/// Keeps the broker registered at the name server of this process and at outside ones.
///
/// An outside one is told at start, whenever topics change and every [`BrokerOptions::register_interval`]; in between it is only asked
/// whether it has the current version. Its connection is kept open: closing it would take the broker out of its routes.
pub(crate) struct Registration {
    identity: Announcement,
    interval: Duration,
    timeout: Duration,
    /// What the broker allows: topics are told with no more.
    permission: AtomicI32,
    topics: Arc<Topics>,
    registry: OnceLock<Arc<dyn Registry>>,
    /// The version that the name server of this process was told last. Locked while it is told, so that an older state never follows a
    /// newer one; who waited for that may find its change told already.
    announced: Mutex<Option<DataVersion>>,
    changes: watch::Sender<u64>,
    stopped: watch::Sender<bool>,
}

impl Registration {
    pub(crate) fn new(options: &BrokerOptions, topics: Arc<Topics>) -> Self {
        Self {
            identity: Announcement {
                cluster: options.cluster.clone(),
                name: options.name.clone(),
                broker_id: options.broker_id,
                address: options.advertised.to_string(),
                ha_address: options.ha_advertised.to_string(),
                topics: TopicConfigs::default(),
            },
            interval: options.register_interval,
            timeout: options.register_timeout,
            permission: AtomicI32::new(options.permission),
            topics,
            registry: OnceLock::new(),
            announced: Mutex::new(None),
            changes: watch::Sender::new(0),
            stopped: watch::Sender::new(false),
        }
    }

    /// What the broker allows from now on; to be announced.
    pub(crate) fn set_permission(&self, permission: i32) {
        self.permission.store(permission, Ordering::Relaxed);
    }

    /// All topics as name servers are told: what the broker does not allow, none of them does.
    ///
    /// Source: Apache RocketMQ, `BrokerController.registerBrokerAll`.
    fn topics(&self) -> TopicConfigs {
        let (permission, mut topics) = (self.permission.load(Ordering::Relaxed), self.topics.all());
        let both = perm::READ | perm::WRITE;
        if permission & both != both {
            topics.topic_config_table.values_mut().for_each(|topic| topic.perm &= permission);
        }
        topics
    }

    /// The name server of this process. Set once.
    pub(crate) fn set_registry(&self, registry: Arc<dyn Registry>) {
        let _ = self.registry.set(registry);
    }

    /// Tells everyone that topics changed: the name server of this process now, outside ones soon.
    pub(crate) fn announce(&self) {
        if let Some(registry) = self.registry.get() {
            let wanted = self.topics.version();
            let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
            if !*self.stopped.borrow() && announced.is_none_or(|announced| announced < wanted) {
                let topics = self.topics();
                *announced = Some(topics.data_version);
                registry.register(Announcement { topics, ..self.identity.clone() });
            }
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Leaves the name server of this process; the tasks of outside ones leave theirs.
    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
        if let Some(registry) = self.registry.get() {
            let _announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
            registry.unregister(&self.identity.cluster, &self.identity.address);
        }
    }

    /// Keeps the broker registered at one outside name server until [`Registration::stop`]; then leaves it.
    pub(crate) async fn keep(self: Arc<Self>, name_server: String) {
        let (mut changes, mut stopped) = (self.changes.subscribe(), self.stopped.subscribe());
        let mut client: Option<Client> = None;
        let mut has_failed = false;
        while !*stopped.borrow() {
            let has_changed = changes.has_changed().unwrap_or(false);
            changes.mark_unchanged();
            let pause = match self.refresh(&name_server, &mut client, has_changed).await {
                Ok(is_new) => {
                    if is_new || has_failed {
                        info!(name_server, "registered at name server");
                    }
                    has_failed = false;
                    self.interval
                }
                Err(error) => {
                    if !has_failed {
                        warn!(name_server, error, "not registered at name server, trying again");
                    }
                    has_failed = true;
                    client = None;
                    RETRY_PAUSE.min(self.interval)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = changes.changed() => changes.mark_changed(),
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        }
        if let Some(client) = client {
            let leave = Command::request(RequestCode::UNREGISTER_BROKER).with_ext(self.broker_header());
            match client.request(leave, CALL_TIMEOUT).await {
                Ok(_) => info!(name_server, "unregistered at name server"),
                Err(error) => warn!(name_server, %error, "not unregistered at name server"),
            }
            client.close().await;
        }
    }

    /// Registers, unless the name server has the current version; says whether this is the first time on this connection.
    async fn refresh(&self, name_server: &str, client: &mut Option<Client>, has_changed: bool) -> Result<bool, String> {
        let told = |error: RemotingError| error_chain(&error);
        let is_new = client.as_ref().is_none_or(Client::is_closed);
        if is_new {
            *client = Some(Client::connect(name_server.to_owned(), CALL_TIMEOUT).await.map_err(told)?);
        }
        let Some(client) = client else {
            return Err("not connected".into());
        };
        let topics = self.topics();
        if !is_new && !has_changed {
            let version = json::to_vec(Dialect::Fastjson, &topics.data_version);
            let ask =
                Command::request(RequestCode::QUERY_DATA_VERSION).with_ext(self.broker_header()).with_body(version);
            let answer = client.request(ask, self.timeout).await.map_err(told)?;
            if answer.code == ResponseCode::SUCCESS && answer.ext.bool("changed") == Some(false) {
                debug!(name_server, "name server has the current topics");
                return Ok(false);
            }
        }
        let body = RegisterBrokerBody { filter_server_list: Vec::new(), topic_config_serialize_wrapper: topics };
        let body = body.encode(false);
        let header = RegisterBrokerHeader {
            broker_name: self.identity.name.as_str().into(),
            broker_addr: self.identity.address.as_str().into(),
            cluster_name: self.identity.cluster.as_str().into(),
            ha_server_addr: self.identity.ha_address.as_str().into(),
            broker_id: self.identity.broker_id,
            heartbeat_timeout_ms: None,
            enable_acting_master: None,
            compressed: Some(false),
            body_crc32: Some(body_crc32(&body)),
        };
        let register = Command::request(RequestCode::REGISTER_BROKER).with_ext(header.encode()).with_body(body);
        let answer = client.request(register, self.timeout).await.map_err(told)?;
        if answer.code == ResponseCode::SUCCESS {
            Ok(is_new)
        } else {
            Err(format!("refused with code {}: {}", answer.code, answer.remark.unwrap_or_default()))
        }
    }

    fn broker_header(&self) -> ExtFields {
        BrokerHeader {
            broker_name: self.identity.name.as_str().into(),
            broker_addr: self.identity.address.as_str().into(),
            cluster_name: self.identity.cluster.as_str().into(),
            broker_id: self.identity.broker_id,
        }
        .encode()
    }
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
