//! The Kubernetes client: where its configuration comes from, and how long it may wait.
//!
//! Opens no connection, so a daemon can start while the API server is unreachable.

mod shared;

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::metrics::Requests;

/// A server that does not answer SYN within this time counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A request body that cannot be written within this time is given up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than a watch is requested to last (290 s), so that only a dead connection exceeds it.
const READ_TIMEOUT: Duration = Duration::from_secs(320);

/// Why there is no client, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A kubeconfig that cannot be read or used.
    #[error("kubeconfig {path:?} cannot be used: {why}; check the file that {origin} names")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The flag or environment variable that its path comes from.
        origin: &'static str,
        /// What is wrong.
        why: Box<kube::config::KubeconfigError>,
    },
    /// Neither a kubeconfig nor a service account.
    #[error(
        "no way to reach the API server: no --kubeconfig, no KUBECONFIG, no ~/.kube/config, and not in a pod ({0}); give --kubeconfig PATH"
    )]
    Nowhere(Box<kube::config::InClusterError>),
    /// The configuration does not make a client, for example for a bad certificate.
    #[error("the Kubernetes client cannot be made: {0}")]
    Client(Box<kube::Error>),
}

/// A client by `--kubeconfig`, else `KUBECONFIG`, else the pod's service account, else `~/.kube/config`, as
/// controller-runtime looks for it. Needs a tokio runtime. By HTTP/1.1: a call that its caller gives up also ends its connection, so
/// the next call does not wait on a dead one.
///
/// `requests` counts its requests.
pub async fn client(kubeconfig: Option<&Path>, requests: &Requests) -> Result<Client, ClusterError> {
    made(counted(timed(kubeconfig).await?, requests))
}

/// Like [`client`], with one connection for all calls and watches if the server supports HTTP/2. Pings find a dead one within
/// 45 s.
pub async fn shared_client(kubeconfig: Option<&Path>, requests: &Requests) -> Result<Client, ClusterError> {
    let config = timed(kubeconfig).await?;
    made(if shared::is_special(&config) { counted(config, requests) } else { shared::client(&config, requests) })
}

fn counted(config: Config, requests: &Requests) -> Result<Client, kube::Error> {
    Ok(ClientBuilder::try_from(config)?.with_layer(requests).build())
}

fn made(client: Result<Client, kube::Error>) -> Result<Client, ClusterError> {
    client.map_err(|error| ClusterError::Client(Box::new(error)))
}

async fn timed(kubeconfig: Option<&Path>) -> Result<Config, ClusterError> {
    let mut config = config(kubeconfig).await?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.write_timeout = Some(WRITE_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    // The caller decides whether a call is repeated. A write that was done but answered with an error would conflict with its
    // own effect. A leader's call might be repeated after it has lost the Lease.
    config.default_retry = false;
    install_tls_provider();
    Ok(config)
}

/// Makes ring the process's TLS provider; a second call changes nothing.
pub fn install_tls_provider() {
    // An error means that one is installed already.
    drop(rustls::crypto::ring::default_provider().install_default());
}

async fn config(kubeconfig: Option<&Path>) -> Result<Config, ClusterError> {
    if let Some(path) = kubeconfig {
        return from_file(path, "--kubeconfig").await;
    }
    if let Some(path) = env::var_os("KUBECONFIG").filter(|path| !path.is_empty()) {
        let options = KubeConfigOptions::default();
        let why = match Kubeconfig::from_env() {
            Ok(Some(merged)) => match Config::from_custom_kubeconfig(merged, &options).await {
                Ok(config) => return Ok(config),
                Err(why) => why,
            },
            Ok(None) => kube::config::KubeconfigError::FindPath,
            Err(why) => why,
        };
        return Err(ClusterError::Kubeconfig { path: path.into(), origin: "KUBECONFIG", why: Box::new(why) });
    }
    let nowhere = match Config::incluster() {
        Ok(config) => return Ok(config),
        Err(why) => ClusterError::Nowhere(Box::new(why)),
    };
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config")).filter(|path| path.exists());
    match home {
        Some(path) => from_file(&path, "HOME").await,
        None => Err(nowhere),
    }
}

async fn from_file(path: &Path, origin: &'static str) -> Result<Config, ClusterError> {
    let refused = |why| ClusterError::Kubeconfig { path: path.to_owned(), origin, why: Box::new(why) };
    let file = Kubeconfig::read_from(path).map_err(refused)?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_kubeconfig_is_named_with_the_flag_that_named_it() {
        let error =
            client(Some(Path::new("/nowhere/kubeconfig")), &Requests::default()).await.err().unwrap().to_string();
        assert!(error.contains("/nowhere/kubeconfig") && error.contains("--kubeconfig"), "{error}");
    }

    /// A server's socket, and a kubeconfig that names it.
    async fn server() -> (tokio::net::TcpListener, tempfile::NamedTempFile) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}], \
             clusters: [{{name: k, cluster: {{server: 'http://{address}'}}}}], users: [{{name: u, user: {{}}}}]}}"
        );
        std::fs::write(file.path(), text).unwrap();
        (listener, file)
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_leaves_its_dead_connection() {
        let (listener, file) = server().await;
        let client = client(Some(file.path()), &Requests::default()).await.unwrap();
        let version = || client.request_text(http::Request::get("/version").body(Vec::new()).unwrap());
        let mut call = Box::pin(version());
        let dead = tokio::select! {
            _ = &mut call => panic!("the server has not answered"),
            accepted = listener.accept() => accepted.unwrap(),
        };
        drop(call);
        tokio::spawn(refuse_all(listener, std::sync::Arc::default()));
        assert!(version().await.unwrap_err().to_string().contains("503"), "answered by another connection");
        drop(dead);
    }

    #[tokio::test]
    async fn a_call_that_is_answered_by_an_error_is_made_once() {
        let (listener, file) = server().await;
        let requests = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        tokio::spawn(refuse_all(listener, requests.clone()));
        for client in [
            client(Some(file.path()), &Requests::default()).await.unwrap(),
            shared_client(Some(file.path()), &Requests::default()).await.unwrap(),
        ] {
            let before = requests.load(std::sync::atomic::Ordering::SeqCst);
            let request = http::Request::get("/version").body(Vec::new()).unwrap();
            assert!(client.request_text(request).await.is_err());
            assert_eq!(requests.load(std::sync::atomic::Ordering::SeqCst), before + 1);
        }
    }

    /// Answers each request by 503, and counts them.
    async fn refuse_all(listener: tokio::net::TcpListener, requests: std::sync::Arc<std::sync::atomic::AtomicU32>) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        while let Ok((mut stream, _)) = listener.accept().await {
            let requests = requests.clone();
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                let mut buffer = [0; 1024];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    bytes.extend_from_slice(&buffer[..read]);
                    if bytes.ends_with(b"\r\n\r\n") {
                        bytes.clear();
                        requests.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        let answer = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n";
                        drop(stream.write_all(answer.as_bytes()).await);
                    }
                }
            });
        }
    }

    #[tokio::test]
    async fn a_client_is_made_without_asking_the_server() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], \
            clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}";
        std::fs::write(file.path(), text).unwrap();
        assert!(client(Some(file.path()), &Requests::default()).await.is_ok());
        assert!(shared_client(Some(file.path()), &Requests::default()).await.is_ok());
    }
}
