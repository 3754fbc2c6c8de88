//! Our own binaries.
