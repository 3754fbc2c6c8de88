//! The channel between the Controllers and the election: requests of the Lease, and the state of the Lease to rely on.

use ipam_reconciler::allocation_state::{LeaseRequest, LeaseState};
use tokio::sync::watch;

/// The Controllers' end: sends requests of the Lease, and has the state to rely on.
#[derive(Clone, Debug)]
pub struct MarkerHandle {
    wish: watch::Sender<LeaseRequest>,
    word: watch::Receiver<LeaseState>,
}

/// The end of the election, or of its replacement if there is no election.
#[derive(Debug)]
pub struct MarkerWriter {
    wish: watch::Receiver<LeaseRequest>,
    word: watch::Sender<LeaseState>,
}

/// Returns both ends of the channel.
pub fn marker() -> (MarkerHandle, MarkerWriter) {
    let ((wish, wished), (say, word)) =
        (watch::channel(LeaseRequest::default()), watch::channel(LeaseState::default()));
    (MarkerHandle { wish, word }, MarkerWriter { wish: wished, word: say })
}

impl MarkerHandle {
    /// Returns the state of the Lease to rely on.
    pub fn word(&self) -> LeaseState {
        *self.word.borrow()
    }

    /// Requests a state, or one more write, of the Lease. Only a leader may call it.
    pub fn want(&self, wish: LeaseRequest) {
        self.wish.send_if_modified(|wanted| std::mem::replace(wanted, wish) != wish);
    }

    /// Waits until the state to rely on changes.
    pub async fn changed(&mut self) {
        if self.word.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl MarkerWriter {
    /// Returns the current request.
    pub fn wish(&self) -> LeaseRequest {
        *self.wish.borrow()
    }

    /// Sets the state to rely on.
    pub fn say(&self, word: LeaseState) {
        self.word.send_if_modified(|said| std::mem::replace(said, word) != word);
    }

    /// Waits for a request that the Lease does not fulfil: another state, or one more write.
    /// A write that failed is repeated with the next renewal.
    pub async fn presses(&mut self) {
        loop {
            if self.wish.changed().await.is_err() {
                return std::future::pending().await;
            }
            let (wish, word) = (*self.wish.borrow_and_update(), *self.word.borrow());
            if wish.given.is_some_and(|given| given != word.given) || wish.confirm > word.confirmed {
                return;
            }
        }
    }

    /// Grants every request at once. For an operator without an election, and so without a Lease.
    pub async fn grant_all(mut self) {
        while self.wish.changed().await.is_ok() {
            let wish = *self.wish.borrow_and_update();
            self.say(wish.granted());
        }
    }
}
