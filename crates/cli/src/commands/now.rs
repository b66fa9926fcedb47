//! `headrace now`: shows the current activity of a running server. Turns the server's figures into text. Must not count
//! anything itself.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply};
use headrace_terminal::output;
use headrace_trace::{counted, humane_duration};
use serde_json::Value;

use crate::arguments::ServerArgs;
use crate::commands::{execute, unexpected};

/// Maximum number of calls that are listed.
const NAMED: usize = 10;

/// Queries the server and prints its figures.
pub(crate) fn run(at: &ServerArgs) -> ExitCode {
    execute(at, AdminCommand::Now, |reply| match reply {
        AdminReply::Now(now) => describe(&now),
        other => unexpected(&other),
    })
}

fn describe(now: &Value) -> String {
    let number = |path: &str| now.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
    let count = |path: &str| now.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let words = |path: &str| now.pointer(path).and_then(Value::as_str).unwrap_or("–").to_owned();
    let mut text = format!("in flight     {}", count("/in_flight/total"));
    let stages = now.pointer("/in_flight/by_stage").and_then(Value::as_object);
    let stages: Vec<String> =
        stages.into_iter().flatten().map(|(stage, count)| format!("{count} {stage}")).collect();
    if !stages.is_empty() {
        text += &format!(": {}", stages.join(" · "));
    }
    text += &format!("\nengines       {} running · {} waiting", count("/batch/now"), count("/queue_depth"));
    text += &format!(" · {} of {} KV blocks held\n", count("/kv/used_blocks"), count("/kv/blocks"));
    text += &format!(
        "last minute   {}: {} completed · {} refused · {} cancelled · {} failed · ${}\n",
        counted(count("/per_minute/calls"), "call"),
        count("/per_minute/completed"),
        count("/per_minute/refused"),
        count("/per_minute/cancelled"),
        count("/per_minute/failed"),
        words("/per_minute/spend_dollars"),
    );
    text += &format!(
        "  tokens/s    {:.1} prompt · {:.1} generated\n",
        number("/tokens_per_s/prompt"),
        number("/tokens_per_s/completion")
    );
    for (name, path) in [("TTFT", "ttft_us"), ("queue", "queue_us")] {
        let at = |percentile: &str| {
            let micros = now.pointer(&format!("/{path}/{percentile}")).and_then(Value::as_f64);
            micros.map_or_else(|| "–".to_owned(), |micros| humane_duration((micros * 1e3) as u64))
        };
        text += &format!("  {name:<11} {} median · {} 95th percentile\n", at("p50"), at("p95"));
    }
    let (hit, prompt) = (count("/cache/hit_tokens"), count("/cache/prompt_tokens"));
    let share = if prompt == 0 { 0.0 } else { hit as f64 * 100.0 / prompt as f64 };
    text += &format!("  cache       {hit} of {prompt} prompt tokens ({share:.1} %)\n");
    text + &calls(now) + &notes(now)
}

/// Lists the oldest calls in progress.
fn calls(now: &Value) -> String {
    let calls = now.get("calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if calls.is_empty() {
        return String::new();
    }
    let row = |call: &Value| {
        let word = |name: &str| call.get(name).and_then(Value::as_str).unwrap_or("–").to_owned();
        let age = call.get("age_us").and_then(Value::as_f64).unwrap_or(0.0);
        vec![word("id"), word("key"), word("model"), word("stage"), humane_duration((age * 1e3) as u64)]
    };
    let rows = calls.iter().take(NAMED).map(row).collect();
    format!("\n{}", output::table(&["oldest under way", "of", "model", "in", "for"], rows))
}

fn notes(now: &Value) -> String {
    let notes = now.get("notes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let line = |note: &Value| {
        let word = |name: &str| note.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        format!("- {} ({})\n", word("text"), word("request"))
    };
    let lines: String = notes.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}
