//! What is to be done next about the Secret, the webhook configuration and the certificate served. Pure: sees what was read,
//! remembers nothing, calls nobody, and takes the time as an argument.
//!
//! Every replica decides for itself, by the same rules, and every write is guarded by the resourceVersion of what was
//! decided on: of two that write, one wins and the other looks again.
//!
//! # Order of a change
//! A new CA is written into the Secret beside the old ones; whoever sees it there writes all of them into the
//! configuration; whoever sees it there, and has given the API servers time to see it too, serves the new leaf. So no leaf
//! is shown that the API server has not been told to trust.
//!
//! When the Secret is gone, its CA is kept by those who remember it. A replica that has just started, or has not looked since
//! that CA was made, remembers nothing: if it is the first to see that the Secret is gone, the leaf that others serve is not
//! trusted until they look again, a few seconds later. The CAs that stand in the configuration are no help there: whoever may
//! write one could have put his own.
//!
//! # When an old CA goes
//! No replica tells the others what it serves. It need not: a leaf is never shown after its end (see
//! [`ServerCertificates`](crate::ServerCertificates)), every leaf of a CA stood in the Secret before anybody served it, and a
//! leaf is replaced by one that ends later. So when the last leaf that a CA signed has ended, nobody serves any of its
//! leaves. That end is noted in the Secret when the CA is replaced, and the old CA goes an hour after it.
//!
//! Time is a proof here and no guess, because both sides go by it: an API server, too, refuses a leaf after its end, whatever
//! it trusts. So a CA without a leaf that lasts lends its trust to nothing that anybody could serve. Reports of what each
//! replica serves would let a CA go earlier, and would have to be believed of a replica that is cut off; the hour is for
//! clocks that differ.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

/// A certificate in DER. Two are the same certificate if and only if the bytes are.
pub type Der = Arc<[u8]>;

/// CAs kept in the Secret beside the one that signs. Each change adds one, so this many changes can happen within the life
/// of a leaf before a replica that slept through all of them is forgotten.
pub const OLD_AUTHORITIES: usize = 7;

/// How long things live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lives {
    /// From the signing of a leaf to its end. It is replaced when a third of this is left.
    pub leaf: Duration,
    /// From the making of a CA to its end. It is replaced when a third of this is left.
    pub authority: Duration,
    /// How far before their making certificates begin to be valid. More than a year: what a replica makes whose clock is a
    /// year ahead is then valid for the others and for the API server, and one whose clock is a year behind takes theirs.
    pub backdate: Duration,
    /// How long after the configuration trusts a new CA a leaf of it is served, if there is another that can be served. An
    /// API server learns of the configuration by a watch, mostly within a second.
    pub propagation: Duration,
    /// How far the clocks of two replicas may be apart when an old CA is dropped.
    pub skew: Duration,
}

impl Default for Lives {
    fn default() -> Self {
        const DAY: Duration = Duration::from_hours(24);
        Self {
            leaf: DAY * 90,
            authority: DAY * 730,
            backdate: DAY * 400,
            propagation: Duration::from_secs(10),
            skew: Duration::from_hours(1),
        }
    }
}

/// A certificate's content and validity.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Dated {
    /// The certificate.
    pub der: Der,
    /// Valid from then on.
    pub not_before: Timestamp,
    /// Valid until then.
    pub not_after: Timestamp,
}

impl Dated {
    /// Whether it is valid at this time.
    pub fn valid(&self, now: Timestamp) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// Whether at most a third of `life` is left. Counted from the end, for the beginning is dated back.
    fn due(&self, life: Duration, now: Timestamp) -> bool {
        self.not_after.duration_since(now) <= signed(life / 3)
    }
}

/// What stands in the Secret.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Standing {
    /// The CAs, never none; the first signs, the others may still have a leaf that somebody serves.
    pub authorities: Vec<Dated>,
    /// The leaf, signed by the first CA, for the names wanted; or what is wrong with it.
    pub leaf: Result<Dated, Unfit>,
    /// When the last leaf of the other CAs ends.
    pub retire_after: Option<Timestamp>,
}

/// A leaf that cannot be used, whatever the time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Unfit {
    /// What is wrong with it.
    pub why: String,
    /// If nothing but names is lacking, the names that it has: a replica of another configuration may want them.
    pub names: Vec<String>,
}

impl Standing {
    /// The CA that signs.
    pub fn signer(&self) -> &Dated {
        &self.authorities[0]
    }

    fn bundle(&self) -> Vec<Der> {
        self.authorities.iter().map(|authority| authority.der.clone()).collect()
    }

    fn trusts(&self, authority: &Dated) -> bool {
        self.authorities.contains(authority)
    }
}

/// The Secret, as it was read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Secret {
    /// There is none.
    Absent,
    /// Somebody else keeps it; says who.
    Foreign(String),
    /// No CA can be read from it; says why.
    Damaged(String),
    /// A CA can be read.
    Standing(Standing),
}

/// The webhook configuration, as it was read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Configuration {
    /// There is none: nobody calls us, and there is nothing to keep right.
    Absent,
    /// Somebody else writes its bundles; says who.
    Foreign(String),
    /// For each webhook in it the CAs that the API server trusts there.
    Bundles(Vec<Vec<Der>>),
}

/// What this replica serves, with what stood in the Secret when it was taken into service.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Served {
    /// The leaf.
    pub leaf: Dated,
    /// The CAs that stood there, the one that signed it first.
    pub authorities: Vec<Dated>,
    /// When the last leaf of the other CAs ends.
    pub retire_after: Option<Timestamp>,
}

impl Served {
    /// The leaf that stands in the Secret, once it is served.
    pub fn of(standing: &Standing) -> Option<Self> {
        let leaf = standing.leaf.as_ref().ok()?.clone();
        Some(Self { leaf, authorities: standing.authorities.clone(), retire_after: standing.retire_after })
    }

    fn authority(&self) -> &Dated {
        &self.authorities[0]
    }
}

/// All that a decision rests on.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The configuration, read first.
    pub configuration: &'a Configuration,
    /// The Secret, read after it: a bundle is never written from a Secret older than the one that stands there was.
    pub secret: &'a Secret,
    /// What this replica serves.
    pub served: Option<&'a Served>,
    /// For how long this replica has seen the configuration trust the CA that signs.
    pub trusted_for: Duration,
}

/// Why a certificate is made.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// There is no Secret.
    Missing,
    /// The Secret, or its leaf, cannot be used; says why.
    Damaged(String),
    /// What stands there is outside its validity: time has passed, or a clock has jumped.
    Invalid,
    /// Its time has come.
    Due,
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Write the Secret with a new CA and a leaf of it.
    NewAuthority {
        /// Why.
        cause: Cause,
        /// CAs that stay trusted.
        keep: Vec<Dated>,
        /// When the last leaf of those ends.
        retire_after: Option<Timestamp>,
    },
    /// Write the Secret with a new leaf of the CA that stands there.
    NewLeaf {
        /// Why.
        cause: Cause,
        /// Names that it has to have beside those wanted here. Two replicas that want different names, as during an upgrade,
        /// thus agree on a leaf that has them all, instead of replacing each other's for ever.
        names: Vec<String>,
    },
    /// Write the Secret with these CAs after the one that signs, and nothing else changed.
    KeepAuthorities {
        /// CAs that stay trusted.
        keep: Vec<Dated>,
        /// When the last leaf of those ends.
        retire_after: Option<Timestamp>,
    },
    /// Write these CAs into every webhook of the configuration.
    Trust(Vec<Der>),
    /// Serve the leaf of the Secret.
    Serve,
    /// All is as it should be, or time has to pass.
    Rest,
    /// Nothing may be done; says why and what would help.
    Blocked(String),
}

/// The next step. After it has succeeded, or has failed for a conflict, look again.
pub fn decide(view: &View<'_>, lives: &Lives, now: Timestamp) -> Step {
    if let Configuration::Foreign(who) = view.configuration {
        return Step::Blocked(who.clone());
    }
    match view.secret {
        Secret::Foreign(who) => Step::Blocked(who.clone()),
        Secret::Absent => new_authority(view, Cause::Missing, Vec::new(), lives, now),
        Secret::Damaged(why) => new_authority(view, Cause::Damaged(why.clone()), Vec::new(), lives, now),
        Secret::Standing(standing) => of_standing(view, standing, lives, now),
    }
}

/// What works is put to use before anything is renewed, so that a Secret that cannot be written costs nothing for a long time.
fn of_standing(view: &View<'_>, standing: &Standing, lives: &Lives, now: Timestamp) -> Step {
    if !standing.signer().valid(now) {
        return new_authority(view, Cause::Invalid, standing.authorities.clone(), lives, now);
    }
    let leaf = match &standing.leaf {
        Err(unfit) => {
            return Step::NewLeaf { cause: Cause::Damaged(unfit.why.clone()), names: unfit.names.clone() };
        }
        Ok(leaf) if !leaf.valid(now) => return Step::NewLeaf { cause: Cause::Invalid, names: Vec::new() },
        Ok(leaf) => leaf,
    };
    let served = view.served.filter(|served| served.leaf.valid(now));
    if let Some(forgotten) = served.filter(|served| !standing.trusts(served.authority())) {
        // Another Secret was put in place of ours: the leaf served meanwhile must stay trusted until all serve the other.
        return keep(standing, std::slice::from_ref(forgotten.authority()), Some(forgotten.leaf.not_after), now);
    }
    if !trusted(view.configuration, standing) {
        return Step::Trust(standing.bundle());
    }
    if view.served.is_none_or(|served| served.leaf != *leaf) {
        let may_wait = served.is_some() && *view.configuration != Configuration::Absent;
        let wait = may_wait && view.trusted_for < lives.propagation;
        return if wait { Step::Rest } else { Step::Serve };
    }
    renew(view, standing, leaf, lives, now)
}

fn renew(view: &View<'_>, standing: &Standing, leaf: &Dated, lives: &Lives, now: Timestamp) -> Step {
    if standing.signer().due(lives.authority, now) {
        return new_authority(view, Cause::Due, standing.authorities.clone(), lives, now);
    }
    if leaf.due(lives.leaf, now) {
        return Step::NewLeaf { cause: Cause::Due, names: Vec::new() };
    }
    let old = &standing.authorities[1..];
    // Where nobody noted when the last leaf ends, no leaf outlives its CA.
    let over = standing.retire_after.is_some_and(|last| now.duration_since(last) > signed(lives.skew));
    if over && !old.is_empty() {
        return Step::KeepAuthorities { keep: Vec::new(), retire_after: None };
    }
    if old.iter().any(|authority| now.duration_since(authority.not_after) > signed(lives.skew)) {
        return keep(standing, &[], None, now);
    }
    Step::Rest
}

/// `standing` are the CAs that the Secret trusts now. Those that it trusted when this replica took its leaf from there are
/// kept also if it does not say so any more, for it may be gone.
fn new_authority(view: &View<'_>, cause: Cause, standing: Vec<Dated>, lives: &Lives, now: Timestamp) -> Step {
    let mut keep: Vec<Dated> = view.served.map(|served| served.authorities.clone()).unwrap_or_default();
    let fresh: Vec<Dated> = standing.into_iter().filter(|authority| !keep.contains(authority)).collect();
    keep.extend(fresh);
    let keep = lasting(keep, now);
    let retire_after = (!keep.is_empty()).then(|| last_end(view, lives, now));
    Step::NewAuthority { cause, keep, retire_after }
}

/// No leaf of a CA that signs no more ends later: what was signed until now lives so long, unless a clock was ahead, and then
/// this replica has seen that leaf, or the note of its end.
fn last_end(view: &View<'_>, lives: &Lives, now: Timestamp) -> Timestamp {
    let noted = match view.secret {
        Secret::Standing(standing) => standing.leaf.as_ref().ok().map(|leaf| leaf.not_after).max(standing.retire_after),
        _ => None,
    };
    let remembered = view.served.map(|served| served.leaf.not_after).max(view.served.and_then(|s| s.retire_after));
    let by_now = now.checked_add(signed(lives.leaf)).unwrap_or(Timestamp::MAX);
    noted.max(remembered).map_or(by_now, |last| last.max(by_now))
}

/// The CAs after the first that the Secret is to have: those it has and `more`, but for those that have ended.
fn keep(standing: &Standing, more: &[Dated], last: Option<Timestamp>, now: Timestamp) -> Step {
    let old = more.iter().chain(&standing.authorities[1..]).cloned().collect();
    let keep = lasting(old, now);
    Step::KeepAuthorities { retire_after: last.max(standing.retire_after).filter(|_| !keep.is_empty()), keep }
}

fn lasting(mut authorities: Vec<Dated>, now: Timestamp) -> Vec<Dated> {
    authorities.retain(|authority| authority.valid(now));
    authorities.truncate(OLD_AUTHORITIES);
    authorities
}

/// Whether every webhook trusts exactly the CAs of the Secret. In which order and spelling does not matter.
fn trusted(configuration: &Configuration, standing: &Standing) -> bool {
    let Configuration::Bundles(bundles) = configuration else { return true };
    let wanted = standing.bundle();
    let same =
        |bundle: &Vec<Der>| bundle.iter().all(|ca| wanted.contains(ca)) && wanted.iter().all(|ca| bundle.contains(ca));
    bundles.iter().all(same)
}

fn signed(duration: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(duration).unwrap_or(jiff::SignedDuration::MAX)
}
