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
    /// Send it no new calls; those under way go on
    Drain {
        /// Its name
        upstream: String,
    },
    /// Send it calls again
    Resume {
        /// Its name
        upstream: String,
    },
    /// Ask it now what it serves
    Probe {
        /// Its name
        upstream: String,
    },
}
