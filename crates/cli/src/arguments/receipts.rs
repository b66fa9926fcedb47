//! Arguments of `headrace receipt`. Must not know what a receipt says.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::named_call::{NamedCall, call_id};
use super::shared::ServerArgs;

#[derive(Debug, Args)]
#[command(
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  headrace receipt req_0192...   the signed receipt of a call\n  headrace receipt keys          the public keys that verify receipts\n  headrace receipt rotate        sign with another key from now on"
)]
pub(crate) struct ReceiptArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Id of the call: its own, that of its answer, or its trace id
    #[arg(required = true, value_name = "REQUEST", value_parser = call_id)]
    pub(crate) call: Option<NamedCall>,
    #[command(subcommand)]
    pub(crate) command: Option<ReceiptCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReceiptCommand {
    /// Check a receipt's signature and print its content
    Verify {
        /// The receipt: JSON with `jws`, or the JWS itself; - reads standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Public keys: a file, or a server's address [default: the keys of --data-dir]
        #[arg(long, value_name = "FILE|URL")]
        keys: Option<String>,
        /// Certificate authority (PEM) of that server
        #[arg(long, value_name = "FILE")]
        ca: Option<PathBuf>,
        /// Also compare the saved body of the answer with the receipt
        #[arg(long, value_name = "FILE")]
        answer: Option<PathBuf>,
    },
    /// Print the public keys, as /.well-known/headrace-receipts.json has them
    Keys,
    /// Make another key, which signs from now on; older receipts stay valid
    Rotate,
}
