//! The rules of pools and plans, seen from outside the crate.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic just as tests may")]

mod addr;
mod advice;
mod cidr_pool;
mod edit;
mod edit_laws;
mod hint;
mod ip_pool;
mod model;
mod node_pool;
mod occupancy;
mod overlap;
mod plan;
mod plan_laws;
mod run_set;
mod selector;
mod spec_laws;
mod support;
