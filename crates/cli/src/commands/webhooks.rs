//! `headrace webhooks`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, DeliveryView, WebhookAct, WebhookReply, WebhookView};
use headrace_terminal::output;

use crate::arguments::webhooks::{WebhooksArgs, WebhooksCommand};
use crate::commands::{ask, execute, time, unexpected};

/// Lists, tests or resumes endpoints that receive events.
pub(crate) fn run(args: WebhooksArgs) -> ExitCode {
    let act = match args.command {
        WebhooksCommand::List => WebhookAct::List,
        WebhooksCommand::Deliveries { limit } => WebhookAct::Deliveries { most: limit },
        WebhooksCommand::Test { name } => return test(&args.at, name),
        WebhooksCommand::Resume { name } => WebhookAct::Resume { name },
    };
    execute(&args.at, AdminCommand::Webhooks { act }, describe)
}

/// Sends a test event. Fails if the endpoint does not accept it.
fn test(at: &crate::arguments::ServerArgs, name: String) -> ExitCode {
    match ask(at, AdminCommand::Webhooks { act: WebhookAct::Test { name } }) {
        Ok(AdminReply::Webhooks(WebhookReply::Tested { name, event, is_accepted, result })) => {
            let text = format!("{name}: {result} (event {event})\n");
            if is_accepted {
                output::say(&text);
                return ExitCode::SUCCESS;
            }
            output::fail(text.trim_end())
        }
        Ok(other) => output::fail(unexpected(&other).trim_end()),
        Err(error) => error.exit(),
    }
}

fn describe(reply: AdminReply) -> String {
    match reply {
        AdminReply::Webhooks(WebhookReply::Endpoints(all)) if all.is_empty() => {
            "no webhooks: [[webhooks]] of the settings adds one\n".to_owned()
        }
        AdminReply::Webhooks(WebhookReply::Endpoints(all)) => {
            let head =
                ["webhook", "host", "state", "pending", "delivered", "failed", "last try (UTC)", "result"];
            output::table(&head, all.into_iter().map(endpoint).collect())
        }
        AdminReply::Webhooks(WebhookReply::Deliveries(all)) if all.is_empty() => "no deliveries\n".to_owned(),
        AdminReply::Webhooks(WebhookReply::Deliveries(all)) => {
            let head = ["when (UTC)", "event", "kind", "webhook", "state", "tries", "result", "next try"];
            output::table(&head, all.into_iter().map(delivery).collect())
        }
        AdminReply::Webhooks(WebhookReply::Resumed { name }) => format!("{name} receives events again\n"),
        other => unexpected(&other),
    }
}

fn endpoint(of: WebhookView) -> Vec<String> {
    let state = match of.gone {
        Some(at) => format!("gone since {}", time(Some(at))),
        None => "active".to_owned(),
    };
    vec![
        of.name,
        of.host,
        state,
        of.pending.to_string(),
        of.delivered.to_string(),
        of.failed.to_string(),
        time(of.last_at),
        of.last_result.unwrap_or_else(|| "–".to_owned()),
    ]
}

fn delivery(of: DeliveryView) -> Vec<String> {
    vec![
        time(Some(of.at)),
        of.event,
        of.kind,
        of.endpoint,
        of.state,
        of.tries.to_string(),
        of.last_result.unwrap_or_else(|| "–".to_owned()),
        time(of.next),
    ]
}
