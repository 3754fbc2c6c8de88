//! The certificates of the admission webhook: loaded, judged, swapped while serving.
//!
//! [`ServerCertificates`] is what a TLS server asks at each handshake. It is fed by [`files::watch`] (a mounted Secret that
//! cert-manager, OpenShift or an admin keeps) or by [`self_managed`] (a CA of our own, kept in a Secret).
//!
//! Decides which pair of certificate and key is fit to be shown to a client, and when one replaces another. Must never: show
//! a certificate outside its validity, give up a pair that works for one that does not, close a connection because of a
//! swap, or write a private key anywhere but into its Secret.

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
