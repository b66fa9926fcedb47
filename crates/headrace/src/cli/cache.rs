//! Arguments of `headrace cache`. Must not know what is summed.

use clap::Args;
use headrace_domain::UnixNanos;
use headrace_trace::{CacheBy, CacheQuery};

use super::requests::TimeRangeArgs;
use super::shared::ServerArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace cache                            hit rates by organisation and model, and where prompts part\n  headrace cache --by prefix --since 24h    by how far prompts had been seen before\n  headrace cache --by model --json\n\nA report is of the newest 20,000 calls of its time that are kept in the traces. What another order of the prompt could save is the\nmost that it could: tokens behind the place where calls part, as many as the shortest of them has, for all calls but one."
)]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    pub(crate) at: ServerArgs,
    /// What it is told apart by: org, model, prefix
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
