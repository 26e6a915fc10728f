//! Broker and name server over real sockets.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use latermq::{
    broker::BrokerOptions,
    namesrv::{NameServer, NameServerOptions},
    protocol::{Command, ResponseCode},
    remoting::{Client, Server, ServerOptions},
};

use crate::rig::{
    PullRequest, Rig, heartbeat, heartbeat_request, message, pull_header, request, rig_with, store_options,
};

const SOON: Duration = Duration::from_secs(20);

async fn serve(handler: Arc<dyn latermq::remoting::Handler>) -> Server {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    Server::bind(&[any], handler, ServerOptions::default()).await.unwrap()
}

async fn connect(server: &Server) -> Client {
    Client::connect(server.local_addr(), SOON).await.unwrap()
}

async fn ask(client: &Client, request: Command) -> Command {
    client.request(request, SOON).await.unwrap()
}

/// Asks for a route until it is there, or gone.
async fn wait_for_route(client: &Client, topic: &'static str, code: i32) {
    let ask_for_route = async { while ask(client, request(105, &[("topic", topic)])).await.code != code {} };
    tokio::time::timeout(SOON, ask_for_route).await.unwrap();
}

/// Waits until the first message of a topic can be read.
async fn wait_for_message(client: &Client) {
    let max = request(30, &[("topic", "T"), ("queueId", "0")]);
    let readable = async { while ask(client, max.clone()).await.ext.get("offset") != Some("1") {} };
    tokio::time::timeout(SOON, readable).await.unwrap();
}

/// Waits until a pull is held.
async fn wait_for_held_pull(rig: &Rig) {
    let held = async {
        while rig.broker.held_pulls() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, held).await.unwrap();
}

fn outside(name_server: &Server) -> BrokerOptions {
    BrokerOptions {
        name_servers: vec![name_server.local_addr().to_string()],
        register_interval: Duration::from_millis(20),
        go_away: Duration::from_millis(300),
        ..BrokerOptions::default()
    }
}

fn started(options: BrokerOptions) -> Rig {
    let rig = rig_with(options, store_options());
    rig.store.start().unwrap();
    rig.broker.start();
    rig
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outside_name_server_knows_the_broker_from_its_start_to_its_stop() {
    // B128
    let clock = Arc::new(latermq::env::TestClock::new(latermq::model::Timestamp::EPOCH));
    let name_server = serve(NameServer::new(NameServerOptions::default(), clock)).await;
    let rig = started(outside(&name_server));
    let server = serve(rig.broker.clone()).await;
    let (to_names, to_broker) = (connect(&name_server).await, connect(&server).await);

    wait_for_route(&to_names, "TBW102", 0).await;
    assert_eq!(ask(&to_broker, message("T").request()).await.code, 0);
    wait_for_route(&to_names, "T", 0).await;

    rig.broker.stop(&[&server], SOON).await;
    wait_for_route(&to_names, "T", 17).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_server_that_comes_back_is_told_again() {
    let clock = Arc::new(latermq::env::TestClock::new(latermq::model::Timestamp::EPOCH));
    let first = serve(NameServer::new(NameServerOptions::default(), clock.clone())).await;
    let rig = started(outside(&first));
    wait_for_route(&connect(&first).await, "TBW102", 0).await;

    let address = first.local_addr();
    first.shutdown(Duration::from_millis(10)).await;
    let again = NameServer::new(NameServerOptions::default(), clock);
    let second = Server::bind(&[address], again, ServerOptions::default()).await.unwrap();

    wait_for_route(&connect(&second).await, "TBW102", 0).await;
    rig.broker.stop(&[], SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_broker_sends_clients_away_by_their_version() {
    let rig = started(BrokerOptions { go_away: Duration::from_secs(2), ..BrokerOptions::default() });
    let server = serve(rig.broker.clone()).await;
    let client = connect(&server).await;
    assert_eq!(ask(&client, message("T").request()).await.code, 0);
    wait_for_message(&client).await;
    let held = client.request(pull_header("TOOLS_CONSUMER", "T", 0, 1).held().request(), SOON);
    let servers = [&server];
    let sent_away = async {
        while ask(&client, request(30, &[("topic", "T"), ("queueId", "0")])).await.code == 0 {}
        let new = ask(&client, Command { version: 476, ..message("T").request() }).await.code;
        let old = ask(&client, Command { version: 475, ..message("T").request() }).await.code;
        let commit = [("consumerGroup", "TOOLS_CONSUMER"), ("topic", "T"), ("queueId", "0"), ("commitOffset", "1")];
        let last = ask(&client, request(15, &commit)).await.code;
        (new, old, last)
    };
    let stopping = async {
        wait_for_held_pull(&rig).await;
        tokio::join!(rig.broker.stop(&servers, SOON), sent_away).1
    };
    let (answers, held) = tokio::join!(stopping, held);

    assert_eq!(answers, (ResponseCode::GO_AWAY, ResponseCode::SERVICE_NOT_AVAILABLE, 0));
    assert!(held.is_err(), "the end of the connection makes a client pull again; an answer would make it pull here");
    assert!(client.request(request(34, &[]), SOON).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_pull_is_woken_over_the_network() {
    let rig = started(BrokerOptions::default());
    let server = serve(rig.broker.clone()).await;
    let (consumer, producer) = (connect(&server).await, connect(&server).await);
    assert_eq!(ask(&consumer, heartbeat_request(&heartbeat("c", "g", &[("T", "*")]))).await.code, 0);
    assert_eq!(ask(&producer, message("T").request()).await.code, 0);

    wait_for_message(&consumer).await;
    let next = consumer.request(pull_header("g", "T", 0, 1).held().request(), SOON);
    let sends = async {
        wait_for_held_pull(&rig).await;
        ask(&producer, message("T").request()).await
    };
    let (next, sent) = tokio::join!(next, sends);

    assert_eq!((next.unwrap().code, sent.code), (0, 0));
    rig.broker.stop(&[&server], SOON).await;
    rig.store.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_whose_connection_breaks_leaves_its_group() {
    let rig = started(BrokerOptions::default());
    let server = serve(rig.broker.clone()).await;
    let (stays, goes) = (connect(&server).await, connect(&server).await);
    for (client, id) in [(&stays, "a"), (&goes, "b")] {
        ask(client, heartbeat_request(&heartbeat(id, "g", &[("T", "*")]))).await;
    }

    goes.close().await;

    let members = async {
        loop {
            let listed = ask(&stays, request(38, &[("consumerGroup", "g")])).await;
            if crate::rig::text(&listed) == r#"{"consumerIdList":["a"]}"# {
                break;
            }
        }
    };
    tokio::time::timeout(SOON, members).await.unwrap();
    rig.broker.stop(&[&server], SOON).await;
}
