//! Arguments of `headrace cache`. Must not know what is summed.

use clap::Args;
use headrace_domain::UnixNanos;
use headrace_trace::{CacheBy, CacheQuery};

use super::shared::ServerArgs;
use super::times::TimeRangeArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace cache                            hit rates by organisation and model, and where prompts differ\n  headrace cache --by prefix --since 24h    by the length of the prefix seen before\n  headrace cache --by model --json\n\nA report covers the newest 20,000 traced calls of the period. The saving from another order of the prompt is an upper bound: it counts\nthe tokens after the position at which calls differ, as many as the shortest call has, for all calls but one."
)]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// Group by: org, model, prefix
    #[arg(long, value_name = "WHAT,…", value_delimiter = ',', value_parser = CacheBy::named, default_value = "org,model")]
    by: Vec<CacheBy>,
    #[command(flatten)]
    times: TimeRangeArgs,
}

impl CacheArgs {
    /// Returns the query for these arguments.
    ///
    /// # Errors
    /// A message that names the flag of an invalid value.
    pub(crate) fn query(&self, now: UnixNanos) -> Result<CacheQuery, String> {
        let mut by = Vec::new();
        for one in &self.by {
            if !by.contains(one) {
                by.push(*one);
            }
        }
        Ok(CacheQuery { by, since: self.times.since(now)?, until: self.times.until(now)? })
    }
}
