//! The operators' access to a server: the control socket, the admin listener, and the service behind both. Must not
//! know what a command or a route does.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use headrace_admin::control::ControlSocket;
use headrace_admin::{AdminService, ContentAccess, ServerStatus};
use headrace_admin_http::{AdminParts, GatewayPeer};
use headrace_call_api::CallService;
use headrace_config::ServerSettings;
use headrace_domain::{Clock, UnixNanos};
use headrace_edge::STOPS_SOON;
use headrace_gateway::Gateway;
use secrecy::zeroize::Zeroizing;
use tokio::task::{JoinHandle, JoinSet};

use crate::admin_data::AdminData;
use crate::admin_listener::{self, AdminListener};
use crate::audit_heads;
use crate::banner::StartManner;
use crate::call_records::KnownCalls;
use crate::canaries;
use crate::contents::RecordedContents;
use crate::datadir::DataDir;
use crate::forget::UserForgetter;
use crate::gateway_peers::SharedGateways;
use crate::identity_providers;
use crate::invoices;
use crate::key_names::KeyNames;
use crate::live_stats::LiveStats;
use crate::newest::NewestCalls;
use crate::playground::PlaygroundRunner;
use crate::prompts::PromptViews;
use crate::reload::ConfigReloader;
use crate::role_context::RoleContext;
use crate::roles::{EdgeRole, EngineRole, GatewayRole, ServerRoles};

/// The address of a server without an edge, in its status.
const NO_ADDRESS: &str = "no address";

/// The operators' access to a server. Open, but not served yet.
pub(crate) struct OperatorAccess {
    /// Executes operators' commands.
    pub(crate) service: Arc<AdminService>,
    /// The admin listener with the handlers behind it, if it is wanted.
    console: Option<(AdminListener, AdminParts)>,
    /// The gateways that share the stores, if there can be any.
    gateways: Option<Arc<SharedGateways>>,
    live_stats: LiveStats,
}

impl OperatorAccess {
    /// Binds the admin listener, if it is wanted, and builds the handlers over the roles.
    ///
    /// # Errors
    /// Returns why the listener cannot be bound, or which store cannot be read.
    pub(crate) fn open(
        config: &ServerSettings,
        data_dir: &DataDir,
        manner: StartManner,
        roles: &ServerRoles,
        reloader: &Arc<ConfigReloader>,
        context: &RoleContext,
    ) -> Result<Self, String> {
        let GatewayRole { gateway, stores, receipts, .. } = &roles.gateway;
        let edge = roles.edge.as_ref();
        // Before the sessions are read, because the providers decide which of them continue.
        let providers = identity_providers::of_operators(config)?;
        reloader.sign_in().replace(providers, &context.clock, &context.runtime);
        let console = AdminListener::open(
            &config.admin,
            edge.and_then(EdgeRole::certificate).as_ref(),
            manner,
            config.server.edge.listen.port() != 0,
            (Arc::clone(&stores.operators), Arc::clone(reloader.sign_in())),
            (data_dir.path(), context.clock.now()),
        )?;
        if let (Some(edge), Some(console)) = (edge, &console) {
            edge.show_console(console.url());
        }
        let (stored, names) = (data_dir.storage().reader(), KeyNames::new(&stores.directory));
        let engines = roles.engine.as_ref().map(EngineRole::engines);
        let (recorder, clock) = (&stores.recorder, &context.clock);
        let live_stats = LiveStats::new(&stored, recorder, gateway, engines, clock, names.clone())?;
        let own = GatewayPeer {
            name: config.storage.gateway_name.clone(),
            address: config.storage.gateway_address.clone(),
        };
        let gateways = SharedGateways::open(data_dir.storage(), &stores.ledger, own);
        let secret = data_dir.gateway_secret();
        let peers = gateways.as_ref().map(|gateways| gateways.access(&secret, clock)).transpose()?;
        let archive = Arc::clone(&stores.contents.store);
        let (objects_dir, min_free) = (config.storage.objects_dir.as_deref(), config.storage.min_free_bytes);
        let forgetter = UserForgetter::new(data_dir.storage(), objects_dir, min_free, archive)
            .with_recorders(recorder, &stores.contents.recorder)
            .with_peers(peers.clone())
            .with_sessions(console.as_ref().map(AdminListener::sessions));
        let service = admin_service(roles, reloader, &live_stats, context);
        let service = service.with_contents(content_access(&stores.contents, &forgetter));
        let service = service.with_audit_signer(audit_heads::signer(&secret)?);
        let service = Arc::new(service.with_links(AdminListener::links(console.as_ref())));
        let console = console.map(|console| {
            let parts = AdminParts {
                service: Arc::clone(&service),
                sessions: Arc::clone(console.sessions()),
                directory: Arc::clone(&stores.directory),
                calls: Arc::new(KnownCalls::new(
                    &stored,
                    &live_stats,
                    (recorder, &stores.contents),
                    &forgetter,
                    clock,
                    names,
                    receipts,
                )),
                peers,
                server: Arc::new(AdminData::new(gateway, Arc::clone(&stores.ledger), reloader, stored)),
                prompts: Arc::new(PromptViews::new(gateway, reloader)),
                playground: Arc::new(PlaygroundRunner::new(gateway, &stores.directory, clock)),
                clock: Arc::clone(clock),
                pages: admin_listener::pages(),
                url: console.url().to_owned(),
                port: console.port(),
            };
            (console, parts)
        });
        Ok(Self { service, console, gateways, live_stats })
    }

    /// The text about the console in the banner. `None` without an admin listener.
    ///
    /// # Errors
    /// Returns why the first operator or the sign-in link could not be created.
    pub(crate) fn welcome(
        &self,
        manner: StartManner,
        now: UnixNanos,
    ) -> Result<Option<Zeroizing<String>>, String> {
        let console = self.console.as_ref();
        console.map(|(console, _)| console.welcome(&self.service, manner, now)).transpose()
    }

    /// Serves operators from now on. Returns the task of the control socket, which removes the socket's file when it is
    /// aborted. The other tasks are added to `tasks`.
    ///
    /// # Errors
    /// Returns why the control socket cannot be bound.
    pub(crate) fn spawn_tasks(
        self,
        data_dir: &Path,
        clock: &Arc<dyn Clock>,
        tasks: &mut JoinSet<()>,
    ) -> Result<JoinHandle<()>, String> {
        let Self { service, console, gateways, live_stats } = self;
        let control = ControlSocket::bind(data_dir).map_err(|error| error.to_string())?;
        let signed = audit_heads::sign_hourly(data_dir.to_owned(), Arc::clone(&service), Arc::clone(clock));
        tasks.spawn(signed);
        let control = tokio::spawn(control.serve(service, Arc::clone(clock)));
        if let Some((console, parts)) = console {
            tasks.spawn(console.serve(parts));
            if let Some(gateways) = gateways {
                tasks.spawn(gateways.register());
            }
        }
        tasks.spawn(live_stats.tend());
        Ok(control)
    }
}

/// The recorded requests and answers for operators' commands.
fn content_access(contents: &RecordedContents, forgetter: &UserForgetter) -> ContentAccess {
    let (waiting, forgetter) = (contents.clone(), forgetter.clone());
    ContentAccess {
        archive: Arc::clone(&contents.store),
        flush: Box::new(move || waiting.wait()),
        forget: Box::new(move |user, project| forgetter.forget(user, project)),
    }
}

/// The service that executes operators' commands.
fn admin_service(
    roles: &ServerRoles,
    reloader: &Arc<ConfigReloader>,
    live_stats: &LiveStats,
    context: &RoleContext,
) -> AdminService {
    let GatewayRole { gateway, stores, upstreams, receipts, webhooks, .. } = &roles.gateway;
    let url = roles.edge.as_ref().map_or(NO_ADDRESS, EdgeRole::url).to_owned();
    let stops_soon = roles.edge.as_ref().map(EdgeRole::stops_soon);
    let (front, started, health) = (Arc::downgrade(gateway), context.clock.now(), stores.health());
    let status = move || {
        let mut status =
            status(&url, front.upgrade().as_deref(), ServerStatus { started, ..health.status() });
        if stops_soon.as_ref().is_some_and(|stops| stops.load(Ordering::Acquire)) {
            status.not_ready.push(STOPS_SOON.to_owned());
        }
        status
    };
    let (defaults, reload, lister) = (Arc::clone(reloader), Arc::clone(reloader), Arc::clone(reloader));
    let relist = move |upstream: String| lister.relist(&upstream);
    let (live_stats, newest) = (live_stats.clone(), NewestCalls::new(gateway, &stores.recorder));
    AdminService::new(
        Arc::clone(&stores.directory),
        Arc::clone(&stores.ledger),
        Box::new(move || defaults.defaults()),
        Box::new(status),
    )
    .with_operators(Arc::clone(&stores.operators))
    .with_reload(Box::new(move || reload.reload("headrace reload")))
    .with_invoices(invoices::source(reloader))
    .with_receipt_keys(receipts.rotation())
    .with_webhooks(webhooks.as_ref().map(|webhooks| webhooks.source(context.runtime.clone())))
    .with_routes(canaries::source(Arc::downgrade(gateway)))
    .with_upstreams(upstreams.source(context.runtime.clone(), Arc::downgrade(gateway), relist))
    .with_now(Box::new(move || live_stats.now().json()))
    .with_recent(Box::new(move |most| newest.settled(most)))
}

fn status(listen: &str, gateway: Option<&Gateway>, stored: ServerStatus) -> ServerStatus {
    let catalog = gateway.map(Gateway::catalog);
    let models = catalog.iter().flat_map(|catalog| catalog.models()).map(|model| model.name.to_string());
    let models: BTreeSet<String> = models.collect();
    let aliases = catalog.iter().flat_map(|catalog| catalog.aliases()).map(ToString::to_string);
    ServerStatus {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        listen: listen.to_owned(),
        not_ready: gateway
            .map_or_else(|| vec!["the server is starting".to_owned()], |gateway| gateway.not_ready(None)),
        in_flight: gateway.map_or(0, |gateway| u64::try_from(gateway.in_flight()).unwrap_or(u64::MAX)),
        models: models.into_iter().collect(),
        aliases: aliases.collect(),
        ..stored
    }
}
