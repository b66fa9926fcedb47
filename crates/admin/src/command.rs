//! Commands and replies as serializable data, for the control socket. Contains no decisions.

use headrace_domain::{
    BudgetName, Endpoint, HoldId, KeyId, ModelName, NanoDollars, OrgId, ProjectId, RecordRules, Residency,
    TierName, UnixNanos,
};
use headrace_identity::{
    KeyChange, KeyDetails, KeyRecord, OperatorId, OperatorRecord, OperatorScope, OrgRecord, ProjectRecord,
    RateLimits, Revocation, Role, TierHolder, TierRecord,
};
use headrace_ledger::{GrantKind, LedgerTotals, ProjectBudget};
use serde::{Deserialize, Serialize};

use crate::account_act::{AccountAct, AccountReply};
use crate::audit_act::{AuditAct, AuditReply};
use crate::budget_act::{BudgetAct, BudgetAlertView, BudgetRuleView};
use crate::content_act::{ContentAct, ContentReply};
use crate::credit_view::CreditView;
use crate::gateway_view::GatewayView;
use crate::invoice_act::{InvoiceAct, InvoiceReply};
use crate::lot_act::{LotAct, LotReply};
use crate::places::{RouteView, UpstreamAct, UpstreamView};
use crate::refund_view::RefundView;
use crate::secret_text::SecretText;
use crate::tier_act::TierAct;
use crate::webhook_act::{WebhookAct, WebhookReply};

/// A command of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum AdminCommand {
    /// Returns the server's status.
    Status,
    /// Returns the calls in progress and figures of the last minute.
    Now,
    /// Returns the newest ended calls, once their traces are stored.
    RecentCalls {
        /// The maximum number of calls.
        most: usize,
    },
    /// Reloads the settings that may change while calls run.
    Reload,
    /// Returns all upstreams, after an act on one of them if given.
    Upstreams {
        /// The act. `None` to only list.
        #[serde(default)]
        act: Option<UpstreamAct>,
    },
    /// Returns all routes. Before that, puts rolled-back canaries of one route on trial again if `resume` is set.
    Routes {
        /// The route whose canaries go on trial again. `None` to only list.
        #[serde(default)]
        resume: Option<ModelName>,
    },
    /// Creates a key.
    CreateKey {
        /// The key's project. It determines the organisation.
        project: ProjectId,
        /// The key's name: 1 to 128 bytes.
        name: String,
        /// The models that the key may use. `None` for all, including models added later.
        #[serde(default)]
        models: Option<Vec<ModelName>>,
        /// The endpoints that the key may call. `None` for all, including endpoints added later.
        #[serde(default)]
        endpoints: Option<Vec<Endpoint>>,
        /// The key's own limits. `None` for the configured default.
        #[serde(default)]
        limits: Option<RateLimits>,
        /// The regions in which its calls may run, within those of its organisation.
        #[serde(default, skip_serializing_if = "Residency::is_anywhere")]
        regions: Residency,
        /// When the key expires.
        #[serde(default)]
        expires: Option<UnixNanos>,
        /// The secret, if the operator chooses it.
        #[serde(default)]
        secret: Option<SecretText>,
        /// The key's owner, and the addresses from which it may be used.
        #[serde(default)]
        details: KeyDetails,
        /// The key's tier.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tier: Option<TierName>,
    },
    /// Lends a key for a few hours to a user who may read the data directory, for calls from the same machine. The same
    /// user gets the same key again.
    LendKey {
        /// The project that pays. `None` for the project `default`, or the only project.
        #[serde(default)]
        project: Option<ProjectId>,
    },
    /// Lists all keys, or those of one project.
    ListKeys {
        /// Only keys of this project.
        #[serde(default)]
        project: Option<ProjectId>,
    },
    /// Revokes a key. After the reply, no request authenticates with it.
    RevokeKey {
        /// The key.
        id: KeyId,
    },
    /// Creates an organisation.
    CreateOrg {
        /// The organisation's id.
        id: OrgId,
        /// The limits. `None` for the configured default.
        #[serde(default)]
        limits: Option<RateLimits>,
        /// The regions in which its calls may run.
        #[serde(default, skip_serializing_if = "Residency::is_anywhere")]
        regions: Residency,
    },
    /// Lists all organisations.
    ListOrgs,
    /// Creates a project, with its account in the ledger.
    CreateProject {
        /// The project's id, unique across organisations.
        id: ProjectId,
        /// The organisation that pays for it.
        org: OrgId,
        /// The limits. `None` for the configured default.
        #[serde(default)]
        limits: Option<RateLimits>,
    },
    /// Lists all projects.
    ListProjects,
    /// Changes an organisation's limits.
    SetOrgLimits {
        /// The organisation.
        org: OrgId,
        /// The new limits. They replace all limits.
        limits: RateLimits,
    },
    /// Changes the regions in which an organisation's calls may run.
    SetOrgRegions {
        /// The organisation.
        org: OrgId,
        /// The new regions. They replace all regions.
        regions: Residency,
    },
    /// Gives a key another secret.
    RotateKey {
        /// The key.
        id: KeyId,
        /// For how many seconds the secret before it stays valid.
        overlap_seconds: u64,
    },
    /// Makes another key that signs receipts.
    RotateReceiptKey,
    /// Computes, numbers, lists or shows invoices.
    Invoices {
        /// The act.
        act: InvoiceAct,
    },
    /// Lists, tests or resumes endpoints that receive events.
    Webhooks {
        /// The act.
        act: WebhookAct,
    },
    /// Lists, sets, raises or removes budget rules, or lists alerts.
    Budgets {
        /// The act.
        act: BudgetAct,
    },
    /// Lists, makes, ends or pays lots and contracts, or lists, sets or removes free tiers.
    Lots {
        /// The act.
        act: LotAct,
    },
    /// Lists, creates, changes, removes or assigns tiers.
    Tiers {
        /// The act.
        act: TierAct,
    },
    /// Lists, creates, changes or removes users, service accounts, groups and SCIM credentials.
    Accounts {
        /// The act.
        act: AccountAct,
    },
    /// Changes a key's owner, or the addresses from which it may be used.
    ChangeKey {
        /// The key.
        id: KeyId,
        /// The change.
        change: KeyChange,
    },
    /// Changes the regions in which a key's calls may run, within those of its organisation.
    SetKeyRegions {
        /// The key.
        key: KeyId,
        /// The new regions. They replace all regions.
        regions: Residency,
    },
    /// Changes a key's own limits.
    SetKeyLimits {
        /// The key.
        key: KeyId,
        /// The new limits. They replace all limits.
        limits: RateLimits,
    },
    /// Changes a project's limits.
    SetProjectLimits {
        /// The project.
        project: ProjectId,
        /// The new limits. They replace all limits.
        limits: RateLimits,
    },
    /// Changes what a project sets of its record policy.
    SetProjectRecords {
        /// The project.
        project: ProjectId,
        /// The new rules. They replace all rules. The server's policy applies to the rest.
        records: RecordRules,
    },
    /// Shows, searches or scores recorded requests and answers, keeps datasets of them, or forgets a user.
    Contents {
        /// The act.
        act: ContentAct,
    },
    /// Adds money to an organisation's balance.
    GrantCredit {
        /// The organisation.
        org: OrgId,
        /// The amount in nano-dollars, more than zero.
        amount: NanoDollars,
        /// The kind of grant.
        kind: GrantKind,
        /// A reference to find the grant by. The same reference again is the same grant. Empty if there is none.
        reference: String,
    },
    /// Takes back money that was granted by mistake.
    CorrectCredit {
        /// The organisation.
        org: OrgId,
        /// The amount. Its sign does not matter.
        amount: NanoDollars,
        /// The kind of the grant that is taken back.
        kind: GrantKind,
        /// The reason. The same reason again is the same correction.
        reason: String,
    },
    /// Refunds a part of a call's charge, or all of it.
    Refund {
        /// The hold of the call. Its bits are those of the request id.
        hold: HoldId,
        /// The amount, more than zero. `None` for all that was not refunded before.
        #[serde(default)]
        amount: Option<NanoDollars>,
        /// A reference to find the refund by. The same reference again is the same refund.
        reference: String,
    },
    /// Lists grants and corrections, newest first, of all organisations or of one.
    ListGrants {
        /// Only of this organisation.
        #[serde(default)]
        org: Option<OrgId>,
    },
    /// Lists balances and budgets, of every project or of one organisation's projects.
    ShowCredit {
        /// Only of this organisation.
        #[serde(default)]
        org: Option<OrgId>,
    },
    /// Sets or removes a project's budget.
    SetBudget {
        /// The project.
        project: ProjectId,
        /// The budget. `None` to remove it.
        budget: Option<ProjectBudget>,
    },
    /// Opens an account, without money, for every project that has none.
    OpenAccounts,
    /// Sets the ledger's time back to the clock's, after the server ran on a clock that was ahead.
    SetLedgerClock,
    /// Returns the newest rows of the audit log.
    ShowAudit {
        /// The maximum number of rows.
        last: u32,
        /// Only rows before this row number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<u64>,
    },
    /// Exports the audit log, or signs its end.
    AuditLog {
        /// The act.
        act: AuditAct,
    },
    /// Creates an operator.
    CreateOperator {
        /// The operator's name: 1 to 64 bytes.
        name: String,
        /// The operator's role. Ignored for a user, who has the role of its record and groups.
        role: Role,
        /// Where the operator has the role.
        #[serde(default)]
        scope: OperatorScope,
    },
    /// Lists all operators.
    ListOperators,
    /// Revokes an operator. After the reply, neither the key nor a session of the operator works.
    RevokeOperator {
        /// The operator.
        id: OperatorId,
    },
    /// Creates a link that signs an operator in once.
    LinkOperator {
        /// The operator.
        id: OperatorId,
    },
}

/// The reply to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "value", rename_all = "snake_case")]
pub enum AdminReply {
    /// The server's status.
    Status(ServerStatus),
    /// The calls in progress and figures of the last minute, as JSON of `headrace_trace::Now`.
    Now(serde_json::Value),
    /// The newest ended calls, newest first, as stored trace records.
    RecentCalls(Vec<serde_json::Value>),
    /// The configuration was reloaded and is in force.
    Reloaded {
        /// The settings that changed.
        changed: Vec<String>,
    },
    /// All upstreams, in the order of the configuration.
    Upstreams(Vec<UpstreamView>),
    /// All routes, by name.
    Routes(Vec<RouteView>),
    /// A key was created. Only this reply shows its secret.
    KeyCreated {
        /// The key.
        key: KeyRecord,
        /// The key's secret.
        secret: SecretText,
        /// The models that the key may use but that are not served now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unserved: Vec<ModelName>,
    },
    /// Another key signs receipts from now on.
    ReceiptKeyRotated {
        /// The id of the key.
        id: String,
    },
    /// The reply to a command about invoices.
    Invoices(InvoiceReply),
    /// The reply to a command about endpoints that receive events.
    Webhooks(WebhookReply),
    /// Budget rules with their use, by name.
    Budgets(Vec<BudgetRuleView>),
    /// Alerts, newest first.
    BudgetAlerts(Vec<BudgetAlertView>),
    /// A budget rule was set or raised.
    BudgetChanged(BudgetRuleView),
    /// A budget rule was removed.
    BudgetRemoved(BudgetName),
    /// Lots, contracts or free tiers.
    Lots(LotReply),
    /// Tiers, by name.
    Tiers(Vec<TierRecord>),
    /// A tier was created or changed.
    TierSet(TierRecord),
    /// A tier was removed.
    TierRemoved(TierName),
    /// A tier was assigned, or taken away if there is none.
    TierAssigned(TierHolder, Option<TierName>),
    /// Users, service accounts, groups or SCIM credentials.
    Accounts(AccountReply),
    /// A key was changed.
    KeyChanged(KeyRecord),
    /// A key has another secret.
    KeyRotated {
        /// The key.
        key: KeyRecord,
        /// The new secret.
        secret: SecretText,
    },
    /// A key was lent.
    KeyLent {
        /// The key.
        key: KeyRecord,
        /// The key's secret.
        secret: SecretText,
    },
    /// Keys, by id.
    Keys(Vec<KeyRecord>),
    /// The key is revoked, now or before.
    KeyRevoked {
        /// The key.
        id: KeyId,
        /// How durable the revocation is.
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
    /// A project was changed.
    ProjectChanged(ProjectRecord),
    /// Recorded requests and answers, scores or datasets.
    Contents(ContentReply),
    /// Limits were changed.
    LimitsSet,
    /// Regions were changed.
    RegionsSet {
        /// For an organisation: the keys whose own regions are no longer all allowed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        narrowed: Vec<KeyId>,
    },
    /// Money was added.
    CreditGranted {
        /// The organisation.
        org: OrgId,
        /// The amount.
        amount: NanoDollars,
        /// The balance now, money held included.
        balance: NanoDollars,
        /// Whether the same grant was made before under this reference, so that nothing was added now.
        #[serde(default)]
        before: bool,
    },
    /// A charge was refunded, now or before.
    Refunded(RefundView),
    /// Grants and corrections, newest first.
    Grants(Vec<GrantView>),
    /// Balances and budgets.
    Credit(Vec<CreditView>),
    /// A budget was set or removed.
    BudgetSet {
        /// The project.
        project: ProjectId,
    },
    /// The ledger's time was set back.
    LedgerClockSet {
        /// The ledger's time before.
        #[serde(with = "headrace_domain::rfc3339")]
        from: UnixNanos,
        /// The ledger's time now, which is the clock's.
        #[serde(with = "headrace_domain::rfc3339")]
        to: UnixNanos,
    },
    /// Accounts were opened.
    AccountsOpened {
        /// The number of accounts.
        count: u64,
    },
    /// Rows of the audit log, oldest first.
    Audit(Vec<AuditView>),
    /// Rows of the audit log with their hashes, or its signed end.
    AuditLog(AuditReply),
    /// An operator was created. Only this reply shows the key.
    OperatorCreated {
        /// The operator.
        operator: OperatorRecord,
        /// The key.
        key: SecretText,
    },
    /// Operators, by id.
    Operators(Vec<OperatorRecord>),
    /// The operator is revoked, now or before.
    OperatorRevoked {
        /// The operator.
        id: OperatorId,
    },
    /// A link that signs an operator in once.
    SignInLink {
        /// The whole address. It is a secret.
        link: SecretText,
        /// When the link expires.
        #[serde(with = "headrace_domain::rfc3339")]
        expires: UnixNanos,
    },
}

/// Money added, or, below zero, taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantView {
    /// The time of the act.
    #[serde(with = "headrace_domain::rfc3339")]
    pub at: UnixNanos,
    /// Who made the grant.
    pub actor: String,
    /// The organisation.
    pub org: OrgId,
    /// The amount.
    pub amount: NanoDollars,
    /// The kind of grant.
    pub kind: GrantKind,
    /// The reference of a grant, or the reason of a correction.
    pub reference: String,
}

/// A row of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditView {
    /// The row's number, from 1 and without gaps.
    pub seq: u64,
    /// The time of the grant.
    #[serde(with = "headrace_domain::rfc3339")]
    pub at: UnixNanos,
    /// Who acted.
    pub actor: String,
    /// The act.
    pub act: String,
    /// The subject of the act.
    pub subject: String,
    /// Details.
    pub detail: String,
}

/// The status of a server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The process id. 0 if no server runs.
    pub pid: u32,
    /// The program's version.
    pub version: String,
    /// The address on which it listens.
    pub listen: String,
    /// The start time.
    #[serde(with = "headrace_domain::rfc3339")]
    pub started: UnixNanos,
    /// Why new calls are not served, or not for every model. Empty if they are.
    pub not_ready: Vec<String>,
    /// Calls in progress.
    pub in_flight: u64,
    /// The served models.
    pub models: Vec<String>,
    /// Other names that lead to them.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The stores of keys, money and traces.
    #[serde(default)]
    pub stores: Vec<StoreView>,
    /// Revocations that are in force but not yet written to their keys.
    #[serde(default)]
    pub revocations_waiting: u64,
    /// The gateways that share the ledger, this one among them. Empty if this server has it for itself.
    #[serde(default)]
    pub gateways: Vec<GatewayView>,
    /// Why the gateways could not be read. `None` if they were.
    #[serde(default)]
    pub gateways_failing: Option<String>,
    /// Sums over the ledger.
    pub totals: TotalsView,
}

/// Whether a store can be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreView {
    /// The store: `ledger`, `identity` or `traces`.
    pub store: String,
    /// The error of the last write. `None` if it succeeded.
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
    /// Usage that was written off. Zero or below.
    pub loss: NanoDollars,
    /// Holds open now.
    pub open_holds: u64,
    /// Holds ever settled.
    pub settled: u64,
}

impl From<LedgerTotals> for TotalsView {
    fn from(of: LedgerTotals) -> Self {
        let LedgerTotals { available, in_lots, held, revenue, loss, open_holds, settled, .. } = of;
        let available = available.checked_add(in_lots).unwrap_or(NanoDollars::MAX);
        Self { available, held, revenue, loss, open_holds, settled }
    }
}
