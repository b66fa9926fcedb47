//! Arguments of `headrace batches`. Must not know how a batch is run.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use headrace_domain::Endpoint;
use headrace_wire::{batch_endpoint, batch_window};

use crate::cli::caller::CallerArgs;
use crate::cli::shared;

/// `headrace batches`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace batches submit requests.jsonl      one request a line; prints the batch's id\n  headrace batches wait batch_0192...         until it has ended\n  headrace batches results batch_0192...      its answers, one a line\n  headrace batches list\n\nA line of the file:\n  {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {\"model\": \"...\", \"messages\": [...]}}"
)]
pub(crate) struct BatchesArgs {
    #[command(flatten)]
    pub(crate) caller: CallerArgs,
    /// Print JSON, as the server tells it
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
        /// How many
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
        limit: u32,
        /// Those behind this one
        #[arg(long, value_name = "ID")]
        after: Option<String>,
    },
    /// Show one: how far it is, its files, and what is wrong with its lines
    Show {
        /// Its id
        id: String,
    },
    /// Check a file of requests line by line, send it, and create a batch of it. Prints the batch's id
    Submit(SubmitArgs),
    /// Wait until one has ended. Ctrl-C ends the waiting, and not the batch
    #[command(after_help = "Example:\n  headrace batches wait batch_0192... --timeout 90m")]
    Wait {
        /// Its id
        id: String,
        /// How long at most, such as 90m [default: until it ends]
        #[arg(long, value_name = "DURATION", value_parser = shared::duration)]
        timeout: Option<Duration>,
    },
    /// Write the answers of one that has ended
    #[command(
        after_help = "Examples:\n  headrace batches results batch_0192... --output answers.jsonl\n  headrace batches results batch_0192... > all.jsonl"
    )]
    Results {
        /// Its id
        id: String,
        /// The requests that were not answered, and why, instead of the answers
        #[arg(long)]
        errors: bool,
        /// Where to; a file that is there stays as it is [default: standard output]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Have one begin no further request; those under way end, and what was answered is kept
    Cancel {
        /// Its id
        id: String,
    },
}

/// The arguments of `headrace batches submit`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  headrace batches submit requests.jsonl --window 90m --metadata run=nightly"
)]
pub(crate) struct SubmitArgs {
    /// The requests, one JSON object a line
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// What they call, such as /v1/chat/completions [default: the url of the first line]
    #[arg(long, value_name = "PATH", value_parser = endpoint)]
    pub(crate) endpoint: Option<Endpoint>,
    /// How long it may take: 24h, or less, such as 90m. What has not begun by then is not begun
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = window)]
    pub(crate) window: String,
    /// A label; may be given several times
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
