//! Texts against the rules that calls are held to, for whoever wants to know before it calls: nothing is stored, and nothing charged.
//! Knows no rule.

use headrace_call_api::BodySource;
use headrace_domain::{Code, Stage};
use headrace_identity::Principal;
use headrace_moderation::Judge;
use headrace_objects::fresh_id;
use headrace_wire::{MODERATION_MODEL, moderation_result, moderation_texts};
use serde_json::{Value, json};

use crate::refused::Why;
use crate::{Answer, Gateway};

use super::Told;

impl Gateway {
    /// `POST /v1/moderations`
    pub(super) async fn moderate_texts(&self, principal: &Principal, body: impl BodySource) -> Told {
        let body = body.read().await.map_err(|refusal| Why::of_body(&refusal))?;
        let memory = self.memory().reserve(&principal.key, (body.len() as u64).saturating_mul(4));
        let memory = memory.map_err(|full| full.at(Stage::Moderate))?;
        let (judge, limits) = (self.catalog().judge().cloned(), self.config().wire.clone());
        let judging = move || -> Result<Vec<Value>, Why> {
            let _taken = memory;
            let texts = moderation_texts(&body, &limits)?;
            let told = |text: &String| {
                let verdict = judge.as_ref().map(|judge| Judge::judge(&**judge, text)).unwrap_or_default();
                moderation_result(verdict.rule().map(|rule| (rule, verdict.is_blocked())))
            };
            Ok(texts.iter().map(told).collect())
        };
        // It takes time in proportion to the texts: the event loop's threads must stay free.
        let stopped =
            |_| Why::new(Code::InternalError, "The texts could not be judged: the judging was stopped.");
        let results = tokio::task::spawn_blocking(judging).await.map_err(stopped)??;
        let id = fresh_id("modr", self.now()).replacen('_', "-", 1);
        let told = json!({"id": id, "model": MODERATION_MODEL, "results": results});
        Ok(Answer::json(200, told.to_string()))
    }
}
