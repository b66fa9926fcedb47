//! `headrace keys`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, KeyView, SecretText};
use headrace_domain::{Clock, SystemClock};

use crate::cli::{KeysArgs, KeysCommand};
use crate::commands::{execute, time, unexpected};
use crate::output;

/// Creates, lists or revokes.
pub(crate) fn run(args: KeysArgs) -> ExitCode {
    match args.command {
        KeysCommand::Create { name, project, allow, endpoint, expires, secret_file, limits } => {
            let secret = match secret_file.map(std::fs::read_to_string).transpose() {
                Ok(text) => text.map(|text| SecretText::new(text.trim().to_owned())),
                Err(error) => return output::fail(&format!("cannot read --secret-file: {error}")),
            };
            let command = AdminCommand::CreateKey {
                project,
                name,
                models: (!allow.is_empty()).then_some(allow),
                endpoints: (!endpoint.is_empty()).then_some(endpoint),
                limits: limits.given(),
                expires: expires.map(|after| SystemClock::new().now().after(after)),
                secret,
            };
            execute(&args.at, command, created)
        }
        KeysCommand::List { project } => execute(&args.at, AdminCommand::ListKeys { project }, list),
        KeysCommand::Revoke { id } => {
            execute(&args.at, AdminCommand::RevokeKey { id }, |reply| match reply {
                AdminReply::KeyRevoked { id } => format!("{id} is revoked\n"),
                other => unexpected(&other),
            })
        }
    }
}

fn created(reply: AdminReply) -> String {
    match reply {
        AdminReply::KeyCreated { key, secret } => format!(
            "{}\n\n  id       {}\n  project  {} (organisation {})\n  may use  {}, {}\n  limits   {}\n\nThe first line is the secret. It is shown this once.\n",
            secret.expose(),
            key.id,
            key.project,
            key.org,
            key.models,
            key.endpoints,
            key.limits
        ),
        other => unexpected(&other),
    }
}

fn list(reply: AdminReply) -> String {
    let AdminReply::Keys(keys) = reply else { return unexpected(&reply) };
    if keys.is_empty() {
        return "no keys: headrace keys create --name NAME makes one\n".to_owned();
    }
    let head = ["id", "name", "project", "ends in", "created", "state", "limits"];
    output::table(&head, keys.into_iter().map(row).collect())
}

fn row(key: KeyView) -> Vec<String> {
    let state = match (key.revoked, key.expires) {
        (Some(at), _) => format!("revoked {}", time(Some(at))),
        (None, Some(at)) if SystemClock::new().now() >= at => format!("expired {}", time(Some(at))),
        (None, Some(at)) => format!("until {}", time(Some(at))),
        (None, None) => "active".to_owned(),
    };
    let limits = key.limits.to_string();
    vec![
        key.id.to_string(),
        key.name,
        key.project.to_string(),
        if key.hint.is_empty() { "–".to_owned() } else { format!("…{}", key.hint) },
        time(Some(key.created)),
        state,
        limits,
    ]
}
