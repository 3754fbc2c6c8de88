//! The least server that an API server takes for a webhook: it allows everything, over the certificates it is given.

use std::io;
use std::sync::Arc;

use ipam_webhook_certs::ServerCertificates;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Serves until it is dropped.
pub(crate) struct Reviewer {
    pub(crate) port: u16,
    _stop: DropGuard,
}

impl Reviewer {
    pub(crate) async fn start(certificates: &ServerCertificates) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut config = certificates.server_config().unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(stopped.run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(acceptor.clone(), stream));
            }
        }));
        Self { port, _stop: stop.drop_guard() }
    }
}

/// One review for each connection, so that each review is a handshake.
async fn answer(acceptor: TlsAcceptor, stream: TcpStream) -> io::Result<()> {
    let mut stream = BufStream::new(acceptor.accept(stream).await?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let review: Value = serde_json::from_slice(&body)?;
    let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], "allowed": true}})
    .to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.len()
    );
    stream.write_all(format!("{head}{answer}").as_bytes()).await?;
    stream.flush().await?;
    stream.shutdown().await
}
