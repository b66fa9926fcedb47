//! Arguments of `headrace tiers`. Must not know what the commands do.

use clap::{Args, Subcommand};
use headrace_domain::{KeyId, ModelName, OrgId, ProjectId, TierName};
use headrace_identity::{ModelAccess, TierHolder, TierRules};

use super::shared::{LimitFlags, ServerArgs};

#[derive(Debug, Args)]
pub(crate) struct TiersArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: TiersCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TiersCommand {
    /// Create a tier; it has no effect until it is assigned
    #[command(
        after_help = "Examples:\n  headrace tiers create basic --max-context-tokens 8192 --no-reasoning\n  headrace tiers assign basic --project default"
    )]
    Create {
        /// Tier name
        name: TierName,
        #[command(flatten)]
        rules: TierRuleFlags,
    },
    /// List tiers
    List,
    /// Replace all rules of a tier, for all that have it
    Change {
        /// Tier name
        name: TierName,
        #[command(flatten)]
        rules: TierRuleFlags,
    },
    /// Remove a tier that is assigned to none
    Remove {
        /// Tier name
        name: TierName,
    },
    /// Assign a tier to an organisation, a project or a key, in place of the one before
    Assign {
        /// Tier name
        name: TierName,
        #[command(flatten)]
        to: HolderFlags,
    },
    /// Take the tier of an organisation, a project or a key away
    Unassign {
        #[command(flatten)]
        of: HolderFlags,
    },
}

/// What a tier allows. An absent flag restricts nothing.
#[derive(Debug, Args)]
pub(crate) struct TierRuleFlags {
    /// Model that may be asked for; may be given several times [default: all]
    #[arg(long, value_name = "MODEL")]
    allow: Vec<ModelName>,
    /// Most tokens of a prompt and its answer together
    #[arg(long, value_name = "N")]
    max_context_tokens: Option<u32>,
    /// Most tokens of an answer, reasoning included
    #[arg(long, value_name = "N")]
    max_output_tokens: Option<u32>,
    /// Calls may not ask for reasoning
    #[arg(long)]
    no_reasoning: bool,
    #[command(flatten)]
    limits: LimitFlags,
}

impl TierRuleFlags {
    /// Returns the rules.
    pub(crate) fn rules(self) -> TierRules {
        let Self { allow, max_context_tokens, max_output_tokens, no_reasoning, limits } = self;
        TierRules {
            limits: limits.limits(),
            models: match allow.is_empty() {
                true => ModelAccess::All,
                false => ModelAccess::Only(allow.into_iter().collect()),
            },
            max_context_tokens,
            max_output_tokens,
            reasoning: !no_reasoning,
        }
    }
}

/// An organisation, a project or a key.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct HolderFlags {
    /// Organisation id
    #[arg(long)]
    org: Option<OrgId>,
    /// Project id
    #[arg(long)]
    project: Option<ProjectId>,
    /// Key id (key_...)
    #[arg(long)]
    key: Option<KeyId>,
}

impl HolderFlags {
    /// Returns the holder. `None` if no flag is given.
    pub(crate) fn holder(self) -> Option<TierHolder> {
        let Self { org, project, key } = self;
        let project = project.map(TierHolder::Project);
        org.map(TierHolder::Org).or(project).or(key.map(TierHolder::Key))
    }
}
