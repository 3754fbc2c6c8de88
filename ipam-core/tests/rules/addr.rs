//! Reading and reckoning with addresses.

use ipam_core::addr::{HostBits, number, parse_addr};
use ipam_core::{AddrRange, Cidr, Family};
use proptest::prelude::*;
use rstest::rstest;

fn cidr(text: &str) -> Cidr {
    Cidr::parse(text).unwrap().0
}

#[rstest]
#[case("192.168.0.1")]
#[case("0.0.0.0")]
#[case("255.255.255.255")]
#[case("fd00::1")]
#[case("::")]
#[case("::1.2.3.4")]
fn an_address_reads_as_it_is_written(#[case] text: &str) {
    assert_eq!(parse_addr(text).unwrap(), text.parse::<std::net::IpAddr>().unwrap());
}

#[rstest]
#[case("", "must not be empty")]
#[case(" ", "must not be empty")]
#[case(" 10.0.0.1", "has blanks around it; write \"10.0.0.1\"")]
#[case("10.0.0.1\n", "has blanks around it; write \"10.0.0.1\"")]
#[case("10.0.0.1/24", "is a network; write the address alone: \"10.0.0.1\"")]
#[case("::ffff:10.0.0.1", "is an IPv4-mapped IPv6 address; write the IPv4 address 10.0.0.1")]
#[case("::ffff:10.0.0.1/120", "is an IPv4-mapped IPv6 address; write the IPv4 address 10.0.0.1")]
#[case("10.0.0.01", "has leading zeros, which some programs read as octal; write \"10.0.0.1\"")]
#[case("010.000.000.000", "has leading zeros, which some programs read as octal; write \"10.0.0.0\"")]
#[case("10.0.0.0256", "is not an IP address such as")]
#[case("10.0. 0.1", "has blanks in it; write \"10.0.0.1\"")]
#[case("10.0.0.1-10.0.0.9", "is a range; write one address, \"10.0.0.1\" or \"10.0.0.9\"")]
#[case("fd00::1 - fd00::9", "is a range; write one address, \"fd00::1\" or \"fd00::9\"")]
#[case("[fd00::1]", "has brackets or quotes around it; write \"fd00::1\"")]
#[case("10.0.0.1:53", "has a port; write \"10.0.0.1\"")]
#[case("10.0.0", "is not an IP address such as")]
#[case("10.0.0.256", "is not an IP address such as")]
#[case("fe80::1%eth0", "has a zone, which means something on one host only; write \"fe80::1\"")]
#[case("-", "is not an IP address such as")]
#[case("host/24", "is not an IP address such as")]
fn an_address_that_is_none_is_told_what_would_be_right(#[case] text: &str, #[case] message: &str) {
    let error = parse_addr(text).unwrap_err().to_string();
    assert!(error.starts_with(message), "{error}");
}

#[rstest]
#[case("", "must not be empty")]
#[case("10.0.0.0/8 ", "has blanks around it; write \"10.0.0.0/8\"")]
#[case("10.0.0.0", "has no prefix length; write for example \"10.0.0.0/32\"")]
#[case("fd00::", "has no prefix length; write for example \"fd00::/128\"")]
#[case("10.0.0.0/33", "has a bad prefix length; IPv4 takes 0 to 32")]
#[case("fd00::/129", "has a bad prefix length; IPv6 takes 0 to 128")]
#[case("10.0.0.0/+8", "has a bad prefix length")]
#[case("10.0.0.0/08", "has a bad prefix length")]
#[case("10.0.0.0/", "has a bad prefix length")]
#[case("10.0.0.0/-1", "has a bad prefix length")]
#[case("10.0.0.0/255.0.0.0", "has a mask; write \"10.0.0.0/8\"")]
#[case("10.0.0.0/0.0.0.0", "has a mask; write \"10.0.0.0/0\"")]
#[case("10.0.0.0/255.0.255.0", "has a bad prefix length; IPv4 takes 0 to 32")]
#[case("10.0.0.0-10.0.0.255", "is a range; write \"10.0.0.0/24\"")]
#[case("10.0.0.1-10.0.0.254", "is a range, and the least network with it; write \"10.0.0.0/24\"")]
#[case("010.0.0.0/8", "has leading zeros, which some programs read as octal; write \"10.0.0.0/8\"")]
#[case("10.0.0.0 / 8", "has blanks in it; write \"10.0.0.0/8\"")]
#[case("10.0.0.0/ 8", "has blanks in it; write \"10.0.0.0/8\"")]
#[case("[fd00::]/8", "has brackets or quotes around it; write \"fd00::/8\"")]
#[case("fe80::1%eth0/64", "has a zone, which means something on one host only; write \"fe80::1/64\"")]
#[case("10/8", "has less than four parts; write \"10.0.0.0/8\"")]
#[case("172.16/99", "is not a network such as")]
#[case("10.0.0.0/99999999999999999999", "has a bad prefix length")]
#[case("::ffff:10.0.0.0/104", "is an IPv4-mapped IPv6 address")]
#[case("::ffff:10.0.0.0", "is an IPv4-mapped IPv6 address")]
#[case("network", "is not a network such as")]
#[case("10.0.0/8", "has less than four parts; write \"10.0.0.0/8\"")]
fn a_network_that_is_none_is_told_what_would_be_right(#[case] text: &str, #[case] message: &str) {
    let error = Cidr::parse(text).unwrap_err().to_string();
    assert!(error.starts_with(message), "{error}");
}

#[rstest]
#[case("192.168.0.0/16", "192.168.0.0/16", HostBits::Zero)]
#[case("192.168.0.5/16", "192.168.0.0/16", HostBits::Set)]
#[case("10.0.0.1/32", "10.0.0.1/32", HostBits::Zero)]
#[case("1.2.3.4/0", "0.0.0.0/0", HostBits::Set)]
#[case("fd00::1/64", "fd00::/64", HostBits::Set)]
fn bits_behind_the_prefix_are_dropped_and_reported(
    #[case] text: &str,
    #[case] masked: &str,
    #[case] host_bits: HostBits,
) {
    let (cidr, seen) = Cidr::parse(text).unwrap();
    assert_eq!((cidr.to_string().as_str(), seen), (masked, host_bits));
}

#[rstest]
#[case("10.0.0.0/24", "10.0.0.1-10.0.0.254")]
#[case("10.0.0.0/30", "10.0.0.1-10.0.0.2")]
#[case("10.0.0.0/31", "10.0.0.0-10.0.0.1")]
#[case("10.0.0.7/32", "10.0.0.7-10.0.0.7")]
#[case("0.0.0.0/0", "0.0.0.1-255.255.255.254")]
#[case("fd00::/120", "fd00::1-fd00::ff")]
#[case("fd00::/126", "fd00::1-fd00::3")]
#[case("fd00::/127", "fd00::-fd00::1")]
#[case("fd00::5/128", "fd00::5-fd00::5")]
#[case("::/0", "::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")]
fn hosts_leave_out_the_network_address_and_the_ipv4_broadcast(#[case] network: &str, #[case] hosts: &str) {
    assert_eq!(cidr(network).hosts().to_string(), hosts);
}

#[rstest]
#[case("10.0.0.0", "10.0.0.255", "10.0.0.0/24")]
#[case("10.0.0.1", "10.0.0.254", "10.0.0.0/24")]
#[case("10.0.0.7", "10.0.0.7", "10.0.0.7/32")]
#[case("10.0.0.255", "10.0.1.0", "10.0.0.0/23")]
#[case("0.0.0.0", "255.255.255.255", "0.0.0.0/0")]
#[case("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0")]
#[case("fd00::", "fd00::1", "fd00::/127")]
fn the_enclosing_network_is_the_smallest_that_holds_both_ends(
    #[case] first: &str,
    #[case] last: &str,
    #[case] network: &str,
) {
    let range = AddrRange::new(parse_addr(first).unwrap(), parse_addr(last).unwrap()).unwrap();
    assert_eq!(Cidr::enclosing(&range).to_string(), network);
}

#[test]
fn ranges_of_two_families_never_meet() {
    let v4 = AddrRange::from_numbers(Family::V4, 0, 10).unwrap();
    let v6 = AddrRange::from_numbers(Family::V6, 0, 10).unwrap();
    assert!(!v4.overlaps(&v6) && !v4.contains_range(&v6) && !v4.contains(v6.first()));
    assert_eq!(AddrRange::new(v4.first(), v6.last()), None);
}

#[test]
fn a_range_is_never_empty_nor_larger_than_its_family() {
    assert_eq!(AddrRange::from_numbers(Family::V4, 2, 1), None);
    assert_eq!(AddrRange::from_numbers(Family::V4, 0, u128::from(u32::MAX) + 1), None);
    assert_eq!(AddrRange::from_numbers(Family::V6, 0, u128::MAX).unwrap().size(), u128::MAX);
    assert_eq!(AddrRange::from_numbers(Family::V4, 5, 5).unwrap().size(), 1);
}

proptest! {
    #[test]
    fn reading_text_never_panics(text in "\\PC*", numbers in "[0-9a-f:./ ]{0,40}") {
        for text in [text, numbers] {
            let _ = parse_addr(&text);
            let _ = Cidr::parse(&text);
        }
    }

    #[test]
    fn an_address_survives_text_and_number(bits: u128, is_v4: bool) {
        let family = if is_v4 { Family::V4 } else { Family::V6 };
        let addr = family.addr(bits);
        prop_assert_eq!(family.addr(number(addr)), addr);
        // Mapped addresses are refused on purpose.
        if !matches!(addr, std::net::IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
            prop_assert_eq!(parse_addr(&addr.to_string()).unwrap(), addr);
        }
    }

    #[test]
    fn a_network_encloses_itself_and_its_hosts(bits: u128, is_v4: bool, len in 0_u8..=128) {
        let family = if is_v4 { Family::V4 } else { Family::V6 };
        let network = Cidr::containing(family.addr(bits), len.min(family.bits())).unwrap();
        prop_assert_eq!(Cidr::enclosing(&network.range()), network);
        prop_assert!(network.range().contains_range(&network.hosts()));
        prop_assert!(network.contains(family.addr(bits)));
    }
}
