//! The rounds of a call in words, one line each. A call of one round has no such lines: the rest of its trace says the
//! same.

use headrace_domain::{RoundOutcome, TraceRecord, TraceRound};

use crate::units::{grouped, humane_duration, plain};

/// One line for each round, such as `2: large at b@eu answered (stop) after 1.20 s · 412 prompt · 48 generated`. Empty
/// if the call ran fewer than two.
pub fn round_lines(record: &TraceRecord) -> Vec<String> {
    if record.rounds.len() < 2 {
        return Vec::new();
    }
    let served = record.model_served.as_deref();
    let numbered = record.rounds.iter().enumerate();
    numbered.map(|(at, round)| format!("{}: {}", at + 1, round_text(round, served))).collect()
}

/// `model` is the one that handled the call in the end.
fn round_text(round: &TraceRound, model: Option<&str>) -> String {
    let names = [round.model.as_deref().or(model), round.worker.as_deref()];
    let served: Vec<String> = names.into_iter().flatten().map(plain).collect();
    let (served, took) = (served.join(" at "), humane_duration(round.duration_ns));
    let outcome = match &round.outcome {
        RoundOutcome::Answered { finish: Some(finish) } => format!("answered ({})", plain(finish)),
        RoundOutcome::Answered { finish: None } => "answered".to_owned(),
        RoundOutcome::Failed { code } => format!("failed ({})", plain(code)),
        RoundOutcome::CutShort => "was cut short".to_owned(),
    };
    let cached = match round.usage.cached_input {
        0 => String::new(),
        cached => format!(" ({} cached)", grouped(cached)),
    };
    let (prompt, generated) =
        (grouped(round.usage.prompt_tokens()), grouped(round.usage.completion_tokens()));
    format!("{served} {outcome} after {took} · {prompt} prompt{cached} · {generated} generated")
}
