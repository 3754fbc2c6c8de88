//! Hints for unknown fields: names from other resources and older systems, and misspellings.
//!
//! The API server drops unknown fields without an error, unless the request is strict. So only a program that reads the
//! original manifest, as `validate` does, can report them.

use crate::PoolKind;

/// The hint for the unknown field `field` of the object at `path` (as in `spec.nodeSelector`, indexes left in) in a pool
/// of `kind`. `None` if there is no useful hint. Completes the sentence "`PATH.FIELD` is unknown; …".
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

/// The error for `matchLabels` in a node selector or in one of its terms. The CRDs declare this field only to reject it
/// with this message. Without the declaration, no API server would suggest a correction, and most would drop the field.
pub const MATCH_LABELS: &str = "a node selector has no matchLabels; write nodeSelectorTerms: [{matchExpressions: [{key: KEY, \
    operator: In, values: [VALUE]}]}], with an expression for each label";

/// The error for the field `field` of the object at `path`, if the CRDs declare this field only to reject it. `path` is
/// as in `spec.nodeSelector`, indexes left in.
pub fn refused_field(path: &str, field: &str) -> Option<&'static str> {
    let is_selector = matches!(&*without_indexes(path), "spec.nodeSelector" | "spec.nodeSelector.nodeSelectorTerms");
    (is_selector && field == "matchLabels").then_some(MATCH_LABELS)
}

/// The entry of `known` that is closest to `word`, ignoring case; `None` if none is close.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, nearest) = known.into_iter().map(|known| (distance(known, word), known)).min()?;
    (distance <= 2.max(word.len() / 4)).then_some(nearest)
}

/// Fields of other resources at this path, and what to write instead.
const FOREIGN: [(&str, &str, &str); 6] = [
    // For spellings with other capitals. For the exact spelling see [`refused_field`].
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

/// Names of fields in other systems, and the field to write instead.
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

/// The Levenshtein distance of the two texts, ignoring case. It is `usize::MAX` without a comparison if the lengths
/// differ by more than 8 bytes, or if `other` is longer than 64.
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
