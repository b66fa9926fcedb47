//! Arguments that several commands share: the data directory, limits, durations, regions. Must not know any command.

use std::path::PathBuf;

use clap::Args;
use headrace_domain::{Region, Residency};
use headrace_identity::RateLimits;

use headrace_config::value::{ParsedValue, SettingKind};

/// The data directory of a server, running or not.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// The server's data directory [default: ./headrace-data]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<String>,
    /// The server's configuration, if it sets secrets or default limits
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Limits. An absent limit is no limit.
#[derive(Debug, Args)]
pub(crate) struct LimitFlags {
    /// Requests per minute
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<u32>,
    /// Tokens per minute, input and output together
    #[arg(long, value_name = "N")]
    tokens_per_minute: Option<u64>,
    /// Requests in flight
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
}

impl LimitFlags {
    /// Returns all limits.
    pub(crate) fn limits(&self) -> RateLimits {
        let Self { requests_per_minute, tokens_per_minute, concurrency } = *self;
        RateLimits { requests_per_minute, tokens_per_minute, concurrency }
    }

    /// Returns all limits, or `None` if none is given.
    pub(crate) fn given(&self) -> Option<RateLimits> {
        Some(self.limits()).filter(|limits| *limits != RateLimits::default())
    }
}

pub(crate) fn duration(text: &str) -> Result<std::time::Duration, String> {
    const CENTURY: std::time::Duration = std::time::Duration::from_secs(36_500 * 86_400);
    match (SettingKind::Duration { least: std::time::Duration::ZERO, most: CENTURY }).parse_text(text)? {
        ParsedValue::Duration(duration) => Ok(duration),
        _ => Err("it must be a duration".to_owned()),
    }
}

/// The regions in which calls of a new organisation or key may run. If absent, calls may run anywhere.
#[derive(Debug, Args)]
pub(crate) struct RegionFlags {
    /// Regions in which calls may run, such as eu,ch. Headrace asks no upstream outside these regions [default: anywhere]
    #[arg(long, value_name = "REGION,…", value_delimiter = ',')]
    regions: Vec<Region>,
}

impl RegionFlags {
    /// Returns the regions as a residency.
    pub(crate) fn residency(&self) -> Residency {
        if self.regions.is_empty() {
            Residency::Anywhere
        } else {
            Residency::only(self.regions.iter().cloned())
        }
    }
}

/// New regions for an existing organisation or key. They replace its regions.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct NewRegions {
    /// Regions in which calls may run, such as eu,ch. Headrace asks no upstream outside these regions
    #[arg(long, value_name = "REGION,…", value_delimiter = ',')]
    regions: Vec<Region>,
    /// Calls may run anywhere. For a key: anywhere that its organisation allows
    #[arg(long)]
    anywhere: bool,
}

impl NewRegions {
    /// Returns the regions as a residency.
    pub(crate) fn residency(&self) -> Residency {
        if self.anywhere { Residency::Anywhere } else { Residency::only(self.regions.iter().cloned()) }
    }
}
