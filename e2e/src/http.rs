//! One plain HTTP request, for probes and metrics of our own programs and for etcd: no TLS, no redirects, the answer read to its end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

const TIMEOUT: Duration = Duration::from_secs(5);

/// GET of `path` from `address` (`HOST:PORT`): status code and body.
///
/// # Errors
/// When there is no connection or the answer is not HTTP.
pub fn get(address: &str, path: &str) -> Result<(u16, String)> {
    send(address, path, &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n"))
}

/// POST of JSON to `path` at `address` (`HOST:PORT`): status code and body.
///
/// # Errors
/// When there is no connection or the answer is not HTTP.
pub fn post(address: &str, path: &str, json: &str) -> Result<(u16, String)> {
    let length = json.len();
    let head = format!("POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    send(address, path, &format!("{head}Content-Length: {length}\r\n\r\n{json}"))
}

fn send(address: &str, path: &str, request: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    // HTTP/1.0: the server closes the connection at the end, and does not answer in chunks.
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).with_context(|| format!("no answer from {address}{path}"))?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of the HTTP headers")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no HTTP status code")?;
    Ok((code, body.to_owned()))
}

/// An error unless the answer is 200.
///
/// # Errors
/// As said, with the body as the reason.
pub fn ok(address: &str, path: &str) -> Result<()> {
    let (code, body) = get(address, path)?;
    ensure!(code == 200, "{address}{path} answers {code}: {}", body.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn status_and_body_are_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
                assert_eq!(lines.next().unwrap(), "GET /readyz HTTP/1.0");
                lines.find(String::is_empty).unwrap();
                stream.write_all(b"HTTP/1.0 503 Service Unavailable\r\nA: b\r\n\r\nnot yet\n").unwrap();
            }
        });
        assert_eq!(get(&address, "/readyz").unwrap(), (503, "not yet\n".to_owned()));
        assert!(ok(&address, "/readyz").unwrap_err().to_string().contains("not yet"));
        server.join().unwrap();
    }
}
