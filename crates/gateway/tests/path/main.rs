//! The path as a whole, with a scripted engine, a journal in memory and real keys, limits, ledger and template.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod arrives;
mod asks;
mod canaries;
mod changes;
mod continues;
mod counts;
mod cut_off;
mod delays;
mod encodes;
mod ends;
mod explains;
mod extras;
mod fallbacks;
mod forms;
mod holds;
mod inside;
mod kept;
mod memory;
mod moves;
mod named;
mod notices;
mod overlong;
mod panics;
mod parts;
mod passed_responses;
mod pins;
mod places;
mod prices;
mod races;
mod refusals;
mod regions;
mod relays;
mod responses;
mod resumes;
mod revoked;
mod routes;
mod shadows;
mod swaps;
mod thoughts;
mod times;
mod told;
mod users;
mod world;
