//! Probes upstreams that have been silent for a while, when an operator looks at them. Knows no settings.

use std::time::Duration;

use headrace_upstream::Upstream;

/// Silence after which a server is probed when an operator looks.
const SILENT_FOR: Duration = Duration::from_secs(5);
/// Time limit for a probe.
const WELL_WITHIN: Duration = Duration::from_secs(1);

/// Probes the servers that have been silent for a while, all at once. Their figures show the results.
pub(super) async fn ask_silent(upstreams: Vec<Upstream>) {
    let is_silent = |upstream: &Upstream| {
        let heard = upstream.figures().last_contact_age;
        heard.is_none_or(|age| age >= SILENT_FOR)
    };
    let asks: Vec<_> = upstreams
        .into_iter()
        .filter(is_silent)
        .map(|upstream| {
            tokio::spawn(async move { drop(tokio::time::timeout(WELL_WITHIN, upstream.probe()).await) })
        })
        .collect();
    for ask in asks {
        // A probe that panicked has no result.
        drop(ask.await);
    }
}
