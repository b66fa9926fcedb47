//! Arguments of `headrace operators`. Must not know what the commands do.

use clap::{Args, Subcommand};
use headrace_identity::Role;

use super::shared::ServerArgs;

#[derive(Debug, Args)]
pub(crate) struct OperatorsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: OperatorsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OperatorsCommand {
    /// Create an operator; the key is shown once
    #[command(after_help = "Example:\n  headrace operators create --name ann --role billing")]
    Create {
        /// A name, unique among those who are not revoked
        #[arg(long, value_name = "NAME")]
        name: String,
        /// owner (everything), admin (all but operators), billing (money), developer (keys, trying models) or viewer
        #[arg(long, value_name = "ROLE", default_value = "viewer", value_parser = role)]
        role: Role,
    },
    /// List operators, without their keys
    List,
    /// Revoke an operator: neither key nor session is good any longer
    Revoke {
        /// The name, or the id: op_...
        who: String,
    },
    /// Print a link that signs an operator in once, within ten minutes
    Link {
        /// The name, or the id: op_...
        who: String,
    },
}

fn role(text: &str) -> Result<Role, String> {
    let names = Role::ALL.map(Role::name).join(", ");
    Role::named(text).ok_or_else(|| format!("it must be one of {names}"))
}
