//! Advice on exclusions: those that say nothing new, or bar what nobody could get.

use super::{Advice, AdviceCode, OfAKind};
use crate::addr::parse_addr;
use crate::spec::{ExclusionSpec, PoolSpec};
use crate::{AddrRange, Cidr, Pool, PoolKind, RunSet};

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

/// Whether some node could give an address of `range` if it were not excluded.
fn could_be_given(range: &AddrRange, pool: &Pool) -> bool {
    let Some((first, last)) = pool.grid().touched(range) else { return false };
    if pool.key().kind == PoolKind::IpPool {
        return true;
    }
    // A run that goes over the bounds of a prefix has its neighbours' ends; only the two at its ends need a look, and a
    // third if it has one as a whole.
    [first, last]
        .into_iter()
        .filter_map(|index| pool.grid().range(index))
        .any(|prefix| Cidr::enclosing(&prefix).hosts().overlaps(range))
        || last - first > 1
}

/// Entries that earlier ones cover or touch. Looks at each entry once.
fn repeated(
    path: &str,
    entries: impl Iterator<Item = Option<(u128, u128)>>,
    show: &dyn Fn(u128) -> String,
    advice: &mut Vec<Advice>,
) {
    let (mut double, mut partial) =
        (OfAKind::new(AdviceCode::RepeatedExclusion), OfAKind::new(AdviceCode::OverlappingExclusions));
    let mut covered = RunSet::new();
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

/// Whole blocks that no node gets, unless that are all, which is said elsewhere.
fn excluded_blocks(pool: &Pool, advice: &mut Vec<Advice>) {
    let (count, total) = (pool.barren_count(), pool.block_count());
    if count > 0 && pool.has_exclusions() && pool.not_given().gaps_in(0, pool.grid().last_index()) > 0 {
        let message = format!("leave nothing of {count} of the {total} blocks, which no node gets");
        advice.push(Advice::new("spec.exclusions", AdviceCode::ExcludedBlocks, message));
    }
}
