//! The roles of a server: engines, gateway, edge. Opens them in order, each with the roles that it needs, and closes
//! them in order. Must not know when a server serves, nor how it stops.

mod edge;
mod engine;
mod gateway;

use headrace_config::ServerSettings;

pub(crate) use self::edge::EdgeRole;
pub(crate) use self::engine::EngineRole;
pub(crate) use self::gateway::GatewayRole;
use crate::datadir::DataDir;
use crate::models::ServingPlan;
use crate::role_context::RoleContext;
use crate::running_model::InMemory;
use crate::tokenizer_assets::AssetsByModel;

/// The roles that a server has besides the gateway, which every server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoleSet {
    /// Whether models are computed in this process.
    pub(crate) engine: bool,
    /// Whether clients reach the server over the network.
    pub(crate) edge: bool,
}

impl RoleSet {
    /// Every role.
    pub(crate) const ALL: Self = Self { engine: true, edge: true };

    /// The models in memory before the roles are opened, for the check of a configuration.
    pub(crate) fn in_memory(self) -> InMemory {
        if self.engine { InMemory::default() } else { InMemory::without_engines() }
    }
}

/// The open roles of a server.
pub(crate) struct ServerRoles {
    pub(crate) engine: Option<EngineRole>,
    pub(crate) gateway: GatewayRole,
    /// `None` without an edge, or once it serves.
    pub(crate) edge: Option<EdgeRole>,
}

impl ServerRoles {
    /// Opens the wanted roles. Blocks, for as long as loading the models takes.
    ///
    /// # Errors
    /// Returns why a role cannot be opened. Those that were open are closed again.
    pub(crate) fn open(
        config: &ServerSettings,
        plan: ServingPlan,
        assets: AssetsByModel,
        data_dir: &DataDir,
        wanted: RoleSet,
        context: &RoleContext,
    ) -> Result<Self, String> {
        let identities = data_dir.identities().map_err(|error| error.to_string())?;
        // Before the ledger is opened: if a model cannot be served, the directory stays unchanged.
        let engine = wanted.engine.then(|| EngineRole::start(config, plan, context)).transpose()?;
        let gateway = GatewayRole::open(config, assets, data_dir, identities, engine.as_ref(), context)?;
        let bind = || EdgeRole::bind(config, data_dir, &gateway, engine.as_ref(), context);
        match wanted.edge.then(bind).transpose() {
            Ok(edge) => Ok(Self { engine, gateway, edge }),
            Err(why) => {
                // The reason why the edge cannot be opened is the one to report.
                let _ = Self { engine, gateway, edge: None }.close();
                Err(why)
            }
        }
    }

    /// Closes the roles once no call is served any more. Blocks.
    ///
    /// # Errors
    /// Returns why not every call is settled on the disk.
    pub(crate) fn close(self) -> Result<(), String> {
        let Self { engine, gateway, edge } = self;
        drop(edge);
        if let Some(engine) = engine {
            engine.stop();
        }
        gateway.close()
    }
}
