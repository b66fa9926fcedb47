//! Arguments of `headrace errors`. Must not know the codes.

use clap::Args;

use super::shared::ServerArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace errors                       every code, by stage\n  headrace errors tokens_per_minute     one code"
)]
pub(crate) struct ErrorsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Code, as shown in an error or a trace [default: list all codes]
    #[arg(value_name = "CODE")]
    pub(crate) code: Option<String>,
}
