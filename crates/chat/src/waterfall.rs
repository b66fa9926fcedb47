//! Draws a request's trace from `GET /v1/requests/ID`, with one bar per stage. Does not trust its values. `headrace
//! trace` draws from the stored record and shows more.

use std::fmt::Write as _;
use std::time::Duration;

use headrace_client::{Answer, Explain, Timing};
use serde_json::Value;

use super::typeset::wrapped;

/// Minimum and maximum width of the bars, in characters.
const BARS: (usize, usize) = (8, 80);
/// Columns of the figures, with the spaces around them.
const FIGURES: usize = 26;
/// Columns to assume if the terminal's width is unknown.
const USUAL_COLUMNS: usize = 80;

/// A row: a name, its start and its duration, in microseconds.
struct WaterfallRow {
    name: String,
    start_us: f64,
    took_us: f64,
}

/// The client's timings of an answer, from the start of the request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClientHalf {
    timing: Timing,
    trace_id: Option<String>,
    /// The longest time between two pieces, and the number of pieces.
    gap: Option<(Duration, usize)>,
}

impl ClientHalf {
    pub(super) fn of(answer: &Answer) -> Self {
        Self { timing: answer.timing, trace_id: answer.trace_id.clone(), gap: answer.longest_gap() }
    }

    /// Time until the connection was established. 0 if an open one was reused.
    fn connected_us(&self) -> f64 {
        self.timing.connect.map(|connect| micros(connect.total())).unwrap_or_default()
    }

    fn rows(&self) -> Vec<WaterfallRow> {
        let Timing { connect, sent, headers, first_token, last_token, .. } = self.timing;
        let mut rows = Vec::new();
        let mut at_us = 0.0;
        let mut until = |name: &str, end_us: f64| {
            rows.push(WaterfallRow {
                name: name.to_owned(),
                start_us: at_us,
                took_us: (end_us - at_us).max(0.0),
            });
            at_us = end_us.max(at_us);
        };
        if let Some(connect) = connect {
            let dns = connect.dns.map(micros).unwrap_or_default();
            if connect.dns.is_some() {
                until("dns", dns);
            }
            until("tcp", dns + micros(connect.tcp));
            if connect.tls.is_some() {
                until("tls", self.connected_us());
            }
        }
        if let Some(sent) = sent {
            until("send", micros(sent));
        }
        until("first byte", micros(headers));
        if let Some(first) = first_token {
            until("first token", micros(first));
        }
        if let Some(last) = last_token {
            until("last token", micros(last));
        }
        rows
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Draws the stages with their starts, durations and bars, then the outcome and the cost. `columns` is the terminal's
/// width, or 0 if unknown.
pub(super) fn draw(trace: &Value, columns: usize) -> String {
    let explain = Explain::from_value(trace.clone());
    let rows: Vec<WaterfallRow> = explain
        .stages
        .iter()
        .map(|stage| WaterfallRow {
            name: stage.name.clone(),
            start_us: stage.start_us,
            took_us: stage.duration_us,
        })
        .collect();
    let recorded = trace.get("duration_us").and_then(Value::as_f64).unwrap_or_default();
    let total = rows.iter().map(|row| row.start_us + row.took_us).fold(recorded, f64::max);
    let mut text = bars(&rows, total, columns);
    let facts = [Some(format!("{} in all", millis(total))), outcome(trace), cost(&explain)];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    let _ = writeln!(text, "{}", facts.join(" · "));
    text
}

/// Draws both ends of a call on one axis: the client's times, and within them the server's stages. The clocks of the
/// two machines are not compared. The time that neither end accounts for is network time. Half of it is assumed to be
/// before the server's start.
pub(super) fn draw_joined(trace: &Value, half: &ClientHalf, columns: usize) -> String {
    let explain = Explain::from_value(trace.clone());
    let server_us =
        trace.get("duration_us").and_then(Value::as_f64).filter(|us| us.is_finite()).unwrap_or_default();
    let here_us = micros(half.timing.total) - half.connected_us();
    let between_us = (here_us - server_us).max(0.0);
    let offset_us = half.connected_us() + between_us / 2.0;
    let mut rows = half.rows();
    rows.extend(explain.stages.iter().map(|stage| WaterfallRow {
        name: format!("  {}", stage.name),
        start_us: offset_us + stage.start_us,
        took_us: stage.duration_us,
    }));
    let total = rows.iter().map(|row| row.start_us + row.took_us).fold(micros(half.timing.total), f64::max);
    let mut text = bars(&rows, total, columns);
    let connection = match half.timing.connect {
        Some(connect) => format!("{} for a new connection", millis(micros(connect.total()))),
        None => "the connection was open".to_owned(),
    };
    let halves = format!(
        "{} here · {connection} · {} at the server · {} between the two",
        millis(micros(half.timing.total)),
        millis(server_us),
        millis(between_us)
    );
    let gap = half.gap.map(|(gap, pieces)| format!("{pieces} pieces, at most {} apart", millis(micros(gap))));
    let facts: Vec<String> = [outcome(trace), cost(&explain), gap].into_iter().flatten().collect();
    let joined = half.trace_id.as_ref().map(|id| format!("trace {id}"));
    let lines = [Some(halves), Some(facts.join(" · ")).filter(|facts| !facts.is_empty()), joined];
    for line in lines.into_iter().flatten() {
        let _ = writeln!(text, "{}", wrapped(&line, columns));
    }
    text
}

fn outcome(trace: &Value) -> Option<String> {
    trace.get("outcome").and_then(|outcome| outcome.get("kind")).and_then(Value::as_str).map(str::to_owned)
}

fn cost(explain: &Explain) -> Option<String> {
    explain.cost.map(|cost| cost.to_string())
}

fn bars(rows: &[WaterfallRow], total: f64, columns: usize) -> String {
    let name_width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or_default();
    let columns = if columns == 0 { USUAL_COLUMNS } else { columns };
    let width = columns.saturating_sub(name_width + FIGURES).clamp(BARS.0, BARS.1);
    let mut text = String::new();
    for row in rows {
        let (left, length) = place(row.start_us, row.took_us, total, width);
        let bar = format!("{}{}", " ".repeat(left), "█".repeat(length));
        let (start, took) = (millis(row.start_us), millis(row.took_us));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:name_width$} {start:>11} {took:>11}  {}", row.name, bar.trim_end());
    }
    text
}

/// Returns the start and the length of a bar: at least one character, and never beyond the width.
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
    use headrace_client::ConnectTimes;
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
    fn both_ends_stand_on_one_axis() {
        let ms = Duration::from_millis;
        let connect = ConnectTimes { dns: Some(ms(5)), tcp: ms(10), tls: Some(ms(15)) };
        let timing = Timing {
            connect: Some(connect),
            sent: Some(ms(31)),
            headers: ms(60),
            first_token: Some(ms(62)),
            last_token: Some(ms(98)),
            total: ms(100),
            retries: 0,
        };
        let half = ClientHalf { timing, trace_id: Some("4bf9".into()), gap: Some((ms(7), 9)) };
        let trace = json!({"duration_us": 50_000.0, "outcome": {"kind": "completed"}, "stages": [
            {"stage": "parse", "start_us": 0.0, "duration_us": 1_000.0},
            {"stage": "decode", "start_us": 10_000.0, "duration_us": 40_000.0}]});
        let text = draw_joined(&trace, &half, 100);
        for (name, start, took) in [
            ("dns", "0.000", "5.000"),
            ("tcp", "5.000", "10.000"),
            ("tls", "15.000", "15.000"),
            ("send", "30.000", "1.000"),
            ("first byte", "31.000", "29.000"),
            ("first token", "60.000", "2.000"),
            ("last token", "62.000", "36.000"),
            // 20 ms belong neither to the server nor to the connection. Half of them are before its start.
            ("  parse", "40.000", "1.000"),
            ("  decode", "50.000", "40.000"),
        ] {
            let row = format!("{name:11} {:>11} {:>11}  ", format!("{start} ms"), format!("{took} ms"));
            assert!(text.lines().any(|line| line.starts_with(&row)), "{row}\n{text}");
        }
        let said = "100.000 ms here · 30.000 ms for a new connection · 50.000 ms at the server · 20.000 ms between the two\n";
        assert!(draw_joined(&trace, &half, 0).contains(said), "{text}");
        assert!(text.contains("completed · 9 pieces, at most 7.000 ms apart\ntrace 4bf9\n"), "{text}");
        let warm = ClientHalf { timing: Timing { connect: None, ..timing }, ..half };
        for columns in [48, 60, 80, 120] {
            let text = draw_joined(&trace, &warm, columns);
            assert!(text.contains("connection") && !text.contains("tls"), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
        }
        let lying = json!({"duration_us": 1e300, "stages": [{"stage": "x", "start_us": -1e300, "duration_us": 1e300}]});
        draw_joined(&lying, &warm, 80);
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
