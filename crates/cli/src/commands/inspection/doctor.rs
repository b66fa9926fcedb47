//! `headrace doctor`: checks whether a model's files agree with each other. Must not know the checks.

use std::process::ExitCode;

use headrace_inspect::{Diagnosis, Facts, Finding, Severity, printable};
use headrace_terminal::output;
use headrace_trace::counted;
use serde::Serialize;

use super::which::find;

use crate::arguments::inspection::DoctorArgs;

/// The printed report.
#[derive(Serialize)]
struct DoctorReport {
    model: String,
    #[serde(flatten)]
    diagnosis: Diagnosis,
}

pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let found = match find(args.config.as_deref(), args.model.as_deref()) {
        Ok(found) => found,
        Err(why) => return output::refuse(&why),
    };
    let report = DoctorReport { diagnosis: found.diagnose(), model: found.name };
    let severity = report.diagnosis.worst();
    if args.json {
        super::say_json(&report);
    } else {
        let (width, color) = output::terminal();
        output::say_drawn(&draw(&report, width, color));
    }
    let bad = if args.strict { Severity::Warning } else { Severity::Fault };
    match severity.is_some_and(|worst| worst >= bad) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

fn draw(report: &DoctorReport, width: usize, color: bool) -> String {
    let Diagnosis { facts, findings } = &report.diagnosis;
    let mut out = format!("{}\n", report.model);
    for (name, value) in lines(facts) {
        out.push_str(&format!("  {name:<12}{}\n", printable(&value)));
    }
    for finding in findings {
        out.push_str(&format_finding(finding, width, color));
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (faults, warnings, notes) = (count(Severity::Fault), count(Severity::Warning), count(Severity::Note));
    out.push_str(&match (faults, warnings, notes) {
        (0, 0, 0) => "\nnothing is wrong with it\n".to_owned(),
        _ => format!(
            "\n{}, {}, {}\n",
            counted(faults as u64, "fault"),
            counted(warnings as u64, "warning"),
            counted(notes as u64, "note")
        ),
    });
    out
}

fn lines(facts: &Facts) -> Vec<(&'static str, String)> {
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let or_dash = |list: &[String]| if list.is_empty() { "–".to_owned() } else { list.join(", ") };
    vec![
        ("vocabulary", format!("{} rows, {} ids", facts.vocabulary, facts.tokenizer_ids)),
        (
            "context",
            facts.context.map_or_else(|| "not said".to_owned(), |context| format!("{context} positions")),
        ),
        ("begins with", or_dash(&facts.before)),
        ("opens with", facts.opens.as_ref().map_or_else(|| "–".to_owned(), |opens| format!("{opens:?}"))),
        ("ends with", or_dash(&facts.ends)),
        ("shows tools", yes(facts.shows_tools)),
        ("calls", facts.family.to_owned()),
        ("thinks", yes(facts.thinks)),
    ]
}

fn format_finding(finding: &Finding, width: usize, color: bool) -> String {
    let shade = match finding.severity {
        Severity::Fault => "\x1b[1;31m",
        Severity::Warning => "\x1b[1;33m",
        Severity::Note => "\x1b[1;36m",
    };
    let (on, off) = if color { (shade, "\x1b[0m") } else { ("", "") };
    let mut out =
        format!("\n{on}{}{off} {}: {}\n", finding.severity.name(), finding.code, printable(&finding.what));
    for (name, text) in [("shown by", &finding.evidence), ("way out", &finding.way_out)] {
        for (at, line) in wrapped(&printable(text), width.saturating_sub(12).max(20)).iter().enumerate() {
            let name = if at == 0 { name } else { "" };
            out.push_str(&format!("  {name:<10}{line}\n"));
        }
    }
    out
}

/// Wraps words into lines of at most `columns` columns. A longer word gets its own line.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split_whitespace() {
        let room = lines.last().map_or(0, |line| line.chars().count().saturating_add(word.chars().count()));
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if room < columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
