//! A report as text for a terminal: the configuration, the table, the plots and the remarks. Knows no terminal: width
//! and colour are arguments.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table};

use crate::plot::{bars, curve, faint, short};
use crate::units::ratio;
use crate::{
    ArrivalSpread, BenchConfig, BenchReport, ConversationTurns, Goodput, LoadShape, Quantiles, TokenLength,
    Warmup, show_duration,
};

pub use crate::plot::PlotStyle;

/// Shorter runs, in seconds, show no curve.
const SHORTEST_CURVE: usize = 3;
/// Maximum error classes to show.
const MOST_ERRORS: usize = 8;

/// The report as text.
pub fn text(report: &BenchReport, look: PlotStyle) -> String {
    let mut out = String::new();
    let streamed = if report.parameters.stream { "streamed" } else { "not streamed" };
    let server = &report.server;
    let _ = writeln!(out, "{} at {}{} · {streamed}", server.model, server.url, server.endpoint);
    wrapped(&mut out, &what(&report.parameters), "", look.width);
    out.push('\n');
    out.push_str(&sums(report));
    out.push('\n');
    out.push_str(&table(report));
    plots(&mut out, report, look);
    if !report.errors.is_empty() {
        out.push_str("\nerrors\n");
        for error in report.errors.iter().take(MOST_ERRORS) {
            wrapped(
                &mut out,
                &format!("{} × {}: {}", error.calls, error.class, error.example),
                "  ",
                look.width,
            );
        }
    }
    if !report.remarks.is_empty() {
        out.push('\n');
        for remark in &report.remarks {
            wrapped(&mut out, &format!("! {remark}"), "  ", look.width);
        }
    }
    out
}

/// The configuration in words.
fn what(config: &BenchConfig) -> String {
    let mut parts = vec![load(config)];
    if !matches!(config.load, LoadShape::Replay { .. }) {
        let shape = &config.shape;
        parts.push(format!("prompt {}", length(shape.prompt)));
        if let Some(prefix) = &shape.prefix {
            let share = (prefix.share < 1.0).then(|| format!(" in {:.0} %", prefix.share * 100.0));
            let groups = (prefix.groups > 1).then(|| format!(", {} different", prefix.groups));
            parts.push(format!(
                "{} shared{}{}",
                prefix.tokens,
                share.unwrap_or_default(),
                groups.unwrap_or_default()
            ));
        }
        parts.push(format!("output {}", length(shape.output)));
        match shape.turns {
            ConversationTurns::Single => {}
            ConversationTurns::Chat(turns) => {
                parts.push(format!("{turns} turns of {} more", length(shape.turn_tokens)))
            }
            ConversationTurns::Agent { hops, .. } => {
                parts.push(format!("{hops} agent hops of {} more", length(shape.turn_tokens)));
            }
        }
    }
    if config.ignore_eos {
        parts.push("ignoring end-of-sequence".to_owned());
    }
    match config.warmup {
        Warmup::Calls(0) => {}
        Warmup::Calls(calls) => parts.push(format!("after {calls} calls of warm-up")),
        Warmup::Time(time) => parts.push(format!("after {} of warm-up", show_duration(time))),
    }
    parts.push(format!("seed {} · text seed {}", config.seed, config.text_seed));
    parts.join(" · ")
}

fn length(length: TokenLength) -> String {
    format!("{length} tokens")
}

fn load(config: &BenchConfig) -> String {
    match &config.load {
        LoadShape::Closed { users, think } => {
            let think = (*think != crate::PauseLength::NONE).then(|| format!(", thinking {think}"));
            let plural = if *users == 1 { "" } else { "s" };
            format!("closed loop, {users} user{plural}{}", think.unwrap_or_default())
        }
        LoadShape::Open { rate, arrivals } => match arrivals {
            ArrivalSpread::Poisson => format!("open loop, {rate} arrivals/s"),
            ArrivalSpread::Bursts(size) => format!("open loop, {rate} arrivals/s in bursts of {size}"),
            ArrivalSpread::Gamma(shape) => format!("open loop, {rate} arrivals/s, burstiness {shape}"),
        },
        LoadShape::Replay { calls, speed } => {
            let speed = (*speed != 1.0).then(|| format!(" at {speed}× its speed"));
            format!("replay of {} calls{}", calls.len(), speed.unwrap_or_default())
        }
    }
}

fn sums(report: &BenchReport) -> String {
    let calls = &report.calls;
    let mut ended = vec![format!("{} ok", calls.ok)];
    for (count, what) in [
        (calls.failed, "failed"),
        (calls.unsent, "never sent"),
        (calls.cut_off, "given up at the end"),
        (calls.abandoned, "left out after a failure"),
    ] {
        if count > 0 {
            ended.push(format!("{count} {what}"));
        }
    }
    ended.push(format!("in {:.1} s", report.window_s));
    let mut rows = vec![("calls", ended.join(" · "))];
    let rates = &report.rates;
    let due = rates.due_per_s.map(|due| format!("{} calls/s due · ", short(due)));
    rows.push((
        "rate",
        format!(
            "{}{} calls/s · {} prompt tokens/s · {} output tokens/s",
            due.unwrap_or_default(),
            short(rates.requests_per_s),
            short(rates.prompt_tokens_per_s),
            short(rates.output_tokens_per_s)
        ),
    ));
    let tokens = &report.tokens;
    if calls.ok > 0 {
        let cached = tokens
            .cached
            .map(|cached| format!(" ({:.0} % cached)", 100.0 * ratio(cached as f64, tokens.prompt as f64)));
        rows.push((
            "tokens",
            format!(
                "prompt {}{} · output {}",
                spread(&tokens.prompt_per_call),
                cached.unwrap_or_default(),
                spread(&tokens.output_per_call)
            ),
        ));
    }
    if let Some(goodput) = &report.goodput {
        rows.push(("goodput", good(goodput)));
    }
    rows.iter().fold(String::new(), |mut out, (name, value)| {
        let _ = writeln!(out, "{name:<9}{value}");
        out
    })
}

/// `512`, or `512 mean (64…1024)`.
fn spread(tokens: &Quantiles) -> String {
    if tokens.count == 0 {
        return "unknown".to_owned();
    }
    if tokens.min == tokens.max {
        return format!("{:.0}", tokens.mean);
    }
    format!("{:.0} mean ({:.0}…{:.0})", tokens.mean, tokens.min, tokens.max)
}

fn good(goodput: &Goodput) -> String {
    let missed = &goodput.missed;
    let mut text = format!(
        "{:.1} % of {} within {} · {} calls/s · {} output tokens/s",
        100.0 * goodput.share,
        goodput.offered,
        goodput.slo,
        short(goodput.requests_per_s),
        short(goodput.output_tokens_per_s)
    );
    let reasons = [
        (missed.ttft, "ttft"),
        (missed.itl, "itl"),
        (missed.gap, "gap"),
        (missed.e2e, "e2e"),
        (missed.failed, "failed"),
        (missed.unsent, "never sent"),
    ];
    let reasons: Vec<String> =
        reasons.iter().filter(|(count, _)| *count > 0).map(|(count, why)| format!("{count} {why}")).collect();
    if !reasons.is_empty() {
        let _ = write!(text, "\n{:<9}missed: {}", "", reasons.join(" · "));
    }
    text
}

fn table(report: &BenchReport) -> String {
    let latency = &report.latency;
    let open = !matches!(report.parameters.load, LoadShape::Closed { .. });
    let mut rows: Vec<(&str, &Quantiles)> = Vec::new();
    if open {
        rows.push(("TTFT, from due", &latency.from_due.ttft_ms));
        rows.push(("TTFT, from sent", &latency.from_sent.ttft_ms));
    } else {
        rows.push(("TTFT", &latency.from_due.ttft_ms));
    }
    rows.push(("between tokens (ITL)", &latency.itl_ms));
    rows.push(("per token (TPOT)", &latency.tpot_ms));
    if open {
        rows.push(("end to end, from due", &latency.from_due.e2e_ms));
        rows.push(("end to end, from sent", &latency.from_sent.e2e_ms));
        rows.push(("due to sent", &latency.send_lag_ms));
    } else {
        rows.push(("end to end", &latency.from_due.e2e_ms));
    }
    rows.retain(|(_, times)| times.count > 0);
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["", "mean", "p50", "p90", "p95", "p99", "max"]);
    for (name, times) in rows {
        let all = [times.mean, times.p50, times.p90, times.p95, times.p99, times.max];
        table.add_row(std::iter::once(name.to_owned()).chain(all.map(time)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    // The style starts each line with a space, which the first column does not need.
    table.lines().fold(String::new(), |mut out, line| {
        let _ = writeln!(out, "{}", line.strip_prefix(' ').unwrap_or(&line).trim_end());
        out
    })
}

/// Milliseconds with a unit and three digits.
fn time(millis: f64) -> String {
    match millis {
        _ if millis >= 99_950.0 => format!("{:.0} s", millis / 1e3),
        _ if millis >= 9_995.0 => format!("{:.1} s", millis / 1e3),
        _ if millis >= 999.5 => format!("{:.2} s", millis / 1e3),
        _ if millis >= 99.95 => format!("{millis:.0} ms"),
        _ if millis >= 9.995 => format!("{millis:.1} ms"),
        _ if millis >= 0.9995 => format!("{millis:.2} ms"),
        _ => format!("{:.0} µs", millis * 1e3),
    }
}

fn plots(out: &mut String, report: &BenchReport, look: PlotStyle) {
    let buckets = &report.latency.histogram;
    if buckets.len() > 1 {
        let what = if report.parameters.stream { "TTFT" } else { "end to end" };
        let from = if matches!(report.parameters.load, LoadShape::Closed { .. }) { "" } else { ", from due" };
        let _ = writeln!(out, "\n{what}{from}: calls up to");
        let rows: Vec<(String, u64)> =
            buckets.iter().map(|bucket| (edge(bucket.up_to_ms), bucket.calls)).collect();
        out.push_str(&bars(&rows, look));
    }
    // The last second is incomplete and would look like a drop, so it is left out. (A float cast saturates.)
    let whole = report.series.iter().take(report.elapsed_s as usize);
    let values: Vec<f64> = whole.map(|second| second.output_tokens as f64).collect();
    if values.len() >= SHORTEST_CURVE {
        out.push_str("\noutput tokens/s over the run");
        if report.parameters.warmup != Warmup::Calls(0) {
            faint(out, " (with the warm-up)", look);
        }
        out.push('\n');
        out.push_str(&curve(&values, |second| format!("{second} s"), look));
    }
}

/// The edge of a bucket, with at most two digits.
fn edge(millis: f64) -> String {
    if millis < 1.0 {
        format!("{:.0} µs", millis * 1e3)
    } else if millis < 1e3 {
        format!("{millis} ms")
    } else {
        format!("{} s", millis / 1e3)
    }
}

/// Wraps text to `width`. Each line after the first starts with `indent`.
fn wrapped(out: &mut String, text: &str, indent: &str, width: usize) {
    let mut column = 0_usize;
    for (at, word) in text.split_whitespace().enumerate() {
        let length = word.chars().count();
        if at > 0 && column.saturating_add(length).saturating_add(1) > width {
            out.push('\n');
            out.push_str(indent);
            column = indent.len();
        } else if at > 0 {
            out.push(' ');
            column = column.saturating_add(1);
        }
        out.push_str(word);
        column = column.saturating_add(length);
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        for (millis, shown) in [
            (0.0, "0 µs"),
            (0.0124, "12 µs"),
            (1.234, "1.23 ms"),
            (12.34, "12.3 ms"),
            (123.4, "123 ms"),
            (999.9, "1.00 s"),
            (12_345.0, "12.3 s"),
            (123_456.0, "123 s"),
        ] {
            assert_eq!(time(millis), shown);
        }
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        let mut out = String::new();
        wrapped(&mut out, "one two three four", "  ", 9);
        assert_eq!(out, "one two\n  three\n  four\n");
    }
}
