//! Exchanges this gateway's shares in rate limits with the other gateways, about once a second, on a thread of its own.
//! Knows neither how shares are decided nor where they are kept.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use headrace_domain::Clock;
use headrace_limits::{GatewayShares, ShareStore, ShareStoreError};

/// Two exchanges of this gateway and one of each other gateway move a share. That takes less than three seconds.
const EXCHANGE_EVERY: Duration = Duration::from_millis(900);

/// The thread that exchanges shares. Dropping it gives all shares back.
pub(crate) struct ShareExchange {
    ending: Arc<EndSignal>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct EndSignal {
    is_ending: Mutex<bool>,
    changed: Condvar,
}

impl ShareExchange {
    /// Makes the first exchange, then starts the thread. Blocks. If the first exchange fails, limited calls are refused
    /// until one succeeds.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub(crate) fn start(
        shares: GatewayShares,
        store: Box<dyn ShareStore + Send>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, String> {
        let ending = Arc::<EndSignal>::default();
        let seen = Arc::clone(&ending);
        let mut exchanger = ShareExchanger { shares, store, clock, is_failing: false };
        exchanger.exchange();
        let thread = std::thread::Builder::new().name("limit-shares".into());
        let thread = thread.spawn(move || exchanger.run(&seen));
        let thread =
            thread.map_err(|error| format!("the thread of rate limits could not be started: {error}"))?;
        Ok(Self { ending, thread: Some(thread) })
    }
}

impl Drop for ShareExchange {
    fn drop(&mut self) {
        *self.ending.is_ending.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ending.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread.
            let _ = thread.join();
        }
    }
}

impl EndSignal {
    /// Waits for `time` or until the end. Returns whether the end has come.
    fn wait(&self, time: Duration) -> bool {
        let guard = self.is_ending.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(guard, time, |is_ending| !*is_ending);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

struct ShareExchanger {
    shares: GatewayShares,
    store: Box<dyn ShareStore + Send>,
    clock: Arc<dyn Clock>,
    is_failing: bool,
}

impl ShareExchanger {
    fn run(mut self, ending: &EndSignal) {
        loop {
            let began = self.clock.monotonic_nanos();
            self.exchange();
            let took = Duration::from_nanos(self.clock.monotonic_nanos().saturating_sub(began));
            if ending.wait(EXCHANGE_EVERY.saturating_sub(took)) {
                break;
            }
        }
        if let Err(error) = self.shares.leave(self.store.as_mut(), self.clock.as_ref()) {
            tracing::warn!(%error, "the shares of this gateway are free for others after their lease");
        }
    }

    fn exchange(&mut self) {
        let done = self.shares.exchange(self.store.as_mut(), self.clock.as_ref());
        self.report(done);
    }

    fn report(&mut self, done: Result<(), ShareStoreError>) {
        match done {
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                tracing::warn!("the shares of rate limits are exchanged again");
            }
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                tracing::error!(
                    %error,
                    "this gateway keeps its shares for twelve seconds, then refuses limited calls; trying again"
                );
            }
            Ok(()) | Err(_) => {}
        }
    }
}
