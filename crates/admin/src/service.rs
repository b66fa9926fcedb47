//! Executes commands on the directory and the ledger. Every call blocks until its changes are on the disk. Actor and
//! time are arguments. Must not know where a command came from.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{AdminCode, ModelName, OrgId, ProjectId, Residency, UnixNanos};
use headrace_identity::{
    AuditEntry, Directory, EndpointAccess, ExposeSecret, KeyRecord, ModelAccess, NewKey, Operators,
    RateLimits, SecretString,
};
use headrace_ledger::{LedgerAdmin, LedgerOperation, Receipt};
use parking_lot::Mutex;

use crate::command::{AdminCommand, AdminReply, AuditView, ServerStatus};
use crate::credit_view::CreditView;
use crate::error::AdminError;
use crate::invoice_act::InvoiceSource;
use crate::lent::Lent;
use crate::places::{RouteView, UpstreamAct, UpstreamView};
use crate::secret_text::SecretText;
use crate::webhook_act::WebhookSource;

/// Maximum number of audit rows in one reply.
const MAX_AUDIT_ROWS: u32 = 1_000;

/// Number of accounts that are opened in one transaction on the disk.
const ACCOUNTS_AT_ONCE: usize = 1_000;

/// The limits of new keys, projects and organisations if the command sets none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DefaultLimits {
    /// The limits of a new organisation.
    pub org: RateLimits,
    /// The limits of a new project.
    pub project: RateLimits,
    /// The limits of a new key.
    pub key: RateLimits,
}

/// Returns the server's status. The service fills in the ledger's totals.
pub type StatusSource = Box<dyn Fn() -> ServerStatus + Send + Sync>;

/// Returns the calls in progress and figures of the last minute.
pub type NowSource = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

/// Returns the newest traces, at most as many as its argument. Blocks until the traces of all ended calls are stored.
pub type RecentSource = Box<dyn Fn(usize) -> Vec<serde_json::Value> + Send + Sync>;

/// Returns the current default limits.
pub type DefaultsSource = Box<dyn Fn() -> DefaultLimits + Send + Sync>;

/// Reloads the configuration, all of it or nothing. Returns the settings that changed, or the error. Blocks.
pub type ReloadSource = Box<dyn Fn() -> Result<Vec<String>, AdminError> + Send + Sync>;

/// Performs an act on an upstream, if given, and returns the views of all upstreams. Blocks.
pub type UpstreamSource =
    Box<dyn Fn(Option<UpstreamAct>) -> Result<Vec<UpstreamView>, AdminError> + Send + Sync>;

/// Puts the rolled-back canaries of a route on trial again, if a route is given. Returns these models and the views of
/// all routes.
pub type RouteSource =
    Box<dyn Fn(Option<&ModelName>) -> Result<(Vec<ModelName>, Vec<RouteView>), AdminError> + Send + Sync>;

/// Makes another key that signs receipts, and returns its id. Blocks.
pub type ReceiptKeySource = Box<dyn Fn() -> Result<String, AdminError> + Send + Sync>;

/// Executes the commands of operators.
pub struct AdminService {
    directory: Arc<Directory>,
    ledger: Arc<dyn LedgerAdmin>,
    defaults: DefaultsSource,
    status: StatusSource,
    /// `None` if no server runs.
    now: Option<NowSource>,
    /// `None` if no server runs.
    recent: Option<RecentSource>,
    /// `None` if no server runs.
    reload: Option<ReloadSource>,
    /// `None` if no server runs.
    upstreams: Option<UpstreamSource>,
    /// `None` if no server runs.
    routes: Option<RouteSource>,
    /// `None` if no server runs.
    receipt_keys: Option<ReceiptKeySource>,
    /// `None` if no server runs, or no endpoint is configured.
    webhooks: Option<WebhookSource>,
    invoices: InvoiceSource,
    operators: Option<Arc<Operators>>,
    /// `None` if no server runs.
    links: Option<LinkSource>,
    /// `None` in tests without recorded requests.
    contents: Option<ContentAccess>,
    /// `None` in tests without a key.
    audit_signer: Option<AuditSigner>,
    /// Locked during a whole act on money.
    money: Mutex<()>,
    lent: Lent,
}

impl fmt::Debug for AdminService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminService").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl AdminService {
    /// Makes a service for a directory and its ledger.
    pub fn new(
        directory: Arc<Directory>,
        ledger: Arc<dyn LedgerAdmin>,
        defaults: DefaultsSource,
        status: StatusSource,
    ) -> Self {
        Self {
            directory,
            ledger,
            defaults,
            status,
            now: None,
            recent: None,
            reload: None,
            upstreams: None,
            routes: None,
            receipt_keys: None,
            webhooks: None,
            invoices: InvoiceSource::default(),
            operators: None,
            links: None,
            contents: None,
            audit_signer: None,
            money: Mutex::new(()),
            lent: Lent::default(),
        }
    }

    /// Adds the calls in progress of a running server.
    pub fn with_now(self, now: NowSource) -> Self {
        Self { now: Some(now), ..self }
    }

    /// Adds the recorded calls of a running server.
    pub fn with_recent(self, recent: RecentSource) -> Self {
        Self { recent: Some(recent), ..self }
    }

    /// Adds the reload of a running server.
    pub fn with_reload(self, reload: ReloadSource) -> Self {
        Self { reload: Some(reload), ..self }
    }

    /// Adds the upstreams of a running server.
    pub fn with_upstreams(self, upstreams: UpstreamSource) -> Self {
        Self { upstreams: Some(upstreams), ..self }
    }

    /// Adds the keys that sign the receipts of a running server.
    pub fn with_receipt_keys(self, keys: ReceiptKeySource) -> Self {
        Self { receipt_keys: Some(keys), ..self }
    }

    /// Adds the endpoints that receive the events of a running server.
    pub fn with_webhooks(self, webhooks: Option<WebhookSource>) -> Self {
        Self { webhooks, ..self }
    }

    /// Adds what invoices take from the settings.
    pub fn with_invoices(self, invoices: InvoiceSource) -> Self {
        Self { invoices, ..self }
    }

    /// Adds the routes of a running server.
    pub fn with_routes(self, routes: RouteSource) -> Self {
        Self { routes: Some(routes), ..self }
    }

    /// Adds the operators.
    pub fn with_operators(self, operators: Arc<Operators>) -> Self {
        Self { operators: Some(operators), ..self }
    }

    /// Adds sign-in links, for a running server that operators can sign in to.
    pub fn with_links(self, links: LinkSource) -> Self {
        Self { links: Some(links), ..self }
    }

    /// Opens the ledger account of every project that has none, because the process may have ended between creating a
    /// project and its account. Also finishes announced acts on money. Call it at start.
    ///
    /// Returns the projects that had keys but no account. A project gets keys only after its account, so the ledger is
    /// older than the directory then.
    ///
    /// # Errors
    /// If the ledger is empty but there are keys, because its file was replaced. If the ledger refuses, or cannot be
    /// written.
    pub fn reconcile(&self, now: UnixNanos) -> Result<Vec<ProjectId>, AdminError> {
        let lost = self.lost_accounts();
        if !lost.is_empty() && self.ledger.totals().transactions == 0 {
            return Err(ledger_emptied(&lost));
        }
        let _in_all_processes = self.directory.lock_acts()?;
        self.open_accounts(now)?;
        self.finish_announced(now)?;
        Ok(lost)
    }

    /// Returns the projects that have keys but no account.
    fn lost_accounts(&self) -> Vec<ProjectId> {
        let open: HashSet<_> = self.ledger.projects().into_iter().collect();
        let keys = self.directory.list().into_iter().map(|key| (key.org, key.project));
        let lost: BTreeSet<_> =
            keys.filter(|owner| !open.contains(owner)).map(|(_, project)| project).collect();
        lost.into_iter().collect()
    }

    /// Opens an account, without money, for every project that has none. Returns their number.
    fn open_accounts(&self, now: UnixNanos) -> Result<u64, AdminError> {
        let open: HashSet<_> = self.ledger.projects().into_iter().collect();
        let owned = self.directory.projects().into_iter().map(|project| (project.org, project.id));
        let missing = owned.filter(|project| !open.contains(project));
        let commands: Vec<_> =
            missing.map(|(org, project)| LedgerOperation::OpenProject { org, project }).collect();
        for some in commands.chunks(ACCOUNTS_AT_ONCE) {
            let transacted = self.ledger.transact(some.to_vec(), now);
            transacted.durable.wait()?;
            for verdict in transacted.verdicts {
                verdict.into_result()?;
            }
        }
        Ok(u64::try_from(commands.len()).unwrap_or(u64::MAX))
    }

    /// Executes a command. Blocks.
    ///
    /// # Errors
    /// [`AdminError`] with a remedy. A command that fails in its last step, such as its audit row, may have taken
    /// effect.
    pub fn execute(
        &self,
        command: AdminCommand,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        self.load_changes_for(&command);
        match command {
            AdminCommand::Status => Ok(AdminReply::Status(self.server_status())),
            AdminCommand::Now => match &self.now {
                Some(look) => Ok(AdminReply::Now(look())),
                None => Err(not_running()),
            },
            AdminCommand::RecentCalls { most } => match &self.recent {
                Some(recent) => Ok(AdminReply::RecentCalls(recent(most))),
                None => Err(not_running()),
            },
            AdminCommand::Reload => self.read_again(actor, now),
            AdminCommand::RotateReceiptKey => self.rotate_receipt_key(actor, now),
            AdminCommand::Invoices { act } => self.invoices(act, actor, now),
            AdminCommand::Webhooks { act } => self.webhooks(act, actor, now),
            AdminCommand::Upstreams { act } => self.upstreams(act, actor, now),
            AdminCommand::Routes { resume } => self.routes(resume.as_ref(), actor, now),
            command @ AdminCommand::CreateKey { .. } => self.create_key(command, actor, now),
            AdminCommand::LendKey { project } => self.lend_key(project, actor, now),
            AdminCommand::ListKeys { project } => self.list_keys(project.as_ref()),
            AdminCommand::RevokeKey { id } => {
                let how = self.directory.revoke(&id, actor, now)?;
                Ok(AdminReply::KeyRevoked { id, how })
            }
            AdminCommand::RotateKey { id, overlap_seconds } => {
                let overlap = Duration::from_secs(overlap_seconds);
                let (key, secret) = self.directory.rotate_key(&id, overlap, actor, now)?;
                let secret = SecretText::new(secret.expose_secret().to_owned());
                Ok(AdminReply::KeyRotated { key, secret })
            }
            AdminCommand::CreateOrg { id, limits, regions } => {
                let limits = limits.unwrap_or((self.defaults)().org);
                let org = self.directory.create_org_within(id, limits, regions, actor, now)?;
                Ok(AdminReply::OrgCreated(org))
            }
            AdminCommand::ListOrgs => Ok(AdminReply::Orgs(self.directory.orgs())),
            AdminCommand::CreateProject { id, org, limits } => {
                self.create_project(id, org, limits, actor, now)
            }
            AdminCommand::ListProjects => Ok(AdminReply::Projects(self.directory.projects())),
            AdminCommand::SetOrgLimits { org, limits } => {
                self.directory.set_org_limits(&org, limits, actor, now)?;
                Ok(AdminReply::LimitsSet)
            }
            AdminCommand::SetOrgRegions { org, regions } => self.pin_org(&org, regions, actor, now),
            AdminCommand::SetKeyRegions { key, regions } => {
                self.directory.set_key_regions(&key, regions, actor, now)?;
                Ok(AdminReply::RegionsSet { narrowed: Vec::new() })
            }
            AdminCommand::Budgets { act } => self.budgets(act, actor, now),
            AdminCommand::Lots { act } => self.lots(act, actor, now),
            AdminCommand::Tiers { act } => self.tiers(act, actor, now),
            AdminCommand::Accounts { act } => self.accounts(act, actor, now),
            AdminCommand::ChangeKey { id, change } => {
                Ok(AdminReply::KeyChanged(self.directory.change_key_details(&id, change, actor, now)?))
            }
            AdminCommand::SetKeyLimits { key, limits } => {
                self.directory.set_key_limits(&key, limits, actor, now)?;
                Ok(AdminReply::LimitsSet)
            }
            AdminCommand::SetProjectLimits { project, limits } => {
                self.directory.set_project_limits(&project, limits, actor, now)?;
                Ok(AdminReply::LimitsSet)
            }
            AdminCommand::SetProjectRecords { project, records } => {
                let changed = self.directory.set_project_records(&project, records, actor, now)?;
                Ok(AdminReply::ProjectChanged(changed))
            }
            AdminCommand::Contents { act } => self.contents(act, actor, now),
            AdminCommand::GrantCredit { org, amount, kind, reference } => {
                self.grant(Grant { org, amount, kind, reference }, actor, now)
            }
            AdminCommand::CorrectCredit { org, amount, kind, reason } => {
                self.correct(Grant { org, amount, kind, reference: reason }, actor, now)
            }
            AdminCommand::Refund { hold, amount, reference } => {
                self.refund(hold, amount, reference, actor, now)
            }
            AdminCommand::ListGrants { org } => self.grants(org.as_ref()),
            AdminCommand::ShowCredit { org } => self.credit(org.as_ref(), now),
            AdminCommand::SetBudget { project, budget } => self.budget(project, budget, actor, now),
            AdminCommand::OpenAccounts => Ok(AdminReply::AccountsOpened { count: self.open_accounts(now)? }),
            AdminCommand::SetLedgerClock => self.set_clock(actor, now),
            AdminCommand::ShowAudit { last, before } => self.audit(last, before),
            AdminCommand::AuditLog { act } => self.audit_log(act, now),
            AdminCommand::CreateOperator { name, role, scope } => {
                self.create_operator(&name, role, scope, actor, now)
            }
            AdminCommand::ListOperators => self.list_operators(),
            AdminCommand::RevokeOperator { id } => self.revoke_operator(id, actor, now),
            AdminCommand::LinkOperator { id } => self.link(&id, actor, now),
        }
    }

    fn read_again(&self, actor: &str, now: UnixNanos) -> Result<AdminReply, AdminError> {
        let Some(reload) = &self.reload else { return Err(not_running()) };
        let changed = reload()?;
        if !changed.is_empty() {
            self.note("config.reload", "configuration", changed.join(", "), actor, now)?;
        }
        Ok(AdminReply::Reloaded { changed })
    }

    fn upstreams(
        &self,
        act: Option<UpstreamAct>,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let Some(upstreams) = &self.upstreams else { return Err(not_running()) };
        let named = act.as_ref().map(|act| (act.name(), act.upstream().to_owned()));
        let views = upstreams(act)?;
        if let Some((act, upstream)) = named {
            self.note(act, &upstream, String::new(), actor, now)?;
        }
        Ok(AdminReply::Upstreams(views))
    }

    fn routes(
        &self,
        resume: Option<&ModelName>,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let Some(routes) = &self.routes else { return Err(not_running()) };
        let (resumed, views) = routes(resume)?;
        if let Some(route) = resume {
            for model in resumed {
                let (act, subject) = ("canary.resume".to_owned(), route.to_string());
                let entry =
                    AuditEntry { at: now, actor: actor.to_owned(), act, subject, detail: model.to_string() };
                self.directory.note(&entry)?;
            }
        }
        Ok(AdminReply::Routes(views))
    }

    fn create_key(
        &self,
        command: AdminCommand,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let AdminCommand::CreateKey {
            project,
            name,
            models,
            endpoints,
            limits,
            regions,
            expires,
            secret,
            details,
            tier,
        } = command
        else {
            return Err(AdminError::new(AdminCode::Internal, "not a command that creates a key", ""));
        };
        let unserved = self.unserved(models.as_deref().unwrap_or_default());
        let new = NewKey {
            org: self.org_of(&project)?,
            project,
            name,
            models: models.map_or(ModelAccess::All, |names| ModelAccess::Only(names.into_iter().collect())),
            endpoints: endpoints.map_or(EndpointAccess::All, EndpointAccess::Only),
            limits: limits.unwrap_or((self.defaults)().key),
            regions,
            expires,
            secret: secret.map(|secret| SecretString::from(secret.expose())),
            details,
            tier,
        };
        let (key, secret) = self.directory.create_key(new, actor, now)?;
        let secret = SecretText::new(secret.expose_secret().to_owned());
        Ok(AdminReply::KeyCreated { key, secret, unserved })
    }

    fn pin_org(
        &self,
        org: &OrgId,
        regions: Residency,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        self.directory.set_org_regions(org, regions.clone(), actor, now)?;
        let wider =
            |key: &KeyRecord| key.org == *org && key.revoked.is_none() && !key.regions.narrows(&regions);
        let narrowed = self.directory.list().into_iter().filter(wider).map(|key| key.id);
        Ok(AdminReply::RegionsSet { narrowed: narrowed.collect() })
    }

    /// Returns the names that are not served now. Empty without a running server, because the served models are unknown
    /// then.
    fn unserved(&self, names: &[ModelName]) -> Vec<ModelName> {
        let ServerStatus { models, aliases, .. } = (self.status)();
        let served = |name: &&ModelName| models.iter().chain(&aliases).any(|known| known == name.as_str());
        names.iter().filter(|name| !models.is_empty() && !served(name)).cloned().collect()
    }

    fn list_keys(&self, project: Option<&ProjectId>) -> Result<AdminReply, AdminError> {
        if let Some(project) = project {
            self.org_of(project)?;
        }
        let keys = self.directory.list().into_iter();
        let keys = keys.filter(|key| project.is_none_or(|project| key.project == *project));
        Ok(AdminReply::Keys(keys.collect()))
    }

    fn create_project(
        &self,
        id: ProjectId,
        org: OrgId,
        limits: Option<RateLimits>,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let limits = limits.unwrap_or((self.defaults)().project);
        let project = self.directory.create_project(id.clone(), org.clone(), limits, actor, now)?;
        // If this fails, the project has no account until `reconcile` opens it at the next start.
        self.open_account(org, id, now)?;
        Ok(AdminReply::ProjectCreated(project))
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

    fn audit(&self, last: u32, before: Option<u64>) -> Result<AdminReply, AdminError> {
        let last = last.min(MAX_AUDIT_ROWS);
        let count = usize::try_from(last).unwrap_or(0);
        let rows = match before {
            None => self.directory.audit_newest(count)?,
            Some(before) => {
                // Rows are numbered without gaps, from 1.
                let after = before.saturating_sub(u64::from(last).saturating_add(1));
                let mut rows = self.directory.audit(after, count)?;
                rows.retain(|row| row.seq < before);
                rows
            }
        };
        let rows = rows.into_iter().map(|row| {
            let AuditEntry { at, actor, act, subject, detail } = row.entry;
            AuditView { seq: row.seq, at, actor, act, subject, detail }
        });
        Ok(AdminReply::Audit(rows.collect()))
    }

    fn org_of(&self, project: &ProjectId) -> Result<OrgId, AdminError> {
        let found = self.directory.project(project);
        let found = found.ok_or_else(|| headrace_identity::IdentityError::UnknownProject(project.clone()))?;
        Ok(found.org)
    }

    fn open_account(&self, org: OrgId, project: ProjectId, now: UnixNanos) -> Result<(), AdminError> {
        self.transact(LedgerOperation::OpenProject { org, project }, now).map(drop)
    }

    /// Executes one ledger command, and waits until it is on the disk.
    fn transact(&self, command: LedgerOperation, now: UnixNanos) -> Result<Receipt, AdminError> {
        let transacted = self.ledger.transact(vec![command], now);
        transacted.durable.wait()?;
        let verdict = transacted.verdicts.into_iter().next();
        let verdict =
            verdict.ok_or_else(|| AdminError::new(AdminCode::Internal, "the ledger gave no verdict", ""))?;
        Ok(verdict.into_result()?)
    }
}

/// Maximum number of projects named in one message.
const NAMED: usize = 5;

fn not_running() -> AdminError {
    let message = "no server runs on this data directory: it reads its configuration, and asks its upstreams, when it starts";
    AdminError::new(AdminCode::NotRunning, message, "")
}

fn ledger_emptied(lost: &[ProjectId]) -> AdminError {
    let mut names: Vec<_> = lost.iter().take(NAMED).map(ToString::to_string).collect();
    if lost.len() > NAMED {
        names.push(format!("and {} more", lost.len() - NAMED));
    }
    AdminError::new(
        AdminCode::LedgerEmptied,
        format!(
            "the ledger is empty, but there are keys of projects that must have had accounts in it: {}. Its file was removed or replaced",
            names.join(", ")
        ),
        "stop, and put `ledger.sqlite` back; or, to continue with balances of zero, headrace ledger open-accounts",
    )
}

fn unexpected(receipt: &Receipt) -> AdminError {
    AdminError::new(AdminCode::Internal, format!("the ledger answered {receipt:?}"), "")
}

mod accounts;
mod audit;
mod budgets;
mod contents;
mod gateways;
mod invoices;
mod lend;
mod lots;
mod money;
mod operators;
mod outgoing;
mod refunds;
mod tiers;

pub use audit::AuditSigner;
pub use contents::{ContentAccess, ForgetSource, content_filter_words};
pub use invoices::unknown_invoice;
pub use money::Grant;
pub use operators::LinkSource;

#[cfg(test)]
mod invoice_tests;
#[cfg(test)]
mod tests;
