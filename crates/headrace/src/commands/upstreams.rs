//! `headrace upstreams`: the servers that calls are sent on to, and taking one out of service for a while.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, UpstreamAct, UpstreamView};

use crate::cli::{UpstreamsArgs, UpstreamsCommand};
use crate::commands::{execute, unexpected};
use crate::output;

/// Does it, and shows how all of them are afterwards.
pub(crate) fn run(args: UpstreamsArgs) -> ExitCode {
    let act = args.command.map(|command| match command {
        UpstreamsCommand::Drain { upstream } => UpstreamAct::Drain { upstream },
        UpstreamsCommand::Resume { upstream } => UpstreamAct::Resume { upstream },
        UpstreamsCommand::Probe { upstream } => UpstreamAct::Probe { upstream },
    });
    execute(&args.at, AdminCommand::Upstreams { act }, |reply| match reply {
        AdminReply::Upstreams(views) if views.is_empty() => {
            "no upstream is configured: headrace up --upstream NAME=KIND:URL\n".to_owned()
        }
        AdminReply::Upstreams(views) => describe(&views),
        other => unexpected(&other),
    })
}

fn describe(views: &[UpstreamView]) -> String {
    let head =
        ["upstream", "kind", "at", "state", "in flight", "waiting", "calls", "failed", "heard", "models"];
    let rows = views.iter().map(|view| {
        vec![
            view.name.clone(),
            view.kind.clone(),
            view.at.clone(),
            view.state.clone(),
            view.in_flight.to_string(),
            view.waiting.to_string(),
            view.calls.to_string(),
            share(view.failed, view.calls),
            view.last_contact_age_s.map_or_else(|| "never".to_owned(), |age| format!("{age} s ago")),
            view.said.clone(),
        ]
    });
    let mut text = output::table(&head, rows.collect());
    for view in views {
        if let (Some(error), Some(age)) = (&view.last_error, view.last_error_age_s) {
            text.push_str(&format!("{}: {age} s ago: {error}\n", view.name));
        }
    }
    text
}

fn share(failed: u64, calls: u64) -> String {
    match (failed, calls) {
        (0, _) => "0".to_owned(),
        (failed, calls) => format!("{failed} ({:.1} %)", 100.0 * failed as f64 / calls.max(1) as f64),
    }
}
