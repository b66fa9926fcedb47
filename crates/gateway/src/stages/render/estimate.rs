//! Estimates the most memory that a call may take. The figures per token, choice and byte are upper bounds. A test with
//! a counting allocator compares them with the memory actually taken. Must not know how much memory there is.

use headrace_call_state::{CALL_BYTES, Rejection, TEXT_COPIES, mib};
use headrace_domain::{Code, Endpoint, Prompt};

use crate::state::{EnginePrompts, RenderedInput, RenderedWork};

/// Bytes of each choice: parser, decoder, the sampler's state, its sequence.
const CHOICE: u64 = 4 << 10;
/// Bytes per byte of stop strings in each choice: the string and its table.
const STOP: u64 = 10;
/// Vocabulary ids per byte of a constrained choice's masks: each id has one bit here and one in transit.
const MASKED_IDS_PER_BYTE: u64 = 4;
/// Bytes of each prompt token: its id here and in the engine, its part of a block's key.
const PROMPT_TOKEN: u64 = 16;
/// Bytes of each token that a choice may generate: its id in the engine, its count for penalties.
const TOKEN: u64 = 24;
/// Bytes of each token of an answer that is kept and written whole at its end: text, id, JSON.
const KEPT_TOKEN: u64 = 64;
/// Bytes of an event with a token, while it waits to be read.
const EVENT: u64 = 256;
/// Bytes of one log-probability: as a value (`SCORE`), and as JSON (`WRITTEN_SCORE`).
const SCORE: u64 = 112;
const WRITTEN_SCORE: u64 = 160;
/// Bytes per byte of an echoed prompt, in a JSON buffer that grows: a control character takes six there.
const ECHOED: u64 = 8;
/// Bytes of a number in a vector: as a value, and as JSON in a buffer that grows.
const VECTOR_NUMBER: u64 = 40;
/// Bytes of a prompt's token id as JSON.
const WRITTEN_ID: u64 = 16;

/// The parts of an estimate in bytes, one for each parameter that can make a call large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryEstimate {
    text: u64,
    choices: u64,
    form: u64,
    prompt_scores: u64,
    prompt_shown: u64,
    output: u64,
}

/// The numbers that an estimate depends on.
#[derive(Debug, Clone, Copy)]
struct EstimateInput {
    choices: u64,
    prompts: u64,
    prompt_tokens: u64,
    max_tokens: u64,
    /// Log-probabilities at each position, or 0.
    scores: u64,
    prompt_scores: u64,
    /// How often a prompt appears in the answer.
    shown: u64,
    /// The most bytes that may wait for a reader: of each job's events, and of the answer.
    unread: u64,
}

impl MemoryEstimate {
    /// Estimates `work`. Up to `unread` bytes of each job's events, and of the answer, wait for a reader.
    pub(crate) fn of(work: &RenderedWork, unread: usize) -> Self {
        let (call, sampling) = (&work.call, &work.sampling);
        let prompts = work.parts() as u64;
        let n = u64::from(sampling.n);
        let at_each = |top: Option<u8>| top.map_or(0, |top| u64::from(top).saturating_add(1));
        let asked = EstimateInput {
            choices: prompts.saturating_mul(n),
            prompts,
            // A relayed call has no token ids here.
            prompt_tokens: work.rendered.prompts().map_or(0, EnginePrompts::tokens),
            max_tokens: u64::from(sampling.max_tokens),
            scores: at_each(sampling.logprobs),
            prompt_scores: at_each(sampling.prompt_logprobs),
            shown: if call.endpoint == Endpoint::Completions { n } else { 1 },
            unread: unread as u64,
        };
        let stop_bytes: u64 = sampling.stop.iter().map(|stop| stop.len() as u64).sum();
        let text = work.rendered.tokens().and_then(|tokens| tokens.text.as_ref());
        let text = text.map_or(0, |text| text.len() as u64);
        let echoed = if call.dialect.echo() { ECHOED.saturating_mul(echo_bytes(work)) } else { 0 };
        let ids = if call.return_token_ids { WRITTEN_ID.saturating_mul(asked.prompt_tokens) } else { 0 };
        Self {
            text: CALL_BYTES
                .saturating_add(TEXT_COPIES.saturating_mul(work.body_bytes as u64))
                .saturating_add(work.tree_bytes)
                .saturating_add(work.body.as_ref().map_or(0, |body| body.len() as u64))
                .saturating_add(text)
                .saturating_add(PROMPT_TOKEN.saturating_mul(asked.prompt_tokens)),
            choices: STOP.saturating_mul(stop_bytes).saturating_add(CHOICE).saturating_mul(asked.choices),
            form: form_bytes(work).saturating_mul(asked.choices),
            prompt_scores: asked.prompt_scores(),
            prompt_shown: echoed.saturating_add(ids).saturating_mul(asked.shown),
            // The stream of a response ends with a copy of the whole response, so all of it is kept.
            output: asked
                .output(call.stream && call.endpoint != Endpoint::Responses)
                .saturating_add(vectors(work)),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let Self { text, choices, form, prompt_scores, prompt_shown, output } = *self;
        [choices, form, prompt_scores, prompt_shown, output].into_iter().fold(text, u64::saturating_add)
    }

    /// The rejection of a call that needs more than `bound` bytes. Names the parameter that makes it large.
    pub(crate) fn refusal(&self, work: &RenderedWork, bound: u64) -> Rejection {
        let (n, sampling) = (work.sampling.n, &work.sampling);
        let words = match work.call.endpoint {
            Endpoint::Completions => "prompt",
            Endpoint::Embeddings => "input",
            Endpoint::Rerank => "documents",
            Endpoint::Score => "text_2",
            _ => "messages",
        };
        let scores =
            if work.call.endpoint == Endpoint::ChatCompletions { "top_logprobs" } else { "logprobs" };
        let of_prompt =
            if work.call.dialect.echo() && sampling.logprobs.is_some() { scores } else { "prompt_logprobs" };
        let widest = |param| if n > 1 { "n" } else { param };
        let of_output = if sampling.logprobs.is_some() { widest(scores) } else { widest("max_tokens") };
        let parts = [
            (self.output, of_output, "Ask for fewer or shorter answers, for fewer alternatives, or stream"),
            (
                self.prompt_scores,
                widest(of_prompt),
                "Ask for fewer alternatives or answers, or send a shorter prompt",
            ),
            (
                self.prompt_shown,
                widest("prompt"),
                "Ask for fewer answers, or without `echo` and `return_token_ids`",
            ),
            (self.choices, widest("stop"), "Ask for fewer answers or stop strings"),
            (self.form, widest("response_format"), "Ask for fewer answers, or a simpler format"),
            (self.text, words, "Shorten it"),
        ];
        let (most, param, way_out) =
            parts.into_iter().max_by_key(|(bytes, ..)| *bytes).unwrap_or((0, words, ""));
        let message = format!(
            "The call can take up to {} of memory, {} of it for what `{param}` asks for, and one call may take {} \
             (`gateway.max_call_memory`). {way_out}.",
            mib(self.bytes()),
            mib(most),
            mib(bound)
        );
        Rejection::new(Code::CallTooLarge, message).with_param(param)
    }
}

impl EstimateInput {
    /// The prompt's scores: once as values, once as JSON, and again for each time the answer shows them.
    fn prompt_scores(&self) -> u64 {
        let entries = self.prompt_scores.saturating_mul(self.prompt_tokens);
        let written = WRITTEN_SCORE.saturating_mul(self.shown.saturating_add(1));
        entries.saturating_mul(SCORE.saturating_add(written))
    }

    /// The answers. A whole answer is kept to its end, a stream only as far as its reader has fallen behind.
    fn output(&self, stream: bool) -> u64 {
        let tokens = self.choices.saturating_mul(self.max_tokens);
        let scores = self.scores.saturating_mul(SCORE.saturating_add(WRITTEN_SCORE));
        let kept = tokens.saturating_mul(KEPT_TOKEN.saturating_add(scores));
        let unread = self.unread.saturating_mul(self.prompts.saturating_add(2));
        let kept = if stream { kept.min(unread) } else { kept };
        let event = EVENT.saturating_add(self.scores.saturating_mul(SCORE));
        let waiting = tokens.saturating_mul(event).min(unread);
        kept.saturating_add(waiting).saturating_add(TOKEN.saturating_mul(tokens))
    }
}

/// Memory in bytes for constraining one choice to its form.
fn form_bytes(work: &RenderedWork) -> u64 {
    let ids = work.model.backend.tokens().map_or(0, |backend| u64::from(backend.capabilities.vocab));
    let grammar = work.rendered.tokens().and_then(|tokens| tokens.grammar.as_ref());
    grammar.map_or(0, |grammar| grammar.state_bytes() as u64 + ids / MASKED_IDS_PER_BYTE)
}

/// Bytes of the vectors of all texts.
fn vectors(work: &RenderedWork) -> u64 {
    let RenderedInput::Vectors(vectors) = &work.rendered else { return 0 };
    let width = work.model.backend.vector_width().unwrap_or(0);
    VECTOR_NUMBER.saturating_mul(u64::from(width)).saturating_mul(vectors.texts.ids.len() as u64)
}

/// Bytes of all prompts as text.
fn echo_bytes(work: &RenderedWork) -> u64 {
    let Some(backend) = work.model.backend.tokens() else { return 0 };
    let most = backend.tokenizer.most_bytes_per_token().unwrap_or(16) as u64;
    match &work.call.prompt {
        Prompt::Raw(items) => items
            .iter()
            .map(|item| match item {
                headrace_domain::PromptItem::Text(text) => text.len() as u64,
                headrace_domain::PromptItem::Ids(ids) => most.saturating_mul(ids.len() as u64),
            })
            .sum(),
        Prompt::Conversation(_) | Prompt::Encode(_) | Prompt::Relayed(_) => 0,
    }
}
