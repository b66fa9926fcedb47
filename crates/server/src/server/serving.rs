//! Serves clients and operators, with the background tasks beside them, until a stop signal. Must not know how a role
//! was opened.

use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_call_api::CallService;
use headrace_config::ServerSettings;
use headrace_gateway::Gateway;
use headrace_identity::SecretString;
use headrace_terminal::output;
use secrecy::zeroize::Zeroizing;
use tokio::task::JoinSet;

use crate::banner::{StartManner, WelcomeBanner};
use crate::datadir::{AddressFile, DataDir};
use crate::first_start::{FirstKey, FirstKeys, FirstSetup};
use crate::operator_access::OperatorAccess;
use crate::reload::{ConfigReloader, ReloadBase};
use crate::role_context::RoleContext;
use crate::roles::{EdgeRole, EngineRole, ServerRoles};

/// How the server was started.
pub(super) struct ServerStart {
    pub(super) began: Instant,
    pub(super) manner: StartManner,
    pub(super) first_key: Option<SecretString>,
}

/// A server whose sockets are bound and whose keys are set up. It serves nothing yet.
pub(super) struct OpenServer {
    reloader: Arc<ConfigReloader>,
    operators: OperatorAccess,
    welcome: Zeroizing<String>,
    /// Removes the file of the API's address when it is dropped.
    address: Option<AddressFile>,
    waits: StopWaits,
}

/// How long a server waits at a stop.
#[derive(Clone, Copy)]
struct StopWaits {
    /// How long new calls are still accepted after the first signal.
    drain_delay: Duration,
    /// How long calls in flight may take after `drain_delay`.
    drain: Duration,
}

impl OpenServer {
    /// Opens the operators' access to the roles, sets up the first keys, and writes the banner. Blocks.
    ///
    /// # Errors
    /// Returns why the admin listener cannot be bound, or the keys cannot be set up.
    pub(super) fn open(
        config: &ServerSettings,
        data_dir: &DataDir,
        roles: &ServerRoles,
        start: ServerStart,
        base: ReloadBase,
        context: &RoleContext,
    ) -> Result<Self, String> {
        let ServerRoles { engine, gateway, edge } = roles;
        let (engines, edge) = (engine.as_ref().map(EngineRole::engines), edge.as_ref());
        let certificate = edge.and_then(EdgeRole::certificate);
        let (calls, upstreams) = (&gateway.gateway, &gateway.upstreams);
        let reloader = ConfigReloader::new(base, config, calls, upstreams, engines, certificate, context);
        let manner = start.manner;
        let operators = OperatorAccess::open(config, data_dir, manner, roles, &reloader, context)?;
        reloader.change_budgets_by(&operators.service);
        let keys = first_keys(config, data_dir, roles, &operators, &start, context)?;
        let admin = operators.welcome(manner, context.clock.now())?;
        let address = edge.and_then(|edge| edge.publish_address(data_dir));
        let welcome = WelcomeBanner {
            url: edge.map(EdgeRole::url),
            metrics: edge.and_then(EdgeRole::metrics_url),
            data_dir: &config.data_dir,
            models: &gateway.models,
            keys: &keys,
            admin: admin.as_deref().map(String::as_str),
            manner,
            took: start.began.elapsed(),
        }
        .text();
        let drain_delay = config.server.drain_delay.unwrap_or_else(|| manner.drain_delay());
        let waits = StopWaits { drain_delay, drain: config.server.drain };
        Ok(Self { reloader, operators, welcome, address, waits })
    }

    /// Reloads the configuration of this server.
    pub(super) const fn reloader(&self) -> &Arc<ConfigReloader> {
        &self.reloader
    }

    /// Serves until a stop signal, then aborts the background tasks. `signal` waits for the next signal.
    ///
    /// # Errors
    /// Returns why the server cannot serve any longer.
    pub(super) async fn serve(
        self,
        data_dir: &DataDir,
        roles: &mut ServerRoles,
        context: &RoleContext,
        signal: impl AsyncFnMut(),
    ) -> Result<ServingEnd, String> {
        let Self { reloader, operators, welcome, address, waits } = self;
        let (edge, gateway) = (roles.edge.take(), &roles.gateway);
        let mut tasks = JoinSet::new();
        if let Some(engine) = &roles.engine {
            engine.spawn_tasks(&mut tasks);
        }
        gateway.spawn_tasks(&reloader, &mut tasks);
        let control = operators.spawn_tasks(data_dir.path(), &context.clock, &mut tasks)?;
        tasks.spawn(reloader.watch());
        if let Some(edge) = &edge {
            edge.show_warnings();
            edge.publish_receipt_keys(&gateway.receipts, &mut tasks);
        }
        let gateway = &gateway.gateway;
        let end = attend(edge, gateway, welcome, waits, signal).await;
        if !matches!(end, Ok(ServingEnd::Interrupted)) {
            // However serving ended, the ledger may close only after the last call has settled.
            gateway.drain(Duration::ZERO).await;
        }
        control.abort();
        // The aborted task drops its socket, which removes the socket's file.
        let _ = control.await;
        tasks.abort_all();
        drop(address);
        end
    }
}

/// Sets up the first keys and warns the operator about problems with them.
fn first_keys(
    config: &ServerSettings,
    data_dir: &DataDir,
    roles: &ServerRoles,
    operators: &OperatorAccess,
    start: &ServerStart,
    context: &RoleContext,
) -> Result<FirstKeys, String> {
    let (service, stores, now) = (&operators.service, &roles.gateway.stores, context.clock.now());
    // Servers that start together on an empty database make one first key.
    let _lock = data_dir.setup_lock().map_err(|error| error.to_string())?;
    stores.directory.refresh().map_err(|error| error.to_string())?;
    // An empty batch brings the ledger up to date with what others wrote.
    let _ = stores.ledger.transact(Vec::new(), now);
    let lost = service.reconcile(now).map_err(|error| error.to_string())?;
    if !lost.is_empty() {
        let names: Vec<_> = lost.iter().map(ToString::to_string).collect();
        output::note(&format!(
            "warning: the ledger did not know projects that have keys, so it is older than the keys; their balances start at zero: {}",
            names.join(", ")
        ));
    }
    service.take_over_budgets(&config.budgets, now).map_err(|error| error.to_string())?;
    service.take_over_free_tiers(&config.free_tiers, now).map_err(|error| error.to_string())?;
    let setup = FirstSetup { service, directory: &stores.directory, ledger: stores.ledger.as_ref(), now };
    let play = start.manner == StartManner::Up;
    let keys = setup.run(&config.first_start, start.first_key.as_ref(), play)?;
    match &keys {
        FirstKeys::Refused(why) => output::note(&format!("warning: {why}")),
        FirstKeys::First(FirstKey { secret: Some(secret), .. }) if start.manner == StartManner::Serve => {
            data_dir.keep_first_key(secret).map_err(|error| error.to_string())?;
        }
        _ => {}
    }
    Ok(keys)
}

/// Serves until the first signal. Then denies readiness, accepts calls for another `drain_delay`, and drains. The next
/// signal ends the delay, and the one after it ends the drain. Without an edge, the calls are those of this process.
async fn attend(
    edge: Option<EdgeRole>,
    gateway: &Arc<Gateway>,
    welcome: Zeroizing<String>,
    StopWaits { drain_delay, drain }: StopWaits,
    mut signal: impl AsyncFnMut(),
) -> Result<ServingEnd, String> {
    let (announce, announced) = tokio::sync::oneshot::channel::<()>();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let notice = async move {
        // A dropped sender means the same as a message.
        let _ = announced.await;
    };
    let shutdown = async move {
        // A dropped sender means the same as a message.
        let _ = stopped.await;
    };
    let serving = async move {
        match edge {
            Some(edge) => edge.serve(notice, shutdown, drain).await,
            None => {
                shutdown.await;
                gateway.drain(drain).await
            }
        }
    };
    let mut serving = std::pin::pin!(serving);
    // Only now, because a reader of this text may call or send a signal at once.
    output::say(&welcome);
    drop(welcome);
    tokio::select! {
        _ = &mut serving => return Err("the listener ended by itself".to_owned()),
        () = signal() => {}
    }
    drop(announce);
    if !drain_delay.is_zero() {
        output::note(&format!(
            "stopping: not ready any more; calls are taken for {} s more (server.drain_delay); Ctrl-C again ends this wait",
            drain_delay.as_secs()
        ));
        tokio::select! {
            _ = &mut serving => return Err("the listener ended by itself".to_owned()),
            () = tokio::time::sleep(drain_delay) => {}
            () = signal() => {}
        }
    }
    let count = gateway.in_flight();
    let calls = if count == 1 { "call" } else { "calls" };
    let patience = format!("for at most {} s; Ctrl-C again stops at once", drain.as_secs());
    output::note(&format!("draining: {count} {calls} in flight, {patience}"));
    drop(stop);
    tokio::select! {
        cut = &mut serving => {
            if cut > 0 {
                output::note(&format!("{cut} calls were cut off and settled for what they had delivered"));
            }
            Ok(ServingEnd::Drained)
        }
        () = signal() => Ok(ServingEnd::Interrupted),
    }
}

/// How serving ended.
pub(super) enum ServingEnd {
    /// All calls are settled.
    Drained,
    /// A further signal stopped the drain.
    Interrupted,
}
