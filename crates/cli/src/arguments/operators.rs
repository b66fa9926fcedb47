//! Arguments of `headrace operators`. Must not know what the commands do.

use clap::{Args, Subcommand};
use headrace_domain::OrgId;
use headrace_identity::{AccountId, Role};

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
        /// Name, unique among operators that are not revoked
        #[arg(long, value_name = "NAME")]
        name: String,
        /// Role: owner (everything), admin (everything except operators), billing (money), developer (keys, trying models) or viewer
        #[arg(long, value_name = "ROLE", default_value = "viewer", value_parser = role)]
        role: Role,
        /// The only organisation in which the operator has the role
        #[arg(long)]
        org: Option<OrgId>,
        /// User that the operator is (usr_...); the role is then the user's
        #[arg(long, value_name = "ID", conflicts_with_all = ["org", "role"])]
        user: Option<AccountId>,
    },
    /// List operators, without their keys
    List,
    /// Revoke an operator's key and sessions
    Revoke {
        /// Name or id (op_...)
        who: String,
    },
    /// Print a sign-in link for an operator. The link works once, within ten minutes
    Link {
        /// Name or id (op_...)
        who: String,
    },
}

pub(crate) fn role(text: &str) -> Result<Role, String> {
    let names = Role::ALL.map(Role::name).join(", ");
    Role::named(text).ok_or_else(|| format!("it must be one of {names}"))
}
