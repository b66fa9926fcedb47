//! The room through its public face, against servers of this machine's.

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
