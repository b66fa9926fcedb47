//! Arguments of `headrace move`. Must not know how stores are moved.

use clap::Args;

use super::shared::ServerArgs;

/// `headrace move`
#[derive(Debug, Args)]
#[command(
    after_help = "The server must be stopped, and all gateways that share the ledger. The data directory remembers the new place. Its old\nfiles are kept, with `.moved` at the end of their names."
)]
pub(crate) struct MoveArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// The new place: an empty database, such as postgres://headrace:SECRET@db.example.com/headrace, or sqlite: for the data directory
    #[arg(long, value_name = "URL")]
    pub(crate) to: String,
}
