//! Delivers alerts to the endpoints of the settings: takes them from the ledger's journal into the outbox, and sends what is
//! due. Runs in every gateway; the outbox decides which gateway sends. Must not know how an alert is raised.

mod event;
mod schedule;
mod views;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use headrace_admin::{AdminError, WebhookAct, WebhookReply, WebhookSource};
use headrace_config::ServerSettings;
use headrace_config::webhooks::WebhookEndpoint;
use headrace_domain::{AdminCode, Clock, UnixNanos};
use headrace_ledger::{
    DeliveryOutcome, DueDelivery, EventOutbox, JournalEvent, JournalHistory, LedgerAdmin, OutboxError,
    OutboxEvent, decode_row,
};
use headrace_upstream::{WebhookAnswer, WebhookSender};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use self::event::{ALERT_KIND, alert_event, test_event};
use self::schedule::outcome_of;

/// How often due events are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the journal is read even if this process has seen no new alert.
const READ_EVERY: Duration = Duration::from_secs(30);
/// Rows of the journal that are read at a time.
const PAGE_ROWS: usize = 256;
/// How long a gateway may take to send what it claimed, before another one sends it. Longer than an attempt can take.
const LEASE: Duration = Duration::from_secs(30);
/// Events that are sent to an endpoint at once.
const SENT_AT_ONCE: u32 = 16;
/// How long ended deliveries are shown.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// The endpoints with their outbox.
pub(crate) struct AlertDelivery {
    endpoints: Vec<WebhookEndpoint>,
    outbox: Arc<dyn EventOutbox>,
    ledger: Arc<dyn LedgerAdmin>,
    sender: WebhookSender,
    clock: Arc<dyn Clock>,
    intake: Mutex<AlertIntake>,
}

/// What was read of the journal.
#[derive(Default)]
struct AlertIntake {
    /// The number of alerts and the time of the newest one that this process knew at the last reading.
    seen: (usize, UnixNanos),
    /// When the journal was read, in nanoseconds of monotonic time.
    read_ns: Option<u64>,
}

impl AlertDelivery {
    /// Opens the outbox. `None` if no endpoint is configured. The first alert that an outbox gets is the next one. Blocks.
    ///
    /// # Errors
    /// Returns why the outbox or the journal cannot be read, or why nothing can be sent.
    pub(crate) fn open(
        config: &ServerSettings,
        outbox: Arc<dyn EventOutbox>,
        ledger: Arc<dyn LedgerAdmin>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<Arc<Self>>, String> {
        if config.webhooks.is_empty() {
            return Ok(None);
        }
        let sender = WebhookSender::new().map_err(|why| format!("webhooks cannot be sent: {why}"))?;
        let (endpoints, clock) = (config.webhooks.clone(), Arc::clone(clock));
        let end = ledger.history().last_row_before(UnixNanos::new(u64::MAX));
        outbox.position(end.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
        Ok(Some(Arc::new(Self { endpoints, outbox, ledger, sender, clock, intake: Mutex::default() })))
    }

    /// Takes alerts in and sends what is due, until the future is dropped. Each endpoint has its own loop, so that one that
    /// does not answer delays no other.
    pub(crate) async fn run(self: Arc<Self>) {
        let endpoints = self.endpoints.iter().map(|endpoint| self.deliver_to(endpoint));
        join(self.take_in_often(), join_all(endpoints)).await;
    }

    async fn take_in_often(self: &Arc<Self>) {
        loop {
            let own = Arc::clone(self);
            if let Ok(Err(error)) = spawn_blocking(move || own.take_in()).await {
                tracing::warn!(%error, "alerts are not taken in now; trying again");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn deliver_to(self: &Arc<Self>, endpoint: &WebhookEndpoint) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            while self.deliver_some(endpoint).await {}
        }
    }

    /// Sends some of what is due at an endpoint. Returns whether there may be more.
    async fn deliver_some(self: &Arc<Self>, endpoint: &WebhookEndpoint) -> bool {
        let (own, name) = (Arc::clone(self), endpoint.name.clone());
        let due = match spawn_blocking(move || own.claim(name)).await {
            Ok(Ok(due)) => due,
            Ok(Err(error)) => {
                tracing::warn!(%error, endpoint = endpoint.name, "alerts are not delivered now; trying again");
                return false;
            }
            // The runtime is shutting down.
            Err(_) => return false,
        };
        let may_be_more = due.len() == SENT_AT_ONCE as usize;
        join_all(due.into_iter().map(|delivery| self.deliver(endpoint, delivery))).await;
        may_be_more
    }

    async fn deliver(self: &Arc<Self>, endpoint: &WebhookEndpoint, delivery: DueDelivery) {
        let answer = self.send(endpoint, &delivery.event).await;
        let own = Arc::clone(self);
        let recorded = spawn_blocking(move || own.record(&delivery, &answer)).await;
        if let Ok(Err(error)) = recorded {
            // The lease ends, and the event is sent again.
            tracing::warn!(%error, "the delivery of an alert is not recorded");
        }
    }

    async fn send(&self, endpoint: &WebhookEndpoint, event: &OutboxEvent) -> Result<WebhookAnswer, String> {
        let seconds = self.clock.now().seconds();
        let headers = [
            ("webhook-id", event.id.clone()),
            ("webhook-timestamp", seconds.to_string()),
            ("webhook-signature", endpoint.secret.sign(&event.id, seconds, &event.body)),
        ];
        self.sender.post(&endpoint.url, &endpoint.addresses, &headers, event.body.clone()).await
    }

    fn record(
        &self,
        delivery: &DueDelivery,
        answer: &Result<WebhookAnswer, String>,
    ) -> Result<(), OutboxError> {
        let now = self.clock.now();
        let (outcome, result) = outcome_of(delivery.tries, answer, now);
        match outcome {
            DeliveryOutcome::Failed => {
                tracing::error!(
                    endpoint = delivery.endpoint,
                    event = delivery.event.id,
                    result,
                    "an event is given up"
                );
            }
            DeliveryOutcome::EndpointGone => {
                tracing::error!(
                    endpoint = delivery.endpoint,
                    "the endpoint wants no more events (status 410)"
                );
            }
            DeliveryOutcome::Delivered | DeliveryOutcome::Retry(_) => {}
        }
        self.outbox.record(delivery, now, &result, outcome)
    }

    fn endpoint(&self, name: &str) -> Option<&WebhookEndpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.name == name)
    }

    /// The names of the endpoints that receive events of a kind.
    fn receivers(&self, kind: &str) -> Vec<String> {
        let receives = |endpoint: &&WebhookEndpoint| endpoint.events.contains(&kind);
        self.endpoints.iter().filter(receives).map(|endpoint| endpoint.name.clone()).collect()
    }

    fn claim(&self, endpoint: String) -> Result<Vec<DueDelivery>, OutboxError> {
        self.outbox.claim(&[endpoint], self.clock.now(), LEASE, SENT_AT_ONCE)
    }

    /// Takes the alerts of new rows of the journal into the outbox, if there may be some.
    fn take_in(&self) -> Result<(), OutboxError> {
        let alerts = self.ledger.alerts();
        let seen = (alerts.len(), alerts.last().map_or(UnixNanos::new(0), |(at, _)| *at));
        let now_ns = self.clock.monotonic_nanos();
        let mut intake = self.intake.lock();
        let wait = u64::try_from(READ_EVERY.as_nanos()).unwrap_or(u64::MAX);
        let is_due = intake.read_ns.is_none_or(|read_ns| now_ns.saturating_sub(read_ns) >= wait);
        if !is_due && intake.seen == seen {
            return Ok(());
        }
        if is_due {
            let before =
                self.clock.now().get().saturating_sub(u64::try_from(KEPT.as_nanos()).unwrap_or(u64::MAX));
            self.outbox.sweep(UnixNanos::new(before))?;
        }
        take_in_rows(
            self.ledger.as_ref(),
            self.outbox.as_ref(),
            &self.receivers(ALERT_KIND),
            self.clock.now(),
        )?;
        *intake = AlertIntake { seen, read_ns: Some(now_ns) };
        Ok(())
    }

    /// Answers operators' commands.
    pub(crate) fn source(self: &Arc<Self>, runtime: Handle) -> WebhookSource {
        let own = Arc::clone(self);
        Box::new(move |act| own.act(act, &runtime))
    }

    fn act(&self, act: WebhookAct, runtime: &Handle) -> Result<WebhookReply, AdminError> {
        let failed = |error: OutboxError| AdminError::new(AdminCode::StoreFailed, error.to_string(), "");
        match act {
            WebhookAct::List => views::list(&self.endpoints, self.outbox.as_ref()).map_err(failed),
            WebhookAct::Deliveries { most } => views::deliveries(self.outbox.as_ref(), most).map_err(failed),
            WebhookAct::Resume { name } => {
                self.named(&name)?;
                self.outbox.resume(&name).map_err(failed)?;
                Ok(WebhookReply::Resumed { name })
            }
            WebhookAct::Test { name } => {
                let endpoint = self.named(&name)?;
                let event = test_event(self.clock.now());
                let answer = runtime.block_on(self.send(endpoint, &event));
                let (is_accepted, result) = match answer {
                    Ok(answer) => ((200..300).contains(&answer.status), format!("status {}", answer.status)),
                    Err(why) => (false, why),
                };
                Ok(WebhookReply::Tested { name, event: event.id, is_accepted, result })
            }
        }
    }

    fn named(&self, name: &str) -> Result<&WebhookEndpoint, AdminError> {
        self.endpoint(name).ok_or_else(|| {
            let message = format!("there is no webhook `{name}`");
            AdminError::new(AdminCode::UnknownWebhook, message, "headrace webhooks list")
        })
    }
}

/// Takes the alerts of all rows after the outbox's position into the outbox, for these endpoints.
fn take_in_rows(
    ledger: &dyn LedgerAdmin,
    outbox: &dyn EventOutbox,
    endpoints: &[String],
    now: UnixNanos,
) -> Result<(), OutboxError> {
    let failed = |error: headrace_ledger::JournalError| OutboxError(error.to_string());
    let history: &dyn JournalHistory = ledger.history();
    let rules = ledger.budgets(now);
    loop {
        let from = outbox.position(0)?;
        let rows = history.rows_after(from, PAGE_ROWS).map_err(failed)?;
        let Some(last) = rows.last() else { return Ok(()) };
        let mut events = Vec::new();
        for row in &rows {
            for transaction in decode_row(row).map_err(failed)? {
                if let JournalEvent::AlertRaised(alert) = &transaction.event {
                    let rule = rules.iter().find(|report| report.rule.name == alert.name);
                    let measure = rule.map(|report| report.rule.measure);
                    events.push(alert_event(transaction.time, alert, measure));
                }
            }
        }
        outbox.take_in(from, last.sequence, &events, endpoints)?;
    }
}

#[cfg(test)]
mod tests;
