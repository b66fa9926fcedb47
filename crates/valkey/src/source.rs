//! The source of slices: it starts the task that keeps the connection, and passes demands and returns to it. Must not
//! know what the server is asked.

use std::sync::Arc;

use headrace_domain::UnixNanos;
use headrace_limits::{QuotaDemand, QuotaFuture, QuotaReturn, QuotaSource};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use crate::connection::ServerConnector;
use crate::settings::{ValkeySettings, ValkeyStatus};
use crate::state::SourceState;
use crate::supervisor::ConnectionSupervisor;

/// The most returns that wait to be sent. Further ones are dropped.
const MAX_RETURNS: usize = 4_096;

/// Rate limits in a Valkey or Redis server.
pub struct ValkeyQuota {
    shared: Arc<SourceState>,
    returns: mpsc::Sender<QuotaReturn>,
    ending: watch::Sender<bool>,
    ended: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl std::fmt::Debug for ValkeyQuota {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValkeyQuota").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl ValkeyQuota {
    /// Makes the first connection, and starts a task that keeps it. Blocks for at most three seconds. If the server
    /// cannot be reached, the policy applies until it can.
    ///
    /// # Errors
    /// The settings are unusable: the file of the certificate authority cannot be read.
    pub fn open(settings: &ValkeySettings, runtime: &Handle) -> Result<Self, String> {
        let connector = ServerConnector::new(&settings.address, settings.ca_file.as_ref())?;
        let shared = Arc::new(SourceState::new(&settings.prefix, settings.policy));
        let (returns, to_return) = mpsc::channel(MAX_RETURNS);
        let (ending, is_ending) = watch::channel(false);
        let mut supervisor = ConnectionSupervisor::new(settings, connector, Arc::clone(&shared), to_return);
        runtime.block_on(supervisor.connect());
        let handle = runtime.clone();
        let thread = std::thread::Builder::new().name("limit-source".into());
        let ended = thread
            .spawn(move || handle.block_on(supervisor.run(is_ending)))
            .map_err(|error| format!("the thread of rate limits could not be started: {error}"))?;
        Ok(Self { shared, returns, ending, ended: Mutex::new(Some(ended)) })
    }

    /// Removes this gateway from the live ones, and ends. Blocks for at most a few seconds.
    pub fn close(&self) {
        let _ = self.ending.send(true);
        if let Some(thread) = self.ended.lock().take() {
            // A panic was reported by the thread.
            let _ = thread.join();
        }
    }

    /// The state of the source.
    pub fn status(&self) -> ValkeyStatus {
        self.shared.status()
    }
}

impl Drop for ValkeyQuota {
    /// Ends the connection, and does not wait for that.
    fn drop(&mut self) {
        let _ = self.ending.send(true);
    }
}

impl QuotaSource for ValkeyQuota {
    fn lease<'a>(&'a self, demands: &'a [QuotaDemand], now: UnixNanos) -> QuotaFuture<'a> {
        Box::pin(self.shared.lease(demands, now))
    }

    fn give_back(&self, returned: QuotaReturn) {
        if let Some(returned) = self.shared.give_back_alone(returned) {
            let _ = self.returns.try_send(returned);
        }
    }
}
