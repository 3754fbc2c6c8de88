//! What the Lease says about blocks given, for whoever leads next.
//!
//! Pools' statuses and IPAMNodes say who has which block. That there are none of either may mean that nothing was ever given, or
//! that all of it is lost; the Lease, which neither goes with the definitions nor with a release of the chart, tells which.
//! It must never promise less care than what was done needs: it is written before a node is told of a block, and before an
//! agent is asked because records are lost.

use k8s_openapi::api::coordination::v1::Lease;

/// Annotation of the Lease: absent, [`RECORDED`], [`DOUBTFUL`] or [`UNRECORDED`].
pub const BLOCKS_GIVEN: &str = "nv-ipam.nvidia.com/blocks-given";
/// Blocks may have been given, and are recorded.
pub const RECORDED: &str = "true";
/// As far as the Lease knew, no block was ever assigned, and it may be from a backup.
pub const DOUBTFUL: &str = "doubtful";
/// Blocks may have been given of which there may be no record: every agent has to be asked.
pub const UNRECORDED: &str = "unrecorded";

/// What is known of blocks given, by the care that one who comes to lead takes because of it.
///
/// In this order a minimum is what may be relied upon where it is not known which of two the Lease says: neither a node may be told
/// of a block, nor an agent be asked, by a word that may not have been written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Given {
    /// Nothing was ever given.
    #[default]
    Nothing,
    /// Blocks may have been given, and are recorded. Should nothing be recorded, all records are lost.
    Recorded,
    /// Nothing was ever given as far as the Lease knew. It may be from a backup, so that there may be no record.
    Doubtful,
    /// Blocks may have been given of which there may be no record.
    Unrecorded,
}

impl Given {
    /// What `lease` says. A word that nobody knows is no reason to take less care.
    pub fn of(lease: &Lease) -> Self {
        match lease.metadata.annotations.as_ref().and_then(|all| all.get(BLOCKS_GIVEN)).map(String::as_str) {
            None => Self::Nothing,
            Some(RECORDED) => Self::Recorded,
            Some(DOUBTFUL) => Self::Doubtful,
            Some(_) => Self::Unrecorded,
        }
    }

    /// The same where it may be from a backup.
    #[must_use]
    pub fn doubted(self) -> Self {
        match self {
            Self::Nothing | Self::Doubtful => Self::Doubtful,
            Self::Recorded | Self::Unrecorded => Self::Unrecorded,
        }
    }

    /// Lets `lease` say so.
    pub fn put(self, lease: &mut Lease) {
        let word = match self {
            Self::Nothing => {
                lease.metadata.annotations.get_or_insert_default().remove(BLOCKS_GIVEN);
                return;
            }
            Self::Recorded => RECORDED,
            Self::Doubtful => DOUBTFUL,
            Self::Unrecorded => UNRECORDED,
        };
        lease.metadata.annotations.get_or_insert_default().insert(BLOCKS_GIVEN.to_owned(), word.to_owned());
    }
}

/// What a leader wants of the Lease.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Wish {
    /// What it is to say of blocks given; `None` for what it says.
    pub given: Option<Given>,
    /// Number of a request for one more write of the Lease, which grows with each request. A write answers the requests that were made
    /// before it began.
    pub confirm: u64,
}

/// What a leader may rely upon.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Word {
    /// What the Lease says of blocks given.
    pub given: Given,
    /// The last request for a write that was answered.
    pub confirmed: u64,
}

impl Wish {
    /// What may be relied upon once all of it is done.
    pub fn granted(self) -> Word {
        Word { given: self.given.unwrap_or_default(), confirmed: self.confirm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_says_what_was_put_there_and_an_unknown_word_asks_for_the_most_care() {
        let mut lease = Lease::default();
        assert_eq!(Given::of(&lease), Given::Nothing);
        for given in [Given::Unrecorded, Given::Doubtful, Given::Recorded] {
            given.put(&mut lease);
            assert_eq!(Given::of(&lease), given);
        }
        Given::Nothing.put(&mut lease);
        assert_eq!(Given::of(&lease), Given::Nothing, "all was given back");
        lease.metadata.annotations = Some([(BLOCKS_GIVEN.to_owned(), "mabye".to_owned())].into());
        assert_eq!(Given::of(&lease), Given::Unrecorded);
    }
}
