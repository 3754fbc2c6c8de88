//! Reviews as API servers send them, at a steady rate, while everything that can happen to a webhook happens to it: certificates
//! exchanged, one of them broken; a replica restarted again and again behind a balancer.
//!
//! It must never hide a failure: a review that was handed to a connection is not sent again.

mod balancer;
mod campaign;
mod client;
mod stalled;

pub use balancer::{Backend, Balancer};
pub use campaign::{Campaign, Report, Steady, answered, run};
pub use client::{Answer, Client, Known, body};
pub use stalled::{Stalled, beside, stall};
