//! Name servers and brokers as a client sees them: calls over the wire to any RocketMQ cluster.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::Args;

use super::{failure::Failure, listen};
use crate::{
    protocol::{
        Command, RequestCode, ResponseCode,
        body::{ClusterInfo, KvTable, TopicRouteData},
        header::RouteHeader,
        json,
    },
    remoting::{Client, ConnectionOptions, Handler, NoRequests},
};

/// Broker id of a master.
const MASTER: i64 = 0;

/// Arguments of every command that talks to a cluster.
#[derive(Debug, Clone, Args)]
pub(super) struct ClusterArgs {
    /// Name servers, host:port; several are separated by ;
    #[arg(
        short = 'n',
        long = "namesrv",
        value_name = "ADDRESSES",
        env = "NAMESRV_ADDR",
        default_value = "127.0.0.1:9876"
    )]
    name_servers: String,

    /// Seconds that a server may take to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

impl ClusterArgs {
    /// The cluster of these name servers.
    pub(super) fn of(name_servers: &str) -> Self {
        Self { name_servers: name_servers.to_owned(), timeout: 5 }
    }
}

/// A cluster: finds brokers through name servers and keeps one connection to each server.
pub(super) struct Cluster {
    name_servers: Vec<String>,
    timeout: Duration,
    handler: Arc<dyn Handler>,
    clients: Mutex<HashMap<String, Arc<Client>>>,
}

impl Cluster {
    pub(super) fn new(args: &ClusterArgs) -> Result<Self, Failure> {
        Self::with_handler(args, Arc::new(NoRequests))
    }

    /// Requests that come from brokers go to `handler`.
    pub(super) fn with_handler(args: &ClusterArgs, handler: Arc<dyn Handler>) -> Result<Self, Failure> {
        let name_servers: Vec<String> = args
            .name_servers
            .split([';', ','])
            .map(str::trim)
            .filter(|server| !server.is_empty())
            .map(str::to_owned)
            .collect();
        if name_servers.is_empty() {
            return Err(Failure::misused("no name server is named: use -n host:port"));
        }
        for server in &name_servers {
            listen::check_pair(server)
                .map_err(|reason| Failure::misused(format!("name server {server:?}: {reason}")))?;
        }
        Ok(Self { name_servers, timeout: Duration::from_secs(args.timeout), handler, clients: Mutex::default() })
    }

    pub(super) fn name_servers(&self) -> &[String] {
        &self.name_servers
    }

    /// The connection to a server, made if need be.
    pub(super) async fn client(&self, address: &str) -> Result<Arc<Client>, Failure> {
        let known = self.clients().get(address).filter(|client| !client.is_closed()).cloned();
        if let Some(client) = known {
            return Ok(client);
        }
        let options = ConnectionOptions::default();
        let client = Arc::new(Client::connect_with(address, self.timeout, Arc::clone(&self.handler), options).await?);
        self.clients().insert(address.to_owned(), Arc::clone(&client));
        Ok(client)
    }

    /// Asks a server, whatever it answers.
    pub(super) async fn ask(&self, address: &str, request: Command) -> Result<Command, Failure> {
        self.ask_within(address, request, self.timeout).await
    }

    /// Asks a server that may take longer.
    pub(super) async fn ask_within(
        &self,
        address: &str,
        request: Command,
        timeout: Duration,
    ) -> Result<Command, Failure> {
        Ok(self.client(address).await?.request(request, timeout).await?)
    }

    /// Asks a server for something that has to succeed.
    pub(super) async fn call(&self, address: &str, request: Command) -> Result<Command, Failure> {
        let code = request.code;
        let answer = self.ask(address, request).await?;
        if answer.code == ResponseCode::SUCCESS { Ok(answer) } else { Err(refusal(address, code, &answer)) }
    }

    /// Sends a request that wants no answer over a connection that is there; says whether it could.
    pub(super) fn oneway(&self, address: &str, request: Command) -> bool {
        let client = self.clients().get(address).cloned();
        client.is_some_and(|client| client.oneway(request).is_ok())
    }

    /// Asks the first name server that answers.
    async fn ask_name_servers(&self, request: Command) -> Result<(String, Command), Failure> {
        let mut failures = Vec::new();
        for server in &self.name_servers {
            match self.ask(server, request.clone()).await {
                Ok(answer) => return Ok((server.clone(), answer)),
                Err(failure) => failures.push(failure.to_string()),
            }
        }
        Err(Failure::failed(format!("no name server answers: {}", failures.join("; "))))
    }

    /// Where a topic is; `None` if nobody knows it.
    pub(super) async fn route(&self, topic: &str) -> Result<Option<TopicRouteData>, Failure> {
        let header = RouteHeader { topic: topic.into(), accept_standard_json_only: Some(true) };
        let request = Command::request(RequestCode::GET_ROUTEINFO_BY_TOPIC).with_ext(header.encode());
        let (server, answer) = self.ask_name_servers(request).await?;
        match answer.code {
            ResponseCode::SUCCESS => body(&server, &answer).map(Some),
            ResponseCode::TOPIC_NOT_EXIST => Ok(None),
            _ => Err(refusal(&server, RequestCode::GET_ROUTEINFO_BY_TOPIC, &answer)),
        }
    }

    /// Asks the first name server that answers for something that has to succeed, and reads the body.
    pub(super) async fn read_from_name_server<T: serde::de::DeserializeOwned>(
        &self,
        request: Command,
    ) -> Result<T, Failure> {
        let code = request.code;
        let (server, answer) = self.ask_name_servers(request).await?;
        if answer.code == ResponseCode::SUCCESS { body(&server, &answer) } else { Err(refusal(&server, code, &answer)) }
    }

    /// The masters of the cluster: broker name to address.
    pub(super) async fn masters(&self) -> Result<BTreeMap<String, String>, Failure> {
        let info: ClusterInfo =
            self.read_from_name_server(Command::request(RequestCode::GET_BROKER_CLUSTER_INFO)).await?;
        let masters = info
            .broker_addr_table
            .into_iter()
            .filter_map(|(name, mut broker)| Some((name, broker.broker_addrs.remove(&MASTER)?)));
        let masters: BTreeMap<_, _> = masters.collect();
        if masters.is_empty() {
            return Err(Failure::failed("the name server knows no broker"));
        }
        Ok(masters)
    }

    /// A broker's configuration: keys with their values.
    pub(super) async fn broker_config(&self, address: &str) -> Result<HashMap<String, String>, Failure> {
        let answer = self.call(address, Command::request(RequestCode::GET_BROKER_CONFIG)).await?;
        let entries = crate::config::parse_properties(&answer.body.to_bytes()).map_err(|error| {
            Failure::because(format_args!("{address} sent a configuration that cannot be read"), &error)
        })?;
        Ok(entries.into_iter().map(|entry| (entry.key, entry.value)).collect())
    }

    /// A broker's figures.
    pub(super) async fn broker_figures(&self, address: &str) -> Result<BTreeMap<String, String>, Failure> {
        let answer = self.call(address, Command::request(RequestCode::GET_BROKER_RUNTIME_INFO)).await?;
        Ok(body::<KvTable>(address, &answer)?.table)
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Client>>> {
        // Nothing that panics runs under this lock.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address of the master among a broker's addresses.
pub(super) fn master_of<'a>(route: &'a TopicRouteData, broker: &str) -> Option<&'a str> {
    let data = route.broker_datas.iter().find(|data| data.broker_name == broker)?;
    data.broker_addrs.get(&MASTER).map(String::as_str)
}

/// The body of an answer.
pub(super) fn body<T: serde::de::DeserializeOwned>(address: &str, answer: &Command) -> Result<T, Failure> {
    let bytes = answer.body.to_bytes();
    json::from_slice(&bytes)
        .map_err(|error| Failure::because(format_args!("{address} sent an answer that cannot be read"), &error))
}

/// What a server said no to, in its own words.
pub(super) fn refusal(address: &str, request: i32, answer: &Command) -> Failure {
    let request = RequestCode::name(request).map_or_else(|| request.to_string(), str::to_owned);
    let name = ResponseCode::name(answer.code).unwrap_or("unknown code");
    let remark = answer.remark.as_deref().unwrap_or("no reason given");
    Failure::failed(format!(
        "{address} answered {request} with {name} ({}): {}",
        answer.code,
        super::print::shown(remark.as_bytes(), 500)
    ))
}

/// A runtime for a command that only talks: one thread is enough.
pub(super) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because("cannot start", &error))?;
    runtime.block_on(future)
}
