//! A deterministic simulation of a whole cluster around the operator's and the agent's real decisions.
//!
//! From a seed comes a history: what the watches tell and when, which calls are lost and which only their answers, who
//! crashes, stands still or starts, and what an admin does. After each call the safety laws ([`law`]) are checked against what pods
//! really have. At the end no fault happens any more. Within six simulated minutes every liveness law must then hold, by the objects
//! on the server and by real ADD requests. They must hold again once all pods have ended, and again once all pools are deleted. No wall
//! clock, no threads: the same seed gives the same history, and a history that breaks a law is shrunk to the shortest one that still
//! does.
//!
//! What the code says of itself counts for nothing, with three exceptions. Once records are lost, the message of `AwaitingAgentReports` says whose
//! report the operator awaits. The reason `InvalidSpec` says that nothing is assigned or released. An agent whose store was lost says
//! which addresses it reports without a record; the model says until when.
//!
//! What an admin has accepted is allowed by name ([`allowed`]): each reason is counted with the checks that it leaves out. Pools with an
//! invalid spec are the exception: what they assign and release is not checked, and not counted. What happened is counted, too
//! ([`activity`]), so that a run in which something never happens does not count as a proof of it.
//!
//! Real code: `operator::reconcile` with all it decides by, `operator::act` (its calls, answered by a model of the API server),
//! the loop of the election with its mark of blocks given, and the agent's reading of blocks, its notes and its comparison of journal
//! and report. Of the agent also the allocator (`Allocator::inline`), the journal on a simulated disk (`store::fake`), the reporter
//! (`status::Reports`) and the garbage collection (`gc::Observations`, `gc::Suspects`).
//!
//! Modelled: the API server, and time. On the agent's side:
//! * the loop of its watch (`process.rs`). [`differential`] compares it with `watch::Blocks` on the same events;
//! * the files beside the journal (`disk.rs`). [`differential`] compares `spec.json` and `seen.json`, and nothing compares
//!   `uncompared.json`. They become records of the journal later;
//! * the gRPC service and the container runtime, which ask the allocator here without a wire (`agent/cni.rs`);
//! * the lists of pods (`agent/collect.rs`), and the pauses of the reporter's and the collector's loops.
//!
//! What the model of the API server ([`server`]) promises, and `tests/model.rs` compares with the real one: which writes conflict by
//! version or uid, which preconditions a deletion has, that a write which changes nothing makes no version, what `generation` counts,
//! that `spec` and `status` are written apart, merge and JSON patches, finalizers, and the events of a watch in their order. An update of
//! a Lease that is not there creates it.
//! kube-runtime's Controllers are `operator::reconcile::model`, which says what of it `operator/tests/controllers.rs` compares with the real
//! ones. Not modelled is how many keys are reconciled at one time.
//! What the model has of its own, and nothing compares: a watch that lags, fails or lists again ([`watch`]), the moment at which a replica
//! hears that it leads, a Lease call that is given up or late, a restore, and the order of the steps of the agent's report loop. The agent's
//! report, what is in use and what is in force are read in one step.
//!
//! Played: watches that lag, repeat themselves, leave out what was soon outdated, are answered by an error, or break and list again
//! (a list that is answered by an error is one that comes later); calls and reports that
//! are lost, whose answer is lost, or that arrive when whoever made them is long dead or has given them up (a creation, which no
//! version fences, within the time for which an IPAMNode outlives its Node); replicas and agents that are killed, start, and stand
//! still beyond their lease; skewed clocks; agents that start while the API server cannot be heard; pods that ask for an address of
//! their node's block by its value or index, or for two; requests that are repeated; nodes that are replaced under new names; disks
//! that are full, cannot be written, fail a sync, lose their power or are lost with their node; agents that are killed within a record
//! or a spec; clocks of nodes that jump; nodes without an agent; lists of pods that lag, are empty or fail; DEL and GC that never come;
//! agents' stores that are deleted, or put back to an earlier state, while pods run; an admin who edits, deletes, relabels, wipes,
//! restores a backup (also under a running leader), forces (one node, or `*`), allows pools to share addresses and takes that back,
//! takes finalizers off, and deletes the definitions with all that there is of them. What some of this breaks today is listed by file
//! in `known-faults`, such as an IPAMNode that is deleted by hand beside its pool, and a Node that leaves before its agent was asked.
//!
//! Not judged: how long a leader waits for a node without an agent. It keeps the node's blocks and IPAMNode today, and after a
//! loss of all records it waits for its report. The checks that this leaves out are counted.
//!
//! Not played: a call that is on its way while a store is put back, because no API server runs then; a Pod object that is deleted while
//! its containers run; a last look at a pod that is answered from an earlier state;
//! a creation by a former leader that arrives after its object was deleted by hand; an agent's store that is lost before the IPAMNode of
//! a restore is deleted; an agent
//! whose own store was put back and which hears nothing for long, or starts again before it does (it cannot know then); addresses
//! that pods ask for by name outside their node's block, or the gateway's (`allocateDefaultGateway`); a second interface of a pod in
//! one network, and an IPAMNode that the agent cannot read, which the agent's own tests have; a list from a stale cache, because
//! the watches ask for the most recent one; events that are published; `--offline-limit`, the
//! webhooks, and more than twelve nodes. Random steps of one history never both wipe a status and delete an IPAMNode by hand: then
//! nothing that is left tells who has what.

pub mod action;
pub mod activity;
mod admin;
mod agent;
mod allowed;
mod answer;
pub mod broken;
mod catalogue;
mod clock;
mod dice;
pub mod differential;
mod disk;
mod election;
mod generate;
mod given;
pub mod known;
pub mod law;
mod layout;
pub mod long;
pub mod many;
pub mod model;
mod object;
mod orphan;
mod overlay;
mod process;
pub mod recorded;
mod records;
mod replica;
mod request;
mod runtime;
mod server;
mod settle;
mod shrink;
mod size;
mod story;
mod watch;
mod wire;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use ipam_core::AddrRange;
use tokio::runtime::Runtime;

use action::Action;
use broken::Broken;
use world::World;

pub use generate::history;
pub use many::{End, Found, Played, Totals, play_many};
pub use shrink::shrink;

/// The admin's action that puts an earlier state of the API server in place.
const RESTORE: &str = "a restore";
/// The admin's action that removes a pool's status.
const WIPE: &str = "a wiped status";
/// The admin's action that deletes the definitions.
const UNDEFINE: &str = "the definitions' deletion";

/// A history that broke a law.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The steps, the last of which broke it; then, if `settling`, all was left to settle.
    pub history: Vec<Action>,
    /// Whether it broke only after the last step, when nothing went wrong any more.
    pub settling: bool,
    /// Which law, in words.
    pub law: Broken,
    /// Entries that restores put in place and that no report proves.
    pub unproven: Vec<Unproven>,
}

/// A restore put an entry in place whose grant no report had in the backup, and that was used or revoked after the backup was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unproven {
    /// The node of the IPAMNode.
    pub node: String,
    /// The addresses of the entry.
    pub range: AddrRange,
}

/// Simulates histories.
pub struct Simulator {
    runtime: Rc<Runtime>,
}

impl Simulator {
    /// One.
    ///
    /// # Errors
    /// The runtime for the operator's calls cannot be built.
    pub fn new() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        Ok(Self { runtime: Rc::new(runtime) })
    }

    /// Plays a history, then lets all settle.
    ///
    /// # Errors
    /// A law was broken. That the code panics is one, too.
    pub fn play(&self, history: &[Action]) -> Result<World, Failure> {
        catch_unwind(AssertUnwindSafe(|| self.play_on(history))).unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let what = words.unwrap_or("without words").to_owned();
            let law = Broken { law: "no-panic", what };
            Err(Failure { history: history.to_vec(), settling: false, law, unproven: Vec::new() })
        })
    }

    fn play_on(&self, history: &[Action]) -> Result<World, Failure> {
        let mut world = World::new(self.runtime.clone(), law::check);
        let mut played = history.len();
        let mut end = Ok(());
        for (place, &action) in history.iter().enumerate() {
            end = world.step(action);
            if end.is_err() {
                played = place + 1;
                break;
            }
        }
        let settling = end.is_ok();
        match end.and_then(|()| settle::settle(&mut world)) {
            Ok(()) => Ok(world),
            Err(law) => Err(Failure { history: history[..played].to_vec(), settling, law, unproven: world.unproven }),
        }
    }

    /// Makes the history of a seed and plays it.
    ///
    /// # Errors
    /// A law was broken; the failure is not shrunk.
    pub fn run(&self, seed: u64, steps: usize) -> Result<World, Failure> {
        self.play(&history(seed, steps))
    }
}
