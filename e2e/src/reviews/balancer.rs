//! What a Service does for connections: each new one goes to one of the replicas that were ready a moment ago; those that stand
//! stay where they are.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};

use crate::http;

/// How often replicas are asked whether they are ready. A cluster is slower by far; the drain has to cover that.
const PROBE: Duration = Duration::from_millis(200);

/// A replica.
#[derive(Clone, Debug)]
pub struct Backend {
    /// TCP port of its webhook on 127.0.0.1.
    pub port: u16,
    /// `HOST:PORT` of its probes.
    pub probes: String,
}

/// A balancer that lives as long as the process.
pub struct Balancer {
    address: SocketAddr,
    backends: Arc<Mutex<Vec<Backend>>>,
}

impl Balancer {
    /// Starts one on a port of its own, with threads of its own.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(backends: Vec<Backend>) -> Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let backends = Arc::new(Mutex::new(backends));
        let ready: Arc<Mutex<Vec<u16>>> = Arc::default();
        let (asked, told) = (backends.clone(), ready.clone());
        look(&asked, &told);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(PROBE);
                look(&asked, &told);
            }
        });
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
        std::thread::spawn(move || runtime.block_on(forward(listener, ready)));
        Ok(Self { address, backends })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces a replica by another.
    pub fn replace(&self, at: usize, backend: Backend) {
        if let Some(place) = lock(&self.backends).get_mut(at) {
            *place = backend;
        }
    }
}

fn look(backends: &Mutex<Vec<Backend>>, ready: &Mutex<Vec<u16>>) {
    let known = lock(backends).clone();
    let answering = known.iter().filter(|backend| http::ok(&backend.probes, "/readyz").is_ok());
    let ports = answering.map(|backend| backend.port).collect();
    *lock(ready) = ports;
}

async fn forward(listener: std::net::TcpListener, ready: Arc<Mutex<Vec<u16>>>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut turn = 0;
    while let Ok((mut client, _)) = listener.accept().await {
        let port = {
            let ready = lock(&ready);
            ready.get(turn % ready.len().max(1)).copied()
        };
        turn += 1;
        let Some(port) = port else { continue };
        tokio::spawn(async move {
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
