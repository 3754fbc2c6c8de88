//! The annotation of the Lease that records whether blocks were assigned. The next leader relies on it.
//!
//! The statuses of pools and the IPAMNodes record which node has which block. If both are empty, either no block was ever assigned, or all
//! records are lost. The Lease shows which: it stays when the CustomResourceDefinitions are deleted, and when the chart is uninstalled. The
//! leader writes the annotation before it assigns a block, and before it requests reports because records are lost. So the next leader
//! never takes less care than is needed.

use k8s_openapi::api::coordination::v1::Lease;

/// Annotation of the Lease: absent, [`ALLOCATED`], [`DOUBTFUL`] or [`RECOVERING`].
pub const ALLOCATION_STATE: &str = "nv-ipam.nvidia.com/allocation-state";
/// Blocks may have been assigned, and are recorded.
pub const ALLOCATED: &str = "Allocated";
/// No block is recorded. The Lease may be from a backup, or only reports have addresses in use.
pub const DOUBTFUL: &str = "Doubtful";
/// Records of assigned blocks may be missing: each agent has to report.
pub const RECOVERING: &str = "Recovering";

/// Whether blocks were assigned, ordered by the care that a new leader takes because of it.
///
/// If it is unknown which of two states the Lease has, the leader relies on the smaller one. So it assigns no block and requests no report
/// because of a state that may not have been written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum AllocationState {
    /// No block was ever assigned.
    #[default]
    NoneAllocated,
    /// Blocks may have been assigned, and are recorded. If there is no record, all records are lost.
    Allocated,
    /// No block is recorded. The Lease may be from a backup, so records may be missing; or only reports have addresses in use.
    Doubtful,
    /// Records of assigned blocks may be missing.
    Recovering,
}

impl AllocationState {
    /// The state in `lease`. An unknown value counts as [`AllocationState::Recovering`], which takes the most care.
    pub fn of(lease: &Lease) -> Self {
        match lease.metadata.annotations.as_ref().and_then(|all| all.get(ALLOCATION_STATE)).map(String::as_str) {
            None => Self::NoneAllocated,
            Some(ALLOCATED) => Self::Allocated,
            Some(DOUBTFUL) => Self::Doubtful,
            Some(_) => Self::Recovering,
        }
    }

    /// Whether a leader that finds this state takes at least the care that one takes who finds `other`. [`AllocationState::Doubtful`] has no
    /// place in that order: its wait always has a limit, and that of [`AllocationState::Allocated`] has none if all records are lost.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self == other || self == Self::Recovering || other == Self::NoneAllocated
    }

    /// The state if the Lease may be from a backup.
    #[must_use]
    pub fn doubted(self) -> Self {
        match self {
            Self::NoneAllocated | Self::Doubtful => Self::Doubtful,
            Self::Allocated | Self::Recovering => Self::Recovering,
        }
    }

    /// Sets the annotation of `lease`.
    pub fn put(self, lease: &mut Lease) {
        let value = match self {
            Self::NoneAllocated => {
                lease.metadata.annotations.get_or_insert_default().remove(ALLOCATION_STATE);
                return;
            }
            Self::Allocated => ALLOCATED,
            Self::Doubtful => DOUBTFUL,
            Self::Recovering => RECOVERING,
        };
        lease.metadata.annotations.get_or_insert_default().insert(ALLOCATION_STATE.to_owned(), value.to_owned());
    }
}

/// A request of the reconciler to write the Lease.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LeaseRequest {
    /// The state that the Lease is to have; `None` if it stays.
    pub allocation: Option<AllocationState>,
    /// Number of a request for one more write of the Lease, which grows with each request. A write answers the requests that were made
    /// before it began.
    pub confirm: u64,
}

/// The state of the Lease that the reconciler may rely on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LeaseState {
    /// The state that the Lease has.
    pub allocation: AllocationState,
    /// The last request for a write that was answered.
    pub confirmed: u64,
}

impl LeaseRequest {
    /// The state of the Lease once the request is done.
    pub fn granted(self) -> LeaseState {
        LeaseState { allocation: self.allocation.unwrap_or_default(), confirmed: self.confirm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_value_counts_as_recovering() {
        let mut lease = Lease::default();
        assert_eq!(AllocationState::of(&lease), AllocationState::NoneAllocated);
        for given in [AllocationState::Recovering, AllocationState::Doubtful, AllocationState::Allocated] {
            given.put(&mut lease);
            assert_eq!(AllocationState::of(&lease), given);
        }
        AllocationState::NoneAllocated.put(&mut lease);
        assert_eq!(AllocationState::of(&lease), AllocationState::NoneAllocated, "no annotation");
        lease.metadata.annotations = Some([(ALLOCATION_STATE.to_owned(), "mabye".to_owned())].into());
        assert_eq!(AllocationState::of(&lease), AllocationState::Recovering);
    }
}
