//! Arguments of `headrace users`, `headrace service-accounts`, `headrace groups` and `headrace scim`. Must not know what the
//! commands do.

use clap::{Args, Subcommand};
use headrace_domain::{OrgId, ProjectId, TierName};
use headrace_identity::{AccountId, Role, ScimSubject};

use super::operators::role;
use super::shared::ServerArgs;

#[derive(Debug, Args)]
pub(crate) struct UsersArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: UsersCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UsersCommand {
    /// Create a user of an organisation
    #[command(
        after_help = "Example:\n  headrace users create ann --org default --email ann@example.com --role developer"
    )]
    Create {
        /// Name, unique in the organisation
        name: String,
        /// Organisation id
        #[arg(long, default_value = "default")]
        org: OrgId,
        #[command(flatten)]
        data: UserFlags,
    },
    /// List users
    List {
        /// Only users of this organisation
        #[arg(long)]
        org: Option<OrgId>,
    },
    /// Show a user
    Show {
        /// User id (usr_...)
        id: AccountId,
    },
    /// Change a user. An absent flag changes nothing, an empty text removes
    Change {
        /// User id (usr_...)
        id: AccountId,
        /// The new name
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        data: UserFlags,
        /// Take the user's own role away
        #[arg(long, conflicts_with = "role")]
        no_role: bool,
    },
    /// Deactivate a user: its keys, tokens, sessions and running calls end
    Deactivate {
        /// User id (usr_...)
        id: AccountId,
    },
    /// Activate a user again: its keys and tokens work again
    Activate {
        /// User id (usr_...)
        id: AccountId,
    },
    /// Remove a user for good: its keys and tokens stay refused
    Remove {
        /// User id (usr_...)
        id: AccountId,
    },
}

/// Data of a user.
#[derive(Debug, Args)]
pub(crate) struct UserFlags {
    /// Name for display
    #[arg(long, value_name = "NAME")]
    pub(crate) display_name: Option<String>,
    /// E-mail address
    #[arg(long)]
    pub(crate) email: Option<String>,
    /// Id at the identity provider
    #[arg(long, value_name = "ID")]
    pub(crate) external_id: Option<String>,
    /// Issuer of the user's tokens (`iss`)
    #[arg(long, value_name = "URL", requires = "subject")]
    pub(crate) issuer: Option<String>,
    /// Subject of the user's tokens (`sub`)
    #[arg(long, requires = "issuer")]
    pub(crate) subject: Option<String>,
    /// Role in the organisation: owner, admin, billing, developer or viewer
    #[arg(long, value_parser = role)]
    pub(crate) role: Option<Role>,
}

#[derive(Debug, Args)]
pub(crate) struct ServiceAccountsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: ServiceAccountsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceAccountsCommand {
    /// Create a service account of a project; name it as the owner of keys
    #[command(after_help = "Example:\n  headrace service-accounts create nightly --project default")]
    Create {
        /// Name, unique in the organisation
        name: String,
        /// Project id
        #[arg(long, default_value = "default")]
        project: ProjectId,
    },
    /// List service accounts
    List {
        /// Only those of this organisation
        #[arg(long)]
        org: Option<OrgId>,
    },
    /// Show a service account
    Show {
        /// Service account id (svc_...)
        id: AccountId,
    },
    /// Deactivate a service account: its keys and running calls end
    Deactivate {
        /// Service account id (svc_...)
        id: AccountId,
    },
    /// Activate a service account again: its keys work again
    Activate {
        /// Service account id (svc_...)
        id: AccountId,
    },
    /// Remove a service account for good: its keys stay refused
    Remove {
        /// Service account id (svc_...)
        id: AccountId,
    },
}

#[derive(Debug, Args)]
pub(crate) struct GroupsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: GroupsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupsCommand {
    /// List groups
    List {
        /// Only groups of this organisation
        #[arg(long)]
        org: Option<OrgId>,
    },
    /// Set the role and the tier that a group gives its members
    Map {
        /// Group id (grp_...)
        id: AccountId,
        /// Role in the organisation
        #[arg(long, value_parser = role)]
        role: Option<Role>,
        /// Take the role away
        #[arg(long, conflicts_with = "role")]
        no_role: bool,
        /// Tier that restricts the members' keys and tokens
        #[arg(long)]
        tier: Option<TierName>,
        /// Take the tier away
        #[arg(long, conflicts_with = "tier")]
        no_tier: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ScimArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: ScimCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScimCommand {
    /// Create a credential for an identity provider; it is shown once
    #[command(
        after_help = "Example:\n  headrace scim create default --issuer https://login.example.com --subject external-id"
    )]
    Create {
        /// Organisation whose users and groups the identity provider keeps
        org: OrgId,
        /// Issuer of the users' tokens (`iss`), if they call with tokens
        #[arg(long, value_name = "URL")]
        issuer: Option<String>,
        /// Attribute that equals the tokens' `sub`: external-id or user-name
        #[arg(long, value_parser = subject, default_value = "external-id")]
        subject: ScimSubject,
    },
    /// List credentials, without their secrets
    List {
        /// Only those of this organisation
        #[arg(long)]
        org: Option<OrgId>,
    },
    /// Revoke a credential
    Revoke {
        /// Credential id (scim_...)
        id: AccountId,
    },
}

fn subject(text: &str) -> Result<ScimSubject, String> {
    match text {
        "external-id" => Ok(ScimSubject::ExternalId),
        "user-name" => Ok(ScimSubject::UserName),
        _ => Err("it must be external-id or user-name".to_owned()),
    }
}
