//! The table of cases: what is to be said of a pool, whoever is asked (`e2e/cases/README.md`).
//!
//! Reads and checks the form; it judges no pool. A key that it does not know, or a word that is none, is an error: a case
//! that says something nobody reads would be a case that nobody checks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ipam_core::{AdviceCode, Claim, ClaimSource, Held, PoolKind, Reason, addr};
use serde::Deserialize;
use serde_json::Value;

use crate::binaries::workspace;

/// The name of the pool that a case is about, unless it says another.
pub const POOL: &str = "pool";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kind: String,
    cases: Vec<Case>,
}

/// One case.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Case {
    /// What is special about it; unique among the cases of a kind.
    pub name: String,
    /// `IPPool` or `CIDRPool`, as the file says.
    #[serde(skip)]
    kind: String,
    /// The file's name without its ending.
    #[serde(skip)]
    pub file: String,
    /// `metadata.name` of the pool that it is about.
    #[serde(default = "usual_name")]
    pub pool: String,
    /// The spec that is put, as JSON; it may have wrong types.
    pub spec: Value,
    /// The value of the annotation that allows overlap.
    pub allow_overlap: Option<String>,
    /// The spec that the pool has before; absent if it is new.
    pub old: Option<Value>,
    /// The annotation's value before.
    pub old_allow_overlap: Option<String>,
    /// Which node has which block: `FIRST-LAST`, or `PREFIX` or `PREFIX via GATEWAY`.
    #[serde(default)]
    pub blocks: BTreeMap<String, String>,
    /// Of which of these nodes the block is being taken back.
    #[serde(default)]
    pub leaving: BTreeSet<String>,
    /// What nodes hold; a node that is not named has not told.
    #[serde(default)]
    pub held: BTreeMap<String, HeldByNode>,
    /// The other pools of the namespace.
    #[serde(default)]
    pub others: Vec<Other>,
    /// Whether advice that depends on nodes counts: then the cluster is [`fleet`].
    #[serde(default)]
    pub fleet: bool,
    /// What is refused.
    #[serde(default)]
    pub refused: Vec<Refusal>,
    /// What is warned of; only of a spec that is valid by itself.
    #[serde(default)]
    pub warned: Vec<Warning>,
    /// Some of what is said, whole and by hand: `FIELD: MESSAGE`. Everything else about a message is compared with `ipam-core`'s.
    #[serde(default)]
    pub texts: BTreeSet<String>,
    /// The pools, by name, that do not serve when all are there.
    #[serde(default)]
    pub yields: BTreeSet<String>,
    /// Whether reconcile defers an edit that is refused for what it takes away; see [`Case::is_deferred`].
    pub deferred: Option<bool>,
    /// What the CustomResourceDefinition says, when nobody else is asked.
    #[serde(default)]
    pub definition: Vec<Complaint>,
    /// Whether the stand-in for the API server in the tests of `crds` reads the texts as the server does.
    #[serde(default = "yes")]
    pub emulated: bool,
}

fn yes() -> bool {
    true
}

fn usual_name() -> String {
    POOL.to_owned()
}

/// What a node's agent has told.
#[derive(Clone, Deserialize, Debug)]
#[serde(untagged)]
pub enum HeldByNode {
    /// A mere number.
    Count(u64),
    /// The addresses.
    Addresses(Vec<String>),
}

impl HeldByNode {
    /// How many addresses.
    pub fn count(&self) -> u64 {
        match self {
            Self::Count(count) => *count,
            Self::Addresses(list) => u64::try_from(list.len()).unwrap_or(u64::MAX),
        }
    }
}

/// Another pool.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Other {
    /// Its name.
    pub name: String,
    /// `IPPool` or `CIDRPool`.
    pub kind: String,
    /// Its spec, which is valid.
    pub spec: Value,
    /// Its age beside the case's pool.
    #[serde(default)]
    pub age: Age,
    /// The value of the annotation that allows overlap.
    pub allow_overlap: Option<String>,
}

/// When another pool was created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Default, Debug)]
#[serde(rename_all = "camelCase")]
pub enum Age {
    /// Before all others.
    Oldest,
    /// Before the case's pool.
    #[default]
    Older,
    /// In the same second.
    Same,
    /// After the case's pool.
    Younger,
}

/// A violation that must be found.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Full path.
    pub field: String,
    /// The word of a [`Reason`].
    pub reason: String,
}

impl Refusal {
    /// The field without the place in a list and what is below.
    fn list(&self) -> &str {
        self.field.split('[').next().unwrap_or_default()
    }

    /// Whether one pool alone shows it.
    pub fn is_of_the_spec(&self) -> bool {
        ![Reason::Overlap, Reason::InUse].iter().any(|reason| self.reason == reason.as_str())
    }
}

/// Advice that must be given.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Warning {
    /// Full path.
    pub field: String,
    /// The word of an [`AdviceCode`].
    pub code: String,
}

/// An error of the API server's own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Complaint {
    /// The field as the API server writes it.
    pub field: String,
    /// A part of the message.
    pub message: String,
}

impl Case {
    /// The kind of the case's pool.
    pub fn kind(&self) -> PoolKind {
        if self.kind == "IPPool" { PoolKind::IpPool } else { PoolKind::CidrPool }
    }

    /// The same case about a pool of another name, if nothing is special about the name; another pool of the same name goes
    /// along.
    #[must_use]
    pub fn of_pool(&self, name: &str) -> Self {
        let mut case = self.clone();
        if self.pool == POOL {
            name.clone_into(&mut case.pool);
            for other in case.others.iter_mut().filter(|other| other.name == POOL) {
                name.clone_into(&mut other.name);
            }
            case.yields = self.yields.iter().map(|one| if one == POOL { name } else { one }.to_owned()).collect();
        }
        case
    }

    /// Whether the spec that is put is wrong by itself.
    pub fn is_invalid(&self) -> bool {
        self.refused.iter().any(Refusal::is_of_the_spec)
    }

    /// Whether reconcile defers the edit for some nodes. It does if the spec no longer has their blocks, or makes what may be
    /// held the gateway; an exclusion bars the next pods from an address, and leaves the block with its node.
    pub fn is_deferred(&self) -> bool {
        let excludes = |refusal: &Refusal| ["spec.exclusions", "spec.perNodeExclusions"].contains(&refusal.list());
        let moves = |refusal: &Refusal| refusal.reason == Reason::InUse.as_str() && !excludes(refusal);
        self.deferred.unwrap_or_else(|| self.refused.iter().any(moves))
    }

    /// Names the case in messages.
    pub fn title(&self) -> String {
        format!("{}: {}", self.file, self.name)
    }

    /// The records of who has which block.
    ///
    /// # Errors
    /// When a block is none.
    pub fn claims(&self) -> Result<Vec<Claim>> {
        self.blocks.iter().map(|(node, block)| self.claim(node, block)).collect()
    }

    fn claim(&self, node: &str, block: &str) -> Result<Claim> {
        let claim = match self.kind() {
            PoolKind::IpPool => {
                let (first, last) = block.split_once('-').context("a block is FIRST-LAST")?;
                Claim::from_ip_range(node, first, last, ClaimSource::Status)
            }
            PoolKind::CidrPool => {
                let (prefix, gateway) = block.split_once(" via ").map_or((block, None), |(p, g)| (p, Some(g)));
                Claim::from_prefix(node, prefix, gateway, ClaimSource::Status)
            }
        };
        claim.with_context(|| format!("{}: {block:?} is no block", self.title()))
    }

    /// What a node holds.
    ///
    /// # Errors
    /// When an address is none.
    pub fn held_by(&self, node: &str) -> Result<Held> {
        Ok(match self.held.get(node) {
            None => Held::Unknown,
            Some(HeldByNode::Count(count)) => Held::Count(*count),
            Some(HeldByNode::Addresses(list)) => {
                let number = |text: &String| addr::parse_addr(text).map(addr::number).context(text.clone());
                let numbers: Vec<u128> = list.iter().map(number).collect::<Result<_>>()?;
                Held::Addresses(numbers.into_iter().map(|number| (number, number)).collect())
            }
        })
    }

    fn check(&self) -> Result<()> {
        let is_kind = |kind: &str| PoolKind::from_kind(kind).is_some();
        ensure!(is_kind(&self.kind), "{:?} is no kind", self.kind);
        ensure!(self.others.iter().all(|other| is_kind(&other.kind)), "another pool has no kind of ours");
        for refusal in &self.refused {
            ensure!(
                Reason::ALL.iter().any(|reason| reason.as_str() == refusal.reason),
                "{:?} is no reason",
                refusal.reason
            );
        }
        for warning in &self.warned {
            ensure!(AdviceCode::ALL.iter().any(|code| code.as_str() == warning.code), "{:?} is no code", warning.code);
        }
        if self.old.is_none() && !(self.blocks.is_empty() && self.old_allow_overlap.is_none()) {
            bail!("a pool that is new has no blocks and nothing before");
        }
        ensure!(self.held.keys().all(|node| self.blocks.contains_key(node)), "a node without a block holds nothing");
        ensure!(self.leaving.iter().all(|node| self.blocks.contains_key(node)), "a node without a block keeps it");
        ensure!(!self.is_invalid() || self.warned.is_empty(), "a bad spec gets no advice");
        let fields: BTreeSet<&str> =
            self.refused.iter().map(|one| &*one.field).chain(self.warned.iter().map(|one| &*one.field)).collect();
        let is_of_one = |text: &String| text.split_once(": ").is_some_and(|(field, _)| fields.contains(field));
        ensure!(self.texts.iter().all(is_of_one), "a text is of no field that is refused or warned of");
        let names: BTreeSet<&str> = self.others.iter().map(|other| &*other.name).chain([&*self.pool]).collect();
        ensure!(self.yields.iter().all(|name| names.contains(name.as_str())), "who yields is not there");
        self.claims()?;
        self.blocks.keys().try_for_each(|node| self.held_by(node).map(drop))
    }
}

/// All cases, in the order of the files' names and of the files.
///
/// # Errors
/// When a file cannot be read, or is not of the form; the message names file and case.
pub fn load() -> Result<Vec<Case>> {
    let folder = workspace().join("e2e/cases");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        all.extend(read(&path, &text)?);
    }
    let mut names = BTreeSet::new();
    if let Some(case) = all.iter().find(|case| !names.insert((case.kind.clone(), case.file.clone(), case.name.clone())))
    {
        bail!("{} stands twice", case.title());
    }
    Ok(all)
}

/// The cases of one file.
///
/// # Errors
/// When it is not of the form.
pub fn read(path: &Path, text: &str) -> Result<Vec<Case>> {
    let file: File = serde_yaml::from_str(text).with_context(|| format!("cannot read {}", path.display()))?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let named = file.cases.into_iter().map(|case| Case { kind: file.kind.clone(), file: stem.to_string(), ..case });
    let cases: Vec<Case> = named.collect();
    cases.iter().try_for_each(|case| case.check().with_context(|| case.title()))?;
    Ok(cases)
}

/// The nodes of the cluster in which every case plays: n1 to n12, four in each of the racks r1, r2 and r3, with 8 times
/// their number of cores.
pub fn fleet() -> Vec<(String, BTreeMap<String, String>)> {
    let node = |number: u32| {
        let labels = [("rack", format!("r{}", number.div_ceil(4))), ("cores", (8 * number).to_string())];
        (format!("n{number}"), labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    };
    (1..=12).map(node).collect()
}
