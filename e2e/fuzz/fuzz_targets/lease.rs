//! See `ipam_e2e::fuzz`, target `lease`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (ipam_e2e::fuzz::target("lease").run)(data));
