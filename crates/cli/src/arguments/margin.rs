//! Arguments of `headrace margin`. Must not know what is summed.

use std::time::Duration;

use clap::Args;
use headrace_domain::UnixNanos;
use headrace_trace::{MarginBy, utc_midnight};

use super::shared::{ServerArgs, duration};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace margin                              every day, organisation, model and upstream\n  headrace margin --by upstream --since 30d    charges and revenue of each upstream\n  headrace margin --by org --since 2026-11-01 --until 2026-12-01 --json\n\nThe prices of upstreams are set in [[costs]]. Traces are kept for a limited time (traces.max_records, traces.max_age);\nthis report counts only calls with a trace. `headrace credit show` and the ledger have every charge."
)]
pub(crate) struct MarginArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Group by: day, org, project, key, model, upstream, target (the upstream and its model)
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', value_parser = by)]
    #[arg(default_value = "day,org,model,upstream")]
    by: Vec<MarginBy>,
    /// Start of the period: a date (UTC) such as 2026-11-01, or a time ago such as 7d
    #[arg(long, value_name = "DATE|DURATION", value_parser = when)]
    pub(crate) since: Option<MomentArg>,
    /// End of the period, exclusive; same formats
    #[arg(long, value_name = "DATE|DURATION", value_parser = when)]
    pub(crate) until: Option<MomentArg>,
}

impl MarginArgs {
    /// Returns the groups of calls, without duplicates.
    pub(crate) fn by(&self) -> Vec<MarginBy> {
        let mut seen = Vec::new();
        for by in &self.by {
            if !seen.contains(by) {
                seen.push(*by);
            }
        }
        seen
    }
}

/// A time on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MomentArg {
    /// The beginning of a day.
    On(UnixNanos),
    Ago(Duration),
}

impl MomentArg {
    /// Returns the absolute time.
    pub(crate) fn at(self, now: UnixNanos) -> UnixNanos {
        match self {
            Self::On(day) => day,
            Self::Ago(time) => {
                let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                UnixNanos::new(now.get().saturating_sub(nanos))
            }
        }
    }
}

fn by(text: &str) -> Result<MarginBy, String> {
    let names = || MarginBy::ALL.map(MarginBy::name).join(", ");
    let found = MarginBy::ALL.into_iter().find(|by| by.name() == text);
    found.ok_or_else(|| format!("it must be one or more of {}", names()))
}

fn when(text: &str) -> Result<MomentArg, String> {
    if let Some(day) = utc_midnight(text) {
        return Ok(MomentArg::On(day));
    }
    let told = |_| "it must be a date such as 2026-11-01, or a time ago such as 7d or 12h".to_owned();
    duration(text).map(MomentArg::Ago).map_err(told)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct MarginProgram {
        #[command(flatten)]
        args: MarginArgs,
    }

    #[test]
    fn a_moment_is_a_day_or_so_long_ago() {
        let now = UnixNanos::new(10_000_000_000_000_000_000 / 6);
        assert_eq!(when("1970-01-02").unwrap().at(now).get(), 86_400_000_000_000);
        assert_eq!(when("2h").unwrap().at(now).get(), now.get() - 7_200_000_000_000);
        assert_eq!(when("36500d").unwrap().at(UnixNanos::new(5)).get(), 0);
        for bad in ["", "yesterday", "2026-02-30", "2026-11-01T00:00", "-1d"] {
            assert!(when(bad).is_err(), "{bad}");
        }
        assert!(by("modle").unwrap_err().contains("day, org, project, key, model, upstream, target"));
        let args =
            |by: &str| MarginProgram::try_parse_from(["margin", "--by", by]).map(|margin| margin.args.by());
        assert_eq!(args("org,day,org").unwrap(), [MarginBy::Org, MarginBy::Day]);
        assert!(args("org,").is_err());
    }
}
