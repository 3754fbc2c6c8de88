//! Suggestions for texts that are not a valid address or network.
//!
//! The parser calls this module only after parsing has failed. A suggestion never makes an invalid text valid. It is only
//! part of the error, and only if the suggested text parses.

use std::net::{IpAddr, Ipv4Addr};

use super::{AddrRange, Cidr, ParseError, parse_addr};

/// Length of the longest text that gets a suggestion, in bytes.
const LONGEST: usize = 128;

/// The suggestion for a text that is not a valid address.
pub(super) fn of_address(text: &str) -> Option<ParseError> {
    if text.len() > LONGEST {
        return None;
    }
    if let Some((first, last)) = range_in(text) {
        return Some(ParseError::Range(first, last));
    }
    candidates(text).find_map(|(what, meant)| {
        let meant = meant.parse::<IpAddr>().ok()?;
        Some(ParseError::Meant { what, write: meant.to_string() })
    })
}

/// The suggestion for a text that is not a valid network.
pub(super) fn of_network(text: &str) -> Option<ParseError> {
    if text.len() > LONGEST {
        return None;
    }
    if let Some((first, last)) = range_in(text) {
        let range = AddrRange::new(first, last)?;
        let network = Cidr::enclosing(&range);
        let what = if network.range() == range { "is a range" } else { "is a range, and the least network with it" };
        return Some(ParseError::Meant { what, write: network.to_string() });
    }
    if let Some(found) = with_mask(text) {
        return Some(found);
    }
    let (addr, len) = text.split_once('/')?;
    let slips = candidates(addr).chain(short(addr).map(|meant| ("has less than four parts", meant)));
    slips.chain(squeezed(text).map(|meant| ("has blanks in it", meant))).find_map(|(what, meant)| {
        let text = if meant.contains('/') { meant } else { format!("{meant}/{}", len.trim()) };
        Cidr::parse(&text).is_ok().then_some(ParseError::Meant { what, write: text })
    })
}

/// Possible corrections of a text, each with the error that it corrects.
fn candidates(text: &str) -> impl Iterator<Item = (&'static str, String)> {
    let zone =
        text.split_once('%').map(|(addr, _)| ("has a zone, which means something on one host only", addr.to_owned()));
    let bare = text.trim_matches(['[', ']', '"', '\'', '(', ')', '<', '>']);
    let bare = (bare != text).then(|| ("has brackets or quotes around it", bare.to_owned()));
    let port = text.rsplit_once(':').filter(|(addr, _)| addr.parse::<Ipv4Addr>().is_ok());
    let port = port.map(|(addr, _)| ("has a port", addr.to_owned()));
    let squeezed = squeezed(text).map(|meant| ("has blanks in it", meant));
    let zeros =
        without_leading_zeros(text).map(|meant| ("has leading zeros, which some programs read as octal", meant));
    [zone, bare, port, squeezed, zeros].into_iter().flatten()
}

fn squeezed(text: &str) -> Option<String> {
    let squeezed: String = text.split_whitespace().collect();
    (squeezed != text).then_some(squeezed)
}

/// `10.000.0.01` without its leading zeros, read as decimal.
fn without_leading_zeros(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split('.').collect();
    let is_dotted =
        parts.len() == 4 && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    let plain = parts.iter().map(|part| match part.trim_start_matches('0') {
        "" => "0",
        rest => rest,
    });
    is_dotted.then(|| plain.collect::<Vec<_>>().join(".")).filter(|plain| plain != text)
}

/// `10.1`, a short form of a network, padded with zeros to four parts.
fn short(addr: &str) -> Option<String> {
    let addr = addr.trim_end_matches('.');
    let parts = addr.split('.').count();
    (parts < 4 && addr.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
        .then(|| format!("{addr}{}", ".0".repeat(4 - parts)))
}

/// The suggestion for `10.0.0.0/255.255.255.0`. A mask with holes is not a valid mask and gets none.
fn with_mask(text: &str) -> Option<ParseError> {
    let (addr, mask) = text.split_once('/')?;
    let (addr, mask) = (addr.trim().parse::<Ipv4Addr>().ok()?, mask.trim().parse::<Ipv4Addr>().ok()?.to_bits());
    let len = mask.leading_ones();
    (len == mask.count_ones()).then(|| ParseError::Meant { what: "has a mask", write: format!("{addr}/{len}") })
}

/// The first and the last address of `10.0.0.1-10.0.0.9`.
fn range_in(text: &str) -> Option<(IpAddr, IpAddr)> {
    let (first, last) = text.split_once('-')?;
    Some((parse_addr(first.trim()).ok()?, parse_addr(last.trim()).ok()?))
}
