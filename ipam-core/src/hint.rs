//! What to write instead of a field that no pool has: spellings of other resources, of older systems, and slips.
//!
//! The API server drops unknown fields without a word (unless asked to be strict), so whoever sees the text as it was
//! written, as `validate` does, is the only one who can say.

use crate::PoolKind;

/// What to say about the unknown field `field` of the object at `path` (as in `spec.nodeSelector`, indexes left in), in a
/// pool of `kind`. `None` if nothing useful comes to mind. Completes the sentence "`PATH.FIELD` is unknown; …".
pub fn unknown_field_hint(kind: PoolKind, path: &str, field: &str) -> Option<String> {
    let place = without_indexes(path);
    if let Some((_, _, hint)) = FOREIGN.iter().find(|(at, name, _)| *at == place && name.eq_ignore_ascii_case(field)) {
        return Some((*hint).to_owned());
    }
    if let Some((_, _, right)) = RENAMED.iter().find(|(of, names, _)| {
        *of == kind && place == "spec" && names.iter().any(|name| name.eq_ignore_ascii_case(field))
    }) {
        return Some(format!("write {right}"));
    }
    nearest(field, known_fields(kind, &place).iter().copied()).map(|known| format!("did you mean {known}?"))
}

/// What is wrong with labels in a node selector or a term of one, and what to write. The definitions declare the field only to
/// refuse it with these words: of a field that they do not declare no API server would say what to write, and most drop it.
pub const MATCH_LABELS: &str = "a node selector has no matchLabels; write nodeSelectorTerms: [{matchExpressions: [{key: KEY, \
    operator: In, values: [VALUE]}]}], with an expression for each label";

/// What is wrong with the field `field` of the object at `path` (as in `spec.nodeSelector`, indexes left in), if it is one that
/// is declared only to be refused.
pub fn refused_field(path: &str, field: &str) -> Option<&'static str> {
    let is_selector = matches!(&*without_indexes(path), "spec.nodeSelector" | "spec.nodeSelector.nodeSelectorTerms");
    (is_selector && field == "matchLabels").then_some(MATCH_LABELS)
}

/// The one of `known` that `word` is a slip of the pen away from, without regard to case.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, nearest) = known.into_iter().map(|known| (distance(known, word), known)).min()?;
    (distance <= 2.max(word.len() / 4)).then_some(nearest)
}

/// Fields that other resources have at this place, and what stands for them here.
const FOREIGN: [(&str, &str, &str); 6] = [
    // With a slip in the capitals, that is; for the right spelling see [`refused_field`].
    ("spec.nodeSelector", "matchLabels", MATCH_LABELS),
    ("spec.nodeSelector", "matchExpressions", "write it in a term: nodeSelectorTerms: [{matchExpressions: […]}]"),
    ("spec.nodeSelector", "matchFields", "write it in a term: nodeSelectorTerms: [{matchFields: […]}]"),
    (
        "spec.nodeSelector",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "write what stands in it alone: nodeSelectorTerms: […]",
    ),
    ("spec.nodeSelector.nodeSelectorTerms", "matchLabels", MATCH_LABELS),
    ("spec.routes", "gw", "leave it out: every route goes by the pool's gateway"),
];

/// What is known under another name elsewhere.
const RENAMED: [(PoolKind, &[&str], &str); 8] = [
    (PoolKind::IpPool, &["cidr", "range", "network", "ipRange"], "subnet"),
    (PoolKind::IpPool, &["blockSize", "perNodeNetworkPrefix", "size"], "perNodeBlockSize, a number of addresses"),
    (PoolKind::IpPool, &["gatewayIP", "gatewayIndex", "gw"], "gateway, an address of the subnet"),
    (PoolKind::IpPool, &["exclude", "excludes", "excluded"], "exclusions: [{startIP: …, endIP: …}]"),
    (PoolKind::CidrPool, &["subnet", "range", "network", "ipRange"], "cidr"),
    (
        PoolKind::CidrPool,
        &["perNodeBlockSize", "blockSize", "prefixLength"],
        "perNodeNetworkPrefix, a prefix length in bits",
    ),
    (PoolKind::CidrPool, &["gateway", "gatewayIP", "gw"], "gatewayIndex, the gateway's place in each node's prefix"),
    (PoolKind::CidrPool, &["exclude", "excludes", "excluded"], "exclusions: [{startIP: …, endIP: …}]"),
];

fn known_fields(kind: PoolKind, place: &str) -> &'static [&'static str] {
    match (place, kind) {
        ("spec", PoolKind::IpPool) => &[
            "subnet",
            "perNodeBlockSize",
            "gateway",
            "exclusions",
            "perNodeExclusions",
            "nodeSelector",
            "defaultGateway",
            "routes",
        ],
        ("spec", PoolKind::CidrPool) => &[
            "cidr",
            "perNodeNetworkPrefix",
            "gatewayIndex",
            "exclusions",
            "perNodeExclusions",
            "staticAllocations",
            "nodeSelector",
            "defaultGateway",
            "routes",
        ],
        ("spec.exclusions", _) => &["startIP", "endIP"],
        ("spec.perNodeExclusions", _) => &["startIndex", "endIndex"],
        ("spec.routes", _) => &["dst"],
        ("spec.staticAllocations", PoolKind::CidrPool) => &["nodeName", "gateway", "prefix"],
        ("spec.nodeSelector", _) => &["nodeSelectorTerms"],
        ("spec.nodeSelector.nodeSelectorTerms", _) => &["matchExpressions", "matchFields"],
        (
            "spec.nodeSelector.nodeSelectorTerms.matchExpressions" | "spec.nodeSelector.nodeSelectorTerms.matchFields",
            _,
        ) => &["key", "operator", "values"],
        _ => &[],
    }
}

fn without_indexes(path: &str) -> String {
    path.split('.').map(|part| part.split('[').next().unwrap_or_default()).collect::<Vec<_>>().join(".")
}

/// Insertions, deletions and changes from one text to the other, without regard to case (Levenshtein). Texts that differ
/// much in length are far apart anyway and are not compared.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.to_ascii_lowercase(), other.to_ascii_lowercase());
    if one.len().abs_diff(other.len()) > 8 || other.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (i, a) in one.chars().enumerate() {
        let (mut corner, mut left) = (i, i + 1);
        for (cell, b) in row.iter_mut().skip(1).zip(other.chars()) {
            let cost = (corner + usize::from(a != b)).min(*cell + 1).min(left + 1);
            corner = *cell;
            *cell = cost;
            left = cost;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}
