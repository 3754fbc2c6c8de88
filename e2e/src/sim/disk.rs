//! The disk of a node, as its agent uses it: the journal, the copy of the spec, how both fail, and how both go back.

use std::net::IpAddr;

use ipam_core::ledger::{Change as Step, Ledger};
use ipam_core::{AddrRange, PoolKey};
use ipam_crds::{BlockState, NodeBlock};
use ipam_node_agent::note::Noted;
use ipam_node_agent::spec::may_stay;
use ipam_node_agent::store::Position;

use super::action::Disk as State;

/// What survives a crash.
#[derive(Clone, Default, Debug)]
pub(super) struct Disk {
    store: Store,
    /// A copy of the store that somebody has made.
    copy: Option<Store>,
    /// How it is.
    pub(super) is: State,
    /// How far the journal had come that was put in place of a later one, until its agent has compared it with its report and
    /// has noted on disk what came of that. (An agent that is started again and again before it hears anything cannot know.)
    went_back: Option<Position>,
    /// The blocks of the spec that was saved last, and of the one that was told last: no file, for the laws alone.
    saved: Vec<NodeBlock>,
    told: Vec<NodeBlock>,
}

/// The agent's folder.
#[derive(Clone, Default, Debug)]
struct Store {
    /// What is given and given back.
    journal: Vec<Step>,
    /// How far it has come.
    at: Position,
    /// The copy of the spec.
    noted: Option<Noted>,
}

impl Disk {
    /// Opens the store as an agent that starts does: what is held, and how far the journal had come. `None` if it cannot start.
    pub(super) fn open(&mut self) -> Option<(Ledger, Position)> {
        let (found, is_new) = (self.store.at, self.store.at.epoch == 0);
        match self.is {
            State::Well => self.store.at = Position { epoch: found.epoch + 1, sequence: 0 },
            // There is no room for another journal, so that it goes on with the old one.
            State::Full if !is_new => {}
            State::Full | State::ReadOnly => return None,
        }
        Some((self.ledger(), self.went_back.unwrap_or(found)))
    }

    /// What is held by the journal.
    pub(super) fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new(super::agent::COOLDOWN);
        self.store.journal.iter().for_each(|step| ledger.apply(step));
        ledger
    }

    /// How far the journal has come.
    pub(super) fn at(&self) -> Position {
        self.store.at
    }

    /// The copy of the spec.
    pub(super) fn noted(&self) -> Option<&Noted> {
        self.store.noted.as_ref()
    }

    /// Whether an earlier state of the store was put in place, and no agent has found that out yet.
    pub(super) fn went_back(&self) -> bool {
        self.went_back.is_some()
    }

    /// That was found out.
    pub(super) fn is_known_to_have_gone_back(&mut self) {
        self.went_back = None;
    }

    /// Makes these changes durable.
    pub(super) fn record(&mut self, changes: &[Step]) {
        self.store.at.sequence += u64::from(!changes.is_empty());
        self.store.journal.extend_from_slice(changes);
    }

    /// Somebody makes a copy of the store.
    pub(super) fn copy(&mut self) {
        self.copy = Some(self.store.clone());
    }

    /// The copy takes the place of the store; without one the store is deleted. Not while an agent runs. Whether there was no copy.
    pub(super) fn put_back(&mut self) -> bool {
        if self.is == State::ReadOnly {
            return false;
        }
        self.store = self.copy.clone().unwrap_or_default();
        self.went_back = Some(self.store.at);
        self.saved = self.noted().map(|noted| noted.spec.blocks.clone()).unwrap_or_default();
        self.told.clone_from(&self.saved);
        self.copy.is_none()
    }

    /// Saves the spec as the agent's file does. Whether that worked.
    pub(super) fn save(&mut self, noted: &Noted) -> bool {
        match self.is {
            State::Well => {
                self.store.noted = Some(noted.clone());
                self.saved.clone_from(&noted.spec.blocks);
            }
            State::Full => self.store.noted = self.store.noted.take().filter(|saved| may_stay(saved, noted)),
            // The copy stays whatever it promises, so that of what it has nothing may count as given back.
            State::ReadOnly => return false,
        }
        self.told.clone_from(&noted.spec.blocks);
        self.is == State::Well
    }

    /// What is wrong with the copy as a start finds it: it has a block that the node has lost since.
    pub(super) fn untrue(&self) -> Option<String> {
        let copy = &self.noted()?.spec.blocks;
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
