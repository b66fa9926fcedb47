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
    /// Leave out the traces, the largest part. A server on the copy cannot explain older calls
    #[arg(long)]
    pub(crate) no_traces: bool,
    /// Directory to create for the copy
    #[arg(value_name = "DIR")]
    pub(crate) to: PathBuf,
}
