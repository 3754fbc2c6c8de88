//! The webhook as people meet it: the operator's own server with real certificates, asked by a real API server, and by clients
//! that behave worse than any API server. One control plane for all; tests keep apart by namespace.

#[cfg(test)]
mod kubectl;
#[cfg(test)]
mod load;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod stage;
