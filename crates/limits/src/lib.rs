//! Token buckets and concurrency limits over a hierarchy of scopes (key, project, org, model), all or nothing. Knows
//! counts and time, which is an argument; knows nothing of money, credentials or HTTP.

mod bucket;
mod demand;
mod fetch;
mod gateway_shares;
mod held;
mod lease;
mod limits;
mod part;
mod quota;
mod refusal;
mod returns;
mod scope;
mod share_policy;
mod share_state;
mod share_table;
mod slice_state;
mod slot;
mod table;

pub use fetch::QuotaFetch;
pub use gateway_shares::{GatewayShares, ShareStore, ShareStoreError};
pub use lease::Lease;
pub use limits::{LimitMetrics, Limits, RateStanding};
pub use quota::{QuotaDemand, QuotaFuture, QuotaGrant, QuotaReturn, QuotaSource, RateRule};
pub use refusal::LimitRefusal;
pub use scope::{LimitSpec, Scope};
pub use share_table::{LimitShares, SHARE_LEASE, ShareHolder, ShareKey, ShareMember, ShareRow, ShareTable};
