//! Addresses to listen on and to be found at, and signals to stop on.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket},
};

use tokio::signal::unix::{SignalKind, signal};

use super::failure::Failure;

/// How far below the main port the port for old clients lies.
///
/// Source: Apache RocketMQ, `MixAll.brokerVIPChannel`.
pub(super) const VIP_DISTANCE: u16 = 2;
/// Pairs of free ports that are tried.
const PORT_TRIES: usize = 100;
/// Addresses of documentation networks: a route to them is a route to the outside. Nothing is sent to them.
const OUTSIDE: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9),
];

/// The address of a host and port; IPv4 if there is one.
pub(super) fn resolve(host: &str, port: u16) -> Result<SocketAddr, String> {
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(|error| error.to_string())?.collect();
    let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    first.copied().ok_or_else(|| "no address has this name".to_owned())
}

/// As [`resolve`], for `host:port`.
pub(super) fn resolve_pair(pair: &str) -> Result<SocketAddr, String> {
    let addresses: Vec<SocketAddr> = pair.to_socket_addrs().map_err(|error| error.to_string())?.collect();
    let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    first.copied().ok_or_else(|| "no address has this name".to_owned())
}

/// A port that is free together with the one for old clients.
pub(super) fn free_port(ip: IpAddr) -> io::Result<u16> {
    for _ in 0..PORT_TRIES {
        let listener = TcpListener::bind((ip, 0))?;
        let port = listener.local_addr()?.port();
        if port > VIP_DISTANCE && TcpListener::bind((ip, port - VIP_DISTANCE)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no pair of free ports"))
}

/// The address that clients are told when none is named: the one listened on, or that of the route to the outside.
pub(super) fn advertised_ip(bound: IpAddr) -> Option<IpAddr> {
    if !bound.is_unspecified() {
        return Some(bound);
    }
    let outside = OUTSIDE.iter().find(|outside| outside.is_ipv4() == bound.is_ipv4())?;
    // Connecting a datagram socket sends nothing; it only picks the route.
    let socket = UdpSocket::bind((bound, 0)).ok()?;
    socket.connect(outside).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
}

/// Ends when the process is asked to stop, with the signal's name.
pub(super) struct StopSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl StopSignals {
    /// From now on these signals no longer end the process by themselves. Must be called within a runtime.
    pub(super) fn catch() -> Result<Self, Failure> {
        let catch = |kind| signal(kind).map_err(|error| Failure::because("cannot catch signals", &error));
        Ok(Self { terminate: catch(SignalKind::terminate())?, interrupt: catch(SignalKind::interrupt())? })
    }

    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_listened_on_is_advertised_as_it_is() {
        assert_eq!(advertised_ip(Ipv4Addr::LOCALHOST.into()), Some(Ipv4Addr::LOCALHOST.into()));
        assert_ne!(advertised_ip(Ipv4Addr::UNSPECIFIED.into()), Some(Ipv4Addr::UNSPECIFIED.into()));
    }

    #[test]
    fn addresses_are_resolved_with_and_without_brackets() {
        assert_eq!(resolve_pair("[::1]:9876"), Ok(SocketAddr::from((Ipv6Addr::LOCALHOST, 9876))));
        assert_eq!(resolve("::1", 1), Ok(SocketAddr::from((Ipv6Addr::LOCALHOST, 1))));
        assert!(resolve_pair("127.0.0.1").is_err());
    }
}
