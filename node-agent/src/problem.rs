//! Why pods do not get all that the IPAMNode promises them, as the agent's report says it.

/// One reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// One word.
    pub reason: &'static str,
    /// A sentence that names the pool.
    pub sentence: String,
}
