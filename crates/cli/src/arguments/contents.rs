//! Arguments of `headrace requests show`, `export` and `score`, of `headrace datasets` and of `headrace forget`. Must not
//! know how contents are stored.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{OrgId, ProjectId, RequestId, UnixNanos};
use headrace_trace::{RecordName, ScoreValue};

use super::shared::ServerArgs;
use super::times::TimeRangeArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum RequestsCommand {
    /// Show the recorded request and answer of a call, with its scores
    #[command(
        after_help = "Requests and answers are recorded only for projects whose policy says so:\nheadrace projects records PROJECT --level full"
    )]
    Show {
        /// Request id (req_...)
        id: RequestId,
    },
    /// Write recorded requests and answers as JSON lines, newest first
    #[command(after_help = "Example:\n  headrace requests export --project shop --since 7d > shop.jsonl")]
    Export {
        #[command(flatten)]
        filters: ContentFilterArgs,
        /// Maximum number of calls [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
        /// File to write [default: standard output]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Give a call a score
    #[command(
        after_help = "A call has one score of each name; the newest one counts.\n\nExample:\n  headrace requests score req_0192... --name quality --value 0.8"
    )]
    Score {
        /// Request id (req_...)
        id: RequestId,
        /// What is scored: letters, digits, `.`, `_` and `-`
        #[arg(long)]
        name: RecordName,
        /// The value, such as 0.8
        #[arg(long, allow_hyphen_values = true)]
        value: ScoreValue,
        /// A remark
        #[arg(long, default_value = "")]
        comment: String,
    },
}

/// Filters for recorded requests and answers.
#[derive(Debug, Args)]
pub(crate) struct ContentFilterArgs {
    #[command(flatten)]
    times: TimeRangeArgs,
    /// Only this organisation
    #[arg(long)]
    org: Option<OrgId>,
    /// Only this project
    #[arg(long)]
    project: Option<ProjectId>,
    /// Only this user, as named by the caller
    #[arg(long)]
    user: Option<String>,
    /// Only calls that this model served
    #[arg(long)]
    model: Option<String>,
    /// Text in the request or the answer; upper and lower case are the same
    #[arg(long)]
    text: Option<String>,
}

impl ContentFilterArgs {
    /// Returns the filters by name.
    ///
    /// # Errors
    /// A message that names the flag of an invalid value.
    pub(crate) fn named(&self, now: UnixNanos) -> Result<Vec<(String, String)>, String> {
        let time = |at: Option<UnixNanos>| at.map(|at| Rfc3339(at).to_string());
        let named = [
            ("from", time(self.times.since(now)?)),
            ("to", time(self.times.until(now)?)),
            ("org", self.org.as_ref().map(ToString::to_string)),
            ("project", self.project.as_ref().map(ToString::to_string)),
            ("user", self.user.clone()),
            ("model", self.model.clone()),
            ("text", self.text.clone()),
        ];
        Ok(named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    }
}

#[derive(Debug, Args)]
pub(crate) struct DatasetsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: DatasetsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DatasetsCommand {
    /// Create a dataset from recorded requests and answers
    #[command(
        after_help = "The items are copies: they stay when the calls expire, and go when the dataset is\ndeleted or their user is forgotten.\n\nExamples:\n  headrace datasets create returns --text refund --since 7d\n  headrace bench --dataset returns"
    )]
    Create {
        /// Name of the dataset: letters, digits, `.`, `_` and `-`
        name: RecordName,
        #[command(flatten)]
        filters: ContentFilterArgs,
        /// Maximum number of items; the newest calls are taken
        #[arg(long, value_name = "N", default_value_t = 1000)]
        limit: usize,
    },
    /// List datasets
    List,
    /// Write the items of a dataset as JSON lines
    Show {
        /// Name of the dataset
        name: RecordName,
    },
    /// Delete a dataset
    Delete {
        /// Name of the dataset
        name: RecordName,
    },
}

#[derive(Debug, Args)]
#[command(
    after_help = "Removes the user's name from traces and usage, and removes recorded requests and answers,\nstored responses and conversations, files and batches, and stored answers that have the name.\nThe ledger and the audit log name no users of callers and stay as they are.\n\nExamples:\n  headrace forget eva@example.com\n  headrace forget user-1234 --project shop"
)]
pub(crate) struct ForgetArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// The user, as callers name it (user, safety_identifier, metadata.user_id)
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) user: String,
    /// Only in this project
    #[arg(long)]
    pub(crate) project: Option<ProjectId>,
}
