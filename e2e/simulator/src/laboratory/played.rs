//! Counts of what was played.

use std::fmt;

/// What was played.
#[derive(Clone, Copy, Default, Debug)]
pub struct Played {
    /// Starts on what a cut or a kill had left.
    pub cuts: u64,
    /// Of them, those that had lost an answer to a lying disk.
    pub lost: u64,
    /// Of them, those that refused the journal of a lying disk.
    pub refused: u64,
    /// Starts with a disk that took nothing.
    pub waiting: u64,
}

impl Played {
    /// Adds what else was played.
    pub const fn join(&mut self, other: Self) {
        self.cuts += other.cuts;
        self.lost += other.lost;
        self.refused += other.refused;
        self.waiting += other.waiting;
    }
}

impl fmt::Display for Played {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cuts, lost, refused, waiting } = self;
        write!(
            f,
            "{cuts} starts after a cut or a kill; lying disks lost answers in {lost} of them and were refused in {refused}; \
             {waiting} times the disk took nothing before the cut"
        )
    }
}
