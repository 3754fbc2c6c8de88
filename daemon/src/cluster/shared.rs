//! A client whose calls and watches share one connection, by HTTP/2.
//!
//! With HTTP/1.1 a watch keeps its connection to itself, so each report of an otherwise idle agent would open another one: a
//! TLS handshake per report for the API server of a large cluster. Pings detect a dead connection, with the timeouts of
//! client-go. In everything else the client behaves like kube's own.

use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config, Error};
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

use crate::metrics::Requests;

/// Time without data from the server after which the client pings it.
const PING_AFTER: Duration = Duration::from_secs(30);
/// Time that the server has to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Whether kube's own client is required: it supports proxies, and renews credentials of exec and auth provider plugins.
pub(super) fn is_special(config: &Config) -> bool {
    config.proxy_url.is_some() || config.auth_info.exec.is_some() || config.auth_info.auth_provider.is_some()
}

/// A client for `config`. It uses HTTP/1.1 if the server does not support HTTP/2.
pub(super) fn client(config: &Config, requests: &Requests) -> Result<Client, Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let mut tls =
        hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().map_err(|error| Error::Service(Box::new(error)))?;
        tls = tls.with_server_name_resolver(hyper_rustls::FixedServerNameResolver::new(name));
    }
    let mut connector = TimeoutConnector::new(tls.enable_all_versions().wrap_connector(tcp));
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let mut http = legacy::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new()).http2_keep_alive_interval(PING_AFTER).http2_keep_alive_timeout(PING_TIMEOUT);
    let http: legacy::Client<_, Body> = http.build(connector);
    let service = ServiceBuilder::new()
        .layer(requests)
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace.clone()))
}
