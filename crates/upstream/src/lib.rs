//! HTTP to upstreams: calls in their dialect behind the trait `engine_api::Relay`, named faults of their answers, their
//! models and their health. Must not know callers' keys, limits, money or templates.

mod address;
mod addresses;
mod answer;
mod ask;
mod body;
mod budget;
mod cache;
mod cache_feed;
mod client;
mod fault;
mod figures;
mod gate;
mod judge;
mod kind;
mod listing;
mod load;
mod load_gauge;
mod load_reading;
mod names;
mod plaintext_pool;
mod probe;
mod redact;
mod retry_after;
mod server;
mod spec;
mod tokens;
mod trust;
mod upstream;
mod urls;
mod webhooks;
mod worker_link;
mod worker_requests;
mod workers;

pub use addresses::NameAddresses;
pub use cache::{CacheEvent, StoredBlocks, StoredLabel};
pub use cache_feed::CacheFeed;
pub use figures::{FAILURES, ServerFigures};
pub use judge::{HttpJudge, JudgeApi, JudgePrices, JudgeSpec};
pub use kind::{UnknownKind, UpstreamKind};
pub use listing::{ListedModel, ModelListing};
pub use probe::ProbeError;
pub use spec::{
    AnswerLimits, Http2Config, PoolConfig, QueueConfig, UpstreamSpec, UpstreamTimeouts, UseHttp2,
};
pub use tokens::{TokenModel, TokenModelSpec};
pub use upstream::{RelayModel, Upstream};
pub use urls::{AllowedHost, UrlPolicy};
pub use webhooks::{WebhookAnswer, WebhookSender};
pub use workers::WorkerModel;
