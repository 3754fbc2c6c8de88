//! IPAMNodes whose Node is gone: for how long they stay.
//!
//! No version fences a creation. One of long ago, of a leader that has died meanwhile or that waits for no answer any more, fails
//! as long as the object is there; if it came to be where the object is gone, the object would be back with a block that may be
//! another node's by now, and an agent that runs there would give from it. So an IPAMNode must never go with its Node: it stays,
//! without blocks, for as long as a creation from before that may be on its way. Nothing else waits for it. Its blocks
//! are free before, and a Node that comes back finds it.

use std::time::{Duration, Instant};

use ipam_core::PoolKey;
use ipam_crds::BlockUse;

use super::pool_task::PoolTask;
use super::{NodeAction, Reconciler};
use crate::ipam_node::IpamNodeRecord;

/// For how long a creation may be on its way. Who leads sends none for a Node that it knows to be gone, and who leads no more sends
/// none at all ([`crate::act::Actor::perform`]), so that only what was sent before can still arrive: out of the kernel, which
/// goes on sending for as long as TCP tries. By Linux's default of 15 tries (`net.ipv4.tcp_retries2`) these are 924.6 s at
/// least, and one last pause of 120 s more: 17.4 minutes. The clients' own deadlines end most calls far sooner.
pub const CREATIONS_ARRIVE_WITHIN: Duration = Duration::from_mins(20);

impl Reconciler {
    /// Whether an IPAMNode without blocks may go: nothing that its agent said counts any more, and its Node has been gone for as
    /// long as a creation may be on its way. One that tells of addresses goes at once, for whoever reads it would keep them
    /// barred; a placeholder takes its name.
    pub(super) fn may_forget(&self, node: &str, known: &IpamNodeRecord, now: Instant) -> bool {
        let is_kept = self.kept_until(node).is_none_or(|until| now < until);
        !self.nodes.contains(node) && self.word_is_void(node, known, now) && (!is_kept || is_reckoned_with(known))
    }

    /// Whether the agent of a Node that is gone has said that it holds nothing but what was let go of, or the Node has been gone
    /// for the grace.
    fn word_is_void(&self, node: &str, known: &IpamNodeRecord, now: Instant) -> bool {
        let is_let_go = |task: &PoolTask| {
            task.record.life.forces(node) || task.applied.as_ref().is_some_and(|applied| applied.let_go.contains(node))
        };
        let is_answered =
            known.observed_generation.is_some() || known.placeholder || self.pools.values().any(is_let_go);
        let mut held = known.reports.iter().filter(|report| report.used > 0);
        let is_free = |report: &BlockUse| {
            let key = PoolKey::new(report.pool_type.into(), report.name.as_str());
            self.pools.get(&key).is_some_and(is_let_go)
        };
        (is_answered && held.all(is_free)) || self.gone_expiry(node, now).is_some_and(|expiry| expiry <= now)
    }

    /// Whether a placeholder is to take the name: of an IPAMNode that went with its word, or may have been made by a call whose
    /// answer was lost, which this one then tells.
    pub(super) fn takes_a_placeholder(&self, node: &str) -> bool {
        !self.nodes.contains(node) && (self.replaced.contains(node) || self.ipam_nodes.may_be_created(node))
    }

    /// Remembers whether the IPAMNode that is about to be deleted is to have a placeholder.
    pub(super) fn note_replaced(&mut self, node: &str, action: &NodeAction, now: Instant) {
        if matches!(action, NodeAction::Delete(..)) {
            if self.kept_until(node).is_some_and(|until| now < until) {
                self.replaced.insert(node.to_owned());
            } else {
                self.replaced.remove(node);
            }
        }
    }

    /// Remembers since when there is no Node of an IPAMNode, or of the word of one, and looks again in time where nothing
    /// else keeps it. The time counts from when we, who lead, first saw it gone: we have asked for no creation since.
    pub(super) fn note_gone(&mut self, node: &str, now: Instant) {
        let known = self.ipam_nodes.get(node);
        let is_told = known.is_some() || self.ipam_nodes.is_to_tell_again(node) || self.is_silent(node);
        if self.nodes.contains(node) {
            self.replaced.remove(node);
        }
        if !is_told || self.nodes.contains(node) {
            self.gone.remove(node);
            return;
        }
        let is_empty = known.is_none_or(|known| known.blocks.is_empty());
        self.gone.entry(node.to_owned()).or_insert(now);
        let (kept, expiry) = (self.kept_until(node), self.gone_expiry(node, now));
        if expiry.is_some_and(|expiry| expiry <= now) {
            if self.ipam_nodes.forget_word(node) {
                self.wake_pools(now);
            }
            self.end_silence(node, now);
        }
        for at in kept.into_iter().chain(expiry).filter(|at| is_empty && *at > now) {
            self.queue.push_at(node, at);
        }
    }

    /// Until when the IPAMNode of a Node that is gone stays in any case.
    fn kept_until(&self, node: &str) -> Option<Instant> {
        Some(*self.gone.get(node)? + self.settings.creations_arrive_within)
    }

    fn gone_expiry(&self, node: &str, now: Instant) -> Option<Instant> {
        let grace = self.settings.released_block_grace?;
        let seen = self.absences.observed_at(node, grace, now);
        Some((*self.gone.get(node)? + grace).max(seen))
    }
}

/// Whether the object tells of addresses, or leaves open what its agent holds, so that others would wait for it. A placeholder
/// stays whatever an agent that lives on reports in it: the next one would tell the same.
fn is_reckoned_with(known: &IpamNodeRecord) -> bool {
    let tells = || known.observed_generation.is_none() || known.reports.iter().any(|report| report.used > 0);
    !known.placeholder && tells()
}
