//! Asks servers of others whether they are well when operators look and nothing was heard of them for a while. Knows no settings.

use std::time::Duration;

use headrace_upstream::Upstream;

/// A server that was not heard for this long is asked whether it is well when operators look.
const SILENT_FOR: Duration = Duration::from_secs(5);
/// How long it may take to say so.
const WELL_WITHIN: Duration = Duration::from_secs(1);

/// Asks the servers that have not been heard for a while whether they are well, all at once. Their figures say what came of it.
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
        // A question that panicked says nothing.
        drop(ask.await);
    }
}
