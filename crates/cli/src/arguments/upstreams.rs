//! Arguments of `headrace upstreams`. Must not know what the commands do.

use clap::{Args, Subcommand};

use super::shared::ServerArgs;

#[derive(Debug, Args)]
pub(crate) struct UpstreamsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: Option<UpstreamsCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UpstreamsCommand {
    /// Send no new calls to an upstream. Running calls continue
    Drain {
        /// Upstream name
        upstream: String,
    },
    /// Send calls to a drained upstream again
    Resume {
        /// Upstream name
        upstream: String,
    },
    /// Query the models of an upstream now
    Probe {
        /// Upstream name
        upstream: String,
    },
}
