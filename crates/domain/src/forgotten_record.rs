//! Removes the name of a user from a trace record. Must not know the stores.

use std::sync::Arc;

use crate::attempt::{Attempt, AttemptOutcome};
use crate::{CallOutcome, EndUser, FORGOTTEN, ForgottenName, TokenUser, TraceRecord, TracedRefusal};

impl TraceRecord {
    /// Removes the name of a user from each value that a caller, its identity provider or a failed server can fill: the
    /// end user, the labels, the requested model and messages. Ids, names of the configuration, times, counts and
    /// charges stay, also if the user is named like one of them. Returns whether the name was there.
    pub fn forget(&mut self, name: &ForgottenName) -> bool {
        // Names every field, so that each new one is assigned here.
        let Self {
            user,
            token_user,
            labels,
            model_asked,
            why_estimated,
            answer_notes,
            attempts,
            outcome,
            version: _,
            request_id: _,
            trace_id: _,
            parent_span_id: _,
            started: _,
            duration_ns: _,
            first_token_ns: _,
            after_ns: _,
            form_ns: _,
            org: _,
            project: _,
            key: _,
            region: _,
            client: _,
            endpoint: _,
            model_served: _,
            numerics: _,
            stream: _,
            stages: _,
            usage: _,
            price_tier: _,
            usage_source: _,
            upstream: _,
            upstream_model: _,
            upstream_id: _,
            continued: _,
            rounds: _,
            engine: _,
            kept_answers: _,
            cache_diagnosis: _,
            held: _,
            cost: _,
            loss: _,
            paid: _,
            billed: _,
            connection: _,
            moderation: _,
            input_verdicts: _,
            output_verdicts: _,
            judge_uses: _,
            failed_with: _,
            shadow_of: _,
            replay_of: _,
            sent: _,
            worker_job: _,
        } = self;
        let mut found = forget_user(user, name);
        found |= forget_token_user(token_user, name);
        if let Some(own) = labels {
            found |= own.rewrite(|label| name.is_in_text(label), |value| name.replaced_in(value));
        }
        if labels.as_ref().is_some_and(|labels| labels.is_empty()) {
            *labels = None;
        }
        if let Some(model) = model_asked {
            found |= replace(model, name);
        }
        if let Some(replaced) = why_estimated.as_deref().and_then(|why| name.replaced_in(why)) {
            *why_estimated = Some(replaced.into());
            found = true;
        }
        for note in answer_notes {
            found |= replace(note, name);
        }
        for Attempt { outcome, .. } in attempts {
            if let AttemptOutcome::Refused { why, .. } | AttemptOutcome::Failed { why, .. } = outcome {
                found |= replace(why, name);
            }
        }
        match outcome {
            CallOutcome::Completed { finish: _ } => {}
            CallOutcome::Refused(TracedRefusal { message, .. })
            | CallOutcome::Cancelled { why: message }
            | CallOutcome::Failed { message, .. } => found |= replace(message, name),
        }
        found
    }
}

fn replace(text: &mut String, name: &ForgottenName) -> bool {
    match name.replaced_in(text) {
        Some(replaced) => {
            *text = replaced;
            true
        }
        None => false,
    }
}

fn forget_user(user: &mut Option<EndUser>, name: &ForgottenName) -> bool {
    let Some(replaced) = user.as_ref().and_then(|user| name.replaced_in(user.as_str())) else { return false };
    *user = Some(replaced).filter(|replaced| replaced != FORGOTTEN).and_then(|rest| EndUser::named(&rest));
    true
}

fn forget_token_user(user: &mut Option<Arc<TokenUser>>, name: &ForgottenName) -> bool {
    let Some(found) = user else { return false };
    let Some(subject) = name.replaced_in(&found.subject) else { return false };
    *found = Arc::new(TokenUser { subject: subject.into(), ..TokenUser::clone(found) });
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallLabels, Endpoint, RequestId, Stage, UnixNanos};

    const NAME: &str = "eva@example.com";

    fn record(outcome: CallOutcome) -> TraceRecord {
        TraceRecord {
            org: Some("acme".parse().unwrap()),
            project: Some("default".parse().unwrap()),
            key: Some("key_1".parse().unwrap()),
            endpoint: Some(Endpoint::ChatCompletions),
            model_asked: Some("demo".to_owned()),
            model_served: Some("demo-model".to_owned()),
            upstream_id: Some("chatcmpl-1".to_owned()),
            answer_notes: vec!["finish: unknown".to_owned()],
            user: EndUser::named("someone"),
            labels: CallLabels::of([("customer", "someone")]).map(Box::new),
            ..TraceRecord::new(RequestId::from_bits(7), UnixNanos::new(1), outcome)
        }
    }

    fn completed() -> CallOutcome {
        CallOutcome::Completed { finish: vec!["stop".to_owned()] }
    }

    #[test]
    fn the_name_is_removed_from_all_that_a_caller_can_fill() {
        let message = || format!("no model `{NAME}`");
        let refusal = TracedRefusal {
            stage: Stage::Route,
            rule: "model".to_owned(),
            status: 404,
            code: "unknown_model".to_owned(),
            message: message(),
        };
        let outcomes = [
            CallOutcome::Refused(refusal),
            CallOutcome::Cancelled { why: message() },
            CallOutcome::Failed { stage: Stage::Upstream, message: message() },
        ];
        for outcome in outcomes {
            let attempt = |outcome| Attempt {
                prompt: 0,
                worker: "w".into(),
                model: None,
                start_ns: 0,
                duration_ns: 1,
                outcome,
                paid: None,
            };
            let mut named = TraceRecord {
                user: EndUser::named(&format!("mail:{NAME}")),
                token_user: Some(Arc::new(TokenUser {
                    issuer: "https://id".into(),
                    subject: NAME.into(),
                    role: None,
                })),
                labels: CallLabels::of([("tag", NAME), (NAME, "x"), ("kept", "y")]).map(Box::new),
                model_asked: Some(NAME.to_owned()),
                why_estimated: Some(message().into()),
                answer_notes: vec![message()],
                attempts: vec![
                    attempt(AttemptOutcome::Refused { code: "c".to_owned(), why: message() }),
                    attempt(AttemptOutcome::Failed { code: "c".to_owned(), why: message() }),
                ],
                ..record(outcome)
            };
            let name = ForgottenName::new(NAME).unwrap();
            assert!(named.forget(&name));
            let text = serde_json::to_string(&named).unwrap();
            assert!(
                !text.contains(NAME) && text.contains(r#""labels":{"kept":"y","tag":"(forgotten)"}"#),
                "{text}"
            );
            assert!(!named.forget(&name), "nothing is left");
        }
        let mut alone =
            TraceRecord { labels: CallLabels::of([(NAME, "x")]).map(Box::new), ..record(completed()) };
        alone.user = EndUser::named(NAME);
        assert!(alone.forget(&ForgottenName::new(NAME).unwrap()));
        assert_eq!((alone.user, alone.labels), (None, None));
    }

    #[test]
    fn a_user_who_is_named_like_a_part_of_the_record_takes_nothing_else_with_it() {
        let structural = [
            "default",
            "acme",
            "key_1",
            "demo-model",
            "chatcmpl-1",
            "user",
            "labels",
            "outcome",
            "project",
            "completed",
            "finish",
            "stop",
            "chat_completions",
            "kind",
            "customer_",
            "request_id",
        ];
        for name in structural {
            let mut all = record(completed());
            assert!(!all.forget(&ForgottenName::new(name).unwrap()), "{name}");
            assert_eq!(all, record(completed()), "{name}");
            // The call of this user loses the label alone.
            let mut own = TraceRecord { user: EndUser::named(name), ..record(completed()) };
            assert!(own.forget(&ForgottenName::new(name).unwrap()), "{name}");
            assert_eq!(own, TraceRecord { user: None, ..record(completed()) }, "{name}");
        }
    }
}
