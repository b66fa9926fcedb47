//! OpenAI's dialect, with the additions of vLLM, Jina and Cohere: requests in, answers out. The Responses API is in
//! [`crate::responses`].

mod batches;
mod called;
pub(crate) mod chat;
mod chat_stream;
mod completion_logprobs;
pub(crate) mod completions;
mod completions_stream;
pub(crate) mod embeddings;
mod encoded;
mod files;
mod frame;
mod moderations;
mod reasoning_details;
pub(crate) mod rerank;
mod stream;
mod whole;

pub use batches::{BatchBody, LineFault, batch_body, batch_endpoint, batch_line, batch_path, batch_window};
pub use files::{
    CompleteBody, MAX_FILE_NAME_BYTES, UploadBody, complete_body, file_name, file_purpose, kept_for,
    upload_body,
};
pub use moderations::{MODERATION_MODEL, moderation_result, moderation_texts};

use headrace_domain::{Call, Endpoint};

use crate::common::encoder::{ReplyEncoder, ReplyMeta};

use chat_stream::ChatStream;
use completions_stream::CompletionsStream;
use encoded::EncodedVectors;
use whole::OpenAiWhole;

/// Creates the encoder for a call of one of these endpoints.
pub(crate) fn encoder(call: &Call, meta: ReplyMeta) -> Box<dyn ReplyEncoder> {
    match (call.endpoint, call.stream) {
        (Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score, _) => {
            Box::new(EncodedVectors::new(call, meta))
        }
        (_, false) => Box::new(OpenAiWhole::new(call, meta)),
        (Endpoint::Completions, true) => Box::new(CompletionsStream::encoder(call, &meta)),
        (_, true) => Box::new(ChatStream::encoder(call, &meta)),
    }
}
