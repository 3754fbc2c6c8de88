//! ICMP echo (RFC 792) and ICMPv6 echo (RFC 4443), so that reachability can be shown where no ping program is installed.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recvfrom, sendto, socket_with,
};

/// Time between two requests while there is no answer: neighbours may still be resolving, an IPv6 address may be tentative.
const AGAIN: Duration = Duration::from_millis(200);
/// Tells our packets from other echoes in the same namespace, beside the identifier.
const PAYLOAD: &[u8] = b"nv-ipam-e2e reachability";

/// Sends echo requests to `address` until one is answered or `milliseconds` have passed.
pub(super) fn run(address: &str, milliseconds: &str) -> Result<ExitCode> {
    let address: IpAddr = address.parse().with_context(|| format!("{address} is no IP address"))?;
    let within = Duration::from_millis(milliseconds.parse().with_context(|| format!("{milliseconds} is no number"))?);
    let echo = Echo::open(address)?;
    let started = Instant::now();
    let mut last = None;
    for sequence in 1_u16.. {
        match echo.exchange(sequence) {
            Ok(true) => return Ok(ExitCode::SUCCESS),
            Ok(false) => {}
            Err(error) => {
                last = Some(error);
                std::thread::sleep(AGAIN);
            }
        }
        if started.elapsed() >= within {
            break;
        }
    }
    match last {
        Some(error) => bail!("no answer from {address}: {error}"),
        None => bail!("no answer from {address} within {} ms", within.as_millis()),
    }
}

/// A raw socket and the peer.
struct Echo {
    socket: OwnedFd,
    peer: IpAddr,
    identifier: u16,
}

impl Echo {
    fn open(peer: IpAddr) -> Result<Self> {
        let (family, protocol) = match peer {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))
            .context("cannot open a raw socket")?;
        set_socket_timeout(&socket, Timeout::Recv, Some(AGAIN))?;
        let [.., high, low] = std::process::id().to_be_bytes();
        Ok(Self { socket, peer, identifier: u16::from_be_bytes([high, low]) })
    }

    /// One request; true when its answer comes in time.
    fn exchange(&self, sequence: u16) -> std::io::Result<bool> {
        let request = request(self.peer, self.identifier, sequence);
        sendto(&self.socket, &request, SendFlags::empty(), &SocketAddr::new(self.peer, 0))?;
        let started = Instant::now();
        let mut buffer = [0; 2048];
        while started.elapsed() < AGAIN {
            match recvfrom(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((_, count, _)) if is_answer(self.peer, &buffer[..count], &request) => return Ok(true),
                Ok(_) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }
}

/// Type, code, checksum, identifier, sequence, payload. The kernel fills in the checksum for ICMPv6 only.
fn request(peer: IpAddr, identifier: u16, sequence: u16) -> Vec<u8> {
    let kind = if peer.is_ipv4() { 8 } else { 128 };
    let mut packet = vec![kind, 0, 0, 0];
    packet.extend(identifier.to_be_bytes());
    packet.extend(sequence.to_be_bytes());
    packet.extend(PAYLOAD);
    if peer.is_ipv4() {
        let sum = checksum(&packet).to_be_bytes();
        packet[2..4].copy_from_slice(&sum);
    }
    packet
}

/// An answer repeats everything after the checksum. IPv4 raw sockets deliver the IP header too.
fn is_answer(peer: IpAddr, received: &[u8], request: &[u8]) -> bool {
    let (kind, icmp) = match peer {
        IpAddr::V4(_) => {
            let header = received.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
            (0, received.get(header..).unwrap_or_default())
        }
        IpAddr::V6(_) => (129, received),
    };
    icmp.first() == Some(&kind) && icmp.get(4..) == Some(&request[4..])
}

/// The Internet checksum of RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_with_its_checksum_sums_to_zero() {
        let packet = request("10.0.0.1".parse().unwrap(), 0xbeef, 7);
        assert_eq!(packet[0], 8);
        assert_eq!(checksum(&packet), 0);
    }

    #[test]
    fn only_the_echo_of_this_very_request_is_an_answer() {
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        let sent = request(peer, 1, 2);
        let mut reply = vec![0x45; 1];
        reply.resize(20, 0);
        reply.extend(&sent);
        assert!(!is_answer(peer, &reply, &sent), "a request is no answer");
        reply[20] = 0;
        assert!(is_answer(peer, &reply, &sent));
        assert!(!is_answer(peer, &reply, &request(peer, 1, 3)), "another sequence number");
        assert!(!is_answer(peer, &[], &sent));
    }
}
