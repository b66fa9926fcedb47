//! The `headrace` block of an answer: its stages, tokens and cost, where the caller asked for them.

use headrace_domain::{EngineTrace, TraceRecord};
use serde_json::{Value, json};

/// The block as it stands before the last word of the answer. Times in microseconds, starts from the request's first byte. Stages
/// that are not `inside` another follow each other; the first token counts from when the request was whole.
pub(crate) fn block(record: &TraceRecord) -> Value {
    let micros = |ns: u64| ns as f64 / 1000.0;
    let stages: Vec<Value> = record
        .stages
        .iter()
        .map(|span| {
            json!({
                "stage": span.stage.name(),
                "inside": span.inside.map(|stage| stage.name()),
                "start_us": micros(span.start_ns),
                "duration_us": micros(span.duration_ns),
            })
        })
        .collect();
    json!({
        "request_id": record.request_id.to_string(),
        "model": record.model_served,
        "stages": stages,
        "cache": record.engine.as_ref().map(cache),
        "client_us": micros(record.client_ns()),
        "ttft_us": record.time_to_first_token_ns().map(micros),
        "usage": record.usage,
        "cost_nano_dollars": record.cost.get(),
        "cost": record.cost.to_string(),
        "held_nano_dollars": record.held.get(),
    })
}

/// What of the prompt was found in the prefix cache, and why not more. Nothing of what others asked is told.
fn cache(engine: &EngineTrace) -> Value {
    let miss = engine
        .miss
        .map(|miss| json!({ "reason": miss.reason.name(), "token": miss.token, "place": miss.place }));
    json!({
        "prompt_blocks": engine.prompt_blocks,
        "cached_blocks": engine.cached_blocks,
        "miss": miss,
    })
}
