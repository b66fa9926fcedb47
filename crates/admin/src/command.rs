//! Commands and replies as plain data that serializes: what travels over the control socket.
//! Decides nothing.

use std::fmt;

use headrace_domain::{Endpoint, KeyId, ModelName, NanoDollars, OrgId, ProjectId, Residency, UnixNanos};
use headrace_identity::{
    KeyRecord, OperatorId, OperatorRecord, OrgRecord, ProjectRecord, RateLimits, Revocation, Role,
};
use headrace_ledger::{Budget, GrantKind, Standing, Totals};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use crate::places::{RouteView, UpstreamAct, UpstreamView};

/// One thing that an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum AdminCommand {
    /// How the server does.
    Status,
    /// The calls under way and the minute before.
    Now,
    /// The newest calls that have ended, once their traces are stored.
    RecentCalls {
        /// How many at most.
        most: usize,
    },
    /// Reads the configuration again, as far as it may change while calls run.
    Reload,
    /// The servers that calls are sent on to, after what is to be done with one.
    Upstreams {
        /// What is to be done; `None`: nothing.
        #[serde(default)]
        act: Option<UpstreamAct>,
    },
    /// Names that lead to several models, after what is to be done with one.
    Routes {
        /// The name whose models that were taken out are put on trial again; `None`: nothing is done.
        #[serde(default)]
        resume: Option<ModelName>,
    },
    /// Creates a key.
    CreateKey {
        /// The project it belongs to; its organisation follows from that.
        project: ProjectId,
        /// Its name: 1 to 128 bytes.
        name: String,
        /// Models it may ask for; `None`: all, also those added later.
        #[serde(default)]
        models: Option<Vec<ModelName>>,
        /// Endpoints it may call; `None`: all, also those added later.
        #[serde(default)]
        endpoints: Option<Vec<Endpoint>>,
        /// Its own limits; `None`: the configured default.
        #[serde(default)]
        limits: Option<RateLimits>,
        /// Where its calls may be worked on, within what its organisation allows.
        #[serde(default, skip_serializing_if = "Residency::is_anywhere")]
        regions: Residency,
        /// When it stops working.
        #[serde(default)]
        expires: Option<UnixNanos>,
        /// The secret, where the operator chooses it.
        #[serde(default)]
        secret: Option<SecretText>,
    },
    /// A key of a few hours for whoever may read the data directory, to talk to the server on its own machine. The same asker gets the
    /// same one again.
    LendKey {
        /// Whose money it spends; `None`: project `default`, or the only one.
        #[serde(default)]
        project: Option<ProjectId>,
    },
    /// All keys, or those of one project.
    ListKeys {
        /// Only of this project.
        #[serde(default)]
        project: Option<ProjectId>,
    },
    /// Revokes a key: once this is answered, no request authenticates with it.
    RevokeKey {
        /// Which.
        id: KeyId,
    },
    /// Creates an organisation.
    CreateOrg {
        /// Its id.
        id: OrgId,
        /// Its limits; `None`: the configured default.
        #[serde(default)]
        limits: Option<RateLimits>,
        /// Where its calls may be worked on.
        #[serde(default, skip_serializing_if = "Residency::is_anywhere")]
        regions: Residency,
    },
    /// All organisations.
    ListOrgs,
    /// Creates a project, with its account in the ledger.
    CreateProject {
        /// Its id, unique across organisations.
        id: ProjectId,
        /// The organisation that pays for it.
        org: OrgId,
        /// Its limits; `None`: the configured default.
        #[serde(default)]
        limits: Option<RateLimits>,
    },
    /// All projects.
    ListProjects,
    /// Changes an organisation's limits.
    SetOrgLimits {
        /// Which.
        org: OrgId,
        /// All of its limits, anew.
        limits: RateLimits,
    },
    /// Changes where an organisation's calls may be worked on.
    SetOrgRegions {
        /// Which.
        org: OrgId,
        /// All of them, anew.
        regions: Residency,
    },
    /// Changes where a key's calls may be worked on, within what its organisation allows.
    SetKeyRegions {
        /// Which.
        key: KeyId,
        /// All of them, anew.
        regions: Residency,
    },
    /// Changes a key's own limits.
    SetKeyLimits {
        /// Which.
        key: KeyId,
        /// All of its limits, anew.
        limits: RateLimits,
    },
    /// Changes a project's limits.
    SetProjectLimits {
        /// Which.
        project: ProjectId,
        /// All of its limits, anew.
        limits: RateLimits,
    },
    /// Adds money to an organisation's balance.
    GrantCredit {
        /// Who receives it.
        org: OrgId,
        /// How much, in nano-dollars; more than zero.
        amount: NanoDollars,
        /// Where it comes from.
        kind: GrantKind,
        /// What to find it by. The same reference twice is the same grant; an empty one is none.
        reference: String,
    },
    /// Takes back money that was granted by mistake.
    CorrectCredit {
        /// From whom.
        org: OrgId,
        /// How much; its sign does not matter.
        amount: NanoDollars,
        /// Where it had come from.
        kind: GrantKind,
        /// Why. The same reason twice is the same correction.
        reason: String,
    },
    /// Grants and corrections, newest first: of all organisations, or of one.
    ListGrants {
        /// Only of this organisation.
        #[serde(default)]
        org: Option<OrgId>,
    },
    /// Balances and budgets: of every project, or of one organisation's.
    ShowCredit {
        /// Only of this organisation.
        #[serde(default)]
        org: Option<OrgId>,
    },
    /// Sets or removes a project's budget.
    SetBudget {
        /// Which project.
        project: ProjectId,
        /// The budget; `None` removes it.
        budget: Option<Budget>,
    },
    /// Opens an account, without money, for every project that has none.
    OpenAccounts,
    /// Sets the ledger's time back to the clock's, after it ran on a clock that was ahead.
    SetLedgerClock,
    /// The newest rows of the audit log.
    ShowAudit {
        /// How many, at most.
        last: u32,
        /// Only rows before this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<u64>,
    },
    /// Creates an operator.
    CreateOperator {
        /// A name: 1 to 64 bytes.
        name: String,
        /// What the operator may do.
        role: Role,
    },
    /// All operators.
    ListOperators,
    /// Revokes an operator: neither key nor session of it is good once this is answered.
    RevokeOperator {
        /// Which.
        id: OperatorId,
    },
    /// Makes a link that signs an operator in once.
    LinkOperator {
        /// Which.
        id: OperatorId,
    },
}

/// What a command did or found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "value", rename_all = "snake_case")]
pub enum AdminReply {
    /// How the server does.
    Status(ServerStatus),
    /// The calls under way and the minute before, in the words of `headrace_trace::Now`.
    Now(serde_json::Value),
    /// The newest calls that have ended, the newest first: trace records as they are stored.
    RecentCalls(Vec<serde_json::Value>),
    /// The configuration was read again and is in force.
    Reloaded {
        /// The settings that changed.
        changed: Vec<String>,
    },
    /// The servers that calls are sent on to, in the order of the configuration.
    Upstreams(Vec<UpstreamView>),
    /// Names that lead to several models, in their order.
    Routes(Vec<RouteView>),
    /// A key was created; this is the only time that its secret is shown.
    KeyCreated {
        /// The key.
        key: KeyRecord,
        /// Its secret.
        secret: SecretText,
        /// Models it may ask for that nothing serves now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unserved: Vec<ModelName>,
    },
    /// A key was lent.
    KeyLent {
        /// The key.
        key: KeyRecord,
        /// Its secret.
        secret: SecretText,
    },
    /// Keys, by id.
    Keys(Vec<KeyRecord>),
    /// A key is revoked, now or before.
    KeyRevoked {
        /// Which.
        id: KeyId,
        /// How far that is on the disk.
        #[serde(flatten)]
        how: Revocation,
    },
    /// An organisation was created.
    OrgCreated(OrgRecord),
    /// Organisations, by id.
    Orgs(Vec<OrgRecord>),
    /// A project was created.
    ProjectCreated(ProjectRecord),
    /// Projects, by id.
    Projects(Vec<ProjectRecord>),
    /// Limits were changed.
    LimitsSet,
    /// Where calls may be worked on was changed.
    RegionsSet {
        /// For an organisation's calls: keys of it whose own regions it does not allow in full any longer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        narrowed: Vec<KeyId>,
    },
    /// Money was added.
    CreditGranted {
        /// To whom.
        org: OrgId,
        /// How much.
        amount: NanoDollars,
        /// The balance now, money held included.
        balance: NanoDollars,
        /// Whether that was done before, under the same reference, and is not done again.
        #[serde(default)]
        before: bool,
    },
    /// Grants and corrections, newest first.
    Grants(Vec<GrantView>),
    /// Balances.
    Credit(Vec<CreditView>),
    /// A budget was set or removed.
    BudgetSet {
        /// Of which project.
        project: ProjectId,
    },
    /// The ledger's time was set back.
    LedgerClockSet {
        /// From where.
        #[serde(with = "headrace_domain::rfc3339")]
        from: UnixNanos,
        /// To where: the clock's time.
        #[serde(with = "headrace_domain::rfc3339")]
        to: UnixNanos,
    },
    /// Accounts were opened.
    AccountsOpened {
        /// How many.
        count: u64,
    },
    /// Rows of the audit log, oldest first.
    Audit(Vec<AuditView>),
    /// An operator was created; this is the only time that the key is shown.
    OperatorCreated {
        /// The operator.
        operator: OperatorRecord,
        /// The key.
        key: SecretText,
    },
    /// Operators, by id.
    Operators(Vec<OperatorRecord>),
    /// An operator is revoked, now or before.
    OperatorRevoked {
        /// Which.
        id: OperatorId,
    },
    /// A link that signs an operator in once.
    SignInLink {
        /// The whole address, secret as it is.
        link: SecretText,
        /// Until when it works.
        #[serde(with = "headrace_domain::rfc3339")]
        expires: UnixNanos,
    },
}

/// A key's secret on its way; shown by nothing but its own accessor.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    /// Wraps it.
    pub const fn new(secret: String) -> Self {
        Self(secret)
    }

    /// The secret, for the one place that shows or stores it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl Drop for SecretText {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText([redacted])")
    }
}

/// What a project can spend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreditView {
    /// The organisation that pays.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// The organisation's balance, money held included.
    pub balance: NanoDollars,
    /// What its calls in flight hold.
    pub held: NanoDollars,
    /// What it can still hold.
    pub available: NanoDollars,
    /// Spent by the project since it was opened.
    #[serde(default)]
    pub spent: NanoDollars,
    /// The project's budget.
    pub budget: Option<BudgetView>,
}

/// How a project stands to its budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetView {
    /// The budget.
    pub budget: Budget,
    /// Spent in its period.
    pub spent: NanoDollars,
    /// Held by the project's calls in flight.
    pub held: NanoDollars,
    /// What it leaves.
    pub left: NanoDollars,
    /// When the period ends.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub resets: Option<UnixNanos>,
}

impl CreditView {
    pub(crate) fn new(org: OrgId, project: ProjectId, standing: &Standing) -> Self {
        let budget = standing.budget.map(|of| BudgetView {
            budget: of.budget,
            spent: of.spent,
            held: of.held,
            left: standing.budget_left.unwrap_or_default(),
            resets: of.resets,
        });
        Self {
            org,
            project,
            balance: standing.balance,
            held: standing.held,
            available: standing.available,
            spent: standing.spent,
            budget,
        }
    }
}

/// Money added, or, below zero, taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantView {
    /// When.
    #[serde(with = "headrace_domain::rfc3339")]
    pub at: UnixNanos,
    /// Who did it.
    pub actor: String,
    /// Whose balance.
    pub org: OrgId,
    /// How much.
    pub amount: NanoDollars,
    /// Where it comes from.
    pub kind: GrantKind,
    /// What it is found by; of a correction, why.
    pub reference: String,
}

/// A row of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditView {
    /// From 1, without gaps.
    pub seq: u64,
    /// When.
    #[serde(with = "headrace_domain::rfc3339")]
    pub at: UnixNanos,
    /// Who.
    pub actor: String,
    /// What was done.
    pub act: String,
    /// To what.
    pub subject: String,
    /// How.
    pub detail: String,
}

/// How a server does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its process; 0 where none runs.
    pub pid: u32,
    /// The program's version.
    pub version: String,
    /// Where it listens.
    pub listen: String,
    /// Since when it runs.
    #[serde(with = "headrace_domain::rfc3339")]
    pub started: UnixNanos,
    /// Why new calls are not served, or not for every model; empty: they are.
    pub not_ready: Vec<String>,
    /// Calls under way.
    pub in_flight: u64,
    /// The models served.
    pub models: Vec<String>,
    /// Other names under which they can be asked for.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// What keeps keys, money and traces.
    #[serde(default)]
    pub stores: Vec<StoreView>,
    /// Revocations in force that wait to be written beside their keys.
    #[serde(default)]
    pub revocations_waiting: u64,
    /// Sums over the ledger.
    pub totals: TotalsView,
}

/// Whether a store can be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreView {
    /// Which: `ledger`, `identity` or `traces`.
    pub store: String,
    /// Why it could not be written last time; `None` where it could.
    pub failing: Option<String>,
}

/// Sums over the ledger, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TotalsView {
    /// Customers' money that is not held.
    pub available: NanoDollars,
    /// Customers' money held by calls in flight.
    pub held: NanoDollars,
    /// Usage at list price.
    pub revenue: NanoDollars,
    /// Usage written off; zero or below.
    pub loss: NanoDollars,
    /// Holds open now.
    pub open_holds: u64,
    /// Holds ever settled.
    pub settled: u64,
}

impl From<Totals> for TotalsView {
    fn from(of: Totals) -> Self {
        let Totals { available, held, revenue, loss, open_holds, settled, .. } = of;
        Self { available, held, revenue, loss, open_holds, settled }
    }
}
