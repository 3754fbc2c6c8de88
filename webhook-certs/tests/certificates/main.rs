//! Certificates as servers meet them: every way to write a pair down, every way to spoil one, and the swap of a mounted
//! Secret under handshakes of real TLS clients.

#![expect(clippy::unwrap_used, clippy::panic, reason = "what a test needs and lacks is its failure")]

mod handshakes;
mod mounted;
mod pairs;
mod pki;
mod telling;
mod tls;
mod watching;
