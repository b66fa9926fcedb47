//! Texts that are expensive to read and are finally refused.

use std::sync::Arc;

use serde_json::json;

use crate::world::{Attack, World};

/// Bytes of a text, within the default bound on a body.
const TEXT_BYTES: usize = 7_500_000;
/// Bytes of a text whose processing fits the memory limit of a call.
const COUNTED_BYTES: usize = 2_500_000;
/// Number of prompts in one call.
const PROMPTS: usize = 1_000_000;

/// Number of callers with a key each, so that the memory limit of a key does not hide the cost of a call.
const CALLERS: usize = 3;

/// One text of repeated pieces for an encoder.
pub(crate) async fn embed(world: Arc<World>, piece: &'static str) -> Attack {
    let body = json!({"model": "encoder", "input": long(piece)});
    refused(&world, "/v1/embeddings", body.to_string()).await
}

/// Like [`embed`], with a request to truncate the text.
pub(crate) async fn embed_cut(world: Arc<World>) -> Attack {
    let body =
        json!({"model": "encoder", "input": long("."), "truncate": "END", "truncate_prompt_tokens": 8});
    refused(&world, "/v1/embeddings", body.to_string()).await
}

/// Like [`embed`], with a list of texts. By its bytes, each text nearly fits the window.
pub(crate) async fn embed_list(world: Arc<World>, piece: &'static str) -> Attack {
    let text = piece.repeat(3_700 / piece.len());
    let body = json!({"model": "encoder", "input": vec![text; 2_000]});
    refused(&world, "/v1/embeddings", body.to_string()).await
}

/// A short query and a long document for a reranking model.
pub(crate) async fn rank(world: Arc<World>, path: &'static str) -> Attack {
    let text = long(".");
    let body = match path {
        "/v1/rerank" => json!({"model": "encoder", "query": "what", "documents": [text, "short"]}),
        _ => json!({"model": "encoder", "text_1": "what", "text_2": [text, "short"]}),
    };
    refused(&world, path, body.to_string()).await
}

/// A million short prompts in one call.
pub(crate) async fn million_prompts(world: Arc<World>) -> Attack {
    let body = json!({"model": "headrace-demo", "prompt": vec!["a"; PROMPTS], "max_tokens": 1});
    refused(&world, "/v1/completions", body.to_string()).await
}

/// A request for the tokens of a long text.
pub(crate) async fn tokenize(world: Arc<World>) -> Attack {
    let body =
        json!({"model": "headrace-demo", "prompt": ".".repeat(COUNTED_BYTES), "return_token_strs": true})
            .to_string();
    answered(&world, "/tokenize", body).await
}

/// A request for the token count of a long text.
pub(crate) async fn count(world: Arc<World>) -> Attack {
    let messages = json!([{"role": "user", "content": ".".repeat(COUNTED_BYTES)}]);
    let body = json!({"model": "headrace-demo", "messages": messages}).to_string();
    answered(&world, "/v1/messages/count_tokens", body).await
}

fn long(piece: &str) -> String {
    piece.repeat(TEXT_BYTES / piece.len())
}

/// Checks that each call is refused as the caller's fault, or for a limit of the caller's key.
async fn refused(world: &Arc<World>, path: &'static str, body: String) -> Attack {
    statuses_are(world, path, body, &[400, 413, 429]).await
}

/// Checks that each call is answered or refused.
async fn answered(world: &Arc<World>, path: &'static str, body: String) -> Attack {
    statuses_are(world, path, body, &[200, 400, 413, 429, 503]).await
}

async fn statuses_are(world: &Arc<World>, path: &'static str, body: String, good: &[u16]) -> Attack {
    let keys = (0..CALLERS).map(|_| world.key(&[])).collect();
    let statuses = world.by_keys(keys, path, body).await;
    match statuses.iter().all(|status| good.contains(status)) {
        true => Ok(Box::new(())),
        false => Err(format!("{path}: {statuses:?}, expected {good:?}")),
    }
}
