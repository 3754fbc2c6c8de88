//! The channel between the Controllers and the election: requests of the Lease, and the state of the Lease to rely on.

use ipam_reconciler::allocation_state::{LeaseRequest, LeaseState};
use tokio::sync::watch;

/// The Controllers' end: sends requests of the Lease, and has the state to rely on.
#[derive(Clone, Debug)]
pub struct MarkerHandle {
    request: watch::Sender<LeaseRequest>,
    state: watch::Receiver<LeaseState>,
}

/// The end of the election, or of its replacement if there is no election.
#[derive(Debug)]
pub struct MarkerWriter {
    request: watch::Receiver<LeaseRequest>,
    state: watch::Sender<LeaseState>,
}

/// Returns both ends of the channel.
pub fn marker() -> (MarkerHandle, MarkerWriter) {
    let ((request, wished), (publish, state)) =
        (watch::channel(LeaseRequest::default()), watch::channel(LeaseState::default()));
    (MarkerHandle { request, state }, MarkerWriter { request: wished, state: publish })
}

impl MarkerHandle {
    /// Returns the state of the Lease to rely on.
    pub fn state(&self) -> LeaseState {
        *self.state.borrow()
    }

    /// Requests a state, or one more write, of the Lease. Only a leader may call it.
    pub fn send(&self, request: LeaseRequest) {
        self.request.send_if_modified(|wanted| std::mem::replace(wanted, request) != request);
    }

    /// Waits until the state to rely on changes.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl MarkerWriter {
    /// Returns the current request.
    pub fn request(&self) -> LeaseRequest {
        *self.request.borrow()
    }

    /// Sets the state to rely on.
    pub fn publish(&self, state: LeaseState) {
        self.state.send_if_modified(|said| std::mem::replace(said, state) != state);
    }

    /// Waits for a request that the Lease does not fulfil: another state, or one more write.
    /// A write that failed is repeated with the next renewal.
    pub async fn unfulfilled(&mut self) {
        loop {
            if self.request.changed().await.is_err() {
                return std::future::pending().await;
            }
            let (request, state) = (*self.request.borrow_and_update(), *self.state.borrow());
            let is_another = request.allocation.is_some_and(|wanted| wanted != state.allocation);
            if is_another || request.confirm > state.confirmed {
                return;
            }
        }
    }

    /// Grants every request at once. For an operator without an election, and so without a Lease.
    pub async fn grant_all(mut self) {
        while self.request.changed().await.is_ok() {
            let request = *self.request.borrow_and_update();
            self.publish(request.granted());
        }
    }
}
