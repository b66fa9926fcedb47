//! A request's trace, as `GET /v1/requests/ID` gives it, drawn as one bar per stage. Trusts nothing in it.
//! (`headrace trace` draws from the stored record and shows more.)

use std::fmt::Write as _;

use headrace_client::Explain;
use serde_json::Value;

/// Width of the bars in characters, at least and at most.
const BARS: (usize, usize) = (8, 80);
/// Columns of the figures, with the spaces around them.
const FIGURES: usize = 26;
/// Where the terminal does not say how wide it is.
const USUAL_COLUMNS: usize = 80;

/// The stages with their starts, durations and bars, then the outcome and the cost, on a terminal of so many columns (0: it does not
/// say).
pub(super) fn draw(trace: &Value, columns: usize) -> String {
    let explain = Explain::from_value(trace.clone());
    let ends = explain.stages.iter().map(|stage| stage.start_us + stage.duration_us);
    let recorded = trace.get("duration_us").and_then(Value::as_f64).unwrap_or_default();
    let total = ends.fold(recorded, f64::max);
    let name_width = explain.stages.iter().map(|stage| stage.name.chars().count()).max().unwrap_or_default();
    let columns = if columns == 0 { USUAL_COLUMNS } else { columns };
    let width = columns.saturating_sub(name_width + FIGURES).clamp(BARS.0, BARS.1);
    let mut text = String::new();
    for stage in &explain.stages {
        let (left, length) = place(stage.start_us, stage.duration_us, total, width);
        let bar = format!("{}{}", " ".repeat(left), "█".repeat(length));
        let (start, duration) = (millis(stage.start_us), millis(stage.duration_us));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:name_width$} {start:>11} {duration:>11}  {}", stage.name, bar.trim_end());
    }
    let outcome = trace.get("outcome").and_then(|outcome| outcome.get("kind")).and_then(Value::as_str);
    let facts = [
        Some(format!("{} in all", millis(total))),
        outcome.map(str::to_owned),
        explain.cost.map(|cost| cost.to_string()),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    let _ = writeln!(text, "{}", facts.join(" · "));
    text
}

/// Where a bar begins and how long it is: at least one character, never beyond the width.
fn place(start: f64, duration: f64, total: f64, width: usize) -> (usize, usize) {
    let share = |part: f64| if total > 0.0 { (part / total).clamp(0.0, 1.0) } else { 0.0 };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share is between 0 and 1")]
    let columns = |share: f64| (share * width as f64).round() as usize;
    let left = columns(share(start)).min(width.saturating_sub(1));
    let right = columns(share(start + duration)).clamp(left + 1, width.max(left + 1));
    (left, right - left)
}

fn millis(micros: f64) -> String {
    format!("{:.3} ms", micros / 1e3)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bars_stand_where_the_time_went() {
        let trace = json!({"duration_us": 1000.0, "outcome": {"kind": "completed"},
            "cost": {"charged_nano_dollars": 9_400}, "stages": [
                {"stage": "parse", "start_us": 0.0, "duration_us": 100.0},
                {"stage": "prefill", "start_us": 250.0, "duration_us": 500.0}]});
        let bar = |left: usize, length: usize| format!("{}{}", " ".repeat(left), "█".repeat(length));
        let expected = format!(
            "parse      0.000 ms    0.100 ms  {}\nprefill    0.250 ms    0.500 ms  {}\n1.000 ms in all · completed · $0.0000094\n",
            bar(0, 4),
            bar(10, 20)
        );
        assert_eq!(draw(&trace, 73), expected);
        for columns in 40..130 {
            for line in draw(&trace, columns).lines() {
                assert!(line.chars().count() <= columns, "{columns}: {line}");
            }
        }
        assert_eq!(draw(&trace, 0), draw(&trace, 80));
    }

    #[test]
    fn lying_traces_draw_within_the_width() {
        let huge = json!({"stages": [{"stage": "x", "start_us": 1e300, "duration_us": 1e300},
            {"stage": "y", "start_us": -5.0, "duration_us": -9.0}, {"stage": "z", "duration_us": 0}]});
        for trace in [huge, json!({}), json!([]), json!({"stages": [{"stage": "x", "duration_us": 0}]})] {
            let text = draw(&trace, 0);
            assert!(text.lines().all(|line| line.matches('█').count() <= BARS.1), "{text}");
        }
    }
}
