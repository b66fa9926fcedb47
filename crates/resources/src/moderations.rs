//! Judges texts by the content rules for calls, for clients that want to know in advance. Stores nothing and charges
//! nothing. Knows no rule.

use std::sync::Arc;

use headrace_call_api::{BodySource, MemoryReservation};
use headrace_call_state::{Answer, NoMemory, Rejection, keep_memory};
use headrace_domain::{Code, Stage};
use headrace_identity::Principal;
use headrace_moderation::Judge;
use headrace_objects::fresh_id;
use headrace_wire::openai::{MODERATION_MODEL, moderation_result, moderation_texts};

use crate::requests::ObjectAnswer;
use crate::resources::StoredResources;
use crate::runner::CallRunner;

/// Texts take at most this many times the size of their body while they are judged.
const BODY_COPIES: u64 = 12;
/// Bytes that judging takes besides the texts, including a result's tree of values.
const JUDGING_BYTES: u64 = 64 << 10;
/// Bytes that a result takes as JSON in a growing buffer.
const RESULT_BYTES: u64 = 6 << 10;

/// Added to the answer if nothing was judged.
const NO_RULES: &str =
    ",\"note\":\"Nothing was judged: this server has no content rules (moderation.rules).\"";

impl StoredResources {
    /// `POST /v1/moderations`
    pub(crate) async fn moderate_texts<R: CallRunner>(
        &self,
        runner: &Arc<R>,
        principal: &Principal,
        body: impl BodySource,
    ) -> ObjectAnswer {
        let body = body.read().await.map_err(|refusal| Rejection::of_body(&refusal))?;
        let needed = (body.len() as u64).saturating_mul(BODY_COPIES).saturating_add(JUDGING_BYTES);
        let memory = self.memory().reserve(&principal.key, needed);
        let memory = memory.map_err(|full| full.at(Stage::Moderate))?;
        let (judge, limits) = (runner.judge(), self.config().wire.clone());
        let id = fresh_id("modr", self.now()).replacen('_', "-", 1);
        let judging = move || -> Result<(String, MemoryReservation), Rejection> {
            let texts = moderation_texts(&body, &limits)?;
            let results = memory.add(RESULT_BYTES.saturating_mul(texts.len() as u64));
            results.map_err(|full| NoMemory::of(&memory, full).at(Stage::Moderate))?;
            let mut told = format!("{{\"id\":\"{id}\",\"model\":\"{MODERATION_MODEL}\",\"results\":[");
            for (at, text) in texts.iter().enumerate() {
                let verdict = judge.as_ref().map(|judge| Judge::judge(&**judge, text)).unwrap_or_default();
                let result = moderation_result(verdict.rule().map(|rule| (rule, verdict.is_blocked())));
                told.push_str(if at > 0 { "," } else { "" });
                told.push_str(&result.to_string());
            }
            told.push(']');
            if judge.is_none() {
                told.push_str(NO_RULES);
            }
            told.push('}');
            Ok((told, memory))
        };
        // Judging takes time in proportion to the texts, and the event loop's threads must stay free.
        let stopped = |_| {
            Rejection::new(Code::InternalError, "The texts could not be judged: the judging was stopped.")
        };
        let (told, memory) = tokio::task::spawn_blocking(judging).await.map_err(stopped)??;
        Ok(keep_memory(memory, Answer::json(200, told)))
    }
}
