//! `latermq namesrv`: a name server alone.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::Args;
use tracing::{info, warn};

use super::{cluster::block_on, configure::ConfigArgs, failure::Failure, limits, listen, log, print};
use crate::{
    config::Settings,
    env::SystemClock,
    namesrv::{NameServer, NameServerOptions},
    remoting::Server,
};

/// How long requests in hand may take when the name server stops.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Run a name server alone
///
/// A broker has a name server of its own; this is for several brokers, latermq's or Apache's. Brokers find it by namesrvAddr. What it knows
/// lives in memory; brokers tell it again every half minute.
#[derive(Debug, Clone, Args)]
pub(super) struct NamesrvArgs {
    /// Address to listen on, host:port: the key namesrvListenAddress
    #[arg(short, long, value_name = "ADDRESS")]
    listen: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &NamesrvArgs) -> Result<(), Failure> {
    let mut config = args.config.clone();
    if let Some(listen) = &args.listen {
        config.set("namesrvListenAddress", listen);
    }
    let loaded = config.load()?;
    if config.print_config {
        return Ok(print::line(loaded.settings.to_explained_text().trim_end())?);
    }
    log::start(loaded.settings.logs_json(), "info");
    for warning in &loaded.warnings {
        warn!("{warning}");
    }
    limits::raise_open_files();
    block_on(async {
        let mut signals = listen::StopSignals::catch()?;
        let mut running = start(&loaded.settings, loaded.settings.name_server_options()).await?;
        info!(version = env!("CARGO_PKG_VERSION"), address = %running.address(), "name server started");
        tokio::select! {
            signal = signals.next() => info!(signal, "stopping"),
            reason = running.ended() => return Err(Failure::Broken(reason)),
        }
        running.stop().await;
        info!("name server stopped");
        Ok(())
    })
}

/// A name server with its sockets.
pub(super) struct Running {
    pub(super) name_server: Arc<NameServer>,
    server: Server,
    ticks: tokio::task::JoinHandle<()>,
}

/// Starts a name server where the settings say.
pub(super) async fn start(settings: &Settings, options: NameServerOptions) -> Result<Running, Failure> {
    let key = "namesrvListenAddress";
    let Some(pair) = settings.name_server_listen_address() else {
        return Err(settings.refuse(key, "there must be an address to listen on").into());
    };
    let address = listen::resolve_pair(&pair).map_err(|reason| settings.refuse(key, reason))?;
    let name_server = NameServer::new(options, Arc::new(SystemClock::new()));
    let server =
        Server::bind(&[address], Arc::clone(&name_server) as _, settings.server_options()).await.map_err(|error| {
            Failure::failed(format!(
                "{error} (name server; key {key}, {})",
                settings.origin(key).map(ToString::to_string).unwrap_or_default()
            ))
        })?;
    let ticks = tokio::spawn(Arc::clone(&name_server).run());
    Ok(Running { name_server, server, ticks })
}

impl Running {
    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Ends only when something is broken, with the reason.
    pub(super) async fn ended(&mut self) -> String {
        match (&mut self.ticks).await {
            Ok(()) => "the name server's clock task ended unexpectedly".to_owned(),
            Err(error) => format!("the name server's clock task ended: {error}"),
        }
    }

    /// Stops accepting, answers what is in hand, closes.
    pub(super) async fn stop(self) {
        self.ticks.abort();
        self.server.shutdown(STOP_MAX).await;
    }
}
