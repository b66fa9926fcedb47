//! The public JSON and SSE of every dialect, to and from `domain`: requests in, answers and errors out.
//! Pure: no I/O, no clock, no HTTP types. Knows no keys, tenant limits, money, templates or engines.

pub mod anthropic;
pub mod common;
mod encode;
#[cfg(test)]
mod encoder_tests;
pub mod fault;
pub mod json;
mod limits;
pub mod openai;
mod questions;
mod request;
#[cfg(test)]
mod response_tests;
pub mod responses;
pub mod sse;

pub use common::answer_id::{named_request, named_trace};
pub use common::batch_line::{BatchLine, one_line};
pub use common::diagnosis::{CacheDiagnosis, ChangedPart};
pub use common::encoder::{ReplyEncoder, ReplyMeta, ShownSampling};
pub use common::error::{ERROR_DOCS, ErrorFacts, LimitFacts, error_body};
pub use common::models::{ModelCard, ModelPricing, ModelsPage, model_body, models_body};
pub use encode::{content_type, encoder};
pub use fault::BadRequest;
pub use limits::WireLimits;
pub use questions::{
    DetokenizeRequest, TokenizeRequest, count_body, detokenize_body, parse_count, parse_detokenize,
    parse_tokenize, tokenize_body,
};
pub use request::{parse, parse_chat, parse_completions, parse_messages};
