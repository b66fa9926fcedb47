//! `headrace status` and `headrace audit`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, ServerStatus};

use crate::cli::{At, AuditArgs};
use crate::commands::{execute, time, unexpected};
use crate::output;

/// How the server does.
pub(crate) fn run(at: &At) -> ExitCode {
    execute(at, AdminCommand::Status, |reply| match reply {
        AdminReply::Status(status) => describe(&status),
        other => unexpected(&other),
    })
}

fn describe(status: &ServerStatus) -> String {
    let books = format!(
        "  available  {}\n  held       {} by {} calls\n  revenue    {}, {} calls settled\n",
        status.totals.available,
        status.totals.held,
        status.totals.open_holds,
        status.totals.revenue,
        status.totals.settled
    );
    if status.pid == 0 {
        return format!("no server runs on this data directory: start it with `headrace up`\n{books}");
    }
    let ready = if status.ready { "ready" } else { "not ready" };
    format!(
        "headrace {} is {ready} at {} (process {}, since {} UTC)\n  models     {}\n  in flight  {}\n{books}",
        status.version,
        status.listen,
        status.pid,
        time(Some(status.started)),
        status.models.join(", "),
        status.in_flight,
    )
}

/// Who changed what.
pub(crate) fn audit(args: &AuditArgs) -> ExitCode {
    execute(&args.at, AdminCommand::ShowAudit { last: args.last }, |reply| match reply {
        AdminReply::Audit(rows) => {
            let rows = rows.into_iter();
            let rows = rows.map(|row| {
                vec![row.seq.to_string(), time(Some(row.at)), row.actor, row.act, row.subject, row.detail]
            });
            output::table(&["#", "when (UTC)", "who", "what", "to what", "how"], rows.collect())
        }
        other => unexpected(&other),
    })
}
