//! vLLM by `/v1/completions` with ids in and out, which every vLLM server supports, and by `/inference/v1/generate`, if
//! that is enabled (`--enable-scale-out`). Must not know text or a connection.
//!
//! Checked against recorded exchanges of vLLM 0.32. Completions: `return_token_ids` returns the ids (from 0.10.2 on),
//! and `return_tokens_as_token_ids` writes those of the log-probabilities as `token_id:24536`.

use headrace_domain::Sampling;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::tokens::ask::TokenAsk;
use crate::tokens::choice::ChoiceRules;
use crate::tokens::form;
use crate::tokens::piece::{TokenPiece, TokenScore, choice_seed, error_within, finish, tokens_of};

/// Returns the body of a completion.
pub(super) fn completion(ask: &TokenAsk<'_>) -> Value {
    // `sampling` reads the rest. The cache needs no `alone`, because the label separates tenants.
    let TokenAsk { model, prompt, job: _, rules: _, choice: _, generated: _, alone: _ } = ask;
    let mut fields = sampling(ask);
    for (name, value) in [
        ("model", json!(model)),
        ("prompt", json!(prompt)),
        ("stream", json!(true)),
        ("stream_options", json!({"include_usage": true})),
        ("return_token_ids", json!(true)),
        ("cache_salt", json!(ask.label())),
    ] {
        fields.insert(name.to_owned(), value);
    }
    if fields.contains_key("logprobs") {
        fields.insert("return_tokens_as_token_ids".to_owned(), true.into());
    }
    fields.into()
}

/// Returns the body for `/inference/v1/generate`.
pub(super) fn generation(ask: &TokenAsk<'_>) -> Value {
    // As for a completion.
    let TokenAsk { model, prompt, job: _, rules: _, choice: _, generated: _, alone: _ } = ask;
    json!({
        "model": model,
        "token_ids": prompt,
        "stream": true,
        "stream_options": {"include_usage": true},
        "cache_salt": ask.label(),
        "sampling_params": sampling(ask),
    })
}

/// Returns the sampling fields, which are the same for both endpoints.
fn sampling(ask: &TokenAsk<'_>) -> Map<String, Value> {
    let ChoiceRules { sampling, stop_ids, limit } = ask.rules;
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
    let mut fields = Map::new();
    for (name, value) in [
        ("max_tokens", json!(ask.left(*limit))),
        ("min_tokens", json!(ask.left((*min_tokens).min(*limit)))),
        ("temperature", json!(temperature)),
        ("top_p", json!(top_p)),
        ("top_k", json!(top_k.map_or(-1, |top| i64::from(top.get())))),
        ("min_p", json!(min_p)),
        ("frequency_penalty", json!(frequency_penalty)),
        ("presence_penalty", json!(presence_penalty)),
        ("repetition_penalty", json!(repetition_penalty)),
        ("seed", json!(choice_seed(seed.0, ask.choice, 0))),
        // The ids that end an answer are stated explicitly and override the server's own configuration.
        ("ignore_eos", json!(ignore_eos)),
        ("stop_token_ids", json!(stop_ids)),
    ] {
        fields.insert(name.to_owned(), value);
    }
    if let Some(top) = *logprobs {
        fields.insert("logprobs".to_owned(), top.into());
    }
    if let Some(form) = ask.form() {
        fields.insert("structured_outputs".to_owned(), form::vllm(form));
    }
    if !logit_bias.is_empty() {
        fields.insert("logit_bias".to_owned(), ask.bias_by_name());
    }
    fields
}

#[derive(Deserialize)]
struct VllmChunk {
    #[serde(default)]
    choices: Vec<VllmChoice>,
    usage: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct VllmChoice {
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    text: String,
    logprobs: Option<AnyScores>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum AnyScores {
    /// The format of `/inference/v1/generate`.
    ById { content: Vec<ById> },
    /// The format of completions.
    ByName(VllmScores),
}

#[derive(Deserialize)]
struct ById {
    logprob: Option<f32>,
    #[serde(default)]
    top_logprobs: Vec<VllmAlternative>,
}

#[derive(Deserialize)]
struct VllmAlternative {
    token_id: u32,
    logprob: Option<f32>,
}

#[derive(Deserialize)]
struct VllmScores {
    #[serde(default)]
    token_logprobs: Vec<Option<f32>>,
    #[serde(default)]
    top_logprobs: Vec<Option<Map<String, Value>>>,
}

/// Parses the data of one event, or the body of a server that answered in one piece.
///
/// # Errors
/// What is wrong with it, as text.
pub(super) fn read(data: &[u8]) -> Result<TokenPiece, String> {
    if data == b"[DONE]" {
        return Ok(TokenPiece::DONE);
    }
    let chunk: VllmChunk =
        serde_json::from_slice(data).map_err(|error| format!("an event that is none of vLLM's: {error}"))?;
    if let Some(error) = chunk.error {
        return Err(error_within(&error));
    }
    let cached =
        chunk.usage.and_then(|usage| tokens_of(usage.pointer("/prompt_tokens_details/cached_tokens")));
    let mut piece = TokenPiece { cached, ..TokenPiece::default() };
    for part in chunk.choices {
        let ids = part.token_ids.unwrap_or_default();
        if ids.is_empty() && !part.text.is_empty() {
            return Err("text without its token ids: is it older than vLLM 0.10.2?".to_owned());
        }
        piece.ids.extend_from_slice(&ids);
        if let Some(scores) = part.logprobs {
            piece.scores.extend(read_scores(scores));
        }
        if let Some(reason) = part.finish_reason {
            piece.finish = Some(finish(&reason)?);
        }
    }
    piece.checked()
}

fn read_scores(scores: AnyScores) -> Vec<TokenScore> {
    let scores = match scores {
        AnyScores::ByName(scores) => scores,
        AnyScores::ById { content } => {
            let alternative = |other: VllmAlternative| Some((other.token_id, other.logprob?));
            let one = |score: ById| {
                TokenScore::new(
                    score.logprob,
                    score.top_logprobs.into_iter().filter_map(alternative).collect(),
                )
            };
            return content.into_iter().map(one).collect();
        }
    };
    let mut tops = scores.top_logprobs.into_iter();
    let one = |chosen: Option<f32>| {
        let top = tops.next().flatten().unwrap_or_default();
        let alternative = |(name, logprob): (&String, &Value)| {
            let id = name.strip_prefix("token_id:")?.parse().ok()?;
            Some((id, logprob.as_f64()? as f32))
        };
        TokenScore::new(chosen, top.iter().filter_map(alternative).collect())
    };
    scores.token_logprobs.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use headrace_domain::FinishReason;

    use super::*;

    /// Events recorded from vLLM 0.32, and formats of other versions and of failures.
    #[test]
    fn recorded_events_are_read() {
        let ids = |ids: &[u32]| TokenPiece { ids: ids.to_vec(), ..TokenPiece::default() };
        for (data, piece) in [
            (
                r#"{"id":"cmpl-9","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" scriptly",
                "logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":[5,42],"token_ids":[24536]}],
                "usage":{"prompt_tokens":300,"total_tokens":301,"completion_tokens":1}}"#,
                Ok(ids(&[24536])),
            ),
            (
                r#"{"choices":[{"index":0,"text":" Choose","logprobs":null,"finish_reason":"length","token_ids":[7225]}]}"#,
                Ok(TokenPiece { finish: Some(FinishReason::Length), ..ids(&[7225]) }),
            ),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":300,"prompt_tokens_details":{"cached_tokens":288}}}"#,
                Ok(TokenPiece { cached: Some(288), ..TokenPiece::default() }),
            ),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":300,"prompt_tokens_details":null}}"#,
                Ok(TokenPiece::default()),
            ),
            // An invalid usage report does not harm the answer.
            (
                r#"{"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":-1}}}"#,
                Ok(TokenPiece::default()),
            ),
            (r#"{"choices":[],"usage":{"prompt_tokens_details":"x"}}"#, Ok(TokenPiece::default())),
            (r#"{"choices":[{"token_ids":[7],"finish_reason":null}],"usage":[1]}"#, Ok(ids(&[7]))),
            (
                r#"{"choices":[{"text":"ab","token_ids":[1,2],"finish_reason":null,"logprobs":{"text_offset":[0,1],
                "tokens":["token_id:1","token_id:2"],"token_logprobs":[-0.5,null],
                "top_logprobs":[{"token_id:7":-0.75,"token_id:1":-0.5},null]}}]}"#,
                Ok(TokenPiece {
                    scores: vec![
                        TokenScore { chosen: -0.5, top: vec![(1, -0.5), (7, -0.75)] },
                        TokenScore { chosen: f32::NEG_INFINITY, top: Vec::new() },
                    ],
                    ..ids(&[1, 2])
                }),
            ),
            // The format of `/inference/v1/generate`.
            (
                r#"{"request_id":"generate-tokens-8","usage":null,"prompt_token_ids":[5,42],"output_mode":"tokens","choices":[
                {"index":0,"finish_reason":"length","stop_reason":null,"token_ids":[24536],"routed_experts":null,
                "logprobs":{"content":[{"token_id":24536,"logprob":-6.5,"rank":1,"top_logprobs":[
                {"token_id":9,"logprob":-7.0,"rank":2},{"token_id":24536,"logprob":-6.5,"rank":1}]}]}}]}"#,
                Ok(TokenPiece {
                    finish: Some(FinishReason::Length),
                    scores: vec![TokenScore { chosen: -6.5, top: vec![(24536, -6.5), (9, -7.0)] }],
                    ..ids(&[24536])
                }),
            ),
            ("[DONE]", Ok(TokenPiece::DONE)),
            (r#"{"choices":[{"text":"old","finish_reason":null}]}"#, Err("older than vLLM 0.10.2")),
            (r#"{"choices":[{"text":"","token_ids":[],"finish_reason":"abort"}]}"#, Err("`abort`")),
            (r#"{"error":{"message":"it broke","code":500}}"#, Err("within its answer: it broke")),
            ("[1]", Err("none of vLLM's")),
        ] {
            match (read(data.as_bytes()), piece) {
                (Ok(read), Ok(piece)) => assert_eq!(read, piece, "{data}"),
                (Err(error), Err(words)) => assert!(error.contains(words), "{error}"),
                (read, _) => panic!("{data}: {read:?}"),
            }
        }
    }
}
