//! Ill-behaved clients beside a load, to see what they cost the others.

use std::{
    io::{self, Write},
    net::{TcpStream, ToSocketAddrs},
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use crate::protocol::{Command, RequestCode, frame::encode_whole};

/// Pause between two looks at the whole crowd.
const PAUSE: Duration = Duration::from_millis(100);
/// Looks between two bytes of a trickling client.
const TRICKLE_LOOKS: u32 = 10;
/// Bytes that a client announces and does not send.
const ANNOUNCED_BYTES: u32 = (16 << 20) - 8;

/// So many clients of one kind, such as `deaf:1000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crowd {
    kind: Kind,
    count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// They connect and say nothing.
    Idle,
    /// They announce a frame of 16 MiB and send nothing more.
    Announce,
    /// They send a byte of a request a second.
    Trickle,
    /// They ask and ask, and never read an answer.
    Deaf,
    /// They connect and leave.
    Churn,
}

/// A text that is no crowd.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no crowd: idle, announce, trickle, deaf or churn, and how many, as in deaf:1000")]
pub struct CrowdError(String);

impl FromStr for Crowd {
    type Err = CrowdError;

    fn from_str(text: &str) -> Result<Self, CrowdError> {
        let error = || CrowdError(text.into());
        let (kind, count) = text.split_once(':').ok_or_else(error)?;
        let kind = match kind {
            "idle" => Kind::Idle,
            "announce" => Kind::Announce,
            "trickle" => Kind::Trickle,
            "deaf" => Kind::Deaf,
            "churn" => Kind::Churn,
            _ => return Err(error()),
        };
        Ok(Self { kind, count: count.parse().ok().filter(|count| (1..=100_000).contains(count)).ok_or_else(error)? })
    }
}

impl Crowd {
    /// Plays the crowd until `done`; what the broker closes is opened again. Says how many were connected at last.
    pub(super) fn play(self, address: &str, done: &AtomicBool) -> io::Result<usize> {
        let target = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let request = encode_whole(&Command::request(RequestCode::GET_BROKER_CONFIG)).unwrap_or_default();
        let connect = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect(target)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let mut clients: Vec<Option<(TcpStream, usize)>> = (0..self.count).map(|_| None).collect();
        let mut look = 0_u32;
        while !done.load(Ordering::Relaxed) {
            for client in &mut clients {
                if client.is_none() || self.kind == Kind::Churn {
                    // Refused or out of descriptors: tried again at the next look.
                    *client = connect().ok().map(|stream| (stream, 0));
                }
                let Some((stream, sent)) = client else { continue };
                let bytes: &[u8] = match self.kind {
                    Kind::Idle | Kind::Churn => &[],
                    Kind::Announce if *sent > 0 => &[],
                    Kind::Announce => &ANNOUNCED_BYTES.to_be_bytes(),
                    Kind::Trickle if !look.is_multiple_of(TRICKLE_LOOKS) => &[],
                    Kind::Trickle => &request[*sent % request.len()..][..1],
                    Kind::Deaf => &request[*sent % request.len()..],
                };
                match stream.write(bytes) {
                    Ok(written) => *sent += written,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => *client = None,
                }
            }
            look += 1;
            thread::sleep(PAUSE);
        }
        Ok(clients.iter().flatten().count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_a_kind_and_a_count() {
        assert_eq!("deaf:7".parse(), Ok(Crowd { kind: Kind::Deaf, count: 7 }));
        for bad in ["", "deaf", "deaf:0", "deaf:x", "loud:1", "deaf:100001"] {
            assert!(bad.parse::<Crowd>().is_err(), "{bad:?}");
        }
    }
}
