//! Measures the number of tokens per word with two short calls. If they fail, the run ends before any load is sent.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::chunk::AnswerChunk;
use crate::conversation::CallWriter;
use crate::target::{BenchTarget, CallFailure};
use crate::{BenchError, TokenizerGauge};

/// Word counts of the shorter and the longer text. The first pair is the best; the later ones fit smaller context
/// windows. The best counts are multiples of a deck, which give the exact mean.
const TEXTS: [(u64, u64); 3] = [(64, 256), (64, 128), (16, 48)];

/// Measures the tokens per word for `writer`'s model on the server.
pub(crate) async fn calibrate(
    target: &BenchTarget,
    writer: &CallWriter,
    model: &str,
) -> Result<TokenizerGauge, BenchError> {
    let failed = |failure: CallFailure| BenchError::Probe {
        url: format!("{}{}", target.base(), target.endpoint()),
        denied: matches!(failure.status, Some(401 | 403)),
        why: match failure.message.as_str() {
            "" => failure.class,
            message => format!("{} ({message})", failure.class),
        },
    };
    let mut last = None;
    for (short, long) in TEXTS {
        let weighed = async {
            let least = prompt_tokens(target, writer, short).await?;
            Ok::<_, CallFailure>(least.zip(prompt_tokens(target, writer, long).await?))
        };
        match weighed.await {
            Ok(Some((least, most))) => {
                return Ok(TokenizerGauge::of_two("usage", (short, least), (long, most))
                    .unwrap_or(TokenizerGauge::ASSUMED));
            }
            Ok(None) => {
                return Ok(by_tokenize(target, writer, model).await.unwrap_or(TokenizerGauge::ASSUMED));
            }
            // The text may be too long for the model's context. Any other failure would affect all texts.
            Err(failure) if failure.status == Some(400) => last = Some(failure),
            Err(failure) => return Err(failed(failure)),
        }
    }
    last.map_or(Ok(TokenizerGauge::ASSUMED), |failure| Err(failed(failure)))
}

/// Tokens of a prompt of `words` words, from the server's usage. `None` if the server reports no usage.
async fn prompt_tokens(
    target: &BenchTarget,
    writer: &CallWriter,
    words: u64,
) -> Result<Option<u64>, CallFailure> {
    let body = target.ask_endpoint(writer.probe(words)).await?;
    let chunk = AnswerChunk::read(&body).map_err(|error| CallFailure {
        class: "protocol".to_owned(),
        message: format!("the answer is no completion: {error}"),
        status: None,
    })?;
    Ok(chunk.usage().map(|usage| usage.prompt))
}

/// vLLM's answer has a count; llama.cpp's has only the tokens.
#[derive(Deserialize)]
struct TokenizeAnswer {
    count: Option<u64>,
    tokens: Option<Vec<Value>>,
}

/// Measures with `/tokenize`, which does not know the chat template.
async fn by_tokenize(target: &BenchTarget, writer: &CallWriter, model: &str) -> Option<TokenizerGauge> {
    let mut counts = Vec::new();
    let (short, long) = *TEXTS.first()?;
    for words in [short, long] {
        let text = writer.probe_text(words);
        let body = json!({"model": model, "prompt": &text, "content": &text}).to_string();
        let answer = target.ask("tokenize", body.into_bytes()).await.ok()?;
        let answer: TokenizeAnswer = serde_json::from_slice(&answer).ok()?;
        let tokens = answer.tokens.map(|tokens| tokens.len());
        counts.push((words, answer.count.or_else(|| u64::try_from(tokens?).ok())?));
    }
    let gauge = TokenizerGauge::of_two("tokenize", *counts.first()?, *counts.last()?)?;
    // Without a template, the overhead is rounding or at most one begin-of-sequence token.
    Some(TokenizerGauge { overhead_tokens: 0.0, ..gauge })
}
