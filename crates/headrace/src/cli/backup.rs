//! Arguments of `headrace backup`. Must not know how a copy is made.

use std::path::PathBuf;

use clap::Args;

use super::shared::ServerArgs;

/// `headrace backup`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  headrace backup ./copy")]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Leave out the traces, which are the largest part: a server on the copy does not explain older calls
    #[arg(long)]
    pub(crate) no_traces: bool,
    /// The directory to make, with a copy of everything in it
    #[arg(value_name = "DIR")]
    pub(crate) to: PathBuf,
}
