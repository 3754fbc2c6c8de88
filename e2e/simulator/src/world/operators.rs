//! The replicas of the operator: what each action does to them, and when their processes end.

use std::time::Duration;

use ipam_reconciler::allocation_state::AllocationState;

use super::World;
use crate::action::{Action, Fate};
use crate::clock::Clock;
use crate::election::{Election, Stepped};
use crate::given::given;
use crate::replica::{Delivered, Replica};
use crate::server::Server;
use crate::size::REPLICAS;
use crate::wire::{Wire, lock};

/// A longer grace does not end while a history settles.
const LONGEST_GRACE: Duration = Duration::from_mins(15);
/// Steps that one try of an election may take: a write, a read and a write, each sent and answered, and one to begin.
const STEPS_OF_A_TRY: usize = 8;

impl World {
    pub(super) fn on_replica(&mut self, action: Action) {
        self.act_on_replica(action);
        self.look();
    }

    fn act_on_replica(&mut self, action: Action) {
        let clock = self.clock;
        let shared = self.server.clone();
        match action {
            Action::Start { replica, skew } => self.start(replica, skew),
            Action::Kill { replica } => {
                if self.kill(replica) {
                    self.activity.count("replicas killed");
                }
            }
            Action::Stop { replica, fate } => self.stop(replica, fate),
            Action::Campaign { replica, fate } => self.campaign(replica, fate),
            Action::Lease { replica, fate } => self.step_election(replica, fate),
            Action::Jump { replica, minutes } => {
                if let Some(it) = self.awake(replica) {
                    it.jump(i64::from(minutes) * 60);
                    if minutes != 0 {
                        self.allowed.clocks_set_by += Duration::from_secs(60 * u64::from(minutes.unsigned_abs()));
                        self.activity.count("wall clocks set");
                    }
                }
            }
            Action::Hear { replica, watch, words } => {
                if let Some(it) = self.awake(replica) {
                    it.hear(watch.into(), words.into(), &lock(&shared), clock);
                }
            }
            Action::HearLast { replica, watch } => {
                if let Some(it) = self.awake(replica) {
                    it.hear_last(watch.into(), &lock(&shared), clock);
                }
            }
            Action::Call { replica, call, fate } => self.call(replica, call, fate),
            _ => {
                if let Some(it) = self.awake(replica_of(action)) {
                    let sees_nodes = it.sees_nodes();
                    within(it, action, clock);
                    match action {
                        Action::Freeze { .. } => self.activity.count("replicas stopped"),
                        Action::WatchFails { .. } if sees_nodes => self.activity.count("watches of Nodes failed"),
                        _ => {}
                    }
                }
            }
        }
    }

    fn call(&mut self, replica: u8, call: u8, fate: Fate) {
        let clock = self.clock;
        let Some(it) = self.awake(replica) else { return };
        let Some(Delivered { late, is_sent }) = it.deliver(call.into(), fate, clock) else { return };
        let (wire, seen) = (it.wire(), self.nodes_seen);
        if is_sent {
            self.activity.count(called(fate));
        }
        if let Some(command) = late {
            self.orphans.call(wire, command, seen);
        }
    }

    /// Plays a whole try, if one is due or under way. The writes meet the fate. If the fate is a lost call, the reads are
    /// lost, too.
    fn campaign(&mut self, replica: u8, fate: Fate) {
        for step in 0..STEPS_OF_A_TRY {
            let Some(it) = self.awake(replica) else { return };
            let (goes_on, reads) = (it.election().goes_on(), it.election().reads());
            if step > 0 && !goes_on {
                return;
            }
            if step > 0 {
                self.look();
            }
            let fate = if reads && fate != Fate::Lost { Fate::Done } else { fate };
            self.step_election(replica, fate);
        }
    }

    fn step_election(&mut self, replica: u8, fate: Fate) {
        let (clock, shared) = (self.clock, self.server.clone());
        let Some(it) = self.awake(replica) else { return };
        let (led, goes_on, sends) = (it.is_leading(), it.election().goes_on(), it.election().sends());
        let wrote = goes_on && !it.election().reads();
        let Stepped { lost, late } = it.step_election(fate, clock);
        let leads = it.is_leading();
        let collides = !leads && fate == Fate::Done && it.election().has_collided(&lock(&shared));
        if collides {
            self.activity.count("candidates that collided");
        }
        if sends && matches!(fate, Fate::ErrorBefore(_) | Fate::ErrorAfter(_)) {
            self.activity.count("HTTP errors of the Lease");
        }
        if leads && !led {
            // The first leader replaces no other.
            let is_change = self.allowed.unreported.note_leader();
            self.activity.add("leader changes", is_change.into());
        }
        if let Some(call) = late {
            self.orphans.lease(call);
        }
        if wrote && given(&lock(&self.server)) != AllocationState::NoneAllocated {
            self.is_unmarked = false;
        }
        if lost {
            self.activity.count("leaderships lost");
            self.kill(replica);
        }
    }

    pub(super) fn campaign_if_due(&mut self, replica: u8) {
        let now = self.clock.elapsed;
        if self.awake(replica).is_some_and(|it| it.next_campaign() <= now) {
            self.on_replica(Action::Campaign { replica, fate: Fate::Done });
        }
    }

    /// All leaders and the senders of all calls on their way have read the changes of Nodes up to this resource version.
    pub(crate) fn nodes_seen_by_all(&self) -> u64 {
        let leaders = self.replicas.iter().flatten().filter_map(Replica::nodes_seen);
        // A leader that begins lists first.
        leaders.chain(self.orphans.nodes_seen()).min().unwrap_or_else(|| lock(&self.server).version())
    }

    /// Whether all leaders have received the current state of all pools, and no call is on its way.
    pub(crate) fn leaders_know_pools(&self, server: &Server) -> bool {
        let mut leaders = self.replicas.iter().flatten().filter(|replica| replica.is_leading());
        leaders.all(|replica| replica.knows_pools(server) && replica.calls() == 0) && self.orphans.is_empty()
    }

    /// Whether all leaders have received the current state of all pools and all answers, and have decided what is due.
    pub(crate) fn leaders_have_decided(&self, server: &Server) -> bool {
        let now = self.clock.elapsed;
        let mut leaders = self.replicas.iter().flatten().filter(|replica| replica.is_leading());
        let decided =
            leaders.all(|replica| !replica.awaits() && replica.next_wake(self.clock).is_none_or(|wake| wake > now));
        decided && self.leaders_know_pools(server)
    }

    /// Whether a replica does not run, or has nothing to do for now.
    pub(crate) fn has_settled_replica(&self, replica: u8) -> bool {
        let now = self.clock.elapsed;
        self.replicas[usize::from(replica)].as_ref().is_none_or(|it| {
            let has_time = it.next_campaign() > now && it.next_wake(self.clock).is_none_or(|wake| wake > now);
            it.frozen_until > now || (has_time && it.has_done_all(&lock(&self.server)))
        })
    }

    /// Whether a replica has no grace, or one that does not end while a history settles.
    pub(crate) fn waits_without_end(&self) -> bool {
        let mut graces = self.replicas.iter().flatten().map(Replica::grace);
        graces.any(|grace| grace.is_none_or(|grace| grace > LONGEST_GRACE))
    }

    /// The longest grace that ends while a history settles.
    pub(crate) fn longest_grace(&self) -> Duration {
        let graces = self.replicas.iter().flatten().filter_map(Replica::grace).chain(self.allowed.grace);
        graces.filter(|grace| *grace <= LONGEST_GRACE).max().unwrap_or_default()
    }

    /// The replica, if it runs and is not stopped.
    pub(super) fn awake(&mut self, replica: u8) -> Option<&mut Replica> {
        let now = self.clock.elapsed;
        self.replicas[usize::from(replica % REPLICAS)].as_mut().filter(|it| it.frozen_until <= now)
    }

    fn start(&mut self, replica: u8, skew: i8) {
        let place = usize::from(replica % REPLICAS);
        self.rebuild();
        if self.replicas[place].is_some() {
            return;
        }
        self.starts += 1;
        let name = format!("replica-{}", self.starts);
        let wire = Wire::new(self.runtime.clone(), &self.server, &name);
        let grace = self.allowed.grace;
        // If time releases blocks, the replicas' clocks are as close as an admin must keep them.
        let skew = if grace.is_some() { skew / 8 } else { skew };
        let election = Election::new(&name, self.starts, self.clock);
        self.replicas[place] = Some(Replica::start(skew.into(), grace, self.starts.into(), wire, election));
        let running = self.replicas.iter().flatten().count();
        if running == usize::from(REPLICAS) {
            self.activity.count("three replicas at one time");
        }
    }

    /// Ends the process at once. Returns whether it ran.
    pub(super) fn kill(&mut self, replica: u8) -> bool {
        let Some(it) = self.replicas[usize::from(replica % REPLICAS)].take() else { return false };
        let wire = it.wire();
        let (commands, lease) = it.into_sent();
        for command in commands {
            self.orphans.call(wire.clone(), command, self.nodes_seen);
        }
        if let Some(call) = lease {
            self.orphans.lease(call);
        }
        true
    }

    /// SIGTERM: the calls under way end, then the Lease is released.
    fn stop(&mut self, replica: u8, fate: Fate) {
        let clock = self.clock;
        while self.awake(replica).is_some_and(|it| it.calls() > 0) {
            self.on_replica(Action::Call { replica, call: 0, fate: Fate::Done });
        }
        let Some(it) = self.awake(replica) else { return };
        let (released, wire) = (it.release(clock), it.wire());
        self.activity.count("replicas ended in good order");
        match released {
            Some(call) if fate == Fate::Late => self.orphans.lease(call),
            Some(call) => drop(wire.vote(call, fate)),
            None => {}
        }
        self.kill(replica);
    }

    /// Drops all calls and reports whose sender does not wait for them.
    pub(crate) fn forget_orphans(&mut self) {
        self.orphans.forget();
    }

    pub(super) fn end_those_past_their_deadline(&mut self) {
        let clock = self.clock;
        for replica in 0..REPLICAS {
            if self.awake(replica).is_some_and(|it| it.is_past_its_deadline(clock)) {
                self.kill(replica);
            }
        }
    }
}

fn within(it: &mut Replica, action: Action, clock: Clock) {
    match action {
        Action::HearAgain { watch, .. } => it.hear_again(watch.into(), clock),
        Action::LoseWatch { watch, .. } => it.lose_watch(watch.into()),
        Action::WatchFails { .. } => it.watch_fails(clock),
        Action::Decide { .. } => it.decide(clock),
        Action::Answer { answer, .. } => it.settle(answer.into(), clock),
        Action::Freeze { seconds, .. } => it.frozen_until = clock.elapsed + Duration::from_secs(seconds.into()),
        _ => {}
    }
}

/// The name by which a call is counted.
const fn called(fate: Fate) -> &'static str {
    match fate {
        Fate::Done => "calls made",
        Fate::AnswerLost => "answers lost",
        Fate::Lost => "calls lost",
        Fate::Late => "calls given up",
        Fate::ErrorBefore(_) => "calls answered with an error",
        Fate::ErrorAfter(_) => "calls done and answered with an error",
    }
}

const fn replica_of(action: Action) -> u8 {
    match action {
        Action::HearAgain { replica, .. }
        | Action::LoseWatch { replica, .. }
        | Action::WatchFails { replica }
        | Action::Decide { replica }
        | Action::Answer { replica, .. }
        | Action::Freeze { replica, .. } => replica,
        _ => 0,
    }
}
