//! The law that a history broke, and what broke it.

use std::fmt::{self, Display, Formatter};

/// A law that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The name of the law. It does not depend on what broke it.
    pub law: &'static str,
    /// What broke it.
    pub what: String,
}

impl Display for Broken {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law, self.what)
    }
}

/// The error that this broke the law.
pub(super) fn broken<T>(law: &'static str, what: String) -> Result<T, Broken> {
    Err(Broken { law, what })
}
