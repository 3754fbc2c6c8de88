//! The requests of the container runtime to the agent (ADD, CHECK, DEL and GC, also repeated), and the rules for its answers.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use ipam_core::PoolKey;
use ipam_core::ledger::{Allocation, Change, Owner, Pick, Refusal, Request, Reservation};
use ipam_crds::{BlockState, NodeBlock};
use ipam_node_agent::allocator::{Allocator, Failure, Unlisted};

use super::super::activity::{AGENT, EXPECTED};
use super::super::clock::Clock;
use super::super::disk::COOLDOWN;
use super::super::process::{Process, pool_of};
use super::super::records::Records;
use super::super::request::{IF_NAME, NETWORK, Wish, request, told_address};
use super::{Added, Held, Node, Pod};

impl Node {
    /// CNI ADD of a new pod in the `pick`-th pool that this node knows.
    pub(crate) fn add(&mut self, pick: usize, wish: Wish, clock: Clock, records: &Records) -> Added {
        let Some(process) = self.process.as_mut() else { return Added::Refused("ADD refused: no agent") };
        process.goes_on(clock);
        let Some(block) = process.block(pick).cloned() else { return Added::Refused("ADD refused: no block") };
        let mut blocks = vec![block];
        if let Wish::Two(other) = wish {
            let other = process.block(other.into()).filter(|other| pool_of(other) != pool_of(&blocks[0]));
            let Some(other) = other.cloned() else { return Added::NotAsked };
            blocks.push(other);
        }
        let in_force = process.grants();
        self.made += 1;
        let container = format!("{}-{}", self.name, self.made);
        let Some(request) = request(container, self.made, &blocks, wish) else { return Added::NotAsked };
        self.objects.create(&request.attachment);
        let before = self.cut_disk(wish);
        let asked = request.clone();
        match self.ask(clock, |allocator| async move { allocator.allocate(asked).await }) {
            Some(Ok(allocation)) => {
                self.judge(&allocation, &blocks, wish, clock);
                self.judge_grants(&blocks, records);
                if wish == Wish::AnyAndCrash {
                    let added = if self.crash() { Added::Crashed } else { Added::Cut };
                    self.leave(request);
                    return added;
                }
                self.serve(request, &allocation, &in_force, records);
                self.end_of_add(wish, before, Some(&allocation));
                Added::Served
            }
            Some(Err(failure)) => {
                self.objects.delete(&request.owner.container_id);
                self.end_of_add(wish, before, None);
                Added::Refused(refused(&failure))
            }
            None => self.unanswered(request, wish, before),
        }
    }

    /// The place of the pool among those that this node knows.
    pub(crate) fn place_of(&self, pool: &PoolKey) -> Option<usize> {
        self.process.as_ref()?.grants().iter().position(|(of, _)| of == pool)
    }

    /// Cuts the disk some steps later, for an [`Wish::AnyAndCut`]. Returns what is recorded until then.
    fn cut_disk(&mut self, wish: Wish) -> Vec<Reservation> {
        let Wish::AnyAndCut { after, .. } = wish else { return Vec::new() };
        let before = self.reservations();
        self.disk.cut(after.into());
        before
    }

    /// Records that the pod has its addresses, by the grants that were in force.
    fn serve(&mut self, request: Request, answer: &Allocation, in_force: &[(PoolKey, String)], records: &Records) {
        let assignment = |pool: &PoolKey| {
            let (_, grant) = in_force.iter().find(|(of, _)| of == pool)?;
            records.told(&self.name, grant)
        };
        let grants = answer.grants.iter();
        let held = grants.map(|grant| Held {
            pool: grant.pool.clone(),
            addr: grant.addr,
            assignment: assignment(&grant.pool),
        });
        let pod = Pod { held: held.collect(), request, is_recorded: true };
        self.pods.insert(pod.request.owner.container_id.clone(), pod);
        self.moves += 1;
    }

    /// Handles an ADD without an answer. There may be a record. The runtime deletes the pod, or never does.
    fn unanswered(&mut self, request: Request, wish: Wish, before: Vec<Reservation>) -> Added {
        let is_cut = self.disk.is_cut();
        self.leave(request);
        self.end_of_add(wish, before, None);
        if is_cut { Added::Cut } else { Added::Refused("ADD refused: disk failed") }
    }

    /// Handles a pod that does not start. The runtime deletes it, or never does.
    fn leave(&mut self, request: Request) {
        self.objects.delete(&request.owner.container_id);
        if self.made.is_multiple_of(2) {
            self.to_delete.push((request.pools, request.owner));
        }
    }

    /// Ends the agent, for an [`Wish::AnyAndCut`]. The cut came after `before` was recorded, and while `served` was
    /// recorded or later.
    fn end_of_add(&mut self, wish: Wish, mut before: Vec<Reservation>, served: Option<&Allocation>) {
        let Wish::AnyAndCut { after, power } = wish else { return };
        let reserved = served.iter().flat_map(|allocation| &allocation.changes);
        before.extend(reserved.filter_map(|change| match change {
            Change::Reserve { reservation, .. } => Some(reservation.clone()),
            _ => None,
        }));
        self.end(before, served.is_none(), power.then_some(after));
    }

    /// Checks the addresses of an answer.
    fn judge(&mut self, allocation: &Allocation, blocks: &[NodeBlock], wish: Wish, clock: Clock) {
        let now = self.now(clock);
        for (grant, block) in allocation.grants.iter().zip(blocks) {
            let freed = self.freed.get(&(grant.pool.clone(), grant.addr));
            let cools = freed.is_some_and(|freed| now < freed + COOLDOWN);
            self.blame(told_address(block, grant, wish, cools));
        }
    }

    /// Checks whether the agent may allocate from these blocks.
    fn judge_grants(&mut self, blocks: &[NodeBlock], records: &Records) {
        for block in blocks.iter().filter(|block| !block.grant.is_empty()) {
            let why = records.forbids(&self.name, &block.grant);
            self.blame(why.map(|why| format!("allocates from the grant {} of {:?}: {why}", block.grant, block.name)));
        }
    }

    /// The name of the `pick`-th pod.
    fn pod(&self, pick: usize) -> Option<String> {
        self.pods.keys().nth(pick.checked_rem(self.pods.len())?).cloned()
    }

    /// CNI ADD of a pod that has its addresses.
    pub(crate) fn add_again(&mut self, pick: usize, clock: Clock) {
        let Some(name) = self.pod(pick) else { return };
        let Some(pod) = self.pods.get(&name).filter(|pod| pod.is_recorded) else { return };
        let (request, held) = (pod.request.clone(), pod.held.clone());
        let waits = self.process.as_ref().is_some_and(Process::is_waiting);
        let must_be_served =
            !waits && request.requested.is_empty() && request.pick == Pick::Next && self.is_configured(&held);
        let Some(answer) = self.ask(clock, |allocator| async move { allocator.allocate(request).await }) else {
            return;
        };
        let addrs: Vec<IpAddr> = held.iter().map(|it| it.addr).collect();
        match answer {
            Ok(_) if waits => {
                self.blame(Some(format!("answers a repeated ADD of {name}, though its journal takes no records")));
            }
            Ok(allocation) => {
                self.activity.count("ADD repeated");
                let again: Vec<IpAddr> = allocation.grants.iter().map(|grant| grant.addr).collect();
                if again != addrs {
                    self.blame(Some(format!("answers a repeated ADD of {name} with {again:?} instead of {addrs:?}")));
                }
            }
            Err(failure) if must_be_served => {
                self.blame(Some(format!("refuses a repeated ADD of {name}, which has {addrs:?}: {failure}")));
            }
            Err(_) => self.activity.count("ADD repeated and refused"),
        }
    }

    /// Whether the agent's spec has the pools of the addresses, each with a subnet that contains the address.
    fn is_configured(&self, held: &[Held]) -> bool {
        let in_force = self.process.as_ref().and_then(|process| process.in_force.as_ref());
        let blocks = in_force.map(|in_force| &in_force.spec.blocks[..]).unwrap_or_default();
        held.iter().all(|it| {
            let is_its = |block: &&NodeBlock| pool_of(block) == it.pool && block.state != BlockState::Revoked;
            let block = blocks.iter().find(is_its);
            let subnet = block.and_then(|block| ipam_core::Cidr::parse(&block.subnet).ok());
            subnet.is_some_and(|(subnet, _)| subnet.contains(it.addr))
        })
    }

    /// CNI CHECK of the `pick`-th pod: it must succeed, even if its pool has changed.
    pub(crate) fn check(&mut self, pick: usize, clock: Clock) {
        let Some(name) = self.pod(pick) else { return };
        let Some(pod) = self.pods.get(&name).filter(|pod| pod.is_recorded) else { return };
        let (pools, owner) = (pod.request.pools.clone(), pod.request.owner.clone());
        let expected: Vec<IpAddr> = pod.held.iter().map(|it| it.addr).collect();
        let addrs = format!("{expected:?}");
        match self.ask(clock, |allocator| async move { allocator.check(pools, owner, expected).await }) {
            Some(Ok(())) => self.activity.count("CHECK succeeded"),
            Some(Err(failure)) => self.blame(Some(format!("fails CHECK of {name}, which has {addrs}: {failure}"))),
            None => {}
        }
    }

    /// CNI CHECK of every pod.
    pub(crate) fn check_all(&mut self, clock: Clock) {
        for pick in 0..self.pods.len() {
            self.check(pick, clock);
        }
    }

    /// CNI DEL of the `pick`-th pod. Without an agent the pod still ends, and the runtime tries again later.
    pub(crate) fn delete(&mut self, pick: usize, clock: Clock) {
        if let Some(pod) = self.pod(pick).and_then(|name| self.end_pod(&name)) {
            self.to_delete.push((pod.request.pools, pod.request.owner));
            self.retry_deletes(clock);
        }
    }

    /// CNI DEL of the pod that was started last.
    pub(crate) fn delete_newest(&mut self, clock: Clock) {
        let newest = format!("{}-{}", self.name, self.made);
        let place = self.pods.keys().position(|pod| *pod == newest);
        if let Some(place) = place {
            self.delete(place, clock);
        }
    }

    /// The `pick`-th pod ends, and the runtime never deletes it.
    pub(crate) fn vanish(&mut self, pick: usize) {
        if self.pod(pick).and_then(|name| self.end_pod(&name)).is_some() {
            self.has_leftovers = true;
            self.activity.count("pods gone without DEL");
        }
    }

    fn end_pod(&mut self, name: &str) -> Option<Pod> {
        let pod = self.pods.remove(name)?;
        self.unknown.remove(name);
        self.objects.delete(name);
        self.moves += 1;
        Some(pod)
    }

    /// The runtime tries again to delete what it could not delete.
    pub(super) fn retry_deletes(&mut self, clock: Clock) {
        for (pools, owner) in std::mem::take(&mut self.to_delete) {
            let (of, by) = (pools.clone(), owner.clone());
            match self.free(clock, |allocator| async move { allocator.release(of, by).await }) {
                Some(Ok(_)) => {
                    let is_left = |it: &Reservation| it.owner == owner && pools.contains(&it.pool);
                    let left = self.reservations().into_iter().find(is_left);
                    self.blame(left.map(|it| format!("has {} of {} after DEL of {owner}", it.addr, it.pool)));
                    self.deleted = Some((pools, owner));
                }
                _ => self.to_delete.push((pools, owner)),
            }
        }
    }

    /// CNI DEL of what was deleted last, and of a container that never existed: both must succeed and free nothing.
    pub(crate) fn delete_again(&mut self, clock: Clock) {
        let Some((pools, owner)) = self.deleted.clone() else { return };
        let unknown = Owner::new("never-was", IF_NAME);
        for (owner, what) in [(owner, "DEL repeated"), (unknown, "DEL of an unknown container")] {
            let (of, by) = (pools.clone(), owner.clone());
            match self.free(clock, |allocator| async move { allocator.release(of, by).await }) {
                Some(Ok(0)) => self.activity.count(what),
                Some(other) => self.blame(Some(format!("answers DEL of {owner}, which has nothing, with {other:?}"))),
                None => {}
            }
        }
    }

    /// CNI GC with the pods that run, or with `foreign` of another network, which has none.
    pub(crate) fn runtime_gc(&mut self, foreign: bool, clock: Clock) {
        let known = self.reservations().into_iter().map(|it| it.pool);
        let pools: BTreeSet<PoolKey> = known.chain(self.held().map(|(_, held)| held.pool.clone())).collect();
        let owners = self.pods.values().map(|pod| pod.request.owner.clone());
        let valid: HashSet<Owner> = if foreign { HashSet::new() } else { owners.collect() };
        let network = if foreign { "another" } else { NETWORK };
        let unlisted = Unlisted { network: network.to_owned(), pools: pools.into_iter().collect(), valid };
        match self.free(clock, |allocator| async move { allocator.release_unlisted(&unlisted).await }) {
            Some(Ok(count)) if foreign && count > 0 => {
                self.blame(Some(format!("frees {count} addresses in the GC of another network")));
            }
            Some(Ok(_)) if foreign => self.activity.count("GC of another network"),
            Some(Ok(0)) => self.activity.count("GC without leftovers"),
            Some(Ok(_)) => self.activity.count("GC freed addresses"),
            _ => {}
        }
    }

    /// Sends a request that frees addresses, and records which it freed. None of them may be in use.
    pub(super) fn free<T, F: Future<Output = Result<T, Failure>>>(
        &mut self,
        clock: Clock,
        question: impl FnOnce(Allocator) -> F,
    ) -> Option<Result<T, Failure>> {
        let before = self.reservations();
        let answer = self.ask(clock, question);
        self.process.as_ref()?;
        let after = self.reservations();
        let now = self.now(clock);
        for freed in before.into_iter().filter(|it| !after.contains(it)) {
            let pod = self.pods.get(&freed.owner.container_id);
            if pod.is_some_and(|pod| pod.held.iter().any(|it| it.pool == freed.pool && it.addr == freed.addr)) {
                self.blame(Some(format!("frees {} of {}, which {} uses", freed.addr, freed.pool, freed.owner)));
            }
            self.freed.insert((freed.pool, freed.addr), now);
        }
        answer
    }
}

/// The name by which a refused ADD is counted.
fn refused(failure: &Failure) -> &'static str {
    let reason = match failure {
        Failure::Refused(refusal) => Refusal::reason(refusal),
        Failure::Store { .. } => "disk",
        Failure::Busy | Failure::Stopped => "stopped",
    };
    let mut known = EXPECTED.into_iter().chain(AGENT);
    known.find(|what| what.strip_prefix("ADD refused: ") == Some(reason)).unwrap_or("ADD refused: for another reason")
}
