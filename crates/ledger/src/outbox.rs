//! Events that wait for delivery to endpoints outside, and the seam to the store that keeps them across restarts. Several
//! gateways may deliver from one store. Must not know what an event says, or how it is sent.

use std::fmt;
use std::time::Duration;

use headrace_domain::UnixNanos;

/// An event for endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEvent {
    /// Its id, the same in every try and at every gateway.
    pub id: String,
    /// Its kind, such as `budget.alert`.
    pub kind: String,
    /// When it happened.
    pub at: UnixNanos,
    /// The bytes that are sent, as text.
    pub body: String,
}

/// An event that is due at an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueDelivery {
    /// The event.
    pub event: OutboxEvent,
    /// The name of the endpoint.
    pub endpoint: String,
    /// The number of earlier tries.
    pub tries: u32,
}

/// What follows from a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The endpoint has the event.
    Delivered,
    /// Another try follows at this time.
    Retry(UnixNanos),
    /// No try follows.
    Failed,
    /// The endpoint wants no more events. No try follows for this one or for those that wait.
    EndpointGone,
}

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryState {
    /// Tries follow.
    Pending,
    /// The endpoint has the event.
    Delivered,
    /// No try follows.
    Failed,
}

impl DeliveryState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Pending, Self::Delivered, Self::Failed];

    /// The word for operators and in stores.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
        }
    }
}

/// A delivery with its last try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryRecord {
    /// The id of the event.
    pub event: String,
    /// The kind of the event.
    pub kind: String,
    /// The name of the endpoint.
    pub endpoint: String,
    /// When the event happened.
    pub at: UnixNanos,
    /// Its state.
    pub state: DeliveryState,
    /// The number of tries.
    pub tries: u32,
    /// The time and the result of the last try. `None` before the first one.
    pub last: Option<(UnixNanos, String)>,
    /// When the next try is due. `None` if no try follows.
    pub next: Option<UnixNanos>,
}

/// The store cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxError(pub String);

impl fmt::Display for OutboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the outbox of webhooks cannot be read or written: {}", self.0)
    }
}

impl std::error::Error for OutboxError {}

/// Keeps events until they are delivered. Every change is durable when it returns. Calls may block.
pub trait EventOutbox: Send + Sync {
    /// Returns the last row of the journal whose events were taken in. At the first call of all it is set to `start`.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read or written.
    fn position(&self, start: u64) -> Result<u64, OutboxError>;

    /// Takes in the events of the rows after `from`, up to row `to`, for endpoints. Does nothing if the position is not
    /// `from` any more, because another gateway took them in. An event that is known for an endpoint stays as it is.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written. Nothing was taken in then, or everything.
    fn take_in(
        &self,
        from: u64,
        to: u64,
        events: &[OutboxEvent],
        endpoints: &[String],
    ) -> Result<(), OutboxError>;

    /// Claims at most `limit` deliveries that are due at one of the endpoints, oldest first. No other gateway gets them until
    /// `lease` has passed. An endpoint that wants no more events has none.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read or written.
    fn claim(
        &self,
        endpoints: &[String],
        now: UnixNanos,
        lease: Duration,
        limit: u32,
    ) -> Result<Vec<DueDelivery>, OutboxError>;

    /// Records a try at `now` with its result as text.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written.
    fn record(
        &self,
        delivery: &DueDelivery,
        now: UnixNanos,
        result: &str,
        outcome: DeliveryOutcome,
    ) -> Result<(), OutboxError>;

    /// Returns the newest deliveries, newest first, at most `limit`.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read.
    fn deliveries(&self, limit: u32) -> Result<Vec<DeliveryRecord>, OutboxError>;

    /// Returns the endpoints that want no more events, with the time at which they said so.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read.
    fn gone(&self) -> Result<Vec<(String, UnixNanos)>, OutboxError>;

    /// Sends events to an endpoint again. Those that waited follow.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written.
    fn resume(&self, endpoint: &str) -> Result<(), OutboxError>;

    /// Removes deliveries whose events happened before `before`, and events without deliveries.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written.
    fn sweep(&self, before: UnixNanos) -> Result<(), OutboxError>;
}
