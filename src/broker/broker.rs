//! The broker: its parts, and their start and stop.

use std::{
    collections::VecDeque,
    future::Future,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, task::JoinHandle};
use tracing::info;

use super::{
    BrokerOptions, Configuration, Registry, Topics,
    blocking::blocking,
    consumers::Consumers,
    groups::Groups,
    heartbeat,
    locks::QueueLocks,
    offsets::ConsumerOffsets,
    producers::Producers,
    pull::{HeldPull, answer_held, spawn_answers},
    pull_hold::PullHold,
    registration::Registration,
    router,
    unique_key::UniqueKeys,
};
use crate::{
    model::{QueueId, QueueOffset},
    protocol::{Command, body::DataVersion},
    remoting::{Connection, Figures, Handler, Responder, Server},
    store::{ArrivalListener, MessageStore},
};

/// Longest pause between two calls of [`Broker::tick`].
const TICK: Duration = Duration::from_secs(1);

/// Answers what clients ask of a store.
///
/// Parts that wait for time are steppable: [`Broker::tick`] and [`Broker::answer_expired_pulls`] do what is due by the store's clocks; what
/// [`Broker::start`] spawns only calls them.
pub struct Broker {
    options: RwLock<Arc<BrokerOptions>>,
    pub(super) configuration: OnceLock<Arc<dyn Configuration>>,
    pub(super) remoting: OnceLock<Arc<Figures>>,
    config_version: Mutex<DataVersion>,
    pub(super) store: Arc<MessageStore>,
    pub(super) topics: Arc<Topics>,
    pub(super) groups: Groups,
    pub(super) consumers: Consumers,
    pub(super) producers: Producers,
    pub(super) offsets: ConsumerOffsets,
    pub(super) locks: QueueLocks,
    pub(super) hold: PullHold<HeldPull>,
    /// Rung when the earliest deadline of a held pull became earlier.
    pub(super) hold_timer: Notify,
    pub(super) unique_keys: UniqueKeys,
    pub(super) started_at: Duration,
    registration: Arc<Registration>,
    due: Mutex<Due>,
    stopping: AtomicBool,
    runtime: OnceLock<Handle>,
    tasks: Mutex<Tasks>,
}

/// When periodic work is to be done next, in boot time.
struct Due {
    save_at: Duration,
    scan_at: Duration,
}

#[derive(Default)]
struct Tasks {
    /// Run for ever; aborted at the end.
    drivers: Vec<JoinHandle<()>>,
    /// One for each outside name server; they end by themselves once they left it.
    registrations: Vec<JoinHandle<()>>,
}

/// Hands arrivals from the store to held pulls.
struct Arrivals {
    broker: Weak<Broker>,
}

impl ArrivalListener for Arrivals {
    fn arrived(&self, topic: &str, queue_id: QueueId, max: QueueOffset, tag_code: i64) {
        let Some(broker) = self.broker.upgrade() else {
            return;
        };
        let woken = broker.hold.arrived(topic, queue_id, max.0, tag_code);
        if !woken.is_empty() {
            broker.answer_woken(woken);
        }
    }
}

impl Broker {
    /// A broker on an open store that has not been started: loads topics, groups and offsets, and listens for arrivals.
    pub fn new(options: BrokerOptions, store: Arc<MessageStore>) -> Arc<Self> {
        let topics = Arc::new(Topics::load(&options, Arc::clone(&store)));
        let registration = Arc::new(Registration::new(&options, Arc::clone(&topics)));
        let announced = Arc::downgrade(&registration);
        topics.on_change(move || {
            if let Some(registration) = announced.upgrade() {
                registration.announce();
            }
        });
        let now = store.env().clock.since_boot();
        let broker = Arc::new(Self {
            groups: Groups::load(&options, Arc::clone(&store)),
            consumers: Consumers::default(),
            producers: Producers::default(),
            offsets: ConsumerOffsets::load(options.offsets_version_step, Arc::clone(&store)),
            locks: QueueLocks::new(options.lock_expiry),
            hold: PullHold::new(options.held_max),
            hold_timer: Notify::new(),
            unique_keys: UniqueKeys::new(options.advertised),
            started_at: now,
            registration,
            due: Mutex::new(Due { save_at: now + options.save_offsets_interval, scan_at: now }),
            stopping: AtomicBool::new(false),
            runtime: OnceLock::new(),
            tasks: Mutex::default(),
            config_version: Mutex::new(DataVersion::default().next(store.env().clock.wall().0)),
            configuration: OnceLock::new(),
            remoting: OnceLock::new(),
            topics,
            store,
            options: RwLock::new(Arc::new(options)),
        });
        broker.store.set_arrival_listener(Arc::new(Arrivals { broker: Arc::downgrade(&broker) }));
        broker
    }

    /// The topics: where a plugin may send a message that has waited.
    pub fn topics(&self) -> &Arc<Topics> {
        &self.topics
    }

    /// The options in force. Take them once for a request: they may change between two calls.
    pub fn options(&self) -> Arc<BrokerOptions> {
        Arc::clone(&self.options.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The configuration that requests see and change. Set once; without it none is shown, and none can be changed.
    pub fn set_configuration(&self, configuration: Arc<dyn Configuration>) {
        let _ = self.configuration.set(configuration);
    }

    /// What the server that this broker answers for counts, for tools. Set once.
    pub fn set_remoting(&self, figures: Arc<Figures>) {
        let _ = self.remoting.set(figures);
    }

    /// How often the configuration changed.
    pub(super) fn config_version(&self) -> DataVersion {
        *self.config_version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts other options in force, of which only those may differ that can change while the broker runs.
    pub(super) fn change_options(&self, options: &BrokerOptions) {
        {
            let mut version = self.config_version.lock().unwrap_or_else(PoisonError::into_inner);
            *version = version.next(self.store.env().clock.wall().0);
        }
        self.groups.set_auto_create(options.auto_create_groups);
        self.registration.set_permission(options.permission);
        *self.options.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(options.clone());
        // Also the moment to tell name servers.
        self.topics.change_options(options);
        self.hold_timer.notify_one();
    }

    /// The name server of this process, told of every topic from now on. Set once.
    pub fn set_registry(&self, registry: Arc<dyn Registry>) {
        self.registration.set_registry(registry);
        self.registration.announce();
    }

    /// Starts what runs by itself: timers, and a task for each outside name server. Must be called within a tokio runtime.
    pub fn start(self: &Arc<Self>) {
        let _ = self.runtime.set(Handle::current());
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.drivers.push(self.watched("pull timer", Arc::clone(self).run_pull_timer()));
        tasks.drivers.push(self.watched("broker timer", Arc::clone(self).run_timer()));
        for name_server in &self.options().name_servers {
            let keeper = Arc::clone(&self.registration).keep(name_server.clone());
            tasks.registrations.push(self.watched("registration", keeper));
        }
    }

    /// Stops cleanly. Leaves the name servers, sends clients away, lets what is in flight be answered for at most `deadline`, then saves.
    /// The store is still to be stopped afterwards.
    pub async fn stop(&self, servers: &[&Server], deadline: Duration) {
        self.registration.stop();
        let leaving = {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut tasks.registrations)
        };
        for task in leaving {
            let _ = task.await;
        }
        self.stopping.store(true, Ordering::SeqCst);
        // A Java client of version 5.3 that is told to go away while it pulls can lose track of the queue for two minutes. When its
        // connection ends it pulls again within seconds.
        for held in self.hold.drain() {
            held.leave_unanswered();
        }
        if servers.iter().any(|server| !server.connections().is_empty()) {
            tokio::time::sleep(self.options().go_away).await;
        }
        for server in servers {
            let cut_off = server.shutdown(deadline).await;
            if cut_off > 0 {
                tracing::warn!(connections = cut_off, "connections cut off at the stop");
            }
        }
        let drivers = {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut tasks.drivers)
        };
        drivers.iter().for_each(JoinHandle::abort);
        self.save();
        info!("broker stopped");
    }

    /// Writes what is only in memory: consumer offsets, and what could not be written before. What fails is logged, and tried again by the next
    /// call.
    pub fn save(&self) {
        // Logged where it fails.
        let _ = blocking(|| self.offsets.save());
        self.topics.save();
        self.groups.save();
    }

    /// Does what is due: saves consumer offsets, forgets silent clients and old locks.
    pub fn tick(&self) {
        let (now, options) = (self.now(), self.options());
        let (saves, scans) = {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            let (saves, scans) = (now >= due.save_at, now >= due.scan_at);
            if saves {
                due.save_at = now + options.save_offsets_interval;
            }
            if scans {
                due.scan_at = now + options.client_scan_interval;
            }
            (saves, scans)
        };
        if saves {
            self.save();
        }
        if scans {
            heartbeat::expire(self);
            self.locks.tick(now);
        }
    }

    /// Answers held pulls whose time is over; gives the time when it is to be called next.
    pub fn answer_expired_pulls(&self) -> Option<Duration> {
        for held in self.hold.expired(self.now()) {
            answer_held(self, held);
        }
        self.hold.next_deadline()
    }

    /// How many pulls are held.
    pub fn held_pulls(&self) -> usize {
        self.hold.len()
    }

    /// Boot time.
    pub(super) fn now(&self) -> Duration {
        self.store.env().clock.since_boot()
    }

    /// Whether clients are to be sent away.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Answers woken pulls away from the dispatching thread, or right here if nothing was started.
    fn answer_woken(self: &Arc<Self>, woken: Vec<HeldPull>) {
        match self.runtime.get() {
            Some(runtime) => spawn_answers(self, runtime, woken),
            None => woken.into_iter().for_each(|held| answer_held(self, held)),
        }
    }

    async fn run_pull_timer(self: Arc<Self>) {
        loop {
            match self.answer_expired_pulls() {
                None => self.hold_timer.notified().await,
                Some(deadline) => {
                    let pause = deadline.saturating_sub(self.now());
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.hold_timer.notified() => {}
                    }
                }
            }
        }
    }

    async fn run_timer(self: Arc<Self>) {
        loop {
            let pause = TICK.min(self.options().save_offsets_interval).max(Duration::from_millis(1));
            tokio::time::sleep(pause).await;
            self.tick();
        }
    }

    /// Spawns a task; if it panics the broker ends with that as its reason.
    fn watched(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let fatal = Arc::clone(&self.store.env().fatal);
        tokio::spawn(async move {
            struct Bell(&'static str, Arc<dyn Fn(&str) + Send + Sync>);
            impl Drop for Bell {
                fn drop(&mut self) {
                    if std::thread::panicking() {
                        (self.1)(&format!("task {} ended by a panic", self.0));
                    }
                }
            }
            let _bell = Bell(name, fatal);
            work.await;
        })
    }
}

impl Handler for Broker {
    fn handle(&self, connection: &Arc<Connection>, request: Command, responder: Responder) {
        self.handle_some(connection, &mut VecDeque::from([(request, responder)]));
    }

    fn handle_some(&self, connection: &Arc<Connection>, requests: &mut VecDeque<(Command, Responder)>) {
        router::route_some(self, connection, requests);
    }

    fn closed(&self, connection: &Arc<Connection>) {
        self.hold.closed(connection.id());
        heartbeat::closed(self, connection.id());
    }
}
