//! `headrace keys`.

use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, SecretText};
use headrace_domain::{Clock, KeyId, ModelName, SystemClock};
use headrace_identity::{AddressList, KeyChange, KeyDetails, KeyRecord, Revocation};
use headrace_terminal::output;

use crate::arguments::ServerArgs;
use crate::arguments::places::{ChangeKeyArgs, KeysArgs, KeysCommand};
use crate::commands::places::pinned;
use crate::commands::{execute, time, unexpected};

/// Creates, lists, limits, pins, rotates or revokes keys.
pub(crate) fn run(args: KeysArgs) -> ExitCode {
    match args.command {
        KeysCommand::Create {
            name,
            project,
            allow,
            endpoint,
            expires,
            secret_file,
            limits,
            regions,
            owner,
            allow_ip,
            tier,
        } => {
            let allowed_ips = match AddressList::new(allow_ip) {
                Ok(list) => list,
                Err(error) => return output::fail(&format!("--allow-ip: {error}")),
            };
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
                regions: regions.residency(),
                expires: expires.map(|after| SystemClock::new().now().after(after)),
                secret,
                details: KeyDetails { owner, allowed_ips },
                tier,
            };
            execute(&args.at, command, created)
        }
        KeysCommand::Change(change) => change_key(&args.at, change),
        KeysCommand::Limits { id, limits } => {
            let limits = limits.limits();
            execute(&args.at, AdminCommand::SetKeyLimits { key: id.clone(), limits }, |reply| match reply {
                AdminReply::LimitsSet => format!("{id} now has {limits}\n"),
                other => unexpected(&other),
            })
        }
        KeysCommand::Regions { id, regions } => {
            let regions = regions.residency();
            execute(&args.at, AdminCommand::SetKeyRegions { key: id, regions }, |reply| match reply {
                AdminReply::RegionsSet { narrowed } => pinned(&narrowed),
                other => unexpected(&other),
            })
        }
        KeysCommand::List { project } => execute(&args.at, AdminCommand::ListKeys { project }, list),
        KeysCommand::Rotate { id, overlap } => {
            let command = AdminCommand::RotateKey { id, overlap_seconds: overlap.as_secs() };
            execute(&args.at, command, rotated)
        }
        KeysCommand::Revoke { id } => {
            execute(&args.at, AdminCommand::RevokeKey { id }, |reply| match reply {
                AdminReply::KeyRevoked { id, how } => revoked(&id, how),
                other => unexpected(&other),
            })
        }
    }
}

fn change_key(at: &ServerArgs, change: ChangeKeyArgs) -> ExitCode {
    let ChangeKeyArgs { id, owner, no_owner, allow_ip, any_ip } = change;
    let allowed_ips = match AddressList::new(allow_ip) {
        Ok(list) => Some(list).filter(|list| any_ip || !list.is_empty()),
        Err(error) => return output::fail(&format!("--allow-ip: {error}")),
    };
    let change = KeyChange { owner: if no_owner { Some(String::new()) } else { owner }, allowed_ips };
    execute(at, AdminCommand::ChangeKey { id, change }, |reply| match reply {
        AdminReply::KeyChanged(key) => {
            let owner = key.details.owner.as_deref().unwrap_or("–");
            format!("{} now has owner {owner} and may be used from {}\n", key.id, key.details.allowed_ips)
        }
        other => unexpected(&other),
    })
}

fn revoked(id: &KeyId, how: Revocation) -> String {
    let waits = "`headrace status` shows when that is done";
    match how {
        Revocation::Written => format!("{id} is revoked\n"),
        Revocation::Noted { why } => format!(
            "{id} is revoked, and stays so after a restart\n  the disk took no more ({why}): the revocation is noted in the reserve beside the\n  identity store, and written with its audit row as soon as there is room; {waits}\n"
        ),
        Revocation::InMemory { why } => format!(
            "{id} is revoked in the running server, and NOT YET ON THE DISK\n  {why}: a restart before the disk takes it would bring the key back. Make room; it is\n  tried again every second, and {waits}\n"
        ),
    }
}

fn created(reply: AdminReply) -> String {
    match reply {
        AdminReply::KeyCreated { key, secret, unserved } => format!(
            "{}\n\n  id       {}\n  project  {} (organisation {})\n  may use  {}, {}\n  limits   {}\n  regions  {}\n{}{}\nThe first line is the secret. It is shown this once.\n",
            secret.expose(),
            key.id,
            key.project,
            key.org,
            key.models,
            key.endpoints,
            key.limits,
            key.regions,
            details(&key),
            warning(&unserved),
        ),
        other => unexpected(&other),
    }
}

fn rotated(reply: AdminReply) -> String {
    let AdminReply::KeyRotated { key, secret } = reply else { return unexpected(&reply) };
    format!(
        "{}\n\n  id       {}\n  former   the secret before works until {} UTC\n\nThe first line is the secret. It is shown this once.\n",
        secret.expose(),
        key.id,
        time(key.former_until),
    )
}

/// Lines about a key's owner, addresses and tier. Empty if it has none.
fn details(key: &KeyRecord) -> String {
    let KeyDetails { owner, allowed_ips } = &key.details;
    let owner = owner.as_ref().map(|owner| format!("  owner    {owner}\n"));
    let from = Some(allowed_ips).filter(|list| !list.is_empty()).map(|list| format!("  from     {list}\n"));
    let tier = key.tier.as_ref().map(|tier| format!("  tier     {tier}\n"));
    owner.into_iter().chain(from).chain(tier).collect()
}

/// A warning about models that the key may use but that are not served now.
fn warning(unserved: &[ModelName]) -> String {
    if unserved.is_empty() {
        return String::new();
    }
    let names: Vec<_> = unserved.iter().map(|name| format!("`{name}`")).collect();
    format!(
        "  warning  nothing here answers to {} now (`headrace status` shows what does): a name is taken as it is spelt\n",
        names.join(", ")
    )
}

fn list(reply: AdminReply) -> String {
    let AdminReply::Keys(keys) = reply else { return unexpected(&reply) };
    if keys.is_empty() {
        return "no keys: headrace keys create --name NAME makes one\n".to_owned();
    }
    let head = [
        "id",
        "name",
        "project",
        "ends in",
        "tier",
        "owner",
        "created",
        "last used",
        "state",
        "limits",
        "regions",
        "from",
    ];
    output::table(&head, keys.into_iter().map(row).collect())
}

fn row(key: KeyRecord) -> Vec<String> {
    let state = match (key.revoked, key.expires) {
        (Some(at), _) => format!("revoked {}", time(Some(at))),
        (None, Some(at)) if SystemClock::new().now() >= at => format!("expired {}", time(Some(at))),
        (None, Some(at)) => format!("until {}", time(Some(at))),
        (None, None) if key.former_until.is_some_and(|until| SystemClock::new().now() < until) => {
            format!("active, former secret until {}", time(key.former_until))
        }
        (None, None) => "active".to_owned(),
    };
    let limits = key.limits.to_string();
    vec![
        key.id.to_string(),
        key.name,
        key.project.to_string(),
        if key.hint.is_empty() { "–".to_owned() } else { format!("…{}", key.hint) },
        key.tier.map_or_else(|| "–".to_owned(), |tier| tier.to_string()),
        key.details.owner.unwrap_or_else(|| "–".to_owned()),
        time(Some(key.created)),
        key.last_used.map_or_else(|| "never".to_owned(), |at| time(Some(at))),
        state,
        limits,
        key.regions.to_string(),
        key.details.allowed_ips.to_string(),
    ]
}
