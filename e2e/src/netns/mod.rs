//! Nodes and pods as real network namespaces.
