//! Addresses to listen on and to be found at, and signals to stop on.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket},
    time::{Duration, Instant},
};

use tokio::signal::unix::{SignalKind, signal};

use super::failure::Failure;

/// How far below the main port the port for old clients lies.
///
/// Source: Apache RocketMQ, `MixAll.brokerVIPChannel`.
pub(super) const VIP_DISTANCE: u16 = 2;
/// Pairs of free ports that are tried.
const PORT_TRIES: usize = 100;
/// A signal so soon after the first is the same wish: some tools, such as timeout(1), send one to the process and one to its group.
const SAME_WISH: Duration = Duration::from_millis(500);
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

    /// As [`StopSignals::next`], for the wish that follows one made at `first_at`.
    pub(super) async fn next_wish(&mut self, first_at: Instant) -> &'static str {
        loop {
            let signal = self.next().await;
            if is_another_wish(first_at, Instant::now()) {
                return signal;
            }
        }
    }
}

fn is_another_wish(first_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(first_at) >= SAME_WISH
}

/// Checks the form of `host:port`.
pub(super) fn check_pair(pair: &str) -> Result<(), String> {
    let (host, port) = pair.rsplit_once(':').ok_or("must be host:port")?;
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || host.contains(char::is_whitespace) || (host.contains(':') && !is_bracketed) {
        return Err("must be host:port, an IPv6 address in brackets".to_owned());
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err(format!("must be host:port, and {port:?} is no port")),
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

    #[test]
    fn a_server_is_named_by_host_and_port() {
        for right in ["127.0.0.1:9876", "[::1]:9876", "broker-a.local:1"] {
            assert_eq!(check_pair(right), Ok(()), "{right}");
        }
        for wrong in ["garbage", "host:", ":9876", "::1", "::1:9876", "host:0", "host:65536", "host:port", "a b:1"] {
            assert!(check_pair(wrong).is_err(), "{wrong}");
        }
    }

    /// timeout(1) signals the process and its group: the broker took that for a second wish and ended in the middle of its stop.
    #[test]
    fn two_signals_within_half_a_second_are_one_wish() {
        let first_at = Instant::now();

        assert!(!is_another_wish(first_at, first_at));
        assert!(!is_another_wish(first_at, first_at + Duration::from_millis(499)));
        assert!(is_another_wish(first_at, first_at + Duration::from_millis(500)));
    }
}
