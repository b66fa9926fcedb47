//! `headrace shadow`: compares shadow models with the models that answered the original calls, by the stored traces.

use std::process::ExitCode;
use std::time::Duration;

use headrace_domain::{Clock, SystemClock, UnixNanos};
use headrace_terminal::output;
use headrace_trace::{ShadowPair, shadow_pairs};

use crate::arguments::names::ShadowArgs;
use crate::commands::{CommandError, traces};

/// Maximum number of shadow copies that are read: a few megabytes of records.
const MOST: usize = 20_000;

/// Compares the models and prints the result.
pub(crate) fn run(args: &ShadowArgs) -> ExitCode {
    match find(args) {
        Ok(pairs) if args.at.json => match serde_json::to_string_pretty(&pairs) {
            Ok(text) => {
                output::say(&format!("{text}\n"));
                ExitCode::SUCCESS
            }
            Err(error) => output::fail(&error.to_string()),
        },
        Ok(pairs) => {
            output::say(&text(&pairs));
            ExitCode::SUCCESS
        }
        Err(error) => error.exit(),
    }
}

fn find(args: &ShadowArgs) -> Result<Vec<ShadowPair>, CommandError> {
    let reader = traces(&args.at)?;
    let failed = |error: headrace_trace::TraceError| CommandError::Other(error.to_string());
    let ago = Duration::from_secs(u64::from(args.hours) * 3600);
    let ago = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
    let since = UnixNanos::new(SystemClock::new().now().get().saturating_sub(ago));
    let records = reader.shadows(MOST, since).map_err(failed)?;
    Ok(shadow_pairs(&records))
}

fn text(pairs: &[ShadowPair]) -> String {
    if pairs.is_empty() {
        return "no call was copied: give a model or a route a `shadow = { model = \"next\", share = 0.1, budget = \"$5/day\" }`\n"
            .to_owned();
    }
    pairs.iter().map(ShadowPair::text).collect::<Vec<_>>().join("\n")
}
