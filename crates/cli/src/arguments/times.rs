//! A time range on the command line. Must not know what is searched.

use clap::Args;
use headrace_domain::UnixNanos;
use headrace_trace::moment;

/// A time range.
#[derive(Debug, Args)]
pub(crate) struct TimeRangeArgs {
    /// Start of the period: a time (RFC 3339), a date (UTC), or a time ago such as 15m, 12h or 7d
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// End of the period, exclusive; same formats
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
}

impl TimeRangeArgs {
    pub(crate) fn since(&self, now: UnixNanos) -> Result<Option<UnixNanos>, String> {
        when("--since", self.since.as_deref(), now)
    }

    pub(crate) fn until(&self, now: UnixNanos) -> Result<Option<UnixNanos>, String> {
        when("--until", self.until.as_deref(), now)
    }
}

/// Parses the time of a flag.
fn when(flag: &str, text: Option<&str>, now: UnixNanos) -> Result<Option<UnixNanos>, String> {
    text.map(|text| moment(text, now)).transpose().map_err(|why| format!("{flag}: {why}"))
}
