//! Rules on an edit, as far as the old and the new object show it: no block is moved or dropped while pods hold its addresses.
//!
//! They hold when webhook and operator are away. They know only what the operator has written into the status, so they ask
//! for proof and refuse nothing without it (`ipam_core::displaced` is the law, and refuses more):
//!
//! * `status.addresses.used` above 0: agents have reported addresses of the pool. An agent that has not reported counts as
//!   holding for the webhook; here it cannot be seen.
//! * `Ready` is True: every block of `status.allocations` is one of the spec that stands. So an edit that got in all the same
//!   (`EditDeferred`) can always be taken back, and a pool that serves nobody (`Overlap`, `Deleting`) can be edited.
//! * Nothing is being taken back (`status.releasing`): nobody can see whether it is such a block whose addresses are held.
//! * *All* given blocks would be moved or dropped, so it does not matter which of them are held.
//!
//! The status speaks of the spec that stands, although its generation is hidden from CEL: it is only ever written upon the
//! version that was judged, and while it stays, these very rules let no edit through that leaves the blocks behind.
//!
//! Whoever does not touch the fields in question is not concerned: the first question of every rule is whether they changed.

use kube::core::{Reason, Rule};

use crate::rules::{field_rule, host_bits, ipv4_number, power_of_two, say};

/// Blocks that a status can name. More do not fit into an object: etcd takes 1.5 MiB unless told otherwise, and one entry has
/// at least 37 bytes. The API server wants a bound all the same, to estimate what a rule over all of them costs.
pub(crate) const MOST_BLOCKS: usize = 65_536;

/// CEL: the status proves that pods hold addresses of blocks that are all cut by the old spec.
const HELD: &str = "has(oldSelf.status) && has(oldSelf.status.addresses) && has(oldSelf.status.addresses.used) && \
    oldSelf.status.addresses.used > 0 && has(oldSelf.status.allocations) && size(oldSelf.status.allocations) > 0 && \
    (!has(oldSelf.status.releasing) || size(oldSelf.status.releasing) == 0) && has(oldSelf.status.conditions) && \
    oldSelf.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')";

/// The field `size`, which says how large blocks are, stays. A block of another size is another block.
pub(crate) fn keeps_block_size(size: &str) -> Rule {
    let (old, new) = (format!("oldSelf.spec.{size}"), format!("self.spec.{size}"));
    field_rule(
        &format!(".spec.{size}"),
        format!("{new} == {old} || !({HELD})"),
        Reason::FieldValueForbidden,
        say(
            "%d would move blocks while pods hold %d of their addresses; keep %d until these are given back: kubectl get \
             ipamnodes -o yaml says on which nodes",
            &[&new, "oldSelf.status.addresses.used", &old],
        ),
    )
}

/// The network in the field `network` does not leave all blocks behind. `lost` says of a block `x` of the status that it is
/// one of the old network and not of the new.
fn keeps_blocks(network: &str, lost: &str, all_are_cut_anew: &str) -> Rule {
    let (old, new) = (format!("oldSelf.spec.{network}"), format!("self.spec.{network}"));
    field_rule(
        &format!(".spec.{network}"),
        format!(
            "{new} == {old} || !isCIDR({new}) || !isCIDR({old}) || !({HELD}) || \
             !({all_are_cut_anew} || oldSelf.status.allocations.all(x, {lost}))"
        ),
        Reason::FieldValueForbidden,
        say(
            "%s would move or drop all blocks while pods hold %d of their addresses; keep %s, or a network that has the blocks, \
             until these are given back: kubectl get ipamnodes -o yaml says on which nodes",
            &[&new, "oldSelf.status.addresses.used", &old],
        ),
    )
}

/// An IPPool's subnet keeps some block. Growing does; to grow to the front may cut all blocks anew.
pub(crate) fn subnet_keeps_blocks() -> Rule {
    keeps_blocks(
        "subnet",
        "isIP(x.startIP) && cidr(oldSelf.spec.subnet).containsIP(x.startIP) && \
         !cidr(self.spec.subnet).containsIP(x.startIP)",
        &cut_anew(),
    )
}

/// A CIDRPool's network keeps some prefix.
pub(crate) fn cidr_keeps_blocks() -> Rule {
    keeps_blocks(
        "cidr",
        "isCIDR(x.prefix) && cidr(oldSelf.spec.cidr).containsCIDR(x.prefix) && \
         !cidr(self.spec.cidr).containsCIDR(x.prefix)",
        // Prefixes of one length are cut alike in every network that has them.
        "false",
    )
}

/// CEL: blocks of the same size begin elsewhere, because the first block of the new subnet lies no multiple of that size
/// from the first of the old. For IPv4; CEL has no numbers as large as IPv6 addresses.
fn cut_anew() -> String {
    let size = "self.spec.perNodeBlockSize";
    let ipv4 = |spec: &str| format!("cidr({spec}.subnet).ip().family() == 4");
    format!(
        "({size} == oldSelf.spec.perNodeBlockSize && {size} > 0 && {} && {} && ({} - {}) % {size} != 0)",
        ipv4("self.spec"),
        ipv4("oldSelf.spec"),
        first_block("self.spec"),
        first_block("oldSelf.spec"),
    )
}

/// CEL: where the first block of an IPv4 subnet begins: one past the network address, in a /31 or /32 at it.
fn first_block(spec: &str) -> String {
    let bits = host_bits(&format!("{spec}.subnet"), &format!("cidr({spec}.subnet).prefixLength()"));
    let written = ipv4_number(&format!("{spec}.subnet.split('/')[0]"));
    format!("({written} - {written} % {} + ({bits} < 2 ? 0 : 1))", power_of_two(&bits))
}
