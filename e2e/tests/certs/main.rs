//! Certificates of our own on a real API server, which calls two replicas by them: from nothing, and after every accident.

#![expect(clippy::unwrap_used, reason = "what a test needs and lacks is its failure")]

mod cluster;
mod healing;
mod reviewer;
mod rotation;
