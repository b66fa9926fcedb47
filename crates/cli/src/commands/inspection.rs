//! `render`, `tokenize` and `doctor`: show what a model sees, and whether its files agree. Need no server and no data
//! directory. Must not know how the results are computed.

mod doctor;
mod input;
mod render;
mod tokenize;
mod which;

use std::process::ExitCode;

use headrace_terminal::output;

pub(crate) use doctor::run as doctor;
pub(crate) use render::run as render;
pub(crate) use tokenize::run as tokenize;

/// Prints a report as JSON.
fn say_json(report: &impl serde::Serialize) -> ExitCode {
    match serde_json::to_string_pretty(report) {
        Ok(text) => {
            output::say(&format!("{text}\n"));
            ExitCode::SUCCESS
        }
        Err(error) => output::fail(&error.to_string()),
    }
}
