//! The list of requests for `--last` and `--slowest`. A request takes one line if the terminal is wide enough for the
//! whole id, which is there to be copied. Otherwise it takes two. Does not know how the records were chosen.

use headrace_domain::{CallOutcome, TraceRecord};

use crate::WaterfallOptions;
use crate::units::{cells, clipped, format_utc, grouped, humane_duration, plain, utc_date};
use crate::waterfall::{WaterfallColor, outcome_word};

const HEAD: [&str; COLUMNS] =
    ["request", "when", "model", "outcome", "in (hit) → out", "TTFT", "total", "cost"];
const COLUMNS: usize = 8;
/// Whether a column is right-aligned.
const RIGHT: [bool; COLUMNS] = [false, false, false, false, true, true, true, true];
const MODEL: usize = 2;
const OUTCOME: usize = 3;
const TIME: usize = 6;
/// The minimum and maximum width of the model's column.
const MODEL_CELLS: (usize, usize) = (8, 32);
const GAP: &str = "  ";

/// The time that a list shows as a call's total.
#[derive(Clone, Copy)]
enum ShownTime {
    /// From the first byte to the end.
    Total,
    /// The same, without the time that the server waited for the client.
    Server,
}

/// The list in the given order. Each line ends in `\n`.
pub fn table(records: &[TraceRecord], options: &WaterfallOptions) -> String {
    list(records, ShownTime::Total, options)
}

/// The same list with the server's time, by which the slowest calls are ordered.
pub fn slowest_table(records: &[TraceRecord], options: &WaterfallOptions) -> String {
    list(records, ShownTime::Server, options)
}

fn list(records: &[TraceRecord], time: ShownTime, options: &WaterfallOptions) -> String {
    let Some(first) = records.first() else { return "no requests recorded\n".to_owned() };
    let one_day = records.iter().all(|record| utc_date(record.started) == utc_date(first.started));
    let pattern = if one_day { "%H:%M:%S" } else { "%m-%d %H:%M:%S" };
    let rows: Vec<[String; COLUMNS]> = records.iter().map(|record| row(record, pattern, time)).collect();

    let mut head = HEAD;
    if let (ShownTime::Server, Some(title)) = (time, head.get_mut(TIME)) {
        *title = "server";
    }
    let mut widths = head.map(cells);
    for row in &rows {
        for (width, text) in widths.iter_mut().zip(row) {
            *width = cells(text).max(*width);
        }
    }
    let fixed: usize = widths.iter().enumerate().filter(|(at, _)| *at != MODEL).map(|(_, width)| width).sum();
    let left = options.columns().saturating_sub(fixed + GAP.len() * (COLUMNS - 1));
    let day = if one_day { format!("{} UTC", utc_date(first.started)) } else { "times in UTC".to_owned() };
    let count =
        if records.len() == 1 { "1 request".to_owned() } else { format!("{} requests", records.len()) };
    let mut out = options.paint(WaterfallColor::Dim, &format!("{count} · {day}"));
    out.push('\n');
    if left >= MODEL_CELLS.0 {
        if let Some(width) = widths.get_mut(MODEL) {
            *width = (*width).min(left).min(MODEL_CELLS.1);
        }
        let head = line(&head.map(str::to_owned), &widths, |_, text| text);
        push(&mut out, &options.paint(WaterfallColor::Dim, &head));
        for (row, record) in rows.iter().zip(records) {
            push(&mut out, &line(row, &widths, |at, text| painted(record, at, text, options)));
        }
    } else {
        for (row, record) in rows.iter().zip(records) {
            two_lines(&mut out, row, record, options);
        }
    }
    out
}

fn row(record: &TraceRecord, pattern: &str, time: ShownTime) -> [String; COLUMNS] {
    let nanos = match time {
        ShownTime::Total => record.duration_ns,
        ShownTime::Server => record.server_ns(),
    };
    let (mark, _, word) = outcome_word(&record.outcome);
    // The finish reason says more than the word "completed". The mark distinguishes the outcomes.
    let outcome = match &record.outcome {
        CallOutcome::Completed { finish } => {
            finish.first().map_or_else(|| word.to_owned(), |reason| plain(reason))
        }
        CallOutcome::Refused(refusal) => refusal.status.to_string(),
        _ => word.to_owned(),
    };
    let model = record.model_served.as_deref().or(record.model_asked.as_deref()).map(plain);
    [
        record.request_id.to_string(),
        format_utc(record.started, pattern),
        model.unwrap_or_else(|| "–".to_owned()),
        format!("{mark} {outcome}"),
        tokens(record),
        record.time_to_first_token_ns().map_or_else(|| "–".to_owned(), humane_duration),
        humane_duration(nanos),
        record.cost.to_string(),
    ]
}

fn tokens(record: &TraceRecord) -> String {
    let usage = &record.usage;
    if usage.total() == 0 {
        return "–".to_owned();
    }
    let cached = match usage.cached_input {
        0 => String::new(),
        cached => format!(" ({})", grouped(cached)),
    };
    format!("{}{cached} → {}", grouped(usage.prompt_tokens()), grouped(usage.completion_tokens()))
}

fn line(
    row: &[String; COLUMNS],
    widths: &[usize; COLUMNS],
    paint: impl Fn(usize, String) -> String,
) -> String {
    let columns = row.iter().zip(widths).zip(RIGHT).enumerate().map(|(at, ((text, width), right))| {
        let text = clipped(text, *width);
        let pad = " ".repeat(width.saturating_sub(cells(&text)));
        if right { pad + &paint(at, text) } else { paint(at, text) + &pad }
    });
    columns.collect::<Vec<_>>().join(GAP)
}

fn two_lines(out: &mut String, row: &[String; COLUMNS], record: &TraceRecord, options: &WaterfallOptions) {
    let [id, when, model, outcome, tokens, _, total, cost] = row;
    let outcome = painted(record, OUTCOME, outcome.clone(), options);
    let id_line = options.paint(WaterfallColor::Bold, id);
    if cells(id) + cells(when) + cells(&row[OUTCOME]) + 2 * GAP.len() <= options.columns() {
        push(out, &format!("{id_line}{GAP}{when}{GAP}{outcome}"));
    } else {
        push(out, &id_line);
        push(out, &format!("{GAP}{when}{GAP}{outcome}"));
    }
    let mut facts = Vec::new();
    if record.usage.total() > 0 {
        facts.push(format!("{tokens} tokens"));
    }
    if let Some(nanos) = record.time_to_first_token_ns() {
        facts.push(format!("TTFT {}", humane_duration(nanos)));
    }
    facts.extend([total.clone(), cost.clone()]);
    // Puts as many facts on a line as fit. The model is clipped to make room for them, down to a few cells.
    let room = options.columns().saturating_sub(GAP.len());
    let all = facts.join(" · ");
    let beside = room.saturating_sub(cells(&all) + 3);
    if beside >= MODEL_CELLS.0 {
        push(out, &format!("{GAP}{} · {all}", clipped(model, beside)));
        return;
    }
    push(out, &format!("{GAP}{}", clipped(model, room)));
    let mut line = String::new();
    for fact in &facts {
        if !line.is_empty() && cells(&line) + 3 + cells(fact) > room {
            push(out, &format!("{GAP}{line}"));
            line.clear();
        }
        line.push_str(if line.is_empty() { "" } else { " · " });
        line.push_str(fact);
    }
    push(out, &format!("{GAP}{line}"));
}

fn painted(record: &TraceRecord, at: usize, text: String, options: &WaterfallOptions) -> String {
    if at == OUTCOME { options.paint(outcome_word(&record.outcome).1, &text) } else { text }
}

fn push(out: &mut String, line: &str) {
    out.push_str(line.trim_end());
    out.push('\n');
}
