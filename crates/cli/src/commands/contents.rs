//! `headrace requests show`, `export` and `score`, `headrace datasets` and `headrace forget`.

use std::io::Write;
use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, ContentAct, ContentReply};
use headrace_domain::{Clock, RequestId, SystemClock};
use headrace_terminal::output;
use headrace_trace::{CallScore, RecordName};
use serde_json::Value;

use crate::arguments::ServerArgs;
use crate::arguments::contents::{
    ContentFilterArgs, DatasetsArgs, DatasetsCommand, ForgetArgs, RequestsCommand,
};
use crate::commands::{CommandError, ask, execute, print, time, unexpected};

/// Contents of one page.
const PAGE: usize = 100;

/// Runs a subcommand of `headrace requests`.
pub(crate) fn requests(at: &ServerArgs, command: &RequestsCommand) -> ExitCode {
    match command {
        RequestsCommand::Show { id } => show(at, *id),
        RequestsCommand::Export { filters, limit, output } => {
            let written = match output {
                None => export(at, filters, limit.unwrap_or(usize::MAX), &mut std::io::stdout().lock()),
                Some(path) => std::fs::File::create(path)
                    .map_err(|error| CommandError::Other(format!("cannot write {}: {error}", path.display())))
                    .and_then(|file| {
                        export(at, filters, limit.unwrap_or(usize::MAX), &mut std::io::BufWriter::new(file))
                    }),
            };
            match written {
                Ok(count) => {
                    output::note(&format!("{count} calls"));
                    ExitCode::SUCCESS
                }
                Err(error) => error.exit(),
            }
        }
        RequestsCommand::Score { id, name, value, comment } => {
            let act =
                ContentAct::Score { id: *id, name: name.clone(), value: *value, comment: comment.clone() };
            execute(at, AdminCommand::Contents { act }, describe)
        }
    }
}

/// Runs `headrace datasets`.
pub(crate) fn datasets(args: &DatasetsArgs) -> ExitCode {
    let now = SystemClock::new().now();
    let act = match &args.command {
        DatasetsCommand::Create { name, filters, limit } => match filters.named(now) {
            Ok(filters) => ContentAct::CreateDataset { name: name.clone(), filters, limit: *limit },
            Err(why) => return output::refuse(&why),
        },
        DatasetsCommand::List => ContentAct::ListDatasets,
        DatasetsCommand::Show { name } => {
            let mut out = std::io::stdout().lock();
            return match each_item(&args.at, name, &mut |item| line(&mut out, &item)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => error.exit(),
            };
        }
        DatasetsCommand::Delete { name } => ContentAct::RemoveDataset { name: name.clone() },
    };
    execute(&args.at, AdminCommand::Contents { act }, describe)
}

/// Runs `headrace forget`.
pub(crate) fn forget(args: ForgetArgs) -> ExitCode {
    let ForgetArgs { at, user, project } = args;
    let act = ContentAct::Forget { user, project };
    match ask(&at, AdminCommand::Contents { act }) {
        Ok(AdminReply::Contents(ContentReply::Forgotten { stores })) => {
            let is_whole = stores.iter().all(|store| store.failed.is_none());
            let reply = AdminReply::Contents(ContentReply::Forgotten { stores });
            match at.json {
                true => {
                    output::say(&format!("{}\n", serde_json::to_string_pretty(&reply).unwrap_or_default()))
                }
                false => output::say(&describe(reply)),
            }
            if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Ok(other) => output::fail(&unexpected(&other)),
        Err(error) => error.exit(),
    }
}

/// Passes the items of a dataset to `take`, in order.
///
/// # Errors
/// An error if there is no such dataset, or `take` fails.
pub(crate) fn each_item(
    at: &ServerArgs,
    name: &RecordName,
    take: &mut dyn FnMut(Value) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let mut after = 0;
    loop {
        let act = ContentAct::ShowDataset { name: name.clone(), after, limit: PAGE };
        let (contents, next) = page(at, act)?;
        contents.into_iter().try_for_each(&mut *take)?;
        match next.and_then(|next| next.parse().ok()) {
            Some(next) => after = next,
            None => return Ok(()),
        }
    }
}

/// Writes the audit row of a search for contents in the files of a data directory, before it is made.
///
/// # Errors
/// An error if the row cannot be written.
pub(crate) fn note_search(at: &ServerArgs, filters: Vec<(String, String)>) -> Result<(), CommandError> {
    match ask(at, AdminCommand::Contents { act: ContentAct::NoteSearch { filters } })? {
        AdminReply::Contents(ContentReply::SearchNoted) => Ok(()),
        other => Err(CommandError::Other(unexpected(&other))),
    }
}

fn page(at: &ServerArgs, act: ContentAct) -> Result<(Vec<Value>, Option<String>), CommandError> {
    match ask(at, AdminCommand::Contents { act })? {
        AdminReply::Contents(ContentReply::Page { contents, next }) => Ok((contents, next)),
        other => Err(CommandError::Other(unexpected(&other))),
    }
}

fn export(
    at: &ServerArgs,
    filters: &ContentFilterArgs,
    most: usize,
    out: &mut dyn Write,
) -> Result<usize, CommandError> {
    let filters = filters.named(SystemClock::new().now()).map_err(CommandError::Other)?;
    let (mut count, mut after) = (0_usize, None);
    while count < most {
        let limit = most.saturating_sub(count).min(PAGE);
        let act = ContentAct::Search { filters: filters.clone(), after, limit };
        let (contents, next) = page(at, act)?;
        for content in contents {
            line(out, &content)?;
            count += 1;
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    out.flush().map_err(|error| CommandError::Other(error.to_string()))?;
    Ok(count)
}

fn line(out: &mut dyn Write, content: &Value) -> Result<(), CommandError> {
    writeln!(out, "{content}").map_err(|error| CommandError::Other(format!("cannot write: {error}")))
}

fn show(at: &ServerArgs, id: RequestId) -> ExitCode {
    let reply = match ask(at, AdminCommand::Contents { act: ContentAct::Show { id } }) {
        Ok(AdminReply::Contents(ContentReply::Content { content, scores })) => (content, scores),
        Ok(other) => return output::fail(&unexpected(&other)),
        Err(error) => return error.exit(),
    };
    let (content, scores) = reply;
    if at.json {
        let shown = serde_json::json!({ "content": content, "scores": scores });
        return print(Ok(format!("{shown:#}\n")));
    }
    let Some(content) = content else {
        let mut text = scores_text(&scores);
        text += "nothing is recorded of this call's request and answer, or it is no longer kept\n";
        text += "  headrace projects records PROJECT --level full   records them from then on\n";
        return print(Ok(text));
    };
    print(Ok(content_text(&content) + &scores_text(&scores)))
}

/// A content for people.
fn content_text(content: &Value) -> String {
    let word = |field: &str| content.get(field).and_then(Value::as_str).unwrap_or("–");
    let is_cut = |field: &str| content.get(field).and_then(Value::as_bool).unwrap_or(false);
    let mut text = format!(
        "{}  {}  {}  {}\nproject {}, user {}, recorded: {}, kept until {}\n\nrequest\n",
        word("id"),
        word("started"),
        word("endpoint"),
        word("model"),
        word("project"),
        word("user"),
        word("level"),
        word("expires")
    );
    match content.get("request") {
        Some(Value::String(raw)) => text += &format!("{raw}\n"),
        Some(request) => text += &format!("{request:#}\n"),
        None => {}
    }
    if is_cut("request_cut") {
        text += "(the end is not recorded: records.max_call)\n";
    }
    text += "\nanswer\n";
    for part in content.get("answer").and_then(Value::as_array).into_iter().flatten() {
        let word = |field: &str| part.get(field).and_then(Value::as_str).unwrap_or_default();
        let choice = part.get("choice").and_then(Value::as_u64).unwrap_or(0);
        let head = match word("kind") {
            "text" if choice == 0 => String::new(),
            "tool_call" => format!("[tool call {}] ", word("name")),
            kind => format!("[{kind}, choice {choice}] "),
        };
        text += &format!("{head}{}\n", word("text"));
    }
    if is_cut("answer_cut") {
        text += "(the end is not recorded: records.max_call)\n";
    }
    text
}

fn scores_text(scores: &[CallScore]) -> String {
    let mut text = String::new();
    for score in scores {
        let comment = if score.comment.is_empty() { String::new() } else { format!("  {}", score.comment) };
        text += &format!("score {} {} by {}{comment}\n", score.name, score.value, score.actor);
    }
    text
}

fn describe(reply: AdminReply) -> String {
    let AdminReply::Contents(reply) = reply else { return unexpected(&reply) };
    match reply {
        ContentReply::Scored { score } => format!("{} has {} {}\n", score.id, score.name, score.value),
        ContentReply::DatasetCreated { dataset } => {
            format!("dataset {} has {} items\n", dataset.name, dataset.items)
        }
        ContentReply::DatasetRemoved { name } => format!("dataset {name} is deleted\n"),
        ContentReply::Datasets { datasets } => {
            let rows = datasets.into_iter().map(|dataset| {
                let (name, items) = (dataset.name.to_string(), dataset.items.to_string());
                vec![name, items, time(Some(dataset.created)), dataset.actor, dataset.from]
            });
            output::table(&["dataset", "items", "created", "by", "from"], rows.collect())
        }
        ContentReply::Forgotten { stores } => {
            let rows = stores.into_iter().map(|store| {
                let left = store.failed.unwrap_or_else(|| "nothing is left".to_owned());
                vec![store.store, store.records.to_string(), left]
            });
            output::table(&["store", "records", "state"], rows.collect())
        }
        ContentReply::Scores { scores } => scores_text(&scores),
        ContentReply::SearchNoted => String::new(),
        other @ (ContentReply::Content { .. } | ContentReply::Page { .. }) => {
            unexpected(&AdminReply::Contents(other))
        }
    }
}
