//! The clock of the certificates, which are valid by wall-clock time. Tests set it by hand.

use std::sync::Arc;

use jiff::Timestamp;

/// Returns the current wall-clock time, which may jump in either direction.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The clock of the machine.
pub fn system_clock() -> Clock {
    Arc::new(Timestamp::now)
}
