//! See `ipam_e2e::fuzz`, target `node`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (ipam_e2e::fuzz::target("node").run)(data));
