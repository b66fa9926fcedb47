//! Conversations and their items: create, look up, label and delete. Foreign and missing ids answer alike.

use headrace_call_api::{BodySource, MemoryReservation};
use headrace_call_state::{Answer, Rejection, keep_memory};
use headrace_domain::{Code, ProjectId};
use headrace_identity::Principal;
use headrace_objects::{
    ConversationRecord, ItemPage, ItemRecord, ObjectError, ObjectStore, StoredLookup, fresh_id, input_items,
};
use headrace_wire::responses::{ConversationBody, conversation_body};
use serde_json::{Value, json};

use crate::object_query::ObjectQuery;
use crate::requests::{ObjectAnswer, owned};
use crate::resources::StoredResources;

impl StoredResources {
    pub(crate) async fn create_conversation(
        &self,
        principal: &Principal,
        body: impl BodySource,
    ) -> ObjectAnswer {
        let (body, _memory) = self.conversation_body(principal, body).await?;
        let now = self.now();
        let conversation = ConversationRecord {
            id: fresh_id("conv", now),
            project: principal.project.clone(),
            created: now,
            expires: self.objects().expires(now),
            metadata: body.metadata.unwrap_or_else(|| "{}".to_owned()),
        };
        let items = body.items.map(|items| input_items(&items, &conversation.id)).unwrap_or_default();
        let json = shown(&conversation);
        self.objects().ask(move |store| store.create_conversation(&conversation, &items)).await?;
        Ok(json)
    }

    pub(crate) async fn show_conversation(&self, principal: &Principal, id: &str) -> ObjectAnswer {
        let found = self
            .conversation_of(principal, id, |store, project, id, now| store.conversation(project, id, now));
        Ok(shown(&found.await?))
    }

    pub(crate) async fn label_conversation(
        &self,
        principal: &Principal,
        id: &str,
        body: impl BodySource,
    ) -> ObjectAnswer {
        let (body, _memory) = self.conversation_body(principal, body).await?;
        if body.items.is_some() {
            let message = "`items`: add items by `POST /v1/conversations/ID/items`.";
            return Err(Rejection::new(Code::UnknownParameter, message).with_param("items"));
        }
        let metadata = body.metadata.unwrap_or_else(|| "{}".to_owned());
        let found = self.conversation_of(principal, id, move |store, project, id, now| {
            store.label_conversation(project, id, &metadata, now)
        });
        Ok(shown(&found.await?))
    }

    pub(crate) async fn delete_conversation(&self, principal: &Principal, id: &str) -> ObjectAnswer {
        let gone = self.conversation_of(principal, id, |store, project, id, now| {
            Ok(store.delete_conversation(project, id, now)?.then_some(()))
        });
        gone.await?;
        Ok(Answer::json(
            200,
            json!({"id": id, "object": "conversation.deleted", "deleted": true}).to_string(),
        ))
    }

    pub(crate) async fn list_items(
        &self,
        principal: &Principal,
        id: &str,
        query: &[(String, String)],
    ) -> ObjectAnswer {
        let ObjectQuery { page: ask, .. } = ObjectQuery::read(query)?;
        let ((project, own), (whose, named)) = (owned(principal, id), owned(principal, id));
        let asked = ask.clone();
        let page = self.read_stored(
            principal,
            move |store, now| store.size(&whose, StoredLookup::Page(&named, &asked), now),
            move |store, now| store.items(&project, &own, &ask, now),
        );
        let (page, memory) = page.await?.ok_or_else(not_found)?;
        Ok(keep_memory(memory, Answer::json(200, page.json())))
    }

    pub(crate) async fn add_items(
        &self,
        principal: &Principal,
        id: &str,
        body: impl BodySource,
    ) -> ObjectAnswer {
        let (body, memory) = self.conversation_body(principal, body).await?;
        let Some(items) = body.items else {
            let message = "`items`: it is required.";
            return Err(Rejection::new(Code::MissingRequiredParameter, message).with_param("items"));
        };
        // A fresh prefix makes the items' ids different from all earlier ones.
        let items = input_items(&items, &fresh_id("add", self.now()));
        let added = self.conversation_of(principal, id, move |store, project, id, now| {
            Ok(store.add_items(project, id, &items, now)?.then_some(items))
        });
        let page = ItemPage { items: added.await?, has_more: false };
        Ok(keep_memory(memory, Answer::json(200, page.json())))
    }

    pub(crate) async fn show_item(&self, principal: &Principal, id: &str, item: &str) -> ObjectAnswer {
        let ((project, own), (whose, named)) = (owned(principal, id), owned(principal, id));
        let (item, same) = (item.to_owned(), item.to_owned());
        let found = self.read_stored(
            principal,
            move |store, now| store.size(&whose, StoredLookup::Item(&named, &same), now),
            move |store, now| store.item(&project, &own, &item, now),
        );
        let (ItemRecord { json, .. }, memory) = found.await?.ok_or_else(not_found)?;
        Ok(keep_memory(memory, Answer::json(200, json)))
    }

    pub(crate) async fn delete_item(&self, principal: &Principal, id: &str, item: &str) -> ObjectAnswer {
        let item = item.to_owned();
        let left = self.conversation_of(principal, id, move |store, project, id, now| {
            let gone = store.delete_item(project, id, &item, now)?;
            if gone { store.conversation(project, id, now) } else { Ok(None) }
        });
        Ok(shown(&left.await?))
    }

    /// Runs an operation on a conversation. If it finds nothing, the answer is the same as for a missing
    /// conversation.
    async fn conversation_of<T: Send + 'static>(
        &self,
        principal: &Principal,
        id: &str,
        ask: impl FnOnce(
            &dyn ObjectStore,
            &ProjectId,
            &str,
            headrace_domain::UnixNanos,
        ) -> Result<Option<T>, ObjectError>
        + Send
        + 'static,
    ) -> Result<T, Rejection> {
        let ((project, id), now) = (owned(principal, id), self.now());
        let found = self.objects().ask(move |store| ask(store, &project, &id, now)).await?;
        found.ok_or_else(not_found)
    }

    /// A body, and the memory that it and its items take.
    async fn conversation_body(
        &self,
        principal: &Principal,
        body: impl BodySource,
    ) -> Result<(ConversationBody, MemoryReservation), Rejection> {
        let (body, memory) = self.body_of(principal, body).await?;
        Ok((conversation_body(&body, &self.config().wire)?, memory))
    }
}

fn not_found() -> Rejection {
    let message = "There is no such conversation, or no such item of it, for your project.";
    Rejection::new(Code::ConversationNotFound, message)
}

fn shown(conversation: &ConversationRecord) -> Answer {
    let metadata: Value = serde_json::from_str(&conversation.metadata).unwrap_or_else(|_| json!({}));
    let created = conversation.created.seconds();
    let body =
        json!({"id": conversation.id, "object": "conversation", "created_at": created, "metadata": metadata});
    Answer::json(200, body.to_string())
}
