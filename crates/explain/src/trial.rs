//! Tests a lever: compares the saving forecast for a call's shape with the saving measured on an engine. Runs nothing
//! itself.

use headrace_domain::{CallOutcome, RequestId, Stage, StageSpan, TraceRecord};
use headrace_trace::{humane_duration, percent, three_digits};
use serde::Serialize;

use crate::explanation::explain;
use crate::levers::LeverName;
use crate::shape::CallShape;
use crate::usual::Usual;

/// Measurements of one run of a shape: one prompt, one answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    /// The sizes of the run.
    pub shape: CallShape,
    /// The engine's own record of it.
    pub engine: headrace_domain::EngineTrace,
    /// The tokens that it used.
    pub usage: headrace_domain::Usage,
    /// Nanoseconds until its first token.
    pub first_token_ns: u64,
    /// Nanoseconds in total.
    pub total_ns: u64,
}

/// A lever, with its forecast and its measured saving.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// The lever.
    pub lever: LeverName,
    /// The model of the test.
    pub model: String,
    /// Number of runs of each shape. The figures are those of the median run.
    pub runs: usize,
    /// The shape without the lever.
    pub before: CallShape,
    /// The shape with the lever.
    pub after: CallShape,
    /// Microseconds without the lever. For `stream`, until the whole answer was there.
    pub before_us: f64,
    /// Microseconds with the lever. For `stream`, until the first token.
    pub after_us: f64,
    /// The saving forecast for the run, in microseconds.
    pub foretold_us: f64,
    /// The measured saving, in microseconds.
    pub saved_us: f64,
    /// The saving forecast for the original call, in microseconds.
    pub foretold_of_the_call_us: Option<f64>,
    /// The result in one sentence.
    pub sentence: String,
    /// Differences between the test and the original call.
    pub notes: Vec<String>,
}

/// The shape of a call with a lever applied. `None` if the lever cannot be tested on an engine.
pub fn shape_with(lever: LeverName, shape: CallShape, missed_tokens: u64) -> Option<CallShape> {
    let changed = match lever {
        LeverName::ShorterPrompt => {
            let less = shape.computed_tokens / 2;
            CallShape {
                prompt_tokens: shape.prompt_tokens - less,
                computed_tokens: shape.computed_tokens - less,
                ..shape
            }
        }
        LeverName::CachedPrefix => {
            let found = missed_tokens.min(shape.computed_tokens.saturating_sub(1));
            CallShape {
                computed_tokens: shape.computed_tokens - found,
                cached_tokens: shape.cached_tokens + found,
                ..shape
            }
        }
        LeverName::FewerTokens => {
            CallShape { output_tokens: (shape.output_tokens - shape.output_tokens / 2).max(1), ..shape }
        }
        LeverName::Stream => CallShape { stream: true, ..shape },
        _ => return None,
    };
    Some(changed)
}

/// Compares two runs, and the forecast from the first run with the measured saving.
pub fn trial(
    record: &TraceRecord,
    lever: LeverName,
    model: &str,
    (before, after): (&Ran, &Ran),
    (runs, notes): (usize, Vec<String>),
) -> Trial {
    let foretold = |record: &TraceRecord| {
        let levers = explain(record, &Usual::unknown()).levers;
        levers.into_iter().find(|found| found.name == lever).map(|found| found.saves_us)
    };
    let foretold_us = foretold(&recorded(record, before)).unwrap_or(0.0);
    let (took, left) = match lever {
        LeverName::Stream => (before.total_ns, after.first_token_ns),
        _ => (before.total_ns, after.total_ns),
    };
    let saved_us = (took as f64 - left as f64) / 1e3;
    Trial {
        lever,
        model: headrace_trace::plain(model),
        runs,
        before: before.shape,
        after: after.shape,
        before_us: took as f64 / 1e3,
        after_us: left as f64 / 1e3,
        foretold_us,
        saved_us,
        foretold_of_the_call_us: foretold(record),
        sentence: sentence(lever, foretold_us, saved_us, took),
        notes,
    }
}

fn sentence(lever: LeverName, foretold_us: f64, saved_us: f64, before_ns: u64) -> String {
    let nanos = |us: f64| (us.abs() * 1e3) as u64;
    let part = |us: f64| format!("{} ({})", humane_duration(nanos(us)), percent(nanos(us), before_ns));
    let came = if saved_us < 0.0 {
        format!("it took {} longer", part(saved_us))
    } else {
        format!("it saved {}", part(saved_us))
    };
    let judged = match (saved_us, foretold_us) {
        (_, foretold) if foretold < 1.0 => String::new(),
        (saved, foretold) => format!(", {} times what was foretold", three_digits(saved / foretold)),
    };
    format!("`{lever}`: {} was foretold here, and {came}{judged}.", part(foretold_us))
}

/// A run as a trace record, so that the same rules produce its forecast.
fn recorded(of: &TraceRecord, ran: &Ran) -> TraceRecord {
    let (queue, total) = (ran.engine.queue_ns.min(ran.first_token_ns), ran.total_ns);
    let first = ran.first_token_ns.min(total);
    let span = |stage, start_ns: u64, end_ns: u64| StageSpan {
        stage,
        start_ns,
        duration_ns: end_ns.saturating_sub(start_ns),
        inside: None,
    };
    TraceRecord {
        request_id: RequestId::from_bits(of.request_id.bits()),
        duration_ns: total,
        first_token_ns: Some(first),
        stages: vec![
            span(Stage::Queue, 0, queue),
            span(Stage::Prefill, queue, first),
            span(Stage::Decode, first, total),
        ],
        usage: ran.usage,
        engine: Some(ran.engine.clone()),
        stream: ran.shape.stream,
        upstream: None,
        attempts: Vec::new(),
        billed: None,
        connection: None,
        outcome: CallOutcome::Completed { finish: vec!["length".to_owned()] },
        ..of.clone()
    }
}

impl Trial {
    /// Renders it as text of at most `columns` columns, with lines that end in `\n`.
    pub fn text(&self, columns: usize) -> String {
        let mut page = crate::render::Page::new(columns);
        page.line("tried on an engine here");
        page.paragraph("  ", &self.sentence);
        let took = |us: f64| humane_duration((us * 1e3) as u64);
        let sizes = |shape: &CallShape| {
            format!(
                "{} prompt tokens computed, {} cached, {} generated",
                shape.computed_tokens, shape.cached_tokens, shape.output_tokens
            )
        };
        page.line(&format!("  as it was    {:>9}  {}", took(self.before_us), sizes(&self.before)));
        page.line(&format!("  with it      {:>9}  {}", took(self.after_us), sizes(&self.after)));
        page.line(&format!("  foretold     {:>9}  to be saved", took(self.foretold_us)));
        page.line(&format!("  came of it   {:>9}  saved", signed(self.saved_us)));
        if let Some(us) = self.foretold_of_the_call_us {
            page.line(&format!("  of the call  {:>9}  foretold to be saved", took(us)));
        }
        page.paragraph(
            "  - ",
            &format!("`{}`, each shape {} times, the one in the middle.", self.model, self.runs),
        );
        for note in &self.notes {
            page.paragraph("  - ", note);
        }
        page.into_text()
    }
}

fn signed(us: f64) -> String {
    let sign = if us < 0.0 { "−" } else { "" };
    format!("{sign}{}", humane_duration((us.abs() * 1e3) as u64))
}
