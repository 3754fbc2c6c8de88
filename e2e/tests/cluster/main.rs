//! The three programs as a cluster runs them, on a real API server: what no smaller test can show. One test binary, because
//! linking costs more than running. Tests share a control plane and keep apart by namespace, by node names and by a label
//! that every pool of theirs selects; those that take the API server down or need other CRDs have one of their own.

#[cfg(test)]
mod api;
#[cfg(test)]
mod crds;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod elections;
#[cfg(test)]
mod full;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod last_mile;
#[cfg(test)]
mod operated;
#[cfg(test)]
mod outages;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod reports;
#[cfg(test)]
mod restarts;
#[cfg(test)]
mod stage;
