//! Arguments of `headrace webhooks`. Must not know what the commands do.

use clap::{Args, Subcommand};

use super::shared::ServerArgs;

#[derive(Debug, Args)]
pub(crate) struct WebhooksArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: WebhooksCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WebhooksCommand {
    /// List endpoints with their last result
    List,
    /// List the newest deliveries
    Deliveries {
        /// Maximum number of deliveries
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: u32,
    },
    /// Send a test event to an endpoint, and print its answer
    Test {
        /// Endpoint, by its name in the settings
        name: String,
    },
    /// Send events again to an endpoint that answered 410
    Resume {
        /// Endpoint, by its name in the settings
        name: String,
    },
}
