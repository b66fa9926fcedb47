//! Arguments of `headrace keys`, `orgs` and `projects`. Must not know what the commands do.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use headrace_domain::{Endpoint, KeyId, ModelName, OrgId, ProjectId};

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
        /// What to find it by
        #[arg(long, default_value = "unnamed")]
        name: String,
        /// The project that it spends for
        #[arg(long, value_name = "PROJECT", default_value = "default")]
        project: ProjectId,
        /// A model that it may ask for; several times for several [default: all]
        #[arg(long, value_name = "MODEL")]
        allow: Vec<ModelName>,
        /// An endpoint that it may call: chat.completions, completions, messages or responses [default: all]
        #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
        endpoint: Vec<Endpoint>,
        /// How long it lives, such as 30d [default: until it is revoked]
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        expires: Option<std::time::Duration>,
        /// A file with the secret (sk-...) [default: one is made]
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        #[command(flatten)]
        limits: LimitFlags,
        #[command(flatten)]
        regions: RegionFlags,
    },
    /// List keys, without their secrets
    List {
        /// Only of this project
        #[arg(long, value_name = "PROJECT")]
        project: Option<ProjectId>,
    },
    /// Set all limits of a key anew
    Limits {
        /// Its id: key_...
        id: KeyId,
        #[command(flatten)]
        limits: LimitFlags,
    },
    /// Set anew where a key's calls may be worked on, within what its organisation allows
    Regions {
        /// Its id: key_...
        id: KeyId,
        #[command(flatten)]
        regions: NewRegions,
    },
    /// Revoke a key: it is dead at once
    Revoke {
        /// Its id: key_...
        id: KeyId,
    },
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
        /// Its id
        id: OrgId,
        #[command(flatten)]
        limits: LimitFlags,
        #[command(flatten)]
        regions: RegionFlags,
    },
    /// List organisations
    List,
    /// Set all limits of an organisation anew
    Limits {
        /// Its id
        id: OrgId,
        #[command(flatten)]
        limits: LimitFlags,
    },
    /// Set anew where an organisation's calls may be worked on
    #[command(
        after_help = "Examples:\n  headrace orgs create acme\n  headrace orgs regions acme --regions eu,ch"
    )]
    Regions {
        /// Its id
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
        /// Its id, unique across organisations
        id: ProjectId,
        /// The organisation that pays
        #[arg(long, default_value = "default")]
        org: OrgId,
        #[command(flatten)]
        limits: LimitFlags,
    },
    /// List projects
    List,
    /// Set all limits of a project anew
    Limits {
        /// Its id
        id: ProjectId,
        #[command(flatten)]
        limits: LimitFlags,
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
