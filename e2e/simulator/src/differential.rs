//! Compares the agent's real watch (`ipam_node_agent::watch::Blocks`) and allocator thread with the
//! simulator's model of them. Both receive the same events and requests, and end and start again at the same places:
//! gracefully, within a record, and within a spec. After each step both must have the same in force and in its journal, and must
//! allocate and report the same.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::stream;
use ipam_core::ledger::{Allocation, Attachment, Owner, Pick, Request};
use ipam_core::{PoolKey, PoolKind};
use ipam_crds::IPAMNode;
use ipam_node_agent::allocator::{Allocator, Ended, Failure, Holdings};
use ipam_node_agent::identity::Identity;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::ready::Readiness;
use ipam_node_agent::status::{Next, Outcome, Reports};
use ipam_node_agent::watch::{self, Blocks, FIRST_WORD, InForce};
use ipam_node_store::Position;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::watch::{Receiver, channel};
use tokio_util::sync::CancellationToken;

use super::action::Disk as State;
use super::clock::Clock;
use super::disk::{Disk, OpenStore};
use super::process::{Heard, Killed, Process};
use super::request::IF_NAME;
use super::server::{Backup, Change, Server, text};
use super::watch::Told;

const NODE: &str = "node-0";
/// Starts of the agent in one history.
const STARTS: usize = 5;
/// Changes of the object between two starts.
const CHANGES: usize = 6;
/// The pools that the object may name.
const POOLS: [&str; 2] = ["blue", "red"];
/// No pause of the real watch may end by itself: the simulator controls time.
const NEVER: Duration = Duration::from_hours(1);

/// Plays the events of a seed through both, and compares them.
///
/// # Errors
/// The difference between the two, as text; or a folder or thread cannot be created.
pub fn agents_agree(seed: u64) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let mut pair = Pair {
        rng: fastrand::Rng::with_seed(seed),
        server: Server::default(),
        backup: None,
        disks: [Disk::default(), Disk::default()],
        wall: Arc::default(),
        clock: Clock { start: Instant::now(), elapsed: Duration::from_mins(1) },
        pods: Vec::new(),
        made: 0,
        boots: 0,
    };
    (0..STARTS).try_for_each(|start| {
        // The model must answer at once, so tokio must not make it yield, however long it has run.
        let run = tokio::task::unconstrained(pair.run());
        runtime.block_on(run).map_err(|difference| format!("start {start}: {difference}"))
    })
}

/// The state that both share, and that outlives their starts.
struct Pair {
    rng: fastrand::Rng,
    server: Server,
    backup: Option<Backup>,
    /// The disk of the model, and the one of the original's journal.
    disks: [Disk; 2],
    /// The node's clock, in Unix seconds.
    wall: Arc<AtomicI64>,
    clock: Clock,
    /// Pods that have an address.
    pods: Vec<Owner>,
    made: u32,
    /// Starts of the machine.
    boots: u32,
}

/// Both agents between a start and an end.
struct Agents {
    model: Process,
    allocator: Allocator,
    ended: Ended,
    in_force: Receiver<Option<InForce>>,
    reports: Reports,
    events: Rc<RefCell<VecDeque<watch::Told>>>,
    /// Whether the original waits for the next event.
    is_idle: Rc<Cell<bool>>,
    follow: Pin<Box<dyn Future<Output = ()>>>,
}

/// How a start ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    InGoodOrder,
    /// At once, between two events.
    Killed,
    /// After this many steps of the journal's disk, in an ADD; with or without a power cut of the node.
    InRecord {
        after: u8,
        power: bool,
    },
    /// While both process the first event that has another spec.
    InSpec(Killed),
}

impl Pair {
    /// From one start to the next.
    async fn run(&mut self) -> Result<(), String> {
        let Some((mut agents, found)) = self.start().await? else { return Ok(()) };
        self.compare(&mut agents, "after the start").await?;
        if self.rng.u8(0..4) == 0 {
            self.miss_server(&mut agents).await?;
        }
        for _ in 0..CHANGES {
            if self.change(found) || self.rng.u8(0..6) == 0 {
                agents.model.watch.expire();
            }
            if self.rng.u8(0..16) == 0 {
                self.set_disk(State::Full);
            }
            for _ in 0..self.rng.u8(0..4) {
                let Some(told) = agents.model.watch.next(&self.server) else { break };
                self.hear(&mut agents, told, None).await?;
            }
            let time = Duration::from_secs(self.rng.u64(0..12));
            self.pass(time);
            self.ask(&mut agents).await?;
            self.report(&mut agents).await?;
        }
        let end = match self.rng.u8(0..6) {
            0 => End::InGoodOrder,
            1 => End::Killed,
            2 | 3 => End::InRecord { after: self.rng.u8(0..8), power: self.rng.bool() },
            4 => End::InSpec(Killed::BeforeSaving),
            _ => End::InSpec(Killed::BeforeItIsInForce),
        };
        self.end(agents, end).await?;
        if self.rng.bool() {
            self.set_disk(State::Well);
        }
        Ok(())
    }

    /// Starts both; `None` if neither can start, because the disk has no room.
    async fn start(&mut self) -> Result<Option<(Agents, Position)>, String> {
        let [model_disk, journal] = &mut self.disks;
        self.boots += u32::from(self.rng.u8(0..4) == 0);
        let here = Identity {
            store: Some(self.rng.u32(..).to_string()),
            machine: Some(NODE.to_owned()),
            boot: Some(self.boots.to_string()),
        };
        let model = Process::start(NODE, model_disk, here.clone(), &self.wall, self.clock)?;
        let (model, OpenStore { ledger, journal, start }) = match (model, journal.open(NODE, here)?) {
            (Some(model), Some(store)) => (model, store),
            (None, None) => {
                self.set_disk(State::Well);
                return Ok(None);
            }
            (model, _) => {
                return Err(format!("the model starts: {}, and the original does not agree", model.is_some()));
            }
        };
        let wall = Arc::clone(&self.wall);
        let wall = Arc::new(move || wall.load(Ordering::Relaxed));
        let (allocator, ended) = Allocator::start(ledger, Box::new(journal), wall, Arc::new(Metrics::default()))
            .map_err(|error| error.to_string())?;
        let (sender, in_force) = channel(None);
        let found = start.noted().uncompared.unwrap_or_default();
        let mut blocks = Blocks::new(allocator.clone(), start, Readiness::default(), sender);
        blocks.load(NEVER).await;
        let (events, is_idle) = (Rc::<RefCell<VecDeque<watch::Told>>>::default(), Rc::new(Cell::new(false)));
        let (taken, idle) = (Rc::clone(&events), Rc::clone(&is_idle));
        let stream = stream::poll_fn(move |_| {
            if let Some(event) = taken.borrow_mut().pop_front() {
                return Poll::Ready(Some(event));
            }
            idle.set(true);
            Poll::Pending
        });
        let follow = Box::pin(blocks.follow(stream, None, Arc::new(Metrics::default()), CancellationToken::new()));
        let reports = Reports::new(self.clock.instant().into());
        Ok(Some((Agents { model, allocator, ended, in_force, reports, events, is_idle, follow }, found)))
    }

    /// Ends both.
    async fn end(&mut self, mut agents: Agents, end: End) -> Result<(), String> {
        match end {
            End::InGoodOrder => agents.allocator.close().await,
            End::Killed => {}
            End::InRecord { after, .. } => {
                self.disks.iter_mut().for_each(|disk| disk.cut(after.into()));
                self.add(&mut agents).await?;
            }
            End::InSpec(killed) => {
                if self.change(Position::default()) {
                    agents.model.watch.expire();
                }
                while let Some(told) = agents.model.watch.next(&self.server) {
                    if self.hear(&mut agents, told, Some(killed)).await? {
                        break;
                    }
                }
            }
        }
        let Agents { model, allocator, ended, follow, .. } = agents;
        drop((model, follow, allocator));
        let ended = ended.await.map_err(|error| error.to_string())?;
        if !matches!(end, End::InRecord { .. }) {
            ended.map_err(|error| error.to_string())?;
        }
        let [model, original] = self.disks.each_ref().map(Disk::is_cut);
        same("at the end", "cut", &model, &original)?;
        let luck = self.rng.u64(..);
        for disk in &mut self.disks {
            match end {
                End::InRecord { power: true, .. } => disk.lose_power(luck),
                _ => disk.is_killed(),
            }
        }
        Ok(())
    }

    /// Delivers an event to both. With `killed`, both stop within it if it has another spec. Returns whether they do.
    async fn hear(&mut self, agents: &mut Agents, told: Told, killed: Option<Killed>) -> Result<bool, String> {
        agents.events.borrow_mut().push_back(Ok(event(&told)?));
        let heard = agents.model.hear(told, killed, self.clock);
        if matches!(heard, Heard::Killed) {
            // What the original puts in force after the record ends with it.
            if killed == Some(Killed::BeforeItIsInForce) {
                agents.poll(u8::MAX).await;
            }
            return Ok(true);
        }
        agents.poll(u8::MAX).await;
        self.compare(agents, "after an event").await?;
        Ok(false)
    }

    /// Before its first event, the API server is known to be unreachable, and both use what they had saved.
    async fn miss_server(&mut self, agents: &mut Agents) -> Result<(), String> {
        agents.events.borrow_mut().push_back(Err(watcher::Error::NoResourceVersion));
        agents.poll(u8::MAX).await;
        self.pass(FIRST_WORD);
        agents.model.goes_on(self.clock);
        self.compare(agents, "without the server").await
    }

    /// Time passes.
    fn pass(&mut self, time: Duration) {
        self.clock.elapsed += time;
        self.wall.store(i64::try_from(self.clock.elapsed.as_secs()).unwrap_or_default(), Ordering::Relaxed);
    }

    /// Sets the disk to full, or makes it work again.
    fn set_disk(&mut self, is: State) {
        self.disks.iter_mut().for_each(|disk| disk.set(is));
    }

    /// Some pods start and end.
    async fn ask(&mut self, agents: &mut Agents) -> Result<(), String> {
        for _ in 0..self.rng.u8(0..3) {
            if self.rng.u8(0..3) == 0 && !self.pods.is_empty() {
                self.delete(agents).await?;
            } else {
                self.add(agents).await?;
            }
            self.compare(agents, "after a request").await?;
        }
        Ok(())
    }

    /// CNI ADD of a new pod.
    async fn add(&mut self, agents: &mut Agents) -> Result<(), String> {
        self.made += 1;
        let name = POOLS[self.rng.usize(0..POOLS.len())];
        let owner = Owner::new(format!("pod-{}", self.made), IF_NAME);
        let attachment = Attachment {
            pod_name: owner.container_id.clone(),
            pod_namespace: "default".to_owned(),
            network: super::request::NETWORK.to_owned(),
            ..Attachment::default()
        };
        let pools = vec![PoolKey::new(PoolKind::IpPool, name)];
        let request = Request { pools, owner: owner.clone(), attachment, requested: Vec::new(), pick: Pick::Next };
        let asked = request.clone();
        let model = agents.model.ask(|allocator| async move { allocator.allocate(asked).await }).0;
        let original = agents.allocator.allocate(request).await;
        if matches!(original, Ok(_) | Err(Failure::Stopped)) {
            self.pods.push(owner);
        }
        let grants = |answer: Result<Allocation, Failure>| answer.map(|allocation| allocation.grants);
        same("ADD", name, &words(model.map(grants)), &words(Some(grants(original))))
    }

    /// CNI DEL of a pod.
    async fn delete(&mut self, agents: &mut Agents) -> Result<(), String> {
        let owner = self.pods.swap_remove(self.rng.usize(0..self.pods.len()));
        let pools: Vec<PoolKey> = POOLS.map(|name| PoolKey::new(PoolKind::IpPool, name)).into();
        let (of, by) = (pools.clone(), owner.clone());
        let model = agents.model.ask(|allocator| async move { allocator.release(of, by).await }).0;
        let original = agents.allocator.release(pools, owner).await;
        same("DEL", "freed", &words(model), &words(Some(original)))
    }

    /// Both write their reports if due, and receive the same outcome.
    async fn report(&mut self, agents: &mut Agents) -> Result<(), String> {
        let (model, original) = agents.next(self.clock).await?;
        same("report", "next", &what_is_next(&model), &what_is_next(&original))?;
        let (Next::Write(model), Next::Write(original)) = (model, original) else { return Ok(()) };
        let (arrives, outcome) = match self.rng.u8(0..6) {
            0 => (false, Outcome::Refused),
            1 => (self.rng.bool(), Outcome::Unreached),
            _ => (true, Outcome::Written(String::new())),
        };
        let answer = arrives.then(|| self.server.json_patch("ipamnodes", NODE, true, original.patch()));
        let outcome = match (outcome, answer) {
            (_, Some(Err((409, _)))) => Outcome::Conflict,
            (_, Some(Err(_))) => Outcome::Refused,
            (Outcome::Written(_), Some(Ok(object))) => Outcome::Written(text(&object, "/metadata/resourceVersion")),
            (outcome, _) => outcome,
        };
        agents.model.ended(*model, &outcome, Duration::ZERO, self.clock);
        agents.reports.ended(*original, &outcome, self.clock.instant().into());
        let (model, original) = agents.next(self.clock).await?;
        same("after a report", "next", &what_is_next(&model), &what_is_next(&original))
    }

    async fn compare(&mut self, agents: &mut Agents, when: &str) -> Result<(), String> {
        same(when, "in force", &agents.model.in_force, &*agents.in_force.borrow())?;
        let [model, original] = self.disks.each_ref().map(|disk| disk.noted(NODE));
        same(when, "recorded", &model, &original)?;
        let (model, original) = agents.holdings().await?;
        same(when, "in use", &model, &original)?;
        let (model, original) = agents.next(self.clock).await?;
        same(when, "report", &what_is_next(&model), &what_is_next(&original))
    }

    /// Changes the IPAMNode in a random way. Returns whether the store of the server was restored, which breaks watches.
    fn change(&mut self, found: Position) -> bool {
        let spec = json!({"pools": self.pools()});
        let is_there = self.server.get("ipamnodes", NODE).is_some();
        match self.rng.u8(0..20) {
            0 | 1 if is_there => drop(self.server.delete("ipamnodes", NODE, &Value::Null)),
            2..=5 if is_there => {
                let status = json!({"status": self.status(found)});
                drop(self.server.merge("ipamnodes", NODE, true, &status));
            }
            6 | 7 => self.backup = Some(self.server.backup()),
            8 | 9 => {
                let Some(backup) = self.backup.take() else { return false };
                self.server.restore(&backup);
                return true;
            }
            _ if is_there => drop(self.server.merge("ipamnodes", NODE, false, &json!({"spec": spec}))),
            _ => drop(self.server.create("ipamnodes", json!({"metadata": {"name": NODE}, "spec": spec}))),
        }
        false
    }

    fn pools(&mut self) -> Vec<Value> {
        let names: Vec<&str> = POOLS.into_iter().filter(|_| self.rng.u8(0..3) > 0).collect();
        let mut pool = |name: &&str| {
            let first = self.rng.u8(1..3);
            let state = if self.rng.u8(0..4) == 0 { "Releasing" } else { "Active" };
            let grant = format!("650000000000000{}", self.rng.u8(1..4));
            let mut entry = json!({"name": name, "poolType": "IPPool", "subnet": "10.0.0.0/28", "state": state, "grant": grant,
                "startIP": format!("10.0.0.{first}"), "endIP": "10.0.0.5"});
            if self.rng.bool() {
                entry["gateway"] = "10.0.0.14".into();
            }
            if self.rng.u8(0..8) == 0 {
                entry["endIP"] = "10.0.9.9".into();
            }
            if self.rng.u8(0..4) == 0 {
                entry["heldElsewhere"] = json!([{"startIP": "10.0.0.2", "endIP": "10.0.0.3"}]);
            }
            entry
        };
        names.iter().map(&mut pool).collect()
    }

    /// A report of this agent, of an earlier one, or of one whose journal had a later position.
    fn status(&mut self, found: Position) -> Value {
        let epoch = found.epoch + self.rng.u64(0..3);
        json!({"observedGeneration": 1, "ledger": {"epoch": epoch, "sequence": self.rng.u64(0..3)},
            "pools": [{"name": "blue", "poolType": "IPPool", "startIP": "10.0.0.1", "endIP": "10.0.0.5",
                "used": self.rng.u8(0..2), "capacity": 5, "held": [{"startIP": "10.0.0.3", "endIP": "10.0.0.3"}]}]})
    }
}

impl Agents {
    /// Polls the original until it waits for the next event, or this many times.
    async fn poll(&mut self, most: u8) {
        self.is_idle.set(false);
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            let is_over = self.follow.as_mut().poll(context).is_ready();
            let goes_on = !is_over && !self.is_idle.get() && polls < most;
            if goes_on { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// The addresses in use, by both.
    async fn holdings(&self) -> Result<(Holdings, Holdings), String> {
        let model = self.model.ask(|allocator| async move { allocator.holdings().await }).0;
        let model = model.ok_or("the model does not answer")?.map_err(|error| error.to_string())?;
        Ok((model, self.allocator.holdings().await.map_err(|error| error.to_string())?))
    }

    /// What both reporters do next. The original's reporter is notified of each change of what is in force, as in the real loop.
    async fn next(&mut self, clock: Clock) -> Result<(Next, Next), String> {
        if self.in_force.has_changed().map_err(|error| error.to_string())? {
            self.in_force.mark_unchanged();
            self.reports.heard(clock.instant().into());
        }
        let (mut model, mut original) = self.look(clock).await?;
        if let (Next::Rest(grants), Next::Rest(same)) = (&model, &original)
            && grants == same
        {
            // Both make the grants idle, and look again.
            let (one, other) = (grants.clone(), grants.clone());
            drop(self.model.to_rest(clock));
            drop(self.model.ask(|allocator| async move { allocator.rest(one).await }));
            self.reports.rested(&other);
            drop(self.allocator.rest(other).await);
            (model, original) = self.look(clock).await?;
        }
        Ok((model, original))
    }

    async fn look(&mut self, clock: Clock) -> Result<(Next, Next), String> {
        let (_, holdings) = self.holdings().await?;
        let in_force = self.in_force.borrow().clone().filter(|in_force| in_force.standing.is_some());
        let original = in_force.map_or(Next::Wait, |in_force| {
            self.reports.next(&in_force, &holdings, clock.instant().into(), clock.wall(0))
        });
        Ok((self.model.next(clock, 0), original))
    }
}

/// The same event, in the type of the original.
fn event(told: &Told) -> Result<Event<DeserializeGuard<IPAMNode>>, String> {
    let read = |object: &Value| serde_json::from_str(&object.to_string()).map_err(|error| error.to_string());
    Ok(match told {
        Told::Init => Event::Init,
        Told::Listed(object) => Event::InitApply(read(object)?),
        Told::Done => Event::InitDone,
        Told::Changed(Change::Applied, object) => Event::Apply(read(object)?),
        Told::Changed(Change::Deleted, object) => Event::Delete(read(object)?),
    })
}

/// An answer as text. No answer means that the allocator has stopped.
fn words<T: Debug>(answer: Option<Result<T, Failure>>) -> String {
    match answer.unwrap_or(Err(Failure::Stopped)) {
        Ok(answer) => format!("{answer:?}"),
        Err(failure) => failure.to_string(),
    }
}

fn what_is_next(next: &Next) -> (String, Value) {
    match next {
        Next::Write(write) => ("write".to_owned(), write.patch()),
        Next::Wait | Next::At(_) | Next::Rest(_) => (format!("{next:?}"), Value::Null),
    }
}

fn same<T: PartialEq + Debug>(when: &str, what: &str, model: &T, original: &T) -> Result<(), String> {
    if model == original {
        return Ok(());
    }
    Err(format!("{when}, {what}: the model has {model:#?}, and the original {original:#?}"))
}
