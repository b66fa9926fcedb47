//! The catalogue of a gateway: everything that may change while calls run, and how each model is addressed. Knows no
//! call and no file.

mod backend;
mod catalog;
mod names;
mod notices;
mod policy;
mod similar_name;

pub use backend::{Backend, EncoderOutput, InputKinds, MessageBackend, TokenBackend, VectorBackend};
pub use catalog::{Catalog, CatalogOffer, GatewayError, ServedModel};
pub use names::{ModelStatus, NameFault, NameRules, name_faults};
pub use notices::{RetirementNotice, alias_header};
pub use policy::{
    ControlTokenPolicy, ModelPolicy, OffForm, OnBreak, PastAnswers, ThinkingPolicy, ToolsOrder,
};
pub use similar_name::similar_name;
