//! Commands about endpoints that receive events, as serializable data, and what they answer. Contains no decisions.

use headrace_domain::UnixNanos;
use serde::{Deserialize, Serialize};

use crate::error::AdminError;

/// Carries out a command about endpoints. Blocks.
pub type WebhookSource = Box<dyn Fn(WebhookAct) -> Result<WebhookReply, AdminError> + Send + Sync>;

/// A command about endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum WebhookAct {
    /// Lists the endpoints with their state.
    List,
    /// Lists the newest deliveries.
    Deliveries {
        /// The maximum number of deliveries.
        most: u32,
    },
    /// Sends a test event to an endpoint now.
    Test {
        /// The endpoint.
        name: String,
    },
    /// Sends events again to an endpoint that wanted no more.
    Resume {
        /// The endpoint.
        name: String,
    },
}

/// The reply to a command about endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebhookReply {
    /// The endpoints, in the order of the settings.
    Endpoints(Vec<WebhookView>),
    /// Deliveries, newest first.
    Deliveries(Vec<DeliveryView>),
    /// A test event was sent.
    Tested {
        /// The endpoint.
        name: String,
        /// The id of the event.
        event: String,
        /// Whether the endpoint accepted it.
        is_accepted: bool,
        /// The status, or why there was none.
        result: String,
    },
    /// Events are sent to the endpoint again.
    Resumed {
        /// The endpoint.
        name: String,
    },
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookView {
    /// Its name.
    pub name: String,
    /// Scheme, host and port of its URL.
    pub host: String,
    /// The kinds of events that it receives.
    pub events: Vec<String>,
    /// When it said that it wants no more events. `None` if it receives them.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub gone: Option<UnixNanos>,
    /// Recent events that wait.
    pub pending: u64,
    /// Recent events that it has.
    pub delivered: u64,
    /// Recent events that were given up.
    pub failed: u64,
    /// The time of the last try.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub last_at: Option<UnixNanos>,
    /// The result of the last try.
    pub last_result: Option<String>,
}

/// An event for an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryView {
    /// The id of the event.
    pub event: String,
    /// The kind of the event.
    pub kind: String,
    /// The endpoint.
    pub endpoint: String,
    /// When the event happened.
    #[serde(with = "headrace_domain::rfc3339")]
    pub at: UnixNanos,
    /// `pending`, `delivered` or `failed`.
    pub state: String,
    /// The number of tries.
    pub tries: u32,
    /// The time of the last try.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub last_at: Option<UnixNanos>,
    /// The result of the last try.
    pub last_result: Option<String>,
    /// When the next try is due.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub next: Option<UnixNanos>,
}
