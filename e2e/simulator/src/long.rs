//! A run over very many seeds that continues after failures, and that can be interrupted and resumed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::action::Action;
use super::{End, Totals, play_many};

/// Number of seeds between two writes of the file.
const BATCH: u64 = 2_000;

/// The state of a run, as the file keeps it.
#[derive(Serialize, Deserialize, Debug)]
pub struct Long {
    /// The first seed.
    pub first: u64,
    /// The seed after the last.
    pub last: u64,
    /// Steps of each history.
    pub steps: usize,
    /// A digest of the program that plays it. Another build would play other histories or check other laws.
    pub program: String,
    /// The next seed to be played.
    pub next: u64,
    /// The failures so far.
    pub found: Vec<Entry>,
    /// How much was played so far, and what happened.
    pub totals: Totals,
}

/// A seed that broke a law.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Entry {
    /// The seed.
    pub seed: u64,
    /// The law.
    pub law: String,
    /// What broke it.
    pub what: String,
    /// The known fault that it shows.
    pub known: Option<String>,
    /// The shortest history.
    pub history: Vec<Action>,
}

impl Entry {
    /// The entry in one line.
    pub fn line(&self) -> String {
        let known = self.known.as_deref().unwrap_or("NOT KNOWN");
        let what: String = self.what.chars().take(200).collect();
        format!("seed {} ({known}, {} steps): {}: {what}", self.seed, self.history.len(), self.law)
    }
}

/// Some seeds that were played together.
#[derive(Debug)]
pub struct Batch {
    /// Number of seeds.
    pub seeds: u32,
    /// How long they took, in seconds.
    pub seconds: f64,
    /// The failures in them.
    pub found: Vec<Entry>,
}

/// A digest of this program.
fn program() -> Result<String> {
    let path = std::env::current_exe().context("the program's path is not known")?;
    let bytes = std::fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

impl Long {
    /// The run in `file`, or a new one.
    ///
    /// # Errors
    /// The file does not parse, or has another run.
    pub fn open(file: &Path, seeds: Range<u64>, steps: usize) -> Result<Self> {
        if !file.exists() {
            let (found, totals) = (Vec::new(), Totals::default());
            let (first, last) = (seeds.start, seeds.end);
            return Ok(Self { first, last, steps, program: program()?, next: first, found, totals });
        }
        let kept = Self::read(file)?;
        ensure!(
            kept.program == program()?,
            "{} keeps a run of another build of this program: continue it with that build, or remove the file",
            file.display()
        );
        let is_it = (kept.first, kept.last, kept.steps) == (seeds.start, seeds.end, steps);
        ensure!(is_it, "{} keeps a run of seeds {}..{} of {} steps", file.display(), kept.first, kept.last, kept.steps);
        Ok(kept)
    }

    /// The run in `file`.
    ///
    /// # Errors
    /// The file does not parse.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} keeps no run", file.display()))
    }

    /// Plays the next batch and saves the result; `None` once all are played.
    ///
    /// # Errors
    /// A simulator cannot be made, or the file cannot be written.
    pub fn play_batch(&mut self, file: &Path) -> Result<Option<Batch>> {
        if self.next >= self.last {
            return Ok(None);
        }
        let began = Instant::now();
        let seeds = self.next..self.last.min(self.next + BATCH);
        let played = play_many(seeds.clone(), self.steps, End::AtLastSeed)?;
        let found: Vec<Entry> = played
            .found
            .into_iter()
            .map(|found| Entry {
                seed: found.seed,
                law: found.shortest.law.law.to_owned(),
                what: found.shortest.law.what,
                known: found.known.map(|fault| fault.name.to_owned()),
                history: found.shortest.history,
            })
            .collect();
        self.totals.join(&played.totals);
        self.found.extend(found.iter().cloned());
        self.next = seeds.end;
        let unfinished = file.with_extension("unfinished");
        std::fs::write(&unfinished, serde_json::to_string_pretty(self)?)?;
        std::fs::rename(&unfinished, file)?;
        let seeds = u32::try_from(seeds.end - seeds.start)?;
        Ok(Some(Batch { seeds, seconds: began.elapsed().as_secs_f64(), found }))
    }

    /// What was played and found, by law and known fault.
    pub fn summary(&self) -> String {
        let mut text = format!("{} seeds of {} steps\n", self.next - self.first, self.steps);
        let mut by_kind = BTreeMap::<(&str, &str), Vec<u64>>::new();
        for found in &self.found {
            let known = found.known.as_deref().unwrap_or("NOT KNOWN");
            by_kind.entry((known, &found.law)).or_default().push(found.seed);
        }
        for ((known, law), seeds) in by_kind {
            let first: Vec<String> = seeds.iter().take(8).map(ToString::to_string).collect();
            writeln!(text, "{:>6}  {known}, {law}: {}", seeds.len(), first.join(" ")).unwrap_or_default();
        }
        write!(text, "{}", self.totals).unwrap_or_default();
        text
    }

    /// The errors of the run so far, seeds that show an unknown fault first.
    pub fn wrong(&self) -> Vec<String> {
        let unknown = self.found.iter().filter(|found| found.known.is_none()).map(Entry::line);
        let known = self.found.iter().filter_map(|found| found.known.as_deref());
        unknown.chain(self.totals.wrong(known)).collect()
    }
}
