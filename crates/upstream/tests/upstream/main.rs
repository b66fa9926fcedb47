//! Tests of the crate's public API against local servers.

#![cfg(test)]

mod bounds;
mod caches;
mod calls;
mod connections;
mod ends;
mod faults;
mod forms;
mod kinds;
mod loads;
mod probes;
mod publisher;
mod queue;
mod tls;
mod tokens;
mod workers;
