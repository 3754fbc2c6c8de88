//! A deterministic simulation of a whole cluster around the operator's and the agent's real decisions.
//!
//! From a seed comes a history: what the watches tell and when, which calls are lost and which only their answers, who
//! crashes, stands still or starts, and what an admin does. After each step the laws ([`law`]) are checked against what pods
//! really hold. No wall clock, no threads: the same seed gives the same history, and a history that breaks a law is shrunk to
//! the shortest one that still does.
//!
//! Real code: `operator::reconcile` with all it decides by, `operator::act` (its calls, answered by a model of the API server),
//! the election, and the agent's reading of blocks, its ledger and its reports. Modelled: the API server, the disk, and time.

pub mod action;
mod agent;
mod catalogue;
mod generate;
pub mod law;
mod replica;
mod server;
mod settle;
mod shrink;
mod watch;
mod wire;
mod world;

use std::rc::Rc;

use tokio::runtime::Runtime;

use action::Action;
use world::World;

pub use generate::history;
pub use shrink::shrink;

/// A history that broke a law.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The steps, the last of which broke it; then, if `settling`, all was left to settle.
    pub history: Vec<Action>,
    /// Whether it broke only after the last step, when nothing went wrong any more.
    pub settling: bool,
    /// Which law, in words.
    pub law: law::Broken,
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
    /// A law was broken.
    pub fn play(&self, history: &[Action]) -> Result<World, Failure> {
        let mut world = World::new(self.runtime.clone());
        for (place, &action) in history.iter().enumerate() {
            world.step(action);
            law::check(&world).map_err(|law| Failure { history: history[..=place].to_vec(), settling: false, law })?;
        }
        settle::settle(&mut world).map_err(|law| Failure { history: history.to_vec(), settling: true, law })?;
        Ok(world)
    }

    /// Makes the history of a seed and plays it.
    ///
    /// # Errors
    /// A law was broken; the failure is not shrunk.
    pub fn run(&self, seed: u64, steps: usize) -> Result<World, Failure> {
        self.play(&history(seed, steps))
    }
}
