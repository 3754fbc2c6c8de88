//! The actions of a history, as plain data. A history is a list of them, so that it can be replayed, shrunk and printed.
//!
//! An action that is impossible in the current state does nothing. Numbers select one of the existing items, modulo their count.

use serde::{Deserialize, Serialize};

/// What the simulator does to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fate {
    /// The call is done and answered.
    Done,
    /// The call is done, and the answer is lost.
    AnswerLost,
    /// The call never arrives.
    Lost,
    /// The caller stops waiting, and the call arrives at any later time: see [`Action::Orphan`].
    Late,
    /// The API server answers with this HTTP code and does nothing.
    ErrorBefore(u16),
    /// The call is done, and the answer has this HTTP code.
    ErrorAfter(u16),
}

/// The state of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum Disk {
    /// The disk works.
    #[default]
    Well,
    /// The disk is full, except for the room that the journal has made ahead of need. Existing data can be removed.
    Full,
    /// Nothing on the disk can be changed.
    ReadOnly,
}

/// What an agent's garbage collection receives from the API server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PodList {
    /// All pods of the node.
    Exact,
    /// The pods at the previous check.
    Lagging,
    /// No pods.
    Empty,
    /// An error.
    Failing,
    /// No pods, and an error for the last look at a pod.
    LookFails,
}

/// One step of a history. The fields are the numbers of the items that it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are numbers of what their names say")]
pub enum Action {
    /// Time passes, in milliseconds.
    Pass(u32),
    /// This many seconds pass, in which leaders renew their Lease.
    Rest(u8),
    /// Replicas that start from now on release the blocks of a Node that has been gone for this many seconds; 0 is never.
    Grace(u32),
    /// A watch of a replica delivers some events.
    Hear { replica: u8, watch: u8, words: u8 },
    /// A watch of a replica delivers all pending events, but only the last of each object.
    HearLast { replica: u8, watch: u8 },
    /// A watch of a replica delivers its last event again.
    HearAgain { replica: u8, watch: u8 },
    /// A watch of a replica breaks and lists again.
    LoseWatch { replica: u8, watch: u8 },
    /// A replica's watch of Nodes returns an error, and continues where it was.
    WatchFails { replica: u8 },
    /// A replica decides what is due.
    Decide { replica: u8 },
    /// A call of a replica meets its fate.
    Call { replica: u8, call: u8, fate: Fate },
    /// An answer reaches a replica.
    Answer { replica: u8, answer: u8 },
    /// A replica tries to acquire or renew the Lease, if a try is due, from its first call to its last. The writes meet
    /// the fate. If the fate is a lost call, the reads are lost, too.
    Campaign { replica: u8, fate: Fate },
    /// The next step of a replica's election: a try begins if one is due, its call reaches the server, or the answer comes back.
    Lease { replica: u8, fate: Fate },
    /// A replica shuts down gracefully: its calls end, and it releases the Lease by a call that meets the fate.
    Stop { replica: u8, fate: Fate },
    /// The wall clock of a replica jumps by this many minutes.
    Jump { replica: u8, minutes: i16 },
    /// A replica is killed. What it has sent may still arrive.
    Kill { replica: u8 },
    /// A replica starts, with its wall clock off by this many seconds.
    Start { replica: u8, skew: i8 },
    /// A replica is stopped for this many seconds (SIGSTOP, then SIGCONT).
    Freeze { replica: u8, seconds: u8 },
    /// A replica receives all events, decides, and has its calls made and answered: what it does when nothing is slow.
    Work { replica: u8 },
    /// The same, but each of its calls meets the fate.
    WorkAgainst { replica: u8, fate: Fate },
    /// A replica works and all agents receive events and report, until all that has happened is processed, as far as two
    /// such turns suffice.
    Round { replica: u8 },
    /// A replica receives all events.
    Listen { replica: u8 },
    /// A node's agent receives all events and reports.
    AgentWork { node: u8 },
    /// A call or report arrives after its sender was killed or has stopped waiting.
    Orphan { call: u8 },
    /// The watch of a node's agent delivers some events.
    AgentHear { node: u8, words: u8 },
    /// The watch of a node's agent breaks and lists again.
    AgentLoseWatch { node: u8 },
    /// A pod is started on a node.
    Add { node: u8, pool: u8 },
    /// The same, and the agent dies before it answers.
    AddAndCrash { node: u8, pool: u8 },
    /// A pod is started that requests one address of the node's block, by its value or by its index.
    AddByName { node: u8, pool: u8, place: u8 },
    /// A pod of a node ends.
    Delete { node: u8, pod: u8 },
    /// Pods are started on every node, one in each of its pools.
    Crowd,
    /// All pods of a node end.
    Drain { node: u8 },
    /// A node's agent reports, if a report is due.
    Report { node: u8, fate: Fate },
    /// A node's agent is killed.
    AgentKill { node: u8 },
    /// A node's agent starts.
    AgentStart { node: u8 },
    /// A node is reinstalled, without its pods and its disk.
    Wipe { node: u8 },
    /// The store of a node's agent is copied.
    CopyStore { node: u8 },
    /// A node's agent is ended, and the copy replaces its store. Without a copy the store is deleted. The pods continue to run.
    PutStoreBack { node: u8 },
    /// A node's disk fails, or works again.
    Disk { node: u8, is: Disk },
    /// The Node object is created.
    NodeJoins { node: u8 },
    /// The Node object is deleted; the machine continues to run.
    NodeLeaves { node: u8 },
    /// The Node's label changes between selected and not selected.
    Relabel { node: u8 },
    /// The Node is deleted, and a finalizer keeps it until [`Action::NodeLeaves`].
    NodeTerminates { node: u8 },
    /// The Node is cordoned for pools by annotation, or uncordoned.
    Cordon { node: u8 },
    /// A pool is applied with one of its specs: created, or edited.
    Apply { pool: u8, spec: u8 },
    /// A pool is deleted.
    Remove { pool: u8 },
    /// A pool's finalizers are removed by hand.
    Strip { pool: u8 },
    /// An IPAMNode is deleted by hand.
    RemoveIpamNode { node: u8 },
    /// An admin runs the command by which an agent discards the addresses that it reports without a record, if its
    /// IPAMNode shows one.
    DiscardReport { node: u8 },
    /// A pool's status is wiped by hand.
    WipeStatus { pool: u8 },
    /// The CRDs are deleted despite all finalizers, and with them all pools and IPAMNodes, and are installed again.
    /// `breaks` is whether the watches break meanwhile.
    Undefine { breaks: bool },
    /// The pools that were deleted with the CRDs are applied again.
    Reapply,
    /// A backup of the API server's store is made.
    Backup,
    /// The last backup is restored.
    Restore,
    /// The same while replicas run. `breaks` is whether their watches break at once, or deliver nothing until they break.
    RestoreLive { breaks: bool },
    /// An admin force-releases a node's blocks of a pool, even if addresses are in use.
    ForceRelease { pool: u8, node: u8 },
    /// An admin force-releases all blocks of a pool that are being released.
    ForceAll { pool: u8 },
    /// An admin allows a pool to share addresses with others that allow it, too; or revokes that.
    Share { pool: u8 },
    /// A pod is started that requests addresses of two pools.
    AddTwo { node: u8, pool: u8, other: u8 },
    /// The ADD of a pod is repeated.
    AddAgain { node: u8, pod: u8 },
    /// A pod is started, and after this many steps of the disk the agent is killed, or the node's power is cut.
    AddAndCut { node: u8, pool: u8, after: u8, power: bool },
    /// CHECK of a pod.
    Check { node: u8, pod: u8 },
    /// DEL of what was deleted last, and of a container that never existed.
    DeleteAgain { node: u8 },
    /// A pod ends, and the runtime never deletes it.
    Vanish { node: u8, pod: u8 },
    /// CNI GC of the network of all pods, or of another one that has none.
    RuntimeGc { node: u8, foreign: bool },
    /// A check of the agent's own garbage collection.
    CheckPods { node: u8, list: PodList },
    /// The power of a node is cut: its pods end, and unsynced data may be lost.
    PowerCut { node: u8, luck: u8 },
    /// After this many more syncs of a node's journal, one fails.
    FailSync { node: u8, after: u8 },
    /// The watch of a node's agent delivers all events, and the agent is killed when it has saved the first spec, or before.
    AgentHearAndKill { node: u8, saved: bool },
    /// The wall clock of a node jumps by this many minutes.
    TurnClock { node: u8, minutes: i16 },
    /// A node never has an agent.
    WithoutAgent { node: u8 },
}
