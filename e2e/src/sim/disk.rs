//! The disk of a node, as its agent uses it: the journal, the copy of the spec, and how both fail.

use std::net::IpAddr;

use ipam_core::ledger::Change as Step;
use ipam_core::{AddrRange, PoolKey};
use ipam_crds::{BlockState, NodeBlock};
use ipam_node_agent::note::Noted;
use ipam_node_agent::spec::may_stay;

use super::action::Disk as State;

/// What survives a crash.
#[derive(Clone, Default, Debug)]
pub(super) struct Disk {
    /// What is given and given back.
    pub(super) journal: Vec<Step>,
    /// The copy of the spec.
    pub(super) noted: Option<Noted>,
    /// How it is.
    pub(super) is: State,
    /// The blocks of the spec that was saved last, and of the one that was told last: no file, for the laws alone.
    saved: Vec<NodeBlock>,
    told: Vec<NodeBlock>,
}

impl Disk {
    /// Saves the spec as the agent's file does. Whether that worked.
    pub(super) fn save(&mut self, noted: &Noted) -> bool {
        match self.is {
            State::Well => {
                self.noted = Some(noted.clone());
                self.saved.clone_from(&noted.spec.blocks);
            }
            State::Full => self.noted = self.noted.take().filter(|saved| may_stay(saved, noted)),
            // The copy stays whatever it promises, so that of what it has nothing may count as given back.
            State::ReadOnly => return false,
        }
        self.told.clone_from(&noted.spec.blocks);
        self.is == State::Well
    }

    /// What is wrong with the copy as a start finds it: it has a block that the node has lost since.
    pub(super) fn untrue(&self) -> Option<String> {
        let copy = &self.noted.as_ref()?.spec.blocks;
        let lost = copy.iter().find(|block| block.state == BlockState::Active && !has_place(&self.told, block))?;
        Some(format!("starts with {}-{} of {:?}, which it has lost", lost.start_ip, lost.end_ip, lost.name))
    }

    /// What is wrong with giving `addr`: it is of no block that was saved.
    pub(super) fn unsaved(&self, pool: &PoolKey, addr: IpAddr) -> Option<String> {
        let is_in = |block: &NodeBlock| {
            let range = AddrRange::new(block.start_ip.parse().ok()?, block.end_ip.parse().ok()?)?;
            Some(range.contains(addr) && block.name == pool.name && pool.kind == block.pool_type.into())
        };
        let is_saved = self.saved.iter().any(|block| is_in(block) == Some(true));
        (!is_saved).then(|| format!("gives {addr} of {pool}, of which it has noted no such block"))
    }
}

/// Whether `blocks` has the block, giving just these addresses.
fn has_place(blocks: &[NodeBlock], block: &NodeBlock) -> bool {
    let place = |it: &NodeBlock| (it.pool_type, it.name.clone(), it.state, it.start_ip.clone(), it.end_ip.clone());
    blocks.iter().any(|other| place(other) == place(block))
}
