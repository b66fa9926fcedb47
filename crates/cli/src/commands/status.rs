//! `headrace status` and `headrace reload`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, GatewayView, ServerStatus, StoreView};
use headrace_trace::counted;

use crate::arguments::ServerArgs;
use crate::commands::{execute, time, unexpected};

/// Prints the server's status.
pub(crate) fn run(at: &ServerArgs) -> ExitCode {
    execute(at, AdminCommand::Status, |reply| match reply {
        AdminReply::Status(status) => describe(&status),
        other => unexpected(&other),
    })
}

/// Makes the server reload its configuration.
pub(crate) fn reload(at: &ServerArgs) -> ExitCode {
    execute(at, AdminCommand::Reload, |reply| match reply {
        AdminReply::Reloaded { changed } if changed.is_empty() => {
            "read again; no setting has changed\n".to_owned()
        }
        AdminReply::Reloaded { changed } => format!("in force: {}\n", changed.join(", ")),
        other => unexpected(&other),
    })
}

fn describe(status: &ServerStatus) -> String {
    let ledger = format!(
        "  available  {}\n  held       {} by {}\n  revenue    {}, {} settled\n",
        status.totals.available,
        status.totals.held,
        counted(status.totals.open_holds, "call"),
        status.totals.revenue,
        counted(status.totals.settled, "call")
    );
    if status.pid == 0 {
        return format!("no server runs on this data directory: start it with `headrace up`\n{ledger}");
    }
    let ready = if status.not_ready.is_empty() { "ready" } else { "not ready" };
    let why: String = status.not_ready.iter().map(|why| format!("  not ready  {why}\n")).collect();
    format!(
        "headrace {} is {ready} at {} (process {}, since {} UTC)\n{why}  models     {}\n  in flight  {}\n{ledger}{}{}",
        status.version,
        status.listen,
        status.pid,
        time(Some(status.started)),
        status.models.join(", "),
        status.in_flight,
        stores(status),
        gateways(status),
    )
}

/// One line for each gateway that shares the ledger. Empty if this server has it for itself.
fn gateways(status: &ServerStatus) -> String {
    let line = |(index, gateway): (usize, &GatewayView)| {
        let label = if index == 0 { "gateways" } else { "" };
        let this = if gateway.is_this { " (this one)" } else { "" };
        let GatewayView { name, version, state, joined, unseen_ms, .. } = gateway;
        let (joined, seconds) = (time(Some(*joined)), *unseen_ms as f64 / 1_000.0);
        format!(
            "  {label:<10} {name}{this}: {state}, headrace {version}, since {joined} UTC, seen {seconds:.1} s ago\n"
        )
    };
    let mut lines: String = status.gateways.iter().enumerate().map(line).collect();
    if let Some(why) = &status.gateways_failing {
        lines.push_str(&format!("  gateways   cannot be read: {why}\n"));
    }
    lines
}

/// One line about the working stores, one for each failing store, and one if revocations are not written yet.
fn stores(status: &ServerStatus) -> String {
    let (failing, well): (Vec<_>, Vec<_>) = status.stores.iter().partition(|store| store.failing.is_some());
    let well: Vec<_> = well.iter().map(|store| store.store.as_str()).collect();
    let mut lines = format!("  stores     {} can be written\n", well.join(", "));
    for StoreView { store, failing } in failing {
        let why = failing.as_deref().unwrap_or_default();
        lines.push_str(&format!("             {store} CANNOT BE WRITTEN: {why}\n"));
    }
    if status.revocations_waiting > 0 {
        lines.push_str(&format!(
            "  revoked    {}, waiting to be written\n",
            counted(status.revocations_waiting, "key")
        ));
    }
    lines
}
