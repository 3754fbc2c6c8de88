//! What replicas decide about certificates of their own: by example, and in every order in which two can get in each other's
//! way.

#![expect(clippy::unwrap_used, reason = "what a test needs and lacks is its failure")]

mod decisions;
mod interleavings;
mod model;
mod wire;
