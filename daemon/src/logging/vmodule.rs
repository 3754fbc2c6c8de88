//! `--vmodule`: verbosity by source file.

use crate::gosyntax;

/// Patterns with their levels. Each pattern is a glob (`*`, `?`) over the last part of a Rust module path, which is the
/// file name without `.rs` (or the folder of a `mod.rs`); one with a `/` is a glob over the whole path, with `/`
/// between its parts and the crate in front (`ipam_node_agent/store/*`).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct VModule(Vec<(String, i64)>);

impl VModule {
    /// Reads `pattern=N,…`. The message completes the sentence "VALUE …".
    pub fn parse(text: &str) -> Result<Self, String> {
        let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(|pair| {
            let (pattern, level) = pair.split_once('=').filter(|(pattern, _)| !pattern.is_empty())?;
            Some((pattern.to_owned(), gosyntax::integer(level, 0, i64::from(i32::MAX)).ok()?))
        });
        let pairs: Option<Vec<_>> = pairs.collect();
        pairs.map(Self).ok_or_else(|| "must be pattern=N,… with N a whole number, as in \"rpc=5,store/*=4\"".to_owned())
    }

    /// Whether there is no pattern.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The highest level of any pattern; 0 without one.
    pub fn highest(&self) -> i64 {
        self.0.iter().map(|(_, level)| *level).max().unwrap_or(0)
    }

    /// The level for a module path such as `ipam_node_agent::rpc`: that of the first pattern that matches, else 0.
    pub fn level(&self, module_path: &str) -> i64 {
        let matches = |pattern: &str| {
            if pattern.contains('/') {
                glob(pattern.as_bytes(), module_path.replace("::", "/").as_bytes())
            } else {
                glob(pattern.as_bytes(), module_path.rsplit("::").next().unwrap_or_default().as_bytes())
            }
        };
        self.0.iter().find(|(pattern, _)| matches(pattern)).map_or(0, |(_, level)| *level)
    }
}

/// Whether `text` matches `pattern`, where `*` stands for any number of bytes and `?` for one. Remembers only the last
/// star, so the time is at most the product of the lengths.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                p = at + 1;
                t = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_file_and_one_with_a_slash_the_path() {
        let vmodule = VModule::parse("rpc=5, jour*=4,ipam_node_agent/store/*=3,g?=2").unwrap();
        for (path, level) in [
            ("ipam_node_agent::rpc", 5),
            ("ipam_node_agent::store::journal", 4),
            ("ipam_node_agent::store::disk", 3),
            ("ipam_node_agent::gc", 2),
            ("ipam_node_agent::watch", 0),
        ] {
            assert_eq!(vmodule.level(path), level, "{path}");
        }
        assert_eq!(vmodule.highest(), 5);
    }

    #[test]
    fn what_is_no_pattern_and_level_is_refused() {
        for text in ["rpc", "=3", "rpc=", "rpc=x", "rpc=-1", "a=1,b"] {
            assert!(VModule::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_star_matches_any_run_also_an_empty_one() {
        assert!(glob(b"*a*b*", b"xxaxxb") && glob(b"*", b"") && glob(b"a*", b"a") && !glob(b"a*c", b"ab"));
    }
}
