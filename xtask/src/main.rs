//! The test command, the crate-graph check, generated artefacts.

fn main() {}
