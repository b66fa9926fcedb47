//! `headrace routes`: names that lead to several models, and the figures of their canaries.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, CanaryFigures, RouteView};
use headrace_domain::UnixNanos;
use headrace_terminal::output;

use headrace_trace::counted;

use crate::arguments::names::RoutesArgs;
use crate::commands::{execute, time, unexpected};

/// Resumes canaries if requested, and prints all routes.
pub(crate) fn run(args: RoutesArgs) -> ExitCode {
    execute(&args.at, AdminCommand::Routes { resume: args.resume }, |reply| match reply {
        AdminReply::Routes(views) if views.is_empty() => {
            "no name leads to several models: add [[routes]] with name and to\n".to_owned()
        }
        AdminReply::Routes(views) => describe(&views),
        other => unexpected(&other),
    })
}

fn describe(views: &[RouteView]) -> String {
    let head = ["route", "model", "weight", "canary", "calls", "failed", "refused", "first p95", "beside it"];
    let mut rows = Vec::new();
    let mut notes = String::new();
    for view in views {
        for arm in &view.to {
            let mut row = vec![view.name.to_string(), arm.model.to_string(), arm.weight.to_string()];
            match &arm.canary {
                None => row.resize(head.len(), "–".to_owned()),
                Some(canary) => {
                    row.extend(figures(canary));
                    if let (Some(at), Some(why)) = (canary.rolled_back_unix_s, &canary.why) {
                        let at = time(Some(UnixNanos::new(at.saturating_mul(1_000_000_000))));
                        notes.push_str(&format!(
                            "{}: {} was taken out at {at}: {why}\n",
                            view.name, arm.model
                        ));
                    }
                }
            }
            rows.push(row);
        }
    }
    output::table(&head, rows) + &notes
}

fn figures(canary: &CanaryFigures) -> [String; 6] {
    let CanaryFigures { calls, errors, refusals, first_token_p95_us: times, rolled_back_unix_s, .. } = canary;
    let ms =
        |us: Option<u32>| us.map_or_else(|| "–".to_owned(), |us| format!("{:.1} ms", f64::from(us) / 1000.0));
    [
        if rolled_back_unix_s.is_some() { "out".to_owned() } else { "on trial".to_owned() },
        calls[0].to_string(),
        errors[0].to_string(),
        refusals[0].to_string(),
        ms(times[0]),
        format!(
            "{}, {} failed, {} refused, {}",
            counted(calls[1], "call"),
            errors[1],
            refusals[1],
            ms(times[1])
        ),
    ]
}
