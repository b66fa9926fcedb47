//! The protocol of each kind of server for requests by ids: URL, body and events. Must not know a running job.

use headrace_domain::Sampling;
use headrace_engine_api::{RelayError, SubmitRefusal};
use reqwest::Url;
use serde_json::Value;

use crate::kind::UpstreamKind;
use crate::server::UpstreamServer;
use crate::tokens::ask::TokenAsk;
use crate::tokens::model::TokenModelSpec;
use crate::tokens::piece::TokenPiece;
use crate::tokens::{llama, sglang, vllm};

/// The protocol of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenProtocol {
    /// vLLM's completions.
    Completions,
    /// vLLM's `/inference/v1/generate`, if it is enabled.
    Generate,
    /// SGLang's `/generate`.
    Sglang,
    /// llama.cpp's `/completion`.
    Llama,
}

impl TokenProtocol {
    pub(super) fn of(server: &UpstreamServer) -> Self {
        match server.spec.kind {
            UpstreamKind::Sglang => Self::Sglang,
            UpstreamKind::LlamaCpp => Self::Llama,
            _ if server.lacks_generate() => Self::Completions,
            _ => Self::Generate,
        }
    }

    pub(super) fn url(self, server: &UpstreamServer) -> Url {
        match self {
            Self::Completions => server.address.api("completions"),
            Self::Generate => server.address.server("inference/v1/generate"),
            Self::Sglang => server.address.server("generate"),
            Self::Llama => server.address.server("completion"),
        }
    }

    pub(super) fn body(self, ask: &TokenAsk<'_>, stream: bool) -> Value {
        match self {
            Self::Completions => vllm::completion(ask),
            Self::Generate => vllm::generation(ask),
            Self::Sglang => sglang::body(ask),
            Self::Llama => llama::body(ask, stream),
        }
    }

    pub(super) fn reader(self) -> TokenReader {
        match self {
            Self::Completions | Self::Generate => TokenReader::Vllm,
            Self::Sglang => TokenReader::Sglang(sglang::SglangReader::default()),
            Self::Llama => TokenReader::Llama(llama::LlamaReader::default()),
        }
    }

    /// Returns whether a failure means that the endpoint does not exist, so that the other protocol must be used.
    pub(super) fn is_not_there(self, error: &RelayError) -> bool {
        let RelayError::Status { status, body, .. } = error else { return false };
        let of_model = || {
            let said: Value = serde_json::from_slice(body).unwrap_or_default();
            said.pointer("/error/param").and_then(Value::as_str) == Some("model")
        };
        self == Self::Generate && (matches!(status, 403 | 405) || *status == 404 && !of_model())
    }
}

/// Checks that servers of this kind support the sampling parameters.
///
/// # Errors
/// What was requested and is not supported.
pub(super) fn check(kind: UpstreamKind, sampling: &Sampling) -> Result<(), SubmitRefusal> {
    if kind != UpstreamKind::LlamaCpp {
        return Ok(());
    }
    let Sampling { logprobs, min_tokens, frequency_penalty, presence_penalty, .. } = *sampling;
    let lacks = [
        (
            logprobs.is_some(),
            "logprobs: llama.cpp's server leaves out those of tokens that end within a character",
        ),
        (min_tokens > 0, "min_tokens: llama.cpp's server has none"),
        (
            frequency_penalty != 0.0 || presence_penalty != 0.0,
            "frequency_penalty and presence_penalty: llama.cpp's server counts the prompt's tokens, too",
        ),
    ];
    match lacks.into_iter().find(|(asked, _)| *asked) {
        Some((_, what)) => Err(SubmitRefusal::Invalid { what: what.to_owned() }),
        None => Ok(()),
    }
}

/// Parses the answer to one request.
#[derive(Debug)]
pub(super) enum TokenReader {
    Vllm,
    Sglang(sglang::SglangReader),
    Llama(llama::LlamaReader),
}

impl TokenReader {
    /// Parses the data of one event.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub(super) fn read(&mut self, data: &[u8], model: &TokenModelSpec) -> Result<TokenPiece, String> {
        match self {
            Self::Vllm => vllm::read(data),
            Self::Sglang(reader) => reader.read(data),
            Self::Llama(reader) => reader.read(data, &model.tokenizer),
        }
    }

    /// Parses an answer in one piece, if one was requested.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub(super) fn read_whole(&self, body: &[u8]) -> Result<TokenPiece, String> {
        match self {
            Self::Llama(_) => llama::LlamaReader::read_whole(body),
            Self::Vllm | Self::Sglang(_) => Err("its answer whole, not streamed".to_owned()),
        }
    }
}
