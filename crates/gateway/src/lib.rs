//! The stage list and the typestate of a request: from the first bytes to a settled answer. Knows tokens, money and
//! limits. Knows nothing of sockets, kernels, KV blocks or weights.

mod answer;
mod answer_origins;
mod backend;
mod batch_line;
mod batches;
mod call_service;
mod call_task;
mod canary;
mod catalog;
mod config;
mod delivery;
mod gateway;
mod generated_ids;
mod hold_keeper;
mod in_flight;
mod look_up;
mod memory;
mod names;
mod notices;
mod objects;
mod org_slots;
mod policy;
mod questions;
mod rates;
mod rejection;
mod render_gate;
mod request_context;
mod routes;
mod shadows;
mod socket_sessions;
mod stages;
mod state;
mod stored_objects;
mod unrepeated;

/// The test harness of `tests/path`, for unit tests that need private access to a call.
#[cfg(test)]
#[path = "../tests/path/world.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod world;
#[cfg(test)]
extern crate self as headrace_gateway;

pub use answer::{Answer, AnswerBody};
pub use backend::{Backend, EncoderOutput, InputKinds, MessageBackend, TokenBackend, VectorBackend};
pub use call_service::GatewayAdmission;
pub use canary::{CanaryNews, CanaryRollback, CanarySpec, CanaryView};
pub use catalog::{Catalog, CatalogOffer, GatewayError, ServedModel};
pub use config::{GatewayConfig, GatewayParts, Stored, StoredTrace, TraceLookup};
pub use delivery::Delivery;
pub use gateway::Gateway;
pub use in_flight::InFlightCall;
pub use memory::MemoryBounds;
pub use names::{ModelStatus, NameFault, NameRules, name_faults};
pub use notices::RetirementNotice;
pub use policy::{
    ControlTokenPolicy, ModelPolicy, OffForm, OnBreak, PastAnswers, ThinkingPolicy, ToolsOrder,
};
pub use routes::{FallbackModels, ModelRoute, RouteArm, StickyBy};
pub use shadows::{
    SHADOW_KEY, ShadowBudget, ShadowFigures, ShadowSpec, ShadowSpend, ShadowSpending, ShadowSpent,
};
