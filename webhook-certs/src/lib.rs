//! The certificates of the admission webhook: loading, checks, and replacement while serving.
//!
//! A TLS server reads [`ServerCertificates`] at each handshake. Its source is [`files::watch`] (a mounted Secret that
//! cert-manager, OpenShift or an admin manages) or [`self_managed`] (a CA of the webhook, in a Secret).
//!
//! Decides which pair of certificate and key can be presented to a client, and when one replaces another. Must never: present
//! a certificate outside its validity, replace a valid pair by an invalid one, close a connection because of a replacement,
//! or write a private key anywhere except into its Secret.

pub mod clock;
pub mod files;
mod metrics;
pub mod pair;
mod problem;
pub mod self_managed;
mod served;

pub use clock::{Clock, system_clock};
pub use pair::{CertificateInfo, Pair};
pub use problem::{File, Problem};
pub use served::{Offer, ServerCertificates};
