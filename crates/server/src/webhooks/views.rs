//! The state of endpoints and deliveries, as operators see it. Decides nothing.

use headrace_admin::{DeliveryView, WebhookReply, WebhookView};
use headrace_config::webhooks::WebhookEndpoint;
use headrace_ledger::{DeliveryRecord, DeliveryState, EventOutbox, OutboxError};

/// Maximum number of deliveries that are shown.
const MAX_SHOWN: u32 = 1_000;

/// The endpoints with their last result, in the order of the settings.
pub(super) fn list(
    endpoints: &[WebhookEndpoint],
    outbox: &dyn EventOutbox,
) -> Result<WebhookReply, OutboxError> {
    let (gone, deliveries) = (outbox.gone()?, outbox.deliveries(MAX_SHOWN)?);
    let view = |endpoint: &WebhookEndpoint| {
        let own = || deliveries.iter().filter(|delivery| delivery.endpoint == endpoint.name);
        let count = |state| own().filter(|delivery| delivery.state == state).count() as u64;
        let last = own().filter_map(|delivery| delivery.last.clone()).max_by_key(|(at, _)| *at);
        WebhookView {
            name: endpoint.name.clone(),
            host: host(&endpoint.url),
            events: endpoint.events.iter().map(|kind| (*kind).to_owned()).collect(),
            gone: gone.iter().find(|(name, _)| *name == endpoint.name).map(|(_, at)| *at),
            pending: count(DeliveryState::Pending),
            delivered: count(DeliveryState::Delivered),
            failed: count(DeliveryState::Failed),
            last_at: last.as_ref().map(|(at, _)| *at),
            last_result: last.map(|(_, result)| result),
        }
    };
    Ok(WebhookReply::Endpoints(endpoints.iter().map(view).collect()))
}

/// Scheme, host and port of a URL. The rest may have a secret.
fn host(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return String::new() };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    format!("{scheme}://{host}")
}

/// The newest deliveries.
pub(super) fn deliveries(outbox: &dyn EventOutbox, most: u32) -> Result<WebhookReply, OutboxError> {
    let view = |record: DeliveryRecord| {
        let DeliveryRecord { event, kind, endpoint, at, state, tries, last, next } = record;
        let (last_at, last_result) = last.unzip();
        let state = state.name().to_owned();
        DeliveryView { event, kind, endpoint, at, state, tries, last_at, last_result, next }
    };
    let newest = outbox.deliveries(most.min(MAX_SHOWN))?;
    Ok(WebhookReply::Deliveries(newest.into_iter().map(view).collect()))
}
