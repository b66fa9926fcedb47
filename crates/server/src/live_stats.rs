//! The operators' view of calls in flight, of the last minute and of usage. Combines the data of other crates; decides
//! nothing.

use std::sync::{Arc, Weak};
use std::time::Duration;

use headrace_call_state::InFlightCall;
use headrace_domain::Clock;
use headrace_engine_api::EngineHealth;
use headrace_gateway::Gateway;
use headrace_store::StorageReader;
use headrace_trace::{CallNow, EngineNow, LiveCalls, LiveView, MAX_CALLS_NAMED, TraceRecorder, UsageReader};

use crate::engines::LocalEngines;
use crate::history::{SAMPLE_EVERY, StatsHistory};
use crate::key_names::KeyNames;
use crate::running_model::RunningModel;

/// Interval at which usage is brought up to date. It is well below the time for which traces of settled calls are
/// looked for.
const CATCH_UP_EVERY: Duration = Duration::from_secs(30);

/// State for the operators' view. Clones share everything.
#[derive(Clone)]
pub(crate) struct LiveStats {
    /// Usage derived from the ledger and the traces. Its methods block.
    pub(crate) usage: Arc<dyn UsageReader>,
    pub(crate) live: Arc<LiveCalls>,
    gateway: Weak<Gateway>,
    /// `None` on a server without engines.
    engines: Option<Arc<LocalEngines>>,
    clock: Arc<dyn Clock>,
    names: KeyNames,
    /// Samples of the last minutes, for charts.
    pub(crate) history: Arc<StatsHistory>,
}

impl LiveStats {
    /// Opens the usage of a server's stores.
    ///
    /// # Errors
    /// Returns why the usage store cannot be opened.
    pub(crate) fn new(
        stored: &StorageReader,
        recorder: &TraceRecorder,
        gateway: &Arc<Gateway>,
        engines: Option<Arc<LocalEngines>>,
        clock: &Arc<dyn Clock>,
        names: KeyNames,
    ) -> Result<Self, String> {
        Ok(Self {
            usage: stored.usage().map_err(|error| error.to_string())?,
            live: Arc::clone(recorder.live()),
            gateway: Arc::downgrade(gateway),
            engines,
            clock: Arc::clone(clock),
            names,
            history: Arc::default(),
        })
    }

    /// Brings usage up to date and takes samples until the future is dropped, so that readers of usage seldom wait for
    /// it.
    pub(crate) async fn tend(self) {
        let (mut catch_up, mut sample) =
            (tokio::time::interval(CATCH_UP_EVERY), tokio::time::interval(SAMPLE_EVERY));
        // The first tick fires at once, when nothing has been used yet.
        catch_up.tick().await;
        loop {
            tokio::select! {
                _ = catch_up.tick() => {}
                _ = sample.tick() => {
                    let now = self.clock.now();
                    self.history.add(now, &self.live.minute(now));
                    continue;
                }
            }
            let usage = Arc::clone(&self.usage);
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || usage.catch_up()).await {
                tracing::warn!(%error, "usage cannot be brought up to date; its answers say so");
            }
        }
    }

    /// The current state of the server. Takes tens of microseconds and stops no call.
    pub(crate) fn now(&self) -> LiveView {
        let at = self.clock.now();
        let gateway = self.gateway.upgrade();
        let seen = gateway.as_ref().map(|gateway| gateway.in_flight_calls()).unwrap_or_default();
        let shown = |(at, call): (usize, InFlightCall)| {
            let InFlightCall { id, stage, age_ns, org, key, model, completion_tokens } = call;
            // Names are looked up for the first calls only. The others are merely counted.
            let known = key.as_ref().filter(|_| at < MAX_CALLS_NAMED).and_then(|key| self.names.of(key));
            let (project, key_name) = known.map_or((None, None), |known| (known.project, Some(known.name)));
            CallNow { id, stage, age_ns, org, project, key, key_name, model, completion_tokens }
        };
        let calls = seen.into_iter().enumerate().map(shown).collect();
        let running = self.engines.as_ref().map(|engines| engines.running()).unwrap_or_default();
        let in_flight = gateway.map_or(0, |gateway| u64::try_from(gateway.in_flight()).unwrap_or(u64::MAX));
        LiveView {
            at,
            in_flight,
            calls,
            minute: self.live.minute(at),
            engines: running.iter().map(engine).collect(),
            notes: self.live.notes_with(at, &|key| {
                self.names.of(key).map_or_else(|| key.to_string(), |known| known.name)
            }),
        }
    }
}

fn engine(model: &RunningModel) -> EngineNow {
    let load = model.engine.load();
    EngineNow {
        model: model.served.name.to_string(),
        running: load.running,
        paused: load.paused,
        waiting: load.waiting,
        waiting_tokens: load.waiting_tokens,
        blocks: load.blocks_total,
        used_blocks: load.blocks_total.saturating_sub(load.blocks_free),
        cached_blocks: load.blocks_cached,
        tokens_per_second: load.tokens_per_second,
        down: match model.engine.health() {
            EngineHealth::Up => None,
            down => Some(down.to_string()),
        },
    }
}
