//! Arguments of the commands about model names. Must not know what a command does.

use clap::Args;
use headrace_domain::ModelName;

use super::shared::ServerArgs;

/// `headrace shadow`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace shadow               every pair of models, last day\n  headrace shadow --hours 168   last week\n  headrace shadow --json        JSON, with the ids of the worst examples"
)]
pub(crate) struct ShadowArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Period, in hours before now
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub(crate) hours: u32,
}

/// `headrace routes`
#[derive(Debug, Args)]
pub(crate) struct RoutesArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Restart the stopped canaries of this route
    #[arg(long, value_name = "ROUTE")]
    pub(crate) resume: Option<ModelName>,
}
