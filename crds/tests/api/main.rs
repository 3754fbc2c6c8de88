//! The API as the rest of the cluster meets it: the YAML files, what they accept and refuse, and objects on their way to
//! `ipam-core`. One test binary, because linking costs more than running.

mod core_agreement;
mod manifests;
mod objects;
mod rules;
mod support;
