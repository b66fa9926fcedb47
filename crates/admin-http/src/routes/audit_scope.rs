//! What an operator of one organisation sees of the audit log: the rows about the organisation, its projects, keys, accounts
//! and operators. Every other row is left out. Must not know how rows are shown.

use headrace_admin::AuditView;
use headrace_domain::{KeyId, OrgId, ProjectId};
use headrace_identity::{AccountId, OperatorId};

use crate::app::AdminApp;

/// Whether a row is about an organisation. The act decides the kind of its subject.
pub(super) fn is_row_of(app: &AdminApp, org: &OrgId, row: &AuditView) -> bool {
    let AuditView { act, subject, .. } = row;
    let directory = app.directory();
    let of_project =
        || ProjectId::new(subject).ok().and_then(|id| directory.project(&id)).map(|found| found.org);
    let found = match act.split_once('.').map_or("", |(kind, _)| kind) {
        "org" | "credit" => return subject == org.as_str(),
        "project" | "budget" => of_project(),
        "key" => KeyId::new(subject).ok().and_then(|id| directory.key(&id)).map(|found| found.org),
        "user" | "service_account" | "group" | "scim" => {
            AccountId::new(subject).ok().and_then(|id| directory.org_of_account(&id))
        }
        "operator" => {
            let operators = app.sessions().operators().list();
            let id = OperatorId::new(subject).ok();
            operators.into_iter().find(|found| Some(&found.id) == id.as_ref()).and_then(|found| found.org)
        }
        _ => None,
    };
    found.as_ref() == Some(org)
}
