//! vLLM by `/v1/completions` with ids in and out, which every server of it takes. Knows no text and no connection.
//!
//! Checked against recorded exchanges of vLLM 0.32. `return_token_ids` gives the ids (from 0.10.2 on), and
//! `return_tokens_as_token_ids` writes those of the log-probabilities as `token_id:24536`.

use headrace_domain::FinishReason;
use headrace_engine_api::Job;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::tokens::choice::Rules;

/// A token's log-probability, and its alternatives, best first.
#[derive(Debug, PartialEq)]
pub(super) struct Score {
    pub(super) chosen: f32,
    pub(super) top: Vec<(u32, f32)>,
}

/// What one event of the stream brings.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Piece {
    /// Ids since the last event.
    pub(super) ids: Vec<u32>,
    /// One for each id where asked for, or nothing.
    pub(super) scores: Vec<Score>,
    /// It ends, says the server.
    pub(super) finish: Option<FinishReason>,
    /// Prompt tokens out of the prefix cache.
    pub(super) cached: Option<u64>,
    /// The last event was this one.
    pub(super) done: bool,
}

/// The body for one answer. Its random numbers are of its own seed, so that they do not depend on how many answers there are.
pub(super) fn body(model: &str, job: &Job, rules: &Rules, choice: u32) -> Value {
    let sampling = &rules.sampling;
    let left = |count: u32| count.saturating_sub(job.generated);
    let mut body = json!({
        "model": model,
        "prompt": &*job.prompt,
        "stream": true,
        "stream_options": {"include_usage": true},
        "return_token_ids": true,
        // Tenants share no prefix: without its salt nobody finds another's.
        "cache_salt": job.salt.label().to_string(),
        "max_tokens": left(rules.limit),
        "min_tokens": left(sampling.min_tokens.min(rules.limit)),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k.map_or(-1, |top| i64::from(top.get())),
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": seed(sampling.seed.0, choice),
        // What ends an answer is said by id, whatever the server's own configuration says.
        "ignore_eos": sampling.ignore_eos,
        "stop_token_ids": rules.stop_ids(),
    });
    if let Some(fields) = body.as_object_mut() {
        if let Some(top) = sampling.logprobs {
            fields.insert("logprobs".to_owned(), top.into());
            fields.insert("return_tokens_as_token_ids".to_owned(), true.into());
        }
        if !sampling.logit_bias.is_empty() {
            let bias: Map<String, Value> =
                sampling.logit_bias.iter().map(|(id, bias)| (id.to_string(), json!(bias))).collect();
            fields.insert("logit_bias".to_owned(), bias.into());
        }
    }
    body
}

/// A seed for each choice, within the positive numbers of 63 bits that vLLM takes (SplitMix64's finalizer).
fn seed(seed: u64, choice: u32) -> u64 {
    let mut x = seed.wrapping_add(u64::from(choice).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) >> 1
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Part>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Part {
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    text: String,
    logprobs: Option<Scores>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Scores {
    #[serde(default)]
    token_logprobs: Vec<Option<f32>>,
    #[serde(default)]
    top_logprobs: Vec<Option<Map<String, Value>>>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// Reads the data of one event, or what a server says that answered whole.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn read(data: &[u8]) -> Result<Piece, String> {
    if data == b"[DONE]" {
        return Ok(Piece { done: true, ..Piece::default() });
    }
    let chunk: Chunk =
        serde_json::from_slice(data).map_err(|error| format!("an event that is none of vLLM's: {error}"))?;
    if let Some(error) = chunk.error {
        let message = error.get("message").unwrap_or(&error);
        return Err(format!(
            "an error within its answer: {}",
            message.as_str().unwrap_or("without a message")
        ));
    }
    let cached =
        chunk.usage.and_then(|usage| usage.prompt_tokens_details).and_then(|details| details.cached_tokens);
    let mut piece = Piece { cached, ..Piece::default() };
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
    if !piece.scores.is_empty() && piece.scores.len() != piece.ids.len() {
        return Err(format!("{} log-probabilities for {} tokens", piece.scores.len(), piece.ids.len()));
    }
    Ok(piece)
}

fn finish(reason: &str) -> Result<FinishReason, String> {
    match reason {
        "stop" => Ok(FinishReason::Stop),
        "length" => Ok(FinishReason::Length),
        other => Err(format!("it ended its answer with `{other}`")),
    }
}

fn read_scores(scores: Scores) -> Vec<Score> {
    let mut tops = scores.top_logprobs.into_iter();
    let one = |chosen: Option<f32>| {
        let told = tops.next().flatten().unwrap_or_default();
        let alternative = |(name, logprob): (&String, &Value)| {
            let id = name.strip_prefix("token_id:")?.parse().ok()?;
            Some((id, logprob.as_f64()? as f32))
        };
        let mut top: Vec<(u32, f32)> = told.iter().filter_map(alternative).collect();
        top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        // What JSON cannot write comes as nothing: a token that could not be chosen.
        Score { chosen: chosen.unwrap_or(f32::NEG_INFINITY), top }
    };
    scores.token_logprobs.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As vLLM 0.32 wrote them, and what other versions and failures write.
    #[test]
    fn recorded_events_are_read() {
        let ids = |ids: &[u32]| Piece { ids: ids.to_vec(), ..Piece::default() };
        for (data, piece) in [
            (
                r#"{"id":"cmpl-9","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" scriptly",
                "logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":[5,42],"token_ids":[24536]}],
                "usage":{"prompt_tokens":300,"total_tokens":301,"completion_tokens":1}}"#,
                Ok(ids(&[24536])),
            ),
            (
                r#"{"choices":[{"index":0,"text":" Choose","logprobs":null,"finish_reason":"length","token_ids":[7225]}]}"#,
                Ok(Piece { finish: Some(FinishReason::Length), ..ids(&[7225]) }),
            ),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":300,"prompt_tokens_details":{"cached_tokens":288}}}"#,
                Ok(Piece { cached: Some(288), ..Piece::default() }),
            ),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":300,"prompt_tokens_details":null}}"#,
                Ok(Piece::default()),
            ),
            (
                r#"{"choices":[{"text":"ab","token_ids":[1,2],"finish_reason":null,"logprobs":{"text_offset":[0,1],
                "tokens":["token_id:1","token_id:2"],"token_logprobs":[-0.5,null],
                "top_logprobs":[{"token_id:7":-0.75,"token_id:1":-0.5},null]}}]}"#,
                Ok(Piece {
                    scores: vec![
                        Score { chosen: -0.5, top: vec![(1, -0.5), (7, -0.75)] },
                        Score { chosen: f32::NEG_INFINITY, top: Vec::new() },
                    ],
                    ..ids(&[1, 2])
                }),
            ),
            ("[DONE]", Ok(Piece { done: true, ..Piece::default() })),
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

    #[test]
    fn every_choice_has_a_seed_of_its_own_that_vllm_takes() {
        let seeds: std::collections::BTreeSet<u64> =
            (0..100).flat_map(|choice| [seed(1, choice), seed(u64::MAX, choice)]).collect();
        assert!(seeds.len() == 200 && seeds.iter().all(|seed| *seed <= i64::MAX as u64));
    }
}
