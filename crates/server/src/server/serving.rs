//! Serves on all listeners, with the background tasks beside them, until a stop signal. Must not know how any of these
//! was set up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use headrace_admin::AdminService;
use headrace_admin::control::ControlSocket;
use headrace_call_api::CallService;
use headrace_domain::Clock;
use headrace_edge::Edge;
use headrace_gateway::Gateway;
use headrace_identity::Directory;
use headrace_ledger::HoldTaken;
use headrace_terminal::output;
use secrecy::zeroize::Zeroizing;
use tokio::task::JoinHandle;

use crate::admin_listener::{AdminListener, AdminSeams};
use crate::banner::StartManner;
use crate::live_stats::LiveStats;
use crate::reload::ConfigReloader;
use crate::signals::ProcessSignals;
use crate::upstreams::UpstreamRegistry;
use crate::{canaries, objects};

/// Maximum number of open holds that the last message names.
const MOST_NAMED: usize = 5;

/// The open listeners and the state behind them.
pub(super) struct OpenServer {
    pub(super) edge: Edge<Gateway>,
    pub(super) console: Option<AdminListener>,
    pub(super) service: Arc<AdminService>,
    pub(super) seen: AdminSeams,
    pub(super) usage: LiveStats,
    pub(super) reloader: Arc<ConfigReloader>,
    pub(super) welcome: Zeroizing<String>,
    pub(super) manner: StartManner,
    pub(super) behind: ServingParts,
}

/// The parts of the server that are needed while it serves.
pub(super) struct ServingParts {
    pub(super) data_dir: PathBuf,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) directory: Arc<Directory>,
    pub(super) upstreams: Arc<UpstreamRegistry>,
    /// How long new calls are still accepted after the first signal.
    pub(super) drain_delay: Duration,
    /// How long calls in flight may take after `drain_delay`.
    pub(super) drain: Duration,
}

impl OpenServer {
    /// Serves on all listeners until a stop signal, then aborts the background tasks.
    pub(super) async fn serve(
        self,
        gateway: &Arc<Gateway>,
        mut ticks: Vec<JoinHandle<()>>,
    ) -> Result<ServingEnd, String> {
        let Self { edge, console, service, seen, usage, reloader, welcome, manner, behind } = self;
        let ServingParts { data_dir, clock, directory, upstreams, drain_delay, drain } = behind;
        let control = ControlSocket::bind(&data_dir).map_err(|error| error.to_string())?;
        let control = tokio::spawn(control.serve(Arc::clone(&service), Arc::clone(&clock)));
        ticks.extend(
            console.map(|console| tokio::spawn(console.serve(service, Arc::clone(&directory), clock, seen))),
        );
        ticks.push(tokio::spawn(usage.tend()));
        ticks.push(tokio::spawn(canaries::tend(Arc::downgrade(gateway), Arc::clone(&directory))));
        ticks.push(tokio::spawn(objects::tend(Arc::downgrade(gateway))));
        ticks.push(tokio::spawn(Arc::clone(&reloader).watch()));
        let lister = Arc::clone(&reloader);
        let relist = move |upstream: String| lister.relist(&upstream);
        ticks.push(tokio::spawn(Arc::clone(&upstreams).tend(Arc::downgrade(gateway), relist)));
        let follower = Arc::clone(&reloader);
        let readdress = move |upstream: String| follower.readdress(&upstream);
        ticks.push(tokio::spawn(Arc::clone(&upstreams).follow_names(readdress)));
        ticks.push(tokio::spawn(upstreams.watch_loads()));
        edge.warnings().iter().for_each(|warning| output::note(&format!("warning: {warning}")));
        let end = attend(edge, gateway, welcome, (manner, drain_delay, drain), reloader).await;
        if !matches!(end, Ok(ServingEnd::Interrupted)) {
            // However serving ended, the ledger may close only after the last call has settled.
            gateway.drain(Duration::ZERO).await;
        }
        control.abort();
        // The aborted task drops its socket, which removes the socket's file.
        let _ = control.await;
        ticks.iter().for_each(JoinHandle::abort);
        end
    }
}

/// Serves until the first signal. Then denies readiness, accepts calls for another `drain_delay`, and drains. The next
/// signal ends the delay, and the one after it ends the drain.
async fn attend(
    edge: Edge<Gateway>,
    gateway: &Arc<Gateway>,
    welcome: Zeroizing<String>,
    (manner, drain_delay, drain): (StartManner, Duration, Duration),
    reloader: Arc<ConfigReloader>,
) -> Result<ServingEnd, String> {
    let mut signals = ProcessSignals::new(manner, reloader)
        .map_err(|error| format!("cannot listen for signals: {error}"))?;
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
    let mut serving = std::pin::pin!(edge.serve_with_notice(notice, shutdown, drain));
    // Only now, because a reader of this text may call or send a signal at once.
    output::say(&welcome);
    drop(welcome);
    tokio::select! {
        _ = &mut serving => return Err("the listener ended by itself".to_owned()),
        () = signals.next() => {}
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
            () = signals.next() => {}
        }
    }
    let count = gateway.in_flight();
    let calls = if count == 1 { "call" } else { "calls" };
    let patience = format!("for at most {} s; Ctrl-C again stops at once", drain.as_secs());
    output::note(&format!("draining: {count} {calls} in flight, {patience}"));
    drop(stop);
    tokio::select! {
        report = &mut serving => {
            if report.calls_cut_off > 0 {
                let cut = report.calls_cut_off;
                output::note(&format!("{cut} calls were cut off and settled for what they had delivered"));
            }
            Ok(ServingEnd::Drained)
        }
        () = signals.next() => Ok(ServingEnd::Interrupted),
    }
}

/// The last message if some calls could not be settled.
pub(super) fn left_open(open: &[HoldTaken]) -> String {
    let names: Vec<String> = open.iter().take(MOST_NAMED).map(|held| held.hold.to_string()).collect();
    let more = if open.len() > MOST_NAMED { ", …" } else { "" };
    format!(
        "stopped, and {} calls are not settled: their holds ({}{more}) are released at the next start and not charged",
        open.len(),
        names.join(", ")
    )
}

/// How serving ended.
pub(super) enum ServingEnd {
    /// All calls are settled.
    Drained,
    /// A further signal stopped the drain.
    Interrupted,
}
