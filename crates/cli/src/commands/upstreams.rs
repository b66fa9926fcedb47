//! `headrace upstreams`: lists the upstreams, and drains, resumes or probes one of them.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, LoadView, UpstreamAct, UpstreamView};
use headrace_terminal::output;

use headrace_trace::counted;

use crate::arguments::upstreams::{UpstreamsArgs, UpstreamsCommand};
use crate::commands::{execute, unexpected};

/// Performs the act, if any, and prints all upstreams.
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
    let head = [
        "upstream",
        "kind",
        "lane",
        "at",
        "region",
        "state",
        "in flight",
        "waiting",
        "calls",
        "failed",
        "heard",
        "models",
    ];
    let rows = views.iter().map(|view| {
        vec![
            view.name.clone(),
            view.kind.clone(),
            view.lane.clone(),
            view.at.clone(),
            view.region.as_ref().map_or_else(|| "–".to_owned(), ToString::to_string),
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
    let models: Vec<_> = views.iter().flat_map(|view| &view.models).collect();
    if !models.is_empty() {
        let head = [
            "model",
            "answered by",
            "breaker",
            "in flight",
            "failed 1 min",
            "5 min",
            "first",
            "cached",
            "load",
            "takes calls",
        ];
        let rows = models.into_iter().map(|model| {
            vec![
                model.model.to_string(),
                model.worker.clone(),
                match model.trips {
                    0 => model.breaker.clone(),
                    trips => format!("{} (opened {trips}×)", model.breaker),
                },
                model.in_flight.to_string(),
                part(model.failed_permille_last_minute),
                part(model.failed_permille_last_5_minutes),
                model.first_ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms} ms")),
                counted(model.cached_blocks, "block"),
                model.load.as_ref().map_or_else(|| "not reported".to_owned(), load),
                model.standing.clone(),
            ]
        });
        text.push('\n');
        text.push_str(&output::table(&head, rows.collect()));
    }
    for view in views {
        if let Some(fault) = &view.load_fault {
            text.push_str(&format!("{}: how busy it is is not known: {fault}\n", view.name));
        }
        if let Some(fault) = &view.cache_fault {
            text.push_str(&format!("{}: what it has cached is not all known: {fault}\n", view.name));
        }
        if let (Some(error), Some(age)) = (&view.last_error, view.last_error_age_s) {
            text.push_str(&format!("{}: {age} s ago: {error}\n", view.name));
        }
    }
    text
}

fn load(load: &LoadView) -> String {
    let LoadView { running, waiting, cache_used_permille, age_s } = load;
    let cache = cache_used_permille
        .map_or_else(String::new, |part| format!(", {:.0} % of its KV", f64::from(part) / 10.0));
    format!("{running} run, {waiting} wait{cache}; {age_s} s old")
}

fn part(permille: Option<u32>) -> String {
    permille.map_or_else(|| "–".to_owned(), |part| format!("{:.1} %", f64::from(part) / 10.0))
}

fn share(failed: u64, calls: u64) -> String {
    match (failed, calls) {
        (0, _) => "0".to_owned(),
        (failed, calls) => format!("{failed} ({:.1} %)", 100.0 * failed as f64 / calls.max(1) as f64),
    }
}
