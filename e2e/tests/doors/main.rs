//! One table of cases, asked at every door by which a pool comes in. What one door knows, all know: a case that some door
//! judges otherwise is a failure of that door.
//!
//! * `core`: `ipam-core` itself, as all the others ask it,
//! * `offline`: `ipam-controller validate`, as a library and as a program,
//! * `webhook`: a running operator's webhook over TLS, asked directly, and by a real API server,
//! * `definition`: the real API server with the CustomResourceDefinitions and nobody else,
//! * `reconcile`, `operated`: what the operator makes of a pool that has come in all the same, by its state machine, and as a
//!   process.

#[cfg(test)]
mod core;
#[cfg(test)]
mod definition;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod offline;
#[cfg(test)]
mod operated;
#[cfg(test)]
mod reconcile;
#[cfg(test)]
mod server;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod table;
#[cfg(test)]
mod verdict;
#[cfg(test)]
mod webhook;
