//! Parses a spec into a valid [`Pool`], or finds all its errors (behaviour.md §10).
//!
//! Each rule uses only the values it needs: an error in one field must never hide an error in another. Errors are in the
//! order of the fields in the spec.

mod cidr;
mod common;
mod ip;

use std::fmt::Display;
use std::net::IpAddr;

use crate::addr::{HostBits, ParseError, parse_addr};
use crate::names::is_cni_name;
use crate::quoted::Quoted;
use crate::spec::PoolSpec;
use crate::{Cidr, Pool, Reason, Violation};

impl Pool {
    /// Checks a whole spec. `name` is the pool's `metadata.name`.
    ///
    /// # Errors
    /// All violations, with full field paths (`metadata.name`, `spec.…`), in the order of the fields in the spec.
    pub fn parse(name: &str, spec: &PoolSpec) -> Result<Self, Vec<Violation>> {
        let mut findings = Findings::default();
        check_name(name, &mut findings);
        let pool = match spec {
            PoolSpec::Ip(spec) => ip::parse(name, spec, &mut findings),
            PoolSpec::Cidr(spec) => cidr::parse(name, spec, &mut findings),
        };
        match pool {
            Some(pool) if findings.0.is_empty() => Ok(pool),
            _ => Err(findings.0),
        }
    }
}

/// Checks the name, which is also the name of a CNI network (CNI spec, section 1).
fn check_name(name: &str, findings: &mut Findings) {
    if name.is_empty() {
        findings.add("metadata.name", Reason::Required, "must not be empty");
    } else if !is_cni_name(name) {
        let message = format!(
            "{} is no name of a network: write letters, digits, \"_\", \".\" and \"-\", a letter or digit first",
            Quoted(name)
        );
        findings.add("metadata.name", Reason::Malformed, message);
    }
}

/// The errors found so far.
#[derive(Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, field: impl Into<String>, reason: Reason, message: impl Into<String>) {
        self.0.push(Violation::new(field, reason, message));
    }

    /// Adds the error that `text` is not an address or network.
    fn add_unread(&mut self, field: &dyn Display, text: &str, error: &ParseError) {
        let field = field.to_string();
        match error {
            ParseError::Empty => self.add(field, Reason::Required, error.to_string()),
            ParseError::PrefixLength { .. } => self.add(field, Reason::OutOfRange, format!("{} {error}", Quoted(text))),
            _ => self.add(field, Reason::Malformed, format!("{} {error}", Quoted(text))),
        }
    }

    /// Parses an address.
    fn addr(&mut self, field: &dyn Display, text: &str) -> Option<IpAddr> {
        parse_addr(text).map_err(|error| self.add_unread(field, text, &error)).ok()
    }

    /// Parses a network. The caller decides whether host bits are an error.
    fn network(&mut self, field: &dyn Display, text: &str) -> Option<(Cidr, HostBits)> {
        Cidr::parse(text).map_err(|error| self.add_unread(field, text, &error)).ok()
    }

    /// Parses a network that must not have host bits. If it has, that is an error, but the network is still returned to
    /// check other values against it.
    fn exact_network(&mut self, field: &dyn Display, text: &str) -> Option<Cidr> {
        let (network, host_bits) = self.network(field, text)?;
        if host_bits == HostBits::Set {
            let message = format!("{} has bits set behind the prefix length; write \"{network}\"", Quoted(text));
            self.add(field.to_string(), Reason::HostBits, message);
        }
        Some(network)
    }

    /// Parses an address that must be in `network`, as far as that is known. `called` names the network in the message.
    /// The field is formatted only if there is an error: to format ten thousand fields costs more than to check them.
    fn addr_in(&mut self, field: &dyn Display, text: &str, network: Option<&Cidr>, called: &str) -> Option<IpAddr> {
        let addr = self.addr(field, text)?;
        if let Some(network) = network.filter(|network| !network.contains(addr)) {
            self.add(field.to_string(), Reason::OutsidePool, format!("\"{addr}\" is not in the {called} {network}"));
        }
        Some(addr)
    }
}

/// The value of an optional text field. An empty text counts as absent.
fn given(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}
