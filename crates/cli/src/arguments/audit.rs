//! Arguments of `headrace audit`. Must not know how the log is stored.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::shared::ServerArgs;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) last: u32,
    #[command(subcommand)]
    pub(crate) command: Option<AuditCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Check the chain of the log and the signed statements about its end
    #[command(
        after_help = "Without FILE, the log of this server is checked, with the statements that the server\nadds to audit-heads.jsonl once an hour. With FILE, an export is checked; no server and\nno network is needed. Keep exports and the key elsewhere: who can write the data\ndirectory could write another log and sign it.\n\nExamples:\n  headrace audit verify\n  headrace audit verify audit.jsonl --key audit-keys.json"
    )]
    Verify {
        /// Export to check
        file: Option<PathBuf>,
        /// File with the set of public keys (headrace audit key)
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
    },
    /// Write the whole log as JSON lines; the last line is the signed end
    #[command(after_help = "Example:\n  headrace audit export > audit.jsonl")]
    Export,
    /// Print the public key that verifies the signed statements, as a JWK set
    #[command(after_help = "Example:\n  headrace audit key > audit-keys.json")]
    Key,
}
