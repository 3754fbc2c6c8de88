//! nv-ipam as a user has it: the image and the chart on a whole cluster, with kubelet, containerd, Multus and macvlan.
//!
//! It needs root and builds the programs as they are shipped, so it runs by name only: `cargo test -p ipam-e2e --test kubernetes`.

#[cfg(test)]
mod burst;
#[cfg(test)]
mod certificates;
#[cfg(test)]
mod churn;
#[cfg(test)]
mod cnitool;
#[cfg(test)]
mod install;
#[cfg(test)]
mod machines;
#[cfg(test)]
mod migration;
#[cfg(test)]
mod network_operator;
#[cfg(test)]
mod quick_start;
#[cfg(test)]
mod reinstall;
#[cfg(test)]
mod restarts;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod upgrade;
#[cfg(test)]
mod workload;
