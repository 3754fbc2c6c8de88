//! Turns the `.proto` files into Rust with a compiler written in Rust, so that a build needs no `protoc`.

use std::path::Path;

const PROTO_ROOT: &str = "proto";
const PROTO_FILES: [&str; 2] = ["nvidia/ipam/node/v1/node.proto", "nvidia/ipam/node/v1/garbage.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={PROTO_ROOT}");
    let files = PROTO_FILES.map(|file| Path::new(PROTO_ROOT).join(file));
    let descriptors = protox::compile(files, [PROTO_ROOT])?;
    tonic_prost_build::configure()
        .build_client(std::env::var_os("CARGO_FEATURE_CLIENT").is_some())
        .build_server(std::env::var_os("CARGO_FEATURE_SERVER").is_some())
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
