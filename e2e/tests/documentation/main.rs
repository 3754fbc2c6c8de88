//! The pages for users: what they say is plain, true, and can be found.
//!
//! `prose` checks the language. The other modules compare the pages with the code and resolve links. None needs a control plane.

mod fields;
mod flags;
mod links;
mod metrics;
mod pages;
mod parts;
mod prose;
mod reasons;
mod sources;
