//! An upstream and its models as operators see them. Must not know who asks.

use std::time::Duration;

use headrace_admin::{LoadView, UpstreamModelView, UpstreamView};
use headrace_engine_api::{LoadReport, ReportAge};
use headrace_fleet::{WorkerStanding, WorkerStatus};
use headrace_upstream::ServerFigures;

use super::{ListedModels, UpstreamSite, describe};

impl UpstreamSite {
    /// Label, kind, address and last answer, for operators.
    pub fn describe(&self) -> [String; 4] {
        let said = match &self.listed {
            ListedModels::NotAsked => "has not been asked".to_owned(),
            ListedModels::Failed(why) => why.clone(),
            ListedModels::Models(models) => describe(models),
        };
        let Self { upstream, .. } = self;
        [upstream.label(), upstream.kind().to_string(), upstream.authority(), said]
    }

    /// Why the server did not list its models. `None` if it did, or has not been asked.
    pub fn fault(&self) -> Option<String> {
        let why = self.answered().err()?;
        let (name, kind, at) = (self.upstream.label(), self.upstream.kind(), self.upstream.authority());
        Some(format!("upstream `{name}` ({kind} at {at}) does not say what it serves: {why}"))
    }

    pub(super) fn view(&self, workers: &[WorkerStatus]) -> UpstreamView {
        let figures = self.upstream.figures();
        let label = self.upstream.label();
        let own: Vec<&WorkerStatus> =
            workers.iter().filter(|worker| worker.site.as_deref() == Some(label.as_str())).collect();
        let [name, kind, at, said] = self.describe();
        let seconds = |age: Option<Duration>| age.map(|age| age.as_secs());
        UpstreamView {
            name,
            kind,
            lane: String::new(),
            at,
            region: self.config.region.clone(),
            state: state(self.upstream.health().is_up(), &figures, &own),
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
            models: own.iter().map(|worker| model_view(worker, figures.down.is_some())).collect(),
        }
    }
}

/// `up`, `drained`, `down: WHY` if the last attempt to connect failed, or `failing: WHY` if the breaker of each of its
/// models is open.
fn state(takes_calls: bool, figures: &ServerFigures, workers: &[&WorkerStatus]) -> String {
    let all_open = !workers.is_empty() && workers.iter().all(|worker| worker.breaker.state != "closed");
    match (&figures.down, &figures.last_error) {
        _ if !takes_calls => "drained".to_owned(),
        (Some(why), _) => format!("down: {}", why.strip_prefix("no connection: ").unwrap_or(why)),
        (None, Some(why)) if all_open => format!("failing: {why}"),
        _ => "up".to_owned(),
    }
}

fn model_view(worker: &WorkerStatus, is_down: bool) -> UpstreamModelView {
    let permille = |part: Option<f64>| part.map(|part| (part * 1000.0).round() as u32);
    UpstreamModelView {
        model: worker.model.clone(),
        worker: worker.id.to_string(),
        standing: match &worker.standing {
            WorkerStanding::Ready if is_down => {
                "its server was not reached; the next call tries it".to_owned()
            }
            standing => standing.to_string(),
        },
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
        ReportAge::Now => 0,
        ReportAge::Ago { nanos } => nanos / 1_000_000_000,
        ReportAge::Never => return None,
    };
    let LoadReport { running, waiting, cache_used_permille, .. } = *load;
    Some(LoadView { running, waiting, cache_used_permille, age_s })
}
