//! What every role of a server gets: the clock, the metrics and the runtime. Decides nothing.

use std::sync::Arc;

use headrace_config::ServerSettings;
use headrace_domain::{Clock, SteadyClock, SystemClock};
use headrace_trace::{Metrics, MetricsConfig};
use tokio::runtime::Handle;

use crate::gauges;
use crate::models::ServingPlan;

/// What all roles of one process share. Clones share everything.
#[derive(Clone)]
pub(crate) struct RoleContext {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) runtime: Handle,
}

impl RoleContext {
    /// Creates the clock and the metrics. The models of the plan, and those that the settings name, have labels of
    /// their own from the start.
    pub(crate) fn new(config: &ServerSettings, plan: &ServingPlan, runtime: Handle) -> Self {
        let served = plan.names().map(ToString::to_string);
        let models = served.chain(gauges::labelled(config).map(str::to_owned)).collect();
        let metrics = MetricsConfig { models, version: env!("CARGO_PKG_VERSION").to_owned() };
        Self {
            // A step of the wall clock must not end the holds, limits or budgets of running calls.
            clock: Arc::new(SteadyClock::new(SystemClock::new())),
            metrics: Arc::new(Metrics::new(&metrics)),
            runtime,
        }
    }
}
