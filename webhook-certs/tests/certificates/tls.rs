//! A TLS server that asks [`ServerCertificates`], and clients that verify what they are shown as an API server does.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipam_webhook_certs::ServerCertificates;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, crypto};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::pki::HOST;

/// Serves until the test's runtime ends: every byte received is sent back.
pub(crate) async fn serve(certificates: &ServerCertificates) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(certificates.server_config().unwrap()));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo(acceptor.clone(), stream));
        }
    });
    address
}

async fn echo(acceptor: TlsAcceptor, stream: TcpStream) -> io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    loop {
        let byte = stream.read_u8().await?;
        stream.write_u8(byte).await?;
        stream.flush().await?;
    }
}

/// Waits for the server. The test fails if the server does not answer within a minute.
async fn in_time<T>(what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let answer = tokio::time::timeout(Duration::from_mins(1), what).await;
    answer.unwrap_or_else(|_| panic!("the server does not answer within a minute"))
}

/// A client that trusts these CAs, given in PEM, and keeps no sessions.
#[derive(Clone)]
pub(crate) struct Client {
    connector: TlsConnector,
}

impl Client {
    pub(crate) fn trusting(cas: &[String]) -> Self {
        let mut roots = RootCertStore::empty();
        for ca in cas {
            roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        // A resumed session shows no certificate.
        config.resumption = rustls::client::Resumption::disabled();
        Self { connector: TlsConnector::from(Arc::new(config)) }
    }

    /// A handshake, with everything verified at the present time.
    pub(crate) async fn connect(&self, server: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(server).await?;
        let stream = in_time(self.connector.connect(ServerName::try_from(HOST).unwrap(), stream)).await?;
        Ok(Connection { stream })
    }
}

pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
}

impl Connection {
    /// Sends a byte and awaits it back.
    pub(crate) async fn ask(&mut self, byte: u8) -> io::Result<()> {
        self.stream.write_u8(byte).await?;
        self.stream.flush().await?;
        let answer = in_time(self.stream.read_u8()).await?;
        if answer == byte { Ok(()) } else { Err(io::Error::other(format!("{answer} for {byte}"))) }
    }

    /// The certificate that the server has shown.
    pub(crate) fn leaf(&self) -> CertificateDer<'static> {
        self.stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
    }
}
