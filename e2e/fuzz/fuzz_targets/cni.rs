//! See `ipam_e2e::fuzz`, target `cni`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (ipam_e2e::fuzz::target("cni").run)(data));
