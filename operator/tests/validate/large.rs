//! A spec as large as etcd takes one, 1.5 MB of exclusions: judging it costs in proportion to its size, whatever it holds.
//!
//! What is measured is this thread's own CPU time, and only ever in proportion to another measurement of the same run: a
//! busy or slow machine changes both alike.

use std::fmt::Write as _;
use std::time::Duration;

use ipam_validate::{MAX_TOLD, Options, validate};
use rustix::time::{ClockId, clock_gettime};

/// Bytes of the large spec, and of the small one that it is compared with.
const LARGE: usize = 1_500_000;
const SMALL: usize = LARGE / 8;
/// Cost may grow with `n log n`, and caches are small; a quadratic one would grow by 8 × 8 = 64.
const AT_MOST: u32 = 24;

/// The least of some runs: what disturbs one only ever adds to it.
fn cpu_time(runs: usize, work: impl Fn()) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let measure = |_| {
        let before = now();
        work();
        now().checked_sub(before).unwrap()
    };
    (0..runs).map(measure).min().unwrap()
}

/// A pool in JSON with `size` bytes of exclusions, each made of its number and their count.
fn pool(size: usize, exclusion: impl Fn(u32, u32) -> String) -> String {
    let count = u32::try_from(size / exclusion(0, 1).len().max(48)).unwrap();
    let mut list = String::with_capacity(size);
    for number in 0..count {
        let comma = if number == 0 { "" } else { "," };
        write!(list, "{comma}{}", exclusion(number, count)).unwrap();
    }
    format!(
        r#"{{"apiVersion":"nv-ipam.nvidia.com/v1alpha1","kind":"IPPool","metadata":{{"name":"p"}},
        "spec":{{"subnet":"10.0.0.0/8","perNodeBlockSize":100,"exclusions":[{list}]}}}}"#
    )
}

fn range(first: u32, last: u32) -> String {
    let addr = |number: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + number);
    format!(r#"{{"startIP":"{}","endIP":"{}"}}"#, addr(first), addr(last))
}

fn judged_in_proportion(exclusion: impl Fn(u32, u32) -> String) {
    let (small, large) = (pool(SMALL, &exclusion), pool(LARGE, &exclusion));
    let judge = |text: &str| {
        let report = validate([("p.json", text.as_bytes())], &Options::default());
        assert!(report.pools[0].problems.len() <= MAX_TOLD && report.pools[0].warnings.len() <= MAX_TOLD);
        let told = report.pools[0].problems.iter().map(|problem| problem.message.len());
        assert!(
            told.chain(report.pools[0].warnings.iter().map(|warning| warning.message.len()))
                .all(|length| length < 1_100)
        );
    };
    let (of_small, of_large) = (cpu_time(3, || judge(&small)), cpu_time(3, || judge(&large)));
    assert!(of_large < of_small * AT_MOST, "{SMALL} bytes take {of_small:?}, {LARGE} bytes {of_large:?}");
}

#[test]
fn pools_of_which_each_overlaps_all_others() {
    let pools = |count: u32| {
        let pool = |number: u32| {
            let spec = "spec: {subnet: 10.0.0.0/8, perNodeBlockSize: 100}";
            format!(
                "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPool\nmetadata: {{name: p{number}}}\n{spec}\n---\n"
            )
        };
        (0..count).map(pool).collect::<String>()
    };
    let (small, large) = (pools(2_000), pools(2_000 * 8));
    let judge = |text: &str| {
        let report = validate([("pools.yaml", text.as_bytes())], &Options::default());
        assert!(report.pools.iter().skip(1).all(|pool| pool.problems.len() == 1));
    };
    let (of_small, of_large) = (cpu_time(3, || judge(&small)), cpu_time(3, || judge(&large)));
    assert!(of_large < of_small * AT_MOST, "2,000 pools take {of_small:?}, 16,000 pools {of_large:?}");
}

#[test]
fn separate_exclusions() {
    judged_in_proportion(|number, _| range(number * 10, number * 10 + 5));
}

#[test]
fn exclusions_in_reverse() {
    judged_in_proportion(|number, count| range((count - number) * 10, (count - number) * 10 + 5));
}

#[test]
fn exclusions_that_overlap_one_another() {
    judged_in_proportion(|number, count| range(number, count + number));
}

#[test]
fn exclusions_that_nest() {
    judged_in_proportion(|number, count| range(number, 2 * count - number));
}

#[test]
fn the_same_exclusion_again_and_again() {
    judged_in_proportion(|_, _| range(7, 9));
}

#[test]
fn exclusions_of_which_each_is_wrong() {
    judged_in_proportion(|number, _| format!(r#"{{"startIP":"172.16.0.{}","endIP":"nonsense"}}"#, number % 256));
}

#[test]
fn exclusions_of_the_wrong_type() {
    judged_in_proportion(|number, _| format!(r#"{{"startIP":{number},"endIP":null,"what":{{"is":"this"}}}}"#));
}
