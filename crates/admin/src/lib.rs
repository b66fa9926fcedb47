//! The commands of operators, and the control socket that carries them to a running server. Actor and time are
//! arguments. Must not know HTTP, engines or SQL.

mod account_act;
mod audit_act;
mod budget_act;
mod command;
mod content_act;
pub mod control;
mod credit_view;
mod error;
mod gateway_view;
mod invoice;
mod invoice_act;
mod invoice_amounts;
mod invoice_settings;
mod invoice_text;
mod lent;
mod lock;
mod lot_act;
mod places;
mod refund_view;
mod secret_text;
mod service;
mod tier_act;
mod webhook_act;

pub use account_act::{AccountAct, AccountReply, GroupMapping, ListedAccounts, UserChange};
pub use audit_act::{AuditAct, AuditLine, AuditReply, SignedAuditHead};
pub use budget_act::{BudgetAct, BudgetAlertView, BudgetCounterView, BudgetRuleView};
pub use command::{AdminCommand, AdminReply, AuditView, GrantView, ServerStatus, StoreView, TotalsView};
pub use content_act::{ContentAct, ContentReply, ForgottenStore};
pub use credit_view::{BudgetView, CreditView};
pub use error::{AdminError, ControlError};
pub use gateway_view::GatewayView;
pub use headrace_trace::{CallDataset, CallScore, RecordName, ScoreValue};
pub use invoice::{
    InvoiceDays, InvoiceDocument, InvoiceLedger, InvoiceLine, InvoiceState, InvoiceTax, InvoiceTotals,
    PriceVersion,
};
pub use invoice_act::{InvoiceAct, InvoiceReply, InvoiceSource, InvoiceSummary, PriceFinder, PriceVersions};
pub use invoice_amounts::CentAmount;
pub use invoice_settings::{InvoiceBuyer, InvoiceParty, InvoiceSettings, TaxRate};
pub use lock::{DataDirLock, LockError};
pub use lot_act::{FreeTierView, LotAct, LotReply, NewLot};
pub use places::{
    CanaryFigures, LoadView, RouteArmView, RouteView, UpstreamAct, UpstreamModelView, UpstreamView,
};
pub use refund_view::RefundView;
pub use secret_text::SecretText;
pub use service::{
    AdminService, AuditSigner, ContentAccess, DefaultLimits, DefaultsSource, ForgetSource, Grant, LinkSource,
    NowSource, ReceiptKeySource, RecentSource, ReloadSource, RouteSource, StatusSource, UpstreamSource,
    content_filter_words, unknown_invoice,
};
pub use tier_act::TierAct;
pub use webhook_act::{DeliveryView, WebhookAct, WebhookReply, WebhookSource, WebhookView};
