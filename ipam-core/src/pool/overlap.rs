//! When two pools stand in each other's way.

use super::Pool;

impl Pool {
    /// Whether the two pools' networks share an address, so that two nodes or pods could be given the same one.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.network.range().overlaps(&other.network.range())
    }
}
