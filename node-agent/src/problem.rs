//! Why pods do not get all that the IPAMNode promises them, as the agent's report says it.

use ipam_node_store::StoreError;

/// The reason of an agent whose journal is damaged.
pub const DAMAGED: &str = "JournalDamaged";

/// One reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// One word.
    pub reason: &'static str,
    /// A sentence that names the pool.
    pub sentence: String,
}

impl Problem {
    /// Why the agent allocates nothing, if this is a reason for that and not for its end.
    pub fn of_store(error: &StoreError) -> Option<Self> {
        match error {
            StoreError::Full { place } => Some(Self {
                reason: "DiskFull",
                sentence: format!(
                    "no space left for the journal in {place}; the agent refuses ADD until there is space, DEL and CHECK work"
                ),
            }),
            StoreError::ReadOnly { place } => Some(Self {
                reason: "DiskReadOnly",
                sentence: format!(
                    "the disk of the journal {place} is read-only; the agent refuses ADD until the disk is mounted writable, DEL and CHECK work"
                ),
            }),
            StoreError::Damaged { .. } => Some(Self { reason: DAMAGED, sentence: error.to_string() }),
            StoreError::Locked { .. } | StoreError::Io { .. } => None,
        }
    }
}
