//! Arguments of `headrace secrets`. Must not know how secrets are encrypted.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::shared::ServerArgs;

/// `headrace secrets`
#[derive(Debug, Args)]
pub(crate) struct SecretsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: SecretsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SecretsCommand {
    /// Encrypt the stored secrets with the key of another file, even while servers run
    ///
    /// `storage.secret_file` names the file of the present key, or is not set if the secrets are not encrypted yet. Running servers
    /// continue. Their next start needs the new file, so change the setting of all servers afterwards.
    #[command(
        after_help = "Steps:\n  openssl rand -hex 32 > new-key && chmod 600 new-key\n  headrace secrets rewrap new-key"
    )]
    Rewrap {
        /// The new file: 32 or more random bytes, or their base64 or hexadecimal form
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}
