//! Keeps the documents true: flags, metrics, conditions, events, fields and links of the pages agree with the code.
//! Needs nothing but the sources and this package's dependencies.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

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
