//! Arguments of `headrace usage` and `headrace statement`. Must not know the ledger.

use clap::Args;
use headrace_domain::{OrgId, ProjectId, UnixNanos};
use headrace_trace::{Month, UsageBy, UsageInterval, UsageQuery};

use super::requests::TimeRangeArgs;
use super::shared::ServerArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace usage                                          by day, all together\n  headrace usage --by org,model --interval month          who used which model, month by month\n  headrace usage --by key --interval hour --since 24h     the last day by key, hour by hour\n  headrace usage --by user --project shop                 whom callers say that they call for\n  headrace usage --by project --since 2026-11-01 --until 2026-12-01 --csv > november.csv\n\nCharges are those of the ledger, to the nano-dollar, by the hour in which they were settled (UTC); hours count whole. Tokens are those that were\ncharged for. The ledger knows no keys, no upstreams and no users: those, upstreams' charges (paid, margin) and refusals are of the traces,\nso a call that was not traced stands under no key. A user is whom the caller names (`safety_identifier`, `user`, `metadata.user_id`):\nof a project 1,000 are told apart in an hour, and further ones stand under `(others)`."
)]
pub(crate) struct UsageArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// What it is told apart by: org, project, key, model, upstream, user
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', value_parser = UsageBy::named)]
    by: Vec<UsageBy>,
    /// In steps of an hour, day or month
    #[arg(long, value_name = "STEP", default_value = "day", value_parser = UsageInterval::named)]
    interval: UsageInterval,
    #[command(flatten)]
    times: TimeRangeArgs,
    /// Of this organisation
    #[arg(long)]
    org: Option<OrgId>,
    /// Of this project
    #[arg(long)]
    project: Option<ProjectId>,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

impl UsageArgs {
    /// Returns the query for these arguments.
    ///
    /// # Errors
    /// A message that names the flag of an invalid value.
    pub(crate) fn query(&self, now: UnixNanos) -> Result<UsageQuery, String> {
        let mut by = Vec::new();
        for one in &self.by {
            if !by.contains(one) {
                by.push(*one);
            }
        }
        Ok(UsageQuery {
            by,
            interval: Some(self.interval),
            since: self.times.since(now)?,
            until: self.times.until(now)?,
            org: self.org.clone(),
            project: self.project.clone(),
        })
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace statement                                     project `default`, this month so far\n  headrace statement --project default --month 2026-11\n  headrace statement --project default --month 2026-11 --csv > 2026-11.csv\n\nMonths are calendar months, UTC, by the ledger's time. The total is what the ledger charged, to the nano-dollar."
)]
pub(crate) struct StatementArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Of which project
    #[arg(long, default_value = "default")]
    pub(crate) project: ProjectId,
    /// Of which month, such as 2026-11 [default: this one]
    #[arg(long)]
    pub(crate) month: Option<Month>,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}
