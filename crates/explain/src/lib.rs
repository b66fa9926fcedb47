//! Where the time and the money of a call went, in words: trace records in, plain data out that serializes and renders.
//! Knows no files, no HTTP, no clock and no engine, and decides nothing: it only reads what was recorded.
//!
//! | ask | with | get |
//! |---|---|---|
//! | why was it slow, refused, a miss? | [`explain`] and [`Usual`], which comparable calls are | [`Explanation`] |
//! | why was it dear? | [`why_cost`] | [`CostExplanation`] |
//! | does a lever help? | [`trial`], with what an engine took | [`Trial`] |
//! | why was this one slower than that one? | [`diff`] | [`Difference`] |
//!
//! Everything that is said in words stands in `words`, and what a refusal means in the table of refusals (`headrace_domain::Code`).

mod cost;
mod cut;
mod diff;
mod errors;
mod explanation;
mod levers;
mod reference;
mod render;
mod shape;
mod stored;
mod term;
mod trial;
mod usual;
mod words;

pub use cost::{CostExplanation, CostLine, why_cost};
pub use diff::{DiffTerm, Difference, Fact, diff};
pub use errors::{AdminErrorPage, ErrorPage, Who};
pub use explanation::{Compared, Explanation, Refusal, Term, Try, explain};
pub use levers::{Lever, LeverName};
pub use reference::ReferenceRow;
pub use shape::CallShape;
pub use stored::explain_beside;
pub use term::{Party, TermName};
pub use trial::{Ran, Trial, shape_with, trial};
pub use usual::{MOST_COMPARED, Usual};
