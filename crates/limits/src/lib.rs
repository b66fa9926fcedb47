//! Token buckets and concurrency limits over a hierarchy of scopes (key, project, org, model), all or nothing. Knows
//! counts and time, which is an argument; knows nothing of money, credentials or HTTP.

mod bucket;
mod held;
mod lease;
mod limits;
mod quota;
mod refusal;
mod scope;
mod slot;
mod table;

pub use lease::Lease;
pub use limits::{LimitMetrics, Limits, RateStanding};
pub use quota::{QuotaRequest, QuotaSource, RateRule};
pub use refusal::LimitRefusal;
pub use scope::{LimitSpec, Scope};
