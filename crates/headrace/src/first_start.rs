//! Sets up an empty data directory: organisation and project `default`, play credit, the first API key. Each step is
//! done only where it is missing, so that a start that was cut short is finished by the next.

use std::path::Path;

use headrace_admin::{AdminCommand, AdminError, AdminReply, AdminService, SecretText};
use headrace_domain::{IdError, NanoDollars, OrgId, ProjectId, UnixNanos};
use headrace_identity::Directory;
use headrace_ledger::{GrantKind, Ledger};

use crate::config::FirstStart;

/// The variable that chooses the first key.
pub(crate) const KEY_VARIABLE: &str = "HEADRACE_BOOTSTRAP_KEY";
/// The name of the organisation and of the project.
const DEFAULT: &str = "default";
/// Who did it, in the audit log.
const ACTOR: &str = "first start";

/// What was set up.
pub(crate) struct FirstKey {
    /// The key, if it was made here rather than chosen.
    pub(crate) secret: Option<SecretText>,
    /// Play credit granted.
    pub(crate) credit: NanoDollars,
}

/// Sets up what is missing. `None`: there were keys already.
///
/// # Errors
/// In words.
pub(crate) fn set_up(
    service: &AdminService,
    directory: &Directory,
    ledger: &Ledger,
    config: &FirstStart,
    now: UnixNanos,
) -> Result<Option<FirstKey>, String> {
    let refused = |error: AdminError| error.to_string();
    if !directory.list().is_empty() {
        return Ok(None);
    }
    let bad_name = |error: IdError| error.to_string();
    let (org, project) = (OrgId::new(DEFAULT).map_err(bad_name)?, ProjectId::new(DEFAULT).map_err(bad_name)?);
    if directory.org(&org).is_none() {
        let create = AdminCommand::CreateOrg { id: org.clone(), limits: None };
        service.execute(create, ACTOR, now).map_err(refused)?;
    }
    if directory.project(&project).is_none() {
        let create = AdminCommand::CreateProject { id: project.clone(), org: org.clone(), limits: None };
        service.execute(create, ACTOR, now).map_err(refused)?;
    }
    let totals = ledger.totals();
    let untouched = totals.promotional == NanoDollars::ZERO && totals.paid_in == NanoDollars::ZERO;
    if untouched && config.credit > NanoDollars::ZERO {
        let grant = AdminCommand::GrantCredit {
            org,
            amount: config.credit,
            kind: GrantKind::Promotional,
            reference: ACTOR.to_owned(),
        };
        service.execute(grant, ACTOR, now).map_err(refused)?;
    }
    let chosen = chosen(config.key_file.as_deref())?;
    let was_chosen = chosen.is_some();
    let create = AdminCommand::CreateKey {
        project,
        name: ACTOR.to_owned(),
        models: None,
        endpoints: None,
        limits: None,
        expires: None,
        secret: chosen,
    };
    match service.execute(create, ACTOR, now).map_err(refused)? {
        AdminReply::KeyCreated { secret, .. } => {
            Ok(Some(FirstKey { secret: (!was_chosen).then_some(secret), credit: config.credit }))
        }
        other => Err(format!("the first key could not be made: {other:?}")),
    }
}

/// The key that the operator chose.
fn chosen(file: Option<&Path>) -> Result<Option<SecretText>, String> {
    if let Some(text) = std::env::var_os(KEY_VARIABLE).filter(|text| !text.is_empty()) {
        let text = text.into_string().map_err(|_| format!("{KEY_VARIABLE} is not UTF-8"))?;
        return Ok(Some(SecretText::new(text.trim().to_owned())));
    }
    let Some(path) = file else { return Ok(None) };
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read the first key from {}: {error}", path.display()))?;
    Ok(Some(SecretText::new(text.trim().to_owned())))
}
