//! `--feature-gates`: the feature gates of NVIDIA's nv-ipam that are supported, and what they enable.

use crate::gosyntax;

/// The feature gates. Defaults are those of NVIDIA's nv-ipam: beta on, alpha off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeatureGates {
    /// `ContextualLogging`: log lines carry the fields of the spans around them.
    pub contextual_logging: bool,
    /// `LoggingAlphaOptions`: the `--log-json-…` flags may be used.
    pub logging_alpha_options: bool,
    /// `LoggingBetaOptions`: `--logging-format=json` may be used.
    pub logging_beta_options: bool,
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self { contextual_logging: false, logging_alpha_options: false, logging_beta_options: true }
    }
}

const KNOWN: &str = "AllAlpha, AllBeta, ContextualLogging, LoggingAlphaOptions, LoggingBetaOptions";

impl FeatureGates {
    /// Parses `Name=bool,…`. A gate named by itself takes precedence over `AllAlpha` and `AllBeta`, whatever the order.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut all, mut single, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                wrong.push(format!("{pair:?} lacks a value, write {pair}=true"));
                continue;
            };
            match (name.trim(), gosyntax::boolean(value.trim())) {
                (name @ ("AllAlpha" | "AllBeta"), Ok(on)) => all.push((name, on)),
                (name @ ("ContextualLogging" | "LoggingAlphaOptions" | "LoggingBetaOptions"), Ok(on)) => {
                    single.push((name, on));
                }
                (_, Ok(_)) => wrong.push(format!("{name:?} is no known gate")),
                (_, Err(why)) => wrong.push(format!("{name}={value:?} {why}")),
            }
        }
        if !wrong.is_empty() {
            return Err(format!("is wrong: {}; known gates are {KNOWN}", wrong.join("; ")));
        }
        let mut gates = Self::default();
        for (name, on) in all.into_iter().chain(single) {
            gates.set(name, on);
        }
        Ok(gates)
    }

    fn set(&mut self, name: &str, on: bool) {
        if matches!(name, "AllAlpha" | "ContextualLogging") {
            self.contextual_logging = on;
        }
        if matches!(name, "AllAlpha" | "LoggingAlphaOptions") {
            self.logging_alpha_options = on;
        }
        if matches!(name, "AllBeta" | "LoggingBetaOptions") {
            self.logging_beta_options = on;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_gate_wins_over_all_of_its_stage_in_any_order() {
        let gates = FeatureGates::parse("LoggingAlphaOptions=false,AllAlpha=true, LoggingBetaOptions=0").unwrap();
        let expected =
            FeatureGates { contextual_logging: true, logging_alpha_options: false, logging_beta_options: false };
        assert_eq!(gates, expected);
        assert_eq!(FeatureGates::parse(""), Ok(FeatureGates::default()));
    }

    #[test]
    fn every_wrong_gate_is_named_together_with_the_known_ones() {
        let message = FeatureGates::parse("Foo=true,AllBeta,AllAlpha=maybe").unwrap_err();
        for part in ["\"Foo\" is no known gate", "AllBeta=true", "AllAlpha=\"maybe\"", KNOWN] {
            assert!(message.contains(part), "{message}");
        }
    }
}
