//! What an answer must look like, compiled: a form and a vocabulary become masks over token ids, and the ids that must come.
//! Beside it the checks of schemas (`strict`), and of finished answers (`checked`).
//! Must not know engines, requests, or who asked. The arithmetic of grammars is llguidance's.

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

pub use bounds::Bounds;
pub use compiler::{Compiler, FormOwner};
pub use fault::GrammarFault;
pub use gbnf::calls_as_gbnf;
pub use quoted::within_json;
pub use regex::in_lark;
pub use tools::{loose_tool_schema, tool_schema};
