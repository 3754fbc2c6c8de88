//! Compares the Markdown pages with the code: flags, metrics, conditions, events, fields and links.
//! Starts no control plane.

#[cfg(test)]
mod fields;
#[cfg(test)]
mod flags;
#[cfg(test)]
mod links;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod reasons;
#[cfg(test)]
mod sources;
