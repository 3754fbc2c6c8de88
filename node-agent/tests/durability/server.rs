//! An API server that knows one IPAMNode: lists show it, watches stay open without an event, patches are accepted.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::common::blue;

/// Starts it; it ends with the test's process.
pub(crate) fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(&stream));
        }
    });
    address
}

/// One call for each connection. A caller that has ended meanwhile needs no answer.
fn serve(mut stream: &TcpStream) {
    let Some(target) = request(stream) else { return };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
    if target.contains("watch=") {
        drop(write!(stream, "{head}\r\n"));
        drop(stream.read(&mut [0]));
        return;
    }
    let text = answer(&target).to_string();
    drop(write!(stream, "{head}Content-Length: {}\r\n\r\n{text}", text.len()));
}

/// Reads a request with its body; the target.
fn request(stream: &TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    first.split(' ').nth(1).map(str::to_owned)
}

fn answer(target: &str) -> Value {
    let object = json!({
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPAMNode",
        "metadata": {"name": "node1", "namespace": "kube-system", "uid": "u", "generation": 1, "resourceVersion": "7"},
        "spec": {"pools": [blue()]},
    });
    if target.contains("/ipamnodes/") {
        return object;
    }
    let items = if target.contains("/ipamnodes") { vec![object] } else { Vec::new() };
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "7"}, "items": items})
}
