//! Response formats that are expensive to follow or to compile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Map, Value, json};

use crate::common::PATIENCE;
use crate::world::{Attack, World};

/// Number of another caller's answers, each of [`OTHER_TOKENS`] tokens.
const OTHER_ANSWERS: usize = 20;
const OTHER_TOKENS: usize = 64;
/// Maximum number of tokens of the hostile answer meanwhile. Its first tokens are cheap.
const HOSTILE_TOKENS: usize = 120;
/// Number of compiling callers, and of schemas that each of them requests one after the other.
const COMPILERS: usize = 12;
const SCHEMAS: usize = 2;
/// Optional properties of a schema.
const PROPERTIES: usize = 4999;
/// Number of another caller's new response formats meanwhile.
const OTHER_FORMS: usize = 6;

/// A grammar in GBNF that can read each letter in many ways.
pub(crate) const GBNF: &str = "root ::= x x x x\nx ::= x x | [a-z ] | y\ny ::= x y | [a-z]";
/// The same grammar in Lark.
pub(crate) const LARK: &str = "start: x x x x\nx: x x | /[a-z ]/ | y\ny: x y | /[a-z]/";

/// An answer with an ambiguous grammar, in which each token takes longer than the one before. Another caller's answers
/// are counted against its tokens.
pub(crate) async fn ambiguous(world: Arc<World>, grammar: &'static str, choices: usize) -> Attack {
    let body = json!({"model": "headrace-demo", "prompt": "hi", "max_tokens": 1000, "n": choices, "temperature": 1,
        "ignore_eos": true, "stream": true, "structured_outputs": {"grammar": grammar}});
    let (tokens, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let hostile = tokio::spawn({
        let (world, tokens, ended) = (Arc::clone(&world), Arc::clone(&tokens), Arc::clone(&ended));
        async move {
            let call = world.http.post(format!("{}/v1/completions", world.server.url));
            let call = call.bearer_auth(&world.attacker).header("content-type", "application/json");
            let call = call.body(body.to_string()).timeout(PATIENCE * 10);
            if let Ok(mut answer) = call.send().await {
                while let Ok(Some(bytes)) = answer.chunk().await {
                    let events = bytes.windows(7).filter(|window| *window == b"data: {").count();
                    tokens.fetch_add(events, Ordering::Relaxed);
                }
            }
            ended.store(true, Ordering::Relaxed);
        }
    });
    let over = || ended.load(Ordering::Relaxed) || tokens.load(Ordering::Relaxed) > HOSTILE_TOKENS * choices;
    // The first token of the hostile answer has arrived, or the answer was refused.
    while tokens.load(Ordering::Relaxed) == 0 && !over() {
        tokio::task::yield_now().await;
    }
    let asked =
        json!({"model": "headrace-demo", "prompt": "hi", "max_tokens": OTHER_TOKENS, "ignore_eos": true});
    let mut answers = 0;
    while answers < OTHER_ANSWERS {
        let lost = tokens.load(Ordering::Relaxed) > HOSTILE_TOKENS * choices;
        if lost && !ended.load(Ordering::Relaxed) {
            hostile.abort();
            return Err(format!(
                "another caller got {answers} answers of {OTHER_TOKENS} tokens while the hostile one got {}",
                tokens.load(Ordering::Relaxed)
            ));
        }
        let (status, text) = world.post(&world.other, "/v1/completions", &asked).await;
        if status != 200 {
            return Err(format!("another caller's answer: {status} {text}"));
        }
        answers += 1;
    }
    hostile.abort();
    Ok(Box::new(()))
}

/// Calls of one key compile schemas with many optional properties. Another caller's small response formats are compiled
/// meanwhile.
pub(crate) async fn compile(world: Arc<World>) -> Attack {
    let floods: Vec<_> = (0..COMPILERS)
        .map(|caller| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                for at in 0..SCHEMAS {
                    let schema = large_schema(caller * SCHEMAS + at);
                    ask(&world, &world.attacker, json!({"json": schema})).await;
                }
            })
        })
        .collect();
    let mut refused = Vec::new();
    for at in 0..OTHER_FORMS {
        let (status, text) = ask(&world, &world.other, json!({"regex": format!("[a-c]{{1,3}}v{at}")})).await;
        if status != 200 {
            refused.push(format!("{status} {text}"));
        }
    }
    for flood in floods {
        flood.await.unwrap();
    }
    match refused.is_empty() {
        true => Ok(Box::new(())),
        false => {
            Err(format!("{} of {OTHER_FORMS} new forms of another caller: {}", refused.len(), refused[0]))
        }
    }
}

fn large_schema(unique: usize) -> Value {
    let properties: Map<String, Value> =
        (0..PROPERTIES).map(|at| (format!("p{unique}_{at}"), json!({"type": "string"}))).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

async fn ask(world: &World, key: &str, form: Value) -> (u16, String) {
    let body = json!({"model": "headrace-demo", "prompt": "a", "max_tokens": 4, "temperature": 1, "structured_outputs": form});
    world.post(key, "/v1/completions", &body).await
}
