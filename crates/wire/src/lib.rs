//! The public JSON and SSE of every dialect, to and from `domain`: requests in, answers and errors out.
//! Pure: no I/O, no clock, no HTTP types. Knows no keys, tenant limits, money, templates or engines.

mod batches;
pub mod blank;
mod breakpoints;
mod cache_options;
mod call_ids;
pub mod canonical;
mod chat;
mod choice;
pub mod client;
mod completions;
pub mod content;
mod custom;
pub mod embeddings;
mod encode;
mod error;
pub mod fault;
mod files;
pub mod form;
pub mod json;
pub mod json_out;
mod limits;
pub mod messages;
mod models;
mod moderations;
mod names;
mod node;
pub mod object;
mod parameters;
pub mod params;
mod questions;
pub mod refused;
mod request;
mod rerank;
mod responses;
mod tools;
pub mod wishes;

pub use batches::{
    BatchBody, BatchLine, LineFault, batch_body, batch_endpoint, batch_line, batch_path, batch_window,
    message_batch, one_line,
};
pub use encode::{
    CacheDiagnosis, ChangedPart, ReplyEncoder, ReplyMeta, ShownSampling, content_type, encoder,
    named_request, named_trace,
};
pub use error::{ERROR_DOCS, ErrorFacts, LimitFacts, error_body};
pub use fault::BadRequest;
pub use files::{
    CompleteBody, MAX_FILE_NAME_BYTES, UploadBody, complete_body, file_name, file_purpose, kept_for,
    upload_body,
};
pub use limits::WireLimits;
pub use models::{ModelCard, ModelPricing, ModelsPage, model_body, models_body};
pub use moderations::{MODERATION_MODEL, moderation_result, moderation_texts};
pub use parameters::parameters_page;
pub use questions::{
    DetokenizeRequest, TokenizeRequest, count_body, detokenize_body, parse_count, parse_detokenize,
    parse_tokenize, tokenize_body,
};
pub use request::{parse, parse_chat, parse_completions, parse_messages};
pub use responses::{
    ConversationBody, compaction, conversation_body, item_references, response_begun, response_id, turn_body,
    with_history, with_items,
};
