//! The pages for users: what they say is plain, true, and can be found.
//!
//! `prose` checks the language, and `manifests` the manifests. The other modules compare the pages with the code and resolve links. None
//! needs a control plane.

#[cfg(test)]
mod alerts;
#[cfg(test)]
mod fields;
#[cfg(test)]
mod flags;
#[cfg(test)]
mod links;
#[cfg(test)]
mod manifests;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod parts;
#[cfg(test)]
mod prose;
#[cfg(test)]
mod reasons;
#[cfg(test)]
mod sources;
#[cfg(test)]
mod values;
