//! A server from start to stop: reads and checks the configuration, opens the roles, serves until a stop signal, and
//! closes the roles in order. Makes no decision that belongs to one of them.

mod serving;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_config::ServerSettings;
use headrace_terminal::output;

use self::serving::{OpenServer, ServerStart, ServingEnd};
use crate::banner::StartManner;
use crate::check::{CheckedConfig, check};
use crate::datadir::{DataDir, SecretFiles};
use crate::descriptors::{self, DescriptorLimit, in_proportion};
use crate::exporters::register_log;
use crate::listen_addresses::{can_listen, not_running};
use crate::log::LogQueue;
use crate::models::ServingPlan;
use crate::reload::{ReloadBase, SettingsSource};
use crate::role_context::RoleContext;
use crate::roles::{RoleSet, ServerRoles};
use crate::signals::ProcessSignals;
use crate::tokenizer_assets::AssetsByModel;
use crate::{hardening, machine};

/// Time limit for writing the last log lines.
const LOG_CLOSE: Duration = Duration::from_secs(1);
/// Exit status after a second Ctrl-C, by the convention of shells: 128 plus the signal's number.
const INTERRUPTED: u8 = 130;

/// Runs a server until a stop signal. `source` reads all layers of the configuration. `file` is one of them, if there is
/// a file.
pub fn run(source: SettingsSource, file: Option<PathBuf>, manner: StartManner) -> ExitCode {
    let began = Instant::now();
    let wanted = RoleSet::ALL;
    let hardened = hardening::harden();
    let settings = source();
    let (first_key, play_prices) = (hardened.first_key, manner == StartManner::Up);
    let checked = match check(settings.clone(), play_prices, first_key.as_ref(), &wanted.in_memory()) {
        Ok(checked) => checked,
        Err(error) => return output::refuse(&error.to_string()),
    };
    let CheckedConfig { mut config, plan, assets_by_model, log: filter } = checked;
    let (log, filter) = match LogQueue::start(filter, config.log_json) {
        Ok(started) => started,
        Err(error) => return output::refuse(&format!("log.filter: {error}")),
    };
    let base = ReloadBase { source, file, settings, play_prices, log: filter };
    hardened.shortcomings.iter().for_each(|what| tracing::warn!("{what}"));
    let descriptors = DescriptorLimit::raise();
    fit_connections(&mut config, descriptors);
    let workers = config.engine.runtime_threads.unwrap_or_else(|| (machine::processors() / 2).max(2));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_name("headrace-io")
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return output::fail(&format!("cannot start the runtime: {error}")),
    };
    let lines = log.clone();
    output::hand_notes_to(move |line| lines.line(line.into_bytes()));
    let context = RoleContext::new(&config, &plan, runtime.handle().clone());
    register_log(&context.metrics, &log);
    descriptors::register(&context.metrics);
    let code = match open(&config, plan, assets_by_model, wanted, &context) {
        Ok((data_dir, roles)) => {
            let start = ServerStart { began, manner, first_key };
            serve(&config, &data_dir, roles, start, base, &context)
        }
        Err(why) => output::fail(&why),
    };
    log.flush(LOG_CLOSE);
    runtime.shutdown_background();
    code
}

/// Lowers the connection limits, in total and per peer, to what the process's file descriptors allow.
fn fit_connections(config: &mut ServerSettings, descriptors: DescriptorLimit) {
    let edge = &mut config.server.edge;
    let wanted = edge.max_connections;
    let most = descriptors.most_connections(wanted, !config.upstreams.is_empty());
    if let Some(shortage) = descriptors.shortage(wanted, most) {
        output::note(&shortage);
    }
    edge.max_connections_per_peer = in_proportion(edge.max_connections_per_peer, wanted, most);
    edge.max_connections = most;
    config.admin.most_connections = descriptors.most_operators();
}

/// Opens the data directory and the wanted roles over it. Blocks.
fn open(
    config: &ServerSettings,
    plan: ServingPlan,
    assets: AssetsByModel,
    wanted: RoleSet,
    context: &RoleContext,
) -> Result<(DataDir, ServerRoles), String> {
    not_running(&config.data_dir)?;
    if wanted.edge {
        can_listen(config)?;
    }
    let storage = config.storage.url.as_ref();
    let data_dir = DataDir::create(&config.data_dir, storage, &SecretFiles::of(config));
    let data_dir = data_dir.map_err(|error| error.to_string())?;
    let roles = ServerRoles::open(config, plan, assets, &data_dir, wanted, context)?;
    Ok((data_dir, roles))
}

/// Serves until a stop signal, then closes the roles in order.
fn serve(
    config: &ServerSettings,
    data_dir: &DataDir,
    mut roles: ServerRoles,
    start: ServerStart,
    base: ReloadBase,
    context: &RoleContext,
) -> ExitCode {
    let manner = start.manner;
    let open = OpenServer::open(config, data_dir, &roles, start, base, context);
    let outcome = open.and_then(|open| {
        context.runtime.block_on(async {
            let signals = ProcessSignals::new(manner, Arc::clone(open.reloader()));
            let mut signals = signals.map_err(|error| format!("cannot listen for signals: {error}"))?;
            open.serve(data_dir, &mut roles, context, async || signals.next().await).await
        })
    });
    if matches!(&outcome, Ok(ServingEnd::Interrupted)) {
        output::note("stopped at once: calls in flight are released at the next start and not charged");
        return ExitCode::from(INTERRUPTED);
    }
    match (outcome, roles.close()) {
        (Err(why), _) | (Ok(_), Err(why)) => output::fail(&why),
        (Ok(_), Ok(())) => {
            output::note("stopped; every call is settled");
            ExitCode::SUCCESS
        }
    }
}
