//! An API server with nothing in it: lists are empty, watches stay silent, the Lease is kept as it is written. Every call
//! is remembered as `METHOD /path`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// What is not answered until [`Server::release`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Nothing,
    Lists,
}

struct State {
    held: Held,
    calls: Vec<String>,
    lease: Option<Value>,
    /// The OpenAPI document of our group.
    schemas: Option<Value>,
}

#[derive(Clone)]
struct Shared(Arc<(Mutex<State>, Condvar)>);

pub(crate) struct Server {
    shared: Shared,
    address: SocketAddr,
}

impl Server {
    pub(crate) fn start(held: Held) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { held, calls: Vec::new(), lease: None, schemas: None };
        let shared = Shared(Arc::new((Mutex::new(state), Condvar::new())));
        let accepting = shared.clone();
        // Both kinds of thread end with the test's process; none of them holds what outlives it.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = accepting.clone();
                std::thread::spawn(move || shared.serve(&stream));
            }
        });
        Self { shared, address }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn release(&self) {
        self.shared.change(|state| state.held = Held::Nothing);
    }

    /// Serves the OpenAPI document with these schemas.
    pub(crate) fn set_schemas(&self, schemas: Value) {
        self.shared.change(|state| state.schemas = Some(schemas));
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.shared.0.0.lock().unwrap().calls.clone()
    }

    /// The Lease as written last.
    pub(crate) fn lease(&self) -> Value {
        self.shared.0.0.lock().unwrap().lease.clone().expect("a lease")
    }

    pub(crate) fn wait_for_call(&self, call: &str) {
        self.shared.wait_while(|state| !state.calls.iter().any(|made| made == call));
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let (state, changed) = &*self.0;
        change(&mut state.lock().unwrap());
        changed.notify_all();
    }

    fn wait_while(&self, waiting: impl Fn(&State) -> bool) {
        let (state, changed) = &*self.0;
        let locked = state.lock().unwrap();
        let (_state, result) =
            changed.wait_timeout_while(locked, Duration::from_secs(30), |state| waiting(state)).unwrap();
        assert!(!result.timed_out(), "it did not come");
    }

    /// One call for each connection.
    fn serve(&self, mut stream: &TcpStream) {
        let Some((method, target, body)) = read(stream) else { return };
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let (status, answer) = self.answer(&method, path, &body);
        self.change(|state| state.calls.push(format!("{method} {path}")));
        if query.contains("watch=") {
            // Silence, until the other side hangs up.
            drop(stream.read(&mut [0]));
            return;
        }
        if path.ends_with('s') && method == "GET" {
            self.wait_while(|state| state.held == Held::Lists);
        }
        let text = answer.to_string();
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n");
        // A caller that has ended meanwhile needs no answer.
        drop(write!(stream, "{head}Content-Length: {}\r\n\r\n{text}", text.len()));
    }

    fn answer(&self, method: &str, path: &str, body: &[u8]) -> (&'static str, Value) {
        if path.contains("/leases") {
            return self.lease_call(method, body);
        }
        if path.starts_with("/openapi/") {
            let schemas = self.0.0.lock().unwrap().schemas.clone();
            return ("200 OK", json!({"components": {"schemas": schemas}}));
        }
        ("200 OK", json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}))
    }

    fn lease_call(&self, method: &str, body: &[u8]) -> (&'static str, Value) {
        if method != "GET" {
            let mut lease: Value = serde_json::from_slice(body).unwrap();
            lease["metadata"]["resourceVersion"] = json!("7");
            self.change(|state| state.lease = Some(lease.clone()));
            return (if method == "POST" { "201 Created" } else { "200 OK" }, lease);
        }
        match self.0.0.lock().unwrap().lease.clone() {
            Some(lease) => ("200 OK", lease),
            None => (
                "404 Not Found",
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}),
            ),
        }
    }
}

/// Method, target and body of a request; `None` for a connection without one.
fn read(stream: &TcpStream) -> Option<(String, String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim_end().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((method, target, body))
}
