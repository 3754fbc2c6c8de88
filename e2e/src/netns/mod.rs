//! Nodes and pods as real network namespaces, the last mile of an address.
//!
//! A *sandbox* is a set of namespaces with one Ethernet segment, the bridge `fabric`. A *node* is a network, mount and pid
//! namespace in it, with two ports on the fabric and its own `/var/lib/cni`, `/etc/cni`, `/opt/cni`, `/run/netns`; the API server is
//! reached under its usual loopback address, by a relay. A *pod* is a named network namespace of a node, wired by real CNI plugins.
//!
//! Root is used when we have it, else a user namespace. Nothing outside the sandbox changes, and all of it goes with the harness.

mod cni;
pub(crate) mod entrance;
mod node;
mod pod;
pub(crate) mod sandbox;

pub use cni::CniError;
pub use entrance::Entrance;
pub use node::{BRIDGE, Node, PARENT};
pub use pod::Pod;
pub use sandbox::Sandbox;
