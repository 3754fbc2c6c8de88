//! Whether the API server still answers those who watch.
//!
//! A watch that is taken up again without news says nothing of it, so silence alone does not tell that the API server is
//! away. Here its answers are counted, none of them read.

use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::service_fn;

/// How long an agent gives addresses without the API server, and what tells that it is there.
pub struct Offline {
    limit: Duration,
    answers: watch::Receiver<u64>,
    /// Since when nothing was heard; `None` while the API server is there.
    since: Option<Instant>,
}

impl Offline {
    /// A client that does what `client` does and counts good answers; the silence counts from now.
    pub fn watch(client: Client, limit: Duration) -> (Client, Self) {
        let (counted, answers) = watch::channel(0_u64);
        let namespace = client.default_namespace().to_owned();
        let service = service_fn(move |request: Request<Body>| {
            let (client, counted) = (client.clone(), counted.clone());
            async move {
                let response = client.send(request).await?;
                if response.status().is_success() {
                    counted.send_modify(|count| *count = count.wrapping_add(1));
                }
                Ok::<_, kube::Error>(response)
            }
        });
        (Client::new(service, namespace), Self { limit, answers, since: Some(Instant::now()) })
    }

    /// The API server was heard.
    pub const fn heard(&mut self) {
        self.since = None;
    }

    /// It is not heard any more; only answers that come later count.
    pub fn lost(&mut self) {
        self.answers.mark_unchanged();
        self.since.get_or_insert_with(Instant::now);
    }

    /// Waits until the silence is over (`true`), or, unless that is `known`, has lasted too long (`false`). May be dropped
    /// and called again.
    pub async fn turn(&mut self, known: bool) -> bool {
        let Some(since) = self.since else { return std::future::pending().await };
        let over = async {
            match since.checked_add(self.limit) {
                Some(end) if !known => tokio::time::sleep_until(end).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            told = self.answers.changed() => match told {
                Ok(()) => {
                    self.since = None;
                    true
                }
                // The client is gone, and with it whoever could be told.
                Err(_) => std::future::pending().await,
            },
            () = over => false,
        }
    }
}
