//! A reconciler, and what the API server and the agents do around it.

use super::*;

/// A reconciler and a fake API server's view of versions.
pub(super) struct World {
    pub(super) reconciler: Reconciler,
    pub(super) controllers: Model,
    pub(super) now: Instant,
    /// When the wall clock showed its first time.
    began: Instant,
    pub(super) version: u64,
    /// What the Lease was made to say last, and whether it cannot be written; otherwise it is at once.
    pub(super) lease: AllocationState,
    pub(super) lease_fails: bool,
    /// The last request for a write of the Lease that is answered.
    pub(super) confirmed: u64,
    /// Whether an agent runs on each node, and reports about each new grant.
    pub(super) has_agents: bool,
}

pub(super) const SPEC: &str = r#"{"subnet":"192.168.0.0/16","perNodeBlockSize":4,"gateway":"192.168.0.1"}"#;

/// A pool with one block. If it selected n1, that would get the block that its pods use.
pub(super) const ONE_BLOCK_BUT_NOT_FOR_N1: &str = r#"{"subnet":"192.168.0.0/24","perNodeBlockSize":254,"nodeSelector":{"nodeSelectorTerms":
    [{"matchFields":[{"key":"metadata.name","operator":"NotIn","values":["n1"]}]}]}}"#;

pub(super) fn object(value: &Value) -> RawObject {
    serde_json::from_str(&value.to_string()).unwrap()
}

pub(super) fn pool_object(name: &str, version: u64, generation: i64, spec: &str, status: &Value) -> RawObject {
    object(&json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": generation, "resourceVersion": version.to_string(),
            "finalizers": [FINALIZER]},
        "spec": serde_json::from_str::<Value>(spec).unwrap(),
        "status": status,
    }))
}

/// An IPAMNode without blocks, as the operator creates it.
pub(super) fn empty(node: &str) -> RawObject {
    object(&json!({"metadata": {"name": node, "uid": format!("uid-{node}"), "generation": 1, "resourceVersion": "50"},
        "spec": {"pools": []}}))
}

impl World {
    /// In sync with `nodes` and the given pools, leading, nothing decided yet. Each node has an IPAMNode, by default one without
    /// blocks.
    pub(super) fn new(nodes: &[&str], pools: &[RawObject], mut ipam_nodes: Vec<RawObject>) -> Self {
        let has_one = |node: &str| ipam_nodes.iter().any(|ipam_node| ipam_node.name() == node);
        let missing: Vec<RawObject> = nodes.iter().filter(|node| !has_one(node)).map(|node| empty(node)).collect();
        ipam_nodes.extend(missing);
        let mut world = Self::empty();
        world.reconciler.lead(LeaseState::default(), world.now);
        world.list(nodes, pools, ipam_nodes);
        world
    }

    pub(super) fn empty() -> Self {
        Self::with(Settings::default())
    }

    /// Leading, with an operator that sets no finalizers. Nothing is listed yet.
    pub(super) fn without_finalizers() -> Self {
        let mut world = Self::with(Settings { finalizers: false, ..Settings::default() });
        world.reconciler.lead(LeaseState::default(), world.now);
        world
    }

    fn with(settings: Settings) -> Self {
        let now = Instant::now();
        Self {
            reconciler: Reconciler::new(settings, Arc::new(Metrics::default())),
            controllers: Model::default(),
            now,
            began: now,
            version: 100,
            lease: AllocationState::NoneAllocated,
            lease_fails: false,
            confirmed: 0,
            has_agents: true,
        }
    }

    /// Every watch begins with a list, in which all that is there is named.
    pub(super) fn list(&mut self, nodes: &[&str], pools: &[RawObject], ipam_nodes: Vec<RawObject>) {
        let world = self;
        for kind in [PoolKind::IpPool, PoolKind::CidrPool] {
            world.tell(Observed::Pool(kind, Event::Init));
            for pool in pools.iter().filter(|_| kind == PoolKind::IpPool) {
                world.tell(Observed::Pool(kind, Event::InitApply(pool.clone())));
            }
            world.tell(Observed::Pool(kind, Event::InitDone));
        }
        world.tell(Observed::Node(Event::Init));
        for node in nodes {
            world.tell(Observed::Node(Event::InitApply(((*node).to_owned(), NodeMeta::default()))));
        }
        world.tell(Observed::Node(Event::InitDone));
        world.tell(Observed::IpamNode(Event::Init));
        for ipam_node in ipam_nodes {
            world.tell(Observed::IpamNode(Event::InitApply(ipam_node)));
        }
        world.tell(Observed::IpamNode(Event::InitDone));
    }

    pub(super) fn tell(&mut self, event: Observed) {
        self.controllers.observe(&mut self.reconciler, event, self.now);
    }

    pub(super) fn node_joins(&mut self, name: &str) {
        self.tell(Observed::Node(Event::Apply((name.to_owned(), NodeMeta::default()))));
    }

    /// Lets a burst fall quiet and takes the calls that follow.
    pub(super) fn calls(&mut self) -> Vec<Command> {
        self.calls_after(Duration::from_millis(500))
    }

    pub(super) fn calls_after(&mut self, time: Duration) -> Vec<Command> {
        self.now += time;
        let mut calls = self.poll();
        let wish = self.reconciler.lease_request();
        if self.confirmed != wish.confirm {
            // The Lease is written once more, with what it says.
            self.confirmed = wish.confirm;
            self.say(self.lease);
            calls.extend(self.poll());
        }
        let wanted = self.reconciler.wanted_state();
        if !self.lease_fails && wanted != self.lease {
            self.lease = wanted;
            self.say(wanted);
            calls.extend(self.poll());
        }
        calls
    }

    /// What is due now.
    pub(super) fn poll(&mut self) -> Vec<Command> {
        let now = self.clocks();
        self.controllers.poll(&mut self.reconciler, now)
    }

    /// The reasons of all events that were to be published since the last time.
    pub(super) fn events(&mut self) -> Vec<&'static str> {
        self.reconciler.take_events().into_iter().map(|event| event.note.reason).collect()
    }

    /// The reasons of the Warning events that were to be published since the last time.
    pub(super) fn warnings(&mut self) -> Vec<&'static str> {
        let events = self.reconciler.take_events().into_iter().filter(|event| event.note.is_warning);
        events.map(|event| event.note.reason).collect()
    }

    /// When something is due, if nothing happens before.
    pub(super) fn next_wake(&mut self) -> Option<Instant> {
        let now = self.clocks();
        self.controllers.take_wakes(&mut self.reconciler, now);
        self.controllers.next_due(&self.reconciler)
    }

    pub(super) fn clocks(&self) -> Now {
        let wall = Timestamp::from_second(1_700_000_000).unwrap() + (self.now - self.began);
        Now { instant: self.now, wall }
    }

    /// What became of a call.
    pub(super) fn outcome(&mut self, outcome: Outcome) {
        self.controllers.settle(&mut self.reconciler, outcome, self.now);
    }

    /// The Lease says `given` from now on.
    pub(super) fn say(&mut self, given: AllocationState) {
        self.reconciler.on_lease_state(LeaseState { allocation: given, confirmed: self.confirmed }, self.now);
    }

    /// The API server does what `command` asks.
    pub(super) fn succeed(&mut self, command: Command) {
        self.version += 1;
        let version = self.version.to_string();
        let outcome = match command {
            Command::WriteStatus { pool, .. } | Command::PatchPool { pool, .. } => Outcome::Pool(pool, Ok(version)),
            Command::Confirm { pool } => {
                let version = pool.resource_version.clone();
                Outcome::Pool(pool, Ok(version))
            }
            Command::WriteIpamNode(write) => {
                let known = self.reconciler.ipam_nodes.get(&write.node);
                let is_same = known.is_some_and(|known| known.blocks == write.action.blocks());
                let generation = known.map_or(1, |known| known.generation + i64::from(!is_same));
                let made = NodeVersion { uid: format!("uid-{}", write.node), resource_version: version, generation };
                let made = (!matches!(write.action, NodeAction::Delete(..))).then_some(made);
                Outcome::IpamNode(write, Ok(made))
            }
        };
        let deleted = match &outcome {
            Outcome::IpamNode(NodeWrite { node, .. }, Ok(None)) => Some(node.clone()),
            _ => None,
        };
        self.outcome(outcome);
        if let Some(node) = deleted {
            let gone = json!({"metadata": {"name": node, "uid": format!("uid-{node}"), "resourceVersion": "0"}});
            self.tell(Observed::IpamNode(Event::Delete(object(&gone))));
        }
    }

    pub(super) fn fail(&mut self, command: Command, error: CallError) {
        let outcome = match command {
            Command::WriteStatus { pool, .. } | Command::PatchPool { pool, .. } | Command::Confirm { pool } => {
                Outcome::Pool(pool, Err(error))
            }
            Command::WriteIpamNode(write) => Outcome::IpamNode(write, Err(error)),
        };
        self.outcome(outcome);
    }

    /// Does all that is asked until nothing more is; tells what that was.
    pub(super) fn settle(&mut self) -> Vec<Command> {
        let mut done = Vec::new();
        for _ in 0..100 {
            let calls = self.calls();
            let is_due = self.next_wake().is_some_and(|due| due <= self.now + timing::QUIET);
            if calls.is_empty() && !self.confirm_grants() && !is_due {
                return done;
            }
            for call in calls {
                done.push(call.clone());
                self.succeed(call);
            }
        }
        panic!("it never comes to rest; the last of {} calls: {:#?}", done.len(), done.last_chunk::<4>());
    }

    /// The agents report about new grants of Active blocks, so that these may be in use. Whether there were any.
    pub(super) fn confirm_grants(&mut self) -> bool {
        let is_new = |record: &IpamNodeRecord| {
            let active = |block: &NodeBlock| block.state == BlockState::Active && record.is_unused(block);
            record.blocks.iter().any(active)
        };
        let all = self.reconciler.ipam_nodes.all();
        let nodes: Vec<String> =
            all.iter().filter(|(_, record)| is_new(record)).map(|(node, _)| node.clone()).collect();
        for node in &nodes {
            if self.has_agents {
                self.confirm(node);
            }
        }
        self.has_agents && !nodes.is_empty()
    }

    /// The agent of `node` reports the grants of its Active blocks, and the same addresses as before.
    pub(super) fn confirm(&mut self, node: &str) {
        let record = self.reconciler.ipam_nodes.get(node).unwrap().clone();
        self.version = self.version.max(record.resource_version.parse().unwrap_or(0)) + 1;
        let mut reports = record.reports.clone();
        for block in record.blocks.iter().filter(|block| block.state == BlockState::Active) {
            let before = reports.iter().position(|it| (&it.name, it.pool_type) == (&block.name, block.pool_type));
            let before = before.map(|place| reports.remove(place)).unwrap_or_default();
            reports.push(BlockUse {
                name: block.name.clone(),
                pool_type: block.pool_type,
                grant: Some(block.grant.clone()),
                start_ip: block.start_ip.clone(),
                end_ip: block.end_ip.clone(),
                capacity: 3,
                ended: false,
                ..before
            });
        }
        let event = json!({
            "metadata": {"name": node, "uid": record.uid, "generation": record.generation,
                "resourceVersion": self.version.to_string(), "finalizers": record.finalizers},
            "spec": {"pools": record.blocks, "reportRequest": record.request},
            "status": {"observedGeneration": record.generation, "reportRequest": record.request, "pools": reports},
        });
        self.tell(Observed::IpamNode(Event::Apply(object(&event))));
    }
}

pub(super) fn only(mut calls: Vec<Command>) -> Command {
    assert_eq!(calls.len(), 1, "{calls:#?}");
    calls.remove(0)
}

pub(super) fn status_of(command: &Command) -> &StatusRecord {
    let Command::WriteStatus { status, .. } = command else { panic!("no status: {command:#?}") };
    status
}

pub(super) fn nodes_written(calls: &[Command]) -> Vec<(&str, &NodeAction)> {
    let writes = calls.iter().filter_map(|call| match call {
        Command::WriteIpamNode(write) => Some((write.node.as_str(), &write.action)),
        _ => None,
    });
    writes.collect()
}

/// Whether it only makes a new version of a pool.
pub(super) fn is_fence(call: &Command) -> bool {
    matches!(call, Command::PatchPool { patch: PoolPatch::Annotation(FENCED_BY, Some(_)), .. })
}

pub(super) fn is_creation(call: &Command) -> bool {
    matches!(call, Command::WriteIpamNode(NodeWrite { action: NodeAction::Create { .. }, .. }))
}

pub(super) fn blue() -> RawObject {
    pool_object("blue", 10, 1, SPEC, &json!({}))
}

pub(super) fn status_json(record: &StatusRecord) -> Value {
    serde_json::to_value(record.body(PoolKind::IpPool)).unwrap()
}

impl World {
    /// The pool's spec or status is another now.
    pub(super) fn pool_reads(&mut self, generation: i64, spec: &str, status: &Value) {
        self.version += 1;
        let object = pool_object("blue", self.version, generation, spec, status);
        self.tell(Observed::Pool(PoolKind::IpPool, Event::Apply(object)));
    }

    pub(super) fn status(&self) -> StatusRecord {
        self.reconciler.pools[&PoolKey::new(PoolKind::IpPool, "blue")].record.status.clone()
    }

    pub(super) fn blocks(&self) -> Vec<String> {
        self.status().allocations.iter().map(|claim| format!("{}={}", claim.node, claim.range)).collect()
    }
}

pub(super) fn statuses(calls: &[Command]) -> Vec<&StatusRecord> {
    let written = calls.iter().filter_map(|call| match call {
        Command::WriteStatus { status, .. } => Some(status),
        _ => None,
    });
    written.collect()
}

pub(super) fn leaving_since() -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time> {
    let text = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    object(&text).metadata.deletion_timestamp
}

/// An event of Node `n1`, with or without the cordon.
pub(super) fn n1_cordoned(cordoned: bool) -> Observed {
    let leaving = cordoned.then_some(Leaving::Cordoned);
    Observed::Node(Event::Apply(("n1".into(), NodeMeta { leaving, ..NodeMeta::default() })))
}

impl Command {
    /// Whether it writes an IPAMNode with a block.
    pub(super) fn assigns(&self) -> bool {
        matches!(self, Self::WriteIpamNode(write) if !write.action.blocks().is_empty())
    }
}
