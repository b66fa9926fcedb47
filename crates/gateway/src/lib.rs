//! The stage list and the typestate of a request: from the first bytes to a settled answer. Knows tokens, money and
//! limits. Knows nothing of sockets, kernels, KV blocks or weights.

mod background;
mod call_service;
mod call_task;
mod callers;
mod config;
mod entry;
mod features;
mod funds;
mod gateway;
mod idempotent_request;
mod judging;
mod kept_request;
mod key_check;
mod keyed_background;
mod look_up;
mod questions;
mod refusal;
mod request_context;
mod resource_requests;
mod runner;
mod settle;
mod socket_sessions;
mod stages;
mod state;
mod task;
mod unrepeated;

/// The test harness of `tests/path`, for unit tests that need private access to a call.
#[cfg(test)]
#[path = "../tests/path/world.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod world;
#[cfg(test)]
extern crate self as headrace_gateway;

pub use call_service::GatewayAdmission;
pub use config::{
    GatewayConfig, GatewayParts, IdempotencyConfig, MadeReceipt, ReceiptUnavailable, Stored, StoredTrace,
    TraceLookup,
};
pub use gateway::Gateway;
