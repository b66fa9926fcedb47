//! Executes commands over the directory and the ledger. Every call blocks until what it did is on the disk.
//! Who acts and when are arguments; where the command came from is not known here.

use std::fmt;
use std::sync::Arc;

use headrace_domain::{OrgId, ProjectId, UnixNanos};
use headrace_identity::{
    Directory, EndpointAccess, ExposeSecret, ModelAccess, NewKey, RateLimits, SecretString,
};
use headrace_ledger::{Command, Ledger, Receipt};

use crate::command::{AdminCommand, AdminReply, AuditView, CreditView, SecretText, ServerStatus};
use crate::error::AdminError;

/// Most rows of the audit log in one reply.
const MAX_AUDIT_ROWS: u32 = 1_000;
/// Rows of the audit log read at a time.
const AUDIT_PAGE: usize = 1_000;

/// Limits that new keys, projects and organisations get unless the command names others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DefaultLimits {
    /// Of a new organisation.
    pub org: RateLimits,
    /// Of a new project.
    pub project: RateLimits,
    /// Of a new key.
    pub key: RateLimits,
}

/// Says how the server does; the ledger's totals are filled in here.
pub type StatusSource = Box<dyn Fn() -> ServerStatus + Send + Sync>;

/// What operators' commands run on.
pub struct AdminService {
    directory: Arc<Directory>,
    ledger: Ledger,
    defaults: DefaultLimits,
    status: StatusSource,
}

impl fmt::Debug for AdminService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminService").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl AdminService {
    /// Over a directory and a ledger that belong together.
    pub fn new(
        directory: Arc<Directory>,
        ledger: Ledger,
        defaults: DefaultLimits,
        status: StatusSource,
    ) -> Self {
        Self { directory, ledger, defaults, status }
    }

    /// Opens the ledger account of every project that has none: one was created and the process ended before its
    /// account was. Call it at start.
    ///
    /// # Errors
    /// When the ledger refuses or cannot be written.
    pub fn reconcile(&self, now: UnixNanos) -> Result<(), AdminError> {
        let open = self.ledger.projects();
        let missing = self
            .directory
            .projects()
            .into_iter()
            .filter(|project| !open.iter().any(|(org, id)| *org == project.org && *id == project.id));
        for project in missing {
            self.open_account(project.org, project.id, now)?;
        }
        Ok(())
    }

    /// Does it. Blocks.
    ///
    /// # Errors
    /// [`AdminError`] with the way out; nothing happened then.
    pub fn execute(
        &self,
        command: AdminCommand,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        match command {
            AdminCommand::Ping => Ok(AdminReply::Pong),
            AdminCommand::Status => Ok(AdminReply::Status(ServerStatus {
                totals: self.ledger.totals().into(),
                ..(self.status)()
            })),
            command @ AdminCommand::CreateKey { .. } => self.create_key(command, actor, now),
            AdminCommand::ListKeys { project } => self.list_keys(project.as_ref()),
            AdminCommand::RevokeKey { id } => {
                self.directory.revoke(&id, actor, now)?;
                Ok(AdminReply::KeyRevoked { id })
            }
            AdminCommand::CreateOrg { id, limits } => {
                let limits = limits.unwrap_or(self.defaults.org);
                let org = self.directory.create_org(id, limits, actor, now)?;
                Ok(AdminReply::OrgCreated(org.into()))
            }
            AdminCommand::ListOrgs => {
                Ok(AdminReply::Orgs(self.directory.orgs().into_iter().map(Into::into).collect()))
            }
            AdminCommand::CreateProject { id, org, limits } => {
                self.create_project(id, org, limits, actor, now)
            }
            AdminCommand::ListProjects => {
                Ok(AdminReply::Projects(self.directory.projects().into_iter().map(Into::into).collect()))
            }
            AdminCommand::SetOrgLimits { org, limits } => {
                self.directory.set_org_limits(&org, limits, actor, now)?;
                Ok(AdminReply::LimitsSet)
            }
            AdminCommand::SetProjectLimits { project, limits } => {
                self.directory.set_project_limits(&project, limits, actor, now)?;
                Ok(AdminReply::LimitsSet)
            }
            AdminCommand::GrantCredit { org, amount, kind, reference } => {
                let grant = Command::Grant { org: org.clone(), amount, kind, reference };
                match self.transact(grant, now)? {
                    Receipt::Granted { balance } => Ok(AdminReply::CreditGranted { org, amount, balance }),
                    other => Err(unexpected(&other)),
                }
            }
            AdminCommand::ShowCredit { org } => self.credit(org.as_ref(), now),
            AdminCommand::SetBudget { project, budget } => {
                let org = self.org_of(&project)?;
                self.transact(Command::SetBudget { org, project: project.clone(), budget }, now)?;
                Ok(AdminReply::BudgetSet { project })
            }
            AdminCommand::ShowAudit { last } => self.audit(last),
        }
    }

    fn create_key(
        &self,
        command: AdminCommand,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let AdminCommand::CreateKey { project, name, models, endpoints, limits, expires, secret } = command
        else {
            return Err(AdminError::new("internal", "not a command that creates a key", ""));
        };
        let new = NewKey {
            org: self.org_of(&project)?,
            project,
            name,
            models: models.map_or(ModelAccess::All, |names| ModelAccess::Only(names.into_iter().collect())),
            endpoints: endpoints.map_or(EndpointAccess::All, EndpointAccess::Only),
            limits: limits.unwrap_or(self.defaults.key),
            expires,
            secret: secret.map(|secret| SecretString::from(secret.expose())),
        };
        let (key, secret) = self.directory.create_key(new, actor, now)?;
        let secret = SecretText::new(secret.expose_secret().to_owned());
        Ok(AdminReply::KeyCreated { key: key.into(), secret })
    }

    fn list_keys(&self, project: Option<&ProjectId>) -> Result<AdminReply, AdminError> {
        if let Some(project) = project {
            self.org_of(project)?;
        }
        let keys = self.directory.list().into_iter();
        let keys = keys.filter(|key| project.is_none_or(|project| key.project == *project));
        Ok(AdminReply::Keys(keys.map(Into::into).collect()))
    }

    fn create_project(
        &self,
        id: ProjectId,
        org: OrgId,
        limits: Option<RateLimits>,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let limits = limits.unwrap_or(self.defaults.project);
        let project = self.directory.create_project(id.clone(), org.clone(), limits, actor, now)?;
        // Should this fail, the project is there without an account; `reconcile` opens it at the next start.
        self.open_account(org, id, now)?;
        Ok(AdminReply::ProjectCreated(project.into()))
    }

    fn credit(&self, org: Option<&OrgId>, now: UnixNanos) -> Result<AdminReply, AdminError> {
        if let Some(org) = org.filter(|org| self.directory.org(org).is_none()) {
            return Err(headrace_identity::IdentityError::UnknownOrg(org.clone()).into());
        }
        let projects = self.ledger.projects().into_iter();
        let rows =
            projects.filter(|(owner, _)| org.is_none_or(|org| owner == org)).filter_map(|(org, id)| {
                let standing = self.ledger.standing_at(&org, &id, now)?;
                Some(CreditView::new(org, id, &standing))
            });
        Ok(AdminReply::Credit(rows.collect()))
    }

    fn audit(&self, last: u32) -> Result<AdminReply, AdminError> {
        let last = usize::try_from(last.min(MAX_AUDIT_ROWS)).unwrap_or(AUDIT_PAGE);
        let mut kept = std::collections::VecDeque::new();
        let mut after = 0;
        loop {
            let page = self.directory.audit(after, AUDIT_PAGE)?;
            let Some(newest) = page.last().map(|row| row.seq) else { break };
            after = newest;
            for row in page {
                let entry = row.entry;
                kept.push_back(AuditView {
                    seq: row.seq,
                    at: entry.at,
                    actor: entry.actor,
                    act: entry.act,
                    subject: entry.subject,
                    detail: entry.detail,
                });
                if kept.len() > last {
                    kept.pop_front();
                }
            }
        }
        Ok(AdminReply::Audit(kept.into()))
    }

    fn org_of(&self, project: &ProjectId) -> Result<OrgId, AdminError> {
        let found = self.directory.project(project);
        let found = found.ok_or_else(|| headrace_identity::IdentityError::UnknownProject(project.clone()))?;
        Ok(found.org)
    }

    fn open_account(&self, org: OrgId, project: ProjectId, now: UnixNanos) -> Result<(), AdminError> {
        self.transact(Command::OpenProject { org, project }, now).map(drop)
    }

    /// One command, on the disk.
    fn transact(&self, command: Command, now: UnixNanos) -> Result<Receipt, AdminError> {
        let transacted = self.ledger.transact(vec![command], now);
        transacted.durable.wait()?;
        let verdict = transacted.verdicts.into_iter().next();
        let verdict = verdict.ok_or_else(|| AdminError::new("internal", "the ledger gave no verdict", ""))?;
        Ok(verdict.into_result()?)
    }
}

fn unexpected(receipt: &Receipt) -> AdminError {
    AdminError::new("internal", format!("the ledger answered {receipt:?}"), "")
}

#[cfg(test)]
mod tests;
