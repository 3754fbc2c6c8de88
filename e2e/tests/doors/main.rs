//! One table of cases, asked at every door by which a pool comes in. What one door knows, all know: a case that some door
//! judges otherwise is a failure of that door.
//!
//! * `core`: `ipam-core` itself, as all the others ask it,
//! * `offline`: `ipam-controller validate`, as a library and as a program,
//! * `definition`: the real API server with the CustomResourceDefinitions and nobody else.

#[cfg(test)]
mod core;
#[cfg(test)]
mod definition;
#[cfg(test)]
mod offline;
#[cfg(test)]
mod table;
#[cfg(test)]
mod verdict;
