//! The API as the rest of the cluster meets it: the YAML files, what they accept and refuse, and objects on their way to
//! `ipam-core`. One test binary, because linking costs more than running.

#[cfg(test)]
mod core_agreement;
#[cfg(test)]
mod descriptions;
#[cfg(test)]
mod manifests;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod read;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod support;
#[cfg(test)]
mod transitions;
