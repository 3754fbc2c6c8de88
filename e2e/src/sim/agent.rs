//! One node: its agent's decisions by the real code (blocks, ledger, reports), its disk, and the pods that really run there.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipam_core::PoolKey;
use ipam_core::ledger::{Attachment, Change as Step, Ledger, Owner, Pick, Request};
use ipam_crds::{HELD_RUNS, IPAMNode};
use ipam_node_agent::allocator::Holdings;
use ipam_node_agent::blocks::usable;
use ipam_node_agent::note::Noted;
use ipam_node_agent::spec::NodeSpec;
use ipam_node_agent::status::{Pace, Report};
use ipam_node_agent::store::Position;
use ipam_node_agent::watch::{InForce, Standing};
use serde_json::{Value, json};

use super::action::Fate;
use super::replica::Clock;
use super::server::{Change, Server};
use super::watch::{Told, Watch};

/// What survives a crash.
#[derive(Clone, Default, Debug)]
struct Disk {
    journal: Vec<Step>,
    noted: Option<Noted>,
}

/// A running agent.
struct Process {
    ledger: Ledger,
    in_force: Option<InForce>,
    noted: Noted,
    standing: Option<Standing>,
    listed: Option<IPAMNode>,
    watch: Watch,
    pace: Pace,
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
}

impl Node {
    /// A machine whose agent has just started for the first time.
    pub(super) fn new(name: &str, clock: Clock) -> Self {
        let mut node =
            Self { name: name.to_owned(), disk: Disk::default(), process: None, pods: BTreeMap::new(), made: 0 };
        node.start(clock);
        node
    }

    /// Starts the agent, if it does not run.
    pub(super) fn start(&mut self, clock: Clock) {
        if self.process.is_some() {
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
            standing: None,
            listed: None,
            watch,
            pace: Pace::new(clock.instant().into()),
        };
        if let Some(noted) = self.disk.noted.clone() {
            process.noted = noted;
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
        self.disk = Disk::default();
    }

    /// Every address that pods of this node really have.
    pub(super) fn held(&self) -> impl Iterator<Item = (&str, &PoolKey, IpAddr)> {
        self.pods
            .iter()
            .flat_map(|(pod, addresses)| addresses.iter().map(move |(pool, addr)| (pod.as_str(), pool, *addr)))
    }

    /// Whether the agent knows all that the server says, and has told all that is worth telling.
    pub(super) fn is_idle(&self, server: &Server, clock: Clock) -> bool {
        let Some(process) = &self.process else { return true };
        process.watch.is_current(server) && self.due(clock).is_none_or(|due| due > clock.elapsed)
    }

    /// When the next report is due.
    pub(super) fn due(&self, clock: Clock) -> Option<Duration> {
        let process = self.process.as_ref()?;
        let report = process.report()?;
        let due = process.pace.due(&report)?;
        Some(due.into_std().saturating_duration_since(clock.start))
    }

    /// The watch tells up to `count` words.
    pub(super) fn hear(&mut self, count: usize, server: &Server) {
        for _ in 0..count {
            let Some(process) = &mut self.process else { return };
            let Some(told) = process.watch.next(server) else { return };
            let object = match process.observe(told) {
                Known::NotYet => continue,
                Known::Absent => None,
                Known::Object(object) => Some(*object),
            };
            process.see(object.as_ref());
            let spec = object.as_ref().map(NodeSpec::from).unwrap_or_default();
            if process.in_force.is_none() || process.noted.spec != spec {
                process.noted = process.noted.followed_by(spec);
                self.disk.noted = Some(process.noted.clone());
                process.put();
            } else if let Some(in_force) = &mut process.in_force {
                in_force.standing.clone_from(&process.standing);
            }
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
        let Some(process) = &mut self.process else { return };
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
    }

    /// CNI DEL of the `pick`-th pod. Without an agent the pod is gone all the same, and its address stays recorded until the
    /// runtime's next try: here, until the agent's garbage collection.
    pub(super) fn delete(&mut self, pick: usize, clock: Clock) {
        let count = self.pods.len();
        let Some(container) = self.pods.keys().nth(pick.checked_rem(count).unwrap_or(0)).cloned() else { return };
        self.pods.remove(&container);
        self.collect(clock);
    }

    /// Gives back what is recorded for pods that are gone.
    pub(super) fn collect(&mut self, clock: Clock) {
        let Some(process) = &mut self.process else { return };
        let stale: Vec<_> = process
            .ledger
            .reservations()
            .filter(|held| !self.pods.contains_key(&held.owner.container_id))
            .map(|held| (held.pool.clone(), held.owner.clone()))
            .collect();
        for (pool, owner) in stale {
            let changes = process.ledger.release(&[pool], &owner, seconds(clock));
            for step in &changes {
                process.ledger.apply(step);
            }
            self.disk.journal.extend(changes);
        }
    }

    /// Writes the report, if one is due.
    pub(super) fn report(&mut self, server: &mut Server, fate: Fate, clock: Clock) {
        if self.due(clock).is_none_or(|due| due > clock.elapsed) {
            return;
        }
        let Some(process) = &mut self.process else { return };
        let Some(report) = process.report() else { return };
        let now = clock.instant().into();
        let status = serde_json::to_value(report.status(None, clock.wall(0))).unwrap_or_default();
        let patch = json!([
            {"op": "test", "path": "/metadata/uid", "value": report.uid},
            {"op": "add", "path": "/status", "value": status},
        ]);
        let written = fate != Fate::Lost && server.json_patch("ipamnodes", &self.name, true, patch).is_ok();
        if written && fate == Fate::Done {
            process.pace.written(report, now);
        } else {
            process.pace.failed(now);
        }
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

    fn put(&mut self) {
        // What is noted is on disk before anything is given: the model's disk takes no time.
        let (pools, problems) = usable(&self.noted, &self.noted, None);
        self.ledger.configure(pools);
        let saved = self.noted.spec.generation;
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

fn read(object: &Value) -> Option<IPAMNode> {
    serde_json::from_value(object.clone()).ok()
}

fn seconds(clock: Clock) -> i64 {
    i64::try_from(clock.elapsed.as_secs()).unwrap_or_default()
}
