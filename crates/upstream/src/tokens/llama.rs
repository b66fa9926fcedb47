//! llama.cpp's server by `/completion`, with ids in and out. Must not know a connection.
//!
//! `tools/server/server-context.cpp` (`process_token`): a stream leaves out the ids of tokens that end within a
//! character, and reports only their number. The missing ids are restored from their bytes if only one combination
//! fits. Otherwise the rest of the answer is requested in one piece, which has all ids.

use headrace_domain::{FinishReason, Sampling};
use headrace_tokenizer::Tokenizer;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::tokens::ask::TokenAsk;
use crate::tokens::choice::ChoiceRules;
use crate::tokens::form;
use crate::tokens::piece::{TokenPiece, choice_seed, error_within, tokens_of};

/// Returns the body for one answer.
pub(super) fn body(ask: &TokenAsk<'_>, stream: bool) -> Value {
    // `left` and `form` read `job`.
    let TokenAsk { model, prompt, rules, choice, generated, alone, job: _ } = ask;
    // The server has no stop ids. They are applied here to the ids of the answer.
    let ChoiceRules { sampling, limit, stop_ids: _ } = rules;
    let Sampling {
        temperature,
        top_p,
        top_k,
        min_p,
        repetition_penalty,
        logit_bias,
        seed,
        ignore_eos,
        // `limit` is the smaller of it and the rest of the window.
        max_tokens: _,
        // Applied here to the delivered text.
        stop: _,
        // As `stop_ids`.
        stop_token_ids: _,
        // Each answer is a request of its own.
        n: _,
        // Refused before: `TokenModel::check` and `protocol::check`.
        prompt_logprobs: _,
        logprobs: _,
        min_tokens: _,
        frequency_penalty: _,
        presence_penalty: _,
    } = sampling;
    let bias: Vec<Value> = logit_bias.iter().map(|(id, bias)| json!([id, bias])).collect();
    let mut body = json!({
        "model": model,
        "prompt": prompt,
        "n_predict": ask.left(*limit),
        "stream": stream,
        "return_tokens": true,
        // The server does not separate tenants, so its cache is used for only one of them.
        "cache_prompt": alone,
        // Seeds have 32 bits. The largest value means a random seed.
        "seed": choice_seed(seed.0, *choice, *generated) % u64::from(u32::MAX),
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k.map_or(0, |top| top.get()),
        "min_p": min_p,
        "repeat_penalty": repetition_penalty,
        // Penalties cover the whole prompt and answer.
        "repeat_last_n": prompt.len() + ask.left(*limit) as usize,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "logit_bias": bias,
        "ignore_eos": ignore_eos,
        // Our order of samplers, without others that the server's operator may have enabled.
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "mirostat": 0,
        "dynatemp_range": 0.0,
    });
    if let (Some((name, said)), Some(fields)) = (ask.form().and_then(form::llama), body.as_object_mut()) {
        fields.insert(name.to_owned(), said);
    }
    body
}

/// Parses one stream, or an answer in one piece.
#[derive(Debug, Default)]
pub(super) struct LlamaReader {
    /// Number of ids so far.
    seen: usize,
}

#[derive(Deserialize)]
struct LlamaChunk {
    #[serde(default)]
    content: String,
    tokens: Option<Vec<u32>>,
    #[serde(default)]
    stop: bool,
    stop_type: Option<String>,
    tokens_predicted: Option<usize>,
    timings: Option<Value>,
    error: Option<Value>,
}

impl LlamaReader {
    /// Parses the data of one event.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub(super) fn read(&mut self, data: &[u8], tokenizer: &Tokenizer) -> Result<TokenPiece, String> {
        let chunk = LlamaChunk::read(data)?;
        let (tokens, count, cached) = chunk.parts()?;
        let new = count.checked_sub(self.seen).ok_or_else(|| "fewer tokens than it had before".to_owned())?;
        let Some(missing) = new.checked_sub(tokens.len()) else {
            return Err(format!("{} ids of {new} new tokens", tokens.len()));
        };
        let (ids, lost) = match missing {
            0 => (tokens, false),
            _ => match found_again(&chunk.content, &tokens, missing, tokenizer) {
                Some(found) => ([found, tokens].concat(), false),
                None => (Vec::new(), true),
            },
        };
        self.seen += ids.len();
        let finish = if chunk.stop && !lost { Some(chunk.finish()?) } else { None };
        Ok(TokenPiece { ids, finish, cached, lost, ..TokenPiece::default() })
    }

    /// Parses an answer in one piece.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub(super) fn read_whole(body: &[u8]) -> Result<TokenPiece, String> {
        let chunk = LlamaChunk::read(body)?;
        let (ids, count, cached) = chunk.parts()?;
        if ids.len() != count {
            return Err(format!("{} ids of {count} tokens", ids.len()));
        }
        Ok(TokenPiece { finish: Some(chunk.finish()?), ids, cached, ..TokenPiece::default() })
    }
}

impl LlamaChunk {
    fn read(data: &[u8]) -> Result<Self, String> {
        let chunk: Self = serde_json::from_slice(data)
            .map_err(|error| format!("an answer that is none of llama.cpp's: {error}"))?;
        match &chunk.error {
            Some(error) => Err(error_within(error)),
            None => Ok(chunk),
        }
    }

    /// Returns the ids, the answer's number of tokens so far, and the number of cached prompt tokens.
    fn parts(&self) -> Result<(Vec<u32>, usize, Option<u64>), String> {
        let (Some(tokens), Some(count)) = (&self.tokens, self.tokens_predicted) else {
            return Err("an answer without its token ids, or without their number: is it too old?".to_owned());
        };
        let timings = self.timings.as_ref();
        Ok((tokens.clone(), count, timings.and_then(|timings| tokens_of(timings.get("cache_n")))))
    }

    fn finish(&self) -> Result<FinishReason, String> {
        match self.stop_type.as_deref() {
            Some("eos" | "word") => Ok(FinishReason::Stop),
            Some("limit") => Ok(FinishReason::Length),
            other => Err(format!("it ended its answer with `{}`", other.unwrap_or("nothing"))),
        }
    }
}

/// Restores the missing ids before the last one of a text from their bytes. Each of them ends within a character.
/// Returns `None` if no combination fits, or more than one.
fn found_again(content: &str, last: &[u32], count: usize, tokenizer: &Tokenizer) -> Option<Vec<u32>> {
    let [last] = last else { return None };
    // The text contains a replacement for bytes that are not a character, so the bytes are lost.
    if content.contains(char::REPLACEMENT_CHARACTER) {
        return None;
    }
    let bytes = content.as_bytes().strip_suffix(tokenizer.token_bytes(*last)?)?;
    let vocab = u32::try_from(tokenizer.vocab_size()).ok()?;
    let fits = |id: &u32| {
        let token = tokenizer.token_bytes(*id).unwrap_or_default();
        !token.is_empty() && std::str::from_utf8(token).is_err() && contains(bytes, token)
    };
    let parts: Vec<(u32, &[u8])> =
        (0..vocab).filter(fits).filter_map(|id| Some((id, tokenizer.token_bytes(id)?))).collect();
    let mut ways = Vec::new();
    split(bytes, count, &parts, &mut Vec::new(), &mut ways);
    match ways.as_mut_slice() {
        [only] => Some(std::mem::take(only)),
        _ => None,
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    part.len() <= bytes.len() && bytes.windows(part.len()).any(|window| window == part)
}

/// Finds ways to compose `bytes` from `count` parts. Stops at two ways, because two are as ambiguous as many.
fn split(bytes: &[u8], count: usize, parts: &[(u32, &[u8])], begun: &mut Vec<u32>, ways: &mut Vec<Vec<u32>>) {
    if ways.len() > 1 || bytes.len() < count || (count == 0) != bytes.is_empty() {
        return;
    }
    if count == 0 {
        ways.push(begun.clone());
        return;
    }
    for (id, part) in parts {
        if let Some(rest) = bytes.strip_prefix(*part) {
            begun.push(*id);
            split(rest, count - 1, parts, begun, ways);
            begun.pop();
        }
    }
}
