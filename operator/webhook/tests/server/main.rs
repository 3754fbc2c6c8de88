//! The webhook's server over real sockets: what is answered to whom, who is cut off, and how it ends.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "what a test needs and lacks is its failure")]

mod ending;
mod hook;
mod requests;
mod stalling;
