//! The crash laboratory: the agent's real allocator and journal on a disk that loses power at each step of a history.
//!
//! A seed makes a history of ADD, DEL, GC, notes of the spool, specs, imports of an older store and restarts, on a disk that fills up, and
//! whose syncs fail. The history is played to its end, and once for each step of the disk, where the power is cut or the agent is killed.
//! Then an agent starts on what is left. [`Finding`] says which of these did not hold:
//! * an address that ADD has answered is held by the same interface, until DEL, GC or a note has freed it;
//! * an address that these have freed is free;
//! * nothing else is held, apart from what the request at the cut may have done;
//! * the agent allocates no address that is held.
//!
//! A disk whose syncs lie can lose what was answered. Then the agent finds an earlier state of the history, or refuses the journal. It never
//! finds a mix of states.

mod agent;
mod played;
mod step;

use std::fmt;

use fastrand::Rng;

use agent::{Laboratory, repair};
pub use played::Played;
use step::Step;

/// Requests of a history.
const REQUESTS: usize = 24;
/// States that a cut disk may be in, for each cut.
const IMAGES: u64 = 2;

/// What did not hold.
#[derive(Debug)]
pub struct Finding {
    seed: u64,
    /// The step of the disk at which the power was cut; `None` if it was not.
    cut: Option<usize>,
    what: String,
    history: Vec<Step>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, cut, what, history } = self;
        write!(f, "seed {seed}, cut {cut:?}: {what}\n{history:?}")
    }
}

/// Plays the history of a seed, with a cut at each of its steps.
///
/// # Errors
/// What did not hold.
pub fn play(seed: u64) -> Result<Played, Box<Finding>> {
    let mut rng = Rng::with_seed(seed);
    let lies = rng.u8(..4) == 0;
    let mut history: Vec<_> = (0..REQUESTS).map(|_| Step::any(&mut rng)).collect();
    // An older store that is imported again brings back what was freed since; which is no state of the history.
    history.retain(|step| !lies || !matches!(step, Step::Import { .. }));
    let mut played = Played::default();
    let found = |cut| {
        let history = history.clone();
        move |what| Box::new(Finding { seed, cut, what, history })
    };
    let whole = Laboratory::run(&history, None, lies).map_err(found(None))?;
    // What the last sync has not made durable, a cut at the end can take.
    for image in 0..IMAGES {
        let mut luck = Rng::with_seed(seed ^ (image << 32) ^ u64::MAX);
        let disk = whole.disk.after_cut(&mut || luck.bool());
        repair(&disk);
        whole.start_on(&disk, &mut played).map_err(found(None))?;
    }
    for cut in 0..whole.disk.steps() {
        let lab = Laboratory::run(&history, Some(cut), lies).map_err(found(Some(cut)))?;
        played.waiting += u64::from(lab.has_waited);
        for image in 0..IMAGES {
            let mut luck = Rng::with_seed(seed ^ (image << 32) ^ u64::try_from(cut).unwrap_or_default());
            let disk = lab.disk.after_cut(&mut || luck.bool());
            lab.start_on(&disk, &mut played).map_err(found(Some(cut)))?;
        }
        // The agent is killed instead: what it wrote is there.
        lab.disk.end_cut();
        repair(&lab.disk);
        lab.start_on(&lab.disk, &mut played).map_err(found(Some(cut)))?;
    }
    Ok(played)
}
