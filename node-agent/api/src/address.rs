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
    /// `tcp://ip:port` with a literal IP address; IPv6 in brackets. Name resolution would put DNS in the way of a pod.
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
    #[error("{0:?} needs an IP address and a port, as in tcp://127.0.0.1:9092 or tcp://[::1]:9092")]
    Socket(String),
}

impl FromStr for AgentAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(socket) = text.strip_prefix("tcp://") {
            return socket.parse().map(Self::Tcp).map_err(|_| AddressError::Socket(text.to_owned()));
        }
        let Some(rest) = text.strip_prefix("unix:") else {
            return Err(AddressError::Scheme(text.to_owned()));
        };
        let path = rest.strip_prefix("//").unwrap_or(rest);
        if path.len() > 1 && path.starts_with('/') && !path.contains('\0') {
            Ok(Self::Unix(PathBuf::from(path)))
        } else {
            Err(AddressError::Path(text.to_owned()))
        }
    }
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
        ] {
            assert_eq!(text.parse::<AgentAddress>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn a_refused_address_is_named_with_what_would_be_right() {
        for text in ["", "/run/a.sock", "http://127.0.0.1:1"] {
            assert_eq!(text.parse::<AgentAddress>(), Err(AddressError::Scheme(text.to_owned())));
        }
        for text in ["unix:", "unix://", "unix:///", "unix://run/a.sock", "unix:///a\0b"] {
            assert_eq!(text.parse::<AgentAddress>(), Err(AddressError::Path(text.to_owned())));
        }
        for text in ["tcp://", "tcp://localhost:1", "tcp://127.0.0.1", "tcp://127.0.0.1:70000"] {
            assert_eq!(text.parse::<AgentAddress>(), Err(AddressError::Socket(text.to_owned())));
        }
    }
}
