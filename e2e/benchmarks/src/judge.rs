//! What judging the largest spec costs: 1.5 MB of exclusions, as much as etcd takes, in this process.

use std::fmt::Write as _;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

use anyhow::{Result, ensure};
use ipam_core::{Pool, PoolKind, advise};
use ipam_webhook::cache::AdmissionCache;
use ipam_webhook::{answer, judge, review};

use super::finding::Finding;
use super::stats::Samples;

/// Bytes of exclusions.
const LARGE: usize = 1_500_000;
const RUNS: usize = 20;
const TIME_AIM: f64 = 0.05;

/// How the exclusions lie, made of the number of one and of their count.
type Shape = (&'static str, fn(u32, u32) -> String);

const SHAPES: [Shape; 3] = [
    ("apart from one another", |number, _| range(number * 10, number * 10 + 5)),
    ("each inside the one before", |number, count| range(number, 2 * count - number)),
    ("each of them invalid", |number, _| format!(r#"{{"startIP":"172.16.0.{}","endIP":"nonsense"}}"#, number % 256)),
];

/// The figures of one shape.
struct Times {
    /// Rules and advice alone, of a spec that is read already.
    rules: Samples,
    /// From the bytes of the review to those of the answer.
    review: Samples,
}

pub(super) fn measure() -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (shape, exclusion) in SHAPES {
        let Times { rules, review } = times(&body(exclusion))?;
        let rules = format!("rules alone: {}", rules.show(50));
        let what = format!("review of 1.5 MB of exclusions, {shape}");
        findings.push(Finding::new(what, review).at_most(TIME_AIM).also(rules));
    }
    Ok(findings)
}

fn times(body: &str) -> Result<Times> {
    let known = AdmissionCache::new("kube-system");
    let read = || review::read(PoolKind::IpPool, body.as_bytes()).map_err(|unread| anyhow::anyhow!(unread.message));
    let draft = read()?.new.filter(|new| new.unread.is_empty());
    let Some(spec) = draft.map(|new| new.spec) else { anyhow::bail!("the review has no spec that reads") };
    let rules = timed(|| Pool::parse("p", &spec).map(|pool| advise(&spec, &pool)));
    let whole = || -> Result<Vec<u8>> {
        let review = read()?;
        Ok(answer::answer(&review.uid, &review.key(), &judge::judge(&review, &known)))
    };
    ensure!(whole()?.starts_with(br#"{"apiVersion":"admission.k8s.io/v1""#), "no answer");
    Ok(Times { rules, review: timed(whole) })
}

fn timed<T>(mut work: impl FnMut() -> T) -> Samples {
    Samples::times((0..RUNS).map(|_| {
        let began = Instant::now();
        drop(black_box(work()));
        began.elapsed()
    }))
}

/// A review of a new pool with [`LARGE`] bytes of exclusions.
fn body(exclusion: fn(u32, u32) -> String) -> String {
    let count = u32::try_from(LARGE / exclusion(0, 1).len().max(48)).unwrap_or(u32::MAX);
    let mut list = String::with_capacity(LARGE);
    for number in 0..count {
        let comma = if number == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(list, "{comma}{}", exclusion(number, count));
    }
    let kind = r#"{"group":"nv-ipam.nvidia.com","version":"v1alpha1","kind":"IPPool"}"#;
    let spec = format!(r#"{{"subnet":"10.0.0.0/8","perNodeBlockSize":100,"exclusions":[{list}]}}"#);
    let object = format!(
        r#"{{"apiVersion":"nv-ipam.nvidia.com/v1alpha1","kind":"IPPool","metadata":{{"name":"p"}},"spec":{spec}}}"#
    );
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","kind":{kind},"namespace":"kube-system","operation":"CREATE","object":{object},"oldObject":null}}}}"#
    )
}

fn range(first: u32, last: u32) -> String {
    let addr = |number: u32| Ipv4Addr::from_bits(0x0a00_0000 + number);
    format!(r#"{{"startIP":"{}","endIP":"{}"}}"#, addr(first), addr(last))
}
