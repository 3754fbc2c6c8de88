//! The versions of the CNI specification. Decides what each version allows and which form its results have;
//! nothing else in the crate compares version texts.

use std::fmt;

use crate::Command;

/// A version of the CNI specification that this plugin speaks. Ordered by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecVersion {
    /// 0.1.0, also meant by a configuration without `cniVersion`.
    V0_1_0,
    /// 0.2.0
    V0_2_0,
    /// 0.3.0
    V0_3_0,
    /// 0.3.1
    V0_3_1,
    /// 0.4.0, the first with CHECK.
    V0_4_0,
    /// 1.0.0
    V1_0_0,
    /// 1.1.0, the first with STATUS and GC.
    V1_1_0,
}

/// The three shapes a result has had in the history of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultForm {
    /// `ip4` and `ip6`, at most one address each (0.1.0, 0.2.0).
    PerFamily,
    /// `ips`, each with a `version` of "4" or "6" (0.3.0 to 0.4.0).
    IpsWithVersion,
    /// `ips` (since 1.0.0).
    Ips,
}

impl SpecVersion {
    /// All of them, oldest first, as VERSION lists them.
    pub const ALL: [Self; 7] =
        [Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    /// The newest, spoken when the caller's version cannot be told.
    pub const NEWEST: Self = Self::V1_1_0;

    /// The version written as `text`; an empty text means 0.1.0, `None` that this plugin does not speak it.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::V0_1_0);
        }
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// As it stands in `cniVersion`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// The shape of a result in this version.
    pub fn result_form(self) -> ResultForm {
        match self {
            Self::V0_1_0 | Self::V0_2_0 => ResultForm::PerFamily,
            Self::V0_3_0 | Self::V0_3_1 | Self::V0_4_0 => ResultForm::IpsWithVersion,
            Self::V1_0_0 | Self::V1_1_0 => ResultForm::Ips,
        }
    }

    /// The version in which `command` appeared.
    pub fn first_with(command: Command) -> Self {
        match command {
            Command::Add | Command::Del | Command::Version => Self::V0_1_0,
            Command::Check => Self::V0_4_0,
            Command::Status | Command::Gc => Self::V1_1_0,
        }
    }

    /// All versions as one line, for messages.
    pub fn list() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_reads_what_it_writes_and_the_list_is_in_order() {
        for version in SpecVersion::ALL {
            assert_eq!(SpecVersion::parse(version.as_str()), Some(version));
        }
        assert!(SpecVersion::ALL.is_sorted());
        assert_eq!(SpecVersion::list(), "0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0");
    }

    #[test]
    fn no_version_means_the_oldest_and_an_unknown_one_is_refused() {
        assert_eq!(SpecVersion::parse(""), Some(SpecVersion::V0_1_0));
        for text in ["1.2.0", "0.5.0", "1.1", "v1.0.0", " 1.0.0", "1.0.0-rc1"] {
            assert_eq!(SpecVersion::parse(text), None, "{text}");
        }
    }

    #[test]
    fn check_came_with_0_4_0_and_status_and_gc_with_1_1_0() {
        assert_eq!(SpecVersion::first_with(Command::Add), SpecVersion::V0_1_0);
        assert_eq!(SpecVersion::first_with(Command::Del), SpecVersion::V0_1_0);
        assert_eq!(SpecVersion::first_with(Command::Check), SpecVersion::V0_4_0);
        assert_eq!(SpecVersion::first_with(Command::Status), SpecVersion::V1_1_0);
        assert_eq!(SpecVersion::first_with(Command::Gc), SpecVersion::V1_1_0);
    }
}
