//! Arguments of `headrace keys`, `orgs` and `projects`. Must not know what the commands do.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use headrace_domain::{Endpoint, KeyId, ModelName, OrgId, ProjectId, RecordLevel, TierName};
use headrace_identity::AddressRange;

use super::shared::{LimitFlags, NewRegions, RegionFlags, ServerArgs, duration};

#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Create a key; its secret is shown once
    #[command(
        after_help = "Example:\n  headrace keys create --name ci --allow headrace-demo --expires 30d --requests-per-minute 60"
    )]
    Create {
        /// Name of the key, for lists
        #[arg(long, default_value = "unnamed")]
        name: String,
        /// Project that pays for the key's calls
        #[arg(long, value_name = "PROJECT", default_value = "default")]
        project: ProjectId,
        /// Model that the key may use; may be given several times [default: all]
        #[arg(long, value_name = "MODEL")]
        allow: Vec<ModelName>,
        /// Endpoint that the key may call: chat.completions, completions, messages or responses [default: all]
        #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
        endpoint: Vec<Endpoint>,
        /// Lifetime of the key, such as 30d [default: until the key is revoked]
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        expires: Option<std::time::Duration>,
        /// File with the secret (sk-...) [default: a new secret]
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        #[command(flatten)]
        limits: LimitFlags,
        #[command(flatten)]
        regions: RegionFlags,
        /// Person or team that the key belongs to
        #[arg(long, value_name = "NAME")]
        owner: Option<String>,
        /// Address or network from which the key may be used [default: every address]
        #[arg(long, value_name = "RANGE,…", value_delimiter = ',')]
        allow_ip: Vec<AddressRange>,
        /// Tier of the key
        #[arg(long)]
        tier: Option<TierName>,
    },
    /// List keys, without their secrets
    List {
        /// Only keys of this project
        #[arg(long, value_name = "PROJECT")]
        project: Option<ProjectId>,
    },
    /// Change a key's owner, or the addresses from which it may be used
    #[command(
        after_help = "A request from another address is refused with 403 address_not_allowed. Behind a proxy, the address is that of\nthe proxy."
    )]
    Change(ChangeKeyArgs),
    /// Replace all limits of a key
    Limits {
        /// Key id (key_...)
        id: KeyId,
        #[command(flatten)]
        limits: LimitFlags,
    },
    /// Replace the regions in which a key's calls may run, within those of the key's organisation
    Regions {
        /// Key id (key_...)
        id: KeyId,
        #[command(flatten)]
        regions: NewRegions,
    },
    /// Give a key another secret; it is shown once
    #[command(
        after_help = "The key keeps its id, limits and usage. The secret before works for the time of --overlap, so that callers can\nchange to the new one."
    )]
    Rotate {
        /// Key id (key_...)
        id: KeyId,
        /// How long the secret before stays valid, at most 365d; 0s ends it at once
        #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration)]
        overlap: std::time::Duration,
    },
    /// Revoke a key, effective immediately
    Revoke {
        /// Key id (key_...)
        id: KeyId,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true, args = ["owner", "no_owner", "allow_ip", "any_ip"])]
pub(crate) struct ChangeKeyArgs {
    /// Key id (key_...)
    pub(crate) id: KeyId,
    /// Person or team that the key belongs to
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// Remove the owner
    #[arg(long, conflicts_with = "owner")]
    pub(crate) no_owner: bool,
    /// Address or network from which the key may be used; replaces all
    #[arg(long, value_name = "RANGE,…", value_delimiter = ',')]
    pub(crate) allow_ip: Vec<AddressRange>,
    /// The key may be used from every address
    #[arg(long, conflicts_with = "allow_ip")]
    pub(crate) any_ip: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OrgsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: OrgsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OrgsCommand {
    /// Create an organisation
    Create {
        /// Organisation id
        id: OrgId,
        #[command(flatten)]
        limits: LimitFlags,
        #[command(flatten)]
        regions: RegionFlags,
    },
    /// List organisations
    List,
    /// Replace all limits of an organisation
    Limits {
        /// Organisation id
        id: OrgId,
        #[command(flatten)]
        limits: LimitFlags,
    },
    /// Replace the regions in which an organisation's calls may run
    #[command(
        after_help = "Examples:\n  headrace orgs create acme\n  headrace orgs regions acme --regions eu,ch"
    )]
    Regions {
        /// Organisation id
        id: OrgId,
        #[command(flatten)]
        regions: NewRegions,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ProjectsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: ProjectsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProjectsCommand {
    /// Create a project
    Create {
        /// Project id, unique across organisations
        id: ProjectId,
        /// Organisation that pays
        #[arg(long, default_value = "default")]
        org: OrgId,
        #[command(flatten)]
        limits: LimitFlags,
    },
    /// List projects
    List,
    /// Set what happens to calls that the money does not cover
    LowBalance {
        /// Project id
        id: ProjectId,
        /// Refuse them, or cut them to the tokens that the money covers
        #[arg(value_parser = ["refuse", "cap"])]
        policy: String,
    },
    /// Replace all limits of a project
    Limits {
        /// Project id
        id: ProjectId,
        #[command(flatten)]
        limits: LimitFlags,
    },
    /// Set what is recorded of a project's calls, and for how long
    #[command(
        after_help = "Levels, each with those before it:\n  nothing   times, counts and charges\n  metadata  also the labels that callers send: end user and metadata\n  redacted  also requests and answers, with personal data replaced\n  full      also requests and answers as they were sent\n\nWhat is left out follows the server (records.level, records.keep). The new policy\napplies from the next call on.\n\nExample:\n  headrace projects records default --level redacted --keep 14d"
    )]
    Records {
        /// Project id
        id: ProjectId,
        /// nothing, metadata, redacted or full [default: the server's]
        #[arg(long)]
        level: Option<RecordLevel>,
        /// How long requests and answers are kept, such as 14d [default: the server's]
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        keep: Option<std::time::Duration>,
    },
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    let all = [
        Endpoint::ChatCompletions,
        Endpoint::Completions,
        Endpoint::Messages,
        Endpoint::Responses,
        Endpoint::Embeddings,
        Endpoint::Rerank,
        Endpoint::Score,
    ];
    let names = all.map(Endpoint::name).join(", ");
    all.into_iter()
        .find(|endpoint| endpoint.name() == text)
        .ok_or_else(|| format!("it must be one of {names}"))
}
