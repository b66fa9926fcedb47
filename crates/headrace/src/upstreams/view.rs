//! How operators see an upstream and its models. Must not know who asks.

use std::time::Duration;

use headrace_admin::{LoadView, UpstreamModelView, UpstreamView};
use headrace_engine_api::{LoadReport, Reported};
use headrace_fleet::WorkerStatus;
use headrace_upstream::Listing;

use super::Site;

/// The most models that are told by name.
pub(super) const NAMES_TOLD: usize = 8;

impl Site {
    pub(super) fn view(&self, workers: &[WorkerStatus]) -> UpstreamView {
        let figures = self.upstream.figures();
        let [name, kind, at, said] = self.describe();
        let seconds = |age: Option<Duration>| age.map(|age| age.as_secs());
        UpstreamView {
            name,
            kind,
            lane: String::new(),
            at,
            region: self.config.region.clone(),
            state: if self.upstream.health().is_up() { "up".to_owned() } else { "drained".to_owned() },
            said,
            in_flight: figures.in_flight,
            waiting: figures.waiting,
            calls: figures.calls,
            failed: figures.failures.iter().sum::<u64>().saturating_sub(figures.rate_limited),
            rate_limited: figures.rate_limited,
            last_error_age_s: seconds(figures.last_error_age),
            last_error: figures.last_error,
            last_contact_age_s: seconds(figures.last_contact_age),
            load_fault: self.upstream.load_fault(),
            cache_fault: self.upstream.cache_fault(),
            models: workers
                .iter()
                .filter(|worker| worker.site.as_deref() == Some(self.upstream.name()))
                .map(model_view)
                .collect(),
        }
    }
}

fn model_view(worker: &WorkerStatus) -> UpstreamModelView {
    let permille = |part: Option<f64>| part.map(|part| (part * 1000.0).round() as u32);
    UpstreamModelView {
        model: worker.model.clone(),
        worker: worker.id.to_string(),
        standing: worker.standing.to_string(),
        breaker: worker.breaker.state.to_owned(),
        trips: worker.breaker.trips,
        in_flight: worker.in_flight,
        failed_permille_last_minute: permille(worker.failed_last_minute),
        failed_permille_last_5_minutes: permille(worker.failed_last_5_minutes),
        first_ms: worker.first.map(|first| u64::try_from(first.as_millis()).unwrap_or(u64::MAX)),
        cached_blocks: worker.remembered as u64,
        load: load_view(&worker.load),
    }
}

fn load_view(load: &LoadReport) -> Option<LoadView> {
    let age_s = match load.reported {
        Reported::Now => 0,
        Reported::Ago { nanos } => nanos / 1_000_000_000,
        Reported::Never => return None,
    };
    let LoadReport { running, waiting, cache_used_permille, .. } = *load;
    Some(LoadView { running, waiting, cache_used_permille, age_s })
}

/// Some names of models, and how many more there are.
pub(super) fn told(models: &Listing) -> String {
    if models.is_empty() {
        return "it lists no model".to_owned();
    }
    let names: Vec<&str> = models.iter().take(NAMES_TOLD).map(|model| model.id.as_str()).collect();
    let more = match models.len().saturating_sub(NAMES_TOLD) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let left_out = match models.left_out {
        0 => String::new(),
        left_out => format!("; {left_out} further entries are left out"),
    };
    format!("{}{more}{left_out}", names.join(", "))
}
