//! What the agent asks of the API server: the exact calls, and silence where there is nothing to say.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

#[path = "../common/mod.rs"]
mod common;

mod collect;
mod following;
mod grants;
mod lost;
mod reclaim;
mod report;
mod server;
mod start;
mod watch;
