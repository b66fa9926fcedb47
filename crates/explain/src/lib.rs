//! Explains where the time and the money of a call went, in words. Takes trace records, and returns plain data that
//! serializes and renders. Knows no files, no HTTP, no clock and no engine. It decides nothing, and only reads what was
//! recorded.
//!
//! | question | function and input | result |
//! |---|---|---|
//! | why was it slow, refused, or a cache miss? | [`explain`] and [`Usual`], the comparable calls | [`Explanation`] |
//! | why was it expensive? | [`why_cost`] | [`CostExplanation`] |
//! | does a lever help? | [`trial`], with two runs on an engine | [`Trial`] |
//! | why was this one slower than that one? | [`diff`] | [`Difference`] |
//!
//! All wording is in `words`, and in `verdicts` for content rules. The meaning of each refusal is in the table of refusals (`headrace_domain::Code`).

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
mod verdicts;
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
pub use verdicts::ExplainedVerdict;
