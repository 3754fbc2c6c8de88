//! The chart: what it renders, what it refuses, and that what it installs works with no right too few and none too many, on a
//! real API server. Releases share a control plane and keep apart by name and namespace; the one that changes the definitions
//! has one of its own.

#[cfg(test)]
mod certificates;
#[cfg(test)]
mod dry_run;
#[cfg(test)]
mod kustomize;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod network_operator;
#[cfg(test)]
mod options;
#[cfg(test)]
mod policy;
#[cfg(test)]
mod rendered;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod uninstall;
#[cfg(test)]
mod values;
