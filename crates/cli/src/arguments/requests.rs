//! Arguments of `headrace requests`. Must not know how calls are found.

use std::time::Duration;

use clap::Args;
use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{KeyId, NanoDollars, OrgId, ProjectId, Stage, UnixNanos};
use headrace_trace::{CallEndKind, CallQuery, ModerationFilter};

use super::contents::RequestsCommand;
use super::shared::{ServerArgs, duration};
use super::times::TimeRangeArgs;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  headrace requests                                        the newest calls\n  headrace requests --outcome refused --since 1h           calls refused in the last hour\n  headrace requests --text \"balance\" --org acme            refusals and failures with `balance` in their text\n  headrace requests --stage queue --slower-than 2s         slow calls that mostly waited for the engine\n  headrace requests --moderation blocked --since 7d        calls that content rules stopped\n  headrace requests --dearer-than 0.05 --since 2026-11-01 --json\n\nDetails of one call: headrace trace ID. Traces are kept for a limited time (traces.max_records, traces.max_age)."
)]
pub(crate) struct RequestsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<RequestsCommand>,
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    #[command(flatten)]
    times: TimeRangeArgs,
    /// Only this organisation
    #[arg(long)]
    org: Option<OrgId>,
    /// Only this project
    #[arg(long)]
    project: Option<ProjectId>,
    /// Only this key, by its public id
    #[arg(long, value_name = "KEY_ID")]
    key: Option<KeyId>,
    /// Only this user, as named by the caller
    #[arg(long)]
    user: Option<String>,
    /// Only calls with this label in their metadata
    #[arg(long, value_name = "NAME=VALUE")]
    label: Option<String>,
    /// Only calls from this address or network, such as 203.0.113.0/24
    #[arg(long)]
    address: Option<String>,
    /// Only calls that this model served, or that asked for this model if no model served them
    #[arg(long)]
    model: Option<String>,
    /// Only calls that this upstream answered
    #[arg(long)]
    upstream: Option<String>,
    /// Outcome: completed, refused, cancelled or failed
    #[arg(long, value_parser = outcome)]
    outcome: Option<CallEndKind>,
    /// Only calls that were refused or failed in this stage, or spent most of their time there
    #[arg(long, value_parser = stage)]
    stage: Option<Stage>,
    /// Took longer than this on the server, such as 250ms or 2s
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    slower_than: Option<Duration>,
    /// Cost more than this, in dollars, such as 0.05
    #[arg(long, value_name = "DOLLARS", value_parser = NanoDollars::from_dollars)]
    dearer_than: Option<NanoDollars>,
    /// Text in the code, rule or message of the refusal, failure or cancellation
    #[arg(long)]
    text: Option<String>,
    /// What content rules decided: any, blocked, redacted, flagged, dry_run, no_verdict
    #[arg(long, value_name = "OUTCOME", value_parser = ModerationFilter::named)]
    moderation: Option<ModerationFilter>,
    /// Only calls that this content rule matched
    #[arg(long, value_name = "RULE")]
    content_rule: Option<String>,
    /// Text in the recorded request or answer; upper and lower case are the same
    #[arg(long)]
    content: Option<String>,
    /// Maximum number of calls
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) limit: u16,
    /// Continue an earlier list after this cursor, which that list printed
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
}

impl RequestsArgs {
    /// Returns the search for these arguments.
    ///
    /// # Errors
    /// A message that names the flag of an invalid value.
    pub(crate) fn query(&self, now: UnixNanos) -> Result<CallQuery, String> {
        let mut query = CallQuery {
            org: self.org.clone(),
            project: self.project.clone(),
            key: self.key.clone(),
            outcome: self.outcome,
            stage: self.stage,
            slower_than_ns: self.slower_than.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            dearer_than: self.dearer_than,
            moderation: self.moderation,
            since: self.times.since(now)?,
            until: self.times.until(now)?,
            ..CallQuery::default()
        };
        for (name, value) in [
            ("user", &self.user),
            ("label", &self.label),
            ("address", &self.address),
            ("model", &self.model),
            ("upstream", &self.upstream),
            ("text", &self.text),
            ("content", &self.content),
            ("content_rule", &self.content_rule),
        ] {
            if let Some(value) = value {
                query.set(name, value, now).map_err(|why| format!("--{}: {why}", name.replace('_', "-")))?;
            }
        }
        Ok(query)
    }

    /// Returns the same search as the admin API names it.
    ///
    /// # Errors
    /// A message that names the flag of an invalid value.
    pub(crate) fn named(&self, now: UnixNanos) -> Result<Vec<(&'static str, String)>, String> {
        let time = |at: Option<UnixNanos>| at.map(|at| Rfc3339(at).to_string());
        let named = [
            ("from", time(self.times.since(now)?)),
            ("to", time(self.times.until(now)?)),
            ("org", self.org.as_ref().map(ToString::to_string)),
            ("project", self.project.as_ref().map(ToString::to_string)),
            ("key", self.key.as_ref().map(ToString::to_string)),
            ("user", self.user.clone()),
            ("label", self.label.clone()),
            ("address", self.address.clone()),
            ("model", self.model.clone()),
            ("upstream", self.upstream.clone()),
            ("outcome", self.outcome.map(|outcome| outcome.name().to_owned())),
            ("stage", self.stage.map(|stage| stage.name().to_owned())),
            ("slower_than_ms", self.slower_than.map(|time| (time.as_secs_f64() * 1e3).to_string())),
            (
                "dearer_than",
                self.dearer_than.map(|money| money.to_string().trim_start_matches('$').to_owned()),
            ),
            ("text", self.text.clone()),
            ("moderation", self.moderation.map(|filter| filter.name().to_owned())),
            ("content_rule", self.content_rule.clone()),
            ("content", self.content.clone()),
        ];
        Ok(named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
    }
}

fn outcome(name: &str) -> Result<CallEndKind, String> {
    let names = || CallEndKind::ALL.map(CallEndKind::name).join(", ");
    CallEndKind::named(name).ok_or_else(|| format!("it must be one of {}", names()))
}

fn stage(name: &str) -> Result<Stage, String> {
    let names = || Stage::ALL.map(Stage::name).join(", ");
    Stage::ALL
        .into_iter()
        .find(|stage| stage.name() == name)
        .ok_or_else(|| format!("it must be one of {}", names()))
}
