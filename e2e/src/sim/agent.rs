//! One node: its agent's decisions by the real code (blocks, ledger, reports), its disk, and the pods that really run there.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipam_core::PoolKey;
use ipam_core::ledger::{Attachment, Ledger, Owner, Pick, Request};
use ipam_crds::{HELD_RUNS, IPAMNode};
use ipam_node_agent::allocator::Holdings;
use ipam_node_agent::blocks::usable;
use ipam_node_agent::note::Noted;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_agent::status::{Pace, Report, status_patch};
use ipam_node_agent::store::Position;
use ipam_node_agent::watch::{InForce, Standing};
use serde::Deserialize as _;
use serde_json::Value;

use super::action::{self, Fate};
use super::disk::Disk;
use super::object::Object;
use super::replica::Clock;
use super::server::{Change, Server};
use super::watch::{Told, Watch};

/// A running agent.
struct Process {
    ledger: Ledger,
    in_force: Option<InForce>,
    noted: Noted,
    /// What was on disk when a save last succeeded.
    durable: Noted,
    standing: Option<Standing>,
    listed: Option<IPAMNode>,
    watch: Watch,
    pace: Pace,
    /// When the next report is due, once somebody has asked: to find out takes the whole report.
    due: Cell<Due>,
}

/// When a report is due, as far as that was found out.
#[derive(Clone, Copy)]
enum Due {
    Unasked,
    Never,
    At(tokio::time::Instant),
}

/// A node.
pub(super) struct Node {
    /// Its name.
    pub(super) name: String,
    disk: Disk,
    process: Option<Process>,
    /// The addresses that each pod really has, by container.
    pods: BTreeMap<String, Vec<(PoolKey, IpAddr)>>,
    made: u32,
    /// Changes with what pods hold.
    moves: u64,
    /// What the agent did that none may do.
    wrong: Option<String>,
}

impl Node {
    /// A machine whose agent has just started for the first time.
    pub(super) fn new(name: &str, clock: Clock) -> Self {
        let mut node = Self {
            name: name.to_owned(),
            disk: Disk::default(),
            process: None,
            pods: BTreeMap::new(),
            made: 0,
            moves: 0,
            wrong: None,
        };
        node.start(clock);
        node
    }

    /// Starts the agent, if it does not run.
    pub(super) fn start(&mut self, clock: Clock) {
        if self.process.is_some() || self.disk.is == action::Disk::ReadOnly {
            return;
        }
        let mut ledger = Ledger::new(0);
        for step in &self.disk.journal {
            ledger.apply(step);
        }
        let watch = Watch::new("ipamnodes", Some(self.name.clone()));
        let mut process = Process {
            ledger,
            in_force: None,
            noted: Noted::default(),
            durable: Noted::default(),
            standing: None,
            listed: None,
            watch,
            pace: Pace::new(clock.instant().into()),
            due: Cell::new(Due::Unasked),
        };
        self.wrong = self.wrong.take().or_else(|| self.disk.untrue());
        if let Some(noted) = self.disk.noted.clone() {
            (process.noted, process.durable) = (noted.clone(), noted);
            process.put();
        }
        self.process = Some(process);
    }

    /// kill -9.
    pub(super) fn crash(&mut self) {
        self.process = None;
    }

    /// The machine is set up anew: pods and disk are gone.
    pub(super) fn wipe(&mut self) {
        self.process = None;
        self.pods.clear();
        self.moves += 1;
        self.disk = Disk::default();
    }

    /// Every address that pods of this node really have.
    pub(super) fn held(&self) -> impl Iterator<Item = (&str, &PoolKey, IpAddr)> {
        self.pods
            .iter()
            .flat_map(|(pod, addresses)| addresses.iter().map(move |(pool, addr)| (pod.as_str(), pool, *addr)))
    }

    /// What the agent did that none may do, in words.
    pub(super) fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Another number after what pods hold has changed.
    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    /// Whether the agent has heard all that the server says of its node, and will remember it.
    pub(super) fn has_noted_all(&self, server: &Server) -> bool {
        self.process.as_ref().is_some_and(|it| it.watch.is_current(server) && it.noted == it.durable)
    }

    /// Whether the agent knows all that the server says, and has told all that is worth telling.
    pub(super) fn is_idle(&self, server: &Server, clock: Clock) -> bool {
        let Some(process) = &self.process else { return true };
        process.watch.is_current(server) && self.due(clock).is_none_or(|due| due > clock.elapsed)
    }

    /// Whether it runs, has room on its disk, and nothing to do for now.
    pub(super) fn has_settled(&self, server: &Server, clock: Clock) -> bool {
        self.process.is_some() && self.disk.is == action::Disk::Well && self.is_idle(server, clock)
    }

    /// When the next report is due.
    pub(super) fn due(&self, clock: Clock) -> Option<Duration> {
        let process = self.process.as_ref()?;
        if matches!(process.due.get(), Due::Unasked) {
            let due = process.report().and_then(|report| process.pace.due(&report));
            process.due.set(due.map_or(Due::Never, Due::At));
        }
        match process.due.get() {
            Due::At(due) => Some(due.into_std().saturating_duration_since(clock.start)),
            Due::Unasked | Due::Never => None,
        }
    }

    /// The watch tells up to `count` words.
    pub(super) fn hear(&mut self, count: usize, server: &Server) {
        for _ in 0..count {
            let Some(process) = &mut self.process else { return };
            let Some(told) = process.watch.next(server) else { return };
            process.due.set(Due::Unasked);
            let object = match process.observe(told) {
                Known::NotYet => continue,
                Known::Absent => None,
                Known::Object(object) => Some(*object),
            };
            process.see(object.as_ref());
            let spec = object.as_ref().map(NodeSpec::from).unwrap_or_default();
            if process.in_force.is_none() || process.noted.spec != spec {
                process.noted = process.noted.followed_by(spec);
                process.save(&mut self.disk);
                process.put();
            } else if let Some(in_force) = &mut process.in_force {
                in_force.standing.clone_from(&process.standing);
            }
        }
    }

    /// The disk fails, or is well again; what could not be saved is saved then.
    pub(super) fn set_disk(&mut self, is: action::Disk) {
        self.disk.is = is;
        let Some(process) = &mut self.process else { return };
        if process.durable != process.noted && process.save(&mut self.disk) {
            process.due.set(Due::Unasked);
            process.put();
        }
    }

    /// The watch breaks and begins anew.
    pub(super) fn lose_watch(&mut self) {
        if let Some(process) = &mut self.process {
            process.watch.expire();
        }
    }

    /// CNI ADD of a new pod in the `pick`-th pool that this node knows. With `crash`, the agent dies after the record is
    /// durable and before it answers: the runtime then deletes the pod.
    pub(super) fn add(&mut self, pick: usize, crash: bool, clock: Clock) {
        let Some(process) = self.process.as_mut().filter(|_| self.disk.is != action::Disk::ReadOnly) else { return };
        let Some(pool) = process.pool(pick) else { return };
        self.made += 1;
        let container = format!("{}-{}", self.name, self.made);
        let attachment =
            Attachment { pod_name: container.clone(), pod_namespace: "default".to_owned(), ..Attachment::default() };
        let request = Request {
            pools: vec![pool.clone()],
            owner: Owner::new(container.clone(), "net1"),
            attachment,
            requested: Vec::new(),
            pick: Pick::Next,
        };
        let Ok(allocation) = process.ledger.allocate(&request, seconds(clock)) else { return };
        process.due.set(Due::Unasked);
        let unsaved = allocation.grants.iter().find_map(|grant| self.disk.unsaved(&pool, grant.addr));
        self.wrong = self.wrong.take().or(unsaved);
        self.disk.journal.extend(allocation.changes.iter().cloned());
        if crash {
            self.process = None;
            return;
        }
        for step in &allocation.changes {
            process.ledger.apply(step);
        }
        let addresses = allocation.grants.iter().map(|grant| (pool.clone(), grant.addr)).collect();
        self.pods.insert(container, addresses);
        self.moves += 1;
    }

    /// The number of pools that this node knows.
    pub(super) fn pools(&self) -> usize {
        self.process.as_ref().and_then(|it| it.in_force.as_ref()).map_or(0, |in_force| in_force.spec.blocks.len())
    }

    /// CNI DEL of the `pick`-th pod. Without an agent the pod is gone all the same, and its address stays recorded until the
    /// runtime's next try: here, until the agent's garbage collection.
    pub(super) fn delete(&mut self, pick: usize, clock: Clock) {
        let count = self.pods.len();
        let Some(container) = self.pods.keys().nth(pick.checked_rem(count).unwrap_or(0)).cloned() else { return };
        self.pods.remove(&container);
        self.moves += 1;
        self.collect(clock);
    }

    /// Gives back what is recorded for pods that are gone.
    pub(super) fn collect(&mut self, clock: Clock) {
        let Some(process) = self.process.as_mut().filter(|_| self.disk.is != action::Disk::ReadOnly) else { return };
        let stale: Vec<_> = process
            .ledger
            .reservations()
            .filter(|held| !self.pods.contains_key(&held.owner.container_id))
            .map(|held| (held.pool.clone(), held.owner.clone()))
            .collect();
        for (pool, owner) in stale {
            process.due.set(Due::Unasked);
            let changes = process.ledger.release(&[pool], &owner, seconds(clock));
            for step in &changes {
                process.ledger.apply(step);
            }
            self.disk.journal.extend(changes);
        }
    }

    /// Writes the report, if one is due. Returns the patch if it is still on its way.
    pub(super) fn report(&mut self, server: &mut Server, fate: Fate, clock: Clock) -> Option<Value> {
        self.due(clock).filter(|due| *due <= clock.elapsed)?;
        let process = self.process.as_mut()?;
        let report = process.report()?;
        process.due.set(Due::Unasked);
        let now = clock.instant().into();
        let patch = status_patch(&report.uid, &report.status(None, clock.wall(0)));
        if fate == Fate::Late {
            process.pace.failed(now);
            return Some(patch);
        }
        let written = fate != Fate::Lost && server.json_patch("ipamnodes", &self.name, true, patch).is_ok();
        if written && fate == Fate::Done {
            process.pace.written(report, now);
        } else {
            process.pace.failed(now);
        }
        None
    }
}

impl Process {
    /// The pools in force, Active or not: the agent is to refuse by itself.
    fn pool(&self, pick: usize) -> Option<PoolKey> {
        let blocks = &self.in_force.as_ref()?.spec.blocks;
        let block = blocks.get(pick.checked_rem(blocks.len())?)?;
        Some(PoolKey::new(block.pool_type.into(), block.name.clone()))
    }

    /// What the watch says the object is now, or that there is none, once that is known. As the agent's own watch has it.
    fn observe(&mut self, told: Told) -> Known {
        match told {
            Told::Init => {
                self.listed = None;
                Known::NotYet
            }
            Told::Listed(object) => {
                self.listed = read(&object);
                Known::NotYet
            }
            Told::Done => self.listed.take().map_or(Known::Absent, |object| Known::Object(Box::new(object))),
            Told::Changed(Change::Applied, object) => {
                read(&object).map_or(Known::NotYet, |object| Known::Object(Box::new(object)))
            }
            Told::Changed(Change::Deleted, _) => Known::Absent,
        }
    }

    /// Takes note of the report that the server shows.
    fn see(&mut self, object: Option<&IPAMNode>) {
        let standing = object.map(|object| Standing {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            status: object.status.clone().unwrap_or_default(),
        });
        if let Some(standing) = standing.as_ref().filter(|standing| self.standing.as_ref() != Some(standing)) {
            self.pace.shown(Report::read(standing));
        }
        self.standing = standing;
    }

    /// Saves what is noted. Whether that worked.
    fn save(&mut self, disk: &mut Disk) -> bool {
        let saved = disk.save(&self.noted);
        if saved {
            self.durable.clone_from(&self.noted);
        }
        saved
    }

    fn put(&mut self) {
        let (pools, problems) = usable(&self.noted, &self.durable, None);
        self.ledger.configure(pools);
        let saved = self.noted.generation_in(&self.durable);
        self.in_force = Some(InForce {
            spec: self.noted.spec.clone(),
            saved,
            problems,
            lost: None,
            standing: self.standing.clone(),
        });
    }

    fn report(&self) -> Option<Report> {
        let in_force = self.in_force.as_ref()?;
        in_force.standing.as_ref()?;
        let position = Position { epoch: 1, sequence: 1 };
        Report::new(in_force, &Holdings { pools: self.ledger.holdings(HELD_RUNS), position })
    }
}

/// What a watch has said of the one object so far.
enum Known {
    NotYet,
    Absent,
    Object(Box<IPAMNode>),
}

fn read(object: &Object) -> Option<IPAMNode> {
    IPAMNode::deserialize(&**object).ok()
}

fn seconds(clock: Clock) -> i64 {
    i64::try_from(clock.elapsed.as_secs()).unwrap_or_default()
}
