//! What a response goes on from: put before what its caller sent, and counted as if it had been sent. Must not know how it is
//! rendered.

use std::sync::Arc;

use headrace_domain::{Call, Code, Stage};
use headrace_identity::Principal;
use headrace_objects::{MOST_ITEMS, ObjectError, ObjectStore, Order, PageAsk};
use headrace_wire::with_history;

use crate::Gateway;
use crate::refused::Why;
use crate::stages::render::estimate;
use crate::state::Taken;

use super::newest::Turns;
use super::owned;

impl Gateway {
    /// The call with what it goes on from, and the memory and the turn that all of that takes.
    ///
    /// # Errors
    /// It is not there, or is too much.
    pub(crate) async fn with_history(
        &self,
        call: Box<Call>,
        mut taken: Taken,
        principal: &Principal,
        turns: Option<&Turns>,
    ) -> Result<(Box<Call>, Taken), Why> {
        let Some(ask) = call.response.clone() else { return Ok((call, taken)) };
        let lists = match (&ask.previous, &ask.conversation) {
            (None, None) => return Ok((call, taken)),
            (Some(id), _) => match turns.and_then(|turns| turns.find(&principal.project, id)) {
                Some(kept) => kept,
                None => Arc::new(self.responses_before(principal, id).await?),
            },
            (None, Some(id)) => Arc::new(self.said_before(principal, id).await?),
        };
        if let Some(turns) = turns {
            turns.goes_on_from(Arc::clone(&lists));
        }
        let bytes: usize = lists.iter().map(String::len).sum();
        taken.body_bytes = taken.body_bytes.saturating_add(bytes);
        let needed = estimate::reading(taken.body_bytes);
        self.memory().resize(&taken.memory, needed).map_err(|full| full.at(Stage::Parse))?;
        if taken.turn.is_none() && taken.body_bytes > self.config().render_inline_bytes {
            taken.turn = Some(self.turns().enter(&principal.key, taken.body_bytes).await?);
        }
        let limits = self.config().wire.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
            (with_history(*call, &lists, &limits).map(Box::new), taken)
        });
        let (call, taken) = reading.await.map_err(|_| {
            Why::new(Code::InternalError, "The conversation could not be read. Nothing was charged.")
                .at(Stage::Parse)
        })?;
        Ok((call?, taken))
    }

    /// The items of a response and of all that it goes on from.
    async fn responses_before(&self, principal: &Principal, id: &str) -> Result<Vec<String>, Why> {
        let ((project, id), now) = (owned(principal, id), self.now());
        let turns = self.objects().ask(move |store| store.turns(&project, &id, now)).await?;
        let turns = turns.ok_or_else(|| {
            let message = "The response in `previous_response_id`, or one that it goes on from, is not there, or has not ended. \
                           Send the whole conversation as `input`.";
            Why::new(Code::PreviousResponseNotFound, message).with_param("previous_response_id")
        })?;
        Ok(turns.into_iter().flat_map(|turn| [turn.input, turn.output]).collect())
    }

    /// The items of a conversation.
    async fn said_before(&self, principal: &Principal, id: &str) -> Result<Vec<String>, Why> {
        let ((project, id), now) = (owned(principal, id), self.now());
        let all = move |store: &dyn ObjectStore| -> Result<Option<Vec<String>>, ObjectError> {
            let mut ask = PageAsk { limit: MOST_ITEMS, order: Order::Ascending, ..PageAsk::default() };
            let mut lists = Vec::new();
            loop {
                let Some(page) = store.items(&project, &id, &ask, now)? else { return Ok(None) };
                ask.after = page.items.last().map(|item| item.id.clone());
                let items: Vec<&str> = page.items.iter().map(|item| item.json.as_str()).collect();
                lists.push(format!("[{}]", items.join(",")));
                if !page.has_more {
                    return Ok(Some(lists));
                }
            }
        };
        self.objects().ask(all).await?.ok_or_else(|| {
            let message = "There is no such conversation for your project.";
            Why::new(Code::ConversationNotFound, message).with_param("conversation")
        })
    }
}
