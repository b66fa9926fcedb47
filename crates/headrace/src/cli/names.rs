//! Arguments of the commands about model names. Must not know what a command does.

use clap::Args;
use headrace_domain::ModelName;

use super::shared::ServerArgs;

/// `headrace shadow`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace shadow               every pair of models, of the last day\n  headrace shadow --hours 168   of the last week\n  headrace shadow --json        for programs, with the worst examples by call id"
)]
pub(crate) struct ShadowArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// How far back
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub(crate) hours: u32,
}

/// `headrace routes`
#[derive(Debug, Args)]
pub(crate) struct RoutesArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Put the canaries of this route on trial again that were taken out
    #[arg(long, value_name = "ROUTE")]
    pub(crate) resume: Option<ModelName>,
}
