//! What several dialects share: parameters, content of messages, tools, formats, and the frame of answers.
//! Knows no endpoint.

pub(crate) mod answer_id;
pub mod answer_options;
pub(crate) mod batch_line;
pub mod blank;
pub(crate) mod breakpoints;
pub(crate) mod cache_options;
pub(crate) mod call_ids;
pub(crate) mod choice;
pub mod content;
pub(crate) mod custom;
pub(crate) mod diagnosis;
pub(crate) mod encoder;
pub(crate) mod error;
pub mod form;
pub(crate) mod metadata;
pub(crate) mod models;
pub(crate) mod names;
pub mod params;
pub mod refused;
pub(crate) mod tools;
