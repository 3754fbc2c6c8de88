//! Tests across processes on a real API server, and the demo.
//!
//! The harness finds or builds the tools (`assets`, `binaries`), starts etcd and kube-apiserver (`control_plane`), starts our
//! own processes (`process`) and, for the last mile, makes nodes and pods out of network namespaces (`netns`).
//! It must never touch the host's network or leave anything running: whatever it starts ends with it, also on SIGKILL, because
//! each thing hangs on a pipe that only the harness holds open (`warden`).
//!
//! Functions block: tests call them from any thread, with or without an async runtime around them.

pub mod assets;
pub mod binaries;
pub mod cases;
mod cgroups;
pub mod chart;
pub mod child;
pub mod cluster;
pub mod control_plane;
pub mod demo;
pub mod eventually;
pub mod fuzz;
pub mod http;
pub mod kubectl;
pub mod kubernetes;
pub mod lock;
pub mod mutants;
pub mod netns;
pub mod network_operator;
pub mod outage;
mod pki;
pub mod ports;
pub mod process;
pub mod progress;
pub mod reviews;
pub mod state;
pub mod warden;
pub mod webhook;

pub use child::Watched;
pub use control_plane::ControlPlane;
pub use eventually::{eventually, eventually_blocking};
pub use process::Process;
