//! Advice about exclusions: those without effect, repeated or overlapping ones, and wholly excluded blocks.

use super::{Advice, AdviceCode, OfAKind};
use crate::addr::parse_addr;
use crate::spec::{ExclusionSpec, PoolSpec};
use crate::{AddrRange, Cidr, Pool, PoolKind, RangeSet};

pub(super) fn advise(spec: &PoolSpec, pool: &Pool, advice: &mut Vec<Advice>) {
    let common = spec.common();
    let ranges: Vec<Option<AddrRange>> = common.exclusions.iter().map(range).collect();
    let mut idle = OfAKind::new(AdviceCode::ExclusionWithoutEffect);
    for (i, range) in ranges.iter().enumerate() {
        if let Some(range) = range.filter(|range| !could_be_given(range, pool)) {
            idle.add(format_args!("spec.exclusions[{i}]"), || {
                format!("\"{range}\" bars nothing: no block gives one of these addresses")
            });
        }
    }
    idle.finish(advice);
    let addresses = ranges.iter().map(|range| range.map(|range| range.numbers()));
    let family = pool.network().family();
    repeated("spec.exclusions", addresses, &|at| family.addr(at).to_string(), advice);
    let places = common
        .per_node_exclusions
        .iter()
        .map(|places| Some((u128::try_from(places.start_index).ok()?, u128::try_from(places.end_index).ok()?)));
    repeated("spec.perNodeExclusions", places, &|at| at.to_string(), advice);
    excluded_blocks(pool, advice);
}

fn range(exclusion: &ExclusionSpec) -> Option<AddrRange> {
    AddrRange::new(parse_addr(&exclusion.start_ip).ok()?, parse_addr(&exclusion.end_ip).ok()?)
}

/// Whether an address of `range` could be allocated if it were not excluded.
fn could_be_given(range: &AddrRange, pool: &Pool) -> bool {
    let Some((first, last)) = pool.grid().touched(range) else { return false };
    if pool.key().kind == PoolKind::IpPool {
        return true;
    }
    // The range contains the host addresses of each prefix between the first and the last one. Only in these two it may
    // have no host address.
    [first, last]
        .into_iter()
        .filter_map(|index| pool.grid().range(index))
        .any(|prefix| Cidr::enclosing(&prefix).hosts().overlaps(range))
        || last - first > 1
}

/// Adds advice about entries that earlier ones cover or overlap. Looks at each entry once.
fn repeated(
    path: &str,
    entries: impl Iterator<Item = Option<(u128, u128)>>,
    show: &dyn Fn(u128) -> String,
    advice: &mut Vec<Advice>,
) {
    let (mut double, mut partial) =
        (OfAKind::new(AdviceCode::RepeatedExclusion), OfAKind::new(AdviceCode::OverlappingExclusions));
    let mut covered = RangeSet::new();
    for (i, entry) in entries.enumerate() {
        let Some((first, last)) = entry else { continue };
        let field = format_args!("{path}[{i}]");
        let text = || format!("\"{}-{}\"", show(first), show(last));
        if covered.covers(first, last) {
            double.add(field, || format!("{} is all excluded by earlier entries already", text()));
        } else if covered.intersects(first, last) {
            partial.add(field, || format!("{} shares a part with earlier entries; the two are united", text()));
        }
        covered.insert(first, last);
    }
    double.finish(advice);
    partial.finish(advice);
}

/// Adds advice about wholly excluded blocks. If these are all blocks, `shape.rs` advises on it.
fn excluded_blocks(pool: &Pool, advice: &mut Vec<Advice>) {
    let (count, total) = (pool.barren_count(), pool.block_count());
    if count > 0 && pool.has_exclusions() && pool.not_given().gaps_in(0, pool.grid().last_index()) > 0 {
        let message = format!("leave nothing of {count} of the {total} blocks, which no node gets");
        advice.push(Advice::new("spec.exclusions", AdviceCode::ExcludedBlocks, message));
    }
}
