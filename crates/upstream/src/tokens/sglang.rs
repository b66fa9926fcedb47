//! SGLang by `/generate`, with ids in and out. Must not know text or a connection.
//!
//! `sglang/srt/managers/io_struct.py` (`GenerateReqInput`), `tokenizer_manager.py` (streaming). By default each event
//! has all ids and log-probabilities so far. With `--incremental-streaming-output` it has those since the last event.
//! The number of ids decides between the two.

use headrace_domain::{FinishReason, Sampling};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::tokens::ask::TokenAsk;
use crate::tokens::choice::ChoiceRules;
use crate::tokens::form;
use crate::tokens::piece::{TokenPiece, TokenScore, choice_seed, error_within, tokens_of};

/// Returns the body for one answer.
pub(super) fn body(ask: &TokenAsk<'_>) -> Value {
    // `left` and `form` read `generated` and `job`. The cache needs no `alone`, because the label separates tenants.
    let TokenAsk { model, prompt, rules, choice, job: _, generated: _, alone: _ } = ask;
    let ChoiceRules { sampling, stop_ids, limit } = rules;
    let Sampling {
        temperature,
        top_p,
        top_k,
        min_p,
        frequency_penalty,
        presence_penalty,
        repetition_penalty,
        logit_bias,
        seed,
        min_tokens,
        ignore_eos,
        logprobs,
        // `limit` is the smaller of it and the rest of the window.
        max_tokens: _,
        // Applied here to the delivered text.
        stop: _,
        // Part of `stop_ids`.
        stop_token_ids: _,
        // Each answer is a request of its own.
        n: _,
        // Refused before: `TokenModel::check`.
        prompt_logprobs: _,
    } = sampling;
    let mut body = json!({
        "input_ids": prompt,
        "stream": true,
        // The label separates tenants: without it, no other tenant can hit these prefixes.
        "extra_key": ask.label(),
        "sampling_params": {
            "max_new_tokens": ask.left(*limit),
            "min_new_tokens": ask.left((*min_tokens).min(*limit)),
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k.map_or(-1, |top| i64::from(top.get())),
            "min_p": min_p,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "repetition_penalty": repetition_penalty,
            // Has an effect only if the server runs in deterministic mode.
            "sampling_seed": choice_seed(seed.0, *choice, 0),
            "ignore_eos": ignore_eos,
            "stop_token_ids": stop_ids,
            "skip_special_tokens": false,
        },
    });
    if let Some(fields) = body.as_object_mut() {
        if let Some(top) = *logprobs {
            fields.insert("return_logprob".to_owned(), true.into());
            fields.insert("top_logprobs_num".to_owned(), top.into());
        }
        // The adapter's name follows the model's name.
        if let Some((_, adapter)) = model.split_once(':') {
            fields.insert("lora_path".to_owned(), adapter.into());
        }
        if let Some(inner) = fields.get_mut("sampling_params").and_then(Value::as_object_mut) {
            if !logit_bias.is_empty() {
                inner.insert("logit_bias".to_owned(), ask.bias_by_name());
            }
            if let Some((name, text)) = ask.form().map(form::sglang) {
                inner.insert(name.to_owned(), text.into());
            }
        }
    }
    body
}

/// Parses one stream.
#[derive(Debug, Default)]
pub(super) struct SglangReader {
    /// Number of ids so far.
    seen: usize,
}

#[derive(Deserialize)]
struct SglangChunk {
    output_ids: Option<Vec<u32>>,
    meta_info: Option<SglangMeta>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct SglangMeta {
    finish_reason: Option<SglangFinish>,
    completion_tokens: usize,
    cached_tokens: Option<Value>,
    #[serde(default)]
    output_token_logprobs: Vec<Token>,
    #[serde(default)]
    output_top_logprobs: Vec<Option<Vec<Token>>>,
}

#[derive(Deserialize)]
struct SglangFinish {
    #[serde(rename = "type")]
    kind: String,
    message: Option<String>,
}

/// Log-probability, id, and text if requested.
type Token = (Option<f32>, u32, IgnoredAny);

impl SglangReader {
    /// Parses the data of one event.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub(super) fn read(&mut self, data: &[u8]) -> Result<TokenPiece, String> {
        if data == b"[DONE]" {
            return Ok(TokenPiece::DONE);
        }
        let chunk: SglangChunk = serde_json::from_slice(data)
            .map_err(|error| format!("an event that is none of SGLang's: {error}"))?;
        if let Some(error) = chunk.error {
            return Err(error_within(&error));
        }
        let Some(meta) = chunk.meta_info else {
            return Err("an event that says nothing of its answer".to_owned());
        };
        let finish = meta.finish_reason.map(finish).transpose()?;
        let mut ids = chunk.output_ids.ok_or_else(|| "an event without its token ids".to_owned())?;
        let new = meta.completion_tokens.checked_sub(self.seen);
        let new = new.ok_or_else(|| "fewer tokens than it had before".to_owned())?;
        // The token that ended the answer may be counted but left out.
        let without = |count: usize| finish == Some(FinishReason::Stop) && ids.len() + 1 == count;
        let count = ids.len();
        let new = if count == meta.completion_tokens || without(meta.completion_tokens) && count >= self.seen
        {
            count - self.seen
        } else if count == new || without(new) {
            count
        } else {
            return Err(format!(
                "an event of {count} ids reports {} tokens after {} earlier ones",
                meta.completion_tokens, self.seen
            ));
        };
        self.seen += new;
        let cached = tokens_of(meta.cached_tokens.as_ref());
        let from = count - new;
        let ids = ids.split_off(from);
        let scores = scores(meta.output_token_logprobs, meta.output_top_logprobs, &ids, from)?;
        Ok(TokenPiece { ids, scores, finish, cached, ..TokenPiece::default() })
    }
}

/// Returns the scores of the new ids. They are at the same positions as the ids, or at the end of all scores.
fn scores(
    all: Vec<Token>,
    mut tops: Vec<Option<Vec<Token>>>,
    ids: &[u32],
    from: usize,
) -> Result<Vec<TokenScore>, String> {
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let fits = |from: &usize| {
        let there = all.get(*from..from.saturating_add(ids.len()));
        there.is_some_and(|there| there.iter().map(|token| &token.1).eq(ids))
    };
    let from = [from, all.len().saturating_sub(ids.len())].into_iter().find(fits);
    let from = from.ok_or_else(|| "log-probabilities of other tokens than its ids".to_owned())?;
    tops.resize_with(all.len(), || None);
    let one = |(chosen, others): (Token, Option<Vec<Token>>)| {
        let others = others.unwrap_or_default().into_iter();
        TokenScore::new(chosen.0, others.filter_map(|other| Some((other.1, other.0?))).collect())
    };
    Ok(all.into_iter().zip(tops).skip(from).take(ids.len()).map(one).collect())
}

fn finish(finish: SglangFinish) -> Result<FinishReason, String> {
    match (finish.kind.as_str(), finish.message) {
        ("stop", _) => Ok(FinishReason::Stop),
        ("length", _) => Ok(FinishReason::Length),
        (other, None) => Err(format!("it ended its answer with `{other}`")),
        (other, Some(message)) => Err(format!("it ended its answer with `{other}`: {message}")),
    }
}
