//! What both daemons share: the common flags, logging, probes and metrics, signals and the Kubernetes client.
//!
//! Decides how a daemon reads its configuration and how it reports. Knows nothing about pools or addresses, never ends the
//! process by itself, and installs nothing global but the log subscriber and the TLS provider, both from `main`.

pub mod cluster;
pub mod features;
pub mod flags;
pub mod gosyntax;
pub mod http;
pub mod listen;
pub mod logging;
pub mod metrics;
pub mod shutdown;

// k8s-openapi is named in Cargo.toml only to choose the Kubernetes version that kube is built for.
use k8s_openapi as _;

pub use flags::{Common, CommonFlags, Mistakes, print_usage};
pub use http::Site;
pub use listen::BindAddress;
pub use shutdown::Shutdown;

/// An error with its causes, for logs: "service error" alone does not say that the connection was refused.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
