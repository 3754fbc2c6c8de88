//! Files given to `ipam-controller validate`.

use std::sync::LazyLock;

use ipam_validate::{MAX_TOLD, Nodes, Options, Place, human, validate};

/// Longest message about one mistake, in bytes. The longest value that is quoted has 100 characters.
const LONGEST: usize = 5_000;

pub(super) fn run(data: &[u8]) {
    static PLANNED: LazyLock<Option<Nodes>> = LazyLock::new(|| Nodes::numbered(3).ok());
    // Half of the inputs get every option there is.
    let is_thorough = data.len().is_multiple_of(2);
    let options = Options {
        strict: is_thorough,
        namespace: is_thorough.then(|| "kube-system".to_owned()),
        nodes: PLANNED.clone().filter(|_| is_thorough),
        explain: is_thorough,
        only_pools: is_thorough,
        ..Options::default()
    };
    let report = validate([("fuzz", data)], &options);
    assert_eq!(report, validate([("fuzz", data)], &options), "the same file is judged in two ways");

    let lines = data.split(|byte| matches!(byte, b'\n' | b'\r')).count();
    let inside = |place: Place| {
        assert!((1..=lines + 1).contains(&place.line) && place.column >= 1, "{place:?} of {lines} lines");
    };
    for stray in &report.strays {
        inside(stray.problem.place);
        assert!(stray.problem.message.len() < LONGEST);
    }
    for pool in &report.pools {
        assert!(pool.problems.len() <= MAX_TOLD && pool.warnings.len() <= MAX_TOLD);
        assert!(pool.untold == 0 || pool.problems.len() == MAX_TOLD);
        for problem in &pool.problems {
            inside(problem.place);
            assert!(!problem.field.is_empty() && problem.field.len() + problem.message.len() < LONGEST, "{problem:?}");
        }
        for warning in &pool.warnings {
            inside(warning.place);
            assert!(warning.message.len() < LONGEST, "{warning:?}");
        }
        if let Some(fit) = &pool.nodes {
            assert!(fit.served <= fit.selected);
        }
    }
    let mut words = String::new();
    assert!(human::write(&report, &mut words).is_ok());
    assert!(!words.chars().any(|c| c.is_control() && c != '\n'), "a control character in {words:?}");
    assert!(serde_json::to_string(&report).is_ok());
}
