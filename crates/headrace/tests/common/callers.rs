//! Clients that call a gateway again and again while faults happen, and the check of the ledger afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]
#![allow(dead_code, reason = "not every test file uses all helpers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{PATIENCE, Server, question};

/// How long a refusal may take. A call waits at most one second for the ledger.
const MAX_REFUSAL: Duration = Duration::from_secs(2);

/// What the clients of a test saw.
pub(crate) struct CallCounts {
    /// How long a refusal may take. Longer if the test stops the gateway itself.
    pub(crate) max_refusal: Duration,
    /// Calls that were answered whole.
    pub(crate) answered: AtomicU64,
    /// Calls that were refused because the ledger could not be reached.
    pub(crate) unavailable: AtomicU64,
    /// Calls whose connection broke.
    pub(crate) cut: AtomicU64,
    /// The longest answered call since this was last reset, in microseconds.
    pub(crate) longest_us: AtomicU64,
    /// Ends the clients.
    pub(crate) stop: AtomicBool,
}

impl Default for CallCounts {
    fn default() -> Self {
        Self {
            max_refusal: MAX_REFUSAL,
            answered: AtomicU64::new(0),
            unavailable: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }
}

impl CallCounts {
    /// Waits until `more` further calls are answered. Returns how long that took. Panics after `limit`.
    pub(crate) async fn until_answered(&self, more: u64, limit: Duration, what: &str) -> Duration {
        let (before, since) = (self.answered.load(Ordering::SeqCst), Instant::now());
        while self.answered.load(Ordering::SeqCst) < before + more {
            assert!(since.elapsed() < limit, "{what}: no call is answered within {limit:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        since.elapsed()
    }
}

/// Calls the demo model until the test ends. A refusal must come in time, and must not blame the key or the balance.
pub(crate) async fn call_until_stopped(
    http: reqwest::Client,
    url: String,
    key: &'static str,
    counts: Arc<CallCounts>,
) {
    let body = question(json!({ "max_tokens": 2 })).to_string();
    while !counts.stop.load(Ordering::SeqCst) {
        let call = http.post(format!("{url}/v1/chat/completions")).bearer_auth(key);
        let call = call.header("content-type", "application/json").body(body.clone()).timeout(PATIENCE);
        let asked = Instant::now();
        match call.send().await {
            Ok(answer) if answer.status() == 200 => {
                let counter = if answer.bytes().await.is_ok() { &counts.answered } else { &counts.cut };
                counter.fetch_add(1, Ordering::SeqCst);
                let took = u64::try_from(asked.elapsed().as_micros()).unwrap();
                counts.longest_us.fetch_max(took, Ordering::SeqCst);
            }
            Ok(answer) => {
                let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
                let text = answer.text().await.unwrap_or_default();
                assert_eq!(status, 503, "{text}");
                assert!(headers.contains_key("retry-after"), "{text}");
                assert!(asked.elapsed() < counts.max_refusal, "{:?}", asked.elapsed());
                counts.unavailable.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            // A killed gateway cuts its callers off.
            Err(_) => {
                counts.cut.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Checks all rows of the ledger again and again until no hold is open. Panics at a violated invariant, or after
/// `limit`. Returns the last report.
pub(crate) async fn verified_when_idle(gateway: &Server, limit: Duration) -> Value {
    let until = Instant::now() + limit;
    loop {
        let report = tokio::task::block_in_place(|| gateway.ok(&["ledger", "verify", "--json"]));
        let verified: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(verified["finding_count"], json!(0), "{verified}");
        if verified["totals"]["open_holds"] == json!(0) {
            return verified;
        }
        assert!(Instant::now() < until, "{verified}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
