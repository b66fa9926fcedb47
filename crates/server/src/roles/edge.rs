//! The edge role: the listeners for clients and for gateways that send jobs, and their certificate. Must not know what
//! answers a call.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use headrace_call_api::InternalApi;
use headrace_config::ServerSettings;
use headrace_domain::{KeyId, TraceSink};
use headrace_edge::{Edge, EdgeConfig, TlsCertificate};
use headrace_gateway::Gateway;
use headrace_terminal::output;
use headrace_worker::{ProcessId, TicketVerifier, WorkerEndpoint, WorkerSecret};
use tokio::task::JoinSet;

use super::engine::EngineRole;
use super::gateway::GatewayRole;
use crate::datadir::{AddressFile, DataDir};
use crate::engines::LocalEngines;
use crate::exporters::page;
use crate::listen_addresses;
use crate::receipts::LiveReceipts;
use crate::role_context::RoleContext;

/// Key id to which the memory for bodies of worker jobs is charged.
const WORKER_PAYER: &str = "worker";

/// The edge role of a server.
pub(crate) struct EdgeRole {
    edge: Edge<Gateway>,
    url: String,
}

impl EdgeRole {
    /// Binds the listeners in front of a gateway, and offers the local models to other gateways if a worker secret is
    /// configured. Blocks.
    ///
    /// # Errors
    /// Returns which address cannot be bound, or which TLS file cannot be used.
    pub(crate) fn bind(
        config: &ServerSettings,
        data_dir: &DataDir,
        gateway: &GatewayRole,
        engine: Option<&EngineRole>,
        context: &RoleContext,
    ) -> Result<Self, String> {
        let traces = || Arc::clone(&gateway.stores.recorder) as Arc<dyn TraceSink>;
        let engines = engine.map(EngineRole::engines);
        let secret = config.worker_secret.clone();
        let internal_api = secret.and_then(|secret| internal_api(secret, engines, traces(), context));
        let edge = Edge::bind(
            EdgeConfig { session_secret: Some(data_dir.session_secret()), ..config.server.edge.clone() },
            Arc::clone(&gateway.gateway),
            internal_api,
            page(Arc::clone(&context.metrics)),
            traces(),
            Arc::clone(&context.clock),
        );
        let edge = context.runtime.block_on(edge).map_err(|error| error.to_string())?;
        let url = listen_addresses::url(edge.local_addr(), config.server.edge.tls.is_some());
        Ok(Self { edge, url })
    }

    /// The API's base, as this machine reaches it: `http://127.0.0.1:8080`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The address of the metrics, as this machine reaches it.
    pub(crate) fn metrics_url(&self) -> Option<String> {
        self.edge.metrics_addr().map(|at| listen_addresses::url(at, false))
    }

    /// The certificate, which a reload refreshes. `None` without TLS.
    pub(crate) fn certificate(&self) -> Option<Arc<TlsCertificate>> {
        self.edge.certificate()
    }

    /// The flag that is set when the server stops soon.
    pub(crate) fn stops_soon(&self) -> Arc<AtomicBool> {
        self.edge.stops_soon()
    }

    /// Links the console on the page at `/`.
    pub(crate) fn show_console(&self, url: &str) {
        self.edge.show_console(url);
    }

    /// Publishes the address in the data directory until the file is dropped. Without it, the server runs as well.
    pub(crate) fn publish_address(&self, data_dir: &DataDir) -> Option<AddressFile> {
        match data_dir.publish_address(&self.edge.local_addr().to_string()) {
            Ok(published) => Some(published),
            Err(why) => {
                output::note(&format!("warning: programs that look for this server do not find it: {why}"));
                None
            }
        }
    }

    /// Shows the operator warnings about the configuration, such as that keys cross a network in clear.
    pub(crate) fn show_warnings(&self) {
        self.edge.warnings().iter().for_each(|warning| output::note(&format!("warning: {warning}")));
    }

    /// Publishes the keys that sign receipts, and follows their rotations. The task is added to `tasks`.
    pub(crate) fn publish_receipt_keys(&self, receipts: &Arc<LiveReceipts>, tasks: &mut JoinSet<()>) {
        let (receipts, publish) = (Arc::clone(receipts), self.edge.receipt_keys());
        tasks.spawn(async move { receipts.publish(|keys| publish(keys.into())).await });
    }

    /// Serves until `shutdown` resolves, then drains for at most `drain`. When `notice` resolves, readiness is denied,
    /// and clients are asked to leave. Returns how many calls were cut off.
    pub(crate) async fn serve(
        self,
        notice: impl Future<Output = ()>,
        shutdown: impl Future<Output = ()>,
        drain: Duration,
    ) -> usize {
        self.edge.serve_with_notice(notice, shutdown, drain).await.calls_cut_off
    }
}

/// The internal API that takes jobs from other gateways. It offers no models without engines. `None` if no random
/// process id could be drawn.
fn internal_api(
    secret: WorkerSecret,
    engines: Option<Arc<LocalEngines>>,
    traces: Arc<dyn TraceSink>,
    context: &RoleContext,
) -> Option<Arc<dyn InternalApi>> {
    let process = match ProcessId::fresh() {
        Ok(process) => process,
        Err(error) => {
            output::note(&format!(
                "warning: no jobs are taken: this machine gives no random numbers: {error}"
            ));
            return None;
        }
    };
    let tickets = TicketVerifier::new(secret, process);
    let offers = move || engines.as_ref().map(|engines| engines.offers()).unwrap_or_default();
    let payer = KeyId::new(WORKER_PAYER).ok()?;
    let (clock, version) = (Arc::clone(&context.clock), env!("CARGO_PKG_VERSION"));
    Some(Arc::new(WorkerEndpoint::new(tickets, clock, payer, version, traces, offers)))
}
