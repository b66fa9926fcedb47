//! The protocol of each kind of server for requests by ids: URL, body and events. Must not know a running job.

use headrace_domain::Sampling;
use headrace_engine_api::{RelayError, SubmitRefusal};
use reqwest::Url;
use serde_json::Value;

use crate::kind::Kind;
use crate::server::Server;
use crate::tokens::ask::Ask;
use crate::tokens::model::TokenModelSpec;
use crate::tokens::piece::Piece;
use crate::tokens::{llama, sglang, vllm};

/// The protocol of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// vLLM's completions.
    Completions,
    /// vLLM's `/inference/v1/generate`, if it is enabled.
    Generate,
    /// SGLang's `/generate`.
    Sglang,
    /// llama.cpp's `/completion`.
    Llama,
}

impl Protocol {
    pub(super) fn of(server: &Server) -> Self {
        match server.spec.kind {
            Kind::Sglang => Self::Sglang,
            Kind::LlamaCpp => Self::Llama,
            _ if server.lacks_generate() => Self::Completions,
            _ => Self::Generate,
        }
    }

    pub(super) fn url(self, server: &Server) -> Url {
        match self {
            Self::Completions => server.address.api("completions"),
            Self::Generate => server.address.server("inference/v1/generate"),
            Self::Sglang => server.address.server("generate"),
            Self::Llama => server.address.server("completion"),
        }
    }

    pub(super) fn body(self, ask: &Ask<'_>, stream: bool) -> Value {
        match self {
            Self::Completions => vllm::completion(ask),
            Self::Generate => vllm::generation(ask),
            Self::Sglang => sglang::body(ask),
            Self::Llama => llama::body(ask, stream),
        }
    }

    pub(super) fn reader(self) -> Reader {
        match self {
            Self::Completions | Self::Generate => Reader::Vllm,
            Self::Sglang => Reader::Sglang(sglang::Reader::default()),
            Self::Llama => Reader::Llama(llama::Reader::default()),
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
pub(super) fn check(kind: Kind, sampling: &Sampling) -> Result<(), SubmitRefusal> {
    if kind != Kind::LlamaCpp {
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
pub(super) enum Reader {
    Vllm,
    Sglang(sglang::Reader),
    Llama(llama::Reader),
}

impl Reader {
    /// Parses the data of one event.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub(super) fn read(&mut self, data: &[u8], model: &TokenModelSpec) -> Result<Piece, String> {
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
    pub(super) fn read_whole(&self, body: &[u8]) -> Result<Piece, String> {
        match self {
            Self::Llama(_) => llama::Reader::read_whole(body),
            Self::Vllm | Self::Sglang(_) => Err("its answer whole, not streamed".to_owned()),
        }
    }
}
