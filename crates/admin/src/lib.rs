//! What an operator can do, and the control socket through which a running server is told to do it.
//! Knows who acts and when only as arguments; knows no HTTP, no engine and no SQL.

mod command;
pub mod control;
mod error;
mod lent;
mod lock;
mod places;
mod service;

pub use command::{
    AdminCommand, AdminReply, AuditView, BudgetView, CreditView, GrantView, SecretText, ServerStatus,
    StoreView, TotalsView,
};
pub use error::{AdminError, ControlError};
pub use lock::{DataDirLock, LockError};
pub use places::{
    CanaryFigures, LoadView, RouteArmView, RouteView, UpstreamAct, UpstreamModelView, UpstreamView,
};
pub use service::{
    AdminService, DefaultLimits, DefaultsSource, Grant, GrantHistory, LinkSource, NowSource, RecentSource,
    ReloadSource, RouteSource, StatusSource, UpstreamSource,
};
