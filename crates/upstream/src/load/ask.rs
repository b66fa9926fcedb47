//! Polls a server's load at the endpoint that its kind has for it: one question at a time, each bounded in bytes and
//! time. Must not know models or how servers are chosen.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::kind::UpstreamKind;
use crate::load::{json, page};
use crate::load_reading::LoadReadings;
use crate::probe::{self, ProbeBound, ProbeError};
use crate::server::UpstreamServer;

/// Maximum duration of one question.
const WAIT: Duration = Duration::from_secs(2);
/// Maximum size of an answer. A vLLM page with many adapters has several hundred kilobytes.
const MAX_BYTES: usize = 4 << 20;
/// The polling interval grows up to this value if a server reports no load.
const SELDOM: Duration = Duration::from_secs(15);

/// The endpoint that reports a server's load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoadPath {
    /// A metrics page.
    Metrics,
    /// SGLang's endpoint, which needs no flag.
    Loads,
    /// SGLang's older endpoint.
    GetLoad,
    /// llama.cpp's endpoint, for servers without metrics.
    Slots,
}

/// Returns the endpoints of a kind, best first.
const fn places(kind: UpstreamKind) -> &'static [LoadPath] {
    match kind {
        UpstreamKind::Vllm => &[LoadPath::Metrics],
        UpstreamKind::Sglang => &[LoadPath::Loads, LoadPath::GetLoad, LoadPath::Metrics],
        UpstreamKind::LlamaCpp => &[LoadPath::Metrics, LoadPath::Slots],
        UpstreamKind::OpenAi | UpstreamKind::Anthropic | UpstreamKind::Headrace => &[],
    }
}

/// Polls until the server is no longer in use. Returns at once if it is not to be polled.
pub(crate) async fn follow(server: Weak<UpstreamServer>) {
    let mut failed: u32 = 0;
    loop {
        let every = {
            let Some(server) = server.upgrade() else { return };
            let every = server.spec.load_every;
            if every.is_zero() || places(server.spec.kind).is_empty() {
                return;
            }
            failed = if look(&server).await { 0 } else { failed.saturating_add(1) };
            every
        };
        let seldom = every.saturating_mul(1 << failed.min(10)).min(SELDOM.max(every));
        tokio::time::sleep(seldom).await;
    }
}

/// Asks once. If the first endpoint has no report, tries the others. Returns whether a load was reported.
async fn look(server: &Arc<UpstreamServer>) -> bool {
    let places = places(server.spec.kind);
    let loads = &server.loads;
    let mut why = None;
    for _ in places {
        let Some(place) = places.get(loads.place.load(Ordering::Relaxed) % places.len()) else { break };
        let asked = Instant::now();
        let (said, elsewhere) = match get(server, *place).await {
            Ok(body) => (read(*place, &body, server.spec.kind), true),
            Err(error) => {
                // If the server does not answer at all, the other endpoints will not either.
                let elsewhere = matches!(error, ProbeError::Status { status: 400..=499 | 501, .. });
                (Err(error.to_string()), elsewhere)
            }
        };
        match said {
            Ok(readings) => {
                loads.record_answer(asked, Ok(readings));
                return true;
            }
            Err(error) => {
                let at = place.path();
                why.get_or_insert_with(|| format!("asked at `/{at}` for its load: {error}"));
                if !elsewhere {
                    break;
                }
                loads.place.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    loads.record_answer(Instant::now(), Err(why.unwrap_or_default()));
    false
}

async fn get(server: &Arc<UpstreamServer>, place: LoadPath) -> Result<Bytes, ProbeError> {
    let url = server.address.server(place.path());
    probe::get(server, url, ProbeBound { bytes: MAX_BYTES, wait: WAIT.min(server.spec.timeouts.head) }).await
}

fn read(place: LoadPath, body: &[u8], kind: UpstreamKind) -> Result<LoadReadings, String> {
    if body.len() >= MAX_BYTES {
        return Err(format!("its answer has {MAX_BYTES} bytes or more"));
    }
    match place {
        LoadPath::Metrics => {
            let text = std::str::from_utf8(body).map_err(|_| "its page is not UTF-8".to_owned())?;
            page::read(text, kind)
        }
        LoadPath::Loads => json::ranks(body).map(LoadReadings::unnamed),
        LoadPath::GetLoad => json::old_ranks(body).map(LoadReadings::unnamed),
        LoadPath::Slots => json::slots(body).map(LoadReadings::unnamed),
    }
}

impl LoadPath {
    const fn path(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Loads => "v1/loads",
            Self::GetLoad => "get_load",
            Self::Slots => "slots",
        }
    }
}
