//! What time it is. Decides nothing; certificates are judged by wall-clock time, and a test turns the clock by hand.

use std::sync::Arc;

use jiff::Timestamp;

/// Tells the wall-clock time whenever it is asked. It may jump in either direction.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The clock of the machine.
pub fn system_clock() -> Clock {
    Arc::new(Timestamp::now)
}
