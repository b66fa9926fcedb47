//! Arguments of `headrace usage` and `headrace statement`. Must not know the ledger.

use clap::Args;
use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{OrgId, ProjectId, UnixNanos};
use headrace_trace::{Month, UsageBy, UsageInterval, UsageQuery};

use super::shared::ServerArgs;
use super::times::TimeRangeArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace usage                                          by day, all calls together\n  headrace usage --by org,model --interval month          use of each model, by month\n  headrace usage --by key --interval hour --since 24h     the last day by key and hour\n  headrace usage --by user --project shop                 users, as named by callers\n  headrace usage --by project --since 2026-11-01 --until 2026-12-01 --csv > november.csv\n\nCharges come from the ledger, to the nano-dollar, by the hour in which they were settled (UTC). Periods are whole hours. Tokens are charged\ntokens. The ledger has no keys, upstreams or users: these, upstreams' charges (paid, margin) and refusals come from traces, so a call without\na trace is listed without a key. The caller names the user (`safety_identifier`, `user`, `metadata.user_id`). Each project has up to 1,000 users\nan hour; further users are listed as `(others)`. The tag of a call is `tag` in its `metadata`, with the same bound.\n\nGateways that share a database are added up. A gateway that does not answer is named: its calls are listed without a key, and their\ncharges count."
)]
pub(crate) struct UsageArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Group by: org, project, key, model, upstream, user, tag
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', value_parser = UsageBy::named)]
    by: Vec<UsageBy>,
    /// Time step: hour, day or month
    #[arg(long, value_name = "STEP", default_value = "day", value_parser = UsageInterval::named)]
    interval: UsageInterval,
    #[command(flatten)]
    times: TimeRangeArgs,
    /// Only this organisation
    #[arg(long)]
    org: Option<OrgId>,
    /// Only this project
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

    /// Returns the same query as the admin API names it.
    pub(crate) fn named(query: &UsageQuery) -> Vec<(&'static str, String)> {
        let UsageQuery { by, interval, since, until, org, project } = query;
        let time = |at: &Option<UnixNanos>| at.map(|at| Rfc3339(at).to_string());
        let by: Vec<&str> = by.iter().map(|by| by.name()).collect();
        let named = [
            ("by", Some(by.join(",")).filter(|by| !by.is_empty())),
            ("interval", interval.map(|interval| interval.name().to_owned())),
            ("from", time(since)),
            ("to", time(until)),
            ("org", org.as_ref().map(ToString::to_string)),
            ("project", project.as_ref().map(ToString::to_string)),
        ];
        named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace statement                                     project `default`, this month so far\n  headrace statement --project default --month 2026-11\n  headrace statement --project default --month 2026-11 --csv > 2026-11.csv\n\nMonths are calendar months, UTC, by the ledger's time. The total is what the ledger charged, to the nano-dollar."
)]
pub(crate) struct StatementArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Project id
    #[arg(long, default_value = "default")]
    pub(crate) project: ProjectId,
    /// Month, such as 2026-11 [default: the current month]
    #[arg(long)]
    pub(crate) month: Option<Month>,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}
