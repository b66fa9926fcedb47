//! Arguments of `headrace budget` and `headrace budgets`. Must not know what the commands do.

use clap::{Args, Subcommand};
use headrace_domain::{BudgetName, NanoDollars, OrgId, ProjectId, TierName};

use super::shared::ServerArgs;

#[derive(Debug, Args)]
pub(crate) struct BudgetsArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: BudgetsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BudgetsCommand {
    /// List budgets with their use and what is left
    List,
    /// List the newest alerts
    Alerts,
    /// Set a budget, or change the one of this name
    #[command(
        after_help = "Examples:\n  headrace budgets set day-of-a-key 5 --per day --each key --alert 80\n  headrace budgets set calls 1000 --measure requests --per hour --each project"
    )]
    Set {
        /// Budget name
        name: BudgetName,
        /// Dollars such as 25 or 0.50, or a whole number of tokens or requests
        limit: String,
        #[command(flatten)]
        rule: BudgetFlags,
    },
    /// Raise a limit for some hours
    Raise {
        /// Budget name
        name: BudgetName,
        /// The limit meanwhile, in the unit of the budget
        limit: String,
        /// Length of the raise; 0 ends it
        #[arg(long, default_value_t = 24)]
        hours: u64,
    },
    /// Remove a budget
    Remove {
        /// Budget name
        name: BudgetName,
    },
}

/// What a rule counts, of whom, and in which calendar.
#[derive(Debug, Args)]
pub(crate) struct CountedFlags {
    /// What is counted
    #[arg(long, default_value = "dollars", value_parser = ["dollars", "tokens", "requests"])]
    pub(crate) measure: String,
    /// Only this one of the kind of --each
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<String>,
    /// Only calls of this organisation
    #[arg(long)]
    pub(crate) org: Option<OrgId>,
    /// Only holders of this tier
    #[arg(long)]
    pub(crate) tier: Option<TierName>,
    /// Time zone of the calendar, such as Europe/Berlin
    #[arg(long, default_value = "UTC")]
    pub(crate) zone: String,
}

/// What a budget counts.
#[derive(Debug, Args)]
pub(crate) struct BudgetFlags {
    #[command(flatten)]
    pub(crate) counted: CountedFlags,
    /// Window, by the calendar; a week begins on Monday
    #[arg(long, default_value = "month", value_parser = ["hour", "day", "week", "month", "total"])]
    pub(crate) per: String,
    /// Who has a counter of its own
    #[arg(long, default_value = "org", value_parser = ["key", "user", "project", "org", "model"])]
    pub(crate) each: String,
    /// Only raise alerts, and refuse nothing
    #[arg(long)]
    pub(crate) soft: bool,
    /// Percent of the limit at which to raise an alert; may be given several times
    #[arg(long = "alert", value_name = "PERCENT")]
    pub(crate) alerts: Vec<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct BudgetArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(subcommand)]
    pub(crate) command: BudgetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BudgetCommand {
    /// Set the maximum that a project may spend
    Set {
        /// Dollars, such as 25 or 0.50; 0 stops the project
        #[arg(value_parser = NanoDollars::from_dollars)]
        amount: NanoDollars,
        /// Project id
        #[arg(long, default_value = "default")]
        project: ProjectId,
        /// Period: calendar month (UTC), or total
        #[arg(long, default_value = "month", value_parser = ["month", "total"])]
        per: String,
    },
    /// Remove a project's budget
    Clear {
        /// Project id
        #[arg(long, default_value = "default")]
        project: ProjectId,
    },
}
