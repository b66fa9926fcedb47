//! The history that a response continues: it is put before the input that the caller sent, and counted like it. Must
//! not know how the history is rendered.

use std::sync::Arc;

use headrace_call_state::{Rejection, RequestMemory, reading_bytes};
use headrace_domain::{Call, Code, KeyId, Stage};
use headrace_identity::Principal;
use headrace_objects::{HistoryOf, StoredLookup};
use headrace_wire::responses::with_history;

use crate::resources::StoredResources;
use crate::socket_session::SocketSession;

impl StoredResources {
    /// Adds the history to the call. Also returns the memory and the turn at the gate that the longer input takes.
    ///
    /// # Errors
    /// The history is missing, there is no memory for it, or no turn in time.
    pub async fn with_history(
        &self,
        call: Box<Call>,
        mut taken: RequestMemory,
        principal: &Principal,
        turns: Option<&SocketSession>,
    ) -> Result<(Box<Call>, RequestMemory), Rejection> {
        let Some(ask) = call.dialect.response().cloned() else { return Ok((call, taken)) };
        let lists = match (&ask.previous, &ask.conversation) {
            (None, None) => return Ok((call, taken)),
            (Some(id), _) => match turns.and_then(|turns| turns.find(&principal.project, id)) {
                Some(kept) => {
                    let bytes = kept.iter().map(String::len).sum();
                    self.make_room(&mut taken, bytes, &principal.key).await?;
                    kept
                }
                None => {
                    let lists;
                    (lists, taken) = self.read_history(principal, ContinuedFrom::Response(id), taken).await?;
                    Arc::new(lists)
                }
            },
            (None, Some(id)) => {
                let lists;
                (lists, taken) = self.read_history(principal, ContinuedFrom::Conversation(id), taken).await?;
                Arc::new(lists)
            }
        };
        if let Some(turns) = turns {
            turns.continue_from(Arc::clone(&lists), self.memory(), &principal.key);
        }
        let limits = self.config().wire.clone();
        let reading = tokio::task::spawn_blocking(move || {
            // The bytes are reserved. The size of their trees is counted here, because long lists would block the
            // event loop.
            lists.iter().try_for_each(|list| taken.reserve_trees(list.as_bytes()))?;
            let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
            let call = with_history(*call, &lists, &limits)?;
            Ok::<_, Rejection>((Box::new(call), taken))
        });
        reading.await.map_err(|_| {
            Rejection::new(Code::InternalError, "The conversation could not be read. Nothing was charged.")
                .at(Stage::Parse)
        })?
    }

    /// Reserves memory and takes a turn for `bytes` of history besides the call's body.
    ///
    /// # Errors
    /// There is no memory for it, or no turn in time.
    async fn make_room(&self, taken: &mut RequestMemory, bytes: usize, key: &KeyId) -> Result<(), Rejection> {
        taken.body_bytes = taken.body_bytes.saturating_add(bytes);
        let needed = reading_bytes(taken.body_bytes, taken.tree_bytes);
        self.memory().resize(&taken.memory, needed).map_err(|full| full.at(Stage::Parse))?;
        if taken.body_bytes > self.config().inline_bytes {
            // A call that waits for a longer turn must not hold a shorter one.
            taken.turn = None;
            taken.turn = Some(self.parts().gate.enter(key, taken.body_bytes).await?);
        }
        Ok(())
    }

    /// Reads the items that a call continues. First asks for their size and reserves memory and a turn for it.
    async fn read_history(
        &self,
        principal: &Principal,
        continued: ContinuedFrom<'_>,
        mut taken: RequestMemory,
    ) -> Result<(Vec<String>, RequestMemory), Rejection> {
        let (project, now) = (principal.project.clone(), self.now());
        let (whose, id) = (project.clone(), continued.id().to_owned());
        let of = continued.of();
        let size = self.objects().ask(move |store| store.size(&whose, StoredLookup::History(of(&id)), now));
        let bytes = size.await?.ok_or_else(|| continued.missing())?;
        let room = usize::try_from(bytes).unwrap_or(usize::MAX);
        let made = self.make_room(&mut taken, room, &principal.key).await;
        made.map_err(|rejection| rejection.with_param(continued.param()))?;
        let id = continued.id().to_owned();
        // The reservation moves with the read, even if the client goes away.
        let reading =
            self.objects().ask(move |store| Ok((store.history(&project, of(&id), bytes, now)?, taken)));
        let (lists, taken) = reading.await?;
        Ok((lists.ok_or_else(|| continued.missing())?, taken))
    }
}

/// The response or conversation that a call continues.
#[derive(Clone, Copy)]
enum ContinuedFrom<'a> {
    Response(&'a str),
    Conversation(&'a str),
}

impl<'a> ContinuedFrom<'a> {
    const fn id(self) -> &'a str {
        match self {
            Self::Response(id) | Self::Conversation(id) => id,
        }
    }

    fn of(self) -> for<'i> fn(&'i str) -> HistoryOf<'i> {
        match self {
            Self::Response(_) => |id| HistoryOf::Response(id),
            Self::Conversation(_) => |id| HistoryOf::Conversation(id),
        }
    }

    const fn param(self) -> &'static str {
        match self {
            Self::Response(_) => "previous_response_id",
            Self::Conversation(_) => "conversation",
        }
    }

    fn missing(self) -> Rejection {
        let (code, message) = match self {
            Self::Response(_) => (
                Code::PreviousResponseNotFound,
                "The response in `previous_response_id`, or one that it continues, is not there, or has not ended. \
                 Send the whole conversation as `input`.",
            ),
            Self::Conversation(_) => {
                (Code::ConversationNotFound, "There is no such conversation for your project.")
            }
        };
        Rejection::new(code, message).with_param(self.param())
    }
}
