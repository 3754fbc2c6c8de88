//! The next step for the Secret, the webhook configuration and the served certificate. Pure: the inputs are the objects that
//! were read and the time. It has no state and makes no calls.
//!
//! Every replica decides by the same rules. Every write is conditioned on the resourceVersion of the object that was read. Of
//! two concurrent writes one succeeds, and the other replica reads again.
//!
//! # Order of a change
//! 1. A replica writes a new CA into the Secret, in addition to the old ones.
//! 2. A replica that reads it in the Secret writes all of its CAs into the configuration.
//! 3. A replica that reads it in the configuration gives the API servers time to read it too, and then serves the new leaf.
//!
//! So no replica presents a leaf whose CA the configuration does not trust yet.
//!
//! If the Secret is deleted, a replica that remembers its CA keeps that CA trusted. A replica that has just started, or has
//! not read the Secret since that CA was created, remembers nothing. Such a replica may be the first to find the Secret
//! missing. The leaf that others serve is then not trusted until they read again, a few seconds later. The CAs in the
//! configuration are not used for this: a client that may write the configuration could have added its own CA.
//!
//! # When an old CA is removed
//! Replicas do not report to each other what they serve. Three facts make that unnecessary. A leaf is never presented after
//! it has expired (see [`ServerCertificates`](crate::ServerCertificates)). Every leaf of a CA was in the Secret before any
//! replica served it. A leaf is replaced by one that expires later. So when the last leaf that a CA signed has expired, no
//! replica serves any of its leaves. When the CA is replaced, the Secret records that expiry, and the old CA is removed an
//! hour after it.
//!
//! Time is a proof here, because both sides apply it: an API server also rejects an expired leaf, whatever it trusts. So a CA
//! whose leaves have all expired adds trust to nothing that a replica could serve. Reports of what each replica serves would
//! allow an earlier removal, but a report of a disconnected replica might be outdated. The hour is for clocks that differ.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

/// A certificate in DER. Two certificates are equal if and only if their bytes are.
pub type Der = Arc<[u8]>;

/// Most CAs in the Secret in addition to the one that signs. Each change adds one. After more changes within the lifetime of
/// a leaf, the CA of a replica that missed all of them is removed.
pub const OLD_AUTHORITIES: usize = 7;

/// Lifetimes and margins of certificates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lives {
    /// Lifetime of a leaf from its signing. The leaf is replaced when a third of this is left.
    pub leaf: Duration,
    /// Lifetime of a CA from its creation. The CA is replaced when a third of this is left.
    pub authority: Duration,
    /// How long before their creation certificates begin to be valid. More than a year: certificates of a replica whose clock
    /// is a year ahead are then valid for the others and for the API server. A replica whose clock is a year behind accepts
    /// theirs.
    pub backdate: Duration,
    /// How long the configuration must have trusted a new CA before its leaf is served, if another leaf can still be served.
    /// An API server watches the configuration, and mostly sees a change within a second.
    pub propagation: Duration,
    /// How far the clocks of two replicas may differ. An old CA is removed this long after its last leaf has expired.
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

    /// Whether at most a third of `life` is left. Counted from the end, because the start is backdated.
    fn due(&self, life: Duration, now: Timestamp) -> bool {
        self.not_after.duration_since(now) <= signed(life / 3)
    }
}

/// The content of the Secret.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Standing {
    /// The CAs, at least one. The first signs. A replica may still serve a leaf of one of the others.
    pub authorities: Vec<Dated>,
    /// The leaf, signed by the first CA, for the required names; or why it cannot be used.
    pub leaf: Result<Dated, Unfit>,
    /// When the last leaf of the other CAs expires.
    pub retire_after: Option<Timestamp>,
}

/// A leaf that cannot be used, whatever the time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Unfit {
    /// What is wrong with it.
    pub why: String,
    /// The names of the leaf, if it only lacks required ones: a replica with another configuration may require these.
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
    /// There is no Secret.
    Absent,
    /// Another program manages the Secret. The text names it.
    Foreign(String),
    /// No CA can be read from the Secret. The text is the reason.
    Damaged(String),
    /// A CA can be read.
    Standing(Standing),
}

/// The webhook configuration, as it was read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Configuration {
    /// There is no configuration: no API server calls the webhook, and no `caBundle` needs to be written.
    Absent,
    /// Another program writes its bundles. The text names it.
    Foreign(String),
    /// For each webhook in it the CAs that the API server trusts there.
    Bundles(Vec<Vec<Der>>),
}

/// What this replica serves, and the CAs of the Secret that has that leaf.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Served {
    /// The leaf.
    pub leaf: Dated,
    /// The CAs of that Secret. The first one signed the leaf.
    pub authorities: Vec<Dated>,
    /// When the last leaf of the other CAs expires.
    pub retire_after: Option<Timestamp>,
}

impl Served {
    /// The state once the leaf of the Secret is served. `None` if that leaf cannot be used.
    pub fn of(standing: &Standing) -> Option<Self> {
        let leaf = standing.leaf.as_ref().ok()?.clone();
        Some(Self { leaf, authorities: standing.authorities.clone(), retire_after: standing.retire_after })
    }

    fn authority(&self) -> &Dated {
        &self.authorities[0]
    }
}

/// The inputs of a decision.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The configuration, read first.
    pub configuration: &'a Configuration,
    /// The Secret, read after the configuration. So a bundle is never written from a Secret older than that of the present
    /// bundle.
    pub secret: &'a Secret,
    /// What this replica serves.
    pub served: Option<&'a Served>,
    /// For how long this replica has seen the configuration trust the CA that signs.
    pub trusted_for: Duration,
}

/// Why a certificate is created.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// There is no Secret.
    Missing,
    /// The Secret or its leaf cannot be used. The text is the reason.
    Damaged(String),
    /// The present certificate is outside its validity: time has passed, or a clock has jumped.
    Invalid,
    /// The certificate is due for renewal.
    Due,
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Write the Secret with a new CA and a leaf of it.
    NewAuthority {
        /// Why the CA is created.
        cause: Cause,
        /// CAs that stay trusted.
        keep: Vec<Dated>,
        /// When the last leaf of those CAs expires.
        retire_after: Option<Timestamp>,
    },
    /// Write the Secret with a new leaf of its CA.
    NewLeaf {
        /// Why the leaf is created.
        cause: Cause,
        /// Names of the leaf in addition to those that this replica requires. If two replicas require different names, as
        /// during an upgrade, they agree on a leaf with all of them, instead of replacing each other's without end.
        names: Vec<String>,
    },
    /// Write the Secret with these CAs after the one that signs, and nothing else changed.
    KeepAuthorities {
        /// CAs that stay trusted.
        keep: Vec<Dated>,
        /// When the last leaf of those CAs expires.
        retire_after: Option<Timestamp>,
    },
    /// Write these CAs into every webhook of the configuration.
    Trust(Vec<Der>),
    /// Serve the leaf of the Secret.
    Serve,
    /// Do nothing: no change is needed, or time has to pass.
    Rest,
    /// No step is allowed. The text is the reason, with a remedy.
    Blocked(String),
}

/// The next step. After it has succeeded, or has failed with a conflict, the caller reads and decides again.
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

/// Valid certificates are served before any are renewed, so a Secret that cannot be written has no effect for a long time.
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
        // Another Secret has replaced ours. The CA of the served leaf must stay trusted until all replicas serve the new leaf.
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
    // Without a recorded expiry of the last leaf, that of its CA counts: no leaf outlives its CA.
    let over = standing.retire_after.is_some_and(|last| now.duration_since(last) > signed(lives.skew));
    if over && !old.is_empty() {
        return Step::KeepAuthorities { keep: Vec::new(), retire_after: None };
    }
    if old.iter().any(|authority| now.duration_since(authority.not_after) > signed(lives.skew)) {
        return keep(standing, &[], None, now);
    }
    Step::Rest
}

/// The step for a new CA. `standing` are the CAs that the Secret has now. Those that it had when this replica last saw its
/// leaf there stay trusted too, because the Secret may have been deleted.
fn new_authority(view: &View<'_>, cause: Cause, standing: Vec<Dated>, lives: &Lives, now: Timestamp) -> Step {
    let mut keep: Vec<Dated> = view.served.map(|served| served.authorities.clone()).unwrap_or_default();
    let fresh: Vec<Dated> = standing.into_iter().filter(|authority| !keep.contains(authority)).collect();
    keep.extend(fresh);
    let keep = lasting(keep, now);
    let retire_after = (!keep.is_empty()).then(|| last_end(view, lives, now));
    Step::NewAuthority { cause, keep, retire_after }
}

/// The latest expiry of any leaf of the replaced CAs. Leaves signed until now expire within the lifetime of a leaf, unless a
/// clock was ahead. In that case this replica has seen that leaf, or the record of its expiry.
fn last_end(view: &View<'_>, lives: &Lives, now: Timestamp) -> Timestamp {
    let noted = match view.secret {
        Secret::Standing(standing) => standing.leaf.as_ref().ok().map(|leaf| leaf.not_after).max(standing.retire_after),
        _ => None,
    };
    let remembered = view.served.map(|served| served.leaf.not_after).max(view.served.and_then(|s| s.retire_after));
    let by_now = now.checked_add(signed(lives.leaf)).unwrap_or(Timestamp::MAX);
    noted.max(remembered).map_or(by_now, |last| last.max(by_now))
}

/// The CAs after the first that the Secret should have: those that it has and `more`, except expired ones.
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

/// Whether every webhook trusts exactly the CAs of the Secret. Their order and PEM formatting do not matter.
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
