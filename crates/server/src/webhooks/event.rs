//! What webhooks say: an event as the JSON that is sent. The same alert always becomes the same event. Must not know who
//! receives it.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{NanoDollars, UnixNanos};
use headrace_ledger::{AlertRaised, BudgetMeasure, OutboxEvent};
use serde_json::{Value, json};

/// The kind of budget alerts.
pub(super) const ALERT_KIND: &str = "budget.alert";
/// The kind of the events that `headrace webhooks test` sends.
const TEST_KIND: &str = "webhook.test";

/// The event of an alert. `measure` is what the budget counts, if it still exists.
pub(super) fn alert_event(at: UnixNanos, alert: &AlertRaised, measure: Option<BudgetMeasure>) -> OutboxEvent {
    let AlertRaised { rule, name, subject, window, percent, used, limit } = alert;
    // A rule raises an alert once per subject, window and percentage.
    let mut hasher = blake3::Hasher::new_derive_key("headrace webhook event 1");
    hasher.update(&rule.to_le_bytes());
    hasher.update(&window.start.get().to_le_bytes());
    hasher.update(&percent.to_le_bytes());
    hasher.update(subject.as_bytes());
    let ends = Some(window.end).filter(|end| end.get() != u64::MAX);
    let data = json!({
        "budget": name.as_str(),
        "subject": &**subject,
        "percent": percent,
        "measure": measure.map(BudgetMeasure::name),
        "used": amount(*used, measure),
        "limit": amount(*limit, measure),
        "window_starts": Rfc3339(window.start).to_string(),
        "window_ends": ends.map(|end| Rfc3339(end).to_string()),
    });
    event(hasher.finalize().to_hex().get(..32).unwrap_or_default(), ALERT_KIND, at, &data)
}

/// An event without content, to try an endpoint.
pub(super) fn test_event(at: UnixNanos) -> OutboxEvent {
    let digits = format!("{:032x}", at.get());
    event(&digits, TEST_KIND, at, &json!({ "message": "this event tests the endpoint" }))
}

fn event(digits: &str, kind: &str, at: UnixNanos, data: &Value) -> OutboxEvent {
    let body = json!({ "type": kind, "timestamp": Rfc3339(at).to_string(), "data": data });
    OutboxEvent { id: format!("evt_{digits}"), kind: kind.to_owned(), at, body: body.to_string() }
}

/// An amount in the unit of the budget. Nano-dollars become dollars.
fn amount(count: u64, measure: Option<BudgetMeasure>) -> Value {
    match measure {
        Some(BudgetMeasure::Dollars) => {
            let amount = NanoDollars::new(i64::try_from(count).unwrap_or(i64::MAX));
            json!({ "dollars": amount.to_string().replacen('$', "", 1), "nano_dollars": count.to_string() })
        }
        _ => count.into(),
    }
}
