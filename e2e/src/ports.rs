//! Free TCP ports on loopback for servers that cannot tell us the port they took. A port is ours by a lock file while the
//! server lives, so parallel harnesses never pick the same, and lies below the kernel's ephemeral range, so that no outgoing
//! connection takes it in the moment between the choice and the server's own bind.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};

use crate::assets;
use crate::lock::Lock;

const RANGE: std::ops::Range<u16> = 21_000..31_000;

/// A TCP port on 127.0.0.1 kept from other harnesses until dropped.
pub struct Port {
    number: u16,
    _lock: Lock,
}

impl Port {
    /// The first port, in an order that differs by process, which nobody listens on and no other harness keeps.
    pub fn reserve() -> Result<Self> {
        let directory = assets::cache::base()?.join("ports");
        let size = u32::from(RANGE.end - RANGE.start);
        let first = std::process::id().wrapping_mul(31) % size;
        for step in 0..size {
            let number = RANGE.start + u16::try_from((first + step) % size)?;
            let Some(lock) = Lock::try_take(&directory.join(number.to_string()))? else { continue };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _lock: lock });
            }
        }
        bail!("no free TCP port on 127.0.0.1 in {}-{}", RANGE.start, RANGE.end - 1)
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_reservations_never_share_a_port_and_both_can_be_bound() {
        let (a, b) = (Port::reserve().unwrap(), Port::reserve().unwrap());
        assert_ne!(a.number(), b.number());
        for port in [&a, &b] {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).unwrap();
        }
    }
}
