//! What operators see of calls under way and of the last minute. Puts together what the rooms know; decides nothing.

use std::sync::{Arc, Weak};

use headrace_domain::Clock;
use headrace_engine_api::Health;
use headrace_gateway::{Gateway, InFlightCall};
use headrace_trace::{CallNow, EngineNow, Live, Now, Recorder};

use crate::engines::Engines;
use crate::running::Running;

/// Clones share everything.
#[derive(Clone)]
pub(crate) struct Insight {
    live: Arc<Live>,
    gateway: Weak<Gateway>,
    engines: Arc<Engines>,
    clock: Arc<dyn Clock>,
}

impl Insight {
    /// Of a server.
    pub(crate) fn new(
        recorder: &Recorder,
        gateway: &Arc<Gateway>,
        engines: &Arc<Engines>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        Self {
            live: Arc::clone(recorder.live()),
            gateway: Arc::downgrade(gateway),
            engines: Arc::clone(engines),
            clock: Arc::clone(clock),
        }
    }

    /// The house as it is now. Takes tens of microseconds, and stops no call.
    pub(crate) fn now(&self) -> Now {
        let at = self.clock.now();
        let gateway = self.gateway.upgrade();
        let seen = gateway.as_ref().map(|gateway| gateway.in_flight_calls()).unwrap_or_default();
        let shown = |call: InFlightCall| {
            let InFlightCall { id, stage, age_ns, org, key, model } = call;
            CallNow { id, stage, age_ns, org, key, model }
        };
        let calls = seen.into_iter().map(shown).collect();
        let in_flight = gateway.map_or(0, |gateway| u64::try_from(gateway.in_flight()).unwrap_or(u64::MAX));
        Now {
            at,
            in_flight,
            calls,
            minute: self.live.minute(at),
            engines: self.engines.running().iter().map(engine).collect(),
            notes: self.live.notes(at),
        }
    }
}

fn engine(model: &Running) -> EngineNow {
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
            Health::Up => None,
            down => Some(down.to_string()),
        },
    }
}
