//! A seeded world for tests, simulations and benchmarks: a model that is a pure function of the contents of its KV
//! blocks, a small vocabulary, and an engine that answers at once. Knows nothing of sockets or weights.

mod cache;
mod forward;
mod hash;
mod scripted_engine;
mod toy_grammar;
mod vocabulary;

pub use forward::{Computed, Fault, Faults, ScriptedForward, Trigger};
pub use scripted_engine::ScriptedEngine;
pub use toy_grammar::ToyGrammar;
pub use vocabulary::ToyVocabulary;
