//! The agent's real watch (`node_agent::watch::Blocks`, with its real files) beside the simulator's model of it: both take in the same
//! events, end and start again at the same places, and must then have the same in force.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::stream;
use ipam_crds::IPAMNode;
use ipam_node_agent::allocator::Allocator;
use ipam_node_agent::metrics::Metrics;
use ipam_node_agent::ready::Readiness;
use ipam_node_agent::spec::SpecFile;
use ipam_node_agent::store::Position;
use ipam_node_agent::watch::{Blocks, FIRST_WORD, InForce};
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::disk::{Disk, OpenStore};
use super::process::Process;
use super::replica::Clock;
use super::server::{Change, NAMESPACE, Server};
use super::watch::Told;

const NODE: &str = "node-0";
/// Starts of the agent in one history.
const STARTS: usize = 4;
/// Changes of the object between two starts.
const CHANGES: usize = 6;

/// Plays the events of a seed through both.
///
/// # Errors
/// They differ, in words; or a folder or thread cannot be made.
pub fn agents_agree(seed: u64) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let folder = tempfile::tempdir().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let mut pair = Pair {
        rng: fastrand::Rng::with_seed(seed),
        server: Server::default(),
        disks: [Disk::default(), Disk::default()],
        clock: Clock { start: Instant::now(), elapsed: Duration::from_mins(1) },
    };
    (0..STARTS).try_for_each(|_| runtime.block_on(pair.run(folder.path())))
}

struct Pair {
    rng: fastrand::Rng,
    server: Server,
    /// Of the model, and the journal of the original.
    disks: [Disk; 2],
    clock: Clock,
}

impl Pair {
    /// From one start to the next.
    async fn run(&mut self, folder: &Path) -> Result<(), String> {
        let [model_disk, journal] = &mut self.disks;
        let model = Process::start(NODE, model_disk, &Arc::new(AtomicI64::new(0)), self.clock)?;
        let mut model = model.ok_or("the model does not start")?;
        let OpenStore { ledger, journal, found } = journal.open()?.ok_or("the original does not start")?;
        let (allocator, ended) =
            Allocator::start(ledger, Box::new(journal), Arc::new(|| 0), Arc::new(Metrics::default()))
                .map_err(|error| error.to_string())?;
        let (sender, in_force) = watch::channel(None);
        let file = SpecFile::new(folder, NODE, NAMESPACE);
        let mut blocks = Blocks::new(allocator.clone(), file, Readiness::default(), sender);
        blocks.load(FIRST_WORD, found).await;
        compare("after the start", &model, &in_force)?;
        let queue = Rc::new(RefCell::new(VecDeque::new()));
        let is_idle = Rc::new(Cell::new(false));
        let (taken, idle) = (Rc::clone(&queue), Rc::clone(&is_idle));
        let events = stream::poll_fn(move |_| {
            if let Some(event) = taken.borrow_mut().pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            idle.set(true);
            Poll::Pending
        });
        let follow = blocks.follow(events, None, Arc::new(Metrics::default()), CancellationToken::new());
        let mut follow = pin!(follow);
        for _ in 0..CHANGES {
            self.change(found);
            if self.rng.u8(0..6) == 0 {
                model.watch.expire();
            }
            for _ in 0..self.rng.u8(0..4) {
                let Some(told) = model.watch.next(&self.server) else { break };
                queue.borrow_mut().push_back(event(&told)?);
                model.hear(told, &mut self.disks[0], None, self.clock);
                is_idle.set(false);
                // The event is taken in when the original asks for the next one.
                poll_fn(|context| match follow.as_mut().poll(context) {
                    Poll::Pending if !is_idle.get() => Poll::Pending,
                    _ => Poll::Ready(()),
                })
                .await;
                compare("after an event", &model, &in_force)?;
            }
        }
        allocator.close().await;
        ended.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    /// Somebody changes the IPAMNode, by whatever there is.
    fn change(&mut self, found: Position) {
        let spec = json!({"pools": self.pools()});
        let is_there = self.server.get("ipamnodes", NODE).is_some();
        match self.rng.u8(0..8) {
            0 if is_there => drop(self.server.delete("ipamnodes", NODE, &Value::Null)),
            1 | 2 if is_there => {
                let status = json!({"status": self.status(found)});
                drop(self.server.merge("ipamnodes", NODE, true, &status));
            }
            _ if is_there => drop(self.server.merge("ipamnodes", NODE, false, &json!({"spec": spec}))),
            _ => drop(self.server.create("ipamnodes", json!({"metadata": {"name": NODE}, "spec": spec}))),
        }
    }

    fn pools(&mut self) -> Vec<Value> {
        let names = ["blue", "red"].into_iter().filter(|_| self.rng.u8(0..3) > 0);
        let names: Vec<&str> = names.collect();
        let mut pool = |name: &&str| {
            let first = self.rng.u8(1..3);
            let state = if self.rng.u8(0..4) == 0 { "Releasing" } else { "Active" };
            let mut entry = json!({"name": name, "poolType": "IPPool", "subnet": "10.0.0.0/28", "state": state,
                "startIP": format!("10.0.0.{first}"), "endIP": "10.0.0.5"});
            if self.rng.bool() {
                entry["gateway"] = "10.0.0.14".into();
            }
            if self.rng.u8(0..8) == 0 {
                entry["endIP"] = "10.0.9.9".into();
            }
            entry
        };
        names.iter().map(&mut pool).collect()
    }

    /// A report of this agent, of an earlier one, or of one that had come further.
    fn status(&mut self, found: Position) -> Value {
        let epoch = found.epoch + self.rng.u64(0..3);
        json!({"observedGeneration": 1, "ledger": {"epoch": epoch, "sequence": self.rng.u64(0..3)},
            "pools": [{"name": "blue", "poolType": "IPPool", "startIP": "10.0.0.1", "endIP": "10.0.0.5",
                "used": self.rng.u8(0..2), "capacity": 5, "held": [{"startIP": "10.0.0.3", "endIP": "10.0.0.3"}]}]})
    }
}

/// The same word as the original hears it.
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

fn compare(when: &str, model: &Process, original: &watch::Receiver<Option<InForce>>) -> Result<(), String> {
    let original = original.borrow();
    if model.in_force == *original {
        return Ok(());
    }
    Err(format!("{when} the model has {:#?} in force, and the original {original:#?}", model.in_force))
}
