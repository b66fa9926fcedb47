//! The stage list and the typestate of a request: from the first bytes to a settled answer. Knows tokens, money and
//! limits. Knows nothing of sockets, kernels, KV blocks or weights.

mod answer;
mod batch_line;
mod batches;
mod beat;
mod board;
mod canary;
mod catalog;
mod config;
mod delivery;
mod dossier;
mod front;
mod gateway;
mod kept_ids;
mod lane;
mod look_up;
mod memory;
mod names;
mod notices;
mod objects;
mod pasts;
mod places;
mod policy;
mod pump;
mod questions;
mod rates;
mod refused;
mod routes;
mod shadows;
mod shelf;
mod stages;
mod state;
mod turns;
mod unrepeated;

/// The test harness of `tests/path`, for unit tests that need private access to a call.
#[cfg(test)]
#[path = "../tests/path/world.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod world;
#[cfg(test)]
extern crate self as headrace_gateway;

pub use answer::{Answer, AnswerBody};
pub use board::InFlightCall;
pub use canary::{CanaryNews, CanaryRollback, CanarySpec, CanaryView};
pub use catalog::{Catalog, CatalogOffer, GatewayError, ServedModel};
pub use config::{GatewayConfig, GatewayParts, Stored, StoredTrace, TraceLookup};
pub use delivery::Delivery;
pub use gateway::Gateway;
pub use lane::{Backend, EncoderOutput, InputKinds, MessageBackend, TokenBackend, VectorBackend};
pub use memory::MemoryBounds;
pub use names::{ModelStatus, NameFault, NameRules, name_faults};
pub use notices::RetirementNotice;
pub use objects::ObjectRequest;
pub use objects::newest::SocketSession;
pub use policy::{
    ControlTokenPolicy, ModelPolicy, OffForm, OnBreak, PastAnswers, ThinkingPolicy, ToolsOrder,
};
pub use questions::AdmittedQuestion;
pub use routes::{FallbackModels, ModelRoute, RouteArm, StickyBy};
pub use shadows::{
    SHADOW_KEY, ShadowBudget, ShadowFigures, ShadowSpec, ShadowSpend, ShadowSpending, ShadowSpent,
};
pub use stages::EnteredCall;
