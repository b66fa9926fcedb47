//! Canaries for operators: the audit log records which were rolled back and which were resumed. A start rolls back
//! again those that were rolled back before. Must not know when a model is worse.

use std::sync::{Arc, Weak};
use std::time::Duration;

use headrace_admin::{AdminError, CanaryFigures, RouteArmView, RouteSource, RouteView};
use headrace_domain::{AdminCode, ModelName};
use headrace_gateway::Gateway;
use headrace_identity::{AuditEntry, AuditRow, Directory, IdentityError};
use headrace_rollout::{CanaryNews, CanaryRollback, CanaryView, ModelRoute, RouteArm};
use serde_json::{Value, json};

use headrace_terminal::output;

/// Interval at which the gateway is asked for new rollbacks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The act of rolling a canary back, in the audit log. Its subject is the route.
const ROLL_BACK: &str = "canary.roll_back";
/// The act of resuming a canary, in the audit log. Its detail is the model.
const RESUME: &str = "canary.resume";
/// The actor of rollbacks in the audit log.
const ACTOR: &str = "headrace";
/// Maximum number of audit rows of each act that a start reads, newest first.
const MOST_ROWS: usize = 500;

/// Writes rollbacks to the audit log, until the future is dropped. Restores former ones after each change of the
/// catalogue.
pub(crate) async fn tend(gateway: Weak<Gateway>, directory: Arc<Directory>) {
    let mut seen = gateway.upgrade().map(|gateway| Arc::downgrade(&gateway.catalog())).unwrap_or_default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(gateway) = gateway.upgrade() else { return };
        let now = Arc::downgrade(&gateway.catalog());
        if !seen.ptr_eq(&now) {
            // A rolled-back model may have returned with its server.
            let (gateway, directory) = (Arc::clone(&gateway), Arc::clone(&directory));
            let restored = tokio::task::spawn_blocking(move || restore(&gateway, &directory));
            if restored.await.is_ok_and(|restored| restored.is_ok()) {
                seen = now;
            }
        }
        for news in gateway.canary_news() {
            let CanaryNews { route, model, rolled_back, .. } = &news;
            output::note(&format!(
                "warning: route `{route}`: canary `{model}` is taken out: {}; `headrace routes --resume {route}` puts it on trial again",
                rolled_back.why
            ));
            let (entry, directory) = (entry(&news), Arc::clone(&directory));
            // The callee reports its own outcome.
            let _ = tokio::task::spawn_blocking(move || write(&directory, &entry)).await;
        }
    }
}

fn write(directory: &Directory, entry: &AuditEntry) {
    if let Err(error) = directory.note(entry) {
        output::note(&format!(
            "warning: the audit log does not know that route `{}` had a canary taken out, and a restart will not: {error}",
            entry.subject
        ));
    }
}

fn entry(news: &CanaryNews) -> AuditEntry {
    let CanaryNews { route, model, fingerprint, rolled_back } = news;
    AuditEntry {
        at: rolled_back.at,
        actor: ACTOR.to_owned(),
        act: ROLL_BACK.to_owned(),
        subject: route.to_string(),
        detail: json!({ "model": model, "entry": fingerprint, "why": rolled_back.why }).to_string(),
    }
}

/// Rolls back again the canaries that were rolled back before and not resumed since.
///
/// # Errors
/// Returns an error if the audit log cannot be read.
pub(crate) fn restore(gateway: &Gateway, directory: &Directory) -> Result<(), IdentityError> {
    if gateway.catalog().routes().all(|(_, route)| route.arms.iter().all(|arm| arm.canary.is_none())) {
        return Ok(());
    }
    let rolled_back = directory.audit_of(ROLL_BACK, None, MOST_ROWS)?;
    let resumed = directory.audit_of(RESUME, None, MOST_ROWS)?;
    out_still(&rolled_back, &resumed).into_iter().for_each(|news| gateway.roll_back(news));
    Ok(())
}

/// The rollbacks that no later row resumes.
fn out_still(rolled_back: &[AuditRow], resumed: &[AuditRow]) -> Vec<CanaryNews> {
    let read = |row: &AuditRow| {
        let detail: Value = serde_json::from_str(&row.entry.detail).ok()?;
        let [model, fingerprint, why] = ["model", "entry", "why"].map(|key| detail.get(key)?.as_str());
        let model = ModelName::new(model?).ok()?;
        let again = |other: &&AuditRow| {
            other.seq > row.seq
                && other.entry.subject == row.entry.subject
                && other.entry.detail == model.as_str()
        };
        if resumed.iter().any(|other| again(&other)) {
            return None;
        }
        let route = ModelName::new(&row.entry.subject).ok()?;
        let rolled_back = CanaryRollback { at: row.entry.at, why: why?.to_owned() };
        Some(CanaryNews { route, model, fingerprint: fingerprint?.to_owned(), rolled_back })
    };
    rolled_back.iter().filter_map(read).collect()
}

/// The operators' view of the routes, and their actions on them.
pub(crate) fn source(gateway: Weak<Gateway>) -> RouteSource {
    Box::new(move |resume| {
        let Some(gateway) = gateway.upgrade() else { return Ok((Vec::new(), Vec::new())) };
        let resumed = match resume {
            Some(route) if gateway.catalog().routes().all(|(name, _)| name != route) => {
                return Err(unknown(route));
            }
            Some(route) => gateway.resume_canaries(route),
            None => Vec::new(),
        };
        let catalog = gateway.catalog();
        let views =
            catalog.routes().map(|(name, route)| view(name, route, |arm| catalog.canary(name, &arm.model)));
        Ok((resumed, views.collect()))
    })
}

fn view(name: &ModelName, route: &ModelRoute, canary: impl Fn(&RouteArm) -> Option<CanaryView>) -> RouteView {
    let arm = |arm: &RouteArm| RouteArmView {
        model: arm.model.clone(),
        weight: arm.weight,
        canary: canary(arm).map(figures),
    };
    RouteView {
        name: name.clone(),
        sticky: route.sticky.name().to_owned(),
        to: route.arms.iter().map(arm).collect(),
    }
}

fn figures(view: CanaryView) -> CanaryFigures {
    let count = |counts: [usize; 2]| counts.map(|count| u64::try_from(count).unwrap_or(u64::MAX));
    let CanaryView { calls, errors, refusals, first_token_p95_us, rolled_back } = view;
    CanaryFigures {
        calls: count(calls),
        errors: count(errors),
        refusals: count(refusals),
        first_token_p95_us,
        rolled_back_unix_s: rolled_back.as_ref().map(|out| out.at.seconds()),
        why: rolled_back.map(|out| out.why),
    }
}

fn unknown(route: &ModelName) -> AdminError {
    AdminError {
        code: AdminCode::UnknownRoute,
        message: format!("there is no route `{route}` to several models"),
        remedy: "`headrace routes` lists them".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::UnixNanos;
    use headrace_identity::{AuditSummary, HashSecret, MemoryKeyStore};

    use super::*;

    #[test]
    fn what_was_taken_out_is_out_at_the_next_start_unless_it_was_put_on_trial_again() {
        let directory =
            Directory::open(Arc::new(MemoryKeyStore::default()), HashSecret::new([1; 32])).unwrap();
        let name = |text: &str| ModelName::new(text).unwrap();
        let news = |route: &str, model: &str, second: u64| CanaryNews {
            route: name(route),
            model: name(model),
            fingerprint: "0123456789abcdef".to_owned(),
            rolled_back: CanaryRollback {
                at: UnixNanos::new(second * 1_000_000_000),
                why: "calls that fail: 12 of 40".to_owned(),
            },
        };
        let resume = |route: &str, model: &str| AuditEntry {
            act: RESUME.to_owned(),
            detail: model.to_owned(),
            ..entry(&news(route, model, 9))
        };
        let all = [news("chat", "gpu/new: 2", 1), news("chat", "other", 2), news("code", "other", 3)];
        all.iter().for_each(|news| directory.note(&entry(news)).unwrap());
        directory.note(&resume("chat", "other")).unwrap();
        let still = || {
            let rows = |act| directory.audit_of(act, None, MOST_ROWS).unwrap();
            out_still(&rows(ROLL_BACK), &rows(RESUME))
        };
        assert_eq!(still(), [all[2].clone(), all[0].clone()]);
        let again = news("chat", "other", 10);
        directory.note(&entry(&again)).unwrap();
        assert_eq!(still(), [again, all[2].clone(), all[0].clone()]);
        assert_ne!(directory.verify_audit().unwrap(), AuditSummary::EMPTY);
    }
}
