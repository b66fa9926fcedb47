//! Headrace: the whole path of an LLM API call in one binary.

fn main() {}
