//! `latermq broker`: puts the parts together, runs them and stops them in order.

use std::{
    io::Write,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use clap::Args;
use tracing::{error, info, warn};

use super::{
    configure::{ConfigArgs, Configured},
    failure::{BROKEN, Failure, chain},
    limits,
    listen::{self, VIP_DISTANCE},
    log, namesrv, print,
};
use crate::{
    broker::{Announcement, Broker, Registry, Resolved, Topics},
    config::Settings,
    delay::{LevelScheduler, RealQueue, RealTopics},
    env::{Env, FsDirectory, SystemClock},
    model::{PhysicalOffset, QueueId},
    namesrv::{NameServer, NameServerOptions, Registration},
    remoting::Server,
    store::{MessageStore, StoreError},
};

/// How long requests in hand may take when the broker stops.
const STOP_MAX: Duration = Duration::from_secs(3);

/// Run a broker, with a name server of its own unless others are named
///
/// Clients of RocketMQ find it at 127.0.0.1:9876. SIGTERM and SIGINT stop it cleanly: it leaves the name servers, takes no more requests,
/// finishes those in hand, saves, and ends with 0. A second signal, half a second later or more, ends it at once; nothing that was promised
/// is lost by that.
#[derive(Debug, Clone, Args)]
pub(super) struct BrokerArgs {
    /// Outside name servers, host:port, separated by ; (the key namesrvAddr). The broker's own then stays off
    #[arg(short = 'n', long = "namesrv", value_name = "ADDRESSES")]
    name_servers: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &BrokerArgs) -> Result<(), Failure> {
    let began = Instant::now();
    let mut config = args.config.clone();
    if let Some(name_servers) = &args.name_servers {
        config.set("namesrvAddr", name_servers);
    }
    let configured = config.load()?;
    let Configured { settings, warnings, .. } = &configured;
    if config.print_config {
        for warning in warnings {
            writeln!(std::io::stderr(), "latermq: {warning}")?;
        }
        return Ok(print::line(settings.to_explained_text().trim_end())?);
    }
    log::start(settings.logs_json(), "info");
    info!(version = env!("CARGO_PKG_VERSION"), "latermq broker starts");
    match config.file() {
        Some(file) => {
            info!(file = %std::path::absolute(file).unwrap_or_else(|_| file.to_owned()).display(), "file read");
        }
        None => info!("no configuration file named, the defaults count"),
    }
    for warning in warnings {
        warn!("{warning}");
    }
    limits::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("latermq-io")
        .build()
        .map_err(|error| Failure::because("cannot start", &error))?;
    let ended = runtime.block_on(async {
        let mut signals = listen::StopSignals::catch()?;
        let mut running = tokio::select! {
            running = Running::start(&configured) => running?,
            signal = signals.next() => {
                // The store can be left at any moment of its recovery: the next start begins it anew.
                info!(signal, "stopping before the start was complete");
                return Ok(());
            }
        };
        info!(elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX), "broker started");
        tokio::select! {
            signal = signals.next() => info!(signal, "stopping"),
            reason = running.ended() => fatal(&reason),
        }
        let asked_at = Instant::now();
        tokio::select! {
            stopped = running.stop() => stopped,
            signal = signals.next_wish(asked_at) => Err(Failure::failed(format!("ended by a second {signal} before the stop was complete"))),
        }
    });
    // What still runs then was given up.
    runtime.shutdown_background();
    ended
}

/// A broker that serves.
pub(super) struct Running {
    store: Arc<MessageStore>,
    broker: Arc<Broker>,
    server: Server,
    name_server: Option<namesrv::Running>,
}

impl Running {
    /// Opens the store, then the sockets, then the door: whoever finds the broker is served.
    pub(super) async fn start(configured: &Configured) -> Result<Self, Failure> {
        let settings = &configured.settings;
        let addresses = Addresses::of(settings)?;
        let delay_options = settings.delay_options()?;
        let levels = delay_options.levels.clone();
        let broker_options = settings.broker_options(addresses.advertised, levels.max().number());
        let root = settings.store_root()?;
        let store_options = settings.store_options()?;

        let directory = FsDirectory::open(&root).map_err(|error| {
            Failure::failed(format!(
                "cannot open the folder of the store {}: {error}{}",
                root.display(),
                origin(settings, "storePathRootDir")
            ))
        })?;
        info!(store = %directory.root().display(), flush_policy = settings.text("flushDiskType"), "opening the store");
        let env = Env {
            clock: Arc::new(SystemClock::new()),
            directory: Arc::new(directory),
            fatal: Arc::new(|reason: &str| fatal(reason)),
        };
        let topics = Arc::new(TopicsOfBroker::default());
        let scheduler = Arc::new(LevelScheduler::new(delay_options, Arc::clone(&topics) as Arc<dyn RealTopics>));
        let opening = tokio::task::spawn_blocking(move || MessageStore::open(store_options, env, vec![scheduler]));
        let store = match opening.await {
            Ok(opened) => opened.map_err(|error| not_opened(settings, &error))?,
            Err(error) => return Err(Failure::Broken(format!("the store could not be opened: {error}"))),
        };

        let broker = Broker::new(broker_options, Arc::clone(&store));
        topics.set(Arc::clone(broker.topics()));
        broker.set_configuration(Arc::new(configured.live(addresses.advertised)));
        store.start().map_err(|error| not_opened(settings, &error))?;

        let bound = Server::bind(&addresses.listen(), Arc::clone(&broker) as _, settings.server_options()).await;
        let server = match bound {
            Ok(server) => server,
            Err(error) => {
                close(store).await;
                return Err(Failure::failed(format!("{error}{}", origin(settings, "listenPort"))));
            }
        };
        broker.set_remoting(Arc::clone(server.figures()));
        broker.start();
        let mut running = Self { store, broker, server, name_server: None };
        if let Err(failure) = running.open_name_server(settings).await {
            // The reason of the first failure is what counts.
            let _ = running.stop().await;
            return Err(failure);
        }
        running.warn_of_what_cannot_be_reached(&addresses);
        info!(
            broker = settings.text("brokerName"),
            cluster = settings.text("brokerClusterName"),
            advertised = %addresses.advertised,
            listening = ?running.server.local_addrs(),
            name_server = running.name_servers(),
            "serving"
        );
        Ok(running)
    }

    async fn open_name_server(&mut self, settings: &Settings) -> Result<(), Failure> {
        if !settings.name_servers().is_empty() || settings.name_server_listen_address().is_none() {
            return Ok(());
        }
        let options = NameServerOptions {
            retry_routes_to: Some(self.broker.options().name.clone()),
            ..settings.name_server_options()
        };
        let name_server = namesrv::start(settings, options).await?;
        self.broker.set_registry(Arc::new(Embedded(Arc::clone(&name_server.name_server))));
        self.name_server = Some(name_server);
        Ok(())
    }

    fn warn_of_what_cannot_be_reached(&self, addresses: &Addresses) {
        let told = addresses.advertised.ip();
        let is_open = !addresses.bind.ip().is_loopback();
        if is_open {
            warn!(listening = %addresses.bind, "the broker can be reached from other machines, and there is no access control");
        }
        if !is_open && !told.is_loopback() {
            warn!(told = %told, "clients are told an address on which the broker does not listen: set bindAddress");
        }
        let name_server = self.name_server.as_ref().map(namesrv::Running::address);
        if is_open && name_server.is_some_and(|address| address.ip().is_loopback()) {
            warn!(
                "the name server listens on loopback only, other machines do not find the broker: set namesrvListenAddress"
            );
        }
        if name_server.is_none() && self.broker.options().name_servers.is_empty() {
            warn!("there is no name server, clients do not find the broker: set namesrvAddr or namesrvListenAddress");
        }
    }

    /// Where clients find the broker, in words.
    pub(super) fn name_servers(&self) -> String {
        match &self.name_server {
            Some(own) => own.address().to_string(),
            None => self.broker.options().name_servers.join(";"),
        }
    }

    /// The address that clients are told.
    pub(super) fn address(&self) -> SocketAddr {
        self.broker.options().advertised
    }

    /// Ends only when something is broken, with the reason.
    async fn ended(&mut self) -> String {
        match &mut self.name_server {
            Some(name_server) => name_server.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Leaves the name servers, takes no more requests, finishes what is in hand, saves and closes.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        self.broker.stop(&[&self.server], STOP_MAX).await;
        if let Some(name_server) = self.name_server {
            name_server.stop().await;
        }
        drop(self.server);
        let store = self.store;
        let stopped = tokio::task::spawn_blocking(move || store.stop()).await;
        match stopped {
            Ok(Ok(())) => {
                info!("store closed");
                Ok(())
            }
            Ok(Err(error)) => Err(Failure::because("the store could not be closed cleanly", &error)),
            Err(error) => Err(Failure::because("the store could not be closed", &error)),
        }
    }
}

/// Where the broker listens and is found.
struct Addresses {
    bind: SocketAddr,
    advertised: SocketAddr,
}

impl Addresses {
    fn of(settings: &Settings) -> Result<Self, Failure> {
        let wanted = settings.listen_port();
        let bind =
            listen::resolve(settings.bind_host(), wanted).map_err(|reason| settings.refuse("bindAddress", reason))?;
        if (1..=VIP_DISTANCE).contains(&wanted) {
            return Err(settings.refuse("listenPort", "the port two below it is needed too").into());
        }
        let port = match wanted {
            0 => listen::free_port(bind.ip()).map_err(|error| settings.refuse("listenPort", error.to_string()))?,
            port => port,
        };
        let ip = match settings.advertised_host() {
            Some(host) => listen::resolve(host, port).map_err(|reason| settings.refuse("brokerIP1", reason))?.ip(),
            None => listen::advertised_ip(bind.ip()).ok_or_else(|| {
                settings.refuse("brokerIP1", "this machine has no route to the outside; name the address")
            })?,
        };
        Ok(Self { bind: SocketAddr::new(bind.ip(), port), advertised: SocketAddr::new(ip, port) })
    }

    fn listen(&self) -> [SocketAddr; 2] {
        [self.bind, SocketAddr::new(self.bind.ip(), self.bind.port() - VIP_DISTANCE)]
    }
}

/// The topics of the broker as the level scheduler asks for them. The broker is made after the scheduler, and before it starts.
#[derive(Default)]
struct TopicsOfBroker(OnceLock<Arc<Topics>>);

impl TopicsOfBroker {
    fn set(&self, topics: Arc<Topics>) {
        assert!(self.0.set(topics).is_ok(), "a broker has one table of topics");
    }
}

impl RealTopics for TopicsOfBroker {
    fn resolve(&self, topic: &str, queue_id: u32, waiting_since: PhysicalOffset) -> RealQueue {
        let topics = self.0.get().expect("the scheduler starts after the broker was made");
        match topics.resolve(topic, QueueId(queue_id), waiting_since) {
            Resolved::Queue(queue_id) => RealQueue::Deliver(queue_id),
            Resolved::Deleted => RealQueue::Deleted,
        }
    }

    fn queue_count(&self) -> u64 {
        self.0.get().map_or(0, |topics| topics.queue_count())
    }
}

/// The name server of this process as the broker registers with it.
struct Embedded(Arc<NameServer>);

impl Registry for Embedded {
    fn register(&self, announcement: Announcement) {
        self.0.register(Registration {
            cluster: announcement.cluster,
            name: announcement.name,
            address: announcement.address,
            ha_address: announcement.ha_address,
            broker_id: announcement.broker_id,
            expiry: None,
            acting_master: false,
            topics: announcement.topics,
            is_complete: true,
        });
    }

    fn unregister(&self, cluster: &str, address: &str) {
        self.0.unregister(cluster, address);
    }
}

/// Ends the process: a promise can no longer be kept. What was acknowledged as durable is durable.
fn fatal(reason: &str) -> ! {
    error!(reason, "the broker stops, it can no longer keep its promises");
    // There is nobody left to tell if this fails.
    let _ = writeln!(std::io::stderr(), "latermq: stopped: {reason}");
    std::process::exit(i32::from(BROKEN))
}

fn not_opened(settings: &Settings, error: &StoreError) -> Failure {
    match error {
        StoreError::Option { key, reason } => settings.refuse(key, reason.as_str()).into(),
        StoreError::FileLength { key, .. } => Failure::misused(format!("{}{}", chain(error), origin(settings, key))),
        _ => Failure::because("cannot open the store", error),
    }
}

/// Where a key got its value, in brackets.
fn origin(settings: &Settings, key: &str) -> String {
    settings.origin(key).map(|origin| format!(" (key {key}, {origin})")).unwrap_or_default()
}

async fn close(store: Arc<MessageStore>) {
    match tokio::task::spawn_blocking(move || store.stop()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => error!(error = chain(&error), "the store could not be closed cleanly"),
        Err(error) => error!(error = chain(&error), "the store could not be closed"),
    }
}
