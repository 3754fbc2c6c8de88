//! What must hold of any bytes: one function for each door that bytes come in by.
//!
//! `e2e/fuzz` hands these functions to libFuzzer for long runs; `e2e/tests/fuzz.rs` calls them with the corpus and with
//! seeded mutations of it, on stable and without a C++ compiler. A function returns if all is well and panics if not; it
//! must not depend on anything but its input.

mod cluster;
mod cni;
mod files;
mod grpc;
mod lease;
mod manifest;
pub mod mutate;
mod node;
mod pem;
pub mod review;
pub mod seeds;
mod selector;
mod spec;
mod store;

/// A door and what must hold of whatever comes in by it.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the libFuzzer target, and of its folder in the corpus.
    pub name: &'static str,
    /// Panics if something does not hold of the input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 12] = [
    Target { name: "cluster", run: cluster::run },
    Target { name: "cni", run: cni::run },
    Target { name: "files", run: files::run },
    Target { name: "grpc", run: grpc::run },
    Target { name: "lease", run: lease::run },
    Target { name: "manifest", run: manifest::run },
    Target { name: "node", run: node::run },
    Target { name: "pem", run: pem::run },
    Target { name: "review", run: review::run },
    Target { name: "selector", run: selector::run },
    Target { name: "spec", run: spec::run },
    Target { name: "store", run: store::run },
];

/// The target of this name.
///
/// # Panics
/// If there is none.
pub fn target(name: &str) -> Target {
    let found = TARGETS.into_iter().find(|target| target.name == name);
    assert!(found.is_some(), "there is no target {name:?}");
    found.unwrap_or(TARGETS[0])
}
