//! Where an HTTP port listens: `":8080"`, `"127.0.0.1:0"`, `"[::1]:8080"`, `"name:8080"`, or `"0"` for not at all.

use std::fmt;
use std::io;

use tokio::net::TcpListener;

/// A bind address as controller-runtime takes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BindAddress {
    /// `"0"`: nothing listens.
    Off,
    /// `":PORT"`: every address of both families.
    Any {
        /// The port; 0 lets the system choose.
        port: u16,
    },
    /// One host.
    Host {
        /// A literal address (IPv6 without brackets) or a name.
        host: String,
        /// The port; 0 lets the system choose.
        port: u16,
    },
}

impl BindAddress {
    /// Reads an address. The message completes the sentence "VALUE …".
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "is no address; write \":8080\", \"127.0.0.1:8080\", \"[::1]:8080\" or \"0\" for off".to_owned();
        if text == "0" {
            return Ok(Self::Off);
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse::<u16>().map_err(|_| wrong())?;
        if host.is_empty() {
            return Ok(Self::Any { port });
        }
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').filter(|inner| inner.contains(':')).ok_or_else(wrong)?,
            None if host.contains([':', ']', '/', ' ']) => return Err(wrong()),
            None => host,
        };
        Ok(Self::Host { host: host.to_owned(), port })
    }

    /// Listens on the address. Returns `None` if it is off. Errors name the address.
    pub async fn bind(&self) -> io::Result<Option<TcpListener>> {
        let bound = match self {
            Self::Off => return Ok(None),
            Self::Any { port } => match TcpListener::bind(("::", *port)).await {
                // A host without IPv6 has no "::". If the port is in use, IPv4 must not be tried as well.
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => TcpListener::bind(("0.0.0.0", *port)).await,
                bound => bound,
            },
            Self::Host { host, port } => TcpListener::bind((host.as_str(), *port)).await,
        };
        bound.map(Some).map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {self}: {error}")))
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("0"),
            Self::Any { port } => write!(f, ":{port}"),
            Self::Host { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Host { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spellings_of_controller_runtime_are_read_and_printed_back() {
        for text in ["0", ":8080", "127.0.0.1:0", "[::1]:9443", "localhost:8081"] {
            assert_eq!(BindAddress::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "8080", ":", ":99999", "::1:80", "[::1]", "[]:80", "http://x:1", "a b:1"] {
            assert!(BindAddress::parse(text).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn off_binds_nothing_and_any_takes_both_families() {
        assert!(BindAddress::Off.bind().await.unwrap().is_none());
        let listener = BindAddress::Any { port: 0 }.bind().await.unwrap().unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let held = BindAddress::parse("127.0.0.1:0").unwrap().bind().await.unwrap().unwrap();
        let address = format!("127.0.0.1:{}", held.local_addr().unwrap().port());
        let error = BindAddress::parse(&address).unwrap().bind().await.unwrap_err();
        assert!(error.to_string().contains(&address), "{error}");
    }
}
