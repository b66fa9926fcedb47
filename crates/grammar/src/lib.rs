//! Compiles response formats ([`headrace_domain::Form`]) for a vocabulary. A compiled form yields masks over token ids,
//! and the ids that must come. Also checks schemas ([`strict`]) and validates finished answers ([`checked`]). Must not
//! know engines, requests, or callers. The grammar algorithms are llguidance's.

mod automaton;
mod bounds;
mod cache;
pub mod checked;
mod compiler;
mod effort;
mod fault;
mod forms;
mod gbnf;
mod numbers;
mod places;
mod quoted;
mod regex;
mod schema;
mod state;
pub mod strict;
mod thought;
mod tools;
mod vocabulary;
mod watch;

pub use bounds::FormLimits;
pub use compiler::{FormCompiler, FormOwner};
pub use fault::GrammarFault;
pub use gbnf::calls_as_gbnf;
pub use quoted::within_json;
pub use regex::in_lark;
pub use tools::{loose_tool_schema, tool_schema};
