//! Two replicas and an API server without keys and wires: certificates are numbers with a validity. The decisions are the
//! real ones; between any two calls of a replica the other may make its own.

use std::time::Duration;

use ipam_webhook_certs::self_managed::decide::{
    Configuration, Dated, Der, Lives, Secret, Served, Standing, Step, Unfit, View, decide,
};
use jiff::{SignedDuration, Timestamp};

pub(crate) const DAY: SignedDuration = SignedDuration::from_hours(24);
pub(crate) const LONG: Duration = Duration::from_hours(1);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    pub(crate) secret: Secret,
    pub(crate) secret_version: u32,
    pub(crate) configuration: Configuration,
    pub(crate) configuration_version: u32,
    pub(crate) now: Timestamp,
    pub(crate) replicas: [Replica; 2],
    /// Certificates made so far.
    pub(crate) made: u32,
    /// Secrets written by replicas so far.
    pub(crate) secrets_written: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Replica {
    pub(crate) served: Option<Served>,
    /// How far its clock is off.
    pub(crate) ahead: SignedDuration,
    at: At,
}

/// What a replica does next.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
enum At {
    #[default]
    ReadConfiguration,
    ReadSecret(Configuration, u32),
    Act(Secret, u32, Configuration, u32),
    /// It found nothing to do in these versions.
    Resting(u32, u32),
}

impl World {
    /// Nothing is there but a configuration with two webhooks and no `caBundle`.
    pub(crate) fn new() -> Self {
        Self {
            secret: Secret::Absent,
            secret_version: 0,
            configuration: Configuration::Bundles(vec![Vec::new(), Vec::new()]),
            configuration_version: 0,
            now: "2030-01-01T00:00:00Z".parse().unwrap(),
            replicas: [Replica::default(), Replica::default()],
            made: 0,
            secrets_written: 0,
        }
    }

    /// All is as replicas that have had the time leave it.
    pub(crate) fn settled() -> Self {
        let mut world = Self::new();
        world.settle();
        world
    }

    pub(crate) fn standing(&self) -> &Standing {
        let Secret::Standing(standing) = &self.secret else { unreachable!("no CA in {:?}", self.secret) };
        standing
    }

    /// A call of replica `who`, or what it does between two calls. `patient`: whether it has waited for the API servers to
    /// learn of the CA that signs. False if it rests and nothing has changed since.
    pub(crate) fn advance(&mut self, who: usize, patient: bool) -> bool {
        let at = std::mem::take(&mut self.replicas[who].at);
        self.replicas[who].at = match at {
            At::Resting(secret, configuration)
                if (secret, configuration) == (self.secret_version, self.configuration_version) && !patient =>
            {
                self.replicas[who].at = At::Resting(secret, configuration);
                return false;
            }
            At::ReadConfiguration | At::Resting(..) => {
                At::ReadSecret(self.configuration.clone(), self.configuration_version)
            }
            At::ReadSecret(configuration, version) => {
                At::Act(self.secret.clone(), self.secret_version, configuration, version)
            }
            At::Act(secret, secret_version, configuration, configuration_version) => {
                self.act(who, patient, (&secret, secret_version), (&configuration, configuration_version))
            }
        };
        true
    }

    fn act(&mut self, who: usize, patient: bool, secret: (&Secret, u32), configuration: (&Configuration, u32)) -> At {
        let replica = &self.replicas[who];
        let now = self.now + replica.ahead;
        let trusted_for = if patient { LONG } else { Duration::ZERO };
        let view =
            View { secret: secret.0, configuration: configuration.0, served: replica.served.as_ref(), trusted_for };
        match decide(&view, &Lives::default(), now) {
            Step::Rest | Step::Blocked(_) => return At::Resting(secret.1, configuration.1),
            Step::Serve => {
                let Secret::Standing(standing) = secret.0 else { unreachable!("served from {secret:?}") };
                self.replicas[who].served = Served::of(standing);
            }
            Step::Trust(ders) if configuration.1 == self.configuration_version => {
                if let Configuration::Bundles(bundles) = &mut self.configuration {
                    bundles.fill(ders);
                    self.configuration_version += 1;
                }
            }
            Step::Trust(_) => {}
            step if secret.1 == self.secret_version => self.write(secret.0, step, now),
            // The version is another by now: the write is refused.
            _ => {}
        }
        At::ReadConfiguration
    }

    fn write(&mut self, read: &Secret, step: Step, now: Timestamp) {
        let lives = Lives::default();
        let standing = match (step, read) {
            (Step::NewAuthority { keep, retire_after, .. }, _) => {
                let authorities = std::iter::once(self.certificate(now, lives.authority)).chain(keep).collect();
                Standing { authorities, leaf: Ok(self.certificate(now, lives.leaf)), retire_after }
            }
            (Step::NewLeaf { .. }, Secret::Standing(standing)) => {
                Standing { leaf: Ok(self.certificate(now, lives.leaf)), ..standing.clone() }
            }
            (Step::KeepAuthorities { keep, retire_after }, Secret::Standing(standing)) => {
                let authorities = std::iter::once(standing.signer().clone()).chain(keep).collect();
                Standing { authorities, retire_after, leaf: standing.leaf.clone() }
            }
            (step, read) => unreachable!("{step:?} upon {read:?}"),
        };
        self.put(Secret::Standing(standing));
        self.secrets_written += 1;
    }

    pub(crate) fn put(&mut self, secret: Secret) {
        self.secret = secret;
        self.secret_version += 1;
    }

    pub(crate) fn configure(&mut self, bundles: Vec<Vec<Der>>) {
        self.configuration = Configuration::Bundles(bundles);
        self.configuration_version += 1;
    }

    pub(crate) fn certificate(&mut self, now: Timestamp, life: Duration) -> Dated {
        self.made += 1;
        let life = SignedDuration::try_from(life).unwrap();
        let backdate = SignedDuration::try_from(Lives::default().backdate).unwrap();
        Dated { der: self.made.to_be_bytes().into(), not_before: now - backdate, not_after: now + life }
    }

    /// The process ends and another takes its place.
    pub(crate) fn restart(&mut self, who: usize) {
        let ahead = self.replicas[who].ahead;
        self.replicas[who] = Replica { ahead, ..Replica::default() };
    }

    pub(crate) fn spoil_leaf(&mut self) {
        let mut standing = self.standing().clone();
        standing.leaf = Err(Unfit { why: "spoilt".to_owned(), names: Vec::new() });
        self.put(Secret::Standing(standing));
    }

    /// Lets both replicas work in turn until neither has anything left to do. Returns how many rounds that took.
    pub(crate) fn settle(&mut self) -> u32 {
        for round in 0..100 {
            let before = self.clone();
            for _ in 0..3 {
                self.advance(0, true);
                self.advance(1, true);
            }
            if *self == before {
                return round;
            }
        }
        unreachable!("the replicas never come to rest: {self:?}")
    }

    /// Whether the API server, whose clock is right, accepts what this replica shows. A leaf that has ended by the replica's
    /// own clock is shown to nobody.
    pub(crate) fn accepts(&self, who: usize) -> bool {
        let replica = &self.replicas[who];
        let shown = replica.served.as_ref().filter(|served| served.leaf.valid(self.now + replica.ahead));
        let Some(served) = shown else { return true };
        let Configuration::Bundles(bundles) = &self.configuration else { return true };
        let trusted = bundles.iter().all(|bundle| bundle.contains(&served.authorities[0].der));
        trusted && served.leaf.valid(self.now)
    }

    /// Whether both serve what the Secret holds, and the configuration trusts that and nothing more than the Secret says.
    pub(crate) fn is_right(&self) -> bool {
        let Secret::Standing(standing) = &self.secret else { return false };
        let serves =
            |replica: &Replica| replica.served.as_ref().map(|served| &served.leaf) == standing.leaf.as_ref().ok();
        let wanted: Vec<Der> = standing.authorities.iter().map(|authority| authority.der.clone()).collect();
        let trusted = match &self.configuration {
            Configuration::Bundles(bundles) => bundles.iter().all(|bundle| *bundle == wanted),
            _ => false,
        };
        self.replicas.iter().all(serves) && trusted && (0..2).all(|who| self.accepts(who))
    }
}
