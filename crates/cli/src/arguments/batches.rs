//! Arguments of `headrace batches`. Must not know how a batch is run.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use headrace_domain::Endpoint;
use headrace_server_access::arguments::CallerArgs;
use headrace_wire::openai::{batch_endpoint, batch_window};

use crate::arguments::shared;

/// `headrace batches`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace batches submit requests.jsonl      one request per line; prints the batch's id\n  headrace batches wait batch_0192...         wait until the batch has ended\n  headrace batches results batch_0192...      the answers, one per line\n  headrace batches list\n\nA line of the file:\n  {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {\"model\": \"...\", \"messages\": [...]}}"
)]
pub(crate) struct BatchesArgs {
    #[command(flatten)]
    pub(crate) caller: CallerArgs,
    /// Print the server's JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: BatchesCommand,
}

/// The subcommand.
#[derive(Debug, Subcommand)]
pub(crate) enum BatchesCommand {
    /// List the project's batches, newest first
    List {
        /// Maximum number of batches
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
        limit: u32,
        /// Only batches listed after this batch
        #[arg(long, value_name = "ID")]
        after: Option<String>,
    },
    /// Show a batch: progress, files and faulty lines
    Show {
        /// Batch id
        id: String,
    },
    /// Check a file of requests line by line, upload the file and create a batch. Prints the batch's id
    Submit(SubmitArgs),
    /// Wait until a batch has ended. Ctrl-C stops the wait, not the batch
    #[command(after_help = "Example:\n  headrace batches wait batch_0192... --timeout 90m")]
    Wait {
        /// Batch id
        id: String,
        /// Maximum wait, such as 90m [default: until the batch ends]
        #[arg(long, value_name = "DURATION", value_parser = shared::duration)]
        timeout: Option<Duration>,
    },
    /// Write the answers of a batch that has ended
    #[command(
        after_help = "Examples:\n  headrace batches results batch_0192... --output answers.jsonl\n  headrace batches results batch_0192... > all.jsonl"
    )]
    Results {
        /// Batch id
        id: String,
        /// Write the requests without an answer, with reasons, instead of the answers
        #[arg(long)]
        errors: bool,
        /// Output file; an existing file is not overwritten [default: standard output]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Stop a batch from starting further requests. Running requests finish, and answers are kept
    Cancel {
        /// Batch id
        id: String,
    },
}

/// The arguments of `headrace batches submit`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  headrace batches submit requests.jsonl --window 90m --metadata run=nightly"
)]
pub(crate) struct SubmitArgs {
    /// File of requests, one JSON object per line
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Endpoint of the requests, such as /v1/chat/completions [default: the url of the first line]
    #[arg(long, value_name = "PATH", value_parser = endpoint)]
    pub(crate) endpoint: Option<Endpoint>,
    /// Time limit of the batch: 24h, or less, such as 90m. Requests that have not started by then do not run
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = window)]
    pub(crate) window: String,
    /// Label; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) metadata: Vec<(String, String)>,
}

fn endpoint(path: &str) -> Result<Endpoint, String> {
    batch_endpoint(path)
}

fn window(text: &str) -> Result<String, String> {
    batch_window(text).map(|_| text.to_owned())
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
