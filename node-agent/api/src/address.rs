//! Where the agent listens. Decides which spellings are accepted; opens nothing and asks no name server.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of the agent's gRPC server, as in `--bind-address`, `--cni-daemon-socket` and `daemonSocket`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AgentAddress {
    /// `unix:///absolute/path` (also `unix:/absolute/path`, which gRPC knows as well).
    Unix(PathBuf),
    /// `tcp://ip:port` with a literal IP address, IPv6 in brackets, or `localhost`. Without an address it is `0.0.0.0`. gRPC's targets
    /// `ip:port`, `dns:///ip:port`, `passthrough:///ip:port`, `ipv4:ip:port` and `ipv6:[ip]:port` mean the same. Other names are invalid: a pod
    /// would wait for DNS.
    Tcp(SocketAddr),
}

/// Why a text is not an [`AgentAddress`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Neither `unix:` nor `tcp://` in front.
    #[error("{0:?} has no known scheme, want unix:///path/to/socket or tcp://ip:port")]
    Scheme(String),
    /// The path is empty, relative, or has a NUL byte.
    #[error("{0:?} needs an absolute path, as in unix:///var/lib/cni/nv-ipam/daemon.sock")]
    Path(String),
    /// Not a literal IP address and a port.
    #[error("{0:?} needs an IP address or localhost, and a port, as in tcp://127.0.0.1:9092 or tcp://[::1]:9092")]
    Socket(String),
}

impl FromStr for AgentAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(socket) = TCP.iter().find_map(|scheme| text.strip_prefix(scheme)) {
            return tcp(socket).map(Self::Tcp).ok_or_else(|| AddressError::Socket(text.to_owned()));
        }
        let Some(rest) = text.strip_prefix("unix:") else {
            let bare = tcp(text).filter(|_| !text.starts_with(':')).map(Self::Tcp);
            return bare.ok_or_else(|| AddressError::Scheme(text.to_owned()));
        };
        let path = rest.strip_prefix("//").unwrap_or(rest);
        if path.len() > 1 && path.starts_with('/') && !path.contains('\0') {
            Ok(Self::Unix(PathBuf::from(path)))
        } else {
            Err(AddressError::Path(text.to_owned()))
        }
    }
}

/// What is before an IP address and a port. `dns` and `passthrough` of gRPC may name an authority, which is empty here.
const TCP: [&str; 7] = ["tcp://", "dns:///", "dns:", "passthrough:///", "passthrough:", "ipv4:", "ipv6:"];

/// An IP address, `localhost` or nothing, and a port.
fn tcp(text: &str) -> Option<SocketAddr> {
    let named = |name: &str, host: &str| text.strip_prefix(name).map(|port| format!("{host}:{port}"));
    let text = named("localhost:", "127.0.0.1").or_else(|| named(":", "0.0.0.0")).unwrap_or_else(|| text.to_owned());
    text.parse().ok()
}

impl fmt::Display for AgentAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(socket) => write!(f, "tcp://{socket}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_spellings_are_accepted_and_printed_in_full() {
        for (text, printed) in [
            ("unix:///var/lib/cni/nv-ipam/daemon.sock", "unix:///var/lib/cni/nv-ipam/daemon.sock"),
            ("unix:/run/a.sock", "unix:///run/a.sock"),
            ("tcp://127.0.0.1:9092", "tcp://127.0.0.1:9092"),
            ("tcp://[::1]:9092", "tcp://[::1]:9092"),
            ("tcp://localhost:9092", "tcp://127.0.0.1:9092"),
            ("tcp://:9092", "tcp://0.0.0.0:9092"),
            ("127.0.0.1:9092", "tcp://127.0.0.1:9092"),
            ("localhost:9092", "tcp://127.0.0.1:9092"),
            ("dns:///127.0.0.1:9092", "tcp://127.0.0.1:9092"),
            ("passthrough:///[::1]:9092", "tcp://[::1]:9092"),
            ("ipv6:[::1]:9092", "tcp://[::1]:9092"),
        ] {
            assert_eq!(text.parse::<AgentAddress>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn a_refused_address_is_named_with_what_would_be_right() {
        for text in ["", "/run/a.sock", "http://127.0.0.1:1", ":9092", "agent:9092"] {
            assert_eq!(text.parse::<AgentAddress>(), Err(AddressError::Scheme(text.to_owned())));
        }
        for text in ["unix:", "unix://", "unix:///", "unix://run/a.sock", "unix:///a\0b"] {
            assert_eq!(text.parse::<AgentAddress>(), Err(AddressError::Path(text.to_owned())));
        }
        for text in ["tcp://", "tcp://agent:1", "dns:///agent:1", "tcp://127.0.0.1", "tcp://127.0.0.1:70000"] {
            assert_eq!(text.parse::<AgentAddress>(), Err(AddressError::Socket(text.to_owned())));
        }
    }
}
