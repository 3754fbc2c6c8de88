//! A deterministic simulation of a whole cluster around the operator's and the agent's real decisions.
//!
//! A seed makes a history. It decides which events the watches deliver and when, and which calls and answers are lost. It
//! also decides which processes crash, are stopped or start, and what an admin does. After each call the safety laws
//! ([`law`]) are checked against the addresses that pods really have. At the end no more faults happen. Within six
//! simulated minutes every liveness law must then hold, by the objects on the server and by real ADD requests. They must
//! hold again once all pods have ended, and again once all pools are deleted. There is no wall clock, and there are no
//! threads: the same seed makes the same history. A history that breaks a law is shrunk to the shortest one that still
//! does.
//!
//! The laws ignore what the code reports about itself, with three exceptions. The reason `AwaitingAgentReports` means
//! that new blocks wait for reports; it counts only where, by what the model knows, records may be missing. The reason
//! `InvalidSpec` means that nothing is assigned or released. An agent whose store was lost reports addresses without a
//! record; the model decides until when. Two messages are read. The Ready condition of an IPAMNode has the value that
//! discards such addresses: the simulated admin uses it, and a law requires it. And a recogniser of a known fault
//! ([`known`]) reads in the message of `AwaitingAgentReports` whether the wait has a limit.
//!
//! What an admin has accepted is allowed by name ([`allowed`]): each reason is counted with the checks that it leaves
//! out, and with the checks that found an address really assigned twice. These checks are left out without a count:
//! * what pools with an invalid spec assign and release;
//! * `pool-in-use-stays` for a pool that goes with its CRD;
//! * whether a grant is ended or idle that a node had before its store was lost or the node was reinstalled;
//! * CHECK and a repeated ADD of a pod of which the agent has no record;
//! * `force-all-names-releasing-nodes` for a node that was deselected, cordoned or deleted since the last restore.
//!
//! What happened is counted, too ([`activity`]), so that a run in which something never happens does not count as a
//! proof of it.
//!
//! Real code of the operator: `ipam_reconciler::reconcile` with all its decisions, the calls of
//! `ipam_operator::api_writer`, and the loop of the election with the allocation state of the Lease. A model of the API
//! server answers the calls. Real code of the agent: how it reads blocks, accepts specs, and compares journal and report;
//! also the allocator (`Allocator::inline`), the journal on a simulated disk (`store::fake`), the reporter
//! (`status::Reports`), the garbage collection (`gc::Observations`, `gc::Suspects`) and the checks for addresses without a record
//! (`reclaim::Sightings`).
//!
//! Modelled: the API server, and time. On the agent's side:
//! * the loop of its watch (`process.rs`). [`differential`] compares it with `watch::Blocks` on the same events;
//! * the gRPC service and the container runtime, which call the allocator directly here (`agent/cni.rs`);
//! * the lists of pods (`agent/collect.rs`), and the pauses of the reporter's and the collector's loops.
//!
//! On the operator's side:
//! * its look at the fields of the CRDs (`ipam_operator::definitions`), which is not played;
//! * the order of a start and of an end (`ipam_operator::run`): a leader that loses the Lease ends, and one that gains it lists again;
//! * renewals of the Lease, which come up to four seconds late (`election.rs`).
//!
//! `e2e/tests/model.rs` compares these properties of the model of the API server ([`server`]) with the real one:
//! * which writes conflict by version or uid, and which preconditions a deletion has;
//! * that a write without a change makes no version, and what `generation` counts;
//! * that `spec` and `status` are written separately, merge and JSON patches, and finalizers;
//! * the events of a watch in their order;
//! * that an update of a Lease that does not exist creates it.
//!
//! kube-runtime's Controllers are `ipam_reconciler::reconcile::model`, which lists what `operator/tests/controllers.rs`
//! compares with the real ones. Not modelled is how many keys are reconciled at one time.
//! Nothing compares these properties of the model: a watch that lags, fails or lists again ([`watch`]), the moment at
//! which a replica learns that it leads, a Lease call that is late or timed out, and a restore. Nor does anything compare
//! the order of the steps of the agent's report loop. The agent's report, what is in use and what is in force are read in
//! one step.
//!
//! Played on the API server and the operator:
//! * watches that lag, repeat events, skip outdated events, return an error, or break and list again; a list that fails
//!   is one that comes later;
//! * calls and reports that are lost, whose answer is lost, or that arrive after their sender has died or stopped
//!   waiting; also creations, which no version makes conditional;
//! * ten HTTP errors, before and after the call takes effect, for each kind of call. A run must show each of them for each
//!   kind. For reads, the deletion of an IPAMNode and the creation of the Lease, an error on one side of the
//!   effect is enough;
//! * replicas and agents that are killed, start, and are stopped beyond their Lease; skewed clocks;
//! * an admin who edits, deletes, relabels, wipes, and restores a backup, also under a running leader;
//! * no grace, and graces of 90 seconds, ten minutes and a day; of the longer ones, several leaders each see a part;
//! * an admin who force-releases (one node, or `*`), allows pools to share addresses and revokes that, removes
//!   finalizers, and deletes the CRDs with all their objects.
//!
//! Played on nodes:
//! * agents that start while the API server is unreachable, are killed within a record or a spec, or do not exist;
//! * pods that request an address of their node's block by its value or index, or two addresses; requests that are
//!   repeated; DEL and GC that never come; lists of pods that lag, are empty or fail;
//! * nodes that are replaced under new names; clocks of nodes that jump;
//! * disks that are full, cannot be written, fail a sync, lose their power or are lost with their node;
//! * agents' stores that are deleted, or restored to an earlier state, while pods run.
//!
//! The files in `known-faults` list what some of this breaks today. Examples are an IPAMNode that is deleted by hand
//! together with its pool, and a Node that leaves before its agent has reported.
//!
//! Not checked: how long a leader waits for a node without an agent. It keeps the node's blocks and IPAMNode today, and
//! after a deletion of the CRDs it waits for its report. After a restore the wait must end. The checks that this leaves out are counted.
//! Nor is checked whether something that must happen within the six minutes, or after a grace, happens sooner: a pause after a failure, and
//! a grace that takes longer than its setting. Of the conditions, `Releasing` with the reason `InUseWithoutBlock` and the reasons of
//! `Degraded` other than `DuplicateAddress` are not checked. The operator's own tests have these.
//!
//! Narrower than in a cluster: a backup that is restored is six minutes old or older; the skew of a node's clock is an
//! eighth of the drawn one where blocks have a grace; a restore starts all agents with working disks, and one under a
//! leader applies all pools again.
//!
//! Not played:
//! * a call that is on its way while a store is restored, because no API server runs then;
//! * a Pod object that is deleted while its containers run; a last look at a pod that is answered from an earlier state;
//! * an agent's store that is lost before the IPAMNode of a restore is deleted;
//! * an agent whose own store was restored and which receives nothing for long, or starts again before it does (it cannot
//!   know then);
//! * requests for an address outside their node's block by its value, or for the gateway (`allocateDefaultGateway`);
//! * another machine under the name of a node, a machine without a UUID, and `--replaced-machine-grace`, which the agent's own tests have;
//! * `--agent-node-selector`: it matches every node;
//! * a second interface of a pod in one network, and an IPAMNode that the agent cannot read, which the agent's own tests have;
//! * a list from a stale cache, because the watches request the most recent one;
//! * events that are published; `--offline-limit`; the webhooks; more than twelve nodes.
//!
//! Random steps of one history never both wipe a status and delete an IPAMNode by hand: then no record of the assignment is left.

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
pub mod fresh;
mod generate;
mod given;
mod inline;
pub mod known;
pub mod laboratory;
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
mod unreported;
mod watch;
mod wire;
mod world;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use ipam_core::{AddrRange, PoolKey};
use tokio::runtime::Runtime;

use action::Action;
use broken::Broken;
use world::World;

pub use generate::history;
pub use many::{End, Found, Played, Totals, play_many};
pub use shrink::{Order, shrink};

/// The admin's action that restores an earlier state of the API server.
const RESTORE: &str = "a restore";
/// The admin's action that removes a pool's status.
const WIPE: &str = "a wiped status";
/// No admin's action: a call of a replica that does not lead any more arrives.
const LATE_CALL: &str = "a late call";
/// The admin's action that deletes the CRDs.
const UNDEFINE: &str = "the definitions' deletion";

/// A history that broke a law.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The steps, the last of which broke the law; then, if `settling`, all was left to settle.
    pub history: Vec<Action>,
    /// Whether the law broke only after the last step, when no more faults happened.
    pub settling: bool,
    /// The law, and what broke it.
    pub law: Broken,
    /// What the model knows besides.
    pub evidence: Box<Evidence>,
}

/// What the model knows of reports, by which known faults are recognised.
#[derive(Clone, Default, Debug)]
pub struct Evidence {
    /// Entries of restored objects that no report proves.
    pub unproven: Vec<Unproven>,
    /// Assignments that were made while a node had not reported.
    pub early: Vec<EarlyAssignment>,
    /// The nodes that have not reported when the law is broken.
    pub unreported: BTreeSet<String>,
}

/// A block that was assigned while nodes had not reported since their IPAMNodes were restored or deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EarlyAssignment {
    /// The node that got the block.
    pub node: String,
    /// The addresses of the block.
    pub range: AddrRange,
    /// How long after the last restore, or the last deletion of the CRDs.
    pub since: Duration,
    /// The nodes that had not reported.
    pub unreported: BTreeSet<String>,
    /// Those of them whose last report was lost before the leader of that time led.
    pub forgotten: BTreeSet<String>,
    /// Those of them that had no Node.
    pub gone: BTreeSet<String>,
}

/// An entry that a restore brought back. No report of the backup had its grant, and the grant was used or revoked after
/// the backup was made. Or a block that a restore brought back without its entry, which was written after the backup was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unproven {
    /// The pool of the entry.
    pub pool: PoolKey,
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
    /// A simulator.
    ///
    /// # Errors
    /// The runtime for the operator's calls cannot be built.
    pub fn new() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        Ok(Self { runtime: Rc::new(runtime) })
    }

    /// Plays a history, then lets all settle.
    ///
    /// # Errors
    /// A law was broken. A panic of the code counts as one, too.
    pub fn play(&self, history: &[Action]) -> Result<World, Failure> {
        catch_unwind(AssertUnwindSafe(|| self.play_on(history))).unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let what = words.unwrap_or("without words").to_owned();
            let law = Broken { law: "no-panic", what };
            Err(Failure { history: history.to_vec(), settling: false, law, evidence: Box::default() })
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
            Err(law) => {
                let unreported = world.allowed.unreported.names().map(str::to_owned).collect();
                let evidence = Evidence { unproven: world.unproven, early: world.early, unreported };
                Err(Failure { history: history[..played].to_vec(), settling, law, evidence: Box::new(evidence) })
            }
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
