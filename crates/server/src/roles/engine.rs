//! The engine role: the models that are computed in this process. Must not know keys, money, or how calls arrive.

use std::sync::Arc;

use headrace_config::ServerSettings;
use tokio::task::JoinSet;

use crate::engines::LocalEngines;
use crate::models::{self, ServingPlan};
use crate::role_context::RoleContext;

/// The engine role of a server.
pub(crate) struct EngineRole {
    engines: Arc<LocalEngines>,
}

impl EngineRole {
    /// Starts the compute threads, loads the models of a plan and starts their engines. Blocks.
    ///
    /// # Errors
    /// Returns every model that cannot be loaded, or why there are no threads.
    pub(crate) fn start(
        config: &ServerSettings,
        plan: ServingPlan,
        context: &RoleContext,
    ) -> Result<Self, String> {
        let RoleContext { clock, metrics, .. } = context;
        let workers = models::workers(config)?;
        let running = models::start(config, plan, &workers, clock).map_err(|error| error.to_string())?;
        let engines = LocalEngines::new(running, workers, Arc::clone(clock), Arc::clone(metrics));
        let engines = Arc::new(engines);
        engines.register();
        Ok(Self { engines })
    }

    /// The running models.
    pub(crate) fn engines(&self) -> Arc<LocalEngines> {
        Arc::clone(&self.engines)
    }

    /// Spawns the task that ends removed models.
    pub(crate) fn spawn_tasks(&self, tasks: &mut JoinSet<()>) {
        tasks.spawn(self.engines().tend());
    }

    /// Ends all models and cuts off running jobs. No model can be added afterwards.
    pub(crate) fn stop(self) {
        self.engines.stop();
    }
}
