//! The steps of a history.

use fastrand::Rng;

/// Containers that ask for addresses.
pub(super) const CONTAINERS: u8 = 8;

/// One step of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Add {
        container: u8,
        pools: u8,
    },
    Del {
        container: u8,
        pools: u8,
    },
    /// The containers that the runtime still has, one bit each.
    Gc {
        valid: u8,
    },
    /// A DEL that the plugin left some seconds ago.
    Note {
        container: u8,
        age: i64,
    },
    Spec {
        size: u8,
    },
    /// A restart with an older store beside the journal.
    Import {
        container: u8,
    },
    Restart,
    /// The disk is full. If it `copies`, as Btrfs and ZFS do, a write over a file needs room, too.
    Fill {
        copies: bool,
    },
    ReadOnly,
    /// The disk works again.
    Repair,
    /// The next sync of a file fails, which ends the agent. The next one may find that it can only read the disk.
    FailSync {
        then_read_only: bool,
    },
}

impl Step {
    pub(super) fn any(rng: &mut Rng) -> Self {
        let (container, pools) = (rng.u8(..CONTAINERS), rng.u8(..3));
        match rng.u8(..24) {
            0..10 => Self::Add { container, pools },
            10..14 => Self::Del { container, pools },
            14 => Self::Gc { valid: rng.u8(..) },
            15 | 16 => Self::Note { container, age: rng.i64(0..8) },
            17 | 18 => Self::Spec { size: rng.u8(..3) },
            19 => Self::Import { container },
            20 => Self::Restart,
            21 if container % 2 == 0 => Self::Fill { copies: container % 4 == 0 },
            21 => Self::ReadOnly,
            22 => Self::Repair,
            _ => Self::FailSync { then_read_only: container % 2 == 0 },
        }
    }
}
