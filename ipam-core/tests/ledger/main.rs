//! The ledger from outside: each sentence of behaviour.md §4 that speaks of giving addresses, its laws, and a model.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "what cannot be set up fails the test")]

mod answers;
mod contested;
mod cooldown;
mod grants;
mod history;
mod holdings;
mod model;
mod named;
mod order;
mod repeat;
mod strays;
mod support;
mod validation;
