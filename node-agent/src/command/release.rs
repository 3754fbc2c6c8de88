//! `ipam-node store release`: frees one address, as CNI DEL of its pod does.
//!
//! Beside a running agent the agent does it, over its socket. Otherwise the command changes the store.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use ipam_core::PoolKind;
use ipam_core::ledger::{Change, Reservation};
use ipam_node_api::AgentAddress;
use ipam_node_api::client::AgentClient;
use ipam_node_api::v1::{IpamParameters, PoolType};
use tokio::time::Instant;

use super::confirm::Confirm;
use super::place::{Place, Refused};
use crate::flags::SOCKET;

/// Longer than the agent takes on a slow disk.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub(super) struct Flags {
    #[command(flatten)]
    place: Place,
    /// The agent's --bind-address, for a store that an agent uses
    #[arg(long, default_value = SOCKET, value_name = "ADDRESS")]
    bind_address: AgentAddress,
    /// The address
    #[arg(long, value_name = "IP")]
    address: IpAddr,
    /// Its pool, if several pools have the address
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Its sandbox, if several have the address
    #[arg(long, value_name = "ID")]
    container: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
}

/// Releases the address.
pub(super) fn run(flags: &Flags) -> Result<String, String> {
    let store = flags.place.read()?;
    let held = flags.select(store.ledger.reservations())?;
    flags
        .confirm
        .ask(&format!("Release {}? If the pod still runs, the address can be assigned twice.", named(&held)))?;
    match flags.place.open() {
        Ok(store) => {
            // An agent may have run meanwhile.
            let held = flags.select(store.ledger.reservations())?;
            let at = jiff::Timestamp::now().as_second();
            let change = Change::Release { pool: held.pool, owner: held.owner, at };
            store.commit(&[change])?;
        }
        Err(Refused::InUse(_)) => flags
            .ask_agent(&held)
            .map_err(|error| format!("an agent uses the store, and only it can release the address: {error}"))?,
        Err(Refused::Failed(why)) => return Err(why),
    }
    Ok(format!("released {}\n", named(&held)))
}

impl Flags {
    /// The one reservation that is meant.
    fn select(&self, all: impl Iterator<Item = Reservation>) -> Result<Reservation, String> {
        let is_meant = |held: &Reservation| {
            held.addr == self.address
                && self.pool.as_ref().is_none_or(|pool| *pool == held.pool.name)
                && self.container.as_ref().is_none_or(|container| *container == held.owner.container_id)
        };
        let mut found: Vec<_> = all.filter(is_meant).collect();
        match found.pop() {
            Some(one) if found.is_empty() => Ok(one),
            None => Err(format!("{} is not in use on this node; `ipam-node store show` prints what is", self.address)),
            Some(last) => {
                let named: Vec<_> = found.iter().chain([&last]).map(named).collect();
                Err(format!("several are meant, add --pool or --container: {}", named.join("; ")))
            }
        }
    }

    /// Lets the agent free what the interface has in the pool.
    fn ask_agent(&self, held: &Reservation) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
        let pool_type = match held.pool.kind {
            PoolKind::IpPool => PoolType::Ippool,
            PoolKind::CidrPool => PoolType::Cidrpool,
        };
        let parameters = IpamParameters {
            pools: vec![held.pool.name.clone()],
            pool_type: pool_type.into(),
            cni_ifname: held.owner.if_name.clone(),
            cni_containerid: held.owner.container_id.clone(),
            ..IpamParameters::default()
        };
        runtime.block_on(async {
            let deadline = Instant::now() + PATIENCE;
            let client = AgentClient::connect(&self.bind_address, deadline).await.map_err(|error| error.to_string())?;
            let done = client.deallocate(parameters, deadline).await;
            done.map_err(|status| format!("the agent at {} answers: {}", self.bind_address, status.message()))
        })
    }
}

fn named(held: &Reservation) -> String {
    let pod = match (held.attachment.pod_namespace.as_str(), held.attachment.pod_name.as_str()) {
        ("", "") => "no known pod".to_owned(),
        (namespace, name) => format!("pod {namespace}/{name}"),
    };
    let text = format!(
        "{} of {pod} in {} {} (interface {}, sandbox {})",
        held.addr,
        held.pool.kind.kind(),
        held.pool.name,
        held.owner.if_name,
        held.owner.container_id
    );
    text.escape_debug().to_string()
}
