//! What can happen, as plain data: a history is a list of these, so that it can be replayed, shrunk and printed.
//!
//! An action that makes no sense where it stands does nothing. Numbers pick among what is there, modulo its count.

use serde::{Deserialize, Serialize};

/// What the simulator does to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fate {
    /// It is done and answered.
    Done,
    /// It is done, and the answer is lost.
    AnswerLost,
    /// It never arrives.
    Lost,
    /// Whoever made it gives up waiting, and it arrives at last, after any time: see [`Action::Orphan`].
    Late,
    /// The API server answers with this HTTP code and does nothing.
    ErrorBefore(u16),
    /// It is done, and the answer has this HTTP code.
    ErrorAfter(u16),
}

/// How a disk is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum Disk {
    /// It does what it is asked.
    #[default]
    Well,
    /// Nothing more fits on it but what the journal has room for, which it makes ahead of need; what is there can be removed.
    Full,
    /// Nothing on it can be changed.
    ReadOnly,
}

/// What an agent's garbage collection gets from the API server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PodList {
    /// All pods of the node.
    Exact,
    /// Those that there were at the check before.
    Lagging,
    /// None.
    Empty,
    /// An error.
    Failing,
    /// None, and an error for the last look at a pod.
    LookFails,
}

/// One step. The fields say whom or what it is about, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are numbers of what their names say")]
pub enum Action {
    /// Time passes, in milliseconds.
    Pass(u32),
    /// So many seconds pass in which leaders go on leading.
    Rest(u8),
    /// Replicas that start from now on let go of the blocks of a Node that is gone after so many seconds; 0 is never.
    Grace(u8),
    /// A watch of a replica tells some words.
    Hear { replica: u8, watch: u8, words: u8 },
    /// A watch of a replica tells all there is, of each object only the last.
    HearLast { replica: u8, watch: u8 },
    /// A watch of a replica says its last word again.
    HearAgain { replica: u8, watch: u8 },
    /// A watch of a replica breaks and lists anew.
    LoseWatch { replica: u8, watch: u8 },
    /// A replica's watch of Nodes is answered by an error, and goes on where it was.
    WatchFails { replica: u8 },
    /// A replica decides what is due.
    Decide { replica: u8 },
    /// A call of a replica meets its fate.
    Call { replica: u8, call: u8, fate: Fate },
    /// An answer reaches a replica.
    Answer { replica: u8, answer: u8 },
    /// A replica tries to get or keep the Lease, if a try is due, from its first call to its last. Of the calls the writes meet the
    /// fate; one that is lost loses the reads, too.
    Campaign { replica: u8, fate: Fate },
    /// The next step of a replica's election: a try begins if one is due, its call reaches the server, or the answer comes back.
    Lease { replica: u8, fate: Fate },
    /// A replica stops in good order: its calls end, and it releases the Lease by a call that meets the fate.
    Stop { replica: u8, fate: Fate },
    /// The wall clock of a replica jumps by so many minutes.
    Jump { replica: u8, minutes: i16 },
    /// A replica is killed. What it has sent may still arrive.
    Kill { replica: u8 },
    /// A replica starts, its wall clock so many seconds off.
    Start { replica: u8, skew: i8 },
    /// A replica stands still for so many seconds (SIGSTOP, then SIGCONT).
    Freeze { replica: u8, seconds: u8 },
    /// A replica hears all there is, decides, and has its calls made and answered: what it does when nothing is slow.
    Work { replica: u8 },
    /// The same, and each of its calls meets the fate.
    WorkAgainst { replica: u8, fate: Fate },
    /// A replica works and all agents hear and report until what has happened so far is dealt with, as far as two such turns
    /// bring it.
    Round { replica: u8 },
    /// A replica hears all there is.
    Listen { replica: u8 },
    /// A node's agent hears all there is and reports.
    AgentWork { node: u8 },
    /// A call or report of somebody who was killed, or has given up waiting, arrives at last.
    Orphan { call: u8 },
    /// The watch of a node's agent tells some words.
    AgentHear { node: u8, words: u8 },
    /// The watch of a node's agent breaks and lists anew.
    AgentLoseWatch { node: u8 },
    /// A pod is started on a node.
    Add { node: u8, pool: u8 },
    /// The same, and the agent dies before it answers.
    AddAndCrash { node: u8, pool: u8 },
    /// A pod is started that asks for one address of the node's block, by its value or by its index.
    AddByName { node: u8, pool: u8, place: u8 },
    /// A pod of a node ends.
    Delete { node: u8, pod: u8 },
    /// Pods are started everywhere: on each node one in each of its pools.
    Crowd,
    /// All pods of a node end.
    Drain { node: u8 },
    /// A node's agent reports, if that is due.
    Report { node: u8, fate: Fate },
    /// A node's agent is killed.
    AgentKill { node: u8 },
    /// A node's agent starts.
    AgentStart { node: u8 },
    /// A node is set up anew, without its pods and its disk.
    Wipe { node: u8 },
    /// Somebody makes a copy of the store of a node's agent.
    CopyStore { node: u8 },
    /// Somebody ends a node's agent and puts the copy in place of its store, or deletes that if there is no copy. The pods run on.
    PutStoreBack { node: u8 },
    /// A node's disk fails, or is well again.
    Disk { node: u8, is: Disk },
    /// The Node object is made.
    NodeJoins { node: u8 },
    /// The Node object is deleted; the machine runs on.
    NodeLeaves { node: u8 },
    /// The Node's label flips between selected and not.
    Relabel { node: u8 },
    /// The Node is deleted, and a finalizer keeps it until [`Action::NodeLeaves`].
    NodeTerminates { node: u8 },
    /// The Node is cordoned for pools by annotation, or no longer.
    Cordon { node: u8 },
    /// A pool is applied with one of its specs: made, or edited.
    Apply { pool: u8, spec: u8 },
    /// A pool is deleted.
    Remove { pool: u8 },
    /// A pool's finalizers are taken off by hand.
    Strip { pool: u8 },
    /// An IPAMNode is deleted by hand.
    RemoveIpamNode { node: u8 },
    /// An admin runs the command by which an agent forgets the addresses that it reports without a record, if it says one.
    DiscardReport { node: u8 },
    /// A pool's status is wiped by hand.
    WipeStatus { pool: u8 },
    /// The definitions are deleted against all finalizers, and with them all pools and IPAMNodes, and are installed again; whether
    /// the watches break meanwhile.
    Undefine { breaks: bool },
    /// The pools that went with the definitions are applied again.
    Reapply,
    /// A backup of the API server's store is made.
    Backup,
    /// The last backup is put in place of what there is.
    Restore,
    /// The same while replicas run; whether their watches break at once, or tell nothing until they break.
    RestoreLive { breaks: bool },
    /// An admin says that a node's blocks of a pool are to be taken back, whatever is held.
    ForceRelease { pool: u8, node: u8 },
    /// An admin says so of all blocks of a pool that are being taken back.
    ForceAll { pool: u8 },
    /// An admin says that a pool may share addresses with others that say so, too; or takes that word back.
    Share { pool: u8 },
    /// A pod is started that asks for addresses of two pools.
    AddTwo { node: u8, pool: u8, other: u8 },
    /// The ADD of a pod is repeated.
    AddAgain { node: u8, pod: u8 },
    /// A pod is started, and after so many steps of the disk the agent is killed, or the node's power is cut.
    AddAndCut { node: u8, pool: u8, after: u8, power: bool },
    /// CHECK of a pod.
    Check { node: u8, pod: u8 },
    /// DEL of what was deleted last, and of a container that never was.
    DeleteAgain { node: u8 },
    /// A pod is gone, and the runtime never deletes it.
    Vanish { node: u8, pod: u8 },
    /// CNI GC of the network of all pods, or of another one that has none.
    RuntimeGc { node: u8, foreign: bool },
    /// A check of the agent's own garbage collection.
    CheckPods { node: u8, list: PodList },
    /// The power of a node is cut: its pods are gone, and what was not synced may be.
    PowerCut { node: u8, luck: u8 },
    /// After so many more syncs of a node's journal one fails.
    FailSync { node: u8, after: u8 },
    /// The watch of a node's agent tells all there is, and the agent is killed when it has saved the first spec, or before.
    AgentHearAndKill { node: u8, saved: bool },
    /// The wall clock of a node jumps by so many minutes.
    TurnClock { node: u8, minutes: i16 },
    /// A node never has an agent.
    WithoutAgent { node: u8 },
}
