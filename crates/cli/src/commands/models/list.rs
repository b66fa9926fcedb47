//! `headrace models list`: lists the models that the server serves, and those that other programs stored on this
//! machine. Must not know how they are found.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, ServerStatus, control};
use headrace_config::stored::{LocalCheckpoint, ModelFolders};
use headrace_terminal::output;
use serde_json::{Value, json};

use crate::arguments::ServerArgs;

/// Prints both lists.
pub(super) fn run(at: &ServerArgs) -> ExitCode {
    let status = served(at);
    let found = ModelFolders::of_process().list();
    if at.json {
        let text = serde_json::to_string_pretty(&as_json(status.as_ref(), &found)).unwrap_or_default();
        output::say(&format!("{text}\n"));
    } else {
        output::say(&as_text(status.as_ref(), &found));
    }
    ExitCode::SUCCESS
}

/// Returns the status of the server on the data directory, if one runs.
fn served(at: &ServerArgs) -> Option<ServerStatus> {
    let data_dir = crate::commands::data_dir(at).ok()?;
    match control::call(&data_dir, &AdminCommand::Status).ok()? {
        AdminReply::Status(status) => Some(status),
        _ => None,
    }
}

fn as_text(status: Option<&ServerStatus>, found: &[LocalCheckpoint]) -> String {
    let mut text = match status {
        Some(status) => {
            let names = status.models.iter().chain(&status.aliases);
            let names: String = names.map(|name| format!("  {name}\n")).collect();
            format!("served at {}:\n{names}", status.listen)
        }
        None => "no server runs on this data directory (--data-dir names another)\n".to_owned(),
    };
    if found.is_empty() {
        text.push_str("\nno other program has stored a model on this machine, as far as is known here (Hugging Face, Ollama, LM Studio, llama.cpp)\n");
    } else {
        text.push_str(
            "\nstored on this machine by other programs; serve one by its name: headrace up --model NAME\n",
        );
        let rows = found.iter().map(|stored| {
            vec![
                format!("  {}", stored.name),
                stored.program.to_owned(),
                stored.format.to_owned(),
                size(stored.bytes),
                stored.fault.map_or_else(
                    || stored.path.display().to_string(),
                    |fault| format!("cannot be served: it {fault}"),
                ),
            ]
        });
        text.push_str(&output::table(&["  name", "stored by", "format", "weights", "where"], rows.collect()));
    }
    text.push_str("\nHeadrace downloads nothing. hf download ORGANISATION/NAME (pip install huggingface_hub) and ollama pull NAME do; headrace models inspect PATH says what one is, or why it is refused\n");
    text
}

fn size(bytes: u64) -> String {
    match bytes {
        0 => "–".to_owned(),
        1..=0xF_FFFF => "<1 MiB".to_owned(),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn as_json(status: Option<&ServerStatus>, found: &[LocalCheckpoint]) -> Value {
    let served = status
        .map(|status| json!({"url": status.listen, "models": status.models, "aliases": status.aliases}));
    let found = found.iter().map(|stored| {
        json!({"name": stored.name, "program": stored.program, "format": stored.format, "weight_bytes": stored.bytes,
            "path": stored.path.display().to_string(), "fault": stored.fault})
    });
    json!({"served": served, "stored": found.collect::<Vec<_>>()})
}
