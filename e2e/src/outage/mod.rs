//! Pods come and go on three nodes at a steady rate while all that need not be there goes away: a leader that stands still
//! past its lease and wakes up, a leader that is killed, the API server for as long as is wanted, and etcd's history.
//!
//! Says how many calls failed and whether an address was ever held twice, by what the CNI plugin answered and nothing else; and
//! how long the statuses took to be right afterwards. It must never try a call again.

mod book;
mod load;
mod scene;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::control_plane::ControlPlane;
use load::Load;
use scene::Scene;

/// Ample for a busy machine.
const SOON: Duration = Duration::from_mins(2);

/// What is done.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// ADDs and DELs a second, of all nodes together.
    pub rate: u32,
    /// How long the API server is away.
    pub away: Duration,
    /// Whether etcd forgets its history meanwhile, so that no watch can go on where it was.
    pub compact: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// ADDs and DELs made.
    pub calls: usize,
    /// Those of them that were made while the API server was away.
    pub calls_away: usize,
    /// Calls that failed, in words.
    pub failed: Vec<String>,
    /// Addresses that were given while another pod had them, in words.
    pub doubled: Vec<String>,
    /// From a call's start to its end, sorted; starting the plugin in its node included.
    pub latencies: Vec<Duration>,
    /// From the moment the leader stood still until another had given a node that joined then its blocks.
    pub takeover: Duration,
    /// From the moment the API server served our kinds until somebody led. A follower counts a lease's time from when it saw it
    /// change, so that this is up to 15 s where the leader was killed.
    pub led: Duration,
    /// From then until all statuses told what pods hold.
    pub settled: Duration,
}

/// Runs a campaign in `namespace`, on a control plane with our CRDs that nobody else needs.
///
/// # Errors
/// When something does not start, or what is awaited does not come about; calls that fail are no error but in the report.
pub fn run(plane: &ControlPlane, namespace: &str, campaign: Campaign) -> Result<Report> {
    let mut scene = Scene::set(plane, namespace)?;
    let load = Load::begin(&scene, campaign.rate)?;
    let takeover = a_leader_sleeps(&mut scene).context("a leader that stands still")?;
    let before = load.book().calls();
    let ready = the_api_server_goes(plane, &mut scene, campaign).context("the API server goes away")?;
    let calls_away = load.book().calls() - before;
    let (book, held) = load.end()?;
    scene.await_leader(None)?;
    let led = ready.elapsed();
    scene.await_statuses(&held)?;
    let settled = ready.elapsed().saturating_sub(led);
    let mut report = book.report();
    report.latencies.sort_unstable();
    Ok(Report { calls_away, takeover, led, settled, ..report })
}

/// SIGSTOP past the lease, then SIGCONT: another leads meanwhile, and the one who wakes up ends without doing harm.
fn a_leader_sleeps(scene: &mut Scene<'_>) -> Result<Duration> {
    let asleep = scene.await_leader(None)?;
    let began = Instant::now();
    scene.stop_operator(asleep)?;
    scene.await_leader(Some(asleep))?;
    scene.join("late")?;
    scene.await_served()?;
    let takeover = began.elapsed();
    // It still believes in its old plan, and hears at once of all that has happened since.
    scene.leave("late")?;
    scene.wake_operator(asleep)?;
    scene.await_served()?;
    Ok(takeover)
}

/// Kills the API server and the leader; starts them again. Returns when the API server was back: `/readyz` says so seconds before
/// objects of ours can be listed and written.
fn the_api_server_goes(plane: &ControlPlane, scene: &mut Scene<'_>, campaign: Campaign) -> Result<Instant> {
    let leader = scene.await_leader(None)?;
    plane.kill_apiserver()?;
    let gone = Instant::now();
    scene.restart_operator(leader)?;
    std::thread::sleep(campaign.away.saturating_sub(gone.elapsed()));
    if campaign.compact {
        plane.compact()?;
    }
    plane.start_apiserver()?;
    scene.await_our_kinds()?;
    Ok(Instant::now())
}
